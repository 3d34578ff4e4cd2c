//! Resources, authority, and what the planes run on.
//!
//! Control decides who may do what ([`caller`]), what every resource looks like and when it is
//! refused ([`resource`](mod@resource)), and compiles what is stored into the inputs of the planes
//! ([`compile`]). All of the management API's decisions are here and none of its HTTP; nothing here
//! calls out, so no write waits for another system.

mod acl;
mod audit;
mod authority;
mod base;
pub mod bootstrap;
pub mod caller;
mod certificate;
mod claim;
pub mod compile;
mod console_session;
mod cx;
pub mod error;
mod gate;
mod host;
mod input;
mod list;
mod listfilter;
mod login;
mod management;
mod mirror;
mod nodes;
pub mod operation;
mod owner;
mod page;
mod platform;
mod pool;
mod reconcile;
mod relink;
mod replay;
mod reseal;
mod resource;
mod restriction;
mod retired;
mod root;
pub mod seal;
mod service;
mod ssh;
mod ssh_host_key;
mod ssh_issue;
mod stored;
mod tenant;
pub mod token;
mod traffic_policy;
mod turns;
mod upkeep;

use std::ops::RangeInclusive;
use std::sync::Arc;

use arc_swap::ArcSwap;
use culvert_base::net::HostName;
use culvert_base::{Clock, Entropy, Fault, IdMaker, Refusal, Secret, code};
use culvert_delivery::{Delivery, TargetSettings};
use culvert_events::catalogue::Catalogue;
use culvert_policy::IpDatabases;
use culvert_store::Store;
use culvert_tunnel::nodes::Nodes;
use culvert_tunnel::server::Bindings;

pub use base::PublicPorts;
pub use bootstrap::Founder;
pub use caller::{Caller, OwnerKind, Role};
pub use compile::EdgePort;
pub use console_session::{CONSOLE_SESSION_MAX, ConsoleSession};
pub use culvert_delivery::{Tail, TailSpec, Tailed};
pub use culvert_edge::login::{LoginKeys, LoginSettings, Logins};
pub use error::Error;
pub use gate::{AgentLimits, AgentSettings};
pub use list::texts;
pub use nodes::node_identity;
pub use operation::{
    Answer, BodySpec, Call, Method, Operation, Parameter, Reply, Run, SchemaOf, Status, operations,
};
pub use reconcile::acme::{CertificateMeters, Certificates, Issuer, Record};
pub use reseal::{Resealed, reseal};
pub use retired::retired;
pub use seal::{Pepper, Seal, login_key};

#[cfg(test)]
mod tests;

use authority::Authority;
use base::Base;
use caller::Standings;
use cx::Cx;
use gate::Agents;
use restriction::Restrictions;
use turns::Turns;

/// What control needs to know of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Platform base domain; endpoints get names below it (`edge.domain`).
    pub edge_domain: HostName,
    /// Ports that URLs of endpoints show.
    pub public_ports: PublicPorts,
    /// Ports of TCP endpoints (`edge.tcp_ports`).
    pub tcp_ports: RangeInclusive<u16>,
    /// Whether upstreams may be at private addresses (`edge.allow_private_upstreams`).
    pub allow_private_upstreams: bool,
    /// Whether traffic policies may call public hosts (`policy.http_request_public`).
    pub allow_public_calls: bool,
    /// What files of the operator say of addresses (`edge.geo_database` and its like).
    pub ip_data: IpDatabases,
    /// Names below the platform domain that the installation itself serves, beside those that are
    /// always its own (`connect.`, `api.`, `tcp.`).
    pub own_names: Vec<String>,
    /// What destinations may use and reach (`destinations.*`).
    pub targets: TargetSettings,
    /// Public base of `uri` fields in events of the server itself, without a trailing slash.
    pub base_url: String,
    /// The version that agents will have to have, if that was announced (`agents.minimum_version`).
    pub agent_minimum: Option<AgentMinimum>,
}

/// An announced minimum version of agents. Events of sessions with an older one say so (`deprecated`);
/// nothing is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMinimum {
    /// Numbers with points between them, such as `3.5.0`.
    pub version: String,
    /// When older ones will not be let in any more.
    pub date: String,
    /// A sentence for the owner of the agent.
    pub message: String,
}

impl AgentMinimum {
    /// Whether `version` is older. One that does not begin with a number is not judged.
    pub fn is_above(&self, version: &str) -> bool {
        let (minimum, given) = (numbers(&self.version), numbers(version));
        if given.is_empty() {
            return false;
        }
        let length = minimum.len().max(given.len());
        let at = |numbers: &[u64], index| numbers.get(index).copied().unwrap_or(0);
        (0..length)
            .map(|index| at(&given, index).cmp(&at(&minimum, index)))
            .find(|order| order.is_ne())
            .is_some_and(std::cmp::Ordering::is_lt)
    }
}

/// The numbers a version begins with: `v3.19.0-beta` has 3, 19 and 0.
fn numbers(version: &str) -> Vec<u64> {
    let version = version.trim().trim_start_matches('v');
    let end = version.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    let numbers = version[..end.unwrap_or(version.len())].split('.');
    numbers.map_while(|number| number.parse().ok()).collect()
}

/// What control is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where resources are.
    pub store: Store,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Makes ids.
    pub ids: Arc<IdMaker>,
    /// Randomness of ids, tokens and seals.
    pub entropy: Arc<dyn Entropy>,
    /// Seals secrets at rest.
    pub seal: Seal,
    /// Digests tokens.
    pub pepper: Pepper,
    /// Configuration.
    pub settings: Settings,
    /// Runs subscriptions and destinations.
    pub delivery: Arc<Delivery>,
    /// Runs endpoints, if this process does.
    pub edge: Option<Arc<dyn EdgePort>>,
    /// What log-ins share.
    pub logins: Arc<Logins>,
    /// Gets certificates for managed domains, if this process does.
    pub certificates: Option<Certificates>,
    /// The connections of agents, if this process takes them.
    pub agents: Option<(Arc<Bindings>, AgentSettings)>,
    /// The ways to agents of other nodes, if there may be any.
    pub nodes: Option<Arc<Nodes>>,
}

/// The control part of one process.
#[derive(Debug)]
pub struct Control {
    store: Store,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    ids: Arc<IdMaker>,
    seal: Seal,
    pepper: Pepper,
    settings: Settings,
    delivery: Arc<Delivery>,
    edge: Option<Arc<dyn EdgePort>>,
    /// The revision the edge of this process runs on, at least.
    published: tokio::sync::watch::Sender<i64>,
    logins: Arc<Logins>,
    certificates: Option<Certificates>,
    certificate_meters: CertificateMeters,
    standings: Standings,
    turns: Turns,
    restrictions: ArcSwap<Restrictions>,
    agents: Option<Agents>,
    nodes: Option<Arc<Nodes>>,
    ca_pem: String,
    /// Held by the one task that compiles.
    authority: tokio::sync::Mutex<Authority>,
}

impl Control {
    /// Control over a store, whose certificate authority is made if it has none. Its IP restrictions
    /// hold from here on.
    pub async fn open(parts: Parts) -> Result<Arc<Self>, Fault> {
        let authority = Authority::open(
            &parts.store,
            &parts.seal,
            &*parts.clock,
            &*parts.entropy,
            parts.settings.edge_domain.clone(),
        )
        .await?;
        relink::relink(&parts.store, &parts.seal).await?;
        let restrictions = Restrictions::load(&parts.store, &Restrictions::default()).await?;
        let run = parts.ids.next(&*parts.clock, &*parts.entropy);
        let agents = parts
            .agents
            .map(|(bindings, settings)| Agents::new(bindings, settings, run));
        Ok(Arc::new(Self {
            agents,
            nodes: parts.nodes,
            restrictions: ArcSwap::from_pointee(restrictions.unwrap_or_default()),
            standings: Standings::new(parts.store.watch()),
            turns: Turns::new(),
            store: parts.store,
            clock: parts.clock,
            entropy: parts.entropy,
            ids: parts.ids,
            seal: parts.seal,
            pepper: parts.pepper,
            settings: parts.settings,
            delivery: parts.delivery,
            edge: parts.edge,
            published: tokio::sync::watch::Sender::new(0),
            logins: parts.logins,
            certificates: parts.certificates,
            certificate_meters: CertificateMeters::default(),
            ca_pem: authority.ca_pem().to_owned(),
            authority: tokio::sync::Mutex::new(authority),
        }))
    }

    /// Waits until the edge of this process, if it has one, runs on everything that was committed so
    /// far; `false` if that takes longer than `within`.
    pub async fn is_applied(&self, within: std::time::Duration) -> bool {
        if self.edge.is_none() {
            return true;
        }
        let revision = *self.store.watch().borrow();
        let mut published = self.published.subscribe();
        let reached = published.wait_for(|published| *published >= revision);
        let reached = tokio::time::timeout(within, reached).await;
        matches!(reached, Ok(Ok(_)))
    }

    /// Makes what an empty store begins with and answers the first key's token; see
    /// [`Founder::first_start`].
    pub async fn bootstrap(&self, token: Option<&Secret>) -> Result<Option<Secret>, Fault> {
        let founder = Founder {
            ids: &self.ids,
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            pepper: &self.pepper,
            base: &self.settings.base_url,
            domain: &self.settings.edge_domain,
        };
        founder.first_start(token).await
    }

    /// Certificate of the installation's own authority, PEM: what clients must trust to reach https
    /// endpoints below the platform domain.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Follows events of the caller's account as they happen. Events about keys and credentials are for
    /// admins alone.
    pub fn tail(&self, caller: &Caller, spec: TailSpec) -> Result<Tail, Refusal> {
        let known = |name: &String| catalogue().find(name).is_some();
        if let Some(name) = spec.kinds.iter().find(|name| !known(name)) {
            let name: String = name.chars().take(64).collect();
            return Err(Refusal::new(
                code::EVENT_TYPE_UNKNOWN,
                format!("The event type `{name}` does not exist."),
            ));
        }
        for name in &spec.kinds {
            audit::may_follow(caller, name)?;
        }
        let mut kinds = spec.kinds;
        let is_shaped = !spec.filter.is_empty() || !spec.fields.is_empty();
        // With a filter or fields no kinds means those of traffic.
        if kinds.is_empty() && !is_shaped && caller.role != Role::Admin {
            kinds = resource::event_subscription::event_types();
            kinds.retain(|name| !audit::is_private(name));
        }
        self.delivery.tail(TailSpec {
            account: caller.account.clone(),
            kinds,
            ..spec
        })
    }

    fn cx<'a>(&'a self, caller: &'a Caller, base: &'a str) -> Cx<'a> {
        Cx {
            store: &self.store,
            clock: &*self.clock,
            entropy: &*self.entropy,
            ids: &self.ids,
            turns: &self.turns,
            seal: &self.seal,
            pepper: &self.pepper,
            settings: &self.settings,
            logins: &self.logins,
            caller,
            base: Base {
                viewer: (caller.role != Role::Admin).then_some(caller.owner_id.as_str()),
                ..self.base(base)
            },
        }
    }

    /// What views need, with the public base of `uri` fields.
    fn base<'a>(&self, uri: &'a str) -> Base<'a> {
        Base {
            uri,
            ports: self.settings.public_ports,
            viewer: None,
        }
    }
}

/// Every kind of event there is: those of traffic and those of the resources.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: std::sync::OnceLock<Catalogue> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| Catalogue::new(audit::kinds()))
}
