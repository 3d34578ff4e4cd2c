//! `GET /events`: pages of retained audit and traffic events, and a stream of new ones.
//!
//! A caller finds the events that their live tails show: those of their account, without those about keys and
//! credentials unless the caller is an admin.
//!
//! Delivery reads the logs and limits the cost. The HTTP server sends server-sent events.

pub(crate) mod terms;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_delivery::{Cursor, EventPage, EventQuery, LoggedEvent, Searched};
use culvert_events::words::Words;
use culvert_events::{Family, LogFilter, kinds, words};
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::list::page;
use culvert_resources::list::page::{Form, LIMIT_MAX, Parameter};
use culvert_resources::operation::{
    Call, EVENTS_PATH, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::{Error, stored};
use culvert_store::Order;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::form_urlencoded;

use crate::event_kinds::AskedKinds;
use crate::event_query::terms::{Q, UTC_OFFSET};
use crate::{EventConfig, event_kinds};

/// The event of a caller who reads kept events, or follows them.
pub static EVENTS_EXPORTED: OperationKind = OperationKind {
    name: "events_exported.v0",
    doc: "Kept events were read.",
    shows_body: false,
};

/// The parameter that requests a stream.
const FOLLOW: &str = "follow";
const CURSOR: &str = "cursor";
/// In a cursor before the time that words are relative to, in milliseconds since 1970.
const WORDS_AT: char = '.';
/// Longer texts are no IDs.
const ID_BYTES_MAX: usize = 256;

pub(crate) const fn parameter(
    name: &'static str,
    repeatable: bool,
    doc: &'static str,
) -> Parameter {
    Parameter {
        name,
        doc,
        repeatable,
        within: None,
        form: Form::Text,
    }
}

static PARAMETERS: [Parameter; 12] = [
    Parameter {
        within: Some((1, LIMIT_MAX)),
        ..parameter(
            "limit",
            false,
            "Maximum number of events per page, 1 to 100; default: 100.",
        )
    },
    parameter(
        CURSOR,
        false,
        "Continues behind an earlier page; the cursor is in its `next_page_uri`.",
    ),
    Parameter {
        form: Form::Choice(&["newest", "oldest"]),
        ..parameter(
            "order",
            false,
            "`newest` (default) or `oldest`: which events come first.",
        )
    },
    parameter(
        "type",
        true,
        "Returns only events of these types, such as `http_request_complete.v0`. `audit` and `traffic` stand for all types of a log that the caller may read; default: both. Types about API keys, credentials and agent sessions need an admin (630).",
    ),
    Parameter {
        form: Form::Time,
        ..parameter(
            "from",
            false,
            "Returns only events at or after this RFC 3339 time.",
        )
    },
    Parameter {
        form: Form::Time,
        ..parameter(
            "to",
            false,
            "Returns only events at or before this RFC 3339 time.",
        )
    },
    parameter(
        "object_id",
        false,
        "Returns only audit events about this object, and traffic events of this endpoint.",
    ),
    parameter(
        "actor_id",
        false,
        "Returns only audit events of this user or bot.",
    ),
    parameter(
        "filter",
        false,
        "CEL condition over the envelope (`event_id`, `event_type`, `event_timestamp`, `account_id`, `principal`), `endpoint_id`, and every field of the object below `ev`.",
    ),
    terms::PARAMETERS[0],
    terms::PARAMETERS[1],
    Parameter {
        form: Form::Flag,
        ..parameter(
            FOLLOW,
            false,
            "`true` streams the events as server-sent events, oldest first, and continues with new ones. The stream begins at `cursor`, `from` or now, and resumes with `Last-Event-ID`.",
        )
    },
];

pub(crate) fn operations() -> [Operation<EventConfig>; 1] {
    [Operation {
        name: "list",
        collection: "events",
        method: Method::Get,
        path: EVENTS_PATH.to_owned(),
        doc: "Lists kept audit and traffic events of all nodes, newest first. A page ends early when \
              finding more would cost too much; its `next_page_uri` continues the search."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<EventList<'static>>),
        },
        query: &PARAMETERS,
        right: Right::read(Scope::EventsRead),
        object: None,
        hides: None,
        preview: None,
        trace: Trace::HourlyList(&EVENTS_EXPORTED, listed),
        run: Run::new(|events, call| Box::pin(list(events, call))),
    }]
}

/// An event in a response, of which only the ID is read.
#[derive(Deserialize)]
struct Shown {
    event: ShownEvent,
}

#[derive(Deserialize)]
struct ShownEvent {
    event_id: String,
}

/// The ID of the event in a response with one.
pub(crate) fn shown(body: &str) -> Vec<String> {
    let shown = serde_json::from_str::<Shown>(body);
    shown
        .into_iter()
        .map(|shown| shown.event.event_id)
        .collect()
}

/// The IDs of the events of a page.
fn listed(body: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Page {
        events: Vec<Shown>,
    }
    let page = serde_json::from_str::<Page>(body);
    let events = page.into_iter().flat_map(|page| page.events);
    events.map(|shown| shown.event.event_id).collect()
}

/// The IDs of the events in messages of a stream.
pub fn ids_of<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Vec<String> {
    let messages = messages.into_iter();
    messages.flat_map(|(_, view)| shown(view)).collect()
}

/// A page of kept events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventList")]
struct EventList<'a> {
    events: Vec<View<'a>>,
    uri: &'a str,
    /// Where the search continues; null at its end. A page before that may have fewer events than `limit`,
    /// or none.
    next_page_uri: Option<String>,
    /// How far the search came.
    searched: SearchedView,
    /// Requested types that only admins may read. The list has no events of them.
    withheld_types: &'a [String],
}

/// How far a search came, from the beginning of its first page.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventsSearched")]
struct SearchedView {
    /// The time that the search reached, RFC 3339; null at its end. All matching events on the near side of it are in the
    /// pages so far.
    to: Option<String>,
    /// The searched share of the logs, 0 to 1. It is 1 only at the end.
    share: f64,
}

impl From<Searched> for SearchedView {
    fn from(searched: Searched) -> Self {
        Self {
            to: searched.to.map(Timestamp::to_millis_text),
            // In steps that people see.
            share: (searched.share * 1000.0).floor() / 1000.0,
        }
    }
}

/// A kept event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LoggedEvent")]
pub struct View<'a> {
    /// The event as destinations receive it, with every field.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    event: &'a RawValue,
    /// The endpoint whose traffic it is; null for audit events.
    endpoint_id: Option<&'a str>,
    /// The event's place in the audit log; null for traffic events.
    audit: Option<PlaceView<'a>>,
}

/// The place of an event in the hash-chained audit log. `previous_hash`, `position`, `happened_at_ns`, `audience`
/// and the event are what `hash` is made of.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditPlace")]
struct PlaceView<'a> {
    /// Position in commit order, without gaps.
    position: i64,
    /// SHA-256, 64 hexadecimal digits; null until the next commit if a server without a chain wrote the event.
    hash: Option<&'a str>,
    /// Hash of the position before it.
    previous_hash: Option<String>,
    happened_at_ns: i64,
    /// Subscriptions and destinations that receive the event, as pairs of IDs.
    #[schemars(with = "Vec<(String, String)>")]
    audience: &'a RawValue,
}

impl<'a> View<'a> {
    pub(crate) async fn of(events: &EventConfig, logged: &'a LoggedEvent) -> Result<Self, Fault> {
        let read = |text: &'a str| {
            serde_json::from_str(text).map_err(|error| Fault::new("reading a kept event", error))
        };
        let audit = match &logged.audit {
            None => None,
            Some(place) => {
                let previous_hash = match &place.previous {
                    Some(previous) => Some(previous.clone()),
                    // The previous row is pruned, but the log keeps its hash.
                    None => {
                        events
                            .kernel
                            .store
                            .audit_log()
                            .hash_at(place.position - 1)
                            .await?
                    }
                };
                Some(PlaceView {
                    position: place.position,
                    hash: place.hash.as_deref(),
                    previous_hash,
                    happened_at_ns: place.happened_at,
                    audience: read(&place.audience)?,
                })
            }
        };
        Ok(Self {
            event: read(&logged.envelope)?,
            endpoint_id: logged.endpoint.as_deref(),
            audit,
        })
    }
}

async fn list(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let mut asked = EventQueryParameters::read(&call.query)?;
    if asked.follows {
        return Err(invalid("follow", "is not available here").into());
    }
    let words_at = asked.words_at.unwrap_or_else(|| events.kernel.clock.now());
    asked.words_at = asked.words.as_ref().map(|_| words_at);
    let words_at = asked.words_at;
    let (query, withheld_types) = asked.query(events, &call.caller)?;
    let page = events.delivery.events(&query).await?;
    let uri = format!("{}{EVENTS_PATH}", call.base);
    let mut views = Vec::new();
    for logged in &page.events {
        views.push(View::of(events, logged).await?);
    }
    let next_page_uri = (!page.is_end).then(|| next_page(&uri, &call.query, page.next, words_at));
    Ok(Reply::Ok(stored::write(&EventList {
        events: views,
        uri: &uri,
        next_page_uri,
        searched: page.searched.into(),
        withheld_types: &withheld_types,
    })?))
}

/// The URL of the same query with another cursor, whose words are relative to the same time.
fn next_page(
    uri: &str,
    query: &[(String, String)],
    cursor: Cursor,
    words_at: Option<Timestamp>,
) -> String {
    let mut next = form_urlencoded::Serializer::new(String::new());
    for (name, value) in query.iter().filter(|(name, _)| name != CURSOR) {
        next.append_pair(name, value);
    }
    let mut cursor = cursor.to_string();
    if let Some(at) = words_at {
        cursor.push(WORDS_AT);
        cursor.push_str(&at.unix_millis().to_string());
    }
    next.append_pair(CURSOR, &cursor);
    format!("{uri}?{}", next.finish())
}

/// Whether a query requests a stream.
pub fn follows(query: &[(String, String)]) -> bool {
    query
        .iter()
        .any(|(name, value)| name == FOLLOW && value == "true")
}

/// A search that continues with new events.
#[derive(Debug)]
pub struct Followed {
    query: EventQuery,
}

impl Followed {
    /// The message ID behind which the stream continues after the messages so far; `None` before the first search
    /// of a stream that begins at a time.
    pub fn position(&self) -> Option<String> {
        self.query.from.as_ref().map(Cursor::to_string)
    }
}

/// A message of a stream: its ID, and an event with its positions as one line of JSON.
pub type Message = (String, String);

/// Limit of events per read of a stream.
const ROUND: usize = 32;

impl EventConfig {
    /// Starts to follow retained events, after the message ID `last`, or from the position in the query.
    pub async fn follow_events(
        &self,
        caller: &Caller,
        query: &[(String, String)],
        last: Option<&str>,
    ) -> Result<Followed, Error> {
        caller.check_scope(Right::read(Scope::EventsRead))?;
        let asked = EventQueryParameters::read(query)?;
        if query
            .iter()
            .any(|(name, value)| name == "order" && value == "newest")
        {
            return Err(invalid("order", "must be `oldest` with `follow`").into());
        }
        if query
            .iter()
            .any(|(name, _)| name == "to" || name == "limit")
        {
            return Err(invalid("to` and `limit", "cannot be set with `follow`").into());
        }
        let asked = EventQueryParameters {
            order: Order::OldestFirst,
            ..asked
        };
        let (mut query, _) = asked.query(self, caller)?;
        query.limit = ROUND;
        query.is_followed = true;
        if let Some(last) = last {
            query.from = Some(cursor("Last-Event-ID", last, Order::OldestFirst)?);
        }
        if query.from.is_none() && query.since.is_none() {
            query.from = Some(self.delivery.events_end().await?);
        }
        Ok(Followed { query })
    }

    /// The next messages, and whether more may be available now.
    pub async fn followed(&self, followed: &mut Followed) -> Result<(Vec<Message>, bool), Error> {
        let EventPage {
            events,
            next,
            is_end,
            ..
        } = self.delivery.events(&followed.query).await?;
        let mut messages = Vec::new();
        for logged in &events {
            let view = stored::write(&View::of(self, logged).await?)?;
            messages.push((logged.cursor.to_string(), view));
        }
        followed.query.from = Some(next);
        Ok((messages, !is_end))
    }
}

/// A parsed query string.
#[derive(Debug)]
struct EventQueryParameters {
    limit: usize,
    cursor: Option<Cursor>,
    order: Order,
    types: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    object: Option<String>,
    actor: Option<String>,
    filter: Option<String>,
    words: Option<String>,
    utc_offset: i32,
    /// The time that words such as `last 24h` are relative to; `None` for now. Further pages have that of the first.
    words_at: Option<Timestamp>,
    follows: bool,
}

impl EventQueryParameters {
    fn read(query: &[(String, String)]) -> Result<Self, Refusal> {
        let mut asked = Self {
            limit: LIMIT_MAX as usize,
            cursor: None,
            order: Order::NewestFirst,
            types: Vec::new(),
            since: None,
            until: None,
            object: None,
            actor: None,
            filter: None,
            words: None,
            utc_offset: 0,
            words_at: None,
            follows: false,
        };
        let mut given = None;
        for (index, (name, value)) in query.iter().enumerate() {
            let Some(known) = PARAMETERS.iter().find(|known| known.name == name) else {
                let names: Vec<&str> = PARAMETERS.iter().map(|known| known.name).collect();
                return Err(Refusal::new(
                    code::QUERY_PARAMETER_UNKNOWN,
                    format!(
                        "Unknown parameter `{}`; valid parameters: {}.",
                        name.chars().take(64).collect::<String>(),
                        names.join(", ")
                    ),
                ));
            };
            if !known.repeatable && query.iter().take(index).any(|(earlier, _)| earlier == name) {
                return Err(Refusal::new(
                    code::QUERY_PARAMETER_REPEATED,
                    format!("`{name}` is repeated."),
                ));
            }
            if value.is_empty() {
                continue;
            }
            match name.as_str() {
                "limit" => asked.limit = page::limit(value)? as usize,
                CURSOR => given = Some(value),
                "order" => asked.order = order(value)?,
                "type" => {
                    let names = value.split(',').map(str::trim);
                    let names = names.filter(|name| !name.is_empty());
                    asked.types.extend(names.map(str::to_owned));
                }
                "from" => asked.since = Some(time(name, value)?),
                "to" => asked.until = Some(time(name, value)?),
                "object_id" => asked.object = Some(id(name, value)?),
                "actor_id" => asked.actor = Some(id(name, value)?),
                "filter" => asked.filter = Some(value.clone()),
                Q => asked.words = Some(value.clone()),
                UTC_OFFSET => asked.utc_offset = terms::utc_offset(value)?,
                _ => {
                    asked.follows = match value.as_str() {
                        "true" => true,
                        "false" => false,
                        _ => return Err(invalid(FOLLOW, "must be `true` or `false`")),
                    }
                }
            }
        }
        if let Some(text) = given {
            let (text, words_at) = match text.split_once(WORDS_AT) {
                None => (text.as_str(), None),
                Some((text, at)) => {
                    let millis = at.parse().map_err(|_| invalid(CURSOR, "is malformed"))?;
                    (text, Some(Timestamp::from_unix_millis(millis)))
                }
            };
            asked.words_at = words_at;
            let wanted = match asked.follows {
                true => Order::OldestFirst,
                false => asked.order,
            };
            asked.cursor = Some(cursor(CURSOR, text, wanted)?);
        }
        Ok(asked)
    }

    /// The query for delivery, limited to the rights of the caller, and the types that they leave out.
    fn query(
        self,
        events: &EventConfig,
        caller: &Caller,
    ) -> Result<(EventQuery, Vec<String>), Refusal> {
        let words_at = self.words_at.unwrap_or_else(|| events.kernel.clock.now());
        let words = match self.words.as_deref() {
            None => Words::default(),
            Some(text) => terms::understood(events, text, (self.utc_offset, words_at))?,
        };
        let (object, of_object) = narrowed(self.object, words.object, words::object_condition);
        let (actor, of_actor) = narrowed(self.actor, words.actor, words::actor_condition);
        let conditions = [self.filter.as_deref(), words.filter.as_deref()];
        let further = [of_object.as_deref(), of_actor.as_deref()];
        let conditions = conditions.into_iter().chain(further).flatten();
        let filter = compiled(events, &conditions.collect::<Vec<_>>())?;
        let asked = AskedKinds::of(caller, &self.types)?;
        must_be_retained(events, &self.types)?;
        let is_all = self.types.is_empty() && asked.withheld.is_empty();
        let is_withheld = object
            .as_deref()
            .is_some_and(|id| caller.role != Role::Admin && event_kinds::is_private_object(id));
        let kinds = match (is_all, is_withheld) {
            // The duration of the search would reveal whether such events exist.
            (_, true) => Some(Vec::new()),
            (true, false) => None,
            (false, false) => Some(asked.readable),
        };
        let query = EventQuery {
            owner: caller.owner_id.clone(),
            account: caller.account.clone(),
            kinds,
            filter,
            since: self.since.max(words.since),
            until: earlier(self.until, words.until),
            object,
            actor,
            order: self.order,
            from: self.cursor,
            limit: self.limit,
            is_followed: false,
        };
        Ok((query, asked.withheld))
    }
}

/// The ID that the parameter or the words name. If both name another one, the second result is a condition for the one of
/// the words.
fn narrowed(
    given: Option<String>,
    of_words: Option<String>,
    condition: fn(&str) -> String,
) -> (Option<String>, Option<String>) {
    match (given, of_words) {
        (Some(given), Some(other)) if given != other => (Some(given), Some(condition(&other))),
        (given, of_words) => (given.or(of_words), None),
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// One filter of several conditions. Each is compiled alone first, so an error has its place in the given text.
fn compiled(events: &EventConfig, conditions: &[&str]) -> Result<Option<LogFilter>, Refusal> {
    let compile = |source: &str| LogFilter::compile(events.catalogue, source);
    match conditions {
        [] => Ok(None),
        [one] => compile(one).map(Some),
        several => {
            for one in several {
                compile(one)?;
            }
            // A comment ends with its line.
            let parts: Vec<String> = several.iter().map(|one| format!("({one}\n)")).collect();
            compile(&parts.join(" && ")).map(Some)
        }
    }
}

/// Refuses types of traffic that were requested by name (5408), if this server retains none.
fn must_be_retained(events: &EventConfig, types: &[String]) -> Result<(), Refusal> {
    let is_traffic = |name: &&String| {
        let is_of_traffic = |kind: &culvert_events::EventKind| kind.family == Family::Traffic;
        *name == "traffic" || kinds::find(name).is_some_and(is_of_traffic)
    };
    match types.iter().find(is_traffic) {
        Some(name) if !events.delivery.retains_traffic() => Err(Refusal::new(
            code::TRAFFIC_NOT_RETAINED,
            format!(
                "This server does not retain traffic events such as `{name}` (see `events.traffic_retention`)."
            ),
        )),
        _ => Ok(()),
    }
}

/// The kinds that the caller may read; `None` for all.
pub(crate) fn readable_kinds(caller: &Caller) -> Option<Vec<String>> {
    if caller.role == Role::Admin {
        return None;
    }
    let mut all = event_kinds::event_types();
    all.retain(|name| !event_kinds::is_private(name));
    Some(all)
}

fn invalid(name: &str, why: &str) -> Refusal {
    Refusal::new(code::EVENT_QUERY_INVALID, format!("`{name}` {why}."))
}

fn order(text: &str) -> Result<Order, Refusal> {
    match text {
        "newest" => Ok(Order::NewestFirst),
        "oldest" => Ok(Order::OldestFirst),
        _ => Err(invalid("order", "must be `newest` or `oldest`")),
    }
}

fn time(name: &str, text: &str) -> Result<Timestamp, Refusal> {
    Timestamp::parse(text).ok_or_else(|| {
        Refusal::new(
            code::TIME_MALFORMED,
            format!("`{name}` must be an RFC 3339 time."),
        )
    })
}

/// Parses an ID. Some databases cannot search for other texts, such as those with NUL.
fn id(name: &str, text: &str) -> Result<String, Refusal> {
    let is_id = text.len() <= ID_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_id {
        true => Ok(text.to_owned()),
        false => Err(invalid(name, "must be an ID")),
    }
}

fn cursor(name: &str, text: &str, wanted: Order) -> Result<Cursor, Refusal> {
    let cursor: Cursor = text
        .parse()
        .map_err(|_| invalid(name, "is not a cursor of this list"))?;
    if cursor.order() != wanted {
        return Err(invalid(name, "belongs to the other order"));
    }
    Ok(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<EventQueryParameters, Option<culvert_base::Code>> {
        let query: Vec<_> = query
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        EventQueryParameters::read(&query).map_err(|refusal| refusal.code)
    }

    #[test]
    fn event_query_parameters_are_validated_with_codes() {
        let asked = read(&[("type", "a.v0,b.v0"), ("type", "c.v0"), ("limit", "7")]).unwrap();
        assert_eq!(asked.types, ["a.v0", "b.v0", "c.v0"]);
        assert_eq!(asked.limit, 7);
        assert_eq!(read(&[("filter", "")]).unwrap().filter, None);
        for (query, code) in [
            (&[("types", "a")][..], code::QUERY_PARAMETER_UNKNOWN),
            (
                &[("from", ""), ("from", "")],
                code::QUERY_PARAMETER_REPEATED,
            ),
            (&[("limit", "0")], code::PAGE_LIMIT_OUT_OF_RANGE),
            (&[("from", "yesterday")], code::TIME_MALFORMED),
            (&[("order", "up")], code::EVENT_QUERY_INVALID),
            (&[("cursor", "x")], code::EVENT_QUERY_INVALID),
            (&[("object_id", "ak_\0")], code::EVENT_QUERY_INVALID),
            (&[("actor_id", "é")], code::EVENT_QUERY_INVALID),
            (&[("cursor", "o1-1-1")], code::EVENT_QUERY_INVALID),
            (&[("follow", "maybe")], code::EVENT_QUERY_INVALID),
        ] {
            assert_eq!(read(query).unwrap_err(), Some(code), "{query:?}");
        }
        assert!(read(&[("cursor", "o1-1-1"), ("order", "oldest")]).is_ok());
        assert!(read(&[("cursor", "o1-1-1"), ("follow", "true")]).is_ok());
    }

    #[test]
    fn next_page_uri_repeats_the_query_with_a_new_cursor() {
        let query = [("type", "a"), ("cursor", "n1-1-1"), ("filter", "x == 'é'")];
        let query = query.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let cursor: Cursor = "n0-2-3".parse().unwrap();
        let next = next_page("http://x/events", &query, cursor, None);
        assert_eq!(
            next,
            "http://x/events?type=a&filter=x+%3D%3D+%27%C3%A9%27&cursor=n0-2-3"
        );
        // Words of all pages are relative to one time.
        let at = Timestamp::from_unix_millis(1_700_000_000_123);
        let words = [("q".to_owned(), "last 24h".to_owned())];
        let next = next_page("http://x/events", &words, cursor, Some(at));
        let (_, given) = next.split_once("cursor=").unwrap();
        let further = read(&[("q", "last 24h"), ("cursor", given)]).unwrap();
        assert_eq!((further.cursor, further.words_at), (Some(cursor), Some(at)));
        assert!(read(&[("cursor", "n0-2-3.x")]).is_err());
    }
}
