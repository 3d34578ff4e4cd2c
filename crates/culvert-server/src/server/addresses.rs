//! The addresses of a running server.

use std::net::SocketAddr;

use culvert_edge::Inherited;

use super::Server;
use super::listeners::Listener;

impl Server {
    /// `http://host:port` of the management API; empty if this process does not run it.
    pub fn api_url(&self) -> String {
        self.addresses
            .get(Listener::Api)
            .map(|address| format!("http://{address}"))
            .unwrap_or_default()
    }

    /// The address of the API over TLS.
    pub fn api_tls_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::ApiTls)
    }

    /// The address for plain HTTP.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Http)
    }

    /// The address for TLS.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Https)
    }

    /// The address for agents.
    pub fn agents_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Agents)
    }

    /// The address for Kubernetes operators.
    pub fn kubernetes_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Kubernetes)
    }

    /// The address for SSH clients.
    pub fn ssh_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Ssh)
    }

    /// The address for other nodes, if there may be any.
    pub fn nodes_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Nodes)
    }

    /// The address for metrics.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.addresses.get(Listener::Metrics)
    }

    /// Addresses of inherited sockets that no setting uses.
    pub fn unused(&self, inherited: &Inherited) -> Vec<SocketAddr> {
        let is_wanted = |address: &SocketAddr| {
            let port = address.port();
            let is_of_pool = self
                .settings
                .tcp_ports()
                .is_ok_and(|(first, last)| (first..=last).contains(&port));
            is_of_pool
                || self
                    .addresses
                    .each()
                    .any(|(_, wanted)| wanted.port() == port)
        };
        let addresses = inherited.addresses().into_iter();
        addresses.filter(|address| !is_wanted(address)).collect()
    }

    /// The line with the addresses of all listeners.
    pub fn ready_line(&self) -> String {
        let mut line = String::from("culvert ready");
        for (listener, address) in self.addresses.each() {
            let scheme = match listener {
                Listener::Api => "http://",
                Listener::ApiTls => "https://",
                _ => "",
            };
            line.push_str(&format!(" {}={scheme}{address}", listener.name()));
        }
        line
    }

    /// The URL of the console for a browser on this machine. After the start that created the first key, it is a link
    /// that signs in once.
    pub fn console_url(&self) -> Option<String> {
        let port = self.addresses.get(Listener::Api)?.port();
        let page = match &self.settings.api.base_url {
            base if !base.is_empty() => format!("{}/console/", base.trim_end_matches('/')),
            _ => format!("http://localhost:{port}/console/"),
        };
        Some(match &self.console_link {
            // Browsers do not send what follows `#`.
            Some(secret) => format!("{page}#sign-in={}", secret.reveal()),
            None => page,
        })
    }

    /// Whether the URL of the console signs in.
    pub fn console_url_signs_in(&self) -> bool {
        self.console_link.is_some()
    }
}
