//! `GET /events/terms`: the meaning of a search in plain words, which `GET /events` has as its parameter `q`.

use culvert_base::{Refusal, Timestamp, code};
use culvert_events::LogFilter;
use culvert_events::catalogue::CatalogueEntry;
use culvert_events::words::{self, KnownEndpoint, Words, WordsContext};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::access::token;
use culvert_resources::audit::trace::Trace;
use culvert_resources::list;
use culvert_resources::list::page::Parameter;
use culvert_resources::operation::{
    Call, EVENTS_PATH, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::{Error, stored};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::Value;

use crate::EventConfig;
use crate::event_query::parameter;

/// The parameter with the words.
pub(crate) const Q: &str = "q";
/// The parameter with the offset of local times.
pub(crate) const UTC_OFFSET: &str = "utc_offset";
/// The name of the resource whose objects complete words.
const ENDPOINT: &str = "endpoint";
/// Maximum number of endpoints that complete a word.
const ENDPOINTS_MAX: usize = 20;
/// Maximum offset in minutes.
const OFFSET_MAX: i32 = 18 * 60;

/// The parameters of a search in words.
pub(crate) static PARAMETERS: [Parameter; 2] = [
    parameter(
        Q,
        false,
        "Search in plain words, at most 1024 bytes, such as `502 shop.example.com /checkout >500ms last 24h`. Status: `502`, `5xx`, \
         `500-504`. Method: `GET`. Beginning of the path: `/checkout`. Host: `shop.example.com`, `*.example.com`, `host:shop`. \
         Duration: `>500ms`, `<2s`. Time: `last 24h`, `today`, `since 14:00`, `before 2026-11-28`, `from yesterday to 2h ago`. \
         Address or network of the client: `203.0.113.7`, `203.0.113.0/24`. IDs: `ep_…`, `usr_…`, `ak_…`, `ev_…` and others. \
         Facets: `status:`, `method:`, `path:`, `host:`, `url:`, `duration:`, `ip:`, `agent:`, `upstream:`, `reason:`, `trace:`, \
         `request:`, `type:`, `event:`, `object:`, `by:`, `key:`, `text:`. `error` finds responses 5xx and requests that failed. \
         Any other word, and text in double quotes, is searched in URLs, hosts, user agents, names, IDs and types, in any letter \
         case. `-` or `not` before a word excludes events. Values of one facet are alternatives; facets, comparisons and texts \
         narrow each other. A text with `ev.`, `==`, `!=`, `&&` or `||` is a CEL condition, as in `filter`. The other \
         parameters narrow the search further.",
    ),
    parameter(
        UTC_OFFSET,
        false,
        "Offset of local times in `q` from UTC, such as `+02:00`, or in minutes, such as `120`; default: `+00:00`.",
    ),
];

pub(crate) fn operations() -> [Operation<EventConfig>; 1] {
    [Operation {
        name: "get_terms",
        collection: "events",
        method: Method::Get,
        path: format!("{EVENTS_PATH}/terms"),
        doc: "Shows the meaning of a search in plain words: its terms, the CEL condition, and completions for the \
              word at its end, among them hosts and IDs of endpoints that the caller may list. Searches no events."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<TermsView>),
        },
        query: &PARAMETERS,
        right: Right::read(Scope::EventsRead),
        object: None,
        hides: None,
        preview: None,
        trace: Trace::Nothing,
        run: Run::new(|events, call| Box::pin(get_terms(events, call))),
    }]
}

/// The meaning of a search in plain words.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventTerms")]
struct TermsView {
    /// The terms in the order of the text.
    terms: Vec<TermView>,
    /// CEL condition for `filter`, of all terms but those in the following four fields; null if there is none.
    filter: Option<String>,
    /// Only events at or after this time, RFC 3339; null for no bound.
    from: Option<String>,
    /// Only events at or before this time, RFC 3339; null for no bound.
    to: Option<String>,
    /// Only audit events about this object, and traffic events of this endpoint; null for all.
    object_id: Option<String>,
    /// Only audit events of this user or bot; null for all.
    actor_id: Option<String>,
    /// The first word without a meaning, which `GET /events` refuses (5407); null if there is none.
    error: Option<TermErrorView>,
    /// Words that may replace the word at the end of the text.
    completions: Vec<CompletionView>,
}

/// A part of a search with one meaning. Places count bytes of UTF-8.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventTerm")]
struct TermView {
    /// Place of its first byte.
    start: usize,
    /// Place behind its last byte.
    end: usize,
    /// The part of the text.
    text: String,
    /// Its facet: `status`, `method`, `path`, `host`, `url`, `duration`, `ip`, `agent`, `upstream`, `reason`, `trace`,
    /// `request`, `type`, `event`, `object`, `by`, `key`, `text`, `time`, `error` or `filter` (a CEL condition).
    facet: &'static str,
    /// Its meaning, for people.
    label: String,
    /// Whether it excludes events.
    is_negated: bool,
}

/// A word without a meaning. Places count bytes of UTF-8.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventTermError")]
struct TermErrorView {
    /// The reason.
    message: String,
    /// Place of its first byte.
    start: usize,
    /// Place behind its last byte.
    end: usize,
}

/// A word that may replace the one at the end of the text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventTermCompletion")]
struct CompletionView {
    /// The whole word.
    text: String,
    /// Its meaning, for people.
    label: String,
}

async fn get_terms(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let (mut text, mut offset) = ("", 0);
    for (index, (name, value)) in call.query.iter().enumerate() {
        if call
            .query
            .iter()
            .take(index)
            .any(|(earlier, _)| earlier == name)
        {
            let why = format!(
                "`{}` is repeated.",
                name.chars().take(64).collect::<String>()
            );
            return Err(Refusal::new(code::QUERY_PARAMETER_REPEATED, why).into());
        }
        match name.as_str() {
            Q => text = value,
            UTC_OFFSET if value.is_empty() => {}
            UTC_OFFSET => offset = utc_offset(value)?,
            _ => {
                let why = format!(
                    "Unknown parameter `{}`; valid parameters: {Q}, {UTC_OFFSET}.",
                    name.chars().take(64).collect::<String>()
                );
                return Err(Refusal::new(code::QUERY_PARAMETER_UNKNOWN, why).into());
            }
        }
    }
    refuse_token(text)?;
    let kinds = kinds(events);
    let context = context(events.kernel.clock.now(), &kinds, offset);
    let mut words = words::parse(text, &context);
    if let (None, Some(filter)) = (&words.error, &words.filter)
        && let Err(refusal) = LogFilter::compile(events.catalogue, filter)
    {
        words.error = Some(words::WordsError {
            message: refusal.to_string(),
            start: 0,
            end: text.len(),
        });
    }
    let endpoints = match words::endpoint_text(text) {
        Some(part) => endpoints_with(events, &call, &part).await?,
        None => Vec::new(),
    };
    let known = endpoints.iter().map(|view| KnownEndpoint {
        id: view["id"].as_str().unwrap_or_default(),
        host: view["host"].as_str().unwrap_or_default(),
        url: view["public_url"].as_str().unwrap_or_default(),
    });
    let known: Vec<KnownEndpoint<'_>> = known.collect();
    let completions = words::completions(text, &context, &known).into_iter();
    let time = |at: Option<Timestamp>| at.map(Timestamp::to_millis_text);
    let view = TermsView {
        terms: words.terms.into_iter().map(TermView::from).collect(),
        filter: words.filter,
        from: time(words.since),
        to: time(words.until),
        object_id: words.object,
        actor_id: words.actor,
        error: words.error.map(|error| TermErrorView {
            message: error.message,
            start: error.start,
            end: error.end,
        }),
        completions: completions
            .map(|one| CompletionView {
                text: one.text,
                label: one.label,
            })
            .collect(),
    };
    Ok(Reply::Ok(stored::write(&view)?))
}

/// The newest endpoints with a part in their URL, if the caller may list endpoints.
async fn endpoints_with(
    events: &EventConfig,
    call: &Call,
    part: &str,
) -> Result<Vec<Value>, Error> {
    let mut types = events.kernel.resources.iter().copied();
    let Some(ty) = types.find(|ty| ty.name == ENDPOINT) else {
        return Ok(Vec::new());
    };
    if !call.caller.may(Right::read(Scope::EndpointsRead)) {
        return Ok(Vec::new());
    }
    let cx = events.kernel.cx(&call.caller, &call.base);
    Ok(list::newest_with(&cx, ty, ("url", part), ENDPOINTS_MAX).await?)
}

/// Refuses a search with a token, which is in no event and would be in logs of proxies and in links.
fn refuse_token(text: &str) -> Result<(), Refusal> {
    match token::has_token(text) {
        true => Err(Refusal::of(code::SEARCH_HAS_TOKEN)),
        false => Ok(()),
    }
}

impl From<words::Term> for TermView {
    fn from(term: words::Term) -> Self {
        Self {
            start: term.start,
            end: term.end,
            text: term.text,
            facet: term.facet,
            label: term.label,
            is_negated: term.is_negated,
        }
    }
}

/// The meaning of a search in words.
///
/// # Errors
/// 269 for a token, 5407 for a word without a meaning.
pub(crate) fn understood(
    events: &EventConfig,
    text: &str,
    (utc_offset, now): (i32, Timestamp),
) -> Result<Words, Refusal> {
    refuse_token(text)?;
    let kinds = kinds(events);
    let words = words::parse(text, &context(now, &kinds, utc_offset));
    match &words.error {
        None => Ok(words),
        Some(error) => Err(Refusal::new(
            code::EVENT_QUERY_INVALID,
            format!(
                "`{Q}`, bytes {} to {}: {}.",
                error.start, error.end, error.message
            ),
        )),
    }
}

fn kinds(events: &EventConfig) -> Vec<&'static str> {
    let kinds = events.catalogue.entries();
    kinds
        .map(|entry| match entry {
            CatalogueEntry::Table(kind) => kind.name,
            CatalogueEntry::Audit(kind) => kind.name.as_str(),
        })
        .collect()
}

fn context<'k>(now: Timestamp, kinds: &'k [&'k str], utc_offset: i32) -> WordsContext<'k> {
    WordsContext {
        now,
        utc_offset,
        kinds,
    }
}

/// The minutes of an offset from UTC. A `+` in a query string that was not encoded arrives as a space.
///
/// # Errors
/// 5407 if it is none.
pub(crate) fn utc_offset(text: &str) -> Result<i32, Refusal> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix(['+', ' ']).unwrap_or(text)),
    };
    let number = |text: &str| {
        let is_number = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<i32>().ok()).flatten()
    };
    let minutes = match rest.split_once(':') {
        Some((hours, minutes)) => number(hours)
            .zip(number(minutes).filter(|minutes| *minutes < 60))
            .map(|(hours, minutes)| hours * 60 + minutes),
        None if rest == "Z" => Some(0),
        None => number(rest),
    };
    match minutes {
        Some(minutes) if minutes <= OFFSET_MAX => Ok(sign * minutes),
        _ => Err(Refusal::new(
            code::EVENT_QUERY_INVALID,
            format!("`{UTC_OFFSET}` must be an offset from UTC such as `+02:00`."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_hours_and_minutes_or_minutes() {
        for (text, minutes) in [
            ("+02:00", 120),
            (" 02:00", 120),
            ("-05:30", -330),
            ("120", 120),
            ("-300", -300),
            ("Z", 0),
        ] {
            assert_eq!(utc_offset(text).unwrap(), minutes, "{text}");
        }
        for text in ["x", "+25:00", "+1:75", "99999", "--1", ":"] {
            assert!(utc_offset(text).is_err(), "{text}");
        }
    }
}
