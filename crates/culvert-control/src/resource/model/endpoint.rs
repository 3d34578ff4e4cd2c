//! Stored form and view of the endpoint.

use std::borrow::Cow;

use culvert_base::{Description, Metadata, Timestamp};
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::Base;
use crate::resource::model::reserved_addr::ReservedAddr;
use crate::resource::model::reserved_domain::ReservedDomain;
use crate::resource::model::timeouts::Timeouts;
use crate::resource::model::traffic_policy::StoredPolicy;
use crate::resource::model::tunnel::Tunnel;
use crate::resource::model::tunnel_session::TunnelSession;
use crate::resource::model::{Links, Model, Reference, Uri};
use crate::rights::{Change, Rights, See, Use};
use crate::stored::Format;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Endpoint {
    pub(crate) format: Format<1>,
    pub(crate) description: Description,
    pub(crate) metadata: Metadata,
    pub(crate) address: Address,
    /// The reserved domain that covered the host when the url was set.
    pub(crate) domain_id: Option<String>,
    /// The reserved address in the URL. A TCP endpoint without one holds its address itself.
    #[serde(default)]
    pub(crate) tcp_addr_id: Option<String>,
    pub(crate) binding: Binding,
    pub(crate) pooling_enabled: bool,
    pub(crate) upstream: Option<StoredUpstream>,
    #[serde(default)]
    pub(crate) policy: Option<StoredPolicy>,
    /// Whether `//` in the paths of its requests becomes `/`.
    #[serde(default = "merges_slashes")]
    pub(crate) merge_slashes: bool,
    /// Owner of the key or credential that created it.
    pub(crate) principal_id: String,
    /// The agent that serves it; `None` for a cloud endpoint.
    #[serde(default)]
    pub(crate) served: Option<Served>,
    /// Its own timeouts, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeouts: Option<Timeouts>,
}

/// The bindings that an endpoint can have.
pub(crate) fn binding_schema() -> Value {
    json!({"type": "string", "enum": Binding::NAMES})
}

/// The default of endpoints.
pub(crate) const fn merges_slashes() -> bool {
    true
}

/// An upstream as sent; both parts have passed [`culvert_edge::Upstream::parse`].
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct StoredUpstream {
    pub(crate) url: String,
    /// `""` for an upstream without HTTP.
    pub(crate) protocol: String,
}

/// An endpoint as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Endpoint")]
pub(crate) struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) updated_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) url: &'a str,
    /// `url` with the public port.
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
    /// As it was sent, for admins, and for the owner if it wrote the secrets. In lists, and for other callers, each
    /// secret is `[redacted]`. The whole policy is `[redacted]` where the endpoint is another owner's
    /// and the caller is no admin: policies hold secrets in many places, such as the headers that they add.
    pub(crate) traffic_policy: &'a str,
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
    pub(crate) upstream_protocol: &'a str,
    pub(crate) merge_slashes: bool,
    /// Timeouts of the endpoint; `null` for the server settings.
    pub(crate) timeouts: Cow<'a, Timeouts>,
    pub(crate) name: &'a str,
}

impl Model for Endpoint {
    const NAME: &'static str = "endpoint";
    const COLLECTION: &'static str = "endpoints";
    const LIST_FIELD: &'static str = "endpoints";
    const ID_PREFIX: &'static str = "ep";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::Grant,
        change: Change::Owner,
    };
    const OWNED_BY: Option<&'static str> = Some("principal_id");
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
            url: &self.address.url,
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
            tunnel: served.map(|served| Reference::to(base, Tunnel::COLLECTION, &served.tunnel_id)),
            tunnel_session: served
                .map(|served| Reference::to(base, TunnelSession::COLLECTION, &served.session_id)),
            edge: None,
            principal: Reference::to_owner(&self.principal_id),
            upstream_url: match served {
                Some(served) => &served.forwards_to,
                None => upstream.map_or("", |upstream| &upstream.url),
            },
            upstream_protocol: match served {
                Some(served) => &served.forwards_proto,
                None => upstream.map_or("", |upstream| &upstream.protocol),
            },
            merge_slashes: self.merge_slashes,
            timeouts: self
                .timeouts
                .as_ref()
                .map_or_else(Cow::default, Cow::Borrowed),
            name: served.map_or("", |served| &served.name),
        }
    }
}

/// Which traffic reaches an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Binding {
    Public,
    Internal,
    Kubernetes,
}

/// The parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Address {
    pub(crate) scheme: AddressScheme,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The URL as shown.
    pub(crate) url: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AddressScheme {
    Http,
    Https,
    Tcp,
    Tls,
}

impl Binding {
    pub(crate) const NAMES: [&'static str; 3] = [
        Self::Public.name(),
        Self::Internal.name(),
        Self::Kubernetes.name(),
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl Address {
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
pub(crate) struct Served {
    pub(crate) session_id: String,
    pub(crate) tunnel_id: String,
    /// The run that the agent is connected to; only this run can reach the agent.
    pub(crate) run: String,
    pub(crate) region: String,
    /// As the agent announced it.
    pub(crate) forwards_to: String,
    /// `http1`, `http2` or empty.
    pub(crate) forwards_proto: String,
    /// Version of the PROXY protocol that the service expects; 0 for none.
    pub(crate) proxy_version: u8,
    pub(crate) name: String,
}
