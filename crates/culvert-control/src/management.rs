//! The management of a domain's certificate: the policy a caller sets, and what is shown of its state
//! (contract: management API 2.3).
//!
//! Not here: who gets the certificates (`reconcile::acme`).

use std::time::Duration;

use culvert_base::{Refusal, Timestamp, code};
use culvert_store::Changes;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::operation::{Answer, Call, Method, Reply, Run, Status};
use crate::resource::{Extra, Made, Resource, ResourceType};
use crate::service::{self, RUNS_MAX};
use crate::{Control, Error, stored};

/// The one authority of the contract: what it stands for is the operator's choice.
const AUTHORITY: &str = "letsencrypt";

/// How a certificate is got from an authority, as a caller sends it.
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

/// Kind of a managed certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyType {
    Rsa,
    Ecdsa,
}

/// A policy and its state, as a domain stores them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Management {
    pub(crate) private_key_type: KeyType,
    /// When the certificate in use is renewed.
    pub(crate) renews_at: Option<Timestamp>,
    /// The getting of the next certificate, from its beginning to its success.
    pub(crate) job: Option<Job>,
}

/// The getting of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) error: Option<JobError>,
    pub(crate) msg: String,
    pub(crate) started_at: Timestamp,
    pub(crate) retries_at: Option<Timestamp>,
    /// When the last attempt failed. Not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_at: Option<Timestamp>,
}

/// Minimum time between two attempts for one name, also when a user asks for one: authorities count
/// failures of a name.
const ATTEMPTS_APART: Duration = Duration::from_secs(10);

/// Why the last attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum JobError {
    /// It passes, or the operator has to act.
    #[serde(rename = "INTERNAL_ERROR")]
    Internal,
    /// The owner of the name has to act.
    #[serde(rename = "DNS_ERROR")]
    Dns,
}

impl Policy {
    /// What is wrong with it, else the kind of key it wants.
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

impl Management {
    /// A policy that has no certificate yet.
    pub(crate) fn begin(private_key_type: KeyType, now: Timestamp) -> Self {
        Self {
            private_key_type,
            renews_at: None,
            job: Some(Job::begin(now)),
        }
    }

    /// Ends the wait after a failed attempt: the next attempt is due now, and the waits after it begin
    /// with the shortest again. Does nothing while no attempt has failed.
    pub(crate) fn retry(&mut self, now: Timestamp) {
        let Some(job) = self.job.as_mut().filter(|job| job.error.is_some()) else {
            return;
        };
        let earliest = job.failed_at.map(|at| at.plus(ATTEMPTS_APART));
        *job = Job {
            started_at: job.started_at,
            retries_at: earliest.filter(|at| *at > now),
            failed_at: job.failed_at,
            ..Job::begin(now)
        };
    }

    pub(crate) fn policy_view(&self) -> PolicyView {
        PolicyView {
            authority: AUTHORITY,
            private_key_type: match self.private_key_type {
                KeyType::Rsa => "rsa",
                KeyType::Ecdsa => "ecdsa",
            },
        }
    }

    pub(crate) fn status_view(&self) -> StatusView<'_> {
        StatusView {
            renews_at: self.renews_at,
            provisioning_job: self.job.as_ref().map(|job| JobView {
                error_code: job.error.map(|error| match error {
                    JobError::Internal => "INTERNAL_ERROR",
                    JobError::Dns => "DNS_ERROR",
                }),
                msg: &job.msg,
                started_at: job.started_at,
                retries_at: job.retries_at,
            }),
        }
    }
}

impl Job {
    /// A job whose first attempt is under way, or about to be.
    pub(crate) fn begin(now: Timestamp) -> Self {
        Self {
            error: None,
            msg: "The certificate is being provisioned.".to_owned(),
            started_at: now.whole_seconds(),
            retries_at: None,
            failed_at: None,
        }
    }

    /// Whether no attempt has failed since it began, or since a retry was asked for.
    pub(crate) fn has_not_failed(&self) -> bool {
        self.error.is_none()
    }
}

/// A resource whose certificate can be got from an authority.
pub(crate) trait Managed: Resource {
    /// Its management, if it has a policy.
    fn management_mut(&mut self) -> Option<&mut Management>;
}

/// The operation `retry_certificate_management` of a resource.
pub(crate) const fn retry_operation<R: Managed>(run: Run) -> Extra {
    Extra {
        name: "retry_certificate_management",
        method: Method::Post,
        suffix: "/certificate_management_policy/retry",
        doc: "Retries a failed certificate request immediately and resets the retry delay. \
              Attempts are at least ten seconds apart; `retries_at` shows when the next one is \
              due. Has no effect if no attempt failed.",
        body: None,
        answer: Answer {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<R::View<'static>>),
        },
        query: &[],
        run,
    }
}

/// Runs that operation.
pub(crate) async fn run_retry<R: Managed>(
    control: &Control,
    ty: &'static ResourceType,
    call: Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let _turn = service::turn(&cx, ty, &call).await;
    for _ in 0..RUNS_MAX {
        let document = service::named(&cx, ty, &call).await?;
        let document = document.ok_or_else(Refusal::not_found)?;
        R::permit(cx.caller)?;
        let mut stored: R = stored::read(&document)?;
        let Some(management) = stored.management_mut() else {
            return Err(Refusal::of(code::MANAGEMENT_POLICY_MISSING).into());
        };
        management.retry(cx.clock.now());
        let made = Made {
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

/// A policy as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PolicyView {
    /// `letsencrypt`.
    #[schemars(extend("enum" = [AUTHORITY]))]
    authority: &'static str,
    /// `rsa` or `ecdsa`.
    #[schemars(extend("enum" = ["rsa", "ecdsa"]))]
    private_key_type: &'static str,
}

/// The state of a managed certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StatusView<'a> {
    /// Time of the renewal: two thirds of the certificate's lifetime.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    renews_at: Option<Timestamp>,
    /// `null` while no certificate is needed.
    provisioning_job: Option<JobView<'a>>,
}

/// The getting of a certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct JobView<'a> {
    /// `INTERNAL_ERROR` (retried automatically), `DNS_ERROR` (requires action by the domain owner),
    /// or `null` during the first attempt.
    #[schemars(extend("enum" = ["INTERNAL_ERROR", "DNS_ERROR", null]))]
    error_code: Option<&'static str>,
    /// State or error message.
    msg: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// Time of the next attempt after an error.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    retries_at: Option<Timestamp>,
}
