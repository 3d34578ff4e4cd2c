//! `datadog`: events as logs of Datadog (contract: destinations 4).

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use culvert_base::{BoxFuture, Entropy, Refusal, Secret, code};
use culvert_events::read_json;
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::Failure;
use culvert_target::net::{Http, HttpRequest};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::{class_of_status, failed};
use crate::client::request_body::gzipped;
use crate::config::{hide, invalid, keep_secret, parse, stored};
use crate::target::envelope::event_time;

const NAME: &str = "datadog";
const DEADLINE: Duration = Duration::from_secs(25);
const TEXT_BYTES_MAX: usize = 200;
/// Datadog's sites.
const SITES: [&str; 9] = [
    "datadoghq.com",
    "us3.datadoghq.com",
    "us5.datadoghq.com",
    "datadoghq.eu",
    "ap1.datadoghq.com",
    "ap2.datadoghq.com",
    "uk1.datadoghq.com",
    "ddog-gov.com",
    "us2.ddog-gov.com",
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to Datadog as a log.",
    // Stays below Datadog's limit of 5 MB with the members added to each event.
    limits: BatchLimits {
        events_max: 500,
        bytes_max: 4_000_000,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, mut given| {
        keep_secret(stored, &mut given, "", "api_key");
        given
    },
    redact: |stored| hide(stored, "/api_key", Value::Null),
    open,
};

/// Configuration of the `datadog` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DatadogTarget")]
struct Config {
    /// API key of the organisation. Required, write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true, "x-culvert-required" = true))]
    api_key: Option<String>,
    /// Tags of the logs, as comma-separated `name:value` pairs.
    #[serde(default)]
    ddtags: Option<String>,
    /// Service name of the logs.
    #[serde(default)]
    service: Option<String>,
    /// Datadog site, such as `datadoghq.eu`; empty for `datadoghq.com`.
    #[serde(default)]
    ddsite: Option<String>,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, given)?;
    let key = config.api_key.as_deref().unwrap_or_default();
    if key.is_empty() {
        return Err(Refusal::of(code::DATADOG_API_KEY_MISSING));
    }
    if key.len() > TEXT_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid(
            NAME,
            "`api_key` must be at most 200 visible characters",
        ));
    }
    let site = config.ddsite.as_deref().unwrap_or_default();
    if !site.is_empty()
        && !SITES.contains(&site)
        && !settings.datadog_sites.iter().any(|more| more == site)
    {
        return Err(Refusal::of(code::DATADOG_SITE_UNKNOWN));
    }
    for (name, value, bytes_max) in [
        ("service", &config.service, TEXT_BYTES_MAX),
        ("ddtags", &config.ddtags, 2000),
    ] {
        let fits = value
            .as_ref()
            .is_none_or(|text| text.len() <= bytes_max && !text.chars().any(char::is_control));
        if !fits {
            return Err(invalid(
                NAME,
                format_args!(
                    "`{name}` must be at most {bytes_max} bytes without control characters"
                ),
            ));
        }
    }
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let (base, http) = match &context.settings().datadog_base {
        Some(base) => (base.clone(), context.net().http_to_named_by_operator()),
        None => {
            let site = config.ddsite.filter(|site| !site.is_empty());
            let site = site.as_deref().unwrap_or(SITES[0]);
            let base = Url::parse(&format!("https://http-intake.logs.{site}"))
                .map_err(|_| Refusal::of(code::DATADOG_SITE_UNKNOWN))?;
            (base, context.net().http())
        }
    };
    let url = base
        .join("api/v2/logs")
        .map_err(|_| Refusal::of(code::DATADOG_SITE_UNKNOWN))?;
    let key = config.api_key.unwrap_or_default();
    let mut headers = HeaderMap::new();
    let mut value =
        HeaderValue::from_str(&key).map_err(|_| Refusal::of(code::DATADOG_API_KEY_MISSING))?;
    value.set_sensitive(true);
    headers.insert("dd-api-key", value);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let mut added = vec![("ddsource", "culvert".to_owned())];
    for (name, value) in [("service", config.service), ("ddtags", config.ddtags)] {
        let value = value.filter(|value| !value.is_empty());
        added.extend(value.map(|value| (name, value)));
    }
    Ok(Arc::new(Datadog {
        url,
        http,
        headers,
        key: Secret::new(key),
        added,
    }))
}

struct Datadog {
    url: Url,
    http: Http,
    headers: HeaderMap,
    key: Secret,
    /// Further members of each log's object.
    added: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for Datadog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datadog").finish_non_exhaustive()
    }
}

impl Target for Datadog {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match self.post(batch).await {
                Ok(()) => Verdict::Delivered,
                Err(failure) => Verdict::Failed(failure),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

impl Datadog {
    async fn post(&self, batch: &Batch) -> Result<(), Failure> {
        let body = gzipped(&self.logs(batch)).into();
        let order = HttpRequest::post(self.url.clone(), self.headers.clone(), body, DEADLINE);
        let answer = self.http.send(order.succeeds_by_head()).await?;
        match class_of_status(answer.status) {
            Ok(()) => Ok(()),
            Err(class) => Err(failed(&answer, class, &[self.key.reveal()])),
        }
    }

    /// The events as logs, each with the further members.
    fn logs(&self, batch: &Batch) -> Vec<u8> {
        let mut added = String::new();
        for (name, value) in &self.added {
            added.push_str(&format!(",\"{name}\":{}", json!(value)));
        }
        let mut logs = vec![b'['];
        for delivery in batch.deliveries() {
            if logs.len() > 1 {
                logs.push(b',');
            }
            // Gives the log the time of the event.
            let at = event_time(delivery.envelope).map(|at| at.unix_millis());
            if let Some(log) = delivery.formatted.and_then(|event| self.merged(event, at)) {
                logs.extend_from_slice(log.to_string().as_bytes());
                continue;
            }
            let open = delivery.payload().strip_suffix(b"}");
            logs.extend_from_slice(open.unwrap_or(delivery.payload()));
            logs.extend_from_slice(added.as_bytes());
            if let Some(at) = at {
                logs.extend_from_slice(format!(",\"timestamp\":{at}").as_bytes());
            }
            logs.push(b'}');
        }
        logs.push(b']');
        logs
    }

    /// An event in another format, which may have a member with the name of a further one, such as `service` in OCSF: the
    /// further one replaces it. `None` if the event is no object.
    fn merged(&self, event: &[u8], at: Option<i64>) -> Option<Value> {
        let Value::Object(mut log) = read_json(event)? else {
            return None;
        };
        for (name, value) in &self.added {
            log.insert((*name).to_owned(), json!(value));
        }
        if let Some(at) = at {
            log.insert("timestamp".to_owned(), json!(at));
        }
        Some(Value::Object(log))
    }
}

#[cfg(test)]
mod tests;
