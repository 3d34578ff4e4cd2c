//! The listeners for agents, over TLS and over SSH.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_base::BoxFuture;
use culvert_command::with_causes;
use culvert_control::Control;
use culvert_edge::{Edge, Inherited};
use culvert_installation::config::{Agents, Settings, SshClientKey, SshHostKey};
use culvert_ssh::{ClientKeyType, HostKey, HostKeyType, SshIngress, SshKeys};
use culvert_tunnel::server::{AgentAuthorizer, Ingress, Server};

use crate::certificates::certificate_file::CertificateFile;
use crate::ingress;
use crate::server::foundation::Foundation;
use crate::server::listeners::Listener;
use crate::server::listening::listen;
use crate::server::part::{self, Name, Reason, Start};

/// Time limit for agents to connect to other nodes before this one stops.
const AGENTS_MOVE: Duration = Duration::from_secs(10);
/// Time limit for agents to reconnect at another node after their connection was closed.
const AGENTS_RETURN: Duration = Duration::from_secs(3);

/// The server of agents' sessions, if agents can connect to this process.
pub(super) fn plane(foundation: &Foundation) -> Option<Arc<Server>> {
    let settings = &foundation.opened.settings;
    let control = &foundation.control;
    let authorizer: Arc<dyn AgentAuthorizer> = match foundation.edge.clone() {
        Some(edge) => Arc::new(ingress::Waiting {
            authorizer: control.agents.clone(),
            edge,
        }),
        None => control.agents.clone(),
    };
    let bindings = foundation.bindings.clone()?;
    let server = Server::new(authorizer, bindings, settings.region.clone())
        .with_connect_addresses(settings.agents.connect_addresses.clone())
        .with_endpoints_max(settings.limits.endpoints_per_session_max as usize);
    Some(Arc::new(server))
}

pub(super) struct Part {
    settings: Settings,
    inherited: Inherited,
    control: Arc<Control>,
    server: Arc<Server>,
    edge: Option<Edge>,
    /// The operator's certificate.
    certificate: Option<Arc<CertificateFile>>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation, server: &Arc<Server>) -> Self {
        Self {
            settings: foundation.opened.settings.clone(),
            inherited: foundation.opened.inherited.clone(),
            control: foundation.control.clone(),
            server: Arc::clone(server),
            edge: foundation.edge.clone(),
            certificate: foundation.certificates[0].clone(),
        }
    }

    async fn start_tls(&self, start: &mut Start<'_>) -> Result<()> {
        let settings = &self.settings;
        let listener = listen("agents.addr", &settings.agents.addr, &self.inherited).await?;
        start
            .addresses
            .insert(Listener::Agents, listener.local_addr()?);
        let own = self.certificate.clone().map(|own| own as _);
        let resolver = self
            .control
            .agents
            .agent_certificate(own)
            .context("the agent ingress has no certificate")?;
        let legs = settings.agents.connect_addresses.len();
        let limits = settings.limits.agent_connections(legs);
        let tls = ingress::tls(resolver, &[])?;
        let mut ingress = Ingress::new(listener, tls, self.server.clone(), limits)
            .with_congestion_control(self.settings.agents.congestion_control()?);
        if let Some(edge) = self.edge.clone() {
            ingress = ingress.with_runtimes(move || edge.next_thread());
        }
        start.tasks.start("agents", |stop| ingress.run(stop));
        Ok(())
    }

    async fn start_ssh(&self, start: &mut Start<'_>) -> Result<()> {
        let address = &self.settings.agents.ssh_addr;
        let listener = listen("agents.ssh_addr", address, &self.inherited).await?;
        start
            .addresses
            .insert(Listener::Ssh, listener.local_addr()?);
        let seed = self
            .control
            .certificates
            .ssh_host_seed()
            .await
            .map_err(with_causes)?;
        let keys = ssh_keys(&self.settings.agents, &seed);
        for key in &keys.host {
            tracing::info!(fingerprint = key.fingerprint(), "the SSH host key");
        }
        let limits = self.settings.limits.ssh_connections();
        let ingress = SshIngress::new(listener, &keys, self.server.clone(), limits);
        start.tasks.start("ssh", |stop| ingress.run(stop));
        Ok(())
    }

    /// If another node accepts agents, stops accepting agents here and asks connected ones to connect elsewhere.
    /// Waits for at most `patience`.
    async fn move_elsewhere(&self, patience: Duration) {
        let lost = self.control.agents.agents_away();
        match tokio::time::timeout(patience, self.control.agents.begin_drain()).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return,
            Ok(Err(fault)) => {
                let cause = fault.chain();
                tracing::warn!(%cause, "agents stay connected until this node stops");
                return;
            }
            Err(_) => return,
        }
        self.server.closing().cancel();
        let moved = self.server.bindings().ask_to_move(patience).await;
        // Waits until agents are back at other nodes. The sessions of all others end with this node.
        let away = self
            .control
            .agents
            .wait_for_agents_elsewhere(&lost, AGENTS_RETURN)
            .await;
        tracing::info!(
            away,
            asked = moved.asked,
            left = moved.left,
            ended = moved.ended,
            cut = moved.cut,
            "moved agents to other nodes"
        );
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Agents
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Control, Name::AgentSessions]
    }

    /// The last requests of the edge may need agents, which may need minutes to reconnect elsewhere.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[Name::Edge]
    }

    fn start<'a>(&'a mut self, mut start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !self.settings.agents.addr.is_empty() {
                self.start_tls(&mut start).await?;
            }
            if !self.settings.agents.ssh_addr.is_empty() {
                self.start_ssh(&mut start).await?;
            }
            Ok(())
        })
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        let patience = self.settings.shutdown.drain.0.min(AGENTS_MOVE);
        Box::pin(self.move_elsewhere(patience))
    }
}

/// The keys of the SSH listener, and those it accepts.
fn ssh_keys(settings: &Agents, seed: &[u8; 32]) -> SshKeys {
    let host = settings.ssh_host_keys.iter().map(|kind| {
        let kind = match kind {
            SshHostKey::Ed25519 => HostKeyType::Ed25519,
            SshHostKey::EcdsaP256 => HostKeyType::EcdsaP256,
        };
        HostKey::derive(kind, seed)
    });
    let client = settings.ssh_client_keys.iter().map(|kind| match kind {
        SshClientKey::Ed25519 => ClientKeyType::Ed25519,
        SshClientKey::SkEd25519 => ClientKeyType::SkEd25519,
        SshClientKey::Ecdsa => ClientKeyType::Ecdsa,
        SshClientKey::SkEcdsa => ClientKeyType::SkEcdsa,
    });
    SshKeys {
        host: host.collect(),
        client: client.collect(),
    }
}
