//! Control, as the settings describe it.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::Clock;
use culvert_base::net::HostName;
use culvert_command::{Invalid, with_causes};
use culvert_control::{
    AgentSettings, AlertEvaluator, AlertSettings, ConsoleProvider, ConsoleSignIn, Control,
    EdgePort, LeakPartner, Leaked, LoginKeys, LoginSettings, Logins, Parts, PolicyRuntime,
    RunFacts, ServerWatch, Statistics, Targets, login_key,
};
use culvert_delivery::Delivery;
use culvert_destinations::TYPES;
use culvert_edge::Edge;
use culvert_installation::certificate_checks::CertificateChecks;
use culvert_installation::config::{DomainUse, LeakedTokens, Settings};
use culvert_installation::keys::MasterKey;
use culvert_login::JournalEntry;
use culvert_policy::IpDatabases;
use culvert_target::TargetSettings;
use culvert_tunnel::server::Bindings;
use tokio::sync::mpsc;

use super::edge::Published;
use crate::certificates::issuer;
use crate::ingress;
use crate::nodes::cluster::Membership;
use crate::server::opened::{Opened, Secrets};
use crate::server::plane_settings::{edge_settings, public_ports};

/// The parts of this process that control compiles to, or asks.
pub(crate) struct Around<'a> {
    pub(crate) delivery: &'a Arc<Delivery>,
    pub(crate) edge: Option<&'a Edge>,
    pub(crate) published: Option<&'a Arc<Published>>,
    pub(crate) ip_data: &'a IpDatabases,
    pub(crate) bindings: Option<&'a Arc<Bindings>>,
    pub(crate) membership: &'a Membership,
}

/// The plane of the settings, and the receiver of the journal of sign-ins.
pub(crate) async fn plane(
    opened: &Opened,
    secrets: Secrets,
    around: Around<'_>,
) -> Result<(Arc<Control>, mpsc::Receiver<JournalEntry>)> {
    let settings = &opened.settings;
    let agents = agent_settings(opened, around.membership);
    let (policies, entries) = policies(settings, &opened.master, around.ip_data)?;
    let control = Control::open(Parts {
        ids: opened.ids.clone(),
        store: opened.store.clone(),
        clock: opened.clock.clone(),
        entropy: opened.entropy.clone(),
        seal: secrets.seal,
        pepper: secrets.pepper,
        settings: control_settings(
            settings,
            &opened.domain,
            around.edge,
            Public {
                names: agents.names.clone(),
                targets: opened.targets()?,
                base_url: opened.base_url.clone(),
            },
        )?,
        delivery: around.delivery.clone(),
        target_types: TYPES,
        edge: around
            .published
            .cloned()
            .map(|published| published as Arc<dyn EdgePort>),
        policies,
        console_sign_in: console_sign_in(settings, opened.clock.clone())?,
        leak_partner: leak_partner(settings, opened.clock.clone())?,
        certificates: match around.edge {
            Some(edge) => Some(issuer::certificates(settings, edge, opened.clock.clone())?),
            None => None,
        },
        checks: Some(Arc::new(CertificateChecks::new(
            settings,
            around.edge.into_iter().flat_map(issuer::own_addresses),
            opened.clock.clone(),
        ))),
        agents: around.bindings.cloned().map(|bindings| (bindings, agents)),
        nodes: around.membership.nodes.clone(),
        statistics: Statistics::new(
            opened.queue.clone(),
            settings.node(),
            settings.statistics.of_control(),
        ),
    });
    let control = control.await.map_err(with_causes)?;
    let lost = opened.lost_events.clone();
    let noted = control.events.note_lost_events(lost).await;
    noted.map_err(with_causes)?;
    Ok((control, entries))
}

/// Reports what this process does.
pub(crate) fn watch(opened: &Opened, control: &Arc<Control>) -> Arc<ServerWatch> {
    let settings = &opened.settings;
    let facts = RunFacts {
        node: control.node().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        roles: settings.roles.iter().map(|role| role.name()).collect(),
        region: settings.region.clone(),
        is_shared: opened.is_shared(),
        started_at: opened.started_at,
    };
    let unused = settings.audit.key_unused_after.0;
    Arc::new(ServerWatch::new(control.clone(), facts, unused))
}

/// Evaluates alert rules.
pub(crate) fn alerts(opened: &Opened, control: &Arc<Control>) -> Arc<AlertEvaluator> {
    let settings = &opened.settings.alerts;
    let settings = AlertSettings {
        defaults: settings.defaults,
        interval: settings.interval.0,
        is_shared: opened.is_shared(),
    };
    Arc::new(AlertEvaluator::new(control.clone(), settings))
}

fn agent_settings(opened: &Opened, membership: &Membership) -> AgentSettings {
    let settings = &opened.settings;
    AgentSettings {
        node: settings.node(),
        region: settings.region.clone(),
        names: ingress::names(&opened.given, &opened.domain),
        is_alone: !opened.is_shared(),
        address: membership.address.clone(),
        names_kept: settings.agents.name_reservation.0,
        limits: settings.limits.of_agents(),
    }
}

/// How others reach the installation, and the installation others.
pub(crate) struct Public {
    /// The names of the listener for agents.
    pub(crate) names: Vec<String>,
    pub(crate) targets: TargetSettings,
    /// Base of `uri` fields in events.
    pub(crate) base_url: String,
}

pub(crate) fn control_settings(
    settings: &Settings,
    domain: &HostName,
    edge: Option<&Edge>,
    public: Public,
) -> Result<culvert_control::Settings> {
    let (first, last) = settings.tcp_ports()?;
    let mut own_names = public.names;
    own_names.push(settings.kubernetes.host(domain));
    own_names.extend(settings.acme.names.iter().cloned());
    let kubernetes_addr = edge.and_then(Edge::kubernetes_addr);
    Ok(culvert_control::Settings {
        edge_domain: domain.clone(),
        reserved_names: settings.edge.reserved_names.clone(),
        public_ports: public_ports(settings, edge),
        tcp_ports: first..=last,
        allow_private_upstreams: settings.edge.allow_private_upstreams,
        allow_unix_upstreams: settings.edge.allowed_sockets()?,
        allow_file_upstreams: settings.edge.allowed_folders()?,
        has_tls_before_edge: !settings.edge.trusted_proxies.is_empty(),
        domains_of_owner: settings.rights.domains == DomainUse::Owner,
        allow_public_calls: settings.policy.http_request_public,
        strict_rights: settings.rights.strict,
        own_names,
        kubernetes_ingress: settings.kubernetes.ingress(domain, kubernetes_addr),
        targets: Arc::new(Targets {
            types: TYPES,
            settings: public.targets,
        }),
        token_form: settings.keys.token_form.into(),
        leaked: match settings.keys.leaked {
            LeakedTokens::Revoke => Leaked::Revoked,
            LeakedTokens::Flag => Leaked::Flagged,
        },
        base_url: public.base_url,
        agent_minimum: settings.agents.minimum(),
    })
}

/// What traffic policies may use of this process, and the receiver of the journal of sign-ins.
pub(crate) fn policies(
    settings: &Settings,
    master: &MasterKey,
    ip_data: &IpDatabases,
) -> Result<(PolicyRuntime, mpsc::Receiver<JournalEntry>), Invalid> {
    let on_expression_error = settings.policy.on_expression_error.into();
    let keys = LoginKeys::new(master.each().map(login_key));
    let settings = LoginSettings {
        issuer: settings.base_url(),
        allows_loopback: settings.edge.allow_private_upstreams,
        ..settings.oauth.logins()?
    };
    let (logins, entries) = Logins::new(keys, settings);
    let policies = PolicyRuntime {
        logins,
        ip_data: ip_data.clone(),
        on_expression_error,
    };
    Ok((policies, entries))
}

/// The partner whose signed reports of leaked tokens are accepted, if the settings name one.
pub(crate) fn leak_partner(
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Option<LeakPartner>> {
    let allows_loopback = settings.edge.allow_private_upstreams;
    let Some(url) = settings.keys.partner(allows_loopback)? else {
        return Ok(None);
    };
    let services =
        culvert_edge::client_services(edge_settings(settings)?, clock).map_err(with_causes)?;
    let partner = LeakPartner::new(url, allows_loopback, services).ok_or_else(|| {
        let why = "`keys.leak_partner_url` must be an https URL";
        Invalid(why.to_owned())
    })?;
    Ok(Some(partner))
}

/// How people sign in to the console at an OpenID provider, if the settings name one.
pub(crate) fn console_sign_in(
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Option<ConsoleSignIn>> {
    let allows_loopback = settings.edge.allow_private_upstreams;
    let Some((provider, name, roles)) = settings.console.openid.provider(allows_loopback)? else {
        return Ok(None);
    };
    let services =
        culvert_edge::client_services(edge_settings(settings)?, clock).map_err(with_causes)?;
    let provider = ConsoleProvider::new(provider, services).ok_or_else(|| {
        let why = "`console.openid.issuer_url` must be an https URL";
        Invalid(why.to_owned())
    })?;
    Ok(Some(ConsoleSignIn {
        provider,
        name,
        roles,
    }))
}
