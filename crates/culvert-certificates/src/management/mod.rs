//! Management of a domain's certificate: the policy that a caller sets, and the status that the API shows
//! (contract: management API 2.3).
//!
//! `certificates::acme` obtains the certificates.

pub mod check;
pub mod model;

use std::fmt::Debug;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Performed, Trace};
use culvert_resources::operation::{Call, Handler, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::{Extra, Resource, ResourceType, StoredDraft};
use culvert_resources::service::RUNS_MAX;
use culvert_resources::{Error, Kernel, audit, service, stored};
use culvert_store::{Changes, Document};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::management::model::{AUTHORITY, KeyType, Management};

pub(crate) static CERTIFICATE_RETRIED: OperationKind = OperationKind {
    name: "certificate_retried.v0",
    doc: "A failed certificate request was retried by a caller.",
    shows_body: false,
};

/// How the certificate of a domain is managed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub struct Policy {
    /// `letsencrypt`, which selects the CA of the installation.
    #[schemars(extend("enum" = [AUTHORITY, ""]))]
    authority: Option<String>,
    /// `rsa` (default) or `ecdsa`. A change applies from the next renewal.
    #[schemars(extend("enum" = ["rsa", "ecdsa", ""]))]
    private_key_type: Option<String>,
}

impl Policy {
    /// Checks the policy and returns its key type.
    pub fn key_type(&self) -> Result<KeyType, Refusal> {
        let authority = self.authority.as_deref().unwrap_or_default();
        if !matches!(authority, "" | AUTHORITY) {
            return Err(Refusal::of(code::MANAGEMENT_AUTHORITY_UNSUPPORTED));
        }
        match self.private_key_type.as_deref().unwrap_or_default() {
            "" | "rsa" => Ok(KeyType::Rsa),
            "ecdsa" => Ok(KeyType::Ecdsa),
            _ => Err(Refusal::of(code::MANAGEMENT_KEY_TYPE_UNKNOWN)),
        }
    }
}

/// Kind of reserved domains, whose certificates can be managed. A later subject defines them.
pub const DOMAIN: &str = "domain";
/// Kind of the ingresses of agents, whose certificates can be managed. A later subject defines them.
pub const AGENT_INGRESS: &str = "agent_ingress";

/// A resource whose certificate can be managed, in its stored form.
pub trait Managed: Debug + Send + Sync {
    /// The name of its certificate.
    fn name(&self) -> &str;

    /// The owner, to whom the certificate belongs; empty for the admins.
    fn owner_id(&self) -> &str;

    /// The name at which challenge records are published, if it is another: for wildcards of accounts the CNAME
    /// target.
    fn challenge_target(&self) -> Option<&str>;

    /// The name below the installation's domain that its name is an alias of, if it has one.
    fn alias_target(&self) -> Option<&str> {
        None
    }

    /// ID of the certificate in use.
    fn certificate_id(&self) -> Option<&str>;

    /// The state of the management, if the resource has a policy.
    fn management(&self) -> Option<&Management>;

    /// The state of the management, if the resource has a policy.
    fn management_mut(&mut self) -> Option<&mut Management>;

    /// Installs an issued certificate until it is renewed.
    fn take_issued(&mut self, certificate_id: String, renews_at: Timestamp);

    /// Writes its state to its document.
    ///
    /// # Errors
    ///
    /// If the state cannot be written as JSON.
    fn write(&self, document: &mut Document) -> Result<(), Fault>;
}

/// A kind of resource whose certificates can be managed, for the table of these kinds.
#[derive(Debug)]
pub struct ManagedType {
    /// Its row in the table of resources.
    pub ty: &'static ResourceType,
    /// Reads a document of this kind.
    pub read: fn(&Document) -> Result<Box<dyn Managed>, Fault>,
}

impl ManagedType {
    /// The entry of `R`, whose row is `ty`.
    pub const fn of<R: Resource + Managed>(ty: &'static ResourceType) -> Self {
        Self {
            ty,
            read: |document| Ok(Box::new(stored::read::<R>(document)?)),
        }
    }
}

/// The operation `retry_certificate_management` of a resource.
pub const fn retry_operation<R: Resource + Managed, S>(run: Handler<S>) -> Extra<S> {
    Extra {
        name: "retry_certificate_management",
        method: Method::Post,
        suffix: "/certificate_management_policy/retry",
        doc: "Retries a failed certificate request immediately and resets the retry delay. \
              Attempts are at least ten seconds apart; `retries_at` shows when the next one is \
              due. Has no effect if no attempt failed.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<R::View<'static>>),
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Also(&CERTIFICATE_RETRIED),
        run,
    }
}

/// Runs `retry_certificate_management`, in [`service::locked`].
pub async fn run_retry<R: Resource + Managed>(
    kernel: &Kernel,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = kernel.cx_of(&call, &[])?;
    for _ in 0..RUNS_MAX {
        let document = service::named(&cx, ty, &call).await?;
        let document = document.ok_or_else(Refusal::not_found)?;
        R::permit(cx.caller)?;
        let mut stored: R = stored::read(&document)?;
        let Some(management) = stored.management_mut() else {
            return Err(Refusal::of(code::MANAGEMENT_POLICY_MISSING).into());
        };
        management.retry(cx.clock.now());
        let made = StoredDraft {
            body: stored::write(&stored)?,
            links: stored.links(&document.head),
            reveal: None,
            also: Changes::default(),
        };
        let operation = format!("{}_retry_certificate_management", ty.collection);
        let retried = Performed::of(&document.head.id, &operation);
        let retried = audit::operation(&cx, CERTIFICATE_RETRIED.name, &retried)?;
        let made = made.and(Changes::event(retried));
        if let Some(view) = service::replace(&cx, ty, document, made).await? {
            return Ok(Reply::Ok(view));
        }
    }
    Err(service::overtaken())
}
