//! `GET /statistics` and `GET /statistics/top`.
//!
//! A caller reads the statistics of their account: of all its endpoints and agents, including deleted ones, and of
//! their own destinations and API keys. Only admins read those of all destinations and keys, and of nodes.

use std::collections::BTreeMap;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_resources::access::caller::{Caller, Role};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::Trace;
use culvert_resources::list::page::{Form, Parameter};
use culvert_resources::operation::{
    Call, Handler, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::{Error, stored};
use culvert_statistics::{Field, Key, Point, SubjectKind};
use schemars::SchemaGenerator;

use super::read::{Range, Selection};
use super::view::{PointView, RankView, SeriesView, Shape, TopView, Values};
use super::{Resolution, floor};
use crate::{EventConfig, destination};

/// The name of the resource of API keys.
const API_KEY: &str = "api_key";
const PATH: &str = "/statistics";
const TOP_PATH: &str = "/statistics/top";

const HOUR: i64 = 3_600;
/// The range without `from`.
const RANGE: i64 = HOUR;
/// The steps to choose from if there is no `step`, in seconds.
const STEPS: [i64; 8] = [10, 30, 60, 300, 900, 3_600, 21_600, 86_400];
/// Maximum number of points of a response without `step`, and with it.
const POINTS_CHOSEN: i64 = 400;
const POINTS_MAX: i64 = 3_000;
/// Maximum range of a list.
const TOP_RANGE_MAX: i64 = 7 * 24 * HOUR;
/// Maximum range of a list that is computed from steps of ten seconds. Longer ones use steps of five minutes.
const FINE_TOP_MAX: i64 = 900;
const LIMIT: usize = 10;
const LIMIT_MAX: u32 = 1_000;

const fn parameter(name: &'static str, doc: &'static str) -> Parameter {
    Parameter {
        name,
        doc,
        repeatable: false,
        within: None,
        form: Form::Text,
    }
}

const FROM: Parameter = Parameter {
    form: Form::Time,
    ..parameter(
        "from",
        "Start of the range as RFC 3339 time; default: an hour before its end.",
    )
};
const TO: Parameter = Parameter {
    form: Form::Time,
    ..parameter(
        "to",
        "End of the range as RFC 3339 time; default: now. The last steps of up to 10 seconds are not counted yet.",
    )
};

static PARAMETERS: [Parameter; 5] = [
    Parameter {
        form: Form::Choice(&["account", "endpoint", "destination", "agent", "node", "key"]),
        ..parameter(
            "subject",
            "`account` (default; all its endpoints together), `endpoint`, `destination`, `agent`, `node` (admins only) or `key`.",
        )
    },
    parameter(
        "id",
        "ID of the endpoint, destination, agent session or API key, or name of the node; without it, all nodes together.",
    ),
    FROM,
    TO,
    Parameter {
        within: Some((10, 86_400)),
        ..parameter(
            "step",
            "Length of a step in seconds: a multiple of 10, and of 300 if `from` is further back than statistics at 10 seconds are retained; default: chosen for at most 400 points.",
        )
    },
];

static TOP_PARAMETERS: [Parameter; 5] = [
    Parameter {
        form: Form::Choice(&["endpoint", "destination", "agent", "node", "key"]),
        ..parameter(
            "subject",
            "`endpoint` (default), `destination`, `agent`, `node` (admins only) or `key`.",
        )
    },
    FROM,
    TO,
    Parameter {
        form: Form::Choice(&[
            "requests",
            "errors",
            "bytes",
            "connections",
            "latency",
            "refused",
            "events",
            "failures",
            "cpu",
            "calls",
        ]),
        ..parameter(
            "order",
            "The order, the most first: `requests`, `errors` (responses with status 5xx and requests without a response), `bytes`, `connections`, `latency` (95th percentile), `refused`, `events`, `failures`, `cpu` or `calls`; default: `requests`, `events`, `cpu` or `calls`, as the subject has it.",
        )
    },
    Parameter {
        within: Some((1, LIMIT_MAX)),
        ..parameter(
            "limit",
            "Maximum number of subjects, 1 to 1000; default: 10.",
        )
    },
];

pub(crate) fn operations() -> [Operation<EventConfig>; 2] {
    let operation =
        |name, path: &str, doc: &str, schema, query, run: Handler<EventConfig>| Operation {
            name,
            collection: "statistics",
            method: Method::Get,
            path: path.to_owned(),
            doc: doc.to_owned(),
            body: None,
            response: ResponseSpec {
                status: Status::Ok,
                schema: Some(schema),
            },
            query,
            right: Right::read(Scope::EventsRead),
            object: None,
            hides: None,
            preview: None,
            trace: Trace::Nothing,
            run: Run::new(run),
        };
    [
        operation(
            "get",
            PATH,
            "Gets the statistics of one subject over time, counted by all nodes.",
            SchemaGenerator::subschema_for::<SeriesView<'static>>,
            &PARAMETERS[..],
            |events, call| Box::pin(series(events, call)),
        ),
        operation(
            "get_top",
            TOP_PATH,
            "Lists the subjects with the most traffic, errors or latency in a range of at most 7 days.",
            SchemaGenerator::subschema_for::<TopView<'static>>,
            &TOP_PARAMETERS[..],
            |events, call| Box::pin(top(events, call)),
        ),
    ]
}

fn invalid(name: &str, why: &str) -> Refusal {
    Refusal::new(code::STATISTICS_QUERY_INVALID, format!("`{name}` {why}."))
}

/// The parameters that are not empty.
fn given<'q>(
    query: &'q [(String, String)],
    known: &[Parameter],
) -> Result<BTreeMap<&'q str, &'q str>, Refusal> {
    let mut given = BTreeMap::new();
    for (index, (name, value)) in query.iter().enumerate() {
        if !known.iter().any(|known| known.name == name) {
            let names: Vec<&str> = known.iter().map(|known| known.name).collect();
            return Err(Refusal::new(
                code::QUERY_PARAMETER_UNKNOWN,
                format!(
                    "Unknown parameter `{}`; valid parameters: {}.",
                    name.chars().take(64).collect::<String>(),
                    names.join(", ")
                ),
            ));
        }
        if query.iter().take(index).any(|(earlier, _)| earlier == name) {
            return Err(Refusal::new(
                code::QUERY_PARAMETER_REPEATED,
                format!("`{name}` is repeated."),
            ));
        }
        if !value.is_empty() {
            given.insert(name.as_str(), value.as_str());
        }
    }
    Ok(given)
}

/// A kind of subjects by name.
fn kind(name: &str, caller: &Caller) -> Result<SubjectKind, Refusal> {
    match name {
        "account" => Ok(SubjectKind::Account),
        "endpoint" => Ok(SubjectKind::Endpoint),
        "destination" => Ok(SubjectKind::Destination),
        "agent" => Ok(SubjectKind::Agent),
        "key" => Ok(SubjectKind::Key),
        "node" if caller.role == Role::Admin => Ok(SubjectKind::Node),
        "node" => Err(Refusal::new(
            code::NOT_ADMIN,
            "Only admins may read the statistics of nodes.",
        )),
        _ => Err(invalid(
            "subject",
            "must be `account`, `endpoint`, `destination`, `agent`, `node` or `key`",
        )),
    }
}

fn shape(kind: SubjectKind) -> Shape {
    match kind {
        SubjectKind::Account | SubjectKind::Endpoint | SubjectKind::Agent => Shape::Traffic,
        SubjectKind::Destination => Shape::Delivery,
        SubjectKind::Node => Shape::Node,
        SubjectKind::Key => Shape::Calls,
    }
}

/// The account in the keys of a kind.
fn account_of(kind: SubjectKind, caller: &Caller) -> &str {
    match kind {
        SubjectKind::Node => "",
        _ => &caller.account,
    }
}

fn seconds(name: &str, text: &str) -> Result<i64, Refusal> {
    let time = Timestamp::parse(text).ok_or_else(|| {
        Refusal::new(
            code::TIME_MALFORMED,
            format!("`{name}` must be an RFC 3339 time."),
        )
    })?;
    Ok(time.unix_seconds())
}

/// The requested range of time.
fn range(given: &BTreeMap<&str, &str>, now: i64) -> Result<Range, Refusal> {
    let to = given.get("to").map(|text| seconds("to", text));
    let to = to.transpose()?.unwrap_or(now);
    let from = given.get("from").map(|text| seconds("from", text));
    let from = from.transpose()?.unwrap_or(to.saturating_sub(RANGE));
    if from >= to {
        return Err(invalid("from", "must be before `to`"));
    }
    Ok(Range { from, to })
}

/// The range with both ends at steps.
fn aligned(range: Range, step: i64) -> Range {
    let to = floor(range.to, step);
    Range {
        from: floor(range.from, step),
        to: if to < range.to { to + step } else { to },
    }
}

/// The step for a range, and the resolution from which it is computed. Fine points exist since `detailed_from`.
fn step(
    given: Option<&str>,
    range: Range,
    detailed_from: i64,
) -> Result<(i64, Resolution), Refusal> {
    let has_detail = range.from >= detailed_from;
    let length = range.to.saturating_sub(range.from);
    let resolution = |step: i64| match has_detail && step < Resolution::COARSE.step {
        true => Resolution::FINE,
        false => Resolution::COARSE,
    };
    let Some(text) = given else {
        let fits = |step: &i64| {
            (has_detail || *step >= Resolution::COARSE.step) && length / *step <= POINTS_CHOSEN
        };
        let step = STEPS.into_iter().find(fits);
        let step = step.ok_or_else(|| invalid("from", "is too far before `to`"))?;
        return Ok((step, resolution(step)));
    };
    let step: i64 = text.parse().unwrap_or(0);
    if step <= 0 || step % Resolution::FINE.step != 0 || step > STEPS[STEPS.len() - 1] {
        let why = "must be a multiple of 10 and at most 86400 seconds";
        return Err(invalid("step", why));
    }
    let resolution = resolution(step);
    if step % resolution.step != 0 {
        let why = "must be a multiple of 300, because statistics of this time are retained at 300 seconds";
        return Err(invalid("step", why));
    }
    if length / step > POINTS_MAX {
        let why = format!("must be longer: the response would have more than {POINTS_MAX} points");
        return Err(invalid("step", &why));
    }
    Ok((step, resolution))
}

/// Whether the caller may read the statistics of a subject: those of a destination or key are for its owner and admins.
async fn may_read(
    events: &EventConfig,
    call: &Call,
    kind: SubjectKind,
    id: &str,
) -> Result<bool, Error> {
    let ty = match kind {
        _ if call.caller.role == Role::Admin => return Ok(true),
        SubjectKind::Destination => &destination::TYPE,
        SubjectKind::Key => {
            let mut all = events.kernel.resources.iter();
            let ty = all.find(|ty| ty.name == API_KEY);
            ty.ok_or_else(|| Fault::bare("reading statistics of keys: they are no resource"))?
        }
        _ => return Ok(true),
    };
    let cx = events.kernel.cx(&call.caller, &call.base);
    let owner = match cx.own(ty.kind, id).await? {
        Some(document) => ty.owner_of(&document)?,
        None => None,
    };
    Ok(owner.as_deref() == Some(&*call.caller.owner_id))
}

async fn series(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let given = given(&call.query, &PARAMETERS)?;
    let subject = given.get("subject").copied().unwrap_or("account");
    let kind = kind(subject, &call.caller)?;
    let id = given.get("id").copied();
    let account = account_of(kind, &call.caller);
    let selection = match (kind, id) {
        (SubjectKind::Account, Some(_)) => {
            return Err(invalid("id", "requires a `subject` other than `account`").into());
        }
        (SubjectKind::Account, None) => Selection::One(Key::new(kind, account, "")),
        (SubjectKind::Node, None) => Selection::All(kind, account.to_owned()),
        (SubjectKind::Key, Some(id)) => Selection::OfKey(Key::new(kind, account, id)),
        (_, Some(id)) => Selection::One(Key::new(kind, account, id)),
        (_, None) => return Err(invalid("id", "is required for this `subject`").into()),
    };
    let statistics = &events.statistics;
    let now = events.kernel.clock.now().unix_seconds();
    let range = range(&given, now)?;
    let detail = statistics.settings.detail_retention.as_secs();
    let detailed_from = now.saturating_sub(i64::try_from(detail).unwrap_or(i64::MAX));
    let step_text = given.get("step").copied();
    let (step, resolution) = step(step_text, range, detailed_from - Resolution::FINE.chunk)?;
    let range = aligned(range, step);
    let mut points: BTreeMap<i64, Point> = BTreeMap::new();
    // Like those of a subject that does not exist.
    let subjects = match may_read(events, &call, kind, id.unwrap_or_default()).await? {
        true => {
            statistics
                .points(&selection, resolution, range, step)
                .await?
        }
        false => Default::default(),
    };
    let shape = shape(kind);
    let mut called = Called::default();
    for (key, steps) in subjects {
        for (at, point) in steps {
            if shape == Shape::Calls {
                called.add(&key, at, &point);
            }
            points.entry(at).or_default().merge_node(&point);
        }
    }
    let total = points.values().fold(Point::default(), |mut sum, point| {
        sum.merge_step(point);
        sum
    });
    let points = points.iter().map(|(at, point)| PointView {
        at: Timestamp::from_unix_seconds(*at),
        values: match called.steps.remove(at) {
            Some(by_operation) => Values::of_calls(by_operation),
            None => Values::of(shape, point),
        },
    });
    let points = points.collect();
    Ok(Reply::Ok(stored::write(&SeriesView {
        uri: &format!("{}{PATH}", call.base),
        subject,
        id,
        from: Timestamp::from_unix_seconds(range.from),
        to: Timestamp::from_unix_seconds(range.to),
        step,
        total: match shape {
            Shape::Calls => Values::of_calls(called.total),
            _ => Values::of(shape, &total),
        },
        points,
    })?))
}

/// The operations that a key called.
#[derive(Debug, Default)]
struct Called {
    total: BTreeMap<String, u64>,
    /// By the start of the step.
    steps: BTreeMap<i64, BTreeMap<String, u64>>,
}

impl Called {
    fn add(&mut self, key: &Key, at: i64, point: &Point) {
        let (_, operation) = key.id().split_once('/').unwrap_or_default();
        let step = self.steps.entry(at).or_default();
        for counts in [&mut self.total, step] {
            *counts.entry(operation.to_owned()).or_default() += point.get(Field::Calls);
        }
    }
}

/// The points of all operations of each key together, and the operations that it called.
fn by_key(subjects: ByKey) -> (ByKey, BTreeMap<Key, Called>) {
    let (mut keys, mut called) = (ByKey::new(), BTreeMap::<_, Called>::new());
    for (key, steps) in subjects {
        let Some(of_key) = key.of_key() else {
            continue;
        };
        let called = called.entry(of_key.clone()).or_default();
        let of_key = keys.entry(of_key).or_default();
        for (at, point) in steps {
            called.add(&key, at, &point);
            of_key.entry(at).or_default().merge_node(&point);
        }
    }
    (keys, called)
}

/// Points by subject and the start of their step.
type ByKey = BTreeMap<Key, BTreeMap<i64, Point>>;

/// The value by which a list is ordered.
fn rank(order: &str, point: &Point) -> Option<u64> {
    Some(match order {
        "requests" => point.requests(),
        "errors" => point.get(Field::Status5xx) + point.get(Field::Aborted),
        "bytes" => point.get(Field::BytesIn) + point.get(Field::BytesOut),
        "connections" => point.get(Field::Connections) + point.get(Field::OpenConnections),
        "refused" => point.refused(),
        "latency" => point.latency.percentile(0.95).unwrap_or_default() as u64,
        "events" => point.get(Field::Delivered),
        "failures" => point.get(Field::FailedSends),
        "cpu" => point.get(Field::CpuMillis),
        "calls" => point.get(Field::Calls),
        _ => return None,
    })
}

async fn top(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let given = given(&call.query, &TOP_PARAMETERS)?;
    let subject = given.get("subject").copied().unwrap_or("endpoint");
    let kind = kind(subject, &call.caller)?;
    let usual = match kind {
        SubjectKind::Account => {
            let why = "must be `endpoint`, `destination`, `agent`, `node` or `key`";
            return Err(invalid("subject", why).into());
        }
        SubjectKind::Endpoint => "requests",
        SubjectKind::Agent => "bytes",
        SubjectKind::Destination => "events",
        SubjectKind::Node => "cpu",
        SubjectKind::Key => "calls",
    };
    let order = given.get("order").copied().unwrap_or(usual);
    if rank(order, &Point::default()).is_none() {
        let why = "must be `requests`, `errors`, `bytes`, `connections`, `latency`, `refused`, `events`, `failures`, `cpu` or `calls`";
        return Err(invalid("order", why).into());
    }
    let limit = match given.get("limit") {
        None => LIMIT,
        Some(text) => match text.parse() {
            Ok(limit) if (1..=LIMIT_MAX as usize).contains(&limit) => limit,
            _ => return Err(invalid("limit", "must be 1 to 1000").into()),
        },
    };
    let range = range(&given, events.kernel.clock.now().unix_seconds())?;
    let length = range.to.saturating_sub(range.from);
    if length > TOP_RANGE_MAX {
        return Err(invalid("from", "must be at most 7 days before `to`").into());
    }
    let resolution = match length <= FINE_TOP_MAX {
        true => Resolution::FINE,
        false => Resolution::COARSE,
    };
    let range = aligned(range, resolution.step);
    let account = account_of(kind, &call.caller);
    let selection = Selection::All(kind, account.to_owned());
    let subjects = events
        .statistics
        .points(&selection, resolution, range, 0)
        .await?;
    let (subjects, mut called) = match kind {
        SubjectKind::Key => by_key(subjects),
        _ => (subjects, BTreeMap::new()),
    };
    let mut readable = BTreeMap::new();
    for (key, steps) in subjects {
        if may_read(events, &call, kind, key.id()).await? {
            readable.insert(key, steps);
        }
    }
    let subjects = readable;
    let ranked = subjects.iter().flat_map(|(key, steps)| {
        let points = steps.values();
        points.map(move |point| (rank(order, point).unwrap_or(0), key, point))
    });
    let mut ranked: Vec<(u64, &Key, &Point)> = ranked.collect();
    ranked.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(other.1)));
    let shape = shape(kind);
    let shown = ranked.iter().take(limit).map(|(_, key, point)| RankView {
        id: key.id(),
        values: match called.remove(*key) {
            Some(called) => Values::of_calls(called.total),
            None => Values::of(shape, point),
        },
    });
    Ok(Reply::Ok(stored::write(&TopView {
        uri: &format!("{}{TOP_PATH}", call.base),
        subject,
        from: Timestamp::from_unix_seconds(range.from),
        to: Timestamp::from_unix_seconds(range.to),
        count: ranked.len(),
        top: shown.collect(),
    })?))
}
