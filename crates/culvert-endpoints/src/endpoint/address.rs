//! The address of an endpoint: parses the requested URL and chooses the address.

use culvert_base::names::is_deceptive;
use culvert_base::net::HostName;
use culvert_base::{Refusal, code};
use culvert_policy::Scheme;
use culvert_resources::access::{self, Referrer, owner};
use culvert_resources::cx::Cx;
use culvert_resources::cx::base::PublicPorts;
use culvert_resources::{Error, Role};
use culvert_store::Changes;
use serde_json::Value;

use crate::endpoint::model::{Address, AddressScheme, Binding};
use crate::pool::{self, Taken};
use crate::{platform, reserved_addr, reserved_domain, traffic_policy as policy};

/// The domain of hosts that only policies can reach.
const INTERNAL: &str = "internal";
/// Limit of labels before it.
const INTERNAL_LABELS_MAX: usize = 5;
/// Labels of a service in a cluster: `service.namespace`.
const KUBERNETES_LABELS: usize = 2;
/// Characters of the first label of a random name.
const RANDOM_NAME_LENGTH: usize = 12;

impl AddressScheme {
    const ALL: [Self; 4] = [Self::Http, Self::Https, Self::Tcp, Self::Tls];
    pub(crate) const NAMES: [&'static str; 4] = [
        Self::Http.name(),
        Self::Https.name(),
        Self::Tcp.name(),
        Self::Tls.name(),
    ];

    /// The port of public URLs, if the scheme has a fixed one.
    pub(super) const fn public_port(self, ports: PublicPorts) -> Option<u16> {
        match self {
            Self::Http => Some(ports.http),
            Self::Https | Self::Tls => Some(ports.https),
            Self::Tcp => None,
        }
    }

    /// The port of public endpoints, if the scheme has a fixed one.
    pub(super) const fn port(self) -> Option<u16> {
        match self {
            Self::Http => Some(80),
            Self::Https | Self::Tls => Some(443),
            Self::Tcp => None,
        }
    }

    /// The scheme in the edge's input.
    pub(super) const fn of_edge(self) -> Scheme {
        match self {
            Self::Http => Scheme::Http,
            Self::Https => Scheme::Https,
            Self::Tcp => Scheme::Tcp,
            Self::Tls => Scheme::Tls,
        }
    }

    pub(super) const fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Https)
    }
}

impl Address {
    /// What a traffic policy of this address is checked for.
    pub fn policy_target<'a>(
        &'a self,
        owner_id: &'a str,
        has_upstream: bool,
    ) -> policy::PolicyTarget<'a> {
        policy::PolicyTarget {
            owner_id,
            scheme: self.scheme.of_edge(),
            host: &self.host,
            has_upstream,
        }
    }
}

/// The key that only one pool of endpoints can hold: https and tls share a port, and names that are not public
/// are separate for each account.
pub(super) fn address_key(address: &Address, binding: Binding, account: &str) -> String {
    let Address { host, port, .. } = address;
    match binding {
        Binding::Public => format!("{port} {host}"),
        Binding::Internal => format!("{port} {host} {account}"),
        Binding::Kubernetes => format!("{port} {host} {account} kubernetes"),
    }
}

/// The key that belongs to one owner: a host with all its schemes and ports. For public TCP, where all
/// endpoints share a host, it is a host and port.
pub(super) fn name_key(address: &Address, binding: Binding, account: &str) -> String {
    let host = &address.host;
    match (binding, address.scheme) {
        (Binding::Internal, _) => format!("{host} {account}"),
        (Binding::Kubernetes, _) => format!("{host} {account} kubernetes"),
        (Binding::Public, AddressScheme::Tcp) => address.hostport(),
        (Binding::Public, _) => host.clone(),
    }
}

/// Limit of a URL: a host name of 253 bytes, with its scheme and port, in UTF-8.
const URL_BYTES_MAX: usize = 1024;

/// A URL as sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestedUrl {
    pub(super) scheme: AddressScheme,
    /// `None` for a random host.
    pub(super) host: Option<HostName>,
    pub(super) port: Option<u16>,
}

impl RequestedUrl {
    pub(super) fn parse(url: &str) -> Result<Self, Refusal> {
        let unreadable = |why: &str| {
            Refusal::new(
                code::ENDPOINT_URL_UNREADABLE,
                format!("The endpoint's `url` cannot be parsed: {why}."),
            )
        };
        // An accepted URL is shown as it was sent.
        if url.contains(|character: char| character.is_whitespace() || is_deceptive(character)) {
            return Err(unreadable("it must have no spaces or invisible characters"));
        }
        if url.len() > URL_BYTES_MAX {
            return Err(unreadable("it is too long"));
        }
        let (scheme, authority) = match url.split_once("://") {
            None => (AddressScheme::Https, url),
            Some((scheme, authority)) => {
                let named = |one: &AddressScheme| scheme.eq_ignore_ascii_case(one.name());
                let scheme = AddressScheme::ALL.into_iter().find(named);
                (
                    scheme.ok_or_else(|| Refusal::of(code::ENDPOINT_SCHEME_UNKNOWN))?,
                    authority,
                )
            }
        };
        // Browsers show URLs with a slash for an empty path.
        let authority = match scheme {
            AddressScheme::Http | AddressScheme::Https if authority.len() > 1 => {
                authority.strip_suffix('/').unwrap_or(authority)
            }
            _ => authority,
        };
        if authority.is_empty() {
            return Ok(Self {
                scheme,
                host: None,
                port: None,
            });
        }
        if authority.contains(['/', '?', '#', '@', '\\']) {
            return Err(unreadable(
                "it must consist of a scheme, a host and an optional port",
            ));
        }
        let (host, port) = match authority.split_once(':') {
            None => (authority, None),
            Some((host, port)) => {
                let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
                let number = port.parse().ok().filter(|port| is_number && *port > 0);
                let number =
                    number.ok_or_else(|| unreadable("a port must be a number from 1 to 65535"))?;
                (host, Some(number))
            }
        };
        let host = HostName::parse(host).map_err(|why| unreadable(&why.to_string()))?;
        Ok(Self {
            scheme,
            host: Some(host),
            port,
        })
    }

    pub(super) fn of(address: &Address) -> Self {
        Self {
            scheme: address.scheme,
            host: HostName::parse(&address.host).ok(),
            port: Some(address.port),
        }
    }

    /// Chooses the address, after checking that the installation can assign it or the account owns it.
    pub(super) async fn choose(
        self,
        cx: &Cx<'_>,
        referrer: Referrer<'_>,
        binding: Binding,
    ) -> Result<ChosenAddress, Error> {
        if binding == Binding::Internal {
            let host = self
                .host
                .as_deref()
                .and_then(|host| host.strip_prefix("*."));
            // It would keep every other owner from using internal names.
            if host == Some(INTERNAL) && !owner::is_caller_admin(cx).await? {
                let why = "Only admins may have an endpoint for all internal names.";
                return Err(Refusal::new(code::ENDPOINT_URL_NOT_RESERVED, why).into());
            }
            return Ok(self.choose_internal(cx)?);
        }
        if binding == Binding::Kubernetes {
            return Ok(self.choose_kubernetes(cx)?);
        }
        let (scheme, settings) = (self.scheme, cx.settings);
        let Some(usual) = scheme.port() else {
            return self.choose_tcp(cx, referrer).await;
        };
        // A URL that was shown with another port is accepted; it names the same address.
        let shown = scheme.public_port(settings.public_ports);
        if self
            .port
            .is_some_and(|port| port != usual && Some(port) != shown)
        {
            return Err(Refusal::of(code::ENDPOINT_PORT_WRONG).into());
        }
        let domain = &settings.edge_domain;
        let (host, domain_id, condition) = match self.host {
            None => {
                let host = format!("{}.{domain}", random_label(cx));
                (host, None, Changes::default())
            }
            Some(host) => {
                let since = cx.store.revision().await?;
                let covering = reserved_domain::covering(cx, &host).await?;
                let is_free = covering.is_none()
                    && is_below(&host, domain)
                    && !platform::is_own(cx.settings, &host)
                    && !reserved_domain::is_kin_of_another(cx, &host).await?;
                let may_serve = cx.caller.role == Role::Admin
                    || !platform::is_own_elsewhere(cx.settings, &host);
                let mut held = reserved_domain::as_it_was(&host, since);
                let id = match covering {
                    Some(found) if found.head.account == cx.caller.account && may_serve => {
                        let ty = &reserved_domain::TYPE;
                        held = held.and(access::may_use(cx, referrer, ty, &found, false).await?);
                        Some(found.head.id)
                    }
                    None if is_free => None,
                    _ => {
                        return Err(Refusal::new(
                            code::ENDPOINT_URL_NOT_RESERVED,
                            match platform::is_own(cx.settings, &host) {
                                true => platform::refusal(cx.settings, &host),
                                false => format!("The host must be covered by a reserved domain of the account or be an unused subdomain of `{domain}`."),
                            },
                        )
                        .into());
                    }
                };
                (host.to_string(), id, held)
            }
        };
        let address = Address {
            url: whole(scheme, &host, None),
            scheme,
            host,
            port: usual,
            sent: None,
        };
        Ok(ChosenAddress {
            address,
            domain_id,
            tcp_addr_id: None,
            pool_changes: None,
            condition,
        })
    }

    /// Chooses an internal address, which belongs to the account.
    fn choose_internal(self, cx: &Cx<'_>) -> Result<ChosenAddress, Refusal> {
        let host = match self.host {
            Some(host) => host.to_string(),
            None => format!("{}.{INTERNAL}", random_label(cx)),
        };
        if !(2..=1 + INTERNAL_LABELS_MAX).contains(&host.split('.').count()) {
            let why = format!(
                "An internal host must have 1 to {INTERNAL_LABELS_MAX} labels before `.{INTERNAL}`."
            );
            return Err(Refusal::new(code::ENDPOINT_FIELD_INVALID, why));
        }
        ChosenAddress::private(self.scheme, host, self.port)
    }

    /// Chooses the address of a service in the clusters of the account.
    fn choose_kubernetes(self, cx: &Cx<'_>) -> Result<ChosenAddress, Refusal> {
        if cx.settings.kubernetes_ingress.is_empty() {
            let why = "This installation accepts no Kubernetes operators: its setting `kubernetes.addr` is empty.";
            return Err(Refusal::new(code::ENDPOINT_FIELD_INVALID, why));
        }
        let host = self.host.filter(|host| {
            let mut labels = host.split('.');
            let is_dns_name = host.bytes().all(|byte| !matches!(byte, b'*' | b'_'));
            is_dns_name && labels.by_ref().count() == KUBERNETES_LABELS
        });
        let Some(host) = host else {
            let why = "The host of an endpoint with the binding `kubernetes` must be `service.namespace`.";
            return Err(Refusal::new(code::ENDPOINT_FIELD_INVALID, why));
        };
        ChosenAddress::private(self.scheme, host.to_string(), self.port)
    }

    async fn choose_tcp(self, cx: &Cx<'_>, referrer: Referrer<'_>) -> Result<ChosenAddress, Error> {
        let mut condition = Changes::default();
        let (host, port, tcp_addr_id, pool_changes) = match (self.host, self.port) {
            (None, preferred) => {
                let taken = pool::take(cx, preferred).await?.ok_or_else(|| {
                    Refusal::new(
                        code::ENDPOINT_FIELD_INVALID,
                        "No TCP address is available: all addresses of the pool are in use, or you have half of them, which is the limit of one owner.",
                    )
                })?;
                let Taken { port, pool_changes } = taken;
                (pool::host(cx.settings), port, None, Some(pool_changes))
            }
            (Some(_), None) => return Err(Refusal::of(code::ENDPOINT_URL_WITHOUT_PORT).into()),
            (Some(host), Some(port)) => {
                let reserved = reserved_addr::of(cx, &format!("{host}:{port}")).await?;
                let document = reserved.ok_or_else(|| {
                    Refusal::new(
                        code::ENDPOINT_URL_NOT_RESERVED,
                        "The host and port of a TCP endpoint must be a reserved address of the account; `tcp://` without a host assigns a free one.",
                    )
                })?;
                let ty = &reserved_addr::TYPE;
                condition = access::may_use(cx, referrer, ty, &document, false).await?;
                (host.to_string(), port, Some(document.head.id), None)
            }
        };
        let address = Address {
            url: format!("{}://{host}:{port}", self.scheme.name()),
            scheme: self.scheme,
            host,
            port,
            sent: None,
        };
        Ok(ChosenAddress {
            address,
            domain_id: None,
            tcp_addr_id,
            pool_changes,
            condition,
        })
    }
}

/// An address that the endpoint may use, and the changes that it needs.
#[derive(Debug)]
pub(super) struct ChosenAddress {
    pub(super) address: Address,
    pub(super) domain_id: Option<String>,
    pub(super) tcp_addr_id: Option<String>,
    /// The writes that assign an address of the pool.
    pub(super) pool_changes: Option<Changes>,
    /// The condition that must hold. Part of every commit that uses the address.
    pub(super) condition: Changes,
}

/// A URL in the spelling of the server; a text that is no URL of an endpoint stays as it is.
pub(crate) fn written(url: &str) -> String {
    let Ok(wanted) = RequestedUrl::parse(url) else {
        return url.to_owned();
    };
    match wanted.host {
        Some(host) => whole(wanted.scheme, &host.to_string(), wanted.port),
        None => url.to_owned(),
    }
}

/// The URL of an address, without the usual port of its scheme.
fn whole(scheme: AddressScheme, host: &str, port: Option<u16>) -> String {
    let name = scheme.name();
    match port {
        Some(port) if Some(port) != scheme.port() => format!("{name}://{host}:{port}"),
        _ => format!("{name}://{host}"),
    }
}

/// The URLs that the endpoints which a URL may name have as they are stored. Which of them it names, [`names`] says.
pub(super) fn stored_urls(ports: PublicPorts, url: &str) -> Vec<String> {
    let Ok(RequestedUrl {
        scheme,
        host: Some(host),
        port,
    }) = RequestedUrl::parse(url)
    else {
        // It names none.
        return vec![url.to_owned()];
    };
    let other = whole(scheme, &host, port);
    if host.is_within(INTERNAL) {
        return vec![other];
    }
    let mut urls = vec![whole(scheme, &host, public(scheme, port, ports))];
    // A service in a cluster may have any port.
    if host.split('.').count() == KUBERNETES_LABELS && !urls.contains(&other) {
        urls.push(other);
    }
    urls
}

/// Whether a URL names an endpoint: it would be the endpoint's address if it were sent with its binding. `endpoint` is the view,
/// with the URL as it is stored.
pub(super) fn names(ports: PublicPorts, url: &str, endpoint: &Value) -> bool {
    let Ok(wanted) = RequestedUrl::parse(url) else {
        return false;
    };
    let is_public = endpoint["bindings"][0] == Binding::Public.name();
    let port = match is_public {
        true => public(wanted.scheme, wanted.port, ports),
        false => wanted.port,
    };
    let host = wanted.host.as_deref();
    host.is_some_and(|host| endpoint["url"] == *whole(wanted.scheme, host, port))
}

/// The port of a public endpoint, of one in a URL: the port that URLs are shown with stands for none.
fn public(scheme: AddressScheme, port: Option<u16>, ports: PublicPorts) -> Option<u16> {
    port.filter(|port| Some(*port) != scheme.public_port(ports))
}

impl ChosenAddress {
    /// An address that is not public, with any port.
    fn private(scheme: AddressScheme, host: String, port: Option<u16>) -> Result<Self, Refusal> {
        let url = whole(scheme, &host, port);
        let port = port
            .or(scheme.port())
            .ok_or_else(|| Refusal::of(code::ENDPOINT_URL_WITHOUT_PORT))?;
        Ok(Self {
            address: Address {
                scheme,
                host,
                port,
                url,
                sent: None,
            },
            domain_id: None,
            tcp_addr_id: None,
            pool_changes: None,
            condition: Changes::default(),
        })
    }
}

fn random_label(cx: &Cx<'_>) -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    cx.entropy.text(LETTERS, RANDOM_NAME_LENGTH)
}

/// Whether a host is a name below `domain`, but not the wildcard of all its names.
fn is_below(host: &HostName, domain: &HostName) -> bool {
    host.is_within(domain) && host != domain && host.strip_prefix("*.") != Some(domain)
}

/// The binding of an endpoint: the given one, or the one that its host implies.
pub(super) fn binding(given: &[String], wanted: &RequestedUrl) -> Result<Binding, Refusal> {
    for (index, name) in given.iter().enumerate() {
        if !matches!(name.as_str(), "public" | "internal" | "kubernetes") {
            return Err(Refusal::of(code::BINDING_UNKNOWN));
        }
        if given.iter().take(index).any(|earlier| earlier == name) {
            return Err(Refusal::of(code::BINDING_REPEATED));
        }
    }
    let is_internal = wanted
        .host
        .as_ref()
        .is_some_and(|host| host.is_within(INTERNAL));
    match given {
        [_, _, ..] => Err(Refusal::new(
            code::ENDPOINT_FIELD_INVALID,
            "An endpoint may have at most one binding.",
        )),
        [name] if name == "kubernetes" && wanted.scheme == AddressScheme::Https => {
            Err(Refusal::of(code::KUBERNETES_SCHEME_UNSUPPORTED))
        }
        [name] if name == "kubernetes" => Ok(Binding::Kubernetes),
        [name] if name == "public" && is_internal => Err(Refusal::new(
            code::ENDPOINT_FIELD_INVALID,
            "A host that ends in `.internal` requires the binding `internal`.",
        )),
        [name] if name == "internal" && wanted.host.is_some() && !is_internal => Err(Refusal::new(
            code::ENDPOINT_FIELD_INVALID,
            "The host of an endpoint with the binding `internal` must end in `.internal`.",
        )),
        [name] if name == "internal" => Ok(Binding::Internal),
        _ if is_internal => Ok(Binding::Internal),
        _ => Ok(Binding::Public),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn parse(url: &str) -> Result<(AddressScheme, Option<String>, Option<u16>), u16> {
        RequestedUrl::parse(url)
            .map(|wanted| {
                (
                    wanted.scheme,
                    wanted.host.map(|host| host.to_string()),
                    wanted.port,
                )
            })
            .map_err(|refusal| refusal.code.unwrap().number())
    }

    #[test]
    fn endpoint_urls_are_parsed_or_refused() {
        use AddressScheme::{Http, Https, Tcp, Tls};
        let host = |name: &str| Some(name.to_owned());
        for (url, expected) in [
            ("", Ok((Https, None, None))),
            ("http://", Ok((Http, None, None))),
            ("TCP://", Ok((Tcp, None, None))),
            ("A.Example", Ok((Https, host("a.example"), None))),
            ("a.example:443", Ok((Https, host("a.example"), Some(443)))),
            (
                "tls://a.example:443",
                Ok((Tls, host("a.example"), Some(443))),
            ),
            ("http://*.a.example", Ok((Http, host("*.a.example"), None))),
            ("ftp://a.example", Err(18022)),
            ("://a.example", Err(18022)),
            ("https://A.example/", Ok((Https, host("a.example"), None))),
            (
                "http://a.example:80/",
                Ok((Http, host("a.example"), Some(80))),
            ),
            ("a.example/", Ok((Https, host("a.example"), None))),
            ("/", Err(18001)),
            ("https:///", Err(18001)),
            ("https://a.example//", Err(18001)),
            ("https://a.example/b", Err(18001)),
            ("tcp://a.example:1/", Err(18001)),
            ("tls://a.example/", Err(18001)),
            ("https://user@a.example", Err(18001)),
            ("https://a.example:x", Err(18001)),
            ("https://a.example:0", Err(18001)),
            ("https://a.example:+1", Err(18001)),
            ("https://a.example:65536", Err(18001)),
            ("https://127.0.0.1", Err(18001)),
            ("https://[::1]:443", Err(18001)),
            ("https://a b", Err(18001)),
            ("https://a.example ", Err(18001)),
            ("https://a\u{200b}.example", Err(18001)),
            ("https://a\u{ad}.example", Err(18001)),
            ("\thttps://a.example", Err(18001)),
        ] {
            assert_eq!(parse(url), expected, "{url}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(url in "\\PC{0,80}|(http|tls|tcp|https)://[a-z.*:0-9]{0,30}") {
            drop(RequestedUrl::parse(&url));
        }
    }
}
