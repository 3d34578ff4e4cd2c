//! capture: stores the messages of an exchange beside its event.

use std::sync::Arc;

use culvert_base::{Refusal, Timestamp, code};
use culvert_events::HeaderRules;
use culvert_policy::Scheme;
use culvert_policy::action_type::ActionType;
use culvert_policy::capture::{BODY_BYTES_MAX, CaptureRules, JsonPath, Redaction, header_key};
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::replace::PATTERN_BYTES_MAX;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use http::header::HeaderName;
use regex::RegexBuilder;
use schemars::JsonSchema;
use serde::Deserialize;

const BYTES_DEFAULT: usize = 64 << 10;
const CONTENT_TYPES_MAX: usize = 20;
const NAMES_MAX: usize = 20;
const PATHS_MAX: usize = 10;
const PATTERNS_MAX: usize = 8;
const TEXT_BYTES_MAX: usize = 256;
/// Memory of a compiled pattern. All patterns of all captures are in memory.
const PROGRAM_BYTES_MAX: usize = 256 << 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "capture",
    doc: "Stores the request and the response beside the traffic event: method, URL, header fields and bodies, under the retention of traffic events (`events.traffic_retention`; if it is `0s`, nothing is stored). Only admins and the owner of the endpoint can read them (`GET /events/{id}/messages`). Values that events show as `[redacted]` are redacted here too, in header fields, URLs and forms. In `on_http_response`, conditions can select by the response; the request body is then copied for every request of the endpoint and discarded for those that are not selected. Bytes after an upgrade are not stored. If the memory for captures is used up, traffic continues and bodies are omitted.",
    phases: &[Phase::Request, Phase::Response],
    schemes: &[Scheme::Http, Scheme::Https],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| {
        let config: Config = context.config()?;
        Ok(Box::new(Capture {
            rules: Arc::new(rules(context, config)?),
            is_late: context.phase() == Phase::Response,
        }))
    },
    ..ActionType::PLAIN
};

fn rules(context: &PolicyContext<'_>, config: Config) -> Result<CaptureRules, Refusal> {
    let (request, response) = (
        config.request.unwrap_or(true),
        config.response.unwrap_or(true),
    );
    if !request && !response {
        let why = "`request` or `response` must be true";
        return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
    }
    let bytes_max = config.max_bytes.unwrap_or(BYTES_DEFAULT as u64);
    context.within("max_bytes", bytes_max, 0..=BODY_BYTES_MAX as u64)?;
    let until = match &config.until {
        None => None,
        Some(text) => Some(Timestamp::parse(text).ok_or_else(|| {
            let why = "`until` must be an RFC 3339 time such as `2030-01-31T12:00:00Z`";
            context.refuse(code::POLICY_VALUE_INVALID, why)
        })?),
    };
    let redact = config.redact.unwrap_or_default();
    let reveal = config.reveal.unwrap_or_default();
    Ok(CaptureRules {
        owner: context.owner().to_owned(),
        request,
        response,
        bytes_max: usize::try_from(bytes_max).unwrap_or(BODY_BYTES_MAX),
        content_types: content_types(context, config.content_types)?,
        until,
        redaction: Redaction {
            headers: headers(context, "redact.headers", &redact.headers)?,
            parameters: parameters(context, "redact.query", &redact.query)?,
            json: paths(context, &redact.json)?,
            patterns: patterns(context, &redact.patterns)?,
            revealed_headers: headers(context, "reveal.headers", &reveal.headers)?,
            revealed_parameters: parameters(context, "reveal.query", &reveal.query)?,
        },
    })
}

/// Checks the number of entries of a list that may be empty, and their lengths.
fn check(
    context: &PolicyContext<'_>,
    field: &str,
    items: &[String],
    (count_max, bytes_max): (usize, usize),
) -> Result<(), Refusal> {
    if items.is_empty() {
        return Ok(());
    }
    context.count(field, items.len(), count_max)?;
    for (index, item) in items.iter().enumerate() {
        let field = format!("{field}[{index}]");
        context.length(&field, item, bytes_max)?;
        if item.trim().is_empty() {
            let why = format!("`{field}` must not be empty");
            return Err(context.refuse(code::POLICY_VALUE_EMPTY, &why));
        }
    }
    Ok(())
}

fn content_types(context: &PolicyContext<'_>, given: Vec<String>) -> Result<Vec<String>, Refusal> {
    let field = "content_types";
    check(context, field, &given, (CONTENT_TYPES_MAX, TEXT_BYTES_MAX))?;
    for (index, text) in given.iter().enumerate() {
        let is_type = text.matches('/').count() == 1
            && text.matches('*').count() <= 1
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b";,\"".contains(&byte));
        if !is_type {
            let why = format!(
                "`{field}[{index}]` must be a media type such as `application/json` or `text/*`"
            );
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
    }
    Ok(given.iter().map(|text| text.to_ascii_lowercase()).collect())
}

fn headers(
    context: &PolicyContext<'_>,
    field: &str,
    given: &[String],
) -> Result<Vec<String>, Refusal> {
    check(context, field, given, (NAMES_MAX, TEXT_BYTES_MAX))?;
    for (index, name) in given.iter().enumerate() {
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            let why = format!("`{field}[{index}]` is not a header name");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
    }
    Ok(given.iter().map(|name| header_key(name)).collect())
}

fn parameters(
    context: &PolicyContext<'_>,
    field: &str,
    given: &[String],
) -> Result<Vec<Vec<u8>>, Refusal> {
    check(context, field, given, (NAMES_MAX, TEXT_BYTES_MAX))?;
    let keys = given
        .iter()
        .map(|name| HeaderRules::parameter_key(name.trim().as_bytes()));
    Ok(keys.collect())
}

fn paths(context: &PolicyContext<'_>, given: &[String]) -> Result<Vec<JsonPath>, Refusal> {
    let field = "redact.json";
    check(context, field, given, (PATHS_MAX, TEXT_BYTES_MAX))?;
    let path = |(index, text): (usize, &String)| {
        JsonPath::parse(text).ok_or_else(|| {
            let why = format!(
                "`{field}[{index}]` must be a path of at most 8 keys such as `user.password` or `**.password`"
            );
            context.refuse(code::POLICY_VALUE_INVALID, &why)
        })
    };
    given.iter().enumerate().map(path).collect()
}

fn patterns(context: &PolicyContext<'_>, given: &[String]) -> Result<Vec<regex::Regex>, Refusal> {
    let field = "redact.patterns";
    check(context, field, given, (PATTERNS_MAX, PATTERN_BYTES_MAX))?;
    let pattern = |(index, text): (usize, &String)| {
        let field = format!("{field}[{index}]");
        let must = "a regular expression (RE2) that does not match the empty string";
        let pattern = context.pattern(&field, text, must, PROGRAM_BYTES_MAX, |limit| {
            RegexBuilder::new(text).size_limit(limit).build()
        })?;
        // An empty match would only make the text longer.
        if pattern.is_match("") {
            let why = format!("`{field}` must be {must}");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        Ok(pattern)
    };
    given.iter().enumerate().map(pattern).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Capture")]
struct Config {
    /// Whether the request is stored; default true.
    #[serde(default)]
    request: Option<bool>,
    /// Whether the response is stored; default true.
    #[serde(default)]
    response: Option<bool>,
    /// Largest part of each body that is stored, in bytes, at most 1 MiB; default 64 KiB. Longer bodies are cut.
    #[serde(default)]
    max_bytes: Option<u64>,
    /// Media types of the bodies that are stored, such as `application/json`, `text/*` or `application/*+json`; default
    /// all. Other bodies are omitted.
    #[serde(default)]
    content_types: Vec<String>,
    /// RFC 3339 time after which nothing is stored; default no limit.
    #[serde(default)]
    until: Option<String>,
    /// Values to store as `[redacted]`, besides the names in the settings `events.redact_headers` and
    /// `events.redact_query`.
    #[serde(default)]
    redact: Option<Redact>,
    /// Names of those settings whose values are stored nevertheless.
    #[serde(default)]
    reveal: Option<Reveal>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CaptureRedact")]
struct Redact {
    /// Names of header fields.
    #[serde(default)]
    headers: Vec<String>,
    /// Names of parameters in URLs and in forms.
    #[serde(default)]
    query: Vec<String>,
    /// Paths to values in JSON bodies, such as `user.password`; `*` is any key, `**` any number of keys, and an array
    /// stands for its elements. Bodies that are not complete JSON are omitted.
    #[serde(default)]
    json: Vec<String>,
    /// Regular expressions (RE2); matches in bodies, header values and URLs are redacted. Bodies that are not complete
    /// UTF-8 text are omitted.
    #[serde(default)]
    patterns: Vec<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CaptureReveal")]
struct Reveal {
    /// Names of header fields.
    #[serde(default)]
    headers: Vec<String>,
    /// Names of parameters in URLs and in forms.
    #[serde(default)]
    query: Vec<String>,
}

#[derive(Debug)]
struct Capture {
    rules: Arc<CaptureRules>,
    /// Whether it runs after the request was read.
    is_late: bool,
}

impl Action for Capture {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let is_over = |until| x.conn.info.now() > until;
        if self.rules.until.is_some_and(is_over) {
            return Flow::Continue.into();
        }
        let budget = x.conn.services.bodies.as_ref();
        let is_tls = x.conn.info.tls.get().is_some();
        if let (Some(event), Some(request)) = (&mut x.event, x.request) {
            event.apply_capture(budget, &self.rules, request, is_tls);
        }
        Flow::Continue.into()
    }

    fn late_request_bytes(&self) -> Option<usize> {
        (self.is_late && self.rules.request).then_some(self.rules.bytes_max)
    }
}
