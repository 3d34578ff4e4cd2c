//! The variables of policy expressions: one table, for the checker, for evaluation and for the
//! reference.
//!
//! A variable is evaluated when an expression first reads it in a phase. Borrowed values cost nothing; others, such as
//! maps of header fields, are built only for policies that read them. Variables show messages as received, without the
//! changes of actions.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use culvert_cel::{Key, Resolver, Slot, Type, Value, ValueRef};
use culvert_http::authority::{Authority, ReceivedAuthority};
use culvert_http::target::Received;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, LOCATION,
    SET_COOKIE, USER_AGENT,
};
use http::{Version, request};

use crate::policy::certificate;
use crate::policy::cookies;
use crate::policy::exchange::Exchange;
use crate::policy::handshake;
use crate::policy::phase::Phase;
use crate::policy::values::{decoded, map, moment, query_parameters, text, texts};
use culvert_ip_data::{IpData, IpField, Scalar};

/// A variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name in expressions.
    pub path: Cow<'static, str>,
    /// Its type.
    pub of: Type,
    /// The first phase that has it; later ones do too.
    pub since: Phase,
    /// Its description in the reference.
    pub doc: &'static str,
    /// When its value is known.
    pub filled: Filled,
    read: Reader,
}

/// When a variable has a value. Otherwise a string, list or map is empty, a number is 0, a bool is false, and other
/// types are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// On every connection, in every phase that has it.
    Always,
    /// Where the setting `region` is set.
    Region,
    /// On TLS connections, if the client sends SNI: endpoints with the scheme https or tls.
    ServerName,
    /// On connections to https endpoints.
    Tls,
    /// On such connections that resume a TLS session.
    Resumed,
    /// On such connections, if the edge's certificate has it.
    ServerCertificate,
    /// On such connections, if the client presents a certificate that has it.
    ClientCertificate,
    /// If the IP data has it.
    Data(IpField),
    /// If the request or the response has it.
    Message,
    /// After the action that sets it.
    Actions,
    /// In the response phase, if the request has it.
    Answered,
    /// Never: this build does not support it, and rejects policies that name it.
    Never,
    /// Policies cannot name it.
    Hidden,
}

impl Filled {
    /// Its text in the reference.
    pub fn text(self) -> Cow<'static, str> {
        match self {
            Self::Always => "always".into(),
            Self::Region => "if the setting `region` is set".into(),
            Self::ServerName => "https and tls, if the client sends SNI".into(),
            Self::Tls => "https".into(),
            Self::Resumed => "https, when a TLS session is resumed".into(),
            Self::ServerCertificate => "https, if the certificate has it".into(),
            Self::ClientCertificate => {
                "https, if the client presents a certificate that has it".into()
            }
            Self::Data(field) => format!("with {}", field.source()).into(),
            Self::Message => "if the message has it".into(),
            Self::Actions => "after the action that sets it".into(),
            Self::Answered => "`on_http_response`, if the request has it".into(),
            Self::Never => "never: refused".into(),
            Self::Hidden => "".into(),
        }
    }
}

/// Every variable. Its index is its slot.
pub static ALL: LazyLock<Vec<Variable>> = LazyLock::new(all);

/// The slot of a variable of the table.
pub fn slot(path: &str) -> Slot {
    let place = ALL.iter().position(|variable| variable.path == path);
    let place = place.unwrap_or_else(|| panic!("no variable `{path}`"));
    Slot::try_from(place).expect("the table is short")
}

/// The name of a variable of the table; empty for a slot of a retry condition.
pub fn path(slot: Slot) -> &'static str {
    let variable = ALL.get(usize::from(slot));
    variable.map_or("", |variable| &variable.path)
}

/// The value of a slot.
fn read<'a>(slot: Slot, x: &'a Exchange<'_>) -> Option<Read<'a>> {
    (ALL.get(usize::from(slot))?.read)(x)
}

/// The field of the IP data that a slot reads.
pub fn data(slot: Slot) -> Option<(&'static Variable, IpField)> {
    let variable = ALL.get(usize::from(slot))?;
    match variable.filled {
        Filled::Data(field) => Some((variable, field)),
        _ => None,
    }
}

/// The variable of a slot, if it never has a value in a phase.
pub(crate) fn unfilled(slot: Slot, phase: Phase) -> Option<&'static Variable> {
    let variable = ALL.get(usize::from(slot))?;
    let is_unfilled = match variable.filled {
        Filled::Never => true,
        Filled::Answered => phase != Phase::Response,
        _ => false,
    };
    is_unfilled.then_some(variable)
}

/// The slots of `attempts` and `last_attempt`, which exist in retry conditions only.
pub fn retry_slots() -> [Slot; 2] {
    let first = Slot::try_from(ALL.len()).expect("the table is short");
    [first, first + 1]
}

/// A borrowed value, or a computed one.
#[derive(Debug)]
enum Read<'a> {
    There(ValueRef<'a>),
    Made(Value),
}

/// The variables of `set-vars` in this phase.
pub(crate) const VARS: &str = "vars";
/// The results of actions.
pub const ACTIONS: &str = "actions";
/// Random bits, new at each reading. Expressions cannot name it.
pub(crate) const RANDOM: &str = "(random)";

/// Secrets of the account, by vault and name. Expressions cannot name it.
pub(crate) const SECRETS: &str = "(secrets)";

type Reader = for<'a, 'x> fn(&'a Exchange<'x>) -> Option<Read<'a>>;

fn all() -> Vec<Variable> {
    let mut rows: Vec<Variable> = Vec::new();
    let mut row = |since: Phase, path: Cow<'static, str>, of: &str, doc, filled, read: Reader| {
        let of = Type::parse(of).unwrap_or_else(|| panic!("no type: {of}"));
        rows.push(Variable {
            path,
            of,
            since,
            doc,
            filled,
            read,
        });
    };
    connection(&mut |path, of, doc, filled, read| {
        row(Phase::Connect, path.into(), of, doc, filled, read)
    });
    addresses(&mut |path, of, doc, filled, read| {
        row(Phase::Connect, path.into(), of, doc, filled, read)
    });
    session(&mut |path, of, doc, filled, read| {
        row(Phase::Request, path.into(), of, doc, filled, read)
    });
    certificates(&mut |path, of, doc, filled, read| {
        row(Phase::Request, path.into(), of, doc, filled, read)
    });
    of_requests(&mut |path, of, doc, filled, read| {
        row(Phase::Request, path.into(), of, doc, filled, read)
    });
    of_responses(&mut |path, of, doc, filled, read| {
        row(Phase::Response, path.into(), of, doc, filled, read)
    });
    rows
}

type Row<'r> = &'r mut dyn FnMut(&'static str, &'static str, &'static str, Filled, Reader);

/// `conn`, `endpoint`, `time`, `vars`, `actions`.
#[rustfmt::skip]
fn connection(row: Row<'_>) {
    row("conn.client_ip", "string", "Source address of the client's connection. Never taken from a header.", Filled::Always, |x| there(x.conn.info.addresses().0));
    row("conn.client_port", "int", "Its source port.", Filled::Always, |x| int(x.conn.info.client.port()));
    row("conn.server_ip", "string", "Address the connection came in on.", Filled::Always, |x| there(x.conn.info.addresses().1));
    row("conn.server_port", "int", "Port the connection came in on.", Filled::Always, |x| int(x.conn.info.server.port()));
    row("conn.server_region", "string", "Region of the node (`region`).", Filled::Region, |x| there(&x.conn.services.region));
    row("conn.bytes_in", "int", "Bytes received on the connection so far.", Filled::Always, |x| int(x.conn.counters.bytes().0));
    row("conn.bytes_out", "int", "Bytes sent on the connection so far.", Filled::Always, |x| int(x.conn.counters.bytes().1));
    row("conn.ts.start", "timestamp", "When the connection was accepted.", Filled::Always, |x| computed(moment(x.conn.info.started_at())));
    macro_rules! place {
        ($($field:literal $of:ident $doc:literal)+) => {
            $(row(concat!("conn.geo.", $field), "string", $doc, Filled::Data(IpField::$of), |x| x.ip_field(x.conn.info.client.ip(), IpField::$of));)+
        };
    }
    place!(
        "city" City "City of the client, in English."
        "country" Country "Country of the client, in English."
        "country_code" CountryCode "Its ISO 3166-1 code."
        "latitude" Latitude "Latitude in degrees."
        "longitude" Longitude "Longitude in degrees."
        "radius" Radius "Accuracy radius in kilometres."
        "subdivision" Subdivision "Largest part of the country, in English."
    );
    row("conn.tls.sni", "string", "Server name (SNI) of the client's TLS handshake; empty without TLS.", Filled::ServerName, |x| there(x.conn.info.sni()));
    row("endpoint.id", "string", "Id of the endpoint.", Filled::Always, |x| there(x.endpoint.id));
    row("endpoint.host", "string", "Host of the endpoint.", Filled::Always, |x| there(x.endpoint.host));
    row("endpoint.port", "int", "Public port of the endpoint.", Filled::Always, |x| int(x.endpoint.port));
    row("endpoint.addr", "string", "Host and port of the endpoint.", Filled::Always, |x| owned(format!("{}:{}", x.endpoint.host, x.endpoint.port)));
    row("endpoint.protocol", "string", "Scheme of the endpoint: `http`, `https`, `tls` or `tcp`.", Filled::Always, |x| there(x.endpoint.scheme.name()));
    row("endpoint.url", "string", "Address of the endpoint as a URL.", Filled::Always, |x| owned(x.endpoint.url()));
    row("time.now", "string", "Current time: RFC 3339, UTC. Compare with `timestamp(time.now)`.", Filled::Always, |x| owned(x.conn.info.now().to_string()));
    row(VARS, "map(string, dyn)", "Variables that set-vars set in this phase.", Filled::Actions, |x| computed(map(x.memory.vars.iter().map(|(name, value)| (name.as_str(), value.clone())).collect())));
    row(ACTIONS, "dyn", "Results of the actions that ran, as `actions.ngrok.<action>` or `actions.culvert.<action>`.", Filled::Actions, |x| computed(x.memory.results()));
    row(RANDOM, "int", "", Filled::Hidden, |x| int(x.random()));
    row(SECRETS, "map(string, dyn)", "", Filled::Hidden, |x| computed(x.policy.secrets()));
}

/// The IP data of an address.
#[rustfmt::skip]
fn addresses(row: Row<'_>) {
    macro_rules! address {
        ($whose:literal, $end:ident) => {
            row(concat!("conn.", $whose, ".as.number"), "int", "Autonomous system number of the address.", Filled::Data(IpField::AsNumber), |x| x.number(x.conn.info.$end.ip(), IpField::AsNumber));
            address!($whose, $end, "as" "organization" AsOrganization "Operator of the autonomous system.");
            row(concat!("conn.", $whose, ".categories"), "list(string)", "Categories of the address, including parent categories: `com.cloudflare` is in `com`.", Filled::Data(IpField::Categories), |x| computed(x.categories(x.conn.info.$end.ip())));
            row(concat!("conn.", $whose, ".is_on_blocklist"), "bool", "Whether it is in the category `blocklist`.", Filled::Data(IpField::Blocklist), |x| x.truth(x.conn.info.$end.ip(), IpField::Blocklist));
            row(concat!("conn.", $whose, ".is_tor_node"), "bool", "Whether it is in the category `tor`.", Filled::Data(IpField::Tor), |x| x.truth(x.conn.info.$end.ip(), IpField::Tor));
            row(concat!("conn.", $whose, ".geo.location.is_eu"), "bool", "Whether the address is in the European Union.", Filled::Data(IpField::IsEu), |x| x.truth(x.conn.info.$end.ip(), IpField::IsEu));
            row(concat!("conn.", $whose, ".geo.registered_location.is_eu"), "bool", "Whether it is registered in the European Union.", Filled::Data(IpField::RegisteredIsEu), |x| x.truth(x.conn.info.$end.ip(), IpField::RegisteredIsEu));
            address!($whose, $end, "geo.location"
                "city" City "City of the address, in English."
                "continent" Continent "Continent, in English."
                "country" Country "Country, in English."
                "country_code" CountryCode "ISO 3166-1 code of the country."
                "latitude" Latitude "Latitude in degrees."
                "longitude" Longitude "Longitude in degrees."
                "metro_code" MetroCode "Code of the metropolitan area, in the United States."
                "postal_code" PostalCode "Postal code."
                "radius" Radius "Accuracy radius in kilometres."
                "subdivision" Subdivision "Largest part of the country, in English."
                "timezone" Timezone "Time zone, such as `Europe/Vienna`.");
            address!($whose, $end, "geo.registered_location"
                "city" RegisteredCity "City in which the address is registered."
                "continent" RegisteredContinent "Continent of the registration."
                "country" RegisteredCountry "Country of the registration, in English."
                "country_code" RegisteredCountryCode "ISO 3166-1 code of that country."
                "metro_code" RegisteredMetroCode "Code of the metropolitan area of the registration."
                "postal_code" RegisteredPostalCode "Postal code of the registration."
                "subdivision" RegisteredSubdivision "Part of the country of the registration."
                "timezone" RegisteredTimezone "Time zone of the registration.");
        };
        ($whose:literal, $end:ident, $part:literal $($field:literal $of:ident $doc:literal)+) => {
            $(row(concat!("conn.", $whose, ".", $part, ".", $field), "string", $doc, Filled::Data(IpField::$of), |x| x.ip_field(x.conn.info.$end.ip(), IpField::$of));)+
        };
    }
    address!("client_ip", client);
    address!("server_ip", server);
}

/// `conn.tls` after the handshake.
#[rustfmt::skip]
fn session(row: Row<'_>) {
    row("conn.tls.version", "string", "`1.2` or `1.3`; empty without TLS.", Filled::Tls, |x| there(handshake::of(x.conn.info).map_or("", |handshake| handshake.version())));
    row("conn.tls.cipher_suite", "string", "IANA name of the cipher suite; empty without TLS.", Filled::Tls, |x| there(handshake::of(x.conn.info).map_or("", |handshake| handshake.cipher_suite())));
    row("conn.tls.negotiated_alpn", "string", "`h2` or `http/1.1`; empty without TLS.", Filled::Tls, |x| there(match (handshake::of(x.conn.info), x.request) {
        (Some(_), Some(request)) if request.version == Version::HTTP_2 => "h2",
        (Some(_), _) => "http/1.1",
        _ => "",
    }));
    row("conn.tls.session_resumed", "bool", "Whether the TLS session is resumed from an earlier connection.", Filled::Resumed, |x| flag(handshake::of(x.conn.info).is_some_and(|handshake| handshake.is_resumed)));
}

/// `conn.tls.client` and `conn.tls.server`: the certificates of a handshake.
#[rustfmt::skip]
fn certificates(row: Row<'_>) {
    macro_rules! certificate {
        ($of:literal, $whose:literal, $filled:ident, $read:ident; $($path:literal $kind:literal $doc:literal)+) => {
            $(row(concat!("conn.tls.", $of, ".", $path), $kind, concat!($whose, ": ", $doc), Filled::$filled, |x| computed(certificate::field(handshake::$read(x.conn.info)?, $path)?));)+
        };
        ($of:literal, $whose:literal, $filled:ident, $read:ident) => {
            certificate!($of, $whose, $filled, $read;
                "serial_number" "string" "serial number, lower-case hexadecimal."
                "signature_algorithm" "string" "signature algorithm, such as `SHA256-RSA`."
                "extensions" "list(map(string, dyn))" "extensions, each with `id`, `critical` and `value`."
                "validity.not_before" "timestamp" "start of validity."
                "validity.not_after" "timestamp" "end of validity."
                "san" "string" "alternative names, comma-separated."
                "san.dns_names" "list(string)" "DNS alternative names."
                "san.email_addresses" "list(string)" "e-mail alternative names."
                "san.ip_addresses" "list(string)" "IP alternative names."
                "san.uris" "list(string)" "URI alternative names.");
            certificate!($of, $whose, $filled, $read, "issuer" "issuer" "subject" "subject");
        };
        ($of:literal, $whose:literal, $filled:ident, $read:ident, $($name:literal $doc:literal)+) => {
            $(certificate!($of, $whose, $filled, $read; $name "string" "distinguished name in RFC 2253 form.");
            row(concat!("conn.tls.", $of, ".", $name, ".common_name"), "string", concat!($whose, ": common name of the ", $doc, "."), Filled::$filled, |x| computed(certificate::field(handshake::$read(x.conn.info)?, concat!($name, ".common_name"))?));
            certificate!(@lists $of, $whose, $filled, $read, $name; "country" "locality" "organization" "organizational_unit" "postal_code" "province" "street_address");)+
        };
        (@lists $of:literal, $whose:literal, $filled:ident, $read:ident, $name:literal; $($part:literal)+) => {
            $(row(concat!("conn.tls.", $of, ".", $name, ".", $part), "list(string)", concat!($whose, ": parts of the ", $name, "."), Filled::$filled, |x| computed(certificate::field(handshake::$read(x.conn.info)?, concat!($name, ".", $part))?));)+
        };
    }
    certificate!("client", "Client certificate; absent if the client presented none", ClientCertificate, client_certificate; "pem" "string" "PEM.");
    certificate!("client", "Client certificate; absent if the client presented none", ClientCertificate, client_certificate);
    certificate!("server", "Server certificate that the edge presented; absent without TLS", ServerCertificate, server_certificate);
}

/// `req`.
#[rustfmt::skip]
fn of_requests(row: Row<'_>) {
    row("req.method", "string", "Method as received.", Filled::Always, |x| there(x.request?.method.as_str()));
    row("req.version", "string", "`HTTP/1.1` or `HTTP/2.0`.", Filled::Always, |x| there(match x.request?.version {
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_10 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }));
    row("req.host", "string", "Host in lower case, without port and trailing dot, as the request was routed by it.", Filled::Always, |x| either(x.host()?));
    row("req.headers", "map(string, list(string))", "Header fields; names in lower case.", Filled::Always, |x| computed(headers(&x.request?.headers)));
    row("req.trailers", "map(string, list(string))", "Trailer fields. Absent in practice, because no phase waits for the end of the body.", Filled::Never, |_| computed(map(Vec::new())));
    row("req.cookies", "map(string, list(map(string, string)))", "Cookies by name, each with `name` and `value`.", Filled::Message, |x| computed(cookies::of_request(&x.request?.headers)));
    row("req.content_encoding", "list(string)", "Content-Encoding, outermost last.", Filled::Message, |x| computed(list(&x.request?.headers, &CONTENT_ENCODING)));
    row("req.content_length", "int", "Content-Length; absent when unknown.", Filled::Message, |x| length(&x.request?.headers));
    row("req.content_type", "string", "Media type of the body, without parameters.", Filled::Message, |x| owned(media_type(&x.request?.headers)));
    row("req.content_type.parameters", "map(string, string)", "Its parameters.", Filled::Message, |x| computed(parameters(&x.request?.headers)));
    row("req.content_type.raw", "string", "The full field value.", Filled::Message, |x| computed(first(&x.request?.headers, &CONTENT_TYPE)));
    row("req.location", "string", "Location header; empty without one.", Filled::Message, |x| computed(first(&x.request?.headers, &LOCATION)));
    row("req.ts.header_received", "timestamp", "When the request head was complete.", Filled::Always, |x| computed(moment(x.memory.began)));
    row("req.ts.body_received", "timestamp", "When the body was complete. Absent without a body, and until it is complete.", Filled::Answered, |x| computed(moment(x.body_received()?)));
    row("req.url", "string", "Full normalised URL: host in lower case, no default port, path and query as forwarded.", Filled::Always, |x| owned(x.url()?));
    row("req.url.raw", "string", "Full URL as received, with bytes beyond ASCII, `<`, `>` and backticks escaped.", Filled::Always, |x| owned(x.raw_url()?));
    row("req.url.scheme", "string", "`https` if the client's connection is TLS, otherwise `http`.", Filled::Always, |x| there(x.scheme()));
    row("req.url.authority", "string", "Host and port as received.", Filled::Always, |x| there(received_authority(x.request?)));
    row("req.url.host", "string", "Equal to `req.host`.", Filled::Always, |x| either(x.host()?));
    row("req.url.port", "int", "Explicit port; absent if the URL has none.", Filled::Message, |x| x.authority()?.port().and_then(int));
    row("req.url.path", "string", "Path as forwarded: normalised by RFC 3986 6.2.2, without `.` and `..` segments and with unreserved characters decoded; `\\` becomes `/`, and `//` becomes `/` unless `merge_slashes` of the endpoint is off. `*` for `OPTIONS *`.", Filled::Always, |x| there(x.request?.uri.path()));
    row("req.url.raw_path", "string", "Path as received, with bytes beyond ASCII, `<`, `>` and backticks escaped.", Filled::Always, |x| there(raw_path(x.request?)));
    row("req.url.query", "string", "Query as forwarded; empty without one.", Filled::Message, |x| there(x.request?.uri.query().unwrap_or_default()));
    row("req.url.query_params", "map(string, list(string))", "Parameters of the query, decoded.", Filled::Message, |x| computed(query_parameters(x.request?.uri.query().unwrap_or_default())));
    row("req.url.uri", "string", "Path and query as forwarded.", Filled::Always, |x| there(x.request?.uri.path_and_query()?.as_str()));
    row("req.url.user_password", "string", "Always empty, because URLs with credentials are rejected.", Filled::Never, |_| none());
    row("req.user_agent", "string", "User-Agent header; empty without one.", Filled::Message, |x| computed(first(&x.request?.headers, &USER_AGENT)));
    row("req.user_agent.name", "string", "Always empty, because this build does not parse user agents.", Filled::Never, |_| none());
    row("req.user_agent.version", "string", "The same.", Filled::Never, |_| none());
    row("req.user_agent.os", "string", "The same.", Filled::Never, |_| none());
    row("req.user_agent.os_version", "string", "The same.", Filled::Never, |_| none());
    row("req.user_agent.device", "string", "The same.", Filled::Never, |_| none());
    row("req.user_agent.url", "string", "The same.", Filled::Never, |_| none());
    row("req.user_agent.is_mobile", "bool", "Always false, because this build does not parse user agents.", Filled::Never, |_| flag(false));
    row("req.user_agent.is_tablet", "bool", "The same.", Filled::Never, |_| flag(false));
    row("req.user_agent.is_desktop", "bool", "The same.", Filled::Never, |_| flag(false));
    row("req.user_agent.is_bot", "bool", "The same.", Filled::Never, |_| flag(false));
}

/// `res`.
#[rustfmt::skip]
fn of_responses(row: Row<'_>) {
    row("res.status_code", "int", "Status of the response.", Filled::Always, |x| int(x.response?.status.as_u16()));
    row("res.headers", "map(string, list(string))", "Header fields; names in lower case.", Filled::Always, |x| computed(headers(&x.response?.headers)));
    row("res.trailers", "map(string, list(string))", "Trailer fields. Absent in practice, because no phase waits for the end of the body.", Filled::Never, |_| computed(map(Vec::new())));
    row("res.content_length", "int", "Content-Length; absent when unknown.", Filled::Message, |x| length(&x.response?.headers));
    row("res.content_encoding", "list(string)", "Content-Encoding, outermost last.", Filled::Message, |x| computed(list(&x.response?.headers, &CONTENT_ENCODING)));
    row("res.content_type", "string", "Media type of the body, without parameters.", Filled::Message, |x| owned(media_type(&x.response?.headers)));
    row("res.content_type.parameters", "map(string, string)", "Its parameters.", Filled::Message, |x| computed(parameters(&x.response?.headers)));
    row("res.content_type.raw", "string", "The full field value.", Filled::Message, |x| computed(first(&x.response?.headers, &CONTENT_TYPE)));
    row("res.location", "string", "Location header; empty without one.", Filled::Message, |x| computed(first(&x.response?.headers, &LOCATION)));
    row("res.cookies", "map(string, list(dyn))", "Cookies that the response sets, by name, longest path first.", Filled::Message, |x| computed(cookies::of_response(x.response?.headers.get_all(SET_COOKIE).iter().map(decoded))));
}

fn there<'a>(value: &'a str) -> Option<Read<'a>> {
    Some(Read::There(ValueRef::String(value)))
}

fn int<'a>(value: impl TryInto<i64>) -> Option<Read<'a>> {
    value
        .try_into()
        .ok()
        .map(|value| Read::There(ValueRef::Int(value)))
}

fn flag<'a>(value: bool) -> Option<Read<'a>> {
    Some(Read::There(ValueRef::Bool(value)))
}

fn computed<'a>(value: Value) -> Option<Read<'a>> {
    Some(Read::Made(value))
}

fn owned<'a>(value: impl AsRef<str>) -> Option<Read<'a>> {
    computed(Value::from(value.as_ref()))
}

fn either(text: Cow<'_, str>) -> Option<Read<'_>> {
    match text {
        Cow::Borrowed(text) => there(text),
        Cow::Owned(text) => owned(text),
    }
}

fn none<'a>() -> Option<Read<'a>> {
    there("")
}

/// Host and port as received.
fn received_authority(request: &request::Parts) -> &str {
    let received = request.extensions.get::<ReceivedAuthority>();
    received.map_or_else(|| authority(request), ReceivedAuthority::text)
}

/// Host and port as they are sent, in normal form once the request was routed.
fn authority(request: &request::Parts) -> &str {
    match request.uri.authority() {
        Some(authority) => authority.as_str(),
        None => request
            .headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .unwrap_or_default(),
    }
}

/// Path and query as they are sent. That of `OPTIONS *` has neither (RFC 9112 3.3).
fn target(request: &request::Parts) -> &str {
    let target = request.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    if target == "*" { "" } else { target }
}

/// The path as received.
fn raw_path(request: &request::Parts) -> &str {
    let received = request.extensions.get::<Received>();
    received.map_or_else(|| request.uri.path(), Received::path)
}

/// Fields by name.
pub fn headers(headers: &HeaderMap) -> Value {
    let entries = headers.keys().map(|name| {
        let values = headers.get_all(name).iter();
        let values: Arc<[Value]> = values.map(|value| Value::from(&*decoded(value))).collect();
        (Key::String(name.as_str().into()), Value::List(values))
    });
    // A header map has each name once.
    Value::Map(Arc::new(
        culvert_cel::Map::new(entries.collect()).unwrap_or_default(),
    ))
}

fn first(headers: &HeaderMap, name: &HeaderName) -> Value {
    headers
        .get(name)
        .map_or_else(|| Value::from(""), |value| Value::from(&*decoded(value)))
}

fn length<'a>(headers: &HeaderMap) -> Option<Read<'a>> {
    int(headers
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse::<i64>()
        .ok()?)
}

/// The members of a list field, in lower case.
fn list(headers: &HeaderMap, name: &HeaderName) -> Value {
    let lines: Vec<Cow<'_, str>> = headers.get_all(name).iter().map(decoded).collect();
    let members = lines.iter().flat_map(|line| line.split(',')).map(str::trim);
    let members = members
        .filter(|member| !member.is_empty())
        .map(str::to_ascii_lowercase);
    Value::List(members.map(|member| Value::from(member.as_str())).collect())
}

/// The media type of a body, in lower case.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let raw = text(first(headers, &CONTENT_TYPE).borrow());
    raw.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

fn parameters(headers: &HeaderMap) -> Value {
    let raw = text(first(headers, &CONTENT_TYPE).borrow());
    let parameters = raw.split(';').skip(1).filter_map(|part| {
        let (name, value) = part.split_once('=')?;
        Some((
            name.trim().to_ascii_lowercase(),
            value.trim().trim_matches('"').to_owned(),
        ))
    });
    let parameters: Vec<(String, String)> = parameters.collect();
    map(parameters
        .iter()
        .map(|(name, value)| (name.as_str(), Value::from(value.as_str())))
        .collect())
}

/// A field of the IP data as text; empty if there is none.
fn shown<'a>(value: Option<Scalar<'_>>) -> Option<Read<'a>> {
    match value {
        None => none(),
        Some(Scalar::Text(text)) => owned(text),
        Some(Scalar::Int(number)) => owned(number.to_string()),
        Some(Scalar::Double(number)) => owned(number.to_string()),
        Some(Scalar::Bool(value)) => owned(value.to_string()),
    }
}

impl Resolver for Exchange<'_> {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let cell = self.values.get(self.policy.cell(slot)?)?;
        if let Some(value) = cell.get() {
            return Some(value.borrow());
        }
        match read(slot, self)? {
            Read::There(value) => Some(value),
            Read::Made(value) => Some(cell.get_or_init(|| value).borrow()),
        }
    }
}

impl Exchange<'_> {
    fn ip_field(&self, address: IpAddr, field: IpField) -> Option<Read<'_>> {
        self.with_ip_data(|data| shown(data.get(field, address)))
    }

    fn number(&self, address: IpAddr, field: IpField) -> Option<Read<'_>> {
        let value = self.with_ip_data(|data| match data.get(field, address) {
            Some(Scalar::Int(number)) => number,
            _ => 0,
        });
        int(value)
    }

    fn truth(&self, address: IpAddr, field: IpField) -> Option<Read<'_>> {
        let is_so = |data: &IpData| data.get(field, address) == Some(Scalar::Bool(true));
        flag(self.with_ip_data(is_so))
    }

    fn categories(&self, address: IpAddr) -> Value {
        self.with_ip_data(|data| texts(data.categories(address)))
    }

    /// `https` if the client's connection is TLS, else `http`.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls_assumed || self.conn.info.tls.get().is_some() {
            "https"
        } else {
            "http"
        }
    }

    /// The URL as received.
    fn raw_url(&self) -> Option<String> {
        let request = self.request?;
        let target = match request.extensions.get::<Received>() {
            Some(received) => received.target(),
            None => target(request),
        };
        let (scheme, authority) = (self.scheme(), received_authority(request));
        Some(format!("{scheme}://{authority}{target}"))
    }

    /// The URL for the upstream: host and port in normal form, path and query as forwarded.
    pub fn sent_url(&self) -> Option<String> {
        let (scheme, target) = (self.scheme(), target(self.request?));
        Some(match self.authority() {
            Some(authority) => format!("{scheme}://{}{target}", authority.normal()),
            None => format!("{scheme}://{target}"),
        })
    }

    /// The URL that the client was configured with: host and port as received, path and query as forwarded.
    pub fn public_url(&self) -> Option<String> {
        let request = self.request?;
        let (scheme, authority) = (self.scheme(), received_authority(request));
        Some(format!("{scheme}://{authority}{}", target(request)))
    }

    /// The whole URL, normalised.
    fn url(&self) -> Option<String> {
        let (scheme, host) = (self.scheme(), self.host()?);
        let default = if scheme == "https" { 443 } else { 80 };
        let port = self.authority()?.port().filter(|port| *port != default);
        let target = target(self.request?);
        Some(match port {
            Some(port) => format!("{scheme}://{host}:{port}{target}"),
            None => format!("{scheme}://{host}{target}"),
        })
    }

    /// Host and port.
    fn authority(&self) -> Option<Authority<'_>> {
        Authority::parse(authority(self.request?)).ok()
    }

    /// The host by which the request was routed: in lower case, without port and trailing dot. Every routed host has
    /// this form, so another spelling cannot bypass a rule.
    fn host(&self) -> Option<Cow<'_, str>> {
        let host = self.authority()?.host;
        Some(match host.contains(':') {
            true => Cow::Owned(format!("[{host}]")),
            false => host,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::environments::of;

    #[test]
    fn each_variable_is_listed_once_and_documented() {
        for (place, variable) in ALL.iter().enumerate() {
            assert_eq!(
                usize::from(slot(&variable.path)),
                place,
                "{}",
                variable.path
            );
            assert_eq!(
                variable.doc.is_empty(),
                variable.path.starts_with('('),
                "{}",
                variable.path
            );
        }
    }

    #[test]
    fn variables_are_available_in_their_phases() {
        for (text, since) in [
            ("conn.client_ip == '1'", Phase::Connect),
            ("conn.client_ip.is_tor_node", Phase::Connect),
            ("conn.client_ip.geo.location.city == ''", Phase::Connect),
            ("conn.tls.sni.endsWith('x')", Phase::Connect),
            ("conn.tls.version == '1.3'", Phase::Request),
            ("req.headers['x'][0] == 'y'", Phase::Request),
            ("has(req.content_length)", Phase::Request),
            ("'a' in req.url.query_params", Phase::Request),
            (
                "req.url.contains('x') && req.url.path == '/'",
                Phase::Request,
            ),
            ("res.status_code < 200", Phase::Response),
            (
                "timestamp(time.now) > timestamp('2026-01-01T00:00:00Z')",
                Phase::Connect,
            ),
            (
                "vars.a.b == 1 && actions.ngrok.basic_auth.credentials.authorized",
                Phase::Connect,
            ),
        ] {
            for phase in Phase::ALL {
                let compiled = of(phase).compile_predicate(text);
                assert_eq!(
                    compiled.is_ok(),
                    since <= phase,
                    "{text} {phase:?}: {compiled:?}"
                );
            }
        }
        for text in [
            "res.status_code < '200'",
            "req.nope == ''",
            "conn",
            "x.starts_with('a')",
        ] {
            assert!(
                of(Phase::Response).compile_predicate(text).is_err(),
                "{text}"
            );
        }
    }
}
