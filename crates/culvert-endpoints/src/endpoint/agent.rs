//! Endpoints that agents serve: what an agent may request, and the stored form (contract: agent protocol 5.2).

use std::time::Duration;

use culvert_base::names::escaped;
use culvert_base::{Code, Description, Metadata, Refusal, code};
use culvert_edge_config::{Clients, Protocol, ProxyVersion, Upstream};
use culvert_policy::Scheme;
use culvert_resources::access::Referrer;
use culvert_resources::access::acl::Bound;
use culvert_resources::cx::Cx;
use culvert_resources::stored::Format;
use culvert_resources::{Error, service, stored};
use culvert_store::{Changes, Document};

use crate::endpoint::address::{ChosenAddress, RequestedUrl, address_key};
use crate::endpoint::model::{Address, AddressScheme, Binding, Endpoint, Served};
pub use crate::endpoint::timeouts::RequestedTimeouts;
use crate::endpoint::timeouts::Timeouts;
use crate::endpoint::{TYPE, address};
use crate::traffic_policy::model::StoredPolicy;
use crate::{address_lock, host, pool, reserved_domain};

impl Served {
    /// The upstream of the endpoint's traffic.
    pub(crate) fn upstream(&self, endpoint_id: &str, scheme: Scheme) -> Upstream {
        let protocol = match self.forwards_proto.as_str() {
            "http2" => Protocol::Http2,
            _ => Protocol::Http1,
        };
        let proxy = match self.proxy_version {
            1 => Some(ProxyVersion::One),
            2 => Some(ProxyVersion::Two),
            _ => None,
        };
        // An application that accepts the connections itself may read the client address of each, so a
        // stream must not serve several clients.
        let clients = match self.is_forwarded() {
            true => Clients::Shared,
            false => Clients::Apart,
        };
        Upstream::agent(endpoint_id, scheme, protocol, proxy, clients)
    }

    /// Whether the agent forwards connections to a service at an address, which sees them as the agent's. The
    /// official agents then announce the URL or `host:port`. If the application itself accepts the
    /// connections, they announce `app://` and the program, or a text that the application chose.
    fn is_forwarded(&self) -> bool {
        let at = match self.forwards_to.split_once("://") {
            Some(("http" | "https", rest)) => rest,
            Some(_) => return false,
            None => &self.forwards_to,
        };
        let place = at.split('/').next().unwrap_or_default();
        match place.rsplit_once(':') {
            Some((host, port)) => !host.is_empty() && port.parse::<u16>().is_ok(),
            None => at.len() < self.forwards_to.len() && !place.is_empty(),
        }
    }
}

/// An address that an agent may use, and the binding that decides which traffic reaches it.
#[derive(Debug)]
pub struct AgentAddress(ChosenAddress, Binding);

impl AgentAddress {
    /// The whole URL.
    pub fn url(&self) -> &str {
        &self.0.address.url
    }

    /// `host`, or `host:port` for a TCP address.
    pub fn name(&self) -> String {
        match self.0.address.scheme {
            AddressScheme::Tcp => self.0.address.hostport(),
            _ => self.0.address.host.clone(),
        }
    }

    /// Whether the ACL of a credential allows the address.
    pub fn admitted_by(&self, acl: &culvert_resources::access::acl::Acl) -> bool {
        match self.0.address.scheme {
            AddressScheme::Tcp => acl.admits(Bound::Address(&self.0.address.hostport())),
            _ => acl.admits(Bound::Host(&self.0.address.host)),
        }
    }

    /// IDs of the endpoints at the address.
    pub async fn occupants(&self, cx: &Cx<'_>) -> Result<Vec<String>, Error> {
        address_lock::at(
            cx,
            &address_key(&self.0.address, self.1, &cx.caller.account),
        )
        .await
    }
}

/// What an agent requests besides an address.
#[derive(Debug)]
pub struct RequestedOptions<'a> {
    /// The protocol that the agent names, such as `https`.
    pub proto: &'a str,
    /// The bindings that the agent names.
    pub bindings: &'a [String],
    /// The port to choose if the agent requests no address and the port is still available.
    pub tcp_port: Option<u16>,
}

/// Chooses the address for a request. `requested` is a URL, a host or a `host:port`; `None` lets the
/// installation choose. `was_its` says that the agent has proved that it had the address before, for the
/// endpoint with this ID.
pub async fn settle(
    cx: &Cx<'_>,
    RequestedOptions {
        proto,
        bindings,
        tcp_port,
    }: RequestedOptions<'_>,
    requested: Option<&str>,
    endpoint_id: &str,
    was_its: bool,
) -> Result<AgentAddress, Error> {
    let url = match requested {
        None => format!("{proto}://"),
        Some(url) if url.contains("://") => url.to_owned(),
        Some(name) => format!("{proto}://{name}"),
    };
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    if authority
        .strip_suffix('/')
        .is_some_and(|rest| !rest.contains(['/', '?', '#', '@']))
    {
        return Err(Refusal::of(code::AGENT_URL_TRAILING_SLASH).into());
    }
    if authority.contains(['/', '?', '#', '@', '\\']) {
        return Err(Refusal::of(code::AGENT_URL_MALFORMED).into());
    }
    let mut wanted = RequestedUrl::parse(&url)
        .map_err(|refusal| Refusal::new(code::BIND_NAME_INVALID, refusal.message))?;
    if wanted.scheme.name() != proto {
        let why = "The scheme of the endpoint's URL does not match its protocol.";
        return Err(Refusal::new(code::BIND_MALFORMED, why).into());
    }
    let binding = address::binding(bindings, &wanted)?;
    if let (AddressScheme::Tcp, true, Some(host), Some(port)) =
        (wanted.scheme, was_its, &wanted.host, wanted.port)
        && **host == *pool::host(cx.settings)
    {
        let address = Address {
            url: format!("tcp://{host}:{port}"),
            scheme: wanted.scheme,
            host: host.to_string(),
            port,
            sent: None,
        };
        if let Some(place) = settle_again(cx, address, endpoint_id).await? {
            return Ok(place);
        }
    }
    if (wanted.scheme, &wanted.host) == (AddressScheme::Tcp, &None) {
        wanted.port = tcp_port;
    }
    let (scheme, host) = (wanted.scheme, wanted.host.clone());
    let referrer = Referrer {
        owner_id: &cx.caller.owner_id,
        id: endpoint_id,
    };
    match wanted.choose(cx, referrer, binding).await {
        Ok(chosen) => Ok(AgentAddress(chosen, binding)),
        Err(Error::Refused(refusal)) => Err(with_agent_code(cx, scheme, host.as_ref(), refusal)
            .await?
            .into()),
        Err(fault) => Err(fault),
    }
}

/// A pool address that the agent had before, unless another endpoint or owner has it now.
async fn settle_again(
    cx: &Cx<'_>,
    address: Address,
    endpoint_id: &str,
) -> Result<Option<AgentAddress>, Error> {
    let place = address_key(&address, Binding::Public, &cx.caller.account);
    let occupants = address_lock::at(cx, &place).await?;
    let pool_changes = if occupants.iter().any(|id| id == endpoint_id) {
        None
    } else if host::is_anothers(cx, &address.hostport()).await? {
        return Ok(None);
    } else if let Some(pool_changes) = pool::take_again(cx, &address.hostport()).await? {
        Some(pool_changes)
    } else {
        return Ok(None);
    };
    let chosen = ChosenAddress {
        address,
        domain_id: None,
        tcp_addr_id: None,
        pool_changes,
        condition: Changes::default(),
    };
    Ok(Some(AgentAddress(chosen, Binding::Public)))
}

/// Converts a refusal to a code that agents know.
async fn with_agent_code(
    cx: &Cx<'_>,
    scheme: AddressScheme,
    host: Option<&culvert_base::net::HostName>,
    refusal: Refusal,
) -> Result<Refusal, Error> {
    let code = match (refusal.code.map(Code::number), host) {
        (Some(18023), _) => code::AGENT_URL_MALFORMED,
        _ if scheme == AddressScheme::Tcp => code::BIND_ADDRESS_UNAVAILABLE,
        (Some(18006), Some(host)) => match reserved_domain::covering(cx, host).await? {
            Some(found) if found.head.account != cx.caller.account => {
                code::BIND_NAME_OF_ANOTHER_ACCOUNT
            }
            _ if host.is_wildcard() => code::BIND_WILDCARD_NOT_RESERVED,
            _ => code::BIND_NAME_NOT_RESERVED,
        },
        _ => return Ok(refusal),
    };
    Ok(Refusal::new(code, refusal.message))
}

/// The parts of an endpoint besides its address.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The session that serves it.
    pub served: Served,
    /// Whether it shares its URL with other endpoints.
    pub pooling_enabled: bool,
    /// What the endpoint is for.
    pub description: Description,
    /// Text that the agent keeps with it.
    pub metadata: Metadata,
    /// Text of the policy; empty for none.
    pub policy: &'a str,
    /// Whether `//` in paths becomes `/`; `None` for the default.
    pub merge_slashes: Option<bool>,
    /// Its timeouts.
    pub timeouts: RequestedTimeouts<'a>,
}

/// The write that an endpoint needs.
#[derive(Debug)]
pub enum Written {
    /// None: the stored endpoint is up to date.
    Same,
    /// A new body for the stored document.
    Replaced(Endpoint, Changes),
    /// A new endpoint, with the changes that belong to it.
    New(Endpoint, Changes),
}

impl Endpoint {
    /// Creates or updates an agent's endpoint; `before` is its previous state, if it still exists.
    pub async fn serve(
        cx: &Cx<'_>,
        id: &str,
        place: AgentAddress,
        parts: Parts<'_>,
        before: Option<&Document>,
    ) -> Result<Written, Error> {
        let before: Option<Self> = before.map(stored::read).transpose()?;
        let ChosenAddress {
            address,
            domain_id,
            tcp_addr_id,
            pool_changes,
            condition,
        } = place.0;
        let binding = place.1;
        let known = before.as_ref().and_then(|before| before.policy.as_ref());
        let (policy, named) = match (parts.policy, known) {
            ("", _) => (None, Changes::default()),
            (text, Some(known)) if known.is(cx.seal, id, text)? => {
                (Some(known.clone()), Changes::default())
            }
            (text, _) => {
                let place = address.policy_target(&cx.caller.owner_id, true);
                let (mut policy, named) = StoredPolicy::check(cx, id, place, text, None).await?;
                if let Some(known) = known {
                    policy.keep_targets(known);
                }
                (Some(policy), named)
            }
        };
        let condition = condition.and(named);
        let endpoint = Self {
            format: Format,
            description: parts.description,
            metadata: parts.metadata,
            address,
            domain_id,
            tcp_addr_id,
            binding,
            pooling_enabled: parts.pooling_enabled,
            upstream: None,
            policy,
            merge_slashes: parts.merge_slashes.unwrap_or_else(super::merges_slashes),
            principal_id: cx.caller.owner_id.clone(),
            served: Some(parts.served),
            timeouts: Timeouts::of_agent(parts.timeouts)?,
            upstream_tls: None,
            upstream_limits: None,
            maintenance: None,
            upstream_proxy_protocol: String::new(),
        };
        let Some(before) = before else {
            let also = match pool_changes {
                Some(pool_changes) => {
                    pool_changes.and(address_lock::join(cx, endpoint.want(cx, id)).await?)
                }
                None => address_lock::join(cx, endpoint.want(cx, id)).await?,
            };
            return Ok(Written::New(endpoint, also.and(condition)));
        };
        let stays = before.address == endpoint.address
            && before.pooling_enabled == endpoint.pooling_enabled;
        if stays && stored::write(&before)? == stored::write(&endpoint)? {
            return Ok(Written::Same);
        }
        let mut also = pool_changes.unwrap_or_default().and(condition);
        let account = &cx.caller.account;
        if before.lock_key(account) != endpoint.lock_key(account) {
            also = also.and(before.leave_address(cx, id).await?);
        }
        if before.host_name(account) != endpoint.host_name(account) {
            let name = before.host_name(account);
            also = also.and(host::leave(cx, &[id], &name, None).await?);
        }
        if !stays {
            also = also.and(address_lock::join(cx, endpoint.want(cx, id)).await?);
        }
        Ok(Written::Replaced(endpoint, also))
    }

    /// Applies an agent's changes to its endpoint; absent fields stay.
    pub async fn patched(
        mut self,
        cx: &Cx<'_>,
        id: &str,
        patch: Patch<'_>,
    ) -> Result<(Self, Changes), Error> {
        self.description = patch.description.unwrap_or(self.description);
        self.metadata = patch.metadata.unwrap_or(self.metadata);
        if let (Some(name), Some(served)) = (patch.name, &mut self.served) {
            served.name = escaped(name).into_owned();
        }
        let mut also = Changes::default();
        match patch.policy {
            None => {}
            Some("") => self.policy = None,
            Some(text) => {
                let place = self.address.policy_target(&self.principal_id, true);
                let before = self.policy.as_ref();
                let checked = StoredPolicy::check(cx, id, place, text, before);
                let (policy, named) = checked.await?;
                self.policy = Some(policy);
                also = named;
            }
        }
        if let Some(pooling) = patch.pooling_enabled
            && pooling != self.pooling_enabled
        {
            self.pooling_enabled = pooling;
            also = also.and(address_lock::join(cx, self.want(cx, id)).await?);
        }
        Ok((self, also))
    }

    /// The writes that remove it from its address.
    async fn leave_address(&self, cx: &Cx<'_>, id: &str) -> Result<Changes, Error> {
        let left = address_lock::leave_all(cx, &[id], &self.lock_key(&cx.caller.account)).await?;
        Ok(match self.held() {
            Some(address) => left.and(pool::release(cx, &address).await?),
            None => left,
        })
    }

    /// ID of the reserved domain or address that covers it.
    pub fn reservation(&self) -> Option<&str> {
        let id = self.domain_id.as_ref().or(self.tcp_addr_id.as_ref());
        id.map(String::as_str)
    }

    /// The agent that serves it.
    pub fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }
}

/// An agent's changes to its endpoint.
#[derive(Debug, Default)]
pub struct Patch<'a> {
    /// The name of the endpoint; `None` keeps it.
    pub name: Option<&'a str>,
    /// `None` keeps the description.
    pub description: Option<Description>,
    /// `None` keeps the metadata.
    pub metadata: Option<Metadata>,
    /// `None` keeps what it is.
    pub pooling_enabled: Option<bool>,
    /// Text; empty for none.
    pub policy: Option<&'a str>,
}

/// The writes that remove endpoints and free their addresses, with their events. With `kept`, their names stay
/// reserved for their owner for that long.
pub async fn removal(
    cx: &Cx<'_>,
    documents: Vec<Document>,
    kept: Option<Duration>,
) -> Result<Changes, Error> {
    let mut changes = Changes::default();
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    let mut names: Vec<(String, Vec<String>)> = Vec::new();
    for document in documents {
        let endpoint: Endpoint = stored::read(&document)?;
        if let Some(address) = endpoint.held() {
            let until = kept.map(|kept| cx.clock.now().plus(kept));
            changes = changes.and(pool::release_after(cx, &address, until).await?);
        }
        // Endpoints at one address are removed from it in one write.
        let place = endpoint.lock_key(&document.head.account);
        let name = endpoint.host_name(&document.head.account);
        let id = document.head.id.clone();
        for (known, one) in [(&mut places, place), (&mut names, name)] {
            match known.iter_mut().find(|(other, _)| *other == one) {
                Some((_, ids)) => ids.push(id.clone()),
                None => known.push((one, vec![id.clone()])),
            }
        }
        changes = changes.and(service::removal(cx, &TYPE, document)?);
    }
    for (place, ids) in places {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        changes = changes.and(address_lock::leave_all(cx, &ids, &place).await?);
    }
    for (name, ids) in names {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        changes = changes.and(host::leave(cx, &ids, &name, kept).await?);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_streams_only_to_http_upstreams_of_agents() {
        let shares = |forwards_to: &str, proto: &str, proxy_version| {
            let served = Served {
                session_id: String::new(),
                tunnel_id: String::new(),
                run: String::new(),
                region: String::new(),
                forwards_to: forwards_to.into(),
                forwards_proto: proto.into(),
                proxy_version,
                name: String::new(),
            };
            let shared =
                Upstream::agent("ep", Scheme::Https, Protocol::Http1, None, Clients::Shared);
            served.upstream("ep", Scheme::Https) == shared
        };
        for forwarded in [
            "http://127.0.0.1:8080/",
            "https://localhost",
            "http://[::1]:80",
            "localhost:80",
        ] {
            assert!(shares(forwarded, "", 0), "{forwarded}");
            assert!(!shares(forwarded, "http2", 0), "{forwarded}");
            assert!(!shares(forwarded, "http1", 1), "{forwarded}");
        }
        for taken in [
            "app://host/program?pid=1",
            "my application",
            "",
            "tcp://a:1",
            "a:b",
            ":80",
        ] {
            assert!(!shares(taken, "", 0), "{taken}");
        }
    }
}
