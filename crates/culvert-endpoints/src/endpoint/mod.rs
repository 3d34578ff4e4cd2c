//! Endpoint: an address that receives traffic, and where the traffic goes (contract: management API 2.19,
//! operations 5).
//!
//! Traffic passes the endpoint's policy to an upstream given as a URL; an endpoint needs at least one of the
//! two. An internal endpoint receives traffic only from the policies of its account's other endpoints, and one
//! with the binding `kubernetes` only from Kubernetes operators of its account. Endpoints that agents serve have
//! the same type, but callers can only read them ([`agent`]).

pub mod address;
pub mod agent;
pub(crate) mod maintenance;
pub mod model;
pub(crate) mod timeouts;
pub(crate) mod upstream_checks;
pub(crate) mod upstream_limits;
pub mod upstream_tls;
pub(crate) mod upstreams;

use std::sync::Arc;

use culvert_base::net::{HostName, folder_of_url};
use culvert_base::{Code, Description, Fault, Ksuid, Metadata, Refusal, Secret, code};
use culvert_edge_config::{EndpointBinding, ProxyVersion, Upstream, UpstreamList};
use culvert_resources::access::Referrer;
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::cx::Cx;
use culvert_resources::cx::base::PublicPorts;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::list::page::Argument;
use culvert_resources::list::{listfilter, page};
use culvert_resources::operation::Call;
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{
    Draft, Extra, Resource, ResourceType, Reveal, Running, SecretOf,
};
use culvert_resources::settings::Settings;
use culvert_resources::stored::Format;
use culvert_resources::stored::seal::Seal;
use culvert_resources::{Caller, Error, Parameter, Role, input};
use culvert_store::{Changes, Head, Store};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::address_lock::AddressRequest;
use crate::endpoint::address::{RequestedUrl, address_key, binding, name_key};
use crate::endpoint::maintenance::GivenMaintenance;
use crate::endpoint::model::{
    AddressScheme, Binding, Endpoint, StoredUpstream, binding_schema, merges_slashes,
};
use crate::endpoint::timeouts::Timeouts;
use crate::endpoint::upstream_limits::GivenLimits;
use crate::endpoint::upstream_tls::UpstreamTlsOptions;
use crate::endpoint::upstreams::{
    ConnectionOptions, GivenBalancing, GivenHealth, GivenRetries, GivenUpstream, ListOptions,
    UpstreamFields,
};
use crate::traffic_policy::model::StoredPolicy;
use crate::traffic_policy::{Compiled, Given};
use crate::{EndpointConfig, address_lock, health, host, pool, secret_rights};

/// The row of endpoints in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<Endpoint>();

/// A new endpoint.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EndpointCreate", transform = input::create_schema)]
pub struct Create {
    /// `scheme://host[:port]` with the scheme `http`, `https`, `tcp` or `tls`; a bare host selects
    /// `https`. Returned as sent. Without a host a random one is assigned. The host and port of
    /// `tcp` must be a reserved address. A host that ends in `.internal` is private to the account
    /// and may have any port.
    url: String,
    /// `cloud`, the default.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["cloud"]))]
    kind: String,
    /// Traffic policy in YAML or JSON, as a string or an object. Returned as written to
    /// admins, and to the owner of the endpoint if it wrote the secrets. Either this,
    /// `upstream_url` or `upstreams` is required.
    traffic_policy: Given,
    /// Binding of the endpoint: `public`, `internal` for a host that ends in `.internal`, or
    /// `kubernetes` for a host `service.namespace` that Kubernetes operators of the account
    /// bind. The default depends on the host.
    #[schemars(extend("items" = binding_schema(), "maxItems" = 1))]
    bindings: Vec<String>,
    /// Whether the endpoint shares its `url` with other endpoints that enable pooling.
    pooling_enabled: Option<bool>,
    /// Description, at most 255 bytes.
    #[schemars(with = "String", length(max = 255))]
    description: Description,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "String", length(max = 4096))]
    metadata: Metadata,
    /// Upstream for traffic that the policy does not handle: `http://host:port` or `https://…` for
    /// HTTP, `tcp://host:port` for other schemes, `unix:/path` for both, `file:///path` for the files
    /// of a folder.
    #[schemars(length(max = 2048))]
    upstream_url: String,
    /// Several upstreams, among which the traffic is divided, instead of `upstream_url`: 1 to 64.
    #[schemars(extend("maxItems" = UpstreamList::LENGTH_MAX))]
    upstreams: Vec<GivenUpstream>,
    /// How one of `upstreams` is chosen.
    upstream_balancing: Option<GivenBalancing>,
    /// When one of `upstreams` is ejected.
    upstream_health: Option<GivenHealth>,
    /// Which requests go to another one of `upstreams`.
    upstream_retries: Option<GivenRetries>,
    /// How many requests and connections may be in flight, and how many more wait.
    upstream_limits: Option<GivenLimits>,
    /// HTTP version for the upstreams: `http1` (default) or `http2`.
    #[schemars(extend("enum" = ["http1", "http2"]))]
    upstream_protocol: String,
    /// PROXY header that each connection to an upstream begins with, before TLS: `1` or `2` for the version, or empty, the default,
    /// for none. Such connections have one client each.
    #[schemars(extend("enum" = ["", "1", "2"]))]
    upstream_proxy_protocol: String,
    /// Whether `//` in the path of a request becomes `/`. Default: `true`. With `false`, rules and
    /// the upstream see empty segments.
    merge_slashes: Option<bool>,
    /// Timeouts of the endpoint. Unset values use the settings `edge.timeouts`.
    timeouts: Timeouts,
    /// TLS to an `https` upstream. Default: the certificate is verified against the authorities that the server trusts.
    upstream_tls: UpstreamTlsOptions,
    /// What clients get while the endpoint is in maintenance, and who gets past that. Only for HTTP.
    maintenance: Option<GivenMaintenance>,
}

/// Changes to an endpoint.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "EndpointUpdate", transform = input::update_schema)]
pub struct Update {
    /// New URL with the same scheme, returned as sent.
    url: Option<String>,
    /// Traffic policy; empty for none. `[redacted]` keeps a secret in an otherwise unchanged rule.
    traffic_policy: Option<Given>,
    /// Binding of the endpoint: `public`, `internal` or `kubernetes`. An empty list selects the
    /// default.
    #[schemars(extend("items" = binding_schema(), "maxItems" = 1))]
    bindings: Option<Vec<String>>,
    /// Whether the endpoint shares its `url` with other endpoints that enable pooling.
    pooling_enabled: Option<bool>,
    /// Description, at most 255 bytes.
    #[schemars(with = "Option<String>", length(max = 255))]
    description: Option<Description>,
    /// Arbitrary metadata, at most 4096 bytes.
    #[schemars(with = "Option<String>", length(max = 4096))]
    metadata: Option<Metadata>,
    /// Upstream of the endpoint, in place of `upstreams`; empty for none, which leaves `upstreams` as they are.
    #[schemars(length(max = 2048))]
    upstream_url: Option<String>,
    /// Replaces all upstreams, and `upstream_url`; an empty list removes them, with their balancing, health and retries.
    #[schemars(extend("maxItems" = UpstreamList::LENGTH_MAX))]
    upstreams: Option<Vec<GivenUpstream>>,
    /// How one of `upstreams` is chosen; replaces all values.
    upstream_balancing: Option<GivenBalancing>,
    /// When one of `upstreams` is ejected; replaces all values.
    upstream_health: Option<GivenHealth>,
    /// Which requests go to another one of `upstreams`; replaces all values.
    upstream_retries: Option<GivenRetries>,
    /// How many requests and connections may be in flight, and how many more wait; replaces all values. `{}` removes the limits.
    upstream_limits: Option<GivenLimits>,
    /// HTTP version for the upstreams: `http1` or `http2`; empty for `http1`.
    #[schemars(extend("enum" = ["http1", "http2", ""]))]
    upstream_protocol: Option<String>,
    /// PROXY header that each connection to an upstream begins with: `1` or `2` for the version; empty for none.
    #[schemars(extend("enum" = ["", "1", "2"]))]
    upstream_proxy_protocol: Option<String>,
    /// Whether `//` in the path of a request becomes `/`.
    merge_slashes: Option<bool>,
    /// Timeouts of the endpoint; replaces all of them. Unset values use the settings
    /// `edge.timeouts`.
    timeouts: Option<Timeouts>,
    /// TLS to an `https` upstream; replaces all of its fields. `{}` restores the defaults.
    upstream_tls: Option<UpstreamTlsOptions>,
    /// What clients get while the endpoint is in maintenance, and who gets past that. Values that are not given stay as they are.
    maintenance: Option<GivenMaintenance>,
}

/// The operations beyond the five.
pub const OPERATIONS: &[Extra<EndpointConfig>] = &[health::operation(run_health)];

impl Resource for Endpoint {
    const DOC: &'static str = "Endpoints: addresses that receive traffic.";
    const LONG_TEXTS: &'static [&'static str] = &["traffic_policy"];
    const READABLE_SECRET: Option<SecretOf<Self>> = Some(Self::readable_policy);
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        listfilter::DESCRIPTION,
        listfilter::METADATA,
        field("principal", Shape::Reference),
        field("type", Shape::EndpointType),
        field("binding", Shape::First("bindings")),
        field("bindings", Shape::List),
        field("url", Shape::Spelled("address")),
        field("pooling_enabled", Shape::Flag),
        field("scheme", Shape::Within("address")),
        field("region", Shape::Text),
        field("name", Shape::Text),
    ]);
    const ARGUMENTS: &'static [Argument] = &[
        Argument::plain("id", "id"),
        Argument::plain("ids", "id"),
        url_argument("url"),
        url_argument("urls"),
    ];
    const PARAMETERS: &'static [Parameter] = page::ENDPOINTS;
    const VALUE_CODES: &'static [(&'static str, Code)] = &[
        ("description", code::ENDPOINT_DESCRIPTION_TOO_LONG),
        ("metadata", code::ENDPOINT_METADATA_TOO_LONG),
        ("traffic_policy", code::ENDPOINT_POLICY_WRONG_TYPE),
    ];
    const EMPTY_UPDATE: Option<Code> = Some(code::ENDPOINT_UPDATE_EMPTY);
    const UNKNOWN: Option<Code> = Some(code::ENDPOINT_URL_NOT_RESERVED);
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Create;
    type Update = Update;

    async fn create(cx: &Cx<'_>, id: Ksuid, input: Create) -> Result<Draft<Self>, Error> {
        if !matches!(input.kind.as_str(), "" | "cloud") {
            return Err(Refusal::of(code::ENDPOINT_TYPE_NOT_CLOUD).into());
        }
        let wanted = RequestedUrl::parse(&input.url)?;
        let names_host = wanted.host.is_some();
        let binding = binding(&input.bindings, &wanted)?;
        let id = format!("{}_{id}", Self::ID_PREFIX);
        let referrer = Referrer {
            owner_id: &cx.caller.owner_id,
            id: &id,
        };
        let chosen = wanted.choose(cx, referrer, binding).await?;
        let address = match names_host {
            true => chosen.address.spelled(&input.url),
            false => chosen.address,
        };
        let fields = UpstreamFields {
            url: Some(input.upstream_url),
            protocol: Some(input.upstream_protocol),
            list: Some(input.upstreams),
            options: ListOptions {
                balancing: input.upstream_balancing,
                health: input.upstream_health,
                retries: input.upstream_retries,
            },
        };
        let upstream = fields.check(cx.settings, address.scheme, None)?;
        let (policy, named) = match input.traffic_policy.0 {
            text if text.is_empty() => (None, Changes::default()),
            text => {
                let place = address.policy_target(&cx.caller.owner_id, upstream.is_some());
                let checked = StoredPolicy::check(cx, &id, place, &text, None).await?;
                (Some(checked.0), checked.1)
            }
        };
        needs_one(upstream.as_ref(), policy.as_ref())?;
        let has_tls = upstream.as_ref().is_some_and(StoredUpstream::has_tls);
        let upstream_tls = input.upstream_tls.check(cx, referrer, has_tls, None);
        let (upstream_tls, presented) = upstream_tls.await?;
        let upstream_proxy_protocol =
            proxy_protocol(input.upstream_proxy_protocol, upstream.as_ref())?;
        let is_http = address.scheme.is_http();
        let maintenance = match input.maintenance {
            Some(given) => given.check(cx, &id, is_http, None)?,
            None => None,
        };
        let endpoint = Self {
            format: Format,
            description: input.description,
            metadata: input.metadata,
            address,
            domain_id: chosen.domain_id,
            tcp_addr_id: chosen.tcp_addr_id,
            binding,
            pooling_enabled: input.pooling_enabled.unwrap_or(false),
            upstream,
            policy,
            merge_slashes: input.merge_slashes.unwrap_or_else(merges_slashes),
            principal_id: cx.caller.owner_id.clone(),
            served: None,
            timeouts: input.timeouts.check()?,
            upstream_tls,
            upstream_limits: input.upstream_limits.unwrap_or_default().check()?,
            maintenance,
            upstream_proxy_protocol,
        };
        endpoint.may_receive_secrets(cx)?;
        let also = match chosen.pool_changes {
            Some(pool_changes) => {
                pool_changes.and(address_lock::first(cx, endpoint.want(cx, &id)).await?)
            }
            None => address_lock::join(cx, endpoint.want(cx, &id)).await?,
        };
        Ok(Draft {
            also: also.and(chosen.condition).and(named).and(presented),
            ..Draft::of(endpoint)
        })
    }

    async fn update(
        mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: Update,
    ) -> Result<Draft<Self>, Error> {
        self.is_cloud()?;
        let (before, place_before) = (self.address.clone(), self.lock_key(&head.account));
        let name_before = self.host_name(&head.account);
        let held_before = self.held();
        let pooled_before = self.pooling_enabled;
        let mut also = Changes::default();
        if input.url.is_some() || input.bindings.is_some() {
            also = self.move_to(cx, head, &input).await?;
        }
        let had_upstream = self.upstream.is_some();
        let text_of = |policy: &Option<StoredPolicy>| {
            policy
                .as_ref()
                .map(|policy| (policy.shown.clone(), policy.sealed.clone()))
        };
        let policy_before = text_of(&self.policy);
        let target_before = self.target();
        let fields = UpstreamFields {
            url: input.upstream_url,
            protocol: input.upstream_protocol,
            list: input.upstreams,
            options: ListOptions {
                balancing: input.upstream_balancing,
                health: input.upstream_health,
                retries: input.upstream_retries,
            },
        };
        if fields.is_given() {
            let before = self.upstream.take();
            self.upstream = fields.check(cx.settings, self.address.scheme, before)?;
        }
        if target_before.0 != self.target().0 || input.upstream_tls.is_some() {
            also = also.and(self.set_upstream_tls(cx, head, input.upstream_tls).await?);
        }
        let goes_on = self.upstream.is_some();
        let text = match (&input.traffic_policy, &self.policy) {
            (Some(given), _) => given.0.clone(),
            // Check the policy again: without an upstream it must respond to all traffic itself.
            (None, Some(policy)) if goes_on != had_upstream => {
                policy.text(cx.seal, &head.id)?.into_owned()
            }
            (None, _) => String::new(),
        };
        if !text.is_empty() {
            let place = self.address.policy_target(&self.principal_id, goes_on);
            let before = self.policy.as_ref();
            let checked = StoredPolicy::check(cx, &head.id, place, &text, before);
            let (mut policy, named) = checked.await?;
            if let (None, Some(before)) = (&input.traffic_policy, before) {
                // The caller did not send the secrets.
                policy.secrets_by.clone_from(&before.secrets_by);
                policy.forwards_to.clone_from(&before.forwards_to);
            }
            self.policy = Some(policy);
            also = also.and(named);
        } else if input.traffic_policy.is_some() {
            self.policy = None;
        }
        let target_after = self.target();
        let is_new = |url: &String| !target_before.0.contains(url);
        let has_new = target_after.0.iter().any(is_new) || target_before.1 != target_after.1;
        if self.upstream.is_some()
            && has_new
            && let Some(policy) = &self.policy
        {
            let referrer = Referrer {
                owner_id: &self.principal_id,
                id: &head.id,
            };
            also = also.and(policy.may_send_elsewhere(cx, referrer).await?);
        }
        needs_one(self.upstream.as_ref(), self.policy.as_ref())?;
        self.merge_slashes = input.merge_slashes.unwrap_or(self.merge_slashes);
        if let Some(timeouts) = input.timeouts {
            self.timeouts = timeouts.check()?;
        }
        let version = input.upstream_proxy_protocol;
        let version = version.unwrap_or_else(|| self.upstream_proxy_protocol.clone());
        self.upstream_proxy_protocol = proxy_protocol(version, self.upstream.as_ref())?;
        if let Some(limits) = input.upstream_limits {
            self.upstream_limits = limits.check()?;
        }
        if let Some(given) = input.maintenance {
            let is_http = self.address.scheme.is_http();
            self.maintenance = given.check(cx, &head.id, is_http, self.maintenance.take())?;
        }
        self.pooling_enabled = input.pooling_enabled.unwrap_or(self.pooling_enabled);
        self.description = input.description.unwrap_or(self.description);
        self.metadata = input.metadata.unwrap_or(self.metadata);

        let is_moved = place_before != self.lock_key(&head.account);
        let serves_else = policy_before != text_of(&self.policy) || target_before != target_after;
        if is_moved || serves_else {
            self.may_receive_secrets(cx)?;
        }
        if is_moved {
            also = also.and(address_lock::leave_all(cx, &[&head.id], &place_before).await?);
            if name_before != self.host_name(&head.account) {
                also = also.and(host::leave(cx, &[&head.id], &name_before, None).await?);
            }
            if let Some(address) = held_before {
                also = also.and(pool::release(cx, &address).await?);
            }
        }
        if is_moved || before != self.address || pooled_before != self.pooling_enabled {
            also = also.and(address_lock::join(cx, self.want(cx, &head.id)).await?);
        }
        Ok(Draft {
            also,
            ..Draft::of(self)
        })
    }

    fn changed_secrets(&self, after: &Self) -> Vec<&'static str> {
        // Secrets are not in the shown text.
        let is_hidden =
            self.policy
                .as_ref()
                .zip(after.policy.as_ref())
                .is_some_and(|(before, after)| {
                    before.shown == after.shown && before.sealed != after.sealed
                });
        let maintenance = self.maintenance.as_ref().zip(after.maintenance.as_ref());
        let has_other = maintenance.is_some_and(|(before, after)| before.has_other_secret(after));
        let policy = is_hidden.then_some("traffic_policy");
        policy
            .into_iter()
            .chain(has_other.then_some("maintenance"))
            .collect()
    }

    async fn before_removal(&self, cx: &Cx<'_>, head: &Head) -> Result<Changes, Error> {
        self.is_cloud()?;
        let name = self.host_name(&head.account);
        let left = address_lock::leave_all(cx, &[&head.id], &self.lock_key(&head.account)).await?;
        let left = left.and(host::leave(cx, &[&head.id], &name, None).await?);
        Ok(match self.held() {
            Some(address) => left.and(pool::release(cx, &address).await?),
            None => left,
        })
    }
}

impl Endpoint {
    /// Takes the URL and the binding of an update. Returns the condition under which the endpoint may have them.
    async fn move_to(
        &mut self,
        cx: &Cx<'_>,
        head: &Head,
        input: &Update,
    ) -> Result<Changes, Error> {
        let is_held = self.held().is_some();
        let own = RequestedUrl::of(&self.address);
        let wanted = match &input.url {
            Some(url) => RequestedUrl::parse(url)?,
            None => RequestedUrl::of(&self.address),
        };
        if wanted.scheme != self.address.scheme {
            return Err(Refusal::of(code::ENDPOINT_SCHEME_CHANGED).into());
        }
        if wanted.host.is_none() {
            return Err(Refusal::new(
                code::ENDPOINT_URL_UNREADABLE,
                "The `url` of an update must have a host.",
            )
            .into());
        }
        let binding_before = self.binding;
        self.binding = match (&input.bindings, binding_before) {
            // The host does not tell it.
            (None, Binding::Kubernetes) => Binding::Kubernetes,
            (given, _) => binding(given.as_deref().unwrap_or_default(), &wanted)?,
        };
        // Clients may repeat the URL, and an address that the endpoint holds itself is in no reservation.
        let is_same_place =
            self.binding == binding_before && (input.url.is_none() || is_held && wanted == own);
        if is_same_place {
            if let Some(url) = &input.url {
                self.address = self.address.clone().spelled(url);
            }
            return Ok(Changes::default());
        }
        let referrer = Referrer {
            owner_id: &self.principal_id,
            id: &head.id,
        };
        let chosen = wanted.choose(cx, referrer, self.binding).await?;
        self.address = match &input.url {
            Some(url) => chosen.address.spelled(url),
            None => chosen.address,
        };
        self.domain_id = chosen.domain_id;
        self.tcp_addr_id = chosen.tcp_addr_id;
        Ok(chosen.condition)
    }

    /// Takes the options of TLS of an update, or checks the old ones for another upstream. Returns the conditions under
    /// which the endpoint may have them.
    async fn set_upstream_tls(
        &mut self,
        cx: &Cx<'_>,
        head: &Head,
        wanted: Option<UpstreamTlsOptions>,
    ) -> Result<Changes, Error> {
        let referrer = Referrer {
            owner_id: &self.principal_id,
            id: &head.id,
        };
        let has_tls = self.upstream.as_ref().is_some_and(StoredUpstream::has_tls);
        let before = self.upstream_tls.as_ref();
        let wanted = wanted.or_else(|| before.cloned()).unwrap_or_default();
        let (checked, presented) = wanted.check(cx, referrer, has_tls, before).await?;
        self.upstream_tls = checked;
        Ok(presented)
    }

    /// What decides who gets its traffic behind the edge: the URLs of its upstreams, and the options of TLS.
    fn target(&self) -> (Vec<String>, Option<UpstreamTlsOptions>) {
        let urls = self.upstream.as_ref().map(StoredUpstream::urls);
        let urls = urls.unwrap_or_default().into_iter().map(str::to_owned);
        (urls.collect(), self.upstream_tls.clone())
    }

    /// Refuses a key without the scope to read secrets (642) to decide what serves an internal endpoint: the requests that
    /// policies send there may have secrets in their header fields.
    fn may_receive_secrets(&self, cx: &Cx<'_>) -> Result<(), Refusal> {
        match self.binding {
            Binding::Internal => secret_rights::check_scope(cx.caller),
            Binding::Public | Binding::Kubernetes => Ok(()),
        }
    }

    /// The policy as it was sent, if it has secrets and the caller may read them.
    fn readable_policy(&self, cx: &Cx<'_>, head: &Head) -> Result<Option<Reveal>, Fault> {
        match &self.policy {
            Some(policy) if policy.sealed.is_some() && self.shows_secrets_to(policy, cx.caller) => {
                let text = Value::from(&*policy.text(cx.seal, &head.id)?);
                Ok(Some(Reveal {
                    pointer: "/traffic_policy".to_owned(),
                    json: Secret::new(text.to_string()),
                }))
            }
            _ => Ok(None),
        }
    }

    /// Whether the caller may read the secrets of the policy: it may change the endpoint, and it wrote the secrets or is
    /// an admin. Policies of agents were not written through the API.
    fn shows_secrets_to(&self, policy: &StoredPolicy, caller: &Caller) -> bool {
        const WRITE: Right = Right {
            role: Role::Member,
            scope: Some(Scope::EndpointsWrite),
        };
        let is_owner = caller.role == Role::Admin || caller.owner_id == self.principal_id;
        self.served.is_none() && is_owner && caller.may(WRITE) && policy.shows_secrets_to(caller)
    }

    /// Stores the references of a policy that was stored before references were recorded. Returns whether any
    /// was missing.
    pub async fn note_names(
        &mut self,
        store: &Store,
        seal: &Seal,
        head: &Head,
    ) -> Result<bool, Fault> {
        match &mut self.policy {
            Some(policy) => policy.note_names(store, seal, head).await,
            None => Ok(false),
        }
    }

    /// Compiles it for the edge.
    pub fn compile(
        &self,
        ports: PublicPorts,
        seal: &Seal,
        head: &Head,
        policies: &mut Compiled,
    ) -> Result<culvert_edge_config::Endpoint, Fault> {
        let unusable = |why: &dyn std::fmt::Display| {
            Fault::bare(format!("compiling endpoint {}: {why}", head.id))
        };
        let scheme = self.address.scheme.of_edge();
        let (upstream, upstreams) = match (&self.upstream, &self.served) {
            (_, Some(served)) => (Some(served.upstream(&head.id, scheme)), None),
            (Some(upstream), None) => {
                let is_http = self.address.scheme.is_http();
                let tls = self.upstream_tls.as_ref();
                let tls = tls.map(|options| Arc::new(options.compile()));
                let tokens = (head.id.as_str(), seal.upstream_tokens());
                let options = ConnectionOptions {
                    tls: tls.as_ref(),
                    proxy: proxy_version(&self.upstream_proxy_protocol),
                };
                let (first, list) = upstream.compile(is_http, options, tokens, unusable)?;
                (Some(first), list)
            }
            (None, None) => (None, None),
        };
        let policy = match &self.policy {
            Some(policy) => {
                let goes_on = upstream.is_some();
                Some(policies.policy(seal, (head, &self.principal_id), policy, scheme, goes_on)?)
            }
            None => None,
        };
        Ok(culvert_edge_config::Endpoint {
            id: head.id.clone(),
            account: head.account.as_str().into(),
            owner: self.principal_id.as_str().into(),
            scheme,
            binding: match self.binding {
                Binding::Public => EndpointBinding::Public,
                Binding::Internal => EndpointBinding::Internal,
                // The operators that select it are added where they are known.
                Binding::Kubernetes => EndpointBinding::Kubernetes(Arc::new([])),
            },
            host: HostName::parse(&self.address.host).map_err(|error| unusable(&error))?,
            port: match self.binding {
                Binding::Internal | Binding::Kubernetes => self.address.port,
                Binding::Public => {
                    let port = self.address.scheme.public_port(ports);
                    port.unwrap_or(self.address.port)
                }
            },
            upstream,
            upstreams,
            policy,
            merge_slashes: self.merge_slashes,
            timeouts: self
                .timeouts
                .as_ref()
                .map_or_else(Default::default, Timeouts::compile),
            in_flight: self.upstream_limits.as_ref().map(GivenLimits::compile),
            maintenance: match &self.maintenance {
                Some(maintenance) => maintenance.compile(seal, &head.id)?,
                None => None,
            },
        })
    }

    /// Refuses to change an agent's endpoint through the API (18014).
    fn is_cloud(&self) -> Result<(), Refusal> {
        if self.served.is_none() {
            return Ok(());
        }
        Err(Refusal::new(
            code::ENDPOINT_FIELD_INVALID,
            "The endpoint belongs to an agent; only the agent can change it or take it offline.",
        ))
    }

    /// The options of TLS to its upstream that name other objects.
    pub fn upstream_tls_references(&self) -> Option<&UpstreamTlsOptions> {
        self.upstream_tls
            .as_ref()
            .filter(|options| options.has_references())
    }

    /// The host below the platform domain whose certificate it presents if it terminates TLS.
    pub fn certificate_host(&self, platform: &HostName) -> Option<&str> {
        let has_tls = matches!(
            self.address.scheme,
            AddressScheme::Https | AddressScheme::Tls
        );
        let host = &self.address.host;
        let is_platforms = has_tls && HostName::parse(host).ok()?.is_within(platform);
        is_platforms.then_some(host)
    }

    /// The pool address that it holds itself, without a reservation.
    fn held(&self) -> Option<String> {
        let is_held = self.address.scheme == AddressScheme::Tcp
            && self.binding == Binding::Public
            && self.tcp_addr_id.is_none();
        is_held.then(|| self.address.hostport())
    }

    /// The key of its address lock.
    fn lock_key(&self, account: &str) -> String {
        address_key(&self.address, self.binding, account)
    }

    /// The key of its name; see [`host`].
    pub fn host_name(&self, account: &str) -> String {
        name_key(&self.address, self.binding, account)
    }

    /// ID of its owner.
    pub fn principal_id(&self) -> &str {
        &self.principal_id
    }

    fn want<'a>(&'a self, cx: &Cx<'_>, id: &'a str) -> AddressRequest<'a> {
        AddressRequest {
            endpoint_id: id,
            name: self.host_name(&cx.caller.account),
            owner_id: &self.principal_id,
            address: self.lock_key(&cx.caller.account),
            url: &self.address.url,
            pooling: self.pooling_enabled,
        }
    }
}

fn run_health(endpoints: &EndpointConfig, call: Call) -> Running<'_> {
    Box::pin(async move { health::health(endpoints, &TYPE, &call).await })
}

const fn url_argument(name: &'static str) -> Argument {
    Argument {
        name,
        field: "url",
        stored: address::stored_urls,
        names: address::names,
    }
}

/// Checks a version of the PROXY protocol for these upstreams.
fn proxy_protocol(version: String, upstream: Option<&StoredUpstream>) -> Result<String, Refusal> {
    let why = if !version.is_empty() && proxy_version(&version).is_none() {
        "`upstream_proxy_protocol` must be `1` or `2`."
    } else if !version.is_empty() && upstream.is_some_and(StoredUpstream::has_folder) {
        "`upstream_proxy_protocol` is for services: the files of a folder have no connections."
    } else {
        return Ok(version);
    };
    Err(Refusal::new(code::ENDPOINT_FIELD_INVALID, why))
}

fn proxy_version(version: &str) -> Option<ProxyVersion> {
    match version {
        "1" => Some(ProxyVersion::One),
        "2" => Some(ProxyVersion::Two),
        _ => None,
    }
}

/// Refuses an endpoint without an upstream and without a policy.
fn needs_one(
    upstream: Option<&StoredUpstream>,
    policy: Option<&StoredPolicy>,
) -> Result<(), Refusal> {
    if upstream.is_none() && policy.is_none() {
        return Err(Refusal::of(code::ENDPOINT_WITHOUT_UPSTREAM));
    }
    Ok(())
}

impl StoredUpstream {
    /// Whether it, or one of a list, is a folder.
    fn has_folder(&self) -> bool {
        let mut urls = self.urls().into_iter();
        urls.any(|url| folder_of_url(url).is_some())
    }

    /// Whether it is reached over TLS; of a list, all of it.
    fn has_tls(&self) -> bool {
        let is_https = |url: &&str| {
            let start = url.get(..8);
            start.is_some_and(|start| start.eq_ignore_ascii_case("https://"))
        };
        let urls = self.urls();
        !urls.is_empty() && urls.iter().all(is_https)
    }

    fn check(
        settings: &Settings,
        scheme: AddressScheme,
        url: String,
        protocol: String,
    ) -> Result<Option<Self>, Refusal> {
        if !matches!(protocol.as_str(), "" | "http1" | "http2") {
            let why = "`upstream_protocol` must be `http1` or `http2`.";
            return Err(Refusal::new(code::ENDPOINT_FIELD_INVALID, why));
        }
        if url.is_empty() {
            return Ok(None);
        }
        if !scheme.is_http() && !protocol.is_empty() {
            return Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                "`upstream_protocol` applies only to http and https endpoints.",
            ));
        }
        let upstream = Upstream::of_endpoint(&url, &protocol, scheme.is_http())?;
        if upstream.is_http() != scheme.is_http() {
            return Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                format!(
                    "The `upstream_url` of an endpoint with the scheme {} must start with {}.",
                    scheme.name(),
                    if scheme.is_http() {
                        "`http://`, `https://`, `unix:` or `file://`"
                    } else {
                        "`tcp://` or `unix:`"
                    },
                ),
            ));
        }
        if upstream.is_private() && !settings.allow_private_upstreams {
            return Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                "The `upstream_url` has a private address, which `edge.allow_private_upstreams` of this installation does not allow.",
            ));
        }
        if let Some(path) = upstream.socket()
            && !settings.allow_unix_upstreams.covers(path)
        {
            return Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                "The `upstream_url` is a Unix socket that `edge.allow_unix_upstreams` of this installation does not allow.",
            ));
        }
        if let Some(path) = upstream.folder()
            && !settings.allow_file_upstreams.covers(path)
        {
            return Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                "The `upstream_url` is a folder that `edge.allow_file_upstreams` of this installation does not allow.",
            ));
        }
        let protocol = match (scheme.is_http(), protocol.is_empty()) {
            (true, true) => "http1".to_owned(),
            _ => protocol,
        };
        Ok(Some(Self {
            url,
            protocol,
            ..Self::default()
        }))
    }
}
