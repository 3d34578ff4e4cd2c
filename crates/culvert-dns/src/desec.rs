//! deSEC: sets of records of its API, version 1.

use culvert_base::Secret;
use http::Method;
use serde_json::{Value, json};

use crate::api::{Api, ApiResponse, JsonApi, authorized, encoded};
use crate::change::Change;
use crate::error::DnsError;

/// Time to live if the domain has no minimum, in seconds.
const TTL: u64 = 3600;

/// An account at deSEC.
#[derive(Debug)]
pub struct Desec {
    /// The base of the API, without a slash at the end.
    pub api_url: String,
    /// A token for the API.
    pub token: Secret,
}

/// A domain of the account.
struct Domain {
    name: String,
    ttl: u64,
}

impl Desec {
    /// The base of the public API.
    pub const API_URL: &str = "https://desec.io/api/v1";

    pub(crate) async fn change(
        &self,
        name: &str,
        value: &str,
        change: Change,
        api: &Api,
    ) -> Result<(), DnsError> {
        let api = self.json(api)?;
        let domain = domain_of(name, &api).await?;
        let subname = name.strip_suffix(&domain.name).unwrap_or_default();
        let subname = subname.trim_end_matches('.');
        let sets = format!("/domains/{}/rrsets/", encoded(&domain.name));
        let path = format!("{sets}{}/TXT/", encoded(subname));
        let answer = api.send(Method::GET, &path, None).await?;
        let before = match answer.status {
            404 => Value::Null,
            _ => result_of(&answer)?,
        };
        let values = values_of(&before);
        let records = change.of(values.clone(), &format!("\"{value}\""));
        if records == values {
            return Ok(());
        }
        let ttl = before["ttl"].as_u64().unwrap_or(domain.ttl);
        // A set without records is deleted.
        let set = json!([{"subname": subname, "type": "TXT", "ttl": ttl, "records": records}]);
        result_of(&api.send(Method::PATCH, &sets, Some(&set)).await?).map(drop)
    }

    pub(crate) async fn check(&self, name: &str, api: &Api) -> Result<String, DnsError> {
        let domain = domain_of(name, &self.json(api)?).await?;
        Ok(format!("deSEC has the domain `{}`", domain.name))
    }

    fn json<'a>(&'a self, api: &'a Api) -> Result<JsonApi<'a>, DnsError> {
        Ok(api.json(&self.api_url, authorized("Token", &self.token)?))
    }
}

/// The domain that has a name.
async fn domain_of(name: &str, api: &JsonApi<'_>) -> Result<Domain, DnsError> {
    let path = format!("/domains/?owns_qname={}", encoded(name));
    let found = result_of(&api.send(Method::GET, &path, None).await?)?;
    let domain = found[0]["name"].as_str();
    let domain = domain.filter(|domain| name.ends_with(&format!(".{domain}")));
    Ok(Domain {
        name: domain
            .ok_or_else(|| DnsError::new("the account has no domain with this name"))?
            .to_owned(),
        ttl: found[0]["minimum_ttl"].as_u64().unwrap_or(TTL),
    })
}

/// The values of a set of records, as they are written.
fn values_of(set: &Value) -> Vec<String> {
    let records = set["records"].as_array().into_iter().flatten();
    let texts = records.filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// The body of a response, or its error.
fn result_of(answer: &ApiResponse) -> Result<Value, DnsError> {
    if answer.is_success() {
        return Ok(answer.json());
    }
    let body = answer.json();
    let message = match body["detail"].as_str() {
        Some(detail) => detail.to_owned(),
        None if body.is_null() => "no message".to_owned(),
        None => body.to_string(),
    };
    Err(answer.error("deSEC", &message))
}
