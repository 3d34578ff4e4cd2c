//! The management API, over plain HTTP and over TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_api::Api;
use culvert_base::BoxFuture;
use culvert_base::net::HostName;
use culvert_command::with_causes;
use culvert_control::Control;
use culvert_edge::Inherited;
use culvert_installation::config::{Role, Settings};
use tokio::net::TcpListener;

use crate::certificates::certificate_file::CertificateFile;
use crate::ingress;
use crate::server::foundation::Foundation;
use crate::server::listeners::Listener;
use crate::server::listening::listen;
use crate::server::part::{self, Name, Reason, Start};
use crate::server::plane_settings::api_settings;
use crate::server::readiness::Readiness;

/// The API of the settings, if this process has the role.
pub(super) fn plane(foundation: &Foundation) -> Result<Option<Arc<Api>>> {
    let opened = &foundation.opened;
    if !opened.has(Role::Api) {
        return Ok(None);
    }
    let health = Readiness {
        control: foundation.control.clone(),
        has_agents: opened.has(Role::Agents),
        store: opened.store.clone(),
        delivery: foundation.delivery.clone(),
        supervision: foundation.supervision.clone(),
        edge: foundation.edge.clone(),
        ip_data: foundation.ip_data.clone(),
        audit_tree: foundation.audit_tree.clone(),
        watch: foundation.watch.clone(),
        witnesses: foundation.witnesses.clone(),
    };
    let api = Api::new(
        foundation.control.clone(),
        Arc::new(health),
        api_settings(&opened.settings)?,
        opened.clock.clone(),
        opened.entropy.clone(),
    );
    Ok(Some(api.map_err(with_causes)?))
}

pub(super) struct Part {
    api: Arc<Api>,
    control: Arc<Control>,
    /// `None` once it is served.
    listener: Option<TcpListener>,
    /// The address of the listener over TLS; empty for none.
    tls_addr: String,
    inherited: Inherited,
    /// The operator's certificate.
    certificate: Option<Arc<CertificateFile>>,
    /// Names of the certificate of the installation's own CA.
    names: Vec<String>,
}

impl Part {
    pub(super) fn new(foundation: &mut Foundation, api: &Arc<Api>) -> Result<Self> {
        let listener = foundation.opened.api_listener.take();
        let opened = &foundation.opened;
        Ok(Self {
            api: Arc::clone(api),
            control: foundation.control.clone(),
            listener: Some(listener.context("the API has no listener")?),
            tls_addr: opened.settings.api.tls.addr.clone(),
            inherited: opened.inherited.clone(),
            certificate: foundation.certificates[1].clone(),
            names: api_names(&opened.given, &opened.domain),
        })
    }

    async fn start_tls(&self, start: &mut Start<'_>) -> Result<()> {
        let listener = listen("api.tls.addr", &self.tls_addr, &self.inherited).await?;
        start
            .addresses
            .insert(Listener::ApiTls, listener.local_addr()?);
        let own = self.certificate.clone().map(|own| own as _);
        let control = &self.control;
        let certificate = control
            .certificates
            .api_certificate(own, self.names.clone());
        let renew_at = control
            .certificates
            .renew_api_certificate(&certificate)
            .await;
        let renew_at = renew_at.map_err(with_causes)?;
        let tls = ingress::tls(certificate.clone(), &["h2", "http/1.1"])?;
        let api = self.api.clone();
        let serve = |stop| api.serve_tls(listener, tls, stop);
        start.tasks.start("api_tls", serve);
        let certificates = control.certificates.clone();
        let keep = |stop| certificates.keep_api_certificate(certificate, renew_at, stop);
        start.tasks.start("api_certificate", keep);
        Ok(())
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Api
    }

    /// Its requests may need agents, here and at other nodes.
    fn depends_on(&self) -> &'static [Name] {
        &[Name::Delivery, Name::Control, Name::Agents, Name::Nodes]
    }

    /// After a failure, `/readyz` reports it until the last request of the edge ends.
    fn outlives(&self, reason: Reason) -> &'static [Name] {
        match reason {
            Reason::Asked => &[],
            Reason::Failed => &[Name::Edge],
        }
    }

    fn start<'a>(&'a mut self, mut start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !self.tls_addr.is_empty() {
                self.start_tls(&mut start).await?;
            }
            if let Some(listener) = self.listener.take() {
                start
                    .addresses
                    .insert(Listener::Api, listener.local_addr()?);
                let api = self.api.clone();
                start.tasks.start("api", |stop| api.serve(listener, stop));
            }
            Ok(())
        })
    }
}

/// Names of the API's certificate of the installation's own CA: the host of its public URL, and the names that agents
/// may dial.
fn api_names(settings: &Settings, domain: &HostName) -> Vec<String> {
    let base_url = url::Url::parse(&settings.api.base_url).ok();
    let host = base_url.and_then(|url| Some(url.host_str()?.to_owned()));
    let bound = settings.api.tls.addr.parse::<SocketAddr>().ok();
    let bound = bound.map(|at| at.ip()).filter(|ip| !ip.is_unspecified());
    let mut names = ingress::names(settings, domain);
    for name in host.into_iter().chain(bound.map(|ip| ip.to_string())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
