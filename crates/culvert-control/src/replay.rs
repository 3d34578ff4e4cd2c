//! Replays: the retained audit events of an account, sent to a destination once more.
//!
//! A replay is a document beside its destination, one for each, the latest. Here it is decided which
//! events it is of; the delivery plane sends them, and its cursor tells how far it is. It changes no
//! object and is told to nobody.

use culvert_base::{Code, Fault, Refusal, Timestamp, id};
use culvert_delivery::Replay;
use culvert_events::{Family, kinds};
use culvert_store::{
    Bound, Changes, CommitError, Document, Head, Key, OnDelete, Range, RangeError, Ref, Told,
};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::caller::Role;
use crate::cx::Cx;
use crate::input;
use crate::operation::{Answer, BodySpec, Call, Method, Reply, Status};
use crate::resource::event_destination::{self, EventDestination};
use crate::resource::event_subscription::{self, EventSubscription};
use crate::resource::{Extra, Reference, Running, Uri, value_refusal};
use crate::service::{self, RUNS_MAX};
use crate::stored::{self, Format};
use crate::{Caller, Control, Error, audit};

/// What replays are stored as.
pub(crate) const KIND: &str = "event_replay";
const PREFIX: &str = "replay";
/// The unique value of a replay: its destination.
const OF: &str = "destination_id";
/// A value of a replay that is not allowed.
const WRONG: Code = Code::new(5140);

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    format: Format<1>,
    destination_id: String,
    /// As it was asked for.
    from: String,
    to: Option<String>,
    event_types: Vec<String>,
    /// What that came to.
    first: i64,
    last: i64,
    since_ns: Option<i64>,
    until_ns: Option<i64>,
    /// The destination's subscriptions, with what each wants of the types.
    subscriptions: Vec<(String, Vec<String>)>,
}

/// Which audit events a destination shall receive again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventReplayCreate", extend("required" = ["from"]), transform = input::create_schema)]
struct Input {
    /// The first event: a time (RFC 3339) or an event's id. Required.
    from: String,
    /// The last event: a time (RFC 3339) or an event's id. The last there is when empty.
    to: String,
    /// Kinds of audit events. Those that the destination's subscriptions want when empty.
    event_types: Vec<String>,
}

/// A replay as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventReplay")]
struct View<'a> {
    id: &'a str,
    uri: String,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    destination: Reference<'a>,
    /// The first event, as it was asked for.
    from: &'a str,
    /// The last event, as it was asked for.
    to: Option<&'a str>,
    event_types: &'a [String],
    /// `running`, or `done` when every event is in the destination's queue or delivered.
    state: &'static str,
    /// How much of the range is looked through, in percent.
    percent: u8,
}

/// The operations of a destination's replay.
pub(crate) const OPERATIONS: [Extra; 2] = [
    Extra {
        name: "replay",
        method: Method::Post,
        suffix: "/replay",
        doc: "Sends retained audit events to an event destination again. Only admins may; traffic events are not retained.",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Input>,
            required: true,
        }),
        answer: Answer {
            status: Status::Created,
            schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
        },
        query: &[],
        run: run_create,
    },
    Extra {
        name: "get_replay",
        method: Method::Get,
        suffix: "/replay",
        doc: "Shows the latest replay to an event destination.",
        body: None,
        answer: Answer {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
        },
        query: &[],
        run: run_get,
    },
];

fn run_create(control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input: Input =
            input::create(call.body.clone()).map_err(value_refusal::<EventDestination>)?;
        let cx = control.cx(&call.caller, &call.base);
        for _ in 0..RUNS_MAX {
            let destination = service::named(&cx, &event_destination::TYPE, &call)
                .await?
                .ok_or_else(Refusal::not_found)?
                .head;
            permit(cx.caller)?;
            let wanted = decide(&cx, &destination, &input).await?;
            let before = latest(&cx, &destination.id).await?;
            if let Some((document, running)) = &before
                && !is_done(control, &document.head.id, &running.range()).await?
            {
                // The same request again is the same replay.
                if running.asks_like(&wanted) {
                    return Ok(Reply::Created {
                        body: shown(control, &call, document, running).await?,
                        secret: false,
                    });
                }
                return Err(Refusal::new(
                    WRONG,
                    "Another replay to this destination is on its way; wait until it is done.",
                )
                .into());
            }
            let document = document(&cx, &destination, &wanted)?;
            let changes = before.map_or_else(Changes::default, |(before, _)| removal(before.head));
            let changes = changes.and(Changes::insert(document.clone(), silent()));
            match cx.store.commit(changes).await {
                Ok(_) => {
                    return Ok(Reply::Created {
                        body: shown(control, &call, &document, &wanted).await?,
                        secret: false,
                    });
                }
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                // Another replay, or the end of the destination, came between.
                Err(_) => {}
            }
        }
        Err(service::overtaken())
    })
}

fn run_get(control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = control.cx(&call.caller, &call.base);
        let destination = service::named(&cx, &event_destination::TYPE, &call)
            .await?
            .ok_or_else(Refusal::not_found)?;
        let (document, replay) = latest(&cx, &destination.head.id)
            .await?
            .ok_or_else(Refusal::not_found)?;
        Ok(Reply::Ok(shown(control, &call, &document, &replay).await?))
    })
}

/// What goes together with a destination.
pub(crate) async fn removal_with(cx: &Cx<'_>, destination: &Head) -> Result<Changes, Fault> {
    let replay = latest(cx, &destination.id).await?;
    Ok(replay.map_or_else(Changes::default, |(document, _)| removal(document.head)))
}

/// A replay as the delivery plane runs it.
pub(crate) fn compile(document: &Document) -> Result<Replay, Fault> {
    let replay: Stored = stored::read(document)?;
    Ok(Replay {
        id: document.head.id.clone(),
        account: document.head.account.clone(),
        range: replay.range(),
        destination: replay.destination_id,
        kinds: replay.event_types,
        subscriptions: replay.subscriptions,
    })
}

impl Stored {
    fn range(&self) -> Range {
        Range {
            first: self.first,
            last: self.last,
            since: self.since_ns.map(Timestamp::from_unix_nanos),
            until: self.until_ns.map(Timestamp::from_unix_nanos),
        }
    }

    fn asks_like(&self, other: &Self) -> bool {
        self.from == other.from && self.to == other.to && self.event_types == other.event_types
    }
}

/// Admins only: a replay may send what subscriptions of others have never sent.
fn permit(caller: &Caller) -> Result<(), Refusal> {
    const FORBIDDEN: Code = Code::new(630);
    caller.may_write()?;
    if caller.role == Role::Admin {
        Ok(())
    } else {
        Err(Refusal::new(FORBIDDEN, "Only admins may replay events."))
    }
}

/// Reads what is asked for and finds it in the log.
async fn decide(cx: &Cx<'_>, destination: &Head, input: &Input) -> Result<Stored, Error> {
    const MISSING: Code = Code::new(215);
    if input.from.is_empty() {
        return Err(Refusal::new(
            MISSING,
            "`from` is required: a time (RFC 3339) or an event's id.",
        )
        .into());
    }
    let from = bound("from", &input.from)?;
    let to = match input.to.as_str() {
        "" => None,
        text => Some(bound("to", text)?),
    };
    if let Bound::At(at) = &from
        && *at > cx.clock.now()
    {
        return Err(Refusal::new(WRONG, "`from` is in the future.").into());
    }
    let mut subscriptions = Vec::new();
    let ty = &event_subscription::TYPE;
    for document in cx.referring(ty.kind, destination).await? {
        let subscription: EventSubscription = stored::read(&document)?;
        let kinds = subscription.sources.into_iter().map(|source| source.kind);
        let kinds: Vec<String> = kinds.filter(|kind| audit::is_kind(kind)).collect();
        subscriptions.push((document.head.id, kinds));
    }
    let mut event_types = check_kinds(&input.event_types)?;
    if event_types.is_empty() {
        let wanted = subscriptions.iter().flat_map(|(_, kinds)| kinds).cloned();
        event_types = wanted.collect();
        if event_types.is_empty() {
            return Err(Refusal::new(
                WRONG,
                "No subscription to this destination wants audit events; name them in `event_types`.",
            )
            .into());
        }
    }
    event_types.sort();
    event_types.dedup();
    for (_, kinds) in &mut subscriptions {
        kinds.retain(|kind| event_types.contains(kind));
    }
    subscriptions.retain(|(_, kinds)| !kinds.is_empty());

    let log = cx.store.audit_log();
    let account = Some(cx.caller.account.as_str());
    let range =
        log.range(Some(&from), to.as_ref(), account)
            .await
            .map_err(|error| match error {
                RangeError::Unknown(id) => Error::from(Refusal::new(
                    WRONG,
                    format!(
                        "The audit log has no event `{id}`; it may be older than what is kept."
                    ),
                )),
                RangeError::Fault(fault) => fault.into(),
            })?;
    let is_backward = match (&from, &to) {
        (Bound::At(from), Some(Bound::At(to))) => to < from,
        (Bound::Event(_), Some(Bound::Event(_))) => range.last < range.first,
        _ => false,
    };
    if is_backward {
        return Err(Refusal::new(WRONG, "`to` is before `from`.").into());
    }
    Ok(Stored {
        format: Format,
        destination_id: destination.id.clone(),
        from: input.from.clone(),
        to: Some(input.to.clone()).filter(|to| !to.is_empty()),
        event_types,
        first: range.first,
        last: range.last,
        since_ns: range.since.map(Timestamp::unix_nanos),
        until_ns: range.until.map(Timestamp::unix_nanos),
        subscriptions,
    })
}

fn bound(field: &str, text: &str) -> Result<Bound, Refusal> {
    const NO_TIME: Code = Code::new(241);
    if let Some(("ev", _)) = id::split(text) {
        return Ok(Bound::Event(text.to_owned()));
    }
    Timestamp::parse(text).map(Bound::At).ok_or_else(|| {
        Refusal::new(
            NO_TIME,
            format!("`{field}` must be an RFC 3339 time or the id of an event."),
        )
    })
}

fn check_kinds(given: &[String]) -> Result<Vec<String>, Refusal> {
    const UNKNOWN: Code = Code::new(238);
    let is_traffic = |name: &str| {
        let mut kinds = kinds::ALL.iter();
        kinds.any(|kind| kind.family == Family::Traffic && kind.name == name)
    };
    for name in given {
        if is_traffic(name) {
            return Err(Refusal::new(
                WRONG,
                format!("Traffic events such as `{name}` are not retained and cannot be replayed."),
            ));
        }
        if !audit::is_kind(name) {
            let name: String = name.chars().take(64).collect();
            return Err(Refusal::new(
                UNKNOWN,
                format!("There is no event type `{name}`."),
            ));
        }
    }
    Ok(given.to_vec())
}

async fn latest(cx: &Cx<'_>, destination: &str) -> Result<Option<(Document, Stored)>, Fault> {
    let found = cx.store.find(KIND, OF, destination).await?;
    let read = |document: Document| stored::read(&document).map(|replay| (document, replay));
    found.map(read).transpose()
}

fn document(cx: &Cx<'_>, destination: &Head, replay: &Stored) -> Result<Document, Fault> {
    let id = cx.new_id();
    Ok(Document {
        head: Head {
            id: format!("{PREFIX}_{id}"),
            kind: KIND.to_owned(),
            account: destination.account.clone(),
            revision: 0,
            created_at: id.at(),
            updated_at: id.at(),
        },
        body: stored::write(replay)?,
        keys: vec![Key::new(OF, &destination.id)],
        refs: vec![Ref::new(OF, &destination.id, OnDelete::Cascade)],
        topics: Vec::new(),
    })
}

fn removal(head: Head) -> Changes {
    Changes::remove(head, silent())
}

fn silent() -> Told {
    Told::Nothing {
        why: "a replay changes no object",
    }
}

async fn is_done(control: &Control, id: &str, range: &Range) -> Result<bool, Fault> {
    Ok(control.delivery.replayed(id, range).await? >= range.last)
}

async fn shown(
    control: &Control,
    call: &Call,
    document: &Document,
    replay: &Stored,
) -> Result<String, Fault> {
    let range = replay.range();
    let position = control.delivery.replayed(&document.head.id, &range).await?;
    let done = position.saturating_sub(range.first.saturating_sub(1));
    let all = range.last.saturating_sub(range.first.saturating_sub(1));
    let is_done = position >= range.last;
    // Less than 100 until the very end.
    let percent = match is_done {
        true => 100,
        false => (i128::from(done) * 100 / i128::from(all.max(1))).clamp(0, 99),
    };
    let destination = Uri {
        base: &call.base,
        collection: event_destination::TYPE.collection,
        id: &replay.destination_id,
    };
    stored::write(&View {
        id: &document.head.id,
        uri: format!("{destination}/replay"),
        created_at: document.head.created_at,
        destination: Reference::to(
            &call.base,
            event_destination::TYPE.collection,
            &replay.destination_id,
        ),
        from: &replay.from,
        to: replay.to.as_deref(),
        event_types: &replay.event_types,
        state: if is_done { "done" } else { "running" },
        percent: u8::try_from(percent).unwrap_or(100),
    })
}
