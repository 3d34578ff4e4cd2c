//! Cloudflare: zones and records of its API, version 4. The token needs `Zone.DNS:Edit` for the zone.

use culvert_base::Secret;
use http::Method;
use serde_json::{Value, json};

use crate::api::{Api, ApiResponse, JsonApi, authorized, encoded};
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
        let api = self.json(api)?;
        let (zone_id, _) = zone_of(name, &api).await?;
        let records = format!("/zones/{}/dns_records", encoded(&zone_id));
        let text = format!("\"{value}\"");
        match change {
            Change::Add => {
                let body = json!({"type": "TXT", "name": name, "content": text, "ttl": TTL});
                let answer = api.send(Method::POST, &records, Some(&body)).await?;
                let errors = answer.json()["errors"].take();
                let is_same = |error: &Value| error["code"] == SAME_RECORD;
                if errors
                    .as_array()
                    .is_some_and(|errors| errors.iter().any(is_same))
                {
                    return Ok(());
                }
                result_of(&answer).map(drop)
            }
            Change::Remove => {
                let path = format!("{records}?type=TXT&name={}", encoded(name));
                let found = result_of(&api.send(Method::GET, &path, None).await?)?;
                for record in found.as_array().into_iter().flatten() {
                    let (id, content) = (&record["id"], &record["content"]);
                    if (*content == text || *content == value)
                        && let Some(id) = id.as_str()
                    {
                        let path = format!("{records}/{}", encoded(id));
                        result_of(&api.send(Method::DELETE, &path, None).await?)?;
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn check(&self, name: &str, api: &Api) -> Result<String, DnsError> {
        let (_, zone) = zone_of(name, &self.json(api)?).await?;
        Ok(format!("Cloudflare has the zone `{zone}`"))
    }

    fn json<'a>(&'a self, api: &'a Api) -> Result<JsonApi<'a>, DnsError> {
        Ok(api.json(&self.api_url, authorized("Bearer", &self.api_token)?))
    }
}

/// ID and name of the zone of a name.
async fn zone_of(name: &str, api: &JsonApi<'_>) -> Result<(String, String), DnsError> {
    for zone in zones_of(name) {
        let path = format!("/zones?name={}", encoded(zone));
        let found = result_of(&api.send(Method::GET, &path, None).await?)?;
        if let Some(id) = found[0]["id"].as_str() {
            return Ok((id.to_owned(), zone.to_owned()));
        }
    }
    Err(DnsError::new("the token sees no zone with this name"))
}

/// The result of a response, or its errors.
fn result_of(answer: &ApiResponse) -> Result<Value, DnsError> {
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
    let message = match errors.is_empty() {
        true => "no message".to_owned(),
        false => errors.join(", "),
    };
    Err(answer.error("Cloudflare", &message))
}
