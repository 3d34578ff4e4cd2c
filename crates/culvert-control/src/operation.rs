//! The table of operations of the management API. The HTTP server routes it, the OpenAPI document lists it,
//! and the command line offers it. Each row holds the function that runs it.
//!
//! Rows know nothing of HTTP: a row receives an authenticated and parsed [`Call`] and returns a [`Reply`].

use std::net::IpAddr;

use culvert_base::BoxFuture;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::control::Control;
use crate::page::Parameter;
use crate::right::Right;
use crate::rights::{Access, Rights};
use crate::{Caller, Error};

/// One operation: a method on a path.
#[derive(Debug)]
pub struct Operation {
    /// `create`, `get`, `list`, `update`, `delete`, or the name of a further operation.
    pub name: &'static str,
    /// The collection it belongs to, as in the path: `api_keys`; `""` for the root and `self`.
    pub collection: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path with its parameters in braces: `/api_keys/{id}`.
    pub path: String,
    /// Its purpose, in one sentence.
    pub doc: String,
    /// The accepted body; `None` refuses every non-empty body.
    pub body: Option<BodySpec>,
    /// The response on success.
    pub response: ResponseSpec,
    /// The accepted query parameters; others are refused.
    pub query: &'static [Parameter],
    /// The right it needs.
    pub right: Right,
    /// What it needs of the object in its path; `None` without such an object.
    pub object: Option<ObjectRight>,
    /// Runs it, without a check of its scope.
    pub(crate) run: Handler,
}

impl Operation {
    /// Runs it for a caller whose key has its scope (642), and who has the right to the object in the path (630).
    pub fn call<'a>(
        &self,
        control: &'a Control,
        call: Call,
    ) -> BoxFuture<'a, Result<Reply, Error>> {
        match call.caller.check_scope(self.right) {
            Ok(()) => match self.object {
                // These check the right beside the errors of the request.
                None
                | Some(ObjectRight {
                    access: Access::See,
                    ..
                }) => (self.run)(control, call),
                Some(_) if self.is_one_of_five() => (self.run)(control, call),
                Some(ObjectRight { access, check, .. }) => {
                    let run = self.run;
                    Box::pin(async move {
                        check(control, access, &call).await?;
                        run(control, call).await
                    })
                }
            },
            Err(refusal) => Box::pin(std::future::ready(Err(refusal.into()))),
        }
    }

    /// Whether `service` runs it, which checks the right in its place among the other errors.
    fn is_one_of_five(&self) -> bool {
        matches!(self.name, "get" | "update" | "delete")
    }

    /// Its unique ID: `api_keys_create`.
    pub fn id(&self) -> String {
        match self.collection {
            "" => self.name.to_owned(),
            // Some collections have two segments, but client generators need plain names.
            collection => format!("{}_{}", collection.replace('/', "_"), self.name),
        }
    }
}

/// The right that an operation needs to the object in its path.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRight {
    /// The rights to the objects of the resource.
    pub rights: Rights,
    /// What it needs of the object.
    pub access: Access,
    /// Checks that the caller has it.
    pub(crate) check: CheckObject,
}

/// Refuses a call whose caller does not have this right to the object in the path.
pub(crate) type CheckObject =
    for<'a> fn(&'a Control, Access, &'a Call) -> BoxFuture<'a, Result<(), Error>>;

/// The function that runs an operation.
pub type Handler = for<'a> fn(&'a Control, Call) -> BoxFuture<'a, Result<Reply, Error>>;

/// A JSON schema as a function, so that a table can hold it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes.
    Post,
    /// Changes.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// As on the wire: `GET`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// The body of an operation.
#[derive(Clone, Copy, Debug)]
pub struct BodySpec {
    /// Schema of the object.
    pub schema: SchemaOf,
    /// Whether a field is required, so that a call without a body is refused.
    pub required: bool,
}

/// The response of a success.
#[derive(Clone, Copy, Debug)]
pub struct ResponseSpec {
    /// Its status.
    pub status: Status,
    /// Schema of its body; `None` for no body.
    pub schema: Option<SchemaOf>,
}

/// Status of a successful response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 200.
    Ok,
    /// 201.
    Created,
    /// 204.
    NoContent,
}

/// One call of an operation.
#[derive(Debug)]
pub struct Call {
    /// The caller.
    pub caller: Caller,
    /// Values of the path parameters in order, percent-decoded.
    pub path: Vec<String>,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    /// The body: a JSON object, strictly parsed (no key twice, depth at most 32).
    pub body: Option<Value>,
    /// Public base of `uri` fields, without a trailing slash.
    pub base: String,
    /// The address of the caller, not of a proxy.
    pub address: IpAddr,
}

/// The response of a successful operation. Bodies are JSON text.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// 201 with the new object.
    Created {
        /// The object.
        body: String,
        /// Whether the body carries a secret that is shown only once and must not be cached.
        secret: bool,
    },
    /// 200 with an object or a list.
    Ok(String),
    /// 200 with an object that carries secrets and must not be cached.
    Secret(String),
    /// 204.
    NoContent,
}
