//! The management of a domain's certificate: the policy a caller sets, and what is shown of its state
//! (contract: management API 2.3).
//!
//! Not here: who gets the certificates (`reconcile::acme`).

use culvert_base::{Code, Refusal, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The one authority of the contract: what it stands for is the operator's choice.
const AUTHORITY: &str = "letsencrypt";

/// How a certificate is got from an authority, as a caller sends it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(inline)]
pub(crate) struct Policy {
    /// `letsencrypt`, which stands for the authority of the installation's configuration.
    authority: Option<String>,
    /// `rsa` (default) or `ecdsa`. A change holds from the next renewal on.
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
}

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
        const ANOTHER: Code = Code::new(435);
        const KEY_TYPE: Code = Code::new(1909);
        let authority = self.authority.as_deref().unwrap_or_default();
        if !matches!(authority, "" | AUTHORITY) {
            return Err(Refusal::of(ANOTHER));
        }
        match self.private_key_type.as_deref().unwrap_or_default() {
            "" | "rsa" => Ok(KeyType::Rsa),
            "ecdsa" => Ok(KeyType::Ecdsa),
            _ => Err(Refusal::of(KEY_TYPE)),
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
        }
    }
}

/// A policy as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PolicyView {
    /// `letsencrypt`.
    authority: &'static str,
    /// `rsa` or `ecdsa`.
    private_key_type: &'static str,
}

/// The state of a managed certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct StatusView<'a> {
    /// When the certificate in use is renewed: at two thirds of its life.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    renews_at: Option<Timestamp>,
    /// `null` while there is nothing to get.
    provisioning_job: Option<JobView<'a>>,
}

/// The getting of a certificate as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct JobView<'a> {
    /// `INTERNAL_ERROR`, which passes by itself, `DNS_ERROR`, which the owner of the domain must mend,
    /// or `null` while the first attempt is under way.
    error_code: Option<&'static str>,
    /// The state or the error in words.
    msg: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// When it is tried again after an error.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    retries_at: Option<Timestamp>,
}
