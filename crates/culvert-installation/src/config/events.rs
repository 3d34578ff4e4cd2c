//! The audit log, traffic events and their destinations.

use std::path::PathBuf;
use std::time::Duration;

use culvert_events::HeaderRules;
use culvert_tlog::{KeyType, VerifierKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::{DAY, Span};

/// The audit log.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Retention of audit events, such as `365d`; at least `30d`.
    pub retention: Span,
    /// An API key that is not used for this long is reported in the audit log
    /// (`api_key_unused.v0`); `0s` to report none.
    pub key_unused_after: Span,
    /// The key that signs the heads of the audit log. Empty: the file `audit.key` in `data_dir`, which the first start makes.
    /// A path: another file. `fd:` and a number, such as `fd:3`: an inherited descriptor, which is read once at the start up
    /// to the end of its first line; the key is in memory only, and must exist.
    pub key_file: String,
    /// Whether everyone may read the tree of the audit log and its signed heads below `/audit/log`, which have no
    /// contents of events. Otherwise an API key is required.
    pub public_log: bool,
    /// Witnesses that sign the heads of the audit log, each as its URL and key, such as
    /// `https://witness.example/ witness.example/1+…`, or as `{url, key}` in the file. Private addresses need
    /// `destinations.allow_networks`. A witness that is away delays nothing.
    pub witnesses: Vec<Witness>,
    /// How many witnesses have to have signed a head until it is served and used for proofs in place of the one before;
    /// `0` for all of them.
    pub quorum: u16,
}

/// Where the key of the audit log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// In a file.
    File(PathBuf),
    /// In what an inherited descriptor gives.
    Descriptor(u32),
}

/// The largest number of a descriptor that a setting can name.
const DESCRIPTOR_MAX: u32 = 65_535;

impl Audit {
    /// The descriptor of `key_file`; `None` for a path.
    pub(super) fn descriptor(&self) -> Result<Option<u32>, Invalid> {
        let Some(number) = self.key_file.strip_prefix("fd:") else {
            return Ok(None);
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<u32>().ok().filter(|_| is_number);
        // Standard output and error give nothing.
        match number.filter(|n| *n <= DESCRIPTOR_MAX && !matches!(n, 1 | 2)) {
            Some(number) => Ok(Some(number)),
            None => Err(Invalid(
                "`audit.key_file` must be a path, or `fd:` and the number of a descriptor to read, such as `fd:3`".into(),
            )),
        }
    }

    /// How many witnesses have to have signed a head.
    pub fn quorum(&self) -> usize {
        match self.quorum {
            0 => self.witnesses.len(),
            n => usize::from(n),
        }
    }
}

/// A witness of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "WitnessForm", into = "String")]
#[schemars(with = "String")]
pub struct Witness {
    /// The URL that its requests are below, without a trailing slash.
    pub url: String,
    /// Its key.
    pub key: VerifierKey,
}

/// How a witness is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum WitnessForm {
    Text(String),
    #[serde(rename_all = "snake_case")]
    Table {
        url: String,
        key: String,
    },
}

impl TryFrom<WitnessForm> for Witness {
    type Error = String;

    fn try_from(form: WitnessForm) -> Result<Self, String> {
        let (url, key) = match &form {
            WitnessForm::Table { url, key } => (url.as_str(), key.as_str()),
            WitnessForm::Text(text) => text
                .split_once(' ')
                .ok_or("a witness of `audit.witnesses` must be a URL, a space and a key")?,
        };
        let is_http =
            url::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        if !is_http {
            return Err(format!(
                "the witness `{url}` of `audit.witnesses` is not an http or https URL"
            ));
        }
        let key: VerifierKey = key
            .trim()
            .parse()
            .map_err(|why| format!("the witness `{url}` of `audit.witnesses`: {why}"))?;
        if key.key_type() != KeyType::Cosignature {
            return Err(format!(
                "the key of `{url}` in `audit.witnesses` is not that of a witness"
            ));
        }
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            key,
        })
    }
}

impl From<Witness> for String {
    fn from(witness: Witness) -> Self {
        format!("{} {}", witness.url, witness.key)
    }
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            retention: Span(365 * DAY),
            key_unused_after: Span(90 * DAY),
            key_file: String::new(),
            public_log: false,
            witnesses: Vec::new(),
            quorum: 0,
        }
    }
}

/// Alert rules.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Alerts {
    /// Whether a new installation gets the default alert rules, and whether they are evaluated.
    pub defaults: bool,
    /// How often the rules are evaluated, `1s` to `5m`.
    pub interval: Span,
}

impl Default for Alerts {
    fn default() -> Self {
        Self {
            defaults: true,
            interval: Span(Duration::from_secs(10)),
        }
    }
}

/// Capture and retention of traffic events.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Headers whose values are `[redacted]` in traffic events, in addition to credential
    /// headers. An empty list disables all redaction of headers.
    pub redact_headers: Vec<String>,
    /// Query parameters whose values are `[redacted]` in traffic events, in URLs and in headers
    /// that contain URLs, in addition to credential parameters. An empty list disables all
    /// redaction of query parameters. Names ignore case, `-` and `_`.
    pub redact_query: Vec<String>,
    /// Retention of traffic events with all fields for queries (`GET /events`) and replays
    /// (`culvert events replay`). `0s` disables retention and deletes retained events. Use the
    /// same value on every node.
    pub traffic_retention: Span,
    /// Maximum size of retained traffic events on disk in bytes, after compression; the oldest
    /// are deleted first. At least 1 MiB.
    pub traffic_retention_bytes: u64,
    /// Maximum memory of captured requests and responses (action `capture`) until they are stored,
    /// in bytes. When it is used up, traffic continues and bodies are omitted. `0` disables
    /// captures.
    pub capture_memory_bytes: u64,
    /// Stream name and subject prefix of an `event_log` in NATS: letters, digits, `-` and `_`.
    /// Empty: `culvert_` and a name of the installation. Two installations must not share a
    /// stream.
    pub log_stream: String,
    /// Number of replicas of the stream in a NATS cluster, 1 to 5, used when the stream is
    /// created.
    pub log_replicas: u8,
}

impl Events {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if self.log_stream.len() > 64 || !self.log_stream.chars().all(is_name) {
            return Err(Invalid(
                "`events.log_stream` must be at most 64 letters, digits, `-` and `_`".into(),
            ));
        }
        if !(1..=5).contains(&self.log_replicas) {
            return Err(Invalid("`events.log_replicas` must be 1 to 5".into()));
        }
        Ok(())
    }
}

impl Default for Events {
    fn default() -> Self {
        let lower = |name: &str| name.to_ascii_lowercase();
        Self {
            redact_headers: HeaderRules::REDACTED.map(lower).to_vec(),
            redact_query: HeaderRules::PARAMETERS.map(lower).to_vec(),
            traffic_retention: Span(Duration::from_secs(72 * 60 * 60)),
            traffic_retention_bytes: 1 << 30,
            capture_memory_bytes: 32 << 20,
            log_stream: String::new(),
            log_replicas: 1,
        }
    }
}

/// Event destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Destinations {
    /// Private, loopback or otherwise special networks that event destinations, certificate
    /// authorities and requests of the edge may connect to.
    pub allow_networks: Vec<String>,
    /// Whether destinations may use plain `http://`.
    pub allow_plain_http: bool,
    /// Ports that event destinations never connect to, such as `25`: everyone who may write a destination of type `smtp` can
    /// otherwise send mail to every server from this machine.
    pub deny_ports: Vec<String>,
    /// Whether requests to event destinations, certificate authorities and DNS providers, and those of policies and
    /// sign-ins, go through the proxies that the variables `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`
    /// name. Upstreams of endpoints, brokers and databases are connected to directly.
    pub proxy_from_environment: bool,
    /// The `file` target.
    pub file: FileTarget,
    /// TLS to destinations.
    pub tls: DestinationTls,
    /// AWS destinations.
    pub aws: AwsDestinations,
    /// Datadog destinations.
    pub datadog: DatadogDestinations,
    /// Azure destinations.
    pub azure: AzureDestinations,
}

/// AWS destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsDestinations {
    /// Endpoint URL for all AWS services. Empty: the variable `AWS_ENDPOINT_URL`, or the default.
    pub endpoint_url: String,
    /// Amazon EventBridge.
    pub events: AwsService,
    /// Amazon Data Firehose.
    pub firehose: AwsService,
    /// Amazon Kinesis.
    pub kinesis: AwsService,
    /// Amazon CloudWatch Logs.
    pub logs: AwsService,
    /// Amazon S3.
    pub s3: AwsService,
    /// Amazon SQS.
    pub sqs: AwsService,
    /// AWS STS, which issues the keys of roles.
    pub sts: AwsService,
}

impl AwsDestinations {
    /// The services by the name in their hosts, with their settings.
    pub fn services(&self) -> [(&'static str, &AwsService); 7] {
        [
            ("events", &self.events),
            ("firehose", &self.firehose),
            ("kinesis", &self.kinesis),
            ("logs", &self.logs),
            ("s3", &self.s3),
            ("sqs", &self.sqs),
            ("sts", &self.sts),
        ]
    }
}

/// An AWS service.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsService {
    /// Endpoint URL of this service. Empty: the variable `AWS_ENDPOINT_URL_` plus the service
    /// name in capitals, or the default.
    pub endpoint_url: String,
}

/// Datadog destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatadogDestinations {
    /// Base URL that replaces `https://http-intake.logs.` plus the site.
    pub base_url: String,
    /// Additional sites that `ddsite` accepts.
    pub sites: Vec<String>,
}

/// Azure destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AzureDestinations {
    /// URL that replaces `https://login.microsoftonline.com`.
    pub authority_url: String,
}

/// The `file` target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileTarget {
    /// Root directory of `file` destinations. Empty: `events` in `data_dir`.
    pub root: String,
}

/// TLS to destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DestinationTls {
    /// PEM file of additional certificate authorities.
    pub extra_ca_file: String,
}
