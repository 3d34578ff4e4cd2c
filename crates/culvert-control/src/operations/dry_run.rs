//! Dry runs: which rules of a traffic policy, or which condition, would match the most recent requests of an endpoint.
//!
//! Conditions are evaluated against retained events and, where the caller may read them, captured messages. No action
//! runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Refusal, Timestamp, code};
use culvert_delivery::{EventQuery, LoggedEvent};
use culvert_endpoints::endpoint;
use culvert_endpoints::endpoint::model::{Binding, Endpoint};
use culvert_endpoints::traffic_policy::model::StoredPolicy;
use culvert_endpoints::traffic_policy::{Compiled, Given};
use culvert_event_config::captured::captured_access::CapturedAccess;
use culvert_events::bodies::{CapturedMessages, Field};
use culvert_events::{HTTP_REQUEST_COMPLETE, LogFilter, Logged};
use culvert_policy::host::EndpointInfo;
use culvert_policy::policy::dry_run::{DryRun, PastRequest, RuleResult};
use culvert_policy::policy::phase::Ends;
use culvert_policy::{Phase, Policy};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::cx::Cx;
use culvert_resources::operation::{BodySpec, Call, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::{Extra, Running, value_refusal};
use culvert_resources::{Error, input, service, stored};
use culvert_store::{Head, Order};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::Control;

pub(crate) static POLICY_DRY_RUN: OperationKind = OperationKind {
    name: "policy_dry_run.v0",
    doc: "A traffic policy or a filter was evaluated against kept requests of an endpoint.",
    shows_body: false,
};

/// Most requests of a dry run, and the default.
const REQUESTS_MAX: u32 = 100;
const REQUESTS: u32 = 20;
/// Pages of the search for requests, and the time for the evaluation.
const PAGES_MAX: usize = 16;
const WITHIN: Duration = Duration::from_secs(3);

/// The operation of an endpoint.
pub(crate) const OPERATIONS: &[Extra<Control>] = &[Extra {
    name: "dry_run",
    method: Method::Post,
    suffix: "/dry_run",
    doc: "Evaluates the conditions of a traffic policy, or a filter, against the most recent kept requests of an endpoint. No action runs, and nothing is stored. Requires an admin key or a key of the endpoint's owner (630).",
    body: Some(BodySpec {
        schema: SchemaGenerator::subschema_for::<Input>,
        required: false,
    }),
    response: ResponseSpec {
        status: Status::Ok,
        schema: Some(SchemaGenerator::subschema_for::<View<'static>>),
    },
    query: &[],
    access: Access::Change,
    trace: Trace::Hourly(&POLICY_DRY_RUN),
    run: run_dry,
}];

/// What to evaluate.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "DryRunCreate", transform = input::create_schema)]
struct Input {
    /// Traffic policy in YAML or JSON, as a string or an object; empty for the endpoint's own.
    traffic_policy: Given,
    /// CEL condition as in `GET /events`, instead of a policy.
    filter: String,
    /// Maximum number of requests, 1 to 100; default: 20.
    #[schemars(range(max = 100))]
    limit: u32,
}

/// The results, newest request first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DryRun")]
struct View<'a> {
    requests: Vec<RequestView<'a>>,
    /// Whether all requests were evaluated in the time for it.
    complete: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DryRunRequest")]
struct RequestView<'a> {
    event_id: String,
    event_timestamp: String,
    method: String,
    url: String,
    /// The status at that time; null if there was no response.
    status_code: Option<i64>,
    /// Whether the header values are those of a capture. Those of an event are in lower case.
    captured: bool,
    /// Header fields whose values are redacted. Conditions see `[redacted]`.
    redacted: Vec<String>,
    /// Whether the filter matches; null for a policy.
    matches: Option<bool>,
    /// The rules of the policy; empty for a filter.
    rules: Vec<RuleView<'a>>,
    /// The rule that ends the request phase, or would; null if the request is forwarded.
    ended_by: Option<EndView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DryRunRule")]
struct RuleView<'a> {
    #[schemars(extend("enum" = ["on_tcp_connect", "on_http_request", "on_http_response"]))]
    phase: &'static str,
    /// Position in the phase, from 1.
    number: usize,
    /// Name of the rule; may be empty.
    name: &'a str,
    /// `unknown`: a condition reads what a kept event does not have. `reject`: a condition fails or reaches a limit, so
    /// the request is rejected with 500, or the connection is closed.
    #[schemars(extend("enum" = ["match", "no_match", "unknown", "reject", "not_reached"]))]
    result: &'static str,
    /// Variables that are not known.
    unknown: Vec<&'static str>,
    /// Types of its actions.
    actions: Vec<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DryRunEnd")]
struct EndView {
    #[schemars(extend("enum" = ["on_tcp_connect", "on_http_request", "on_http_response"]))]
    phase: &'static str,
    /// Position of the rule in its phase, from 1.
    number: usize,
    /// The action that ends the request; `expression` if a failed condition does.
    action: &'static str,
    /// False if the rule is unknown, or if its action decides by what only a request has, such as credentials or a
    /// count.
    certain: bool,
}

fn run_dry(control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move { dry_run(control, &call).await })
}

/// The subject of a dry run.
#[allow(clippy::large_enum_variant, reason = "there is one for each call")]
enum DryRunSubject {
    Filter(LogFilter),
    /// `None` if the endpoint has none.
    Policy(Option<Arc<Policy>>),
}

async fn dry_run(control: &Control, call: &Call) -> Result<Reply, Error> {
    let input: Input = input::create(call.body.clone()).map_err(value_refusal::<Endpoint>)?;
    let cx = control.kernel.cx(&call.caller, &call.base);
    let document = service::named(&cx, &endpoint::TYPE, call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    let endpoint: Endpoint = stored::read(&document)?;
    let limit = match input.limit {
        0 => REQUESTS,
        limit if limit <= REQUESTS_MAX => limit,
        _ => return Err(wrong("`limit` must be 1 to 100.").into()),
    };
    if !input.filter.is_empty() && !input.traffic_policy.0.is_empty() {
        return Err(wrong("`filter` and `traffic_policy` cannot be set together.").into());
    }
    let wanted = match &*input.filter {
        "" => DryRunSubject::Policy(policy(control, &cx, &document.head, &endpoint, &input).await?),
        source => DryRunSubject::Filter(LogFilter::compile(control.events.catalogue, source)?),
    };
    if !control.events.delivery.retains_traffic() {
        return Err(Refusal::of(code::TRAFFIC_NOT_RETAINED).into());
    }
    let logged = recent(control, call, &document.head.id, limit).await?;
    let evaluator = DryRun::new(
        control.endpoints.policies.ip_data.clone(),
        Arc::clone(&control.kernel.clock),
        Arc::clone(&control.kernel.entropy),
        control.endpoints.policies.on_expression_error,
    );
    let place = endpoint.address.policy_target(&endpoint.principal_id, true);
    let account = Arc::from(document.head.account.as_str());
    let info = EndpointInfo {
        id: &document.head.id,
        account: &account,
        owner: &endpoint.principal_id,
        scheme: place.scheme,
        is_internal: endpoint.binding == Binding::Internal,
        host: place.host,
        port: endpoint.address.port,
        merge_slashes: endpoint.merge_slashes,
        forwards_to: &[],
    };
    let (began, mut requests, mut complete) = (tokio::time::Instant::now(), Vec::new(), true);
    for logged in &logged {
        if began.elapsed() > WITHIN {
            complete = false;
            break;
        }
        let mut past = Past::read(logged)?;
        let captured = control.events.delivery.messages(&past.id).await?;
        let captured = captured.filter(|it| CapturedAccess(&call.caller).allows(&it.owners));
        past.complete_with(captured);
        requests.push(match &wanted {
            DryRunSubject::Filter(filter) => {
                let (matches, _) = filter.matches(Logged {
                    envelope: &logged.envelope,
                    endpoint: &document.head.id,
                });
                past.view(Some(matches), Vec::new(), None)
            }
            DryRunSubject::Policy(None) => past.view(None, Vec::new(), None),
            DryRunSubject::Policy(Some(policy)) => past.judged(&evaluator, policy, info),
        });
        tokio::task::yield_now().await;
    }
    Ok(Reply::Ok(stored::write(&View { requests, complete })?))
}

fn wrong(why: &'static str) -> Refusal {
    Refusal::new(code::BODY_FIELD_INVALID, why)
}

/// The given policy, checked as for a write, or that of the endpoint.
async fn policy(
    control: &Control,
    cx: &Cx<'_>,
    head: &Head,
    endpoint: &Endpoint,
    input: &Input,
) -> Result<Option<Arc<Policy>>, Error> {
    let given = &input.traffic_policy.0;
    let has_upstream = endpoint.upstream.is_some() || endpoint.served.is_some();
    let place = endpoint
        .address
        .policy_target(&endpoint.principal_id, has_upstream);
    let scheme = place.scheme;
    let checked;
    let stored = match (given.is_empty(), &endpoint.policy) {
        (true, None) => return Ok(None),
        (true, Some(policy)) => policy,
        (false, before) => {
            let check = StoredPolicy::check(cx, &head.id, place, given, before.as_ref());
            checked = check.await?.0;
            &checked
        }
    };
    let mut compiled = Compiled::new(Arc::clone(&control.endpoints.policies.logins));
    let owner = &endpoint.principal_id;
    let policy = compiled.policy(
        &control.kernel.seal,
        (head, owner),
        stored,
        scheme,
        has_upstream,
    )?;
    Ok(Some(policy))
}

/// The most recent requests, newest first.
async fn recent(
    control: &Control,
    call: &Call,
    endpoint: &str,
    limit: u32,
) -> Result<Vec<LoggedEvent>, Error> {
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut query = EventQuery {
        owner: call.caller.owner_id.clone(),
        account: call.caller.account.clone(),
        kinds: Some(vec![HTTP_REQUEST_COMPLETE.name.to_owned()]),
        filter: None,
        since: None,
        until: None,
        object: Some(endpoint.to_owned()),
        actor: None,
        order: Order::NewestFirst,
        from: None,
        limit,
        is_followed: false,
    };
    let mut recent = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = control.events.delivery.events(&query).await?;
        recent.extend(page.events);
        if page.is_end || recent.len() >= limit {
            break;
        }
        query.limit = limit - recent.len();
        query.from = Some(page.next);
    }
    Ok(recent)
}

/// A request as recorded in its event.
struct Past {
    id: String,
    timestamp: String,
    method: String,
    url: String,
    status: Option<i64>,
    is_captured: bool,
    redacted: Vec<String>,
    request: HeaderMap,
    response: HeaderMap,
    conn: Value,
    at: Timestamp,
}

#[derive(Deserialize)]
struct Event {
    event_id: String,
    event_timestamp: String,
    object: Value,
}

impl Past {
    fn read(logged: &LoggedEvent) -> Result<Self, Fault> {
        let event: Event = serde_json::from_str(&logged.envelope)
            .map_err(|error| Fault::new("reading a kept event", error))?;
        let text = |path: &str| {
            let text = event.object.pointer(path).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let mut redacted = Vec::new();
        let mut headers = |path: &str| headers_of(event.object.pointer(path), &mut redacted);
        let request = headers("/http/request/headers");
        let response = headers("/http/response/headers");
        let status = event.object.pointer("/http/response/status_code");
        Ok(Self {
            method: text("/http/request/method").to_ascii_uppercase(),
            url: text("/http/request/url/raw"),
            status: status.and_then(Value::as_i64),
            is_captured: false,
            redacted,
            request,
            response,
            conn: event.object.get("conn").cloned().unwrap_or_default(),
            at: Timestamp::parse(&event.event_timestamp).unwrap_or_default(),
            timestamp: event.event_timestamp,
            id: event.event_id,
        })
    }

    /// Replaces values with the exact ones of a capture.
    fn complete_with(&mut self, captured: Option<CapturedMessages>) {
        let Some(captured) = captured else { return };
        if let Some(request) = captured.request {
            self.redacted.clear();
            self.is_captured = true;
            self.request = exact(&request.headers, &mut self.redacted);
            (self.method, self.url) = (request.method, request.url);
        }
        if let Some(response) = captured.response {
            self.response = exact(&response.headers, &mut self.redacted);
        }
        self.redacted.sort();
        self.redacted.dedup();
    }

    fn view(
        self,
        matches: Option<bool>,
        rules: Vec<RuleView<'_>>,
        ended_by: Option<EndView>,
    ) -> RequestView<'_> {
        RequestView {
            event_id: self.id,
            event_timestamp: self.timestamp,
            method: self.method,
            url: self.url,
            status_code: self.status,
            captured: self.is_captured,
            redacted: self.redacted,
            matches,
            rules,
            ended_by,
        }
    }

    /// The request for policies. `None` if the event lacks the fields for one.
    fn request(&self) -> Option<PastRequest> {
        let (scheme, rest) = self.url.split_once("://")?;
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let target = if target.starts_with('/') {
            target.to_owned()
        } else {
            format!("/{target}")
        };
        let mut parts = http::Request::new(()).into_parts().0;
        parts.method = self.method.parse().ok()?;
        parts.uri = target.parse().ok()?;
        parts.headers = self.request.clone();
        parts
            .headers
            .insert(HOST, HeaderValue::from_str(authority).ok()?);
        let response = self.status.and_then(|status| {
            let mut parts = http::Response::new(()).into_parts().0;
            parts.status = http::StatusCode::from_u16(u16::try_from(status).ok()?).ok()?;
            parts.headers = self.response.clone();
            Some(parts)
        });
        let ip = |name: &str| {
            let ip = self.conn.get(name).and_then(Value::as_str);
            let ip = ip.and_then(|text| text.parse().ok());
            ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        };
        let port = self.conn.get("server_port").and_then(Value::as_u64);
        let port = port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        let name = self.conn.get("server_name").and_then(Value::as_str);
        Some(PastRequest {
            at: self.at,
            client: SocketAddr::new(ip("client_ip"), 0),
            server: SocketAddr::new(ip("server_ip"), port),
            is_tls: scheme == "https",
            server_name: name.unwrap_or_default().to_owned(),
            request: parts,
            response,
        })
    }

    fn judged<'p>(
        self,
        evaluator: &DryRun,
        policy: &'p Policy,
        endpoint: EndpointInfo<'_>,
    ) -> RequestView<'p> {
        let Some(request) = self.request() else {
            return self.view(None, Vec::new(), None);
        };
        let rules = evaluator.run(policy, endpoint, &request);
        let mut end: Option<EndView> = None;
        for one in &rules {
            let may_end = match one.result {
                RuleResult::Match | RuleResult::Unknown => one.ends() != Ends::Never,
                RuleResult::Reject => true,
                RuleResult::NoMatch | RuleResult::NotReached => false,
            };
            if may_end && one.phase != Phase::Response && end.is_none() {
                let mut types = one.rule.types.iter();
                let ending = match one.result {
                    RuleResult::Reject => Some(("expression", true)),
                    result => types
                        .find(|(_, ends)| *ends != Ends::Never)
                        .map(|(action, ends)| {
                            (
                                *action,
                                result == RuleResult::Match && *ends == Ends::Always,
                            )
                        }),
                };
                end = ending.map(|(action, certain)| EndView {
                    phase: one.phase.name(),
                    number: one.number,
                    action,
                    certain,
                });
            }
        }
        let view = rules.into_iter().map(|one| RuleView {
            phase: one.phase.name(),
            number: one.number,
            name: &one.rule.name,
            result: match one.result {
                RuleResult::Match => "match",
                RuleResult::NoMatch => "no_match",
                RuleResult::Unknown => "unknown",
                RuleResult::Reject => "reject",
                RuleResult::NotReached => "not_reached",
            },
            unknown: one.unknown,
            actions: one.rule.types.iter().map(|(name, _)| *name).collect(),
        });
        let view = view.collect();
        self.view(None, view, end)
    }
}

/// The fields of an event.
fn headers_of(fields: Option<&Value>, redacted: &mut Vec<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in fields.and_then(Value::as_object).into_iter().flatten() {
        for value in values.as_array().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            put(&mut headers, name, value);
            if value.contains("[redacted]") {
                redacted.push(name.to_ascii_lowercase());
            }
        }
    }
    headers
}

/// The fields of a capture.
fn exact(fields: &[Field], redacted: &mut Vec<String>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for field in fields {
        put(&mut headers, &field.name, &field.value);
        if field.is_redacted {
            redacted.push(field.name.clone());
        }
    }
    headers
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::from_bytes(name.as_bytes());
    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
        headers.append(name, value);
    }
}
