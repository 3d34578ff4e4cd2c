//! The context in which an action is compiled.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::text::similar::nearest;
use culvert_base::{Code, Refusal, Share, code};
use culvert_cel::{Env, NotBuilt, PatternBudget};
use culvert_tls::tls_policy::Authorities;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::identity::AssertionKeys;
use crate::policy::environments;
use crate::policy::expression::{Condition, Expression};
use crate::policy::phase::Phase;
use crate::policy::problems::INVALID;
use crate::policy::replace::{PATTERN_BYTES_MAX, n_classes};
use crate::policy::secrets::Secrets;
use crate::policy::taint::{Feeds, Mark, Reading};
use crate::policy::template::{self, Template, ValueTemplate};
use crate::ports::forward_target::ForwardTarget;
use crate::scheme::Scheme;
use culvert_ip_data::IpData;
use culvert_ip_data::address::IpPolicy;

/// Objects that policies may name.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// IP policies by ID; their rules are read for each request.
    pub ip_policies: HashMap<String, Arc<IpPolicy>>,
    /// Certificate authorities by ID; their certificates are read for each connection.
    pub authorities: HashMap<String, Arc<Authorities>>,
    /// Secrets of the account; an expression reads the current value.
    pub secrets: Arc<Secrets>,
    /// The state of sign-ins; without it sign-in actions are rejected.
    pub logins: Option<LoginService>,
    /// The keys of assertions about users; without them, actions that make assertions are rejected.
    pub assertions: Option<Arc<AssertionKeys>>,
    /// The host of the endpoint; `None` if it is not checked.
    pub host: Option<HostName>,
    /// Its parent domains that the account owns; `None` if they are not checked.
    pub own_domains: Option<Vec<String>>,
    /// The IP data; `None` if the variables of a policy are not checked against it.
    pub ip_data: Option<Arc<IpData>>,
    /// Whether the policy is being written. Then rules apply that policies of former versions need not keep.
    pub is_written: bool,
    /// Whether a proxy before the edge may terminate TLS.
    pub has_tls_before_edge: bool,
    /// Whether `http-request` may call public hosts besides internal endpoints.
    pub allows_public_calls: bool,
    /// ID of the endpoint's owner, who may read what the policy captures.
    pub owner: String,
    /// The internal endpoints that the policy names, and whose they were when it was written. It forwards to no others there,
    /// but to those of the owner of the endpoint.
    pub forwards_to: Vec<ForwardTarget>,
}

/// State of all sign-ins, for the actions of the crate that knows its type.
#[derive(Clone)]
pub struct LoginService(Arc<dyn Any + Send + Sync>);

impl LoginService {
    /// Wraps the state.
    pub fn new<T: Any + Send + Sync>(logins: Arc<T>) -> Self {
        Self(logins)
    }
}

impl fmt::Debug for LoginService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginService")
    }
}

/// The context of one action: its position, its configuration, and the objects that it may name.
#[derive(Debug)]
pub struct PolicyContext<'c> {
    phase: Phase,
    scheme: Scheme,
    place: &'c str,
    config: Value,
    resources: &'c Resources,
    patterns: &'c PatternBudget,
    /// Its templates and conditions that read something that can be secret.
    readings: RefCell<Vec<Reading>>,
}

impl<'c> PolicyContext<'c> {
    /// A context for the actions of one policy.
    pub fn new(
        phase: Phase,
        scheme: Scheme,
        place: &'c str,
        config: Value,
        resources: &'c Resources,
        patterns: &'c PatternBudget,
    ) -> Self {
        Self {
            phase,
            scheme,
            place,
            config,
            resources,
            patterns,
            readings: RefCell::default(),
        }
    }

    /// What its templates and conditions read that can be secret, in the order in which they were compiled.
    pub(crate) fn into_readings(self) -> Vec<Reading> {
        self.readings.into_inner()
    }

    /// The phase of the action.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Identifies this action in its policy; equal on every node.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.phase.name());
        hash.update([0]);
        hash.update(self.place);
        hash.update([0]);
        hash.update(self.config.to_string());
        hash.finalize().into()
    }

    /// The scheme of the endpoint.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The configuration, read into a type that refuses unknown fields (2203, 2234).
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let config = match &self.config {
            Value::Null => Value::Object(serde_json::Map::new()),
            given => given.clone(),
        };
        serde_path_to_error::deserialize(config).map_err(|error| {
            let path = error.path().to_string();
            let why = quoteless(&error.inner().to_string());
            let code = if why.starts_with("missing field") {
                code::POLICY_FIELD_MISSING
            } else {
                code::POLICY_CONFIG_MALFORMED
            };
            match path.as_str() {
                "." => self.refuse(code, &why),
                path => self.refuse(code, &format!("`{path}`: {why}")),
            }
        })
    }

    /// A refusal for this action; `why` is a sentence without a full stop.
    pub fn refuse(&self, code: Code, why: &str) -> Refusal {
        refusal(code, self.place, why)
    }

    /// The names that expressions of this phase may use. Private: all expressions of actions are compiled here, so that
    /// none is missing among the readings.
    fn env(&self) -> &'static Env {
        environments::of(self.phase)
    }

    /// Whether the policy is being written. Then rules apply that policies of former versions need not keep.
    pub fn is_written(&self) -> bool {
        self.resources.is_written
    }

    /// Whether browsers reach the endpoint by http alone, as far as it is known.
    pub fn is_insecure(&self) -> bool {
        let host = self.resources.host.as_ref();
        let is_internal = host.is_some_and(|host| host.is_within("internal"));
        self.scheme == Scheme::Http && !is_internal && !self.resources.has_tls_before_edge
    }

    fn note(&self, reading: Option<Reading>) {
        self.readings.borrow_mut().extend(reading);
    }

    /// ID of the endpoint's owner; empty if unknown.
    pub fn owner(&self) -> &str {
        &self.resources.owner
    }

    /// The share of limited resources that the action uses. It has no endpoint yet, so the action stands for it.
    pub fn share(&self) -> Share {
        let fingerprint = culvert_base::text::hex(&self.fingerprint());
        Share::new(self.owner(), &fingerprint)
    }

    /// The condition of a retry (2200).
    pub fn retry_condition(&self, field: &str, text: &str) -> Result<Condition, Refusal> {
        let condition = environments::of_retries(self.phase)
            .compile_predicate_within(self.patterns, text)
            .map(Condition::new)
            .map_err(|error| {
                let why = format!("`{field}`: {}", environments::explain(&error, self.phase));
                self.refuse(code::POLICY_EXPRESSION_INVALID, &why)
            })?;
        let slots = condition.slots().iter().copied();
        let reading = Reading::of(field, Feeds::Action, [text], slots, Mark::default());
        self.note(reading);
        Ok(condition)
    }

    /// An expression of any type (2200).
    pub fn expression(&self, field: &str, text: &str) -> Result<Expression, Refusal> {
        let compiled = self
            .env()
            .compile_within(self.patterns, text)
            .map(Expression::new);
        let expression = compiled.map_err(|error| {
            let why = format!("`{field}`: {}", environments::explain(&error, self.phase));
            self.refuse(code::POLICY_EXPRESSION_INVALID, &why)
        })?;
        let slots = expression.slots().iter().copied();
        let reading = Reading::of(field, Feeds::Action, [text], slots, Mark::default());
        self.note(reading);
        Ok(expression)
    }

    /// A regular expression of the configuration that is no part of an expression, of at most 1 KiB and `bytes_max`
    /// compiled bytes; `build` makes it with a limit of that size. `must` says what the field must be (2204).
    pub fn pattern<R>(
        &self,
        field: &str,
        text: &str,
        must: &str,
        bytes_max: usize,
        build: impl Fn(usize) -> Result<R, regex::Error>,
    ) -> Result<R, Refusal> {
        let must = || {
            let why = format!("`{field}` must be {must}");
            self.refuse(code::POLICY_VALUE_INVALID, &why)
        };
        if text.len() > PATTERN_BYTES_MAX {
            return Err(must());
        }
        let built = self.patterns.build(bytes_max, n_classes(text), build);
        built.map(|(regex, _)| regex).map_err(|error| match error {
            NotBuilt::BudgetSpent(bytes_max) => {
                let why = format!(
                    "`{field}`: compiled, the patterns of the policy are larger than {bytes_max} bytes together"
                );
                self.refuse(code::POLICY_VALUE_INVALID, &why)
            }
            NotBuilt::Invalid(_) | NotBuilt::TooLarge => must(),
        })
    }

    /// Whether policies may call public hosts.
    pub fn allows_public_calls(&self) -> bool {
        self.resources.allows_public_calls
    }

    /// Text with expressions (2224).
    pub fn template(&self, field: &str, text: &str) -> Result<Template, Refusal> {
        self.template_for(field, text, Feeds::Action)
    }

    fn template_for(&self, field: &str, text: &str, feeds: Feeds) -> Result<Template, Refusal> {
        let template = Template::parse(text, self.phase, self.patterns).map_err(|why| {
            self.refuse(code::POLICY_TEMPLATE_INVALID, &format!("`{field}`: {why}"))
        })?;
        let (sources, slots) = (template::sources(text), template.slots());
        let reading = Reading::of(field, feeds, sources, slots, template.mark());
        self.note(reading);
        Ok(template)
    }

    /// Any value with expressions in its texts (2224).
    pub fn value(&self, field: &str, value: &Value) -> Result<ValueTemplate, Refusal> {
        ValueTemplate::parse(value, &mut |text| self.template(field, text))
    }

    /// Like [`Self::value`], for the value of a variable that later expressions read.
    pub fn variable(
        &self,
        field: &str,
        name: &str,
        value: &Value,
    ) -> Result<ValueTemplate, Refusal> {
        ValueTemplate::parse(value, &mut |text| {
            self.template_for(field, text, Feeds::Variable(name.to_owned()))
        })
    }

    /// Refuses a number out of range (2215).
    pub fn within<N: PartialOrd + fmt::Display>(
        &self,
        field: &str,
        number: N,
        range: RangeInclusive<N>,
    ) -> Result<(), Refusal> {
        if range.contains(&number) {
            return Ok(());
        }
        let why = format!(
            "`{field}` must be from {} to {}",
            range.start(),
            range.end()
        );
        Err(self.refuse(code::POLICY_NUMBER_OUT_OF_RANGE, &why))
    }

    /// Refuses a list that is empty (2223) or too long (2218).
    pub fn count(&self, field: &str, items: usize, max: usize) -> Result<(), Refusal> {
        if items == 0 {
            return Err(self.refuse(
                code::POLICY_VALUE_EMPTY,
                &format!("`{field}` must not be empty"),
            ));
        }
        if items > max {
            let why = format!("`{field}` has {items} entries; the limit is {max}");
            return Err(self.refuse(code::POLICY_LIST_TOO_LONG, &why));
        }
        Ok(())
    }

    /// Refuses a text that is too long (2221).
    pub fn length(&self, field: &str, text: &str, max: usize) -> Result<(), Refusal> {
        if text.len() <= max {
            return Ok(());
        }
        let why = format!("`{field}` is longer than {max} bytes");
        Err(self.refuse(code::POLICY_STRING_TOO_LONG, &why))
    }

    /// The certificate authority of that id (2204).
    pub fn authorities(&self, field: &str, id: &str) -> Result<Arc<Authorities>, Refusal> {
        let found = self.resources.authorities.get(id).cloned();
        found.ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            let why = format!("`{field}`: the certificate authority `{shown}` does not exist");
            self.refuse(code::POLICY_VALUE_INVALID, &why)
        })
    }

    /// The state of sign-ins (2201).
    pub fn logins<T: Any + Send + Sync>(&self) -> Result<Arc<T>, Refusal> {
        let logins = self.resources.logins.clone();
        logins
            .and_then(|LoginService(logins)| logins.downcast().ok())
            .ok_or_else(|| self.refuse(code::POLICY_ACTION_UNKNOWN, "sign-ins are not available"))
    }

    /// The keys of assertions about users (2201).
    pub fn assertion_keys(&self) -> Result<Arc<AssertionKeys>, Refusal> {
        let keys = self.resources.assertions.clone();
        let why = "assertions are not available";
        keys.ok_or_else(|| self.refuse(code::POLICY_ACTION_UNKNOWN, why))
    }

    /// A domain for cookies: the endpoint's host, or a parent domain that the account owns (2204).
    pub fn cookie_domain(&self, field: &str, text: &str) -> Result<String, Refusal> {
        let wrong =
            |why: &str| self.refuse(code::POLICY_VALUE_INVALID, &format!("`{field}` {why}"));
        let domain = HostName::parse(text.trim_start_matches('.'))
            .ok()
            .filter(|name| !name.is_wildcard())
            .ok_or_else(|| wrong("must be a domain"))?;
        let Some(host) = &self.resources.host else {
            return Ok(domain.to_string());
        };
        if !host.is_within(&domain) {
            return Err(wrong("must be the endpoint's host, or a domain above it"));
        }
        let own = &self.resources.own_domains;
        let is_own = own
            .as_ref()
            .is_none_or(|own| own.contains(&domain.to_string()));
        if **host != *domain && !is_own {
            return Err(wrong("must be a reserved domain of the account"));
        }
        Ok(domain.to_string())
    }

    /// The IP policy of that id (2216).
    pub fn ip_policy(&self, id: &str) -> Result<Arc<IpPolicy>, Refusal> {
        let found = self.resources.ip_policies.get(id).cloned();
        found.ok_or_else(|| {
            let shown: String = id.chars().take(64).collect();
            self.refuse(
                code::POLICY_IP_POLICY_UNKNOWN,
                &format!("the IP policy `{shown}` does not exist"),
            )
        })
    }
}

/// The message of a parser without the quoted value, which may be a misplaced secret.
fn quoteless(message: &str) -> String {
    let said = match message.split_once(", expected ") {
        Some((found, expected)) if found.starts_with("unknown field") => {
            let name = found.split('`').nth(1).unwrap_or_default();
            let known = expected.split('`').skip(1).step_by(2);
            match nearest(name, known) {
                Some(nearest) => format!("{found}; did you mean `{nearest}`?"),
                None => message.to_owned(),
            }
        }
        Some((_, expected)) => format!("it must be {expected}"),
        None => message.to_owned(),
    };
    said.trim_end_matches('.').chars().take(300).collect()
}

/// The error and its position, counted from 1.
pub(crate) fn refusal(code: Code, place: &str, why: &str) -> Refusal {
    let colon = if place.is_empty() { "" } else { ": " };
    Refusal::new(code, format!("{INVALID}{place}{colon}{why}."))
}

/// A duration in Go's notation: `10s`, `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    /// A duration of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nanos = culvert_cel::Duration::parse(&text).map(culvert_cel::Duration::nanos);
        match nanos.map(u64::try_from) {
            Some(Ok(nanos)) => Ok(Self(Duration::from_nanos(nanos))),
            _ => Err(D::Error::custom(
                "it must be a duration such as `10s` or `1m30s`",
            )),
        }
    }
}

impl JsonSchema for GoDuration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "A duration such as `10s` or `1m30s`." })
    }

    fn inline_schema() -> bool {
        true
    }
}
