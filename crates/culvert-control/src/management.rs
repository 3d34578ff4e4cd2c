//! Management of a domain's certificate: the policy that a caller sets, and the status that the API shows
//! (contract: management API 2.3).
//!
//! `reconcile::acme` obtains the certificates.

use culvert_base::{Refusal, code};
use culvert_store::Changes;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::control::Control;
use crate::operation::{Call, Handler, Method, Reply, ResponseSpec, Status};
use crate::resource::model::management::{AUTHORITY, KeyType, Management};
use crate::resource::resource_type::{Extra, Resource, ResourceType, StoredDraft};
use crate::rights::Access;
use crate::service::{self, RUNS_MAX};
use crate::{Error, stored};

/// How the certificate of a domain is managed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub(crate) struct Policy {
    /// `letsencrypt`, which selects the CA of the installation.
    #[schemars(extend("enum" = [AUTHORITY, ""]))]
    authority: Option<String>,
    /// `rsa` (default) or `ecdsa`. A change applies from the next renewal.
    #[schemars(extend("enum" = ["rsa", "ecdsa", ""]))]
    private_key_type: Option<String>,
}

impl Policy {
    /// Checks the policy and returns its key type.
    pub(crate) fn key_type(&self) -> Result<KeyType, Refusal> {
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

/// A resource whose certificate can be managed.
pub(crate) trait Managed: Resource {
    /// The state of the management, if the resource has a policy.
    fn management_mut(&mut self) -> Option<&mut Management>;
}

/// The operation `retry_certificate_management` of a resource.
pub(crate) const fn retry_operation<R: Managed>(run: Handler) -> Extra {
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
        run,
    }
}

/// Runs `retry_certificate_management`, in [`service::locked`].
pub(crate) async fn run_retry<R: Managed>(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
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
        if let Some(view) = service::replace(&cx, ty, document.head, made).await? {
            return Ok(Reply::Ok(view));
        }
    }
    Err(service::overtaken())
}
