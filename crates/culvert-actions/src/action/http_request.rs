//! `http-request`: sends a request to another service and keeps the response for later expressions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Refusal, Share, code};
use culvert_cel::{Resolver, Slot, Value, ValueRef};
use culvert_policy::Scheme;
use culvert_policy::action_type::ActionType;
use culvert_policy::host::{Called, ConnContext, EndpointInfo, NotCalled, NotReached};
use culvert_policy::policy::context::{GoDuration, PolicyContext};
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::expression::Condition;
use culvert_policy::policy::phase::{Ends, Phase};
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::template::Template;
use culvert_policy::policy::values::map;
use culvert_policy::policy::variables;
use culvert_policy::problem::{Problem, is_edge_controlled, is_edges_request};
use culvert_policy::services::Call;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::fields::{Field, FieldTemplates};

const PARAMETERS_MAX: usize = 32;
const PARAMETER_KEY_BYTES_MAX: usize = 128;
const PARAMETER_VALUE_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 10;
const BODY_BYTES_MAX: usize = 64 << 10;
const REDIRECTS_MAX: u8 = 5;
const ATTEMPTS_MAX: i64 = 3;
/// The pause before a retry, multiplied by the attempts made.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 16 << 10;

pub(crate) static TYPE: ActionType = ActionType {
    name: "http-request",
    doc: "Calls another service and stores the response, whatever its status, for later expressions: `actions.ngrok.http_request.res` has `status_code`, `headers` and `body`; `error` has `code` and `message`, which are empty after a response; `attempts` is the number of attempts. It can call internal endpoints of the account, whose policies run but cannot make further calls. It can call public hosts only if the operator allows it (`policy.http_request_public`), and only at public addresses. A response may have at most 256 KiB. Without a response the request fails with 502, unless `on_error` is set to continue. If too many requests of policies are in progress, the request fails with 500 in any case; one endpoint has at most half of them, and its owner two thirds.",
    phases: &[Phase::Request, Phase::Response],
    schemes: &[Scheme::Http, Scheme::Https],
    ends: Ends::Sometimes,
    takes_secrets: &[
        ("headers", &[Phase::Request, Phase::Response]),
        ("body", &[Phase::Request, Phase::Response]),
    ],
    // Its result is what the service says, which the policy names.
    keeps_secrets: true,
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |context| Ok(Box::new(HttpRequest::compile(context)?)),
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HttpRequest")]
struct Config {
    /// URL of the request: `http` or `https`, a host that ends in `.internal`, and a path. Supports
    /// `${…}`.
    url: String,
    /// HTTP method; default `GET`.
    #[serde(default)]
    method: Option<Verb>,
    /// Parameters added to the query, at most 32.
    #[serde(default)]
    query_params: Vec<Parameter>,
    /// Header fields, at most 10. Values support `${…}`.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Body, at most 64 KiB. Supports `${…}`.
    #[serde(default)]
    body: Option<String>,
    /// Maximum number of redirects to follow: 0 to 5; default 0. The last response is the result.
    #[serde(default)]
    #[schemars(range(min = 0, max = 5))]
    max_redirects: Option<u8>,
    /// Total timeout: `1s` to `30s`; default `3s`.
    #[serde(default)]
    timeout: Option<GoDuration>,
    /// Expression that decides whether to retry. It can use `attempts` (the number of attempts) and
    /// `last_attempt` (with `res` and `error` as in the result). At most 3 attempts; default: no
    /// retry.
    #[serde(default)]
    retry_condition: Option<String>,
    /// Behaviour without a response: `halt` (default) returns 502; `continue` runs the next action.
    #[serde(default)]
    on_error: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parameter {
    /// Parameter name, at most 128 bytes.
    key: String,
    /// At most 8 KiB. Supports `${…}`.
    value: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
enum Verb {
    #[default]
    Get,
    Post,
    Put,
    Patch,
    Delete,
    Options,
}

#[derive(Debug)]
struct HttpRequest {
    url: Template,
    method: Method,
    parameters: Vec<(String, Template)>,
    headers: FieldTemplates,
    body: Template,
    redirects_max: u8,
    timeout: Duration,
    again: Option<Condition>,
    goes_on: bool,
}

/// The kind of host in a URL.
#[derive(Debug, PartialEq, Eq)]
enum Whom {
    Internal(Scheme, HostName, u16),
    Public,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// An expression of the request failed.
    #[error("an expression of the request failed")]
    Template,
    #[error("the URL is not the URL of an internal endpoint")]
    Target,
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    LongTarget,
    #[error("the internal endpoint does not exist")]
    NoEndpoint,
    #[error("the owner of the endpoint may not use the internal endpoint")]
    Forbidden,
    #[error("the policy of a called endpoint cannot call other endpoints")]
    Nested,
    #[error("too many policy requests of the endpoint or of its owner are in progress")]
    Busy,
    #[error("the request timed out")]
    TooSlow,
    #[error("{0}")]
    NotCalled(#[from] NotCalled),
}

impl Failed {
    fn problem(&self) -> Problem {
        match self {
            Self::Template => Problem::Policy,
            Self::Target | Self::LongTarget | Self::NoEndpoint => Problem::NoInternal,
            Self::Forbidden => Problem::InternalForbidden,
            Self::Nested => Problem::Hops,
            Self::Busy | Self::TooSlow | Self::NotCalled(_) => Problem::Call,
        }
    }

    /// Whether visitors can cause it at will, so that it must reject the request even with `on_error: continue`. A
    /// service that is slow, or responds with too much, is one that fails.
    fn is_limit(&self) -> bool {
        match self {
            Self::Busy | Self::LongTarget | Self::NotCalled(NotCalled::NoRoom) => true,
            Self::Template
            | Self::Target
            | Self::NoEndpoint
            | Self::Forbidden
            | Self::Nested
            | Self::TooSlow
            | Self::NotCalled(_) => false,
        }
    }
}

impl HttpRequest {
    fn compile(context: &PolicyContext<'_>) -> Result<Self, Refusal> {
        let config: Config = context.config()?;
        let allows_public = context.allows_public_calls();
        let url = context.template("url", &config.url)?;
        if let Some(text) = url.constant() {
            let whom = parse(text).and_then(|url| whom(&url));
            let why = match whom {
                Some(Whom::Internal(..)) => None,
                Some(Whom::Public) if allows_public => None,
                Some(Whom::Public) => Some(
                    "`url` must be the URL of an internal endpoint; the operator does not allow other URLs",
                ),
                None => Some("`url` must be an http or https URL, without user and password"),
            };
            if let Some(why) = why {
                return Err(context.refuse(code::POLICY_VALUE_INVALID, why));
            }
        }
        if !config.query_params.is_empty() {
            context.count("query_params", config.query_params.len(), PARAMETERS_MAX)?;
        }
        let mut parameters = Vec::with_capacity(config.query_params.len());
        for Parameter { key, value } in config.query_params {
            context.length("query_params.key", &key, PARAMETER_KEY_BYTES_MAX)?;
            context.length("query_params.value", &value, PARAMETER_VALUE_BYTES_MAX)?;
            parameters.push((key, context.template("query_params.value", &value)?));
        }
        let headers =
            FieldTemplates::compile(context, "headers", &config.headers, 0..=HEADERS_MAX)?;
        if let Some(name) = headers.names().find(|name| {
            is_edge_controlled(name) || **name == HOST || is_edges_request(name.as_str())
        }) {
            let why = format!("`headers.{name}`: the edge controls this header");
            return Err(context.refuse(code::POLICY_VALUE_INVALID, &why));
        }
        let body = config.body.unwrap_or_default();
        context.length("body", &body, BODY_BYTES_MAX)?;
        let redirects_max = config.max_redirects.unwrap_or(0);
        context.within("max_redirects", redirects_max, 0..=REDIRECTS_MAX)?;
        let timeout = config.timeout.unwrap_or(GoDuration::seconds(3));
        if !(GoDuration::seconds(1)..=GoDuration::seconds(30)).contains(&timeout) {
            return Err(context.refuse(
                code::POLICY_NUMBER_OUT_OF_RANGE,
                "`timeout` must be from 1s to 30s",
            ));
        }
        let again = config.retry_condition.as_deref();
        let again = again
            .map(|text| context.retry_condition("retry_condition", text))
            .transpose()?;
        let goes_on = match config.on_error.as_deref() {
            None | Some("halt") => false,
            Some("continue") => true,
            Some(_) => {
                return Err(context.refuse(
                    code::POLICY_VALUE_NOT_ALLOWED,
                    "`on_error` must be halt or continue",
                ));
            }
        };
        Ok(Self {
            url,
            method: match config.method.unwrap_or_default() {
                Verb::Get => Method::GET,
                Verb::Post => Method::POST,
                Verb::Put => Method::PUT,
                Verb::Patch => Method::PATCH,
                Verb::Delete => Method::DELETE,
                Verb::Options => Method::OPTIONS,
            },
            parameters,
            headers,
            body: context.template("body", &body)?,
            redirects_max,
            timeout: timeout.0,
            again,
            goes_on,
        })
    }

    /// Sends the request with retries, and returns the result.
    async fn ask(&self, x: &mut Exchange<'_>) -> Flow {
        let services = Arc::clone(x.conn.services);
        let mut attempts = 0;
        let asked = match services.calls.try_acquire(x.share()) {
            _ if x.memory.is_call => Err(Failed::Nested),
            Err(_) => Err(Failed::Busy),
            Ok(_permit) => {
                let attempts = self.attempts(x, &mut attempts);
                let within = tokio::time::timeout(self.timeout, attempts).await;
                within.unwrap_or(Err(Failed::TooSlow))
            }
        };
        if x.wants_results() {
            let mut fields = shown(asked.as_ref());
            fields.push(("attempts", Value::Int(attempts)));
            x.result("http_request", fields);
        }
        let failed = match asked {
            Ok(called) => {
                x.memory.call_room = Some(called.room);
                return Flow::Continue;
            }
            Err(failed) => failed,
        };
        tracing::debug!(
            endpoint.id = %x.endpoint.id,
            %failed,
            "http-request action failed"
        );
        if failed.is_limit() {
            x.limit_reached();
        }
        if self.goes_on {
            Flow::Continue
        } else {
            x.refuse(failed.problem())
        }
    }

    async fn attempts(&self, x: &mut Exchange<'_>, made: &mut i64) -> Result<Called, Failed> {
        let (call, share) = (self.call(x)?, x.share());
        loop {
            *made += 1;
            let last = self.attempt(x.conn, x.endpoint, share, call.clone()).await;
            if *made == ATTEMPTS_MAX || !self.wants_another(x, *made, last.as_ref()) {
                return last;
            }
            drop(last);
            tokio::time::sleep(PAUSE * u32::try_from(*made).unwrap_or(1)).await;
        }
    }

    /// Whether to retry. A condition that fails does not.
    fn wants_another(
        &self,
        x: &mut Exchange<'_>,
        made: i64,
        last: Result<&Called, &Failed>,
    ) -> bool {
        let Some(again) = &self.again else {
            return false;
        };
        let last = map(shown(last));
        let verdict = again.holds(x, &Attempt { x, made, last });
        verdict.unwrap_or(false)
    }

    /// The request, with its expressions evaluated.
    fn call(&self, x: &mut Exchange<'_>) -> Result<Call, Failed> {
        let text = self.url.strict(x).map_err(|_| Failed::Template)?;
        let mut url = parse(&text).ok_or(Failed::Target)?;
        if !self.parameters.is_empty() {
            let mut values = Vec::with_capacity(self.parameters.len());
            for (key, value) in &self.parameters {
                values.push((key, value.render(x).into_owned()));
            }
            url.query_pairs_mut().extend_pairs(values);
        }
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(Failed::LongTarget);
        }
        let mut headers = HeaderMap::new();
        for Field { name, value } in self.headers.render(x) {
            headers.append(name, value);
        }
        let body = Bytes::from(self.body.render(x).into_owned());
        if !body.is_empty() && !headers.contains_key(CONTENT_TYPE) {
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            headers.insert(CONTENT_TYPE, plain);
        }
        // A service must not get a request with a part that is missing because of a limit.
        if x.is_undecidable() {
            return Err(Failed::Template);
        }
        Ok(Call {
            method: self.method.clone(),
            url,
            headers,
            body,
        })
    }

    /// Sends the request once, and follows redirects.
    async fn attempt(
        &self,
        conn: ConnContext<'_>,
        from: EndpointInfo<'_>,
        share: Share,
        mut call: Call,
    ) -> Result<Called, Failed> {
        let mut redirects = 0;
        loop {
            let called = send(conn, from, share, call.clone()).await?;
            let has_secret_body = self.body.is_secret();
            if redirects == self.redirects_max || !follow(&mut call, &called, has_secret_body) {
                return Ok(called);
            }
            redirects += 1;
        }
    }
}

async fn send(
    conn: ConnContext<'_>,
    from: EndpointInfo<'_>,
    share: Share,
    call: Call,
) -> Result<Called, Failed> {
    match whom(&call.url) {
        Some(Whom::Internal(scheme, host, port)) => {
            let to = conn.host.internal(from, scheme, &host, port);
            let to = to.map_err(|why| match why {
                NotReached::Offline => Failed::NoEndpoint,
                NotReached::Forbidden => Failed::Forbidden,
            })?;
            Ok(conn.host.call(share, to, call).await?)
        }
        // Public calls may have been disabled since the policy was written.
        Some(Whom::Public) if conn.allows_public_calls => {
            Ok(conn.host.call_public(share, call).await?)
        }
        Some(Whom::Public) | None => Err(Failed::Target),
    }
}

/// A URL that can be requested.
fn parse(text: &str) -> Option<Url> {
    let mut url = Url::parse(text).ok()?;
    let is_bare = url.username().is_empty() && url.password().is_none();
    url.set_fragment(None);
    (is_bare && matches!(url.scheme(), "http" | "https")).then_some(url)
}

fn whom(url: &Url) -> Option<Whom> {
    let host = url.host_str()?;
    let name = HostName::parse(host).ok();
    let Some(name) = name.filter(|name| name.ends_with(".internal")) else {
        return Some(Whom::Public);
    };
    let scheme = match url.scheme() {
        "https" => Scheme::Https,
        _ => Scheme::Http,
    };
    let is_one = !name.is_wildcard();
    is_one.then_some(Whom::Internal(scheme, name, url.port_or_known_default()?))
}

/// Changes a request as a redirect demands; false if there is no redirect.
fn follow(call: &mut Call, called: &Called, has_secret_body: bool) -> bool {
    let keeps = match called.head.status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => call.method != Method::POST,
        StatusCode::SEE_OTHER => false,
        _ => return false,
    };
    let place = called.head.headers.get(LOCATION);
    let place = place
        .and_then(|place| place.to_str().ok())
        .and_then(|place| call.url.join(place).ok())
        .and_then(|url| parse(url.as_str()))
        .filter(|url| url.as_str().len() <= URL_BYTES_MAX);
    let Some(url) = place else { return false };
    // A public host must not choose an internal target.
    if whom(&call.url) == Some(Whom::Public) && whom(&url) != Some(Whom::Public) {
        return false;
    }
    if url.origin() != call.url.origin() {
        // Credentials for one host are not sent to another, and neither are other secrets.
        if has_secret_body && keeps && !call.body.is_empty() {
            return false;
        }
        call.headers.remove(AUTHORIZATION);
        call.headers.remove(COOKIE);
        let secret = call
            .headers
            .iter()
            .filter(|(_, value)| value.is_sensitive());
        let secret: Vec<_> = secret.map(|(name, _)| name.clone()).collect();
        for name in secret {
            call.headers.remove(name);
        }
    }
    if !keeps {
        call.method = Method::GET;
        call.headers.remove(CONTENT_TYPE);
        call.body = Bytes::new();
    }
    call.url = url;
    true
}

/// A response, or its absence, in the expression language.
fn shown(asked: Result<&Called, &Failed>) -> Vec<(&'static str, Value)> {
    let (mut code, mut message) = (String::new(), String::new());
    let mut fields = Vec::new();
    match asked {
        Ok(called) => {
            if let Some(own) = called.code() {
                own.clone_into(&mut code);
                message.push_str("the edge generated the response");
            }
            let res = vec![
                (
                    "status_code",
                    Value::Int(i64::from(called.head.status.as_u16())),
                ),
                ("headers", variables::headers(&called.head.headers)),
                ("body", Value::from(&*String::from_utf8_lossy(&called.body))),
            ];
            fields.push(("res", map(res)));
        }
        Err(failed) => {
            code = failed.problem().code();
            message = failed.to_string();
        }
    }
    let error = vec![
        ("code", Value::from(code.as_str())),
        ("message", Value::from(message.as_str())),
    ];
    fields.push(("error", map(error)));
    fields
}

/// What the condition of a retry reads.
struct Attempt<'a, 'x> {
    x: &'a Exchange<'x>,
    made: i64,
    last: Value,
}

impl Resolver for Attempt<'_, '_> {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let [attempts, last] = variables::retry_slots();
        match slot {
            slot if slot == attempts => Some(ValueRef::Int(self.made)),
            slot if slot == last => Some(self.last.borrow()),
            slot => self.x.value(slot),
        }
    }
}

impl Action for HttpRequest {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        let asking: BoxFuture<'a, Flow> = Box::pin(self.ask(x));
        ActionResult::Later(asking)
    }

    fn slots(&self) -> Vec<Slot> {
        let own = variables::retry_slots();
        let again = self.again.iter().flat_map(|again| again.slots()).copied();
        let values = self.parameters.iter().map(|(_, value)| value);
        [&self.url, &self.body]
            .into_iter()
            .chain(values)
            .flat_map(Template::slots)
            .chain(self.headers.slots())
            .chain(again)
            .filter(|slot| !own.contains(slot))
            .collect()
    }
}
