//! The addresses of a running server.

use std::net::SocketAddr;

use culvert_edge::Inherited;

use super::Server;

impl Server {
    /// `http://host:port` of the management API; empty if this process does not run it.
    pub fn api_url(&self) -> String {
        self.api_addr
            .map(|address| format!("http://{address}"))
            .unwrap_or_default()
    }

    /// The address of the API over TLS.
    pub fn api_tls_addr(&self) -> Option<SocketAddr> {
        self.api_tls_addr
    }

    /// The address for plain HTTP.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.http_addr()
    }

    /// The address for TLS.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.https_addr()
    }

    /// The address for agents.
    pub fn agents_addr(&self) -> Option<SocketAddr> {
        self.agents_addr
    }

    /// The address for Kubernetes operators.
    pub fn kubernetes_addr(&self) -> Option<SocketAddr> {
        self.parts.edge.as_ref()?.kubernetes_addr()
    }

    /// The address for SSH clients.
    pub fn ssh_addr(&self) -> Option<SocketAddr> {
        self.ssh_addr
    }

    /// The address for other nodes, if there may be any.
    pub fn nodes_addr(&self) -> Option<SocketAddr> {
        self.nodes_addr
    }

    /// The address for metrics.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
    }

    /// Addresses of inherited sockets that no setting uses.
    pub fn unused(&self, inherited: &Inherited) -> Vec<SocketAddr> {
        let wanted = [
            self.api_addr,
            self.api_tls_addr,
            self.agents_addr,
            self.ssh_addr,
            self.nodes_addr,
            self.metrics_addr,
            self.http_addr(),
            self.https_addr(),
            self.kubernetes_addr(),
        ];
        let is_wanted = |address: &SocketAddr| {
            let port = address.port();
            let is_of_pool = self
                .settings
                .tcp_ports()
                .is_ok_and(|(first, last)| (first..=last).contains(&port));
            is_of_pool || wanted.iter().flatten().any(|wanted| wanted.port() == port)
        };
        let addresses = inherited.addresses().into_iter();
        addresses.filter(|address| !is_wanted(address)).collect()
    }

    /// The line with the addresses of all listeners.
    pub fn ready_line(&self) -> String {
        let mut line = String::from("culvert ready");
        let api = self.api_addr.map(|address| format!("http://{address}"));
        let api_tls = self
            .api_tls_addr
            .map(|address| format!("https://{address}"));
        let parts = [
            ("api", api),
            ("api-tls", api_tls),
            ("http", self.http_addr().map(|address| address.to_string())),
            (
                "https",
                self.https_addr().map(|address| address.to_string()),
            ),
            (
                "kubernetes",
                self.kubernetes_addr().map(|address| address.to_string()),
            ),
            (
                "agents",
                self.agents_addr.map(|address| address.to_string()),
            ),
            ("ssh", self.ssh_addr.map(|address| address.to_string())),
            ("nodes", self.nodes_addr.map(|address| address.to_string())),
            (
                "metrics",
                self.metrics_addr.map(|address| address.to_string()),
            ),
        ];
        for (name, address) in parts {
            if let Some(address) = address {
                line.push_str(&format!(" {name}={address}"));
            }
        }
        line
    }

    /// The URL of the console for a browser on this machine. After the start that created the first key, it is a link
    /// that signs in once.
    pub fn console_url(&self) -> Option<String> {
        let port = self.api_addr?.port();
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
