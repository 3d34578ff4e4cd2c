//! What each word of a search means: its facet and its condition.

use std::net::IpAddr;

use culvert_base::Ksuid;
use culvert_base::net::HostName;
use culvert_base::text::similar::distance;

use super::condition::{self, Condition, contains, quoted};
use super::moment;
use super::network;
use super::tokens::Token;
use super::{Effect, Meaning, WordsContext};
use crate::kinds;
use crate::reason::Reason;

const STATUS: &str = "ev.http.response.status_code";
const METHOD: &str = "ev.http.request.method";
const PATH: &str = "ev.http.request.url.path";
const URL: &str = "ev.http.request.url.raw";
const URL_HOST: &str = "ev.http.request.url.host";
const SERVER_NAME: &str = "ev.conn.server_name";
const USER_AGENT: &str = "ev.http.request.user_agent";
const DURATION: &str = "ev.culvert.duration_ms";
const CLIENT_IP: &str = "ev.conn.client_ip";
const REASON: &str = "ev.culvert.reason";
const TRACE: &str = "ev.culvert.trace_id";
const UPSTREAM: &str = "ev.culvert.upstream";

/// The facets: name, other spellings, and what their values are.
pub(super) static FACETS: [(&str, &[&str], &str); 18] = [
    ("status", &["code"], "`502`, `5xx`, `500-504` or `>=500`"),
    ("method", &[], "`GET`"),
    ("path", &[], "beginning of the path"),
    (
        "host",
        &["domain"],
        "host, `*.` and a domain, or part of a host",
    ),
    ("url", &[], "beginning of the URL"),
    ("duration", &["took", "time"], "`>500ms` or `<2s`"),
    (
        "ip",
        &["client", "client_ip", "from_ip"],
        "address or network of the client",
    ),
    ("agent", &["user_agent", "ua"], "part of the user agent"),
    ("upstream", &[], "part of the upstream"),
    ("reason", &["cause"], "reason of a refusal or an error"),
    ("trace", &["trace_id"], "trace ID"),
    (
        "request",
        &["operation", "op"],
        "operation ID of a call of the API",
    ),
    ("type", &["kind"], "event type or part of one"),
    ("event", &["event_id", "id"], "event ID"),
    (
        "object",
        &["endpoint", "endpoint_id", "object_id"],
        "ID of an object",
    ),
    (
        "by",
        &["actor", "user", "bot", "actor_id"],
        "user or bot: ID, email address or name",
    ),
    ("key", &["api_key"], "ID of an API key"),
    ("text", &[], "part of a URL, host, user agent, name or ID"),
];

/// Further words before a colon, which are read like the word before a space.
const TIME_WORDS: [&str; 8] = [
    "since", "after", "before", "until", "from", "to", "last", "on",
];

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE",
];

/// Whether a word before a colon names a facet.
pub(super) fn is_known(name: &str) -> bool {
    facet_named(name).is_some() || TIME_WORDS.contains(&name)
}

fn facet_named(name: &str) -> Option<&'static str> {
    let of_name = |(facet, others, _): &&(&'static str, &[&str], &str)| {
        *facet == name || others.contains(&name)
    };
    FACETS.iter().find(of_name).map(|(facet, ..)| *facet)
}

/// The methods that a word in upper case means.
pub(super) fn methods() -> &'static [&'static str] {
    &METHODS
}

/// The meaning of the term that the tokens begin with, and how many tokens it has. The error says why there is none.
pub(super) fn meaning(
    tokens: &[Token],
    context: &WordsContext<'_>,
) -> (usize, Result<Meaning, String>) {
    let Some(first) = tokens.first() else {
        return (0, Err(String::new()));
    };
    if let Some(name) = &first.facet {
        if TIME_WORDS.contains(&name.as_str()) {
            return moment::named(name, tokens, context);
        }
        return (1, of_facet(name, first, context));
    }
    if first.is_quoted {
        return (1, Ok(text(&first.text)));
    }
    if let Some((n_taken, found)) = moment::term(tokens, context) {
        return (n_taken, found);
    }
    // `> 500ms` is one comparison.
    if [">", ">=", "<", "<="].contains(&first.text.as_str())
        && let Some(next) = tokens.get(1)
        && let Some(found) = duration(&format!("{}{}", first.text, next.text))
    {
        return (2, Ok(found));
    }
    (1, bare(&first.text, context))
}

/// The meaning of `facet:value`.
fn of_facet(name: &str, token: &Token, context: &WordsContext<'_>) -> Result<Meaning, String> {
    let value = token.text.as_str();
    let Some(facet) = facet_named(name) else {
        return Err(unknown_facet(name));
    };
    let of_facet = FACETS.iter().find(|(known, ..)| *known == facet);
    let expected = of_facet.map_or("", |(.., expected)| *expected);
    if value.is_empty() {
        return Err(format!("`{facet}:` needs a value: {expected}"));
    }
    let found = match facet {
        "status" => status(value),
        "method" => Some(method(value)),
        "path" => Some(path(value)),
        "host" => Some(host(value)),
        "url" => Some(prefix("url", URL, value)),
        "duration" => duration(value),
        "ip" => return client(value).unwrap_or_else(|| Err(not_a("ip", value, expected))),
        "agent" => Some(any("agent", value, of_part(USER_AGENT, value, true))),
        "upstream" => Some(any("upstream", value, of_part(UPSTREAM, value, false))),
        "reason" => return reason(value).ok_or_else(|| unknown_reason(value)),
        "trace" => Some(trace(value)),
        "request" => Some(request(value)),
        "type" => return kind(value, context),
        "event" => Some(event(value)),
        "object" => is_id(value).then(|| object(value)),
        "by" => Some(by(value)),
        "key" => Some(key(value)),
        _ => Some(text(value)),
    };
    found.ok_or_else(|| not_a(facet, value, expected))
}

fn not_a(facet: &str, value: &str, expected: &str) -> String {
    format!(
        "`{facet}:` needs another value than `{}`: {expected}",
        shown(value)
    )
}

fn unknown_facet(name: &str) -> String {
    if matches!(name, "country" | "geo" | "asn") {
        return format!("events have no `{name}`; `ip:` finds addresses and networks");
    }
    let names: Vec<&str> = FACETS.iter().map(|(facet, ..)| *facet).collect();
    let spellings = FACETS
        .iter()
        .flat_map(|(facet, others, _)| others.iter().chain([facet]).map(|name| (*name, *facet)));
    let nearest = spellings
        .map(|(spelling, facet)| (distance(spelling, name), facet))
        .min()
        .filter(|(distance, _)| 3 * distance <= name.len() + 2);
    let hint = nearest.map_or(String::new(), |(_, facet)| {
        format!("; did you mean `{facet}:`?")
    });
    format!(
        "`{}:` is no facet{hint} Facets: {}. Quotes search for the text",
        shown(name),
        names.join(", ")
    )
}

fn unknown_reason(value: &str) -> String {
    let nearest = Reason::ALL
        .iter()
        .map(|reason| (distance(reason.name(), value), reason.name()))
        .min()
        .map_or("", |(_, name)| name);
    format!("no reason is `{}`; did you mean `{nearest}`?", shown(value))
}

/// The meaning of a word without a facet. Each has one: at least that of a text.
fn bare(word: &str, context: &WordsContext<'_>) -> Result<Meaning, String> {
    let is_status = word.len() >= 3 && word.starts_with(|c: char| ('1'..='5').contains(&c));
    if is_status && let Some(found) = status(word) {
        return Ok(found);
    }
    if METHODS.contains(&word) {
        return Ok(method(word));
    }
    if word.starts_with('/') {
        return Ok(path(word));
    }
    let comparison = word.strip_prefix("duration").unwrap_or(word);
    if comparison.starts_with(['>', '<'])
        && let Some(found) = duration(comparison)
    {
        return Ok(found);
    }
    let of_status = word
        .strip_prefix("status")
        .filter(|rest| rest.starts_with(['>', '<', '=']));
    if let Some(found) = of_status.and_then(status) {
        return Ok(found);
    }
    if let Some(found) = client(word) {
        return found;
    }
    if let Some(found) = id(word) {
        return Ok(found);
    }
    if matches!(word, "error" | "errors" | "failed") {
        return Ok(failed());
    }
    if let Some(found) = reason(word) {
        return Ok(found);
    }
    if context.kinds.contains(&word) {
        return kind(word, context);
    }
    if is_host(word) {
        return Ok(host(word));
    }
    Ok(text(word))
}

fn any(facet: &'static str, value: &str, condition: Condition) -> Meaning {
    Meaning {
        facet,
        label: format!("{facet} {}", shown(value)),
        effect: Effect::AnyOf(condition),
    }
}

/// A value as a label shows it.
fn shown(value: &str) -> String {
    let mut shown: String = value.chars().take(64).collect();
    if shown.len() < value.len() {
        shown.push('…');
    }
    shown
}

fn status(value: &str) -> Option<Meaning> {
    let number = |text: &str| {
        text.parse::<u16>()
            .ok()
            .filter(|code| (100..600).contains(code))
    };
    let (operator, rest) = operator(value);
    if let Some(operator) = operator {
        let code = number(rest)?;
        return Some(Meaning {
            facet: "status",
            label: format!("status {operator} {code}"),
            effect: Effect::Each(Condition::of_nullable(
                STATUS,
                &format!(" {operator} {code}"),
            )),
        });
    }
    let between = |first: u16, last: u16| {
        Condition::new(
            format!("{STATUS} >= {first} && {STATUS} <= {last}"),
            format!(
                "has({STATUS}) && {STATUS} != null && {STATUS} >= {first} && {STATUS} <= {last}"
            ),
        )
    };
    let value = value.to_ascii_lowercase();
    let class = value
        .strip_suffix("xx")
        .and_then(|digit| digit.parse::<u16>().ok());
    let condition = match (class, value.split_once('-')) {
        (Some(class @ 1..=5), _) => between(class * 100, class * 100 + 99),
        (None, Some((first, last))) => {
            let (first, last) = (number(first)?, number(last)?);
            between(first.min(last), first.max(last))
        }
        (None, None) => Condition::of(STATUS, &format!(" == {}", number(&value)?)),
        _ => return None,
    };
    Some(any("status", &value, condition))
}

/// The comparison that a text begins with; `=` is none.
fn operator(text: &str) -> (Option<&'static str>, &str) {
    for operator in [">=", "<=", ">", "<"] {
        if let Some(rest) = text.strip_prefix(operator) {
            return (Some(operator), rest.trim_start());
        }
    }
    (None, text.trim_start_matches('='))
}

fn method(value: &str) -> Meaning {
    let shown = value.to_ascii_uppercase();
    let test = format!(" == {}", quoted(&value.to_ascii_lowercase()));
    any("method", &shown, Condition::of(METHOD, &test))
}

fn prefix(facet: &'static str, field: &str, value: &str) -> Meaning {
    let begin = value.trim_end_matches('*');
    let condition = match begin.contains('*') || has_encoded_letter(begin) {
        false => Condition::of(field, &format!(".startsWith({})", quoted(begin))),
        true => {
            let parts = begin.split('*').map(condition::escaped);
            let parts: Vec<String> = parts.map(|part| in_any_encoding(&part)).collect();
            let pattern = format!("^{}", parts.join(".*"));
            Condition::of(field, &format!(".matches({})", quoted(&pattern)))
        }
    };
    any(facet, value, condition)
}

/// The places of hexadecimal letters in encoded bytes such as `%c3`. Clients send them in either case (RFC 3986 2.1).
fn encoded_letters(text: &str) -> impl Iterator<Item = usize> {
    let bytes = text.as_bytes();
    let of_byte = move |at: usize| match bytes.get(at..at + 3) {
        Some([b'%', high, low]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
            [at + 1, at + 2]
                .into_iter()
                .filter(|at| bytes[*at].is_ascii_alphabetic())
                .collect()
        }
        _ => Vec::new(),
    };
    (0..bytes.len()).flat_map(of_byte)
}

fn has_encoded_letter(text: &str) -> bool {
    encoded_letters(text).next().is_some()
}

/// A pattern in which encoded bytes match in either case.
fn in_any_encoding(pattern: &str) -> String {
    let letters: Vec<usize> = encoded_letters(pattern).collect();
    let letter = |(at, c): (usize, char)| match letters.binary_search(&at) {
        Ok(_) => format!("[{}{}]", c.to_ascii_uppercase(), c.to_ascii_lowercase()),
        Err(_) => c.to_string(),
    };
    pattern.char_indices().map(letter).collect()
}

fn path(value: &str) -> Meaning {
    // Clients send other characters encoded (RFC 3986 2.1).
    let mut sent = String::with_capacity(value.len());
    for c in value.chars() {
        match c.is_ascii() {
            true => sent.push(c),
            false => sent.extend(c.to_string().bytes().map(|byte| format!("%{byte:02X}"))),
        }
    }
    prefix("path", PATH, &sent)
}

/// Whether a word is a host: labels with dots whose last one is a word, or a wildcard of one.
fn is_host(word: &str) -> bool {
    let name = word.strip_prefix("*.").unwrap_or(word);
    let is_label = |label: &str| {
        let is_of_host = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        !label.is_empty() && label.len() <= 63 && label.chars().all(is_of_host)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.contains('.')
        && name.len() <= 253
        && name.split('.').all(is_label)
        && last.len() >= 2
        && last.starts_with(char::is_alphabetic)
        && !last.starts_with("v0")
}

fn host(value: &str) -> Meaning {
    // Conversion to ASCII has its own rules for small letters, such as for the Greek sigma at the end of a word.
    let name = match value.is_ascii() {
        true => value.to_ascii_lowercase(),
        false => value.to_owned(),
    };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let without_port = name.rsplit_once(':').filter(|(_, port)| is_port(port));
    let name = without_port.map_or(name.as_str(), |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    // Events have the ASCII form.
    let ascii = HostName::parse(name).ok().filter(|_| !name.is_ascii());
    let name = ascii.map_or_else(|| name.to_lowercase(), |name| name.to_string());
    let test = match name.strip_prefix('*') {
        Some(rest) if rest.starts_with('.') => format!(".endsWith({})", quoted(rest)),
        _ if name.contains('.') || name == "localhost" => format!(" == {}", quoted(&name)),
        _ => format!(".contains({})", quoted(name.trim_matches('*'))),
    };
    let condition = Condition::of(URL_HOST, &test).or(Condition::of(SERVER_NAME, &test));
    any("host", &name, condition)
}

fn duration(value: &str) -> Option<Meaning> {
    let (operator, rest) = operator(value);
    let ms = milliseconds(rest)?;
    // Without a comparison, what takes so long or longer is meant.
    let operator = operator.unwrap_or(">=");
    Some(Meaning {
        facet: "duration",
        label: format!("duration {operator} {}", rest.to_ascii_lowercase()),
        effect: Effect::Each(Condition::of(DURATION, &format!(" {operator} {ms}"))),
    })
}

/// The milliseconds of a duration with a unit.
fn milliseconds(text: &str) -> Option<i64> {
    let text = text.to_ascii_lowercase();
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "ms" => 1.0,
        "s" | "sec" => 1e3,
        "m" | "min" => 6e4,
        "h" => 3.6e6,
        _ => return None,
    };
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let number = number.trim_end();
    let number: f64 = number
        .bytes()
        .all(is_number)
        .then(|| number.parse().ok())??;
    let ms = (number * factor).round();
    // At most about 31 years.
    (0.0..1e12).contains(&ms).then_some(ms as i64)
}

fn client(value: &str) -> Option<Result<Meaning, String>> {
    let found = |condition: Condition| any("ip", value, condition);
    if let Ok(ip) = value.parse::<IpAddr>() {
        let test = format!(" == {}", quoted(&ip.to_canonical().to_string()));
        return Some(Ok(found(of_client(&test))));
    }
    Some(network::tests(value)?.map(|tests| {
        let conditions = tests.iter().map(|test| of_client(test));
        found(conditions.reduce(Condition::or).unwrap_or_default())
    }))
}

fn of_client(test: &str) -> Condition {
    Condition::of(CLIENT_IP, test).or(condition::of_context("client_ip", test))
}

fn of_part(field: &str, value: &str, is_nullable: bool) -> Condition {
    match is_nullable {
        true => Condition::of_nullable(field, &contains(value)),
        false => Condition::of(field, &contains(value)),
    }
}

/// The meaning of an ID.
fn id(word: &str) -> Option<Meaning> {
    let (prefix, body) = word.split_once('_')?;
    let is_ksuid = body.parse::<Ksuid>().is_ok();
    let is_short = body.len() < 27 && body.starts_with(|c: char| c.is_ascii_digit());
    if !is_id(word) || !(is_ksuid || is_short) {
        let is_trace = word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        return is_trace.then(|| trace(word));
    }
    Some(match prefix {
        "usr" | "bot" => by(word),
        "ak" => key(word),
        "ev" => event(word),
        "op" => request(word),
        "ep" => object(word),
        _ if is_ksuid => object(word),
        _ => return None,
    })
}

fn is_id(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !text.is_empty() && text.len() <= 256 && text.bytes().all(is_part)
}

fn object(id: &str) -> Meaning {
    Meaning {
        facet: "object",
        label: format!("object {}", shown(id)),
        effect: Effect::Object(id.to_owned()),
    }
}

fn by(value: &str) -> Meaning {
    let is_actor = is_id(value) && (value.starts_with("usr_") || value.starts_with("bot_"));
    if is_actor {
        return Meaning {
            facet: "by",
            label: format!("by {}", shown(value)),
            effect: Effect::Actor(value.to_owned()),
        };
    }
    any("by", value, condition::of_subject(value))
}

fn key(id: &str) -> Meaning {
    let of_key = Condition::of("ev.id", &format!(" == {}", quoted(id)));
    any("key", id, of_key.or(condition::of_credential(id)))
}

fn event(id: &str) -> Meaning {
    any(
        "event",
        id,
        Condition::always(format!("event_id == {}", quoted(id))),
    )
}

fn trace(id: &str) -> Meaning {
    let test = format!(" == {}", quoted(&id.to_ascii_lowercase()));
    any("trace", id, Condition::of(TRACE, &test))
}

fn request(id: &str) -> Meaning {
    any(
        "request",
        id,
        condition::of_context("operation_id", &format!(" == {}", quoted(id))),
    )
}

fn reason(value: &str) -> Option<Meaning> {
    let name = value.to_ascii_lowercase();
    let is_known = Reason::ALL.iter().any(|reason| reason.name() == name);
    let condition = Condition::of(REASON, &format!(" == {}", quoted(&name)));
    is_known.then(|| any("reason", &name, condition))
}

/// Responses of the class 5xx, and requests that failed for another reason.
fn failed() -> Meaning {
    let condition = Condition::of_nullable(STATUS, " >= 500").or(Condition::of(REASON, " != \"\""));
    Meaning {
        facet: "error",
        label: "failed".to_owned(),
        effect: Effect::AnyOf(condition),
    }
}

/// Kinds whose names are listed one by one in a condition.
const KINDS_LISTED_MAX: usize = 12;

fn kind(value: &str, context: &WordsContext<'_>) -> Result<Meaning, String> {
    let traffic: Vec<String> = kinds::ALL.iter().map(|kind| quoted(kind.name)).collect();
    let of_traffic = format!("event_type in [{}]", traffic.join(", "));
    let name = value.to_ascii_lowercase();
    let named = |condition: String| Ok(any("type", &name, Condition::always(condition)));
    match name.as_str() {
        "traffic" => return named(of_traffic),
        "audit" => return named(format!("!({of_traffic})")),
        "http" | "request" => return named(format!("event_type == {}", traffic[0])),
        "tcp" | "connection" => return named(format!("event_type == {}", traffic[1])),
        _ => {}
    }
    let plain = name.trim_end_matches(".v0").replace([' ', '-'], "_");
    let whole = format!("{plain}.v0");
    if context.kinds.contains(&whole.as_str()) {
        return named(format!("event_type == {}", quoted(&whole)));
    }
    let has_part = |kind: &&&str| kind.contains(&plain);
    let found: Vec<String> = (context.kinds.iter().filter(has_part))
        .map(|kind| quoted(kind))
        .collect();
    match found.len() {
        0 => {
            let nearest = context
                .kinds
                .iter()
                .map(|kind| (distance(kind, &whole), *kind))
                .min();
            let nearest = nearest.map_or("", |(_, kind)| kind);
            Err(format!(
                "no event type contains `{}`; did you mean `{nearest}`?",
                shown(value)
            ))
        }
        1..=KINDS_LISTED_MAX => named(format!("event_type in [{}]", found.join(", "))),
        _ => named(format!("event_type.contains({})", quoted(&plain))),
    }
}

/// A text in any of the fields that people remember.
fn text(value: &str) -> Meaning {
    let test = contains(value);
    let of_name = Condition::new(
        format!("ev.name{test}"),
        format!("has(ev.name) && type(ev.name) == string && ev.name{test}"),
    );
    let of_id = Condition::new(
        format!("ev.id{test}"),
        format!("has(ev.id) && type(ev.id) == string && ev.id{test}"),
    );
    let of_subject = Condition::new(
        format!("principal.subject{test}"),
        format!("principal != null && principal.subject{test}"),
    );
    let condition = Condition::of(URL, &test)
        .or(Condition::of(SERVER_NAME, &test))
        .or(Condition::of_nullable(USER_AGENT, &test))
        .or(Condition::always(format!("endpoint_id{test}")))
        .or(Condition::always(format!("event_type{test}")))
        .or(of_name)
        .or(of_id)
        .or(of_subject);
    Meaning {
        facet: "text",
        label: format!("text \u{201c}{}\u{201d}", shown(value)),
        effect: Effect::Each(condition),
    }
}
