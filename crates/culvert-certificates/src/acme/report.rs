//! The events of orders: one when a certificate is ordered, and one when that fails for the first time.

use culvert_base::Timestamp;
use culvert_store::{Changes, Document};
use culvert_tls::acme::{Blame, Failure};
use schemars::JsonSchema;
use serde::Serialize;

use crate::CertificateManager;
use crate::acme::halt::Halt;

/// The kind of the event of an order.
pub const CERTIFICATE_ORDERED: &str = "certificate_ordered.v0";
/// The kind of the event of an order that failed.
pub const CERTIFICATE_FAILED: &str = "certificate_failed.v0";

/// Names of a certificate in an event.
const NAMES_MAX: usize = 32;

/// The object of the events of an order.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CertificateOrder<'a> {
    /// ID of the reserved domain or agent ingress; that of the installation's own names begins with `owncert_`.
    id: &'a str,
    /// The names of the certificate, at most 32.
    names: Vec<&'a str>,
    /// The directory URL of the authority; empty if none is configured.
    authority: &'a str,
    /// Whether a certificate is replaced.
    is_renewal: bool,
    /// Who can correct the failure; null in the event of an order.
    error: Option<OrderError<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct OrderError<'a> {
    /// `DNS_ERROR` requires action by the owner of the name; `INTERNAL_ERROR` is temporary, or the operator must fix it.
    #[schemars(extend("enum" = ["INTERNAL_ERROR", "DNS_ERROR"]))]
    error_code: &'static str,
    /// The message.
    msg: &'a str,
    /// Time of the next attempt.
    #[schemars(with = "String", extend("format" = "date-time"))]
    retries_at: Timestamp,
}

/// What events say of an order.
pub(super) struct Reported<'a> {
    pub(super) domain_id: &'a str,
    /// The document with the names, whose account has the event.
    pub(super) account: &'a str,
    pub(super) names: Vec<&'a str>,
    pub(super) authority: &'a str,
    pub(super) is_renewal: bool,
}

/// The account of a domain, or that of the installation.
pub(super) async fn account_of(
    manager: &CertificateManager,
    domain: Option<&Document>,
) -> Result<Option<String>, Halt> {
    match domain.map(|domain| domain.head.account.as_str()) {
        Some("") | None => Ok(manager.kernel.first_account().await?),
        Some(account) => Ok(Some(account.to_owned())),
    }
}

impl Reported<'_> {
    /// The event of the order, or of a failure with the time of the next attempt.
    pub(super) fn event(
        self,
        manager: &CertificateManager,
        failed: Option<(&Failure, Timestamp)>,
    ) -> Result<Changes, Halt> {
        let kind = match failed {
            None => CERTIFICATE_ORDERED,
            Some(_) => CERTIFICATE_FAILED,
        };
        let mut names = self.names;
        names.truncate(NAMES_MAX);
        let object = CertificateOrder {
            id: self.domain_id,
            names,
            authority: self.authority,
            is_renewal: self.is_renewal,
            error: failed.map(|(failure, retries_at)| OrderError {
                error_code: match failure.blame {
                    Blame::Name => "DNS_ERROR",
                    Blame::Passing | Blame::Gone => "INTERNAL_ERROR",
                },
                msg: &failure.why,
                retries_at,
            }),
        };
        let event = manager.kernel.server_event(kind, self.account, &object)?;
        Ok(Changes::event(event))
    }
}
