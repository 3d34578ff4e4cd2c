//! Replays: send the retained events of an account to a destination again.
//!
//! A replay is a document beside its destination, which has at most one: the latest. This module decides
//! which events belong to it. The delivery plane sends them and stores the progress in its cursor. A replay
//! changes no object and emits no event.

pub mod replay_limits;

use culvert_base::{Fault, Refusal, Timestamp, code, id};
use culvert_delivery::{EventBound, Replay, TrafficRange};
use culvert_events::{Family, kinds};
use culvert_resources::access::caller::Role;
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::cx::Cx;
use culvert_resources::operation::{BodySpec, Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::model::{Model, Reference, Uri};
use culvert_resources::resource::{Extra, Running, value_refusal};
use culvert_resources::service::RUNS_MAX;
use culvert_resources::stored::Format;
use culvert_resources::{Caller, Error, input, service, stored};
use culvert_store::{
    AuditEvent, AuditLog, Bound, Changes, CommitError, Document, Head, Key, OnDelete, Range,
    RangeError, Ref,
};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::destination::model::EventDestination;
use crate::subscription::model::EventSubscription;
use crate::{EventConfig, destination, event_kinds, subscription};

pub(crate) static EVENT_DESTINATION_REPLAYED: OperationKind = OperationKind {
    name: "event_destination_replayed.v0",
    doc: "A replay of kept events to an event destination began.",
    shows_body: true,
};

/// Document kind.
pub const KIND: &str = "event_replay";
const PREFIX: &str = "replay";
/// The unique key of a replay: its destination.
const OF: &str = "destination_id";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    format: Format<1>,
    destination_id: String,
    /// The owner, whose role decides whether events about keys and credentials are sent. Empty in documents
    /// stored before this field existed.
    #[serde(default)]
    owner_id: String,
    /// The request as sent.
    from: String,
    to: Option<String>,
    event_types: Vec<String>,
    /// The resolved range.
    first: i64,
    last: i64,
    since_ns: Option<i64>,
    until_ns: Option<i64>,
    /// The destination's subscriptions, with the requested types of each.
    subscriptions: Vec<(String, Vec<String>)>,
    /// The resolved range in the traffic log.
    #[serde(default)]
    traffic: Option<Traffic>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Traffic {
    first: i64,
    last: i64,
    #[serde(default)]
    first_event: Option<EventEnd>,
    #[serde(default)]
    last_event: Option<EventEnd>,
    since_ns: Option<i64>,
    until_ns: Option<i64>,
}

/// The event at an end of the range, and the piece of the log that has it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct EventEnd {
    piece: i64,
    id: String,
}

/// Events to replay to a destination.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EventReplayCreate", extend("required" = ["from"]), transform = input::create_schema)]
struct Input {
    /// First event: an RFC 3339 time or an event ID. Required.
    #[schemars(extend("pattern" = input::patterns::TIME_OR_EVENT))]
    from: String,
    /// Last event: an RFC 3339 time or an event ID; empty for the latest event.
    #[schemars(extend("pattern" = input::patterns::TIME_OR_EVENT))]
    to: String,
    /// Event types; traffic events only if the server retains them. Empty for the types of the
    /// destination's subscriptions.
    #[schemars(extend("items" = {"type": "string", "enum": event_kinds::event_types()}))]
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
    /// First event, as requested.
    from: &'a str,
    /// Last event, as requested.
    to: Option<&'a str>,
    event_types: &'a [String],
    /// `running`, or `done` when every event is in the destination's queue or delivered.
    #[schemars(extend("enum" = ["running", "done"]))]
    state: &'static str,
    /// Progress through the range in percent.
    percent: u8,
}

/// The operations of a destination's replay.
pub const OPERATIONS: [Extra<EventConfig>; 2] = [
    Extra {
        name: "replay",
        method: Method::Post,
        suffix: "/replay",
        doc: "Replays retained events to an event destination: audit events, and traffic events if the server retains them. Requires an admin key.",
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Input>,
            required: true,
        }),
        response: ResponseSpec {
            status: Status::Created,
            schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Each(&EVENT_DESTINATION_REPLAYED),
        run: run_create,
    },
    Extra {
        name: "get_replay",
        method: Method::Get,
        suffix: "/replay",
        doc: "Gets the latest replay to an event destination.",
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
        },
        query: &[],
        access: Access::Whole,
        trace: Trace::Nothing,
        run: run_get,
    },
];

fn run_create(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let input: Input =
            input::create(call.body.clone()).map_err(value_refusal::<EventDestination>)?;
        let cx = events.kernel.cx(&call.caller, &call.base);
        for _ in 0..RUNS_MAX {
            let destination = service::named(&cx, &destination::TYPE, &call)
                .await?
                .ok_or_else(Refusal::not_found)?;
            permit(cx.caller)?;
            let conditions = &call.terms.conditions;
            conditions.check(&destination, true)?;
            let destination = destination.head;
            // They hold at the commit too.
            let held = match conditions.guard() {
                true => Changes::while_at(&destination),
                false => Changes::default(),
            };
            let wanted = decide(events, &cx, &destination, &input).await?;
            let before = latest(&cx, &destination.id).await?;
            if let Some((document, running)) = &before
                && progress(events, &document.head.id, running).await? < 100
            {
                // Repeating a request returns the running replay.
                if running.asks_like(&wanted) {
                    return Ok(Reply::Created {
                        body: shown(events, &call, document, running).await?,
                        secret: false,
                    });
                }
                return Err(Refusal::new(
                    code::DELIVERY_VALUE_INVALID,
                    "Another replay to this destination is in progress; wait until it completes.",
                )
                .into());
            }
            let is_private = wanted
                .event_types
                .iter()
                .any(|kind| event_kinds::is_private(kind));
            let noted = match is_private {
                true => {
                    destination::note_private(&cx, std::slice::from_ref(&destination.id)).await?
                }
                false => Changes::default(),
            };
            let document = document(&cx, &destination, &wanted)?;
            let changes = before.map_or_else(Changes::default, |(before, _)| removal(before.head));
            let changes = held
                .and(changes)
                .and(Changes::insert(document.clone(), silent()))
                .and(noted);
            match cx.store.commit(changes).await {
                Ok(_) => {
                    return Ok(Reply::Created {
                        body: shown(events, &call, &document, &wanted).await?,
                        secret: false,
                    });
                }
                Err(CommitError::Fault(fault)) => return Err(fault.into()),
                // Another replay was created or the destination was removed meanwhile.
                Err(_) => {}
            }
        }
        Err(service::overtaken())
    })
}

fn run_get(events: &EventConfig, call: Call) -> Running<'_> {
    Box::pin(async move {
        let cx = events.kernel.cx(&call.caller, &call.base);
        let destination = service::named(&cx, &destination::TYPE, &call)
            .await?
            .ok_or_else(Refusal::not_found)?;
        let (document, replay) = latest(&cx, &destination.head.id)
            .await?
            .ok_or_else(Refusal::not_found)?;
        Ok(Reply::Ok(shown(events, &call, &document, &replay).await?))
    })
}

/// The changes that belong to the removal of a destination.
pub(crate) async fn removal_with(cx: &Cx<'_>, destination: &Head) -> Result<Changes, Fault> {
    let replay = latest(cx, &destination.id).await?;
    Ok(replay.map_or_else(Changes::default, |(document, _)| removal(document.head)))
}

/// A replay in the form that the delivery plane runs, and its owner.
pub fn compile(document: &Document) -> Result<(Replay, String), Fault> {
    let replay: Stored = stored::read(document)?;
    let compiled = Replay {
        id: document.head.id.clone(),
        account: document.head.account.clone(),
        range: replay.range(),
        traffic: replay.traffic.as_ref().map(Traffic::range),
        destination: replay.destination_id,
        kinds: replay.event_types,
        subscriptions: replay.subscriptions,
    };
    Ok((compiled, replay.owner_id))
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
        self.owner_id == other.owner_id
            && self.from == other.from
            && self.to == other.to
            && self.event_types == other.event_types
    }
}

/// Only admins: a replay may send events that the subscriptions of others have never sent.
fn permit(caller: &Caller) -> Result<(), Refusal> {
    caller.may_write()?;
    if caller.role == Role::Admin {
        Ok(())
    } else {
        Err(Refusal::new(
            code::NOT_ADMIN,
            "Only admins may replay events.",
        ))
    }
}

/// Parses a request and resolves it against the logs.
async fn decide(
    events: &EventConfig,
    cx: &Cx<'_>,
    destination: &Head,
    input: &Input,
) -> Result<Stored, Error> {
    if input.from.is_empty() {
        return Err(Refusal::new(
            code::BODY_FIELD_INVALID,
            "`from` is required; send an RFC 3339 time or an event ID.",
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
        return Err(Refusal::new(code::DELIVERY_VALUE_INVALID, "`from` is in the future.").into());
    }
    let mut subscriptions = Vec::new();
    let ty = &subscription::TYPE;
    for document in cx.referring(ty.kind, destination).await? {
        let subscription: EventSubscription = stored::read(&document)?;
        let sources = subscription.sources.into_iter();
        let kinds = sources.flat_map(|source| event_kinds::kinds_of(&source.kind));
        let retains_traffic = events.delivery.retains_traffic();
        let is_kept =
            |kind: &String| event_kinds::is_kind(kind) || (retains_traffic && is_traffic(kind));
        subscriptions.push((document.head.id, kinds.filter(is_kept).collect::<Vec<_>>()));
    }
    let mut event_types = check_kinds(events, &input.event_types)?;
    if event_types.is_empty() {
        let wanted = subscriptions.iter().flat_map(|(_, kinds)| kinds).cloned();
        event_types = wanted.collect();
        if event_types.is_empty() {
            return Err(Refusal::new(
                code::DELIVERY_VALUE_INVALID,
                "No subscription of this destination selects retained events; set `event_types`.",
            )
            .into());
        }
    }
    event_types.sort();
    event_types.dedup();
    for (_, kinds) in &mut subscriptions {
        kinds.retain(|kind| event_types.contains(kind) && event_kinds::is_kind(kind));
    }
    subscriptions.retain(|(_, kinds)| !kinds.is_empty());

    let logs = Logs {
        events,
        audit: cx.store.audit_log(),
        account: &cx.caller.account,
    };
    let from = logs.find(from).await?;
    let to = match to {
        Some(to) => Some(logs.find(to).await?),
        None => None,
    };
    if to.as_ref().is_some_and(|to| to.is_before(&from)) {
        return Err(Refusal::new(code::DELIVERY_VALUE_INVALID, "`to` is before `from`.").into());
    }
    let wants_audit = event_types.iter().any(|kind| event_kinds::is_kind(kind));
    let range = match wants_audit {
        true => logs.audit_range(&from, to.as_ref()).await?,
        false => NOTHING,
    };
    let traffic = match event_types.iter().any(|kind| is_traffic(kind)) {
        true => Some(logs.traffic_range(&from, to.as_ref()).await?),
        false => None,
    };
    Ok(Stored {
        format: Format,
        destination_id: destination.id.clone(),
        owner_id: cx.caller.owner_id.clone(),
        from: input.from.clone(),
        to: Some(input.to.clone()).filter(|to| !to.is_empty()),
        event_types,
        first: range.first,
        last: range.last,
        since_ns: range.since.map(Timestamp::unix_nanos),
        until_ns: range.until.map(Timestamp::unix_nanos),
        subscriptions,
        traffic: traffic.map(Traffic::of),
    })
}

/// A range without events.
const NOTHING: Range = Range {
    first: 1,
    last: 0,
    since: None,
    until: None,
};

/// The logs of retained events.
struct Logs<'a> {
    events: &'a EventConfig,
    audit: AuditLog,
    account: &'a str,
}

/// One end of the requested range.
struct End {
    bound: Bound,
    at: Timestamp,
    /// The position of an audit event.
    seq: Option<i64>,
    /// Whether it is a traffic event.
    is_traffic: bool,
}

impl End {
    fn is_before(&self, other: &Self) -> bool {
        match (self.seq, other.seq) {
            (Some(seq), Some(other)) => seq < other,
            _ => self.at < other.at,
        }
    }

    /// The bound in the traffic log or the audit log. For an event of the other log, the bound is its time.
    fn within(&self, is_traffic: bool) -> Bound {
        match &self.bound {
            Bound::Event(_) if self.is_traffic != is_traffic => Bound::At(self.at),
            bound => bound.clone(),
        }
    }
}

impl Logs<'_> {
    async fn find(&self, bound: Bound) -> Result<End, Error> {
        let id = match &bound {
            Bound::At(at) => {
                return Ok(End {
                    at: *at,
                    seq: None,
                    is_traffic: false,
                    bound,
                });
            }
            Bound::Event(id) => id,
        };
        match self
            .audit
            .range(Some(&bound), None, Some(self.account))
            .await
        {
            Ok(range) => {
                let rows = self.audit.rows(range.first - 1, range.first, 1).await?;
                let at = rows.first().map_or(0, |row| row.happened_at);
                Ok(End {
                    at: Timestamp::from_unix_nanos(at),
                    seq: Some(range.first),
                    is_traffic: false,
                    bound,
                })
            }
            Err(RangeError::Unknown(_)) => {
                let found = self.events.delivery.find_traffic(id, self.account).await?;
                let at = found.ok_or_else(|| unknown(id))?;
                Ok(End {
                    at,
                    seq: None,
                    is_traffic: true,
                    bound,
                })
            }
            Err(RangeError::Fault(fault)) => Err(fault.into()),
        }
    }

    async fn audit_range(&self, from: &End, to: Option<&End>) -> Result<Range, Error> {
        let (from, to) = (from.within(false), to.map(|to| to.within(false)));
        let range = self
            .audit
            .range(Some(&from), to.as_ref(), Some(self.account));
        range.await.map_err(|error| match error {
            RangeError::Unknown(id) => unknown(&id).into(),
            RangeError::Fault(fault) => fault.into(),
        })
    }

    async fn traffic_range(&self, from: &End, to: Option<&End>) -> Result<TrafficRange, Error> {
        let (from, to) = (from.within(true), to.map(|to| to.within(true)));
        let delivery = &self.events.delivery;
        let range = delivery.traffic_range(&from, to.as_ref(), self.account);
        // It has expired since it was found.
        let gone = || {
            Refusal::new(
                code::DELIVERY_VALUE_INVALID,
                "The start or end of the range is no longer retained.",
            )
        };
        Ok(range.await?.ok_or_else(gone)?)
    }
}

fn unknown(id: &str) -> Refusal {
    Refusal::new(
        code::DELIVERY_VALUE_INVALID,
        format!("The event `{id}` is not retained; it may be older than the retention period."),
    )
}

impl Traffic {
    fn of(range: TrafficRange) -> Self {
        Self {
            first: range.first,
            last: range.last,
            first_event: range.from_event.map(EventEnd::of),
            last_event: range.to_event.map(EventEnd::of),
            since_ns: range.since.map(Timestamp::unix_nanos),
            until_ns: range.until.map(Timestamp::unix_nanos),
        }
    }

    fn range(&self) -> TrafficRange {
        TrafficRange {
            first: self.first,
            last: self.last,
            from_event: self.first_event.as_ref().map(EventEnd::bound),
            to_event: self.last_event.as_ref().map(EventEnd::bound),
            since: self.since_ns.map(Timestamp::from_unix_nanos),
            until: self.until_ns.map(Timestamp::from_unix_nanos),
        }
    }
}

impl EventEnd {
    fn of(EventBound { piece, id }: EventBound) -> Self {
        Self { piece, id }
    }

    fn bound(&self) -> EventBound {
        EventBound {
            piece: self.piece,
            id: self.id.clone(),
        }
    }
}

fn bound(field: &str, text: &str) -> Result<Bound, Refusal> {
    if let Some(("ev", _)) = id::split(text) {
        return Ok(Bound::Event(text.to_owned()));
    }
    Timestamp::parse(text).map(Bound::At).ok_or_else(|| {
        Refusal::new(
            code::TIME_MALFORMED,
            format!("`{field}` must be an RFC 3339 time or an event ID."),
        )
    })
}

fn is_traffic(name: &str) -> bool {
    kinds::find(name).is_some_and(|kind| kind.family == Family::Traffic)
}

fn check_kinds(events: &EventConfig, given: &[String]) -> Result<Vec<String>, Refusal> {
    for name in given {
        if is_traffic(name) {
            if !events.delivery.retains_traffic() {
                return Err(Refusal::new(
                    code::DELIVERY_VALUE_INVALID,
                    format!(
                        "This server does not retain traffic events such as `{name}` (see `events.traffic_retention`)."
                    ),
                ));
            }
        } else if !event_kinds::is_kind(name) {
            return Err(event_kinds::unknown(name, ""));
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

fn silent() -> AuditEvent {
    AuditEvent::Suppress {
        reason: "a replay changes no object",
    }
}

/// The share of a replay's events that is queued, in percent; below 100 until all are.
async fn progress(events: &EventConfig, id: &str, replay: &Stored) -> Result<u8, Fault> {
    let delivery = &events.delivery;
    let range = replay.range();
    let position = delivery.replayed(id, &range).await?;
    let mut ways = vec![(range.first, position, range.last)];
    if let Some(range) = replay.traffic.as_ref().map(Traffic::range) {
        let position = delivery.replayed_traffic(id, &range).await?;
        ways.push((range.first, position, range.last));
    }
    if ways.iter().all(|(_, position, last)| position >= last) {
        return Ok(100);
    }
    let (mut done, mut all) = (0, 0);
    for (first, position, last) in ways {
        let before = first.saturating_sub(1);
        done += i128::from(position.min(last).saturating_sub(before).max(0));
        all += i128::from(last.saturating_sub(before).max(0));
    }
    Ok(u8::try_from((done * 100 / all.max(1)).clamp(0, 99)).unwrap_or(99))
}

async fn shown(
    events: &EventConfig,
    call: &Call,
    document: &Document,
    replay: &Stored,
) -> Result<String, Fault> {
    let percent = progress(events, &document.head.id, replay).await?;
    let base = events.kernel.base(&call.base);
    let destination = Uri {
        base,
        collection: EventDestination::COLLECTION,
        id: &replay.destination_id,
    };
    stored::write(&View {
        id: &document.head.id,
        uri: format!("{destination}/replay"),
        created_at: document.head.created_at,
        destination: Reference::to(base, EventDestination::COLLECTION, &replay.destination_id),
        from: &replay.from,
        to: replay.to.as_deref(),
        event_types: &replay.event_types,
        state: if percent == 100 { "done" } else { "running" },
        percent,
    })
}
