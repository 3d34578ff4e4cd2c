//! Stored form and view of the endpoint.

use std::borrow::Cow;

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{
    ENDPOINTS, Links, Model, Reference, TUNNEL_SESSIONS, TUNNELS, Uri,
};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::endpoint::maintenance::{MaintenanceView, StoredMaintenance};
use crate::endpoint::timeouts::Timeouts;
use crate::endpoint::upstream_limits::GivenLimits;
use crate::endpoint::upstream_tls::UpstreamTlsOptions;
use crate::endpoint::upstreams::{
    GivenBalancing, GivenHealth, GivenRetries, GivenUpstream, ListOptions,
};
use crate::reserved_addr::model::ReservedAddr;
use crate::reserved_domain::model::ReservedDomain;
use crate::traffic_policy::model::StoredPolicy;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct Endpoint {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What the endpoint is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Where it is reached.
    pub address: Address,
    /// The reserved domain that covered the host when the url was set.
    pub domain_id: Option<String>,
    /// The reserved address in the URL. A TCP endpoint without one holds its address itself.
    #[serde(default)]
    pub(crate) tcp_addr_id: Option<String>,
    /// From where it is reached.
    pub binding: Binding,
    /// Whether it shares its URL with other endpoints.
    pub pooling_enabled: bool,
    /// Where its traffic goes, unless an agent or its policy says so.
    pub upstream: Option<StoredUpstream>,
    /// Its traffic policy.
    #[serde(default)]
    pub policy: Option<StoredPolicy>,
    /// Whether `//` in the paths of its requests becomes `/`.
    #[serde(default = "merges_slashes")]
    pub merge_slashes: bool,
    /// Owner of the key or credential that created it.
    pub principal_id: String,
    /// The agent that serves it; `None` for a cloud endpoint.
    #[serde(default)]
    pub served: Option<Served>,
    /// Its own timeouts, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeouts: Option<Timeouts>,
    /// TLS to its upstream, if not by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstream_tls: Option<UpstreamTlsOptions>,
    /// How much of its traffic may be in flight, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) upstream_limits: Option<GivenLimits>,
    /// Its maintenance, also if it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) maintenance: Option<StoredMaintenance>,
    /// Version of the PROXY header that connections to its upstreams begin with: `1` or `2`, empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) upstream_proxy_protocol: String,
}

/// The bindings that an endpoint can have.
pub(crate) fn binding_schema() -> Value {
    json!({"type": "string", "enum": Binding::NAMES})
}

/// The default of endpoints.
pub(crate) const fn merges_slashes() -> bool {
    true
}

/// An upstream, or several, as sent; URLs and protocol have passed [`culvert_edge_config::Upstream::parse`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct StoredUpstream {
    /// URL of the upstream; empty if there is a list.
    pub url: String,
    /// `""` for an upstream without HTTP.
    pub(crate) protocol: String,
    /// Several upstreams. Empty if there is a URL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) list: Vec<GivenUpstream>,
    /// How the traffic is divided among them.
    #[serde(flatten)]
    pub(crate) options: ListOptions,
}

/// An endpoint as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Endpoint")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) updated_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// As it was sent. The server writes it itself where the URL that was sent has no host. Letters of other scripts may
    /// look like those of another host: `host` and `public_url` have the ASCII form, which names resolve to. Filters see
    /// the URL with that host and without the usual and the public port.
    pub(crate) url: &'a str,
    /// The whole URL with the public port.
    pub(crate) public_url: Cow<'a, str>,
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["cloud", "ephemeral"]))]
    pub(crate) kind: &'static str,
    #[schemars(extend("enum" = AddressScheme::NAMES))]
    pub(crate) proto: &'static str,
    #[schemars(extend("enum" = AddressScheme::NAMES))]
    pub(crate) scheme: &'static str,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) hostport: String,
    /// Empty for cloud endpoints.
    pub(crate) region: &'a str,
    /// As it was sent, for admins, and for the owner if it wrote the secrets. For other callers, each secret is
    /// `[redacted]`. The whole policy is `[redacted]` where the endpoint is another owner's
    /// and the caller is no admin: policies hold secrets in many places, such as the headers that they add.
    pub(crate) traffic_policy: &'a str,
    /// Likely mistakes in the traffic policy, as of its last write, such as an `add-headers` whose header clients can
    /// send too. Empty where the policy is not shown.
    pub(crate) traffic_policy_warnings: &'a [String],
    #[schemars(extend("items" = binding_schema()))]
    pub(crate) bindings: [&'static str; 1],
    pub(crate) pooling_enabled: bool,
    pub(crate) domain: Option<Reference<'a>>,
    pub(crate) tcp_addr: Option<Reference<'a>>,
    pub(crate) tunnel: Option<Reference<'a>>,
    pub(crate) tunnel_session: Option<Reference<'a>>,
    pub(crate) edge: Option<Reference<'a>>,
    /// Owner of the API key or credential that created the object.
    pub(crate) principal: Reference<'a>,
    pub(crate) upstream_url: &'a str,
    /// Several upstreams, as they were sent; empty for an endpoint with `upstream_url`.
    pub(crate) upstreams: &'a [GivenUpstream],
    /// How one of `upstreams` is chosen; `null` for the default.
    pub(crate) upstream_balancing: Option<&'a GivenBalancing>,
    /// When one of `upstreams` is ejected; `null` for the default.
    pub(crate) upstream_health: Option<&'a GivenHealth>,
    /// Which requests go to another one of `upstreams`; `null` for the default.
    pub(crate) upstream_retries: Option<&'a GivenRetries>,
    /// How many requests and connections may be in flight; `null` for any number.
    pub(crate) upstream_limits: Option<&'a GivenLimits>,
    pub(crate) upstream_protocol: &'a str,
    /// Version of the PROXY header that connections to the upstreams begin with: `1` or `2`; empty for none.
    pub(crate) upstream_proxy_protocol: &'a str,
    pub(crate) merge_slashes: bool,
    /// Timeouts of the endpoint; `null` for the server settings.
    pub(crate) timeouts: Cow<'a, Timeouts>,
    /// TLS to the upstream; `null` for the defaults. An agent has its own options.
    pub(crate) upstream_tls: Cow<'a, UpstreamTlsOptions>,
    /// Warnings about `upstream_tls`, such as about a certificate that is not verified.
    pub(crate) upstream_tls_warnings: &'static [&'static str],
    /// The maintenance of the endpoint; `null` if nothing of it was ever set.
    pub(crate) maintenance: Option<MaintenanceView<'a>>,
    pub(crate) name: &'a str,
}

impl Model for Endpoint {
    const NAME: &'static str = "endpoint";
    const COLLECTION: &'static str = ENDPOINTS;
    const LIST_FIELD: &'static str = "endpoints";
    const ID_PREFIX: &'static str = "ep";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::Grant,
        change: Change::Owner,
    };
    const OWNED_BY: Option<&'static str> = Some("principal_id");
    /// They show the traffic policy.
    const HAS_PUBLIC_EVENTS: bool = false;
    type View<'a> = View<'a>;

    fn links(&self, _head: &Head) -> Links {
        let mut refs: Vec<Ref> = match &self.served {
            // Endpoints of agents hold no reservation.
            Some(served) => {
                let session = Ref::new("tunnel_session", &served.session_id, OnDelete::Cascade);
                vec![session]
            }
            None => {
                let reservations = self.domain_id.iter().chain(&self.tcp_addr_id);
                reservations
                    .map(|id| Ref::new("url", id, OnDelete::Block))
                    .collect()
            }
        };
        refs.extend(self.policy.iter().flat_map(StoredPolicy::refs));
        refs.extend(self.upstream_tls.iter().flat_map(UpstreamTlsOptions::refs));
        Links {
            refs,
            ..Links::default()
        }
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let scheme = self.address.scheme.name();
        let served = self.served.as_ref();
        let upstream = self.upstream.as_ref();
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            updated_at: head.updated_at,
            description: &self.description,
            metadata: &self.metadata,
            url: self.address.shown(),
            public_url: match self.binding {
                Binding::Public | Binding::Internal => base.ports.shown(&self.address.url),
                Binding::Kubernetes => Cow::Borrowed(&self.address.url),
            },
            kind: if served.is_some() {
                "ephemeral"
            } else {
                "cloud"
            },
            proto: scheme,
            scheme,
            host: &self.address.host,
            port: self.address.port,
            hostport: self.address.hostport(),
            region: served.map_or("", |served| &served.region),
            traffic_policy: match &self.policy {
                Some(_) if !base.shows_fields_of(&self.principal_id) => "[redacted]",
                Some(policy) => &policy.shown,
                None => "",
            },
            traffic_policy_warnings: match &self.policy {
                Some(policy) if base.shows_fields_of(&self.principal_id) => &policy.warnings,
                _ => &[],
            },
            bindings: [self.binding.name()],
            pooling_enabled: self.pooling_enabled,
            domain: self
                .domain_id
                .as_deref()
                .map(|id| Reference::to(base, ReservedDomain::COLLECTION, id)),
            tcp_addr: self
                .tcp_addr_id
                .as_deref()
                .map(|id| Reference::to(base, ReservedAddr::COLLECTION, id)),
            tunnel: served.map(|served| Reference::to(base, TUNNELS, &served.tunnel_id)),
            tunnel_session: served
                .map(|served| Reference::to(base, TUNNEL_SESSIONS, &served.session_id)),
            edge: None,
            principal: Reference::to_owner(&self.principal_id),
            upstream_url: match served {
                Some(served) => &served.forwards_to,
                None => upstream.map_or("", |upstream| &upstream.url),
            },
            upstreams: upstream.map_or(&[], |upstream| &upstream.list),
            upstream_balancing: upstream.and_then(|upstream| upstream.options.balancing.as_ref()),
            upstream_health: upstream.and_then(|upstream| upstream.options.health.as_ref()),
            upstream_retries: upstream.and_then(|upstream| upstream.options.retries.as_ref()),
            upstream_limits: self.upstream_limits.as_ref(),
            upstream_protocol: match served {
                Some(served) => &served.forwards_proto,
                None => upstream.map_or("", |upstream| &upstream.protocol),
            },
            upstream_proxy_protocol: match served {
                Some(Served {
                    proxy_version: 1, ..
                }) => "1",
                Some(Served {
                    proxy_version: 2, ..
                }) => "2",
                _ => &self.upstream_proxy_protocol,
            },
            merge_slashes: self.merge_slashes,
            timeouts: self
                .timeouts
                .as_ref()
                .map_or_else(Cow::default, Cow::Borrowed),
            upstream_tls: self
                .upstream_tls
                .as_ref()
                .map_or_else(Cow::default, Cow::Borrowed),
            upstream_tls_warnings: self
                .upstream_tls
                .as_ref()
                .map_or(&[], UpstreamTlsOptions::warnings),
            maintenance: self.maintenance.as_ref().map(StoredMaintenance::view),
            name: served.map_or("", |served| &served.name),
        }
    }
}

/// Which traffic reaches an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// From anywhere.
    Public,
    /// From other endpoints, by `forward-internal`.
    Internal,
    /// From clusters whose operator selects it.
    Kubernetes,
}

/// The parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "StoredAddress")]
pub struct Address {
    /// Protocol of the clients.
    pub scheme: AddressScheme,
    /// Host name, which may be a wildcard.
    pub host: String,
    /// Port; the usual one of the scheme if the URL names none.
    pub port: u16,
    /// The URL as the server writes it, with scheme and host, and without the usual port. Filters and selectors see this one.
    pub url: String,
    /// The URL as it was sent, if that is another spelling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent: Option<String>,
}

/// An address as it is stored.
#[derive(Deserialize)]
struct StoredAddress {
    scheme: AddressScheme,
    host: String,
    port: u16,
    url: String,
    #[serde(default)]
    sent: Option<String>,
}

impl From<StoredAddress> for Address {
    fn from(stored: StoredAddress) -> Self {
        let StoredAddress {
            scheme,
            host,
            port,
            mut url,
            mut sent,
        } = stored;
        // Earlier versions kept the usual port of `tls` where it was sent, so owners chose what filters and selectors saw.
        if scheme == AddressScheme::Tls
            && let Some(short) = url.strip_suffix(":443").map(str::to_owned)
        {
            let before = std::mem::replace(&mut url, short);
            sent.get_or_insert(before);
        }
        Self {
            scheme,
            host,
            port,
            url,
            sent,
        }
    }
}

/// Protocol of the clients of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressScheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS that the edge ends.
    Https,
    /// Connections as they are.
    Tcp,
    /// TLS that passes through, or ends as the policy says.
    Tls,
}

impl Binding {
    pub(crate) const NAMES: [&'static str; 3] = [
        Self::Public.name(),
        Self::Internal.name(),
        Self::Kubernetes.name(),
    ];

    /// As in the API: `public`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl Address {
    /// The URL as it was sent, for the API's views.
    pub(crate) fn shown(&self) -> &str {
        self.sent.as_deref().unwrap_or(&self.url)
    }

    /// The same address with its URL as it was sent. Clients compare that with the one in the response: a plan of Terraform
    /// never ends, or replaces the endpoint, if the spelling changes.
    pub(crate) fn spelled(self, url: &str) -> Self {
        Self {
            sent: (self.url != url).then(|| url.to_owned()),
            ..self
        }
    }

    pub(crate) fn hostport(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl AddressScheme {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }
}

/// The agent that serves an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Served {
    /// ID of the session.
    pub session_id: String,
    /// ID of the tunnel in that session.
    pub tunnel_id: String,
    /// The run that the agent is connected to; only this run can reach the agent.
    pub run: String,
    /// Region that the agent asked for.
    pub region: String,
    /// As the agent announced it.
    pub forwards_to: String,
    /// `http1`, `http2` or empty.
    pub forwards_proto: String,
    /// Version of the PROXY protocol that the service expects; 0 for none.
    pub proxy_version: u8,
    /// Name that the agent gives the endpoint.
    pub name: String,
}
