//! What the last pass read and compiled, to detect changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use culvert_access::ip::restrictions::Restrictions;
use culvert_access::use_table::{UseTable, Uses};
use culvert_agents::heartbeat;
use culvert_agents::ingress::model::AgentIngress;
use culvert_certificates::acme;
use culvert_certificates::own_certificate::{self, Certified};
use culvert_delivery::{Replay, Source};
use culvert_edge_config::EndpointBinding;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_endpoints::endpoint::upstream_tls::UpstreamTlsOptions;
use culvert_endpoints::kubernetes_operator::active_operators::ActiveOperators;
use culvert_endpoints::kubernetes_operator::endpoint_selector::EndpointFacts;
use culvert_endpoints::reserved_domain::model::ReservedDomain;
use culvert_endpoints::traffic_policy::Compiled;
use culvert_event_config::destination::model::EventDestination;
use culvert_event_config::replay;
use culvert_event_config::subscription::model::EventSubscription;
use culvert_identity::application::login;
use culvert_login::{Logins, Revoked, UserKey};
use culvert_resources::resource::model::Model;
use culvert_resources::stored::informer_cache::InformerCache;
use culvert_store::{Document, Head, Revision};
use rustls::sign::CertifiedKey;

/// The documents of the last pass, to detect changes.
#[derive(Debug)]
pub(super) struct CompileState {
    /// Compiled endpoints; `None` for one that is skipped.
    pub(super) endpoints: InformerCache<Option<Ready>>,
    /// Runs of servers with agents: ID, and the address at which other nodes reach the agents.
    pub(super) runs: InformerCache<(String, Option<String>)>,
    pub(super) domains: InformerCache<Document>,
    pub(super) own_certificates: InformerCache<Option<Certified>>,
    pub(super) ingresses: InformerCache<Document>,
    pub(super) orders: InformerCache<Document>,
    pub(super) operators: ActiveOperators,
    pub(super) subscriptions: InformerCache<Subscribed>,
    /// The grants and the roles of owners.
    pub(super) uses: Uses,
    /// The rights to internal endpoints that the edge has.
    pub(super) forward_rights: Option<Arc<UseTable>>,
    pub(super) destinations: InformerCache<Document>,
    /// Replays with their owners; `None` for one that is skipped.
    pub(super) replays: InformerCache<Option<(Replay, String)>>,
    /// Changes that the edge does not have yet.
    pub(super) due: Due,
    /// The number of endpoints that present a certificate for names below each parent.
    pub(super) parents: BTreeMap<String, usize>,
    /// The IP restrictions and the other nodes of the snapshot.
    pub(super) restrictions: Option<Arc<Restrictions>>,
    pub(super) elsewhere: BTreeMap<String, String>,
    /// The revisions up to which restrictions and policies were read.
    pub(super) restrictions_at: Option<Revision>,
    pub(super) policies_at: Option<Revision>,
    /// Uploaded certificates in use, by ID. A certificate never changes under its ID.
    pub(super) certificates: HashMap<String, Arc<CertifiedKey>>,
    /// Changes that delivery does not have yet.
    pub(super) due_for_delivery: DueForDelivery,
    /// Whether delivery has a table.
    pub(super) has_delivery: bool,
    /// Destinations with an open target, and the revisions that the targets were opened from.
    pub(super) opened: HashMap<String, Revision>,
    /// Traffic policies in use.
    pub(super) policies: Compiled,
    /// Sessions that ended early, and whether the edge has them.
    pub(super) ends: InformerCache<Option<(UserKey, Revoked)>>,
    pub(super) has_ends: bool,
    /// The endpoints whose TLS to the upstream depends on other objects.
    pub(super) upstream_tls: UpstreamTlsState,
    /// When the snapshot was last built; its certificates become due for renewal.
    pub(super) snapshot_at: Option<Instant>,
}

/// Changes that were read since the edge was last updated. They stay due while passes fail.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) endpoints: BTreeSet<String>,
    pub(super) certificates: bool,
    pub(super) challenges: bool,
    pub(super) operators: bool,
    /// Where agents are connected, for streams to other nodes.
    pub(super) locations: bool,
}

/// Changes that were read since delivery was last updated. They stay due while passes fail.
#[derive(Debug, Default)]
pub(super) struct DueForDelivery {
    pub(super) subscriptions: BTreeSet<String>,
    pub(super) destinations: BTreeSet<String>,
    pub(super) replays: bool,
}

/// A compiled endpoint for the edge.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) endpoint: Arc<culvert_edge_config::Endpoint>,
    /// The host below the platform domain whose certificate it presents.
    pub(super) certificate_host: Option<String>,
    /// The endpoint's ID and the run that its agent is connected to, for an agent's endpoint.
    pub(super) served: Option<(String, String)>,
    /// The owner and the options of TLS to the upstream, if they name other objects.
    pub(super) upstream_tls: Option<(Head, String, UpstreamTlsOptions)>,
    /// What selectors of Kubernetes operators see, if they may bind it.
    pub(super) facts: Option<EndpointFacts>,
}

/// The endpoints whose options of TLS to the upstream name other objects.
#[derive(Debug, Default)]
pub(super) struct UpstreamTlsState {
    pub(super) endpoints: BTreeSet<String>,
    /// The revision up to which the objects were read, and the rights by which the endpoints may use them.
    pub(super) read_at: Option<Revision>,
    pub(super) read_by: Option<Arc<UseTable>>,
}

/// The parts of a subscription that delivery needs.
#[derive(Debug, Default)]
pub(super) struct Subscribed {
    /// The compiled traffic sources.
    pub(super) sources: Vec<Arc<Source>>,
    /// The owner, whose role decides whether events for admins are sent, and who must have the right to use the
    /// destinations.
    pub(super) owner_id: String,
    /// IDs of its destinations.
    pub(super) destination_ids: Vec<String>,
}

impl CompileState {
    pub(super) fn empty(logins: Arc<Logins>) -> Self {
        Self {
            endpoints: InformerCache::of(Endpoint::KIND),
            runs: InformerCache::of(heartbeat::KIND),
            domains: InformerCache::of(ReservedDomain::KIND),
            own_certificates: InformerCache::of(own_certificate::KIND),
            ingresses: InformerCache::of(AgentIngress::KIND),
            orders: InformerCache::of(acme::KIND),
            operators: ActiveOperators::empty(),
            subscriptions: InformerCache::of(EventSubscription::KIND),
            uses: Uses::empty(),
            forward_rights: None,
            destinations: InformerCache::of(EventDestination::KIND),
            replays: InformerCache::of(replay::KIND),
            due: Due::default(),
            parents: BTreeMap::new(),
            restrictions: None,
            elsewhere: BTreeMap::new(),
            restrictions_at: None,
            policies_at: None,
            certificates: HashMap::new(),
            due_for_delivery: DueForDelivery::default(),
            has_delivery: false,
            opened: HashMap::new(),
            policies: Compiled::new(logins),
            ends: InformerCache::of(login::KIND),
            has_ends: false,
            upstream_tls: UpstreamTlsState::default(),
            snapshot_at: None,
        }
    }

    /// An endpoint for the edge, with the Kubernetes operators that select it.
    pub(super) fn bound(&self, ready: &Ready) -> Arc<culvert_edge_config::Endpoint> {
        let Some(facts) = &ready.facts else {
            return Arc::clone(&ready.endpoint);
        };
        let mut endpoint = culvert_edge_config::Endpoint::clone(&ready.endpoint);
        let selecting = self.operators.selecting(&endpoint.account, facts);
        endpoint.binding = EndpointBinding::Kubernetes(selecting);
        Arc::new(endpoint)
    }
}
