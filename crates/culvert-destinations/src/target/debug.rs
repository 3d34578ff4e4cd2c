//! `debug`: events to the server's own log, or unsigned to a URL. For first steps and tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::guard::CheckedUrl;
use culvert_target::net::Http;
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::judge;
use crate::config::{checked_url, invalid, parse};

const NAME: &str = "debug";
const DEADLINE: Duration = Duration::from_secs(15);

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Writes each event to the server's log, or posts each batch as a JSON array to a URL.",
    limits: BatchLimits::DEFAULT,
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |_, given| given,
    redact: Value::clone,
    open,
};

/// Configuration of the `debug` target: at least one of its fields must be set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DebugTarget")]
struct Config {
    /// Whether to write one line per event to the server's log (target `culvert::events`).
    #[serde(default)]
    log: Option<bool>,
    /// URL for unsigned POST requests with each batch as a JSON array.
    #[serde(default)]
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    callback_url: Option<String>,
}

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    config.log = Some(config.log.unwrap_or(false));
    config.callback_url = config.callback_url.filter(|url| !url.is_empty());
    match &config.callback_url {
        Some(url) => drop(checked_url(NAME, "callback_url", url, &settings.rules)?),
        None if config.log == Some(true) => {}
        None => return Err(invalid(NAME, "it requires `log` or `callback_url`")),
    }
    Ok(Checked {
        stored: serde_json::to_value(&config).expect("a configuration is plain JSON"),
        shown_once: None,
    })
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let callback = match &config.callback_url {
        Some(url) => Some((
            checked_url(NAME, "callback_url", url, &context.settings().rules)?,
            context.net().http(),
        )),
        None => None,
    };
    Ok(Arc::new(Debug {
        log: config.log.unwrap_or(false),
        callback,
    }))
}

#[derive(Debug)]
struct Debug {
    log: bool,
    callback: Option<(CheckedUrl, Http)>,
}

impl Target for Debug {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            if let Some((to, http)) = &self.callback {
                let mut headers = HeaderMap::new();
                headers.insert(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/json"),
                );
                let body = Bytes::from(batch.json_array());
                let sent = http.post(to, headers, body, DEADLINE).await;
                if let Err(failure) = sent.and_then(|answer| judge(&answer, &[])) {
                    return Verdict::Failed(failure);
                }
            }
            if self.log {
                for delivery in batch.deliveries() {
                    let event = String::from_utf8_lossy(delivery.payload());
                    tracing::info!(target: "culvert::events", "{event}");
                }
            }
            Verdict::Delivered
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

#[cfg(test)]
mod tests;
