//! Several upstreams of an endpoint: their list, how one of them is chosen, when one is ejected, and which requests are sent again.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{DigestKey, Fault, Refusal, code};
use culvert_edge_config::{
    Balancing, HashKey, ListedUpstream, PassiveHealth, ProxyVersion, RetriedStatuses, Retries,
    Sticky, TlsOptions, Upstream, UpstreamList,
};
use culvert_resources::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::endpoint::model::{AddressScheme, StoredUpstream};
use crate::endpoint::timeouts::{PATTERN, parse, shown};
use crate::endpoint::upstream_checks::GivenActiveHealth;
use crate::endpoint::upstream_limits::in_flight;

const WEIGHT_MAX: u16 = 1_000;
const PRIORITY_MAX: u8 = 7;
const ATTEMPTS_MAX: u32 = 10;
const FAILURES_MAX: u32 = 1_000;
const POLICIES: [&str; 3] = ["round_robin", "least_requests", "hash"];
const HASH_KEYS: [&str; 3] = ["client_address", "header", "cookie"];
const NAME_BYTES_MAX: usize = 127;
const CONDITIONS: [&str; 5] = ["connect_failure", "reset", "502", "503", "504"];

/// One of several upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstream", extend("additionalProperties" = false, "required" = ["url"]))]
pub(crate) struct GivenUpstream {
    /// `http://host:port` or `https://…` for HTTP, `tcp://host:port` for other schemes, `unix:/path` for both,
    /// `file:///path` for the files of a folder, as in `upstream_url`.
    #[schemars(length(max = 2048))]
    url: String,
    /// Share of the traffic, in proportion to the other upstreams of the same priority: 0 to 1000, default 1. With 0 it gets
    /// no traffic.
    #[schemars(range(max = 1000))]
    weight: Option<u16>,
    /// 0 to 7, default 0. Upstreams with a higher number get only the traffic that those with lower numbers cannot serve.
    #[schemars(range(max = 7))]
    priority: Option<u8>,
    /// How many requests and connections may be in flight to it, on each node: 1 to 1000000. By default, any number. Further
    /// ones go to another upstream that has room, or wait as `upstream_limits` says.
    #[schemars(range(max = 1_000_000))]
    in_flight_max: Option<u32>,
}

/// How one of several upstreams is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstreamBalancing", extend("additionalProperties" = false))]
pub(crate) struct GivenBalancing {
    /// `round_robin`, the default: in turn, each as often as its weight says. `least_requests`: of two candidates, the one
    /// with fewer open requests for its weight. `hash`: the same one for the same `hash_by`, as long as it serves.
    #[schemars(extend("enum" = POLICIES))]
    policy: Option<String>,
    /// For `hash`: `client_address`, the default, or for HTTP `header` or `cookie`, whose name is `hash_name`. Requests without
    /// it take turns.
    #[schemars(extend("enum" = HASH_KEYS))]
    hash_by: Option<String>,
    /// Name of the header field or cookie.
    #[schemars(length(max = 127))]
    hash_name: Option<String>,
    /// Whether a client stays at the upstream that served it first, by a cookie that the edge sets and keeps from the upstreams.
    /// Only for HTTP. When that upstream does not serve, the client gets another one, and stays there.
    sticky: Option<bool>,
}

/// When upstreams are ejected. Values that are absent, `null` or empty are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstreamHealth", extend("additionalProperties" = false))]
pub(crate) struct GivenHealth {
    /// If fewer of the upstreams than this share are left, all are used again: 0 to 100 percent, default 50.
    #[schemars(range(max = 100))]
    panic_below_percent: Option<u8>,
    /// For how long the share of an upstream that is used again, or is new in the list, grows from a tenth to the whole: 1s to
    /// 1h. By default it gets its whole share.
    #[schemars(extend("pattern" = PATTERN))]
    slow_start: Option<String>,
    /// How failures of requests count.
    passive: Option<GivenPassiveHealth>,
    /// How the upstreams are checked; without it, they are not.
    active: Option<GivenActiveHealth>,
}

/// When an upstream is ejected because requests to it fail: connections that fail or time out, or close without a response,
/// responses with a status of `upstream_retries.on`, and tries that take longer than `upstream_retries.per_try_timeout`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointPassiveHealth", extend("additionalProperties" = false))]
pub(crate) struct GivenPassiveHealth {
    /// Failures in a row after which an upstream is ejected: 0 to 1000, default 3. 0 for never.
    #[schemars(range(max = 1000))]
    consecutive_failures: Option<u32>,
    /// For how long, the first time: 1s to 1h, default 10s. Doubles each time that the upstream fails again soon after.
    #[schemars(extend("pattern" = PATTERN))]
    ejection_time: Option<String>,
    /// The longest time: 1s to 24h, default 5m.
    #[schemars(extend("pattern" = PATTERN))]
    ejection_time_max: Option<String>,
    /// The share of the upstreams that may be ejected at a time: 0 to 100 percent, default 100. Above 0, one always may.
    #[schemars(range(max = 100))]
    ejected_percent_max: Option<u8>,
}

/// Which requests go to another upstream if one fails. Values that are absent, `null` or empty are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "EndpointUpstreamRetries", extend("additionalProperties" = false))]
pub(crate) struct GivenRetries {
    /// When: `connect_failure` for an upstream that cannot be connected to; `reset` for one that closes the connection
    /// without a response, or exceeds `per_try_timeout`; `502`, `503`, `504` for responses with this status. Default:
    /// `connect_failure` and `reset`. Except after `connect_failure`, only requests without a body and with the method
    /// GET, HEAD, OPTIONS, PUT or DELETE are sent again.
    #[schemars(extend("items" = {"type": "string", "enum": CONDITIONS}, "maxItems" = CONDITIONS.len()))]
    on: Option<Vec<String>>,
    /// How many upstreams get a request at most, with the first: 1 to 10, default 3. 1 for no retries.
    #[schemars(range(max = 10))]
    attempts: Option<u32>,
    /// Timeout of each try from its beginning to the response head, for requests that can be sent again: 100ms to 10m. By
    /// default only the timeouts of the endpoint apply.
    #[schemars(extend("pattern" = PATTERN))]
    per_try_timeout: Option<String>,
    /// The share of requests that may be sent again, not counted those after `connect_failure`: 0 to 100 percent, default
    /// 20. 100 more are in reserve for sudden failures, unless it is 0.
    #[schemars(range(max = 100))]
    budget_percent: Option<u8>,
}

/// What applies only to a list of upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ListOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) balancing: Option<GivenBalancing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<GivenHealth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retries: Option<GivenRetries>,
}

/// The options of connections to all upstreams of an endpoint.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionOptions<'x> {
    pub(crate) tls: Option<&'x Arc<TlsOptions>>,
    pub(crate) proxy: Option<ProxyVersion>,
}

/// The upstream fields of a request; `None` where a field is not given.
#[derive(Debug, Default)]
pub(crate) struct UpstreamFields {
    pub(crate) url: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) list: Option<Vec<GivenUpstream>>,
    pub(crate) options: ListOptions,
}

impl UpstreamFields {
    /// Whether any of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.url.is_some()
            || self.protocol.is_some()
            || self.list.is_some()
            || self.options != ListOptions::default()
    }

    /// The upstreams with these fields; those that are not given stay as they are. A URL replaces a list, and a list a URL.
    ///
    /// # Errors
    ///
    /// 18014 with the field and its bounds.
    pub(crate) fn check(
        self,
        settings: &Settings,
        scheme: AddressScheme,
        before: Option<StoredUpstream>,
    ) -> Result<Option<StoredUpstream>, Refusal> {
        let before = before.unwrap_or_default();
        let has_url = self.url.as_ref().is_some_and(|url| !url.is_empty());
        let has_list = self.list.as_ref().is_some_and(|list| !list.is_empty());
        if has_url && has_list {
            return Err(invalid(
                "Send either `upstream_url` or `upstreams`, not both.",
            ));
        }
        let has_options = self.options != ListOptions::default();
        let url = match has_list {
            true => String::new(),
            false => self.url.unwrap_or(before.url),
        };
        let list = match has_url {
            true => Vec::new(),
            false => self.list.unwrap_or(before.list),
        };
        let protocol = self.protocol.unwrap_or(before.protocol);
        if list.is_empty() {
            if has_options {
                return Err(invalid(
                    "`upstream_balancing`, `upstream_health` and `upstream_retries` need `upstreams`.",
                ));
            }
            return StoredUpstream::check(settings, scheme, url, protocol);
        }
        let (given, kept) = (self.options, before.options);
        let options = ListOptions {
            balancing: given
                .balancing
                .or(kept.balancing)
                .map(|balancing| balancing.check(scheme.is_http()))
                .transpose()?,
            health: given
                .health
                .or(kept.health)
                .map(GivenHealth::check)
                .transpose()?,
            retries: given
                .retries
                .or(kept.retries)
                .map(GivenRetries::check)
                .transpose()?,
        };
        let protocol = check_list(settings, scheme, &list, &protocol)?;
        let mut options = options;
        let active = options.health.as_mut().map(|health| &mut health.active);
        if let Some(Some(active)) = active {
            active.check(scheme.is_http(), &protocol)?;
        }
        Ok(Some(StoredUpstream {
            url: String::new(),
            protocol,
            list,
            options,
        }))
    }
}

/// Checks a list of upstreams. Returns their protocol.
fn check_list(
    settings: &Settings,
    scheme: AddressScheme,
    list: &[GivenUpstream],
    protocol: &str,
) -> Result<String, Refusal> {
    if list.len() > UpstreamList::LENGTH_MAX {
        return Err(invalid(format!(
            "`upstreams` must have at most {} entries.",
            UpstreamList::LENGTH_MAX
        )));
    }
    let mut known: Vec<Upstream> = Vec::with_capacity(list.len());
    let mut shown_protocol = String::new();
    for (index, one) in list.iter().enumerate() {
        let field = format!("`upstreams[{index}].url`");
        let named = |refusal: Refusal| {
            let message = refusal.message.replace("`upstream_url`", &field);
            Refusal::new(code::ENDPOINT_FIELD_INVALID, message)
        };
        if one.url.is_empty() {
            return Err(invalid(format!("{field} is required.")));
        }
        let (url, protocol) = (one.url.clone(), protocol.to_owned());
        let checked = StoredUpstream::check(settings, scheme, url, protocol).map_err(named)?;
        shown_protocol = checked.map(|one| one.protocol).unwrap_or_default();
        let upstream = Upstream::of_endpoint(&one.url, &shown_protocol, scheme.is_http());
        let upstream = upstream.map_err(named)?;
        if known.contains(&upstream) {
            return Err(invalid(format!("{field} is in the list twice.")));
        }
        known.push(upstream);
        if one.weight.is_some_and(|weight| weight > WEIGHT_MAX) {
            return Err(invalid(format!(
                "`upstreams[{index}].weight` must be at most {WEIGHT_MAX}."
            )));
        }
        if one.priority.is_some_and(|priority| priority > PRIORITY_MAX) {
            return Err(invalid(format!(
                "`upstreams[{index}].priority` must be at most {PRIORITY_MAX}."
            )));
        }
        let field = format!("upstreams[{index}].in_flight_max");
        in_flight(&field, one.in_flight_max)?;
    }
    if list.iter().all(|one| one.weight == Some(0)) {
        return Err(invalid("One of `upstreams` must have a `weight` above 0."));
    }
    Ok(shown_protocol)
}

impl StoredUpstream {
    /// The URLs that traffic goes to.
    pub(crate) fn urls(&self) -> Vec<&str> {
        let alone = (!self.url.is_empty()).then_some(&*self.url);
        let listed = self.list.iter().map(|one| &*one.url);
        alone.into_iter().chain(listed).collect()
    }

    /// The upstream for the edge, the first of several, and the list if it has one, with these options.
    ///
    /// # Errors
    ///
    /// If a stored URL cannot be read.
    pub(crate) fn compile(
        &self,
        is_http: bool,
        connections: ConnectionOptions<'_>,
        (endpoint_id, tokens): (&str, &DigestKey),
        unusable: impl Fn(&dyn std::fmt::Display) -> Fault,
    ) -> Result<(Upstream, Option<Arc<UpstreamList>>), Fault> {
        let read = |url: &str| {
            let parsed = Upstream::of_endpoint(url, &self.protocol, is_http);
            let parsed = parsed.map_err(|error| unusable(&error))?;
            let parsed = parsed.with_proxy(connections.proxy);
            Ok(match connections.tls {
                Some(options) => parsed.with_tls(Arc::clone(options)),
                None => parsed,
            })
        };
        if self.list.is_empty() {
            return Ok((read(&self.url)?, None));
        }
        let mut upstreams = Vec::with_capacity(self.list.len());
        for one in &self.list {
            upstreams.push(ListedUpstream {
                upstream: read(&one.url)?,
                weight: one.weight.unwrap_or(1),
                priority: one.priority.unwrap_or(0),
                in_flight_max: one.in_flight_max,
            });
        }
        let first = upstreams.first().map(|one| one.upstream.clone());
        let first = first.ok_or_else(|| unusable(&"an empty list of upstreams"))?;
        let options = &self.options;
        let balancing = options.balancing.as_ref();
        let health = options.health.as_ref();
        let retries = options.retries.as_ref();
        let is_sticky = balancing.is_some_and(|balancing| balancing.sticky == Some(true));
        let sticky = is_sticky.then(|| {
            let listed = upstreams.iter().map(|one| &one.upstream);
            Sticky::of(tokens, endpoint_id, listed)
        });
        let list = UpstreamList {
            upstreams,
            balancing: balancing.map_or_else(Default::default, GivenBalancing::compile),
            sticky,
            slow_start: health.map_or(Duration::ZERO, GivenHealth::slow_start),
            health: health.map_or_else(Default::default, GivenHealth::compile),
            checks: health.and_then(|health| Some(health.active.as_ref()?.compile(is_http))),
            retries: retries.map_or_else(Default::default, GivenRetries::compile),
        };
        Ok((first, Some(Arc::new(list))))
    }
}

impl GivenBalancing {
    fn check(mut self, is_http: bool) -> Result<Self, Refusal> {
        unset(&mut self.policy);
        unset(&mut self.hash_by);
        unset(&mut self.hash_name);
        let policy = self.policy.as_deref().unwrap_or_default();
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            return Err(invalid(
                "`upstream_balancing.policy` must be `round_robin`, `least_requests` or `hash`.",
            ));
        }
        let by = self.hash_by.as_deref().unwrap_or_default();
        if !by.is_empty() && !HASH_KEYS.contains(&by) {
            return Err(invalid(
                "`upstream_balancing.hash_by` must be `client_address`, `header` or `cookie`.",
            ));
        }
        if policy != "hash" && (self.hash_by.is_some() || self.hash_name.is_some()) {
            return Err(invalid(
                "`upstream_balancing.hash_by` and `hash_name` are only for the policy `hash`.",
            ));
        }
        if self.sticky == Some(true) && !is_http {
            return Err(invalid(
                "`upstream_balancing.sticky` needs an HTTP endpoint; for others, use the policy `hash`.",
            ));
        }
        let needs_name = matches!(by, "header" | "cookie");
        if needs_name && !is_http {
            return Err(invalid(
                "`upstream_balancing.hash_by` must be `client_address` for a TCP or TLS endpoint.",
            ));
        }
        match &self.hash_name {
            None if needs_name => Err(invalid("`upstream_balancing.hash_name` is required.")),
            Some(_) if !needs_name => Err(invalid(
                "`upstream_balancing.hash_name` is only for `hash_by` `header` and `cookie`.",
            )),
            // The names of cookies are tokens too (RFC 6265 4.1.1).
            Some(name) if name.len() > NAME_BYTES_MAX || !HashKey::is_name(name) => Err(invalid(
                "`upstream_balancing.hash_name` must be a name of at most 127 letters, digits and `-_.!#$%&'*+^|~`.",
            )),
            _ => Ok(self),
        }
    }

    fn compile(&self) -> Balancing {
        let name = || self.hash_name.clone().unwrap_or_default();
        match self.policy.as_deref() {
            Some("least_requests") => Balancing::LeastRequests,
            Some("hash") => Balancing::Hash(match self.hash_by.as_deref() {
                Some("header") => HashKey::Header(name().to_ascii_lowercase()),
                Some("cookie") => HashKey::Cookie(name()),
                _ => HashKey::ClientAddress,
            }),
            _ => Balancing::RoundRobin,
        }
    }
}

impl GivenHealth {
    fn check(mut self) -> Result<Self, Refusal> {
        percent(
            "upstream_health.panic_below_percent",
            self.panic_below_percent,
        )?;
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
        time(
            "upstream_health.slow_start",
            &mut self.slow_start,
            second..=hour,
        )?;
        if let Some(passive) = &mut self.passive {
            if passive
                .consecutive_failures
                .is_some_and(|count| count > FAILURES_MAX)
            {
                return Err(invalid(format!(
                    "`upstream_health.passive.consecutive_failures` must be at most {FAILURES_MAX}."
                )));
            }
            let field = "upstream_health.passive.ejection_time";
            let first = time(field, &mut passive.ejection_time, second..=hour)?;
            let field = "upstream_health.passive.ejection_time_max";
            let longest = time(field, &mut passive.ejection_time_max, second..=24 * hour)?;
            let default = PassiveHealth::default();
            let first = first.unwrap_or(default.ejection_time);
            if longest.unwrap_or(default.ejection_time_max.max(first)) < first {
                return Err(invalid(
                    "`upstream_health.passive.ejection_time_max` must not be shorter than `ejection_time`.",
                ));
            }
            percent(
                "upstream_health.passive.ejected_percent_max",
                passive.ejected_percent_max,
            )?;
        }
        Ok(self)
    }

    fn slow_start(&self) -> Duration {
        let text = self.slow_start.as_deref();
        text.and_then(parse).unwrap_or_default()
    }

    fn compile(&self) -> PassiveHealth {
        let default = PassiveHealth::default();
        let none = GivenPassiveHealth::default();
        let passive = self.passive.as_ref().unwrap_or(&none);
        let time = |text: &Option<String>| text.as_deref().and_then(parse);
        let ejection_time = time(&passive.ejection_time).unwrap_or(default.ejection_time);
        let longest = time(&passive.ejection_time_max).unwrap_or(default.ejection_time_max);
        PassiveHealth {
            consecutive_failures: passive
                .consecutive_failures
                .unwrap_or(default.consecutive_failures),
            ejection_time,
            ejection_time_max: longest.max(ejection_time),
            ejected_percent_max: passive
                .ejected_percent_max
                .unwrap_or(default.ejected_percent_max),
            panic_below_percent: self
                .panic_below_percent
                .unwrap_or(default.panic_below_percent),
        }
    }
}

impl GivenRetries {
    fn check(mut self) -> Result<Self, Refusal> {
        // Empty is the default, as everywhere in these fields.
        self.on = self.on.filter(|on| !on.is_empty());
        for (index, one) in self.on.iter().flatten().enumerate() {
            if !CONDITIONS.contains(&one.as_str()) {
                return Err(invalid(format!(
                    "`upstream_retries.on[{index}]` must be one of `connect_failure`, `reset`, `502`, `503` and `504`."
                )));
            }
            if self
                .on
                .iter()
                .flatten()
                .take(index)
                .any(|other| other == one)
            {
                return Err(invalid(format!(
                    "`upstream_retries.on[{index}]` is in the list twice."
                )));
            }
        }
        let attempts = self.attempts.unwrap_or(1);
        if !(1..=ATTEMPTS_MAX).contains(&attempts) {
            return Err(invalid(format!(
                "`upstream_retries.attempts` must be from 1 to {ATTEMPTS_MAX}."
            )));
        }
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(600));
        let field = "upstream_retries.per_try_timeout";
        time(field, &mut self.per_try_timeout, least..=most)?;
        percent("upstream_retries.budget_percent", self.budget_percent)?;
        Ok(self)
    }

    fn compile(&self) -> Retries {
        let default = Retries::default();
        let timeout = self.per_try_timeout.as_deref();
        let retries = Retries {
            attempts: self.attempts.unwrap_or(default.attempts),
            per_try_timeout: timeout.and_then(parse),
            budget_percent: self.budget_percent.unwrap_or(default.budget_percent),
            ..default
        };
        let Some(on) = self.on.as_ref().filter(|on| !on.is_empty()) else {
            return retries;
        };
        let has = |name: &str| on.iter().any(|one| one == name);
        Retries {
            connect_failure: has("connect_failure"),
            reset: has("reset"),
            statuses: RetriedStatuses {
                bad_gateway: has("502"),
                unavailable: has("503"),
                gateway_timeout: has("504"),
            },
            ..retries
        }
    }
}

pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(code::ENDPOINT_FIELD_INVALID, why)
}

/// An empty text counts as not given.
pub(crate) fn unset(text: &mut Option<String>) {
    if text.as_ref().is_some_and(String::is_empty) {
        *text = None;
    }
}

fn percent(field: &str, given: Option<u8>) -> Result<(), Refusal> {
    match given {
        Some(given) if given > 100 => Err(invalid(format!("`{field}` must be from 0 to 100."))),
        _ => Ok(()),
    }
}

pub(crate) fn time(
    field: &str,
    text: &mut Option<String>,
    bounds: std::ops::RangeInclusive<Duration>,
) -> Result<Option<Duration>, Refusal> {
    unset(text);
    let Some(text) = text else { return Ok(None) };
    match parse(text).filter(|time| bounds.contains(time)) {
        Some(time) => Ok(Some(time)),
        None => Err(invalid(format!(
            "`{field}` must be a duration such as `10s` or `1m30s`, from {:?} to {}.",
            bounds.start(),
            shown(*bounds.end())
        ))),
    }
}
