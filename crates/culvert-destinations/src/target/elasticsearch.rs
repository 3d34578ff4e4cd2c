//! `elasticsearch`: events as documents of an index or a data stream, by the bulk interface that Elasticsearch and OpenSearch
//! share.
//!
//! Each event is created with its idempotency key as the id. A repetition conflicts with the stored document (409),
//! which counts as delivered. The response has the result of each event, so only those that failed are sent again.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::{HttpRequest, HttpResponse};
use culvert_target::{
    Checked, DestinationIds, Outcome, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::client::http_failure::class_of_status;
use crate::config::{invalid, parse, stored};
use crate::target::envelope::event_time;
use crate::target::http_intake::{
    Classes, HttpIntake, UserOrToken, VendorError, checked_base, class_of, given,
};
use crate::target::verdict::verdict;

const NAME: &str = "elasticsearch";
/// Members of the response that are used.
const FILTER: &str = "errors,items.*.status,items.*.error.type,items.*.error.reason";
/// Results of 500 events with an error of up to 4 KB each.
const ANSWER_BYTES_MAX: usize = 2 << 20;
const TOO_LONG: &str = "the response is too long to be read";
/// Names of indices have at most 255 bytes and none of these (guide of the create index API).
const NAME_BYTES_MAX: usize = 255;
const NOT_IN_NAMES: &str = "\\/*?\"<>| ,#:";

/// Error types of single documents and of requests. Others go by their status.
const TYPES: Classes<&str> = &[
    // The index is read-only for the moment, as with a full disk, or has no shard to write to.
    (
        FailureClass::Retryable,
        &[
            "circuit_breaking_exception",
            "cluster_block_exception",
            "es_rejected_execution_exception",
            "rejected_execution_exception",
            "unavailable_shards_exception",
        ],
    ),
    (FailureClass::Auth, &["security_exception"]),
    (
        FailureClass::Config,
        &[
            "index_closed_exception",
            "index_not_found_exception",
            "invalid_index_name_exception",
            // The cluster has its maximum number of shards.
            "validation_exception",
        ],
    ),
];
/// Beginnings of the reasons of an `illegal_argument_exception` that is about the index or the cluster, not about a document.
/// Other reasons quote documents.
const INDEX_REASONS: &[&str] = &[
    "Limit of total fields",
    "Validation Failed: 1: this action would add",
    "no write index is defined",
    "this action would add",
];

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Sends each event to Elasticsearch or OpenSearch as a document.",
    limits: BatchLimits {
        events_max: 500,
        bytes_max: 4 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |stored, given| UserOrToken::merge(stored, given, "api_key"),
    redact: |stored| UserOrToken::redact(stored, "api_key"),
    open,
};

/// Configuration of the `elasticsearch` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ElasticsearchTarget")]
struct Config {
    /// Base URL, such as `https://search.example:9200`.
    #[schemars(extend("pattern" = crate::config::HTTP_URL))]
    url: String,
    /// Index, alias or data stream that gets the documents.
    index: String,
    /// User for HTTP Basic authentication.
    #[serde(default)]
    user: Option<String>,
    /// Password of the user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Encoded API key, in place of a user. Write-only.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    api_key: Option<String>,
}

impl Config {
    fn choice(&self) -> UserOrToken<'_> {
        UserOrToken {
            user: given(&self.user),
            password: given(&self.password),
            token: given(&self.api_key),
            field: "api_key",
            scheme: "ApiKey",
        }
    }
}

fn check(value: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let config: Config = parse(NAME, value)?;
    checked_base(NAME, &config.url, &settings.rules)?;
    let is_allowed = |c: char| !c.is_control() && !c.is_uppercase() && !NOT_IN_NAMES.contains(c);
    let index = &config.index;
    let is_name = (1..=NAME_BYTES_MAX).contains(&index.len())
        && index.chars().all(is_allowed)
        && !index.starts_with(['-', '_', '+'])
        && !index.chars().all(|c| c == '.');
    if !is_name {
        return Err(invalid(
            NAME,
            "`index` must be a name in lower case that does not start with `-`, `_` or `+`",
        ));
    }
    config.choice().credentials(NAME)?;
    Ok(stored(&config))
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let credentials = config.choice().credentials(NAME)?;
    let mut intake = HttpIntake::open(NAME, &config.url, "", "application/x-ndjson", context)?
        .authenticated(NAME, credentials)?;
    let path = intake.url.path_segments_mut();
    path.map_err(|()| invalid(NAME, "`url` must be a base URL"))?
        .pop_if_empty()
        .extend([&*config.index, "_bulk"]);
    intake.url.set_query(Some(&format!("filter_path={FILTER}")));
    Ok(Arc::new(Elasticsearch { intake }))
}

#[derive(Debug)]
struct Elasticsearch {
    intake: HttpIntake,
}

/// A response to a bulk request.
#[derive(Deserialize)]
struct Bulk {
    errors: bool,
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    create: Created,
}

#[derive(Deserialize)]
struct Created {
    status: u16,
    error: Option<ItemError>,
}

/// An error of an item or of a request.
#[derive(Default, Deserialize)]
struct ItemError {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    reason: String,
}

impl ItemError {
    /// Its class; `None` for that of the status.
    fn class(&self) -> Option<FailureClass> {
        let begins = |reason: &&str| self.reason.starts_with(reason);
        match &*self.kind {
            "illegal_argument_exception" if INDEX_REASONS.iter().any(begins) => {
                Some(FailureClass::Config)
            }
            kind => class_of(TYPES, &kind),
        }
    }
}

/// A response to a request that failed as a whole.
#[derive(Default, Deserialize)]
struct Refused {
    #[serde(default)]
    error: ItemError,
}

impl Target for Elasticsearch {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let request = HttpRequest {
                answer_bytes_max: ANSWER_BYTES_MAX,
                ..self.intake.batch_request(&documents(batch))
            };
            let response = match self.intake.send(request).await {
                Ok(response) => response,
                Err(failure) => return Verdict::Failed(failure),
            };
            self.outcomes(&response, batch.len())
                .map_or_else(Verdict::Failed, verdict)
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

/// The lines of a bulk request: for each event an operation and its document.
fn documents(batch: &Batch) -> Vec<u8> {
    let mut lines = Vec::with_capacity(batch.lines().len() * 2);
    for delivery in batch.deliveries() {
        let operation = json!({"create": {"_id": delivery.idempotency_key()}});
        lines.extend_from_slice(operation.to_string().as_bytes());
        lines.push(b'\n');
        document(delivery, &mut lines);
        lines.push(b'\n');
    }
    lines
}

/// The event with `@timestamp`, which data streams require, as in ECS.
fn document(delivery: Delivery<'_>, lines: &mut Vec<u8>) {
    const MEMBER: &[u8] = b"{\"@timestamp\":";
    let event = delivery.payload();
    let at = event_time(delivery.envelope).filter(|_| !event.starts_with(MEMBER));
    match (at, event.strip_prefix(b"{")) {
        (Some(at), Some(members)) => {
            lines.extend_from_slice(MEMBER);
            lines.extend_from_slice(format!("\"{}\",", at.to_millis_text()).as_bytes());
            lines.extend_from_slice(members);
        }
        _ => lines.extend_from_slice(event),
    }
}

impl Elasticsearch {
    fn outcomes(&self, response: &HttpResponse, n_events: usize) -> Result<Vec<Outcome>, Failure> {
        if !(200..300).contains(&response.status) {
            let refused: Refused = serde_json::from_slice(&response.body).unwrap_or_default();
            let class = refused.error.class();
            let ItemError { kind, reason } = refused.error;
            let error = VendorError {
                class,
                code: kind,
                text: reason,
            };
            return Err(self.intake.failure(response, error));
        }
        let incomplete = || {
            let text = "the response lacks the results of the documents";
            Failure::new(FailureClass::Unknown, "answer", text)
        };
        let is_cut = response.body.len() >= ANSWER_BYTES_MAX;
        let bulk: Bulk =
            serde_json::from_slice(&response.body).map_err(|_| match (is_cut, n_events) {
                (false, _) => incomplete(),
                (true, 2..) => Failure::new(FailureClass::Split, "answer", TOO_LONG),
                (true, _) => Failure::new(FailureClass::Permanent, "answer", TOO_LONG),
            })?;
        if !bulk.errors {
            return Ok(vec![Outcome::Delivered; n_events]);
        }
        if bulk.items.len() != n_events {
            return Err(incomplete());
        }
        let items = bulk.items.into_iter();
        let outcomes: Vec<Outcome> = items.map(|item| self.outcome(item.create)).collect();
        // A failure that all documents share, other than of their content, is one of the destination.
        match &outcomes[..] {
            [Outcome::Failed(first), rest @ ..]
                if first.class != FailureClass::Permanent
                    && rest.iter().all(|other| is_of_class(other, first.class)) =>
            {
                Err(first.clone())
            }
            _ => Ok(outcomes),
        }
    }

    fn outcome(&self, created: Created) -> Outcome {
        // The document of an earlier attempt.
        const CONFLICT: u16 = 409;
        if created.status == CONFLICT {
            return Outcome::Delivered;
        }
        let Err(by_status) = class_of_status(created.status) else {
            return Outcome::Delivered;
        };
        let error = created.error.unwrap_or_default();
        // A single document cannot be split, and does not disable the destination.
        let by_status = match by_status {
            FailureClass::Split | FailureClass::Gone => FailureClass::Permanent,
            other => other,
        };
        let class = error.class().unwrap_or(by_status);
        let failure =
            self.intake
                .failure_of_event(created.status, class, &error.kind, &error.reason);
        Outcome::Failed(failure)
    }
}

fn is_of_class(outcome: &Outcome, class: FailureClass) -> bool {
    matches!(outcome, Outcome::Failed(failure) if failure.class == class)
}

#[cfg(test)]
mod tests;
