//! Stored form and view of the management of a certificate.

use std::time::Duration;

use culvert_base::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The only authority name in the contract; the operator chooses the actual authority.
pub const AUTHORITY: &str = "letsencrypt";

/// Key type of a managed certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyType {
    /// RSA.
    Rsa,
    /// ECDSA.
    Ecdsa,
}

/// A policy and its state, as stored in a domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Management {
    /// Key type of the next certificate.
    pub private_key_type: KeyType,
    /// When the certificate in use is renewed.
    pub renews_at: Option<Timestamp>,
    /// The provisioning of the next certificate, until it succeeds.
    pub job: Option<Job>,
}

/// The provisioning of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Job {
    /// Why the last attempt failed; `None` while none has.
    pub error: Option<JobError>,
    /// State or error message for the user.
    pub msg: String,
    /// When the first attempt began.
    pub started_at: Timestamp,
    pub(crate) retries_at: Option<Timestamp>,
    /// When the last attempt failed. Not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_at: Option<Timestamp>,
}

/// Minimum time between two attempts for one name, including requested ones: authorities count the failures
/// of a name.
pub(crate) const ATTEMPTS_APART: Duration = Duration::from_secs(10);

/// Why the last attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum JobError {
    /// Temporary, or the operator must fix it.
    #[serde(rename = "INTERNAL_ERROR")]
    Internal,
    /// The owner of the name must fix it.
    #[serde(rename = "DNS_ERROR")]
    Dns,
}

impl Management {
    /// A new policy, without a certificate.
    pub fn begin(private_key_type: KeyType, now: Timestamp) -> Self {
        Self {
            private_key_type,
            renews_at: None,
            job: Some(Job::begin(now)),
        }
    }

    /// Ends the wait after a failed attempt: the next attempt is due now, and the waits start with the
    /// shortest again. Does nothing if no attempt has failed.
    pub fn retry(&mut self, now: Timestamp) {
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

    /// The policy as it is shown.
    pub fn policy_view(&self) -> PolicyView {
        PolicyView {
            authority: AUTHORITY,
            private_key_type: match self.private_key_type {
                KeyType::Rsa => "rsa",
                KeyType::Ecdsa => "ecdsa",
            },
        }
    }

    /// The state as it is shown.
    pub fn status_view(&self) -> StatusView<'_> {
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
    /// A job whose first attempt is running or due.
    pub(crate) fn begin(now: Timestamp) -> Self {
        Self {
            error: None,
            msg: "The certificate is being provisioned.".to_owned(),
            started_at: now.whole_seconds(),
            retries_at: None,
            failed_at: None,
        }
    }

    /// Whether no attempt has failed since the start or since a requested retry.
    pub(crate) fn has_not_failed(&self) -> bool {
        self.error.is_none()
    }
}

/// A policy as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct PolicyView {
    /// `letsencrypt`.
    #[schemars(extend("enum" = [AUTHORITY]))]
    pub(crate) authority: &'static str,
    /// `rsa` or `ecdsa`.
    #[schemars(extend("enum" = ["rsa", "ecdsa"]))]
    pub(crate) private_key_type: &'static str,
}

/// The state of a managed certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct StatusView<'a> {
    /// Time of the renewal: two thirds of the certificate's lifetime.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(crate) renews_at: Option<Timestamp>,
    /// `null` while no certificate is needed.
    pub(crate) provisioning_job: Option<JobView<'a>>,
}

/// The getting of a certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct JobView<'a> {
    /// `INTERNAL_ERROR` (retried automatically), `DNS_ERROR` (requires action by the domain owner),
    /// or `null` during the first attempt.
    #[schemars(extend("enum" = ["INTERNAL_ERROR", "DNS_ERROR", null]))]
    pub(crate) error_code: Option<&'static str>,
    /// State or error message.
    pub(crate) msg: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) started_at: Timestamp,
    /// Time of the next attempt after an error.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(crate) retries_at: Option<Timestamp>,
}
