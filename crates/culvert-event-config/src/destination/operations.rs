//! Operations on a destination: send a test event, read its health, list dead letters, and resend them. None
//! of them changes an object.

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_delivery::{ClusterHealth, NodeHealth};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::list::page;
use culvert_resources::list::page::{Form, Parameter};
use culvert_resources::operation::{BodySpec, Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Extra, Running, value_refusal};
use culvert_resources::{Error, Role, input, service, stored};
use culvert_store::DeadLetter;
use culvert_target::batch::Batch;
use culvert_target::failure::Failure;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::destination::model::EventDestination;
use crate::event_query::EVENTS_EXPORTED;
use crate::{EventConfig, destination, event_kinds};

pub(crate) static EVENT_DESTINATION_TESTED: OperationKind = OperationKind {
    name: "event_destination_tested.v0",
    doc: "A test event was sent to an event destination.",
    shows_body: false,
};

pub(crate) static EVENT_DESTINATION_REDRIVEN: OperationKind = OperationKind {
    name: "event_destination_redriven.v0",
    doc: "Dead letters were moved back to the queue of an event destination.",
    shows_body: true,
};

/// Default and limit of dead letters per page.
const LETTERS_MAX: u32 = 20;
/// Limit of dead letters that one call resends.
const REDRIVEN_MAX: usize = 1000;

/// The operations.
pub const OPERATIONS: [Extra<EventConfig>; 5] = [
    Extra {
        name: "test",
        method: Method::Post,
        suffix: "/test",
        doc: "Sends one test event to an event destination and returns the result.",
        body: None,
        response: ok(SchemaGenerator::subschema_for::<Tested>),
        query: &[],
        access: Access::Change,
        trace: Trace::Each(&EVENT_DESTINATION_TESTED),
        run: run_test,
    },
    Extra {
        name: "get_health",
        method: Method::Get,
        suffix: "/health",
        doc: "Gets the health of an event destination across all nodes.",
        body: None,
        response: ok(SchemaGenerator::subschema_for::<HealthView<'static>>),
        query: &[],
        access: Access::Whole,
        trace: Trace::Nothing,
        run: run_health,
    },
    Extra {
        name: "list_attempts",
        method: Method::Get,
        suffix: "/attempts",
        doc: "Lists the last attempts to send to an event destination since the start of each node, newest first; at most 100.",
        body: None,
        response: ok(SchemaGenerator::subschema_for::<AttemptList<'static>>),
        query: &[],
        access: Access::Whole,
        trace: Trace::Nothing,
        run: run_attempts,
    },
    Extra {
        name: "list_dead_letters",
        method: Method::Get,
        suffix: "/dead_letters",
        doc: "Lists batches that an event destination rejected permanently or that expired, newest first.",
        body: None,
        response: ok(SchemaGenerator::subschema_for::<Letters>),
        query: PAGES,
        access: Access::Whole,
        trace: Trace::Hourly(&EVENTS_EXPORTED),
        run: run_letters,
    },
    Extra {
        name: "redrive",
        method: Method::Post,
        suffix: "/dead_letters/redrive",
        doc: "Moves dead letters back to the end of the destination's queue.",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Redrive>,
            required: false,
        }),
        response: ok(SchemaGenerator::subschema_for::<Redriven>),
        query: &[],
        access: Access::Change,
        trace: Trace::Each(&EVENT_DESTINATION_REDRIVEN),
        run: run_redrive,
    },
];

const PAGES: &[Parameter] = &[
    Parameter {
        name: "limit",
        doc: "Maximum number of dead letters per page, 1 to 100; default: 20.",
        repeatable: false,
        within: Some((1, 100)),
        form: Form::Text,
    },
    Parameter {
        name: "before_id",
        doc: "Returns only dead letters older than the one with this ID.",
        repeatable: false,
        within: None,
        form: Form::Text,
    },
];

const fn ok(schema: fn(&mut SchemaGenerator) -> schemars::Schema) -> ResponseSpec {
    ResponseSpec {
        status: Status::Ok,
        schema: Some(schema),
    }
}

/// Result of a test event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDestinationTest")]
struct Tested {
    /// Whether the destination accepted the event.
    delivered: bool,
    /// Failure: class, code of the remote system and message.
    error: Option<String>,
}

/// Health of a destination across all nodes. Counters are sums over the nodes since their start;
/// data of other nodes is at most one second old.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDestinationHealth")]
struct HealthView<'a> {
    /// `ok`, `retrying`, or `unhealthy` if the operator must act or twenty consecutive sends
    /// failed; the state of the node that sent last.
    #[schemars(extend("enum" = ["ok", "retrying", "unhealthy"]))]
    state: &'a str,
    #[schemars(with = "Option<String>")]
    last_success_at: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    last_error_at: Option<Timestamp>,
    last_error: Option<Why<'a>>,
    /// Queued events.
    queued: u64,
    /// Events lost.
    dropped: u64,
    /// Number of dead letters.
    dead_lettered: u64,
    /// Events delivered.
    sent: u64,
    /// Bytes of events delivered.
    bytes: u64,
    /// Number of sends, including retries.
    batches: u64,
    /// Failed sends by class.
    failures: std::collections::BTreeMap<&'a str, u64>,
    /// Health as seen by each node.
    nodes: Vec<NodeView<'a>>,
}

/// Health of a destination as seen by one node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDestinationNodeHealth")]
struct NodeView<'a> {
    /// Name of the node.
    node: &'a str,
    /// `ok`, `retrying` or `unhealthy`.
    #[schemars(extend("enum" = ["ok", "retrying", "unhealthy"]))]
    state: &'a str,
    #[schemars(with = "Option<String>")]
    last_success_at: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    last_error_at: Option<Timestamp>,
    last_error: Option<Why<'a>>,
    /// Events in the memory of the node.
    held: u64,
    /// Events lost.
    dropped: u64,
    /// Events delivered.
    sent: u64,
}

/// Reason of a failure.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeliveryFailure")]
struct Why<'a> {
    /// `retryable`, `auth`, `config`, `split`, `permanent`, `unknown` or `gone`.
    class: &'a str,
    /// Code of the remote system: an HTTP status or a name.
    code: &'a str,
    /// Message of the last failure.
    text: &'a str,
}

impl<'a> Why<'a> {
    fn of(failure: &'a Failure) -> Self {
        Self {
            class: failure.class.name(),
            code: &failure.code,
            text: &failure.text,
        }
    }
}

/// The last attempts to send to a destination.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeliveryAttemptList")]
struct AttemptList<'a> {
    attempts: Vec<AttemptView<'a>>,
}

/// One attempt to send events. Only the newest ten of each node but the queried one are listed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeliveryAttempt")]
struct AttemptView<'a> {
    /// Name of the node that sent.
    node: &'a str,
    /// When it ended.
    #[schemars(with = "String", extend("format" = "date-time"))]
    at: Timestamp,
    /// How long it took, in milliseconds.
    duration_ms: u64,
    /// Number of the attempt: 1 for the first one with these events.
    attempt: u32,
    /// `audit` or `traffic`.
    #[schemars(extend("enum" = ["audit", "traffic"]))]
    class: &'a str,
    /// Number of events in it.
    events: u64,
    /// ID of the first event; null for an object of several batches.
    event_id: Option<&'a str>,
    /// `delivered`, `partial` if some events failed, or the class of the failure: `retryable`, `auth`, `config`, `split`,
    /// `permanent`, `unknown` or `gone`.
    outcome: &'a str,
    /// HTTP status of the response with the failure, or else of the last response; null if there was none, or if the
    /// destination does not use HTTP.
    status: Option<u16>,
    /// Message of a failure: the beginning of the response, without secrets and control characters, at most 200
    /// characters. Empty if all events were accepted.
    text: &'a str,
}

/// One page of dead letters.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeadLetterList")]
struct Letters {
    dead_letters: Vec<Letter>,
    /// Path of the next page, if any.
    next_page_uri: Option<String>,
}

/// A batch that was not delivered.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeadLetter")]
struct Letter {
    id: String,
    /// `audit` or `traffic`.
    #[schemars(extend("enum" = ["audit", "traffic"]))]
    class: &'static str,
    /// Number of delivery attempts.
    attempts: u32,
    #[schemars(with = "String")]
    first_at: Timestamp,
    #[schemars(with = "String")]
    buried_at: Timestamp,
    reason: Reason,
    /// Events of the batch as sent. Only admins see those about API keys, credentials and agent
    /// sessions.
    #[schemars(with = "Vec<serde_json::Map<String, Value>>")]
    events: Vec<Box<RawValue>>,
}

/// Why a batch became a dead letter.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventDeadLetterReason")]
struct Reason {
    /// Class of the last failure.
    class: String,
    /// Error code of the destination, such as an HTTP status.
    code: String,
    /// Message of the last failure.
    text: String,
}

/// Dead letters to redrive.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventRedrive", transform = input::create_schema)]
struct Redrive {
    /// IDs of dead letters; empty for the newest 1000.
    #[schemars(extend("maxItems" = REDRIVEN_MAX, "items" = {"type": "string", "pattern": "^[+]?[0-9]+$"}))]
    ids: Vec<String>,
}

/// Events to replay.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventRedriven")]
struct Redriven {
    /// Number of dead letters that were moved back to the queue.
    redriven: u32,
}

/// The destination that the path names.
async fn named(events: &EventConfig, call: &Call) -> Result<String, Error> {
    let cx = events.kernel.cx(&call.caller, &call.base);
    let found = service::named(&cx, &destination::TYPE, call).await?;
    Ok(found.ok_or_else(Refusal::not_found)?.head.id)
}

fn run_test(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let id = named(events, &call).await?;
        call.caller.may_write()?;
        let error = events.delivery.send_test(&id).await.err();
        Ok(Reply::Ok(stored::write(&Tested {
            delivered: error.is_none(),
            error,
        })?))
    })
}

fn run_health(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let id = named(events, &call).await?;
        let ClusterHealth { health, nodes } = events.delivery.cluster_health(&id).await?;
        Ok(Reply::Ok(stored::write(&HealthView {
            state: health.state.name(),
            last_success_at: health.last_success_at,
            last_error_at: health.last_error_at,
            last_error: health.last_error.as_ref().map(Why::of),
            queued: health.queued,
            dropped: health.dropped,
            dead_lettered: health.dead_lettered,
            sent: health.sent,
            bytes: health.bytes,
            batches: health.batches,
            failures: health.failures.iter().copied().collect(),
            nodes: nodes
                .iter()
                .map(|NodeHealth { node, health }| NodeView {
                    node,
                    state: health.state.name(),
                    last_success_at: health.last_success_at,
                    last_error_at: health.last_error_at,
                    last_error: health.last_error.as_ref().map(Why::of),
                    held: health.queued,
                    dropped: health.dropped,
                    sent: health.sent,
                })
                .collect(),
        })?))
    })
}

fn run_attempts(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let id = named(events, &call).await?;
        let attempts = events.delivery.attempts(&id).await?;
        Ok(Reply::Ok(stored::write(&AttemptList {
            attempts: attempts
                .iter()
                .map(|(node, one)| AttemptView {
                    node,
                    at: one.at,
                    duration_ms: one.duration_ms,
                    attempt: one.attempt,
                    class: &one.class,
                    events: one.events,
                    event_id: one.event_id.as_deref(),
                    outcome: &one.outcome,
                    status: one.status,
                    text: &one.text,
                })
                .collect(),
        })?))
    })
}

fn run_letters(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let id = named(events, &call).await?;
        let given = |name: &str| {
            let found = call.query.iter().find(|(given, _)| given == name);
            found
                .map(|(_, value)| value.as_str())
                .filter(|value| !value.is_empty())
        };
        let limit = given("limit").map_or(Ok(LETTERS_MAX), page::limit)?;
        let before = given("before_id").map(number).transpose()?;
        let found = events.delivery.dead_letters(&id, before, limit).await?;
        let more = u32::try_from(found.len()).is_ok_and(|count| count == limit);
        let last = found.last().filter(|_| more).map(|letter| letter.id);
        let next_page_uri = last.map(|last| {
            let collection = EventDestination::COLLECTION;
            format!(
                "{}/{collection}/{id}/dead_letters?before_id={last}&limit={limit}",
                call.base
            )
        });
        let is_admin = call.caller.role == Role::Admin;
        let shown = found.into_iter().map(|letter| shown(letter, is_admin));
        let dead_letters = shown.collect::<Result<_, _>>()?;
        Ok(Reply::Ok(stored::write(&Letters {
            dead_letters,
            next_page_uri,
        })?))
    })
}

fn run_redrive(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input: Redrive =
            input::create(call.body.clone()).map_err(value_refusal::<EventDestination>)?;
        let id = named(events, &call).await?;
        call.caller.may_write()?;
        if input.ids.len() > REDRIVEN_MAX {
            return Err(Refusal::new(
                code::DELIVERY_VALUE_INVALID,
                "`ids` has more than 1000 entries.",
            )
            .into());
        }
        let mut ids = input
            .ids
            .iter()
            .map(|text| number(text))
            .collect::<Result<Vec<_>, _>>()?;
        let mut before = None;
        while input.ids.is_empty() && ids.len() < REDRIVEN_MAX {
            let page = events.delivery.dead_letters(&id, before, 100).await?;
            let Some(last) = page.last() else { break };
            before = Some(last.id);
            ids.extend(page.iter().map(|letter| letter.id));
        }
        // Sort oldest first, to keep their order.
        ids.sort_unstable();
        ids.dedup();
        let redriven = events.delivery.redrive(&id, &ids).await?;
        Ok(Reply::Ok(stored::write(&Redriven { redriven })?))
    })
}

fn number(text: &str) -> Result<i64, Refusal> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        Refusal::new(
            code::DELIVERY_VALUE_INVALID,
            "The ID of a dead letter must be an integer.",
        )
    })
}

/// A dead letter, without events about keys and credentials unless the caller is an admin.
fn shown(letter: DeadLetter, is_admin: bool) -> Result<Letter, Fault> {
    #[derive(Deserialize)]
    struct Kind {
        event_type: String,
    }
    let doing = "reading a dead letter";
    let unreadable = |error| Fault::new(doing, error);
    let is_shown = |envelope: &[u8]| -> Result<bool, Fault> {
        let kind: Kind = serde_json::from_slice(envelope).map_err(unreadable)?;
        Ok(!event_kinds::is_private(&kind.event_type))
    };
    let class = letter.class;
    let batch = Batch::read(letter.destination.into(), class, letter.body);
    let mut events = Vec::new();
    // An unreadable event became a dead letter for that reason.
    for delivery in batch.iter().flat_map(Batch::deliveries) {
        if is_admin || is_shown(delivery.envelope)? {
            events.push(serde_json::from_slice(delivery.envelope).map_err(unreadable)?);
        }
    }
    Ok(Letter {
        id: letter.id.to_string(),
        class: class.name(),
        attempts: letter.attempts,
        first_at: letter.first_at,
        buried_at: letter.buried_at,
        reason: Reason {
            class: letter.why.class,
            code: letter.why.code,
            text: letter.why.text,
        },
        events,
    })
}
