//! The maintenance of an endpoint: what its clients get meanwhile, and who gets past that.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, IpSet, Prefix, Refusal, Secret, Verdict};
use culvert_edge_config::Maintenance;
use culvert_resources::cx::Cx;
use culvert_resources::stored::seal::Seal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::endpoint::timeouts::{PATTERN, parse};
use crate::endpoint::upstreams::{invalid, time};

const STATUS: u16 = 503;
const BODY_BYTES_MAX: usize = 64 << 10;
const TYPE_BYTES_MAX: usize = 127;
const CONTENT_TYPE: &str = "text/html; charset=utf-8";
const RETRY_AFTER: Duration = Duration::from_secs(60);
const CIDRS_MAX: usize = 64;
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 256;
const REDACTED: &str = "[redacted]";

/// The maintenance of an endpoint. In an update, values that are absent or `null` stay as they are, and empty ones are the default.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointMaintenanceInput", extend("additionalProperties" = false))]
pub(crate) struct GivenMaintenance {
    /// Whether the endpoint is in maintenance: default `false`.
    enabled: Option<bool>,
    /// Status of the response: 400 to 599, default 503.
    #[schemars(range(max = 599))]
    status: Option<u16>,
    /// Body of the response, at most 64 KiB. Default: the error page of the edge.
    #[schemars(length(max = 65536))]
    body: Option<String>,
    /// Media type of `body`, at most 127 bytes; default `text/html; charset=utf-8`.
    #[schemars(extend("pattern" = r"^$|^[!-~]+/[ -~]+$"))]
    content_type: Option<String>,
    /// When clients may try again, in the field `retry-after`: 1s to 168h, default 1m.
    #[schemars(extend("pattern" = PATTERN))]
    retry_after: Option<String>,
    /// Networks of clients whose requests go on, such as `192.0.2.0/24`: at most 64.
    #[schemars(extend("maxItems" = CIDRS_MAX))]
    bypass_cidrs: Option<Vec<String>>,
    /// Secret of clients whose requests go on, in the field `Culvert-Maintenance` or the cookie `__Host-culvert.maintenance`, without
    /// TLS `culvert.maintenance`: 16 to 256 letters, digits and `-._~+/=`. Shown as `[redacted]`, which as a value keeps it.
    #[schemars(length(max = 256), extend("writeOnly" = true))]
    bypass_secret: Option<String>,
}

/// The stored form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct StoredMaintenance {
    enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "String::is_empty")]
    body: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    content_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bypass_cidrs: Vec<String>,
    /// Encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    bypass_secret: Option<String>,
}

/// The maintenance of an endpoint as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointMaintenance")]
pub(crate) struct MaintenanceView<'a> {
    enabled: bool,
    status: u16,
    /// Empty for the error page of the edge.
    body: &'a str,
    /// Empty without a body.
    content_type: &'a str,
    retry_after: Cow<'a, str>,
    bypass_cidrs: &'a [String],
    /// `[redacted]`, or empty if there is none.
    bypass_secret: &'static str,
}

impl fmt::Debug for GivenMaintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenMaintenance")
            .field("enabled", &self.enabled)
            .finish_non_exhaustive()
    }
}

impl GivenMaintenance {
    /// The maintenance with these values of the endpoint with this ID; `None` if all are the default.
    ///
    /// # Errors
    ///
    /// 18014, with the field and its bounds.
    pub(crate) fn check(
        self,
        cx: &Cx<'_>,
        endpoint_id: &str,
        is_http: bool,
        before: Option<StoredMaintenance>,
    ) -> Result<Option<StoredMaintenance>, culvert_resources::Error> {
        if !is_http {
            return Err(invalid("`maintenance` needs an HTTP endpoint.").into());
        }
        let mut after = before.unwrap_or_default();
        let Self {
            enabled,
            status,
            body,
            content_type,
            mut retry_after,
            bypass_cidrs,
            bypass_secret,
        } = self;
        after.enabled = enabled.unwrap_or(after.enabled);
        if let Some(status) = status {
            if !(400..=599).contains(&status) {
                return Err(invalid("`maintenance.status` must be from 400 to 599.").into());
            }
            after.status = Some(status);
        }
        if let Some(body) = body {
            if body.len() > BODY_BYTES_MAX {
                return Err(invalid("`maintenance.body` must have at most 65536 bytes.").into());
            }
            after.body = body;
        }
        if let Some(content_type) = content_type {
            after.content_type = media_type(content_type)?;
        }
        if !after.content_type.is_empty() && after.body.is_empty() {
            return Err(invalid("`maintenance.content_type` needs `maintenance.body`.").into());
        }
        if retry_after.is_some() {
            let (second, week) = (Duration::from_secs(1), Duration::from_secs(7 * 24 * 3_600));
            time("maintenance.retry_after", &mut retry_after, second..=week)?;
            after.retry_after = retry_after;
        }
        if let Some(cidrs) = bypass_cidrs {
            networks(&cidrs)?;
            after.bypass_cidrs = cidrs;
        }
        match bypass_secret {
            Some(secret) if secret.is_empty() => after.bypass_secret = None,
            Some(secret) if secret != REDACTED => {
                check_secret(&secret)?;
                let sealed = cx.seal.seal(cx.entropy, endpoint_id, &secret)?;
                after.bypass_secret = Some(sealed);
            }
            _ => {}
        }
        Ok((after != StoredMaintenance::default()).then_some(after))
    }
}

impl StoredMaintenance {
    pub(crate) fn view(&self) -> MaintenanceView<'_> {
        MaintenanceView {
            enabled: self.enabled,
            status: self.status.unwrap_or(STATUS),
            body: &self.body,
            content_type: match self.body.is_empty() {
                true => "",
                false => self.media_type(),
            },
            retry_after: self.retry_after.as_deref().unwrap_or("1m").into(),
            bypass_cidrs: &self.bypass_cidrs,
            bypass_secret: match self.bypass_secret {
                Some(_) => REDACTED,
                None => "",
            },
        }
    }

    /// Whether only the secret differs.
    pub(crate) fn has_other_secret(&self, other: &Self) -> bool {
        self.bypass_secret.is_some()
            && other.bypass_secret.is_some()
            && self.bypass_secret != other.bypass_secret
    }

    fn media_type(&self) -> &str {
        match self.content_type.as_str() {
            "" => CONTENT_TYPE,
            given => given,
        }
    }

    /// Compiles it for the edge; `None` if the endpoint is not in maintenance.
    ///
    /// # Errors
    ///
    /// If the secret cannot be decrypted.
    pub(crate) fn compile(
        &self,
        seal: &Seal,
        endpoint_id: &str,
    ) -> Result<Option<Arc<Maintenance>>, Fault> {
        if !self.enabled {
            return Ok(None);
        }
        let retry_after = self.retry_after.as_deref().and_then(parse);
        let status = self.status.unwrap_or(STATUS);
        let mut maintenance = Maintenance::new(status, retry_after.unwrap_or(RETRY_AFTER));
        if !self.body.is_empty() {
            maintenance.page = Some((self.body.as_str().into(), self.media_type().to_owned()));
        }
        let prefixes = self
            .bypass_cidrs
            .iter()
            .flat_map(|text| Prefix::parse(text));
        maintenance.admitted = IpSet::of(prefixes.map(|prefix| (Verdict::Allow, prefix)));
        if let Some(sealed) = &self.bypass_secret {
            let secret: Secret = seal.open(endpoint_id, sealed)?;
            maintenance = maintenance.with_secret(&secret);
        }
        Ok(Some(Arc::new(maintenance)))
    }
}

fn media_type(text: String) -> Result<String, Refusal> {
    let is_visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let has_parts = text
        .split_once('/')
        .is_some_and(|(kind, _)| !kind.is_empty());
    if text.is_empty() || (is_visible && has_parts && text.len() <= TYPE_BYTES_MAX) {
        return Ok(text);
    }
    Err(invalid(
        "`maintenance.content_type` must be a media type of at most 127 bytes, such as `text/plain; charset=utf-8`.",
    ))
}

fn networks(cidrs: &[String]) -> Result<(), Refusal> {
    if cidrs.len() > CIDRS_MAX {
        return Err(invalid(format!(
            "`maintenance.bypass_cidrs` must have at most {CIDRS_MAX} entries."
        )));
    }
    for (index, text) in cidrs.iter().enumerate() {
        if let Err(why) = Prefix::parse(text) {
            return Err(invalid(format!(
                "`maintenance.bypass_cidrs[{index}]` is no network such as `192.0.2.0/24`: {why}."
            )));
        }
    }
    Ok(())
}

fn check_secret(secret: &str) -> Result<(), Refusal> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let has_length = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len());
    match has_length && secret.bytes().all(is_good) {
        true => Ok(()),
        false => Err(invalid(
            "`maintenance.bypass_secret` must have 16 to 256 letters, digits and `-._~+/=`.",
        )),
    }
}
