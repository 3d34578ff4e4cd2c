//! An acme-dns server, which serves the TXT records of one name for each account.
//!
//! It keeps the last two values and removes none, so removing is no request. The challenge name must be an alias of the
//! account's name.

use culvert_base::Secret;
use http::{HeaderMap, Method};
use serde_json::json;

use crate::api::{Api, header};
use crate::change::Change;
use crate::error::DnsError;

/// An account at an acme-dns server.
#[derive(Debug)]
pub struct AcmeDns {
    /// The base of the API, without a slash at the end.
    pub server_url: String,
    /// The user name.
    pub username: Secret,
    /// The password.
    pub password: Secret,
    /// The account's subdomain.
    pub subdomain: String,
    /// The name whose records it serves.
    pub full_domain: String,
}

impl AcmeDns {
    pub(crate) async fn change(
        &self,
        name: &str,
        value: &str,
        change: Change,
        api: &Api,
    ) -> Result<(), DnsError> {
        self.check(name)?;
        if change == Change::Remove {
            return Ok(());
        }
        let mut credentials = HeaderMap::new();
        header(&mut credentials, "x-api-user", self.username.reveal())?;
        header(&mut credentials, "x-api-key", self.password.reveal())?;
        let api = api.json(&self.server_url, credentials);
        let body = json!({"subdomain": self.subdomain, "txt": value});
        let answer = api.send(Method::POST, "/update", Some(&body)).await?;
        if answer.is_success() {
            return Ok(());
        }
        let body = answer.json();
        let message = body["error"].as_str().unwrap_or("no message");
        Err(answer.error("acme-dns", message))
    }

    /// Checks that a name is the account's, and returns a sentence for the log that says so.
    ///
    /// The API has no request that checks credentials without a change.
    pub(crate) fn check(&self, name: &str) -> Result<String, DnsError> {
        let own = self.full_domain.trim_end_matches('.');
        if name.eq_ignore_ascii_case(own) {
            return Ok(format!("the acme-dns server has `{own}`"));
        }
        Err(DnsError::new(format_args!(
            "it must be an alias of the acme-dns account; create the record `{name} CNAME {own}.`"
        )))
    }
}
