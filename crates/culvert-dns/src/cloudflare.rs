//! Cloudflare: zones and records of its API, version 4. The token needs `Zone.DNS:Edit` for the zone.

use culvert_base::Secret;
use http::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Api, authorized, encoded};
use crate::change::{Change, TTL, zones_of};
use crate::error::DnsError;

/// The code of an error: the same record exists.
const SAME_RECORD: u64 = 81058;

/// An account at Cloudflare.
#[derive(Debug)]
pub struct Cloudflare {
    /// The base of the API, without a slash at the end.
    pub api_url: String,
    /// A token for the API.
    pub api_token: Secret,
}

impl Cloudflare {
    /// The base of the public API.
    pub const API_URL: &str = "https://api.cloudflare.com/client/v4";

    pub(crate) async fn change(
        &self,
        name: &str,
        value: &str,
        change: Change,
        api: &Api,
    ) -> Result<(), DnsError> {
        let (zone_id, _) = self.zone(name, api).await?;
        let records = format!("/zones/{}/dns_records", encoded(&zone_id));
        let text = format!("\"{value}\"");
        match change {
            Change::Add => {
                let body = json!({"type": "TXT", "name": name, "content": text, "ttl": TTL});
                let answer = self.call(Method::POST, &records, Some(&body), api).await?;
                let errors = answer.json()["errors"].take();
                let is_same = |error: &Value| error["code"] == SAME_RECORD;
                if errors
                    .as_array()
                    .is_some_and(|errors| errors.iter().any(is_same))
                {
                    return Ok(());
                }
                judge(&answer).map(drop)
            }
            Change::Remove => {
                let path = format!("{records}?type=TXT&name={}", encoded(name));
                let found = judge(&self.call(Method::GET, &path, None, api).await?)?;
                for record in found.as_array().into_iter().flatten() {
                    let (id, content) = (&record["id"], &record["content"]);
                    if (*content == text || *content == value)
                        && let Some(id) = id.as_str()
                    {
                        let path = format!("{records}/{}", encoded(id));
                        judge(&self.call(Method::DELETE, &path, None, api).await?)?;
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn check(&self, name: &str, api: &Api) -> Result<String, DnsError> {
        let (_, zone) = self.zone(name, api).await?;
        Ok(format!("Cloudflare has the zone `{zone}`"))
    }

    /// ID and name of the zone of a name.
    async fn zone(&self, name: &str, api: &Api) -> Result<(String, String), DnsError> {
        for zone in zones_of(name) {
            let path = format!("/zones?name={}", encoded(zone));
            let found = judge(&self.call(Method::GET, &path, None, api).await?)?;
            if let Some(id) = found[0]["id"].as_str() {
                return Ok((id.to_owned(), zone.to_owned()));
            }
        }
        Err(DnsError::new("the token sees no zone with this name"))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        api: &Api,
    ) -> Result<Answer, DnsError> {
        let url = format!("{}{path}", self.api_url);
        let headers = authorized("Bearer", &self.api_token)?;
        api.json(method, &url, headers, body).await
    }
}

/// The result of a response, or its errors.
fn judge(answer: &Answer) -> Result<Value, DnsError> {
    let mut body = answer.json();
    if answer.is_success() && body["success"] == true {
        return Ok(body["result"].take());
    }
    let errors = body["errors"].as_array().into_iter().flatten();
    let errors: Vec<String> = errors
        .map(|error| {
            let message = error["message"].as_str().unwrap_or("no message");
            format!("{message} ({})", error["code"])
        })
        .collect();
    Err(DnsError::new(format_args!(
        "Cloudflare returned status {}: {}",
        answer.status,
        if errors.is_empty() {
            "no message".to_owned()
        } else {
            errors.join(", ")
        }
    )))
}
