//! The operations of the management API as a table: what the HTTP face routes, what the OpenAPI
//! document lists, what the command line offers. Each row knows how to run itself.
//!
//! Not here: HTTP. A row is given a [`Call`], already authenticated and parsed, and answers with a
//! [`Reply`].

use culvert_base::BoxFuture;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use crate::control::Control;
use crate::page::Parameter;
use crate::{Caller, Error};

/// One operation: a method on a path.
#[derive(Debug)]
pub struct Operation {
    /// `create`, `get`, `list`, `update`, `delete`, or the word of an operation beyond the five.
    pub name: &'static str,
    /// The collection it belongs to, as in the path: `api_keys`; `""` for the root and `self`.
    pub collection: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path with its parameters in braces: `/api_keys/{id}`.
    pub path: String,
    /// What it does, one sentence.
    pub doc: String,
    /// The body it takes; `None` refuses every non-empty body.
    pub body: Option<BodySpec>,
    /// What it answers when it succeeds.
    pub response: ResponseSpec,
    /// The query parameters it takes; it refuses others.
    pub query: &'static [Parameter],
    /// Does it.
    pub run: Handler,
}

/// How an operation runs.
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
    /// Whether some field must be given, so that a call without any body is refused.
    pub required: bool,
}

/// The response of a success.
#[derive(Clone, Copy, Debug)]
pub struct ResponseSpec {
    /// Its status.
    pub status: Status,
    /// Schema of its body; `None` where there is none.
    pub schema: Option<SchemaOf>,
}

/// Status of a successful answer.
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
    /// Who is calling.
    pub caller: Caller,
    /// Values of the path's parameters in order, percent-decoded.
    pub path: Vec<String>,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    /// The body: a JSON object, strictly parsed (no key twice, depth at most 32).
    pub body: Option<Value>,
    /// Public base of `uri` fields, without a trailing slash.
    pub base: String,
}

/// What a successful operation answers. Bodies are JSON text.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// 201 with the new object.
    Created {
        /// The object.
        body: String,
        /// Whether the body carries something shown only once, which no cache may keep.
        secret: bool,
    },
    /// 200 with an object or a list.
    Ok(String),
    /// 204.
    NoContent,
}
