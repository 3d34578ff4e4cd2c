//! Looks up aliases and the servers of zones, and waits until these servers have a record.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::Instant;

use crate::change::zones_of;
use crate::error::DnsError;

/// Maximum length of a chain of aliases.
const ALIASES_MAX: usize = 8;
/// Maximum number of addresses of a name that are kept: its owner may give it any number.
const ADDRESSES_MAX: usize = 16;
/// A label that no record has, to recognise wildcards.
const UNUSED_LABEL: &str = "_culvert-no-such-name";
/// Maximum number of servers of a zone that are asked.
const SERVERS_MAX: usize = 8;
/// Time limit of one query.
const QUERY_WITHIN: Duration = Duration::from_secs(5);
/// Time between two rounds of queries.
const LOOK_AFTER: Duration = Duration::from_secs(2);
/// The port of name servers.
const PORT: u16 = 53;

/// Whether the server may be asked at an address that DNS returned.
pub type MayAsk = dyn Fn(IpAddr) -> bool + Send + Sync;

/// How records are looked up.
pub struct LookupSettings {
    /// Resolvers; those of the system if empty.
    pub resolvers: Vec<SocketAddr>,
    /// The servers that must have a record; those that the zone names if empty.
    pub nameservers: Vec<SocketAddr>,
    /// How long to wait until the servers have a record; zero for no wait.
    pub propagation_timeout: Duration,
    /// Decides about addresses of servers that the zone names.
    pub may_ask: Arc<MayAsk>,
}

impl fmt::Debug for LookupSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupSettings")
            .field("resolvers", &self.resolvers)
            .field("nameservers", &self.nameservers)
            .field("propagation_timeout", &self.propagation_timeout)
            .finish_non_exhaustive()
    }
}

/// Looks up records, without a cache.
#[derive(Debug)]
pub struct Lookup {
    settings: LookupSettings,
    resolver: TokioResolver,
}

/// What a name resolves to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The names on the chain of aliases, at most eight.
    pub aliases: Vec<String>,
    /// At most sixteen addresses.
    pub addresses: Vec<IpAddr>,
}

impl Addresses {
    fn add(&mut self, address: IpAddr) {
        if self.addresses.len() < ADDRESSES_MAX && !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    fn add_alias(&mut self, name: String) {
        if self.aliases.len() < ALIASES_MAX && !self.aliases.contains(&name) {
            self.aliases.push(name);
        }
    }
}

/// A server of a zone.
#[derive(Clone, Debug)]
struct Server {
    name: String,
    address: SocketAddr,
}

impl Lookup {
    /// Looks up with these settings. Asks nothing yet.
    ///
    /// # Errors
    /// The system has no usable resolver configuration.
    pub fn new(settings: LookupSettings) -> Result<Self, DnsError> {
        let resolver = match settings.resolvers.as_slice() {
            [] => TokioResolver::builder_tokio()
                .map(|mut builder| {
                    set(builder.options_mut());
                    builder
                })
                .and_then(|builder| builder.build())
                .map_err(|error| {
                    DnsError::new(format_args!("the system's resolver is unusable: {error}"))
                })?,
            resolvers => asking(resolvers, true)?,
        };
        Ok(Self { settings, resolver })
    }

    /// The end of the chain of aliases that begins with a name. An alias that a wildcard of the zone gives to every name
    /// does not count: a record of the name itself replaces it.
    ///
    /// # Errors
    /// No resolver responds, or the chain is too long.
    pub async fn follow(&self, name: &str) -> Result<String, DnsError> {
        let mut name = name.trim_end_matches('.').to_ascii_lowercase();
        for _ in 0..ALIASES_MAX {
            let Some(target) = self.alias(&name).await? else {
                return Ok(name);
            };
            let parent = name.split_once('.').map_or("", |(_, parent)| parent);
            let sibling = format!("{UNUSED_LABEL}.{parent}");
            if self.alias(&sibling).await?.as_ref() == Some(&target) {
                return Ok(name);
            }
            name = target;
        }
        Err(DnsError::new(format_args!(
            "more than {ALIASES_MAX} CNAME records lead to `{name}`"
        )))
    }

    /// The addresses of a name, and the names that it is an alias of. None for a name without records.
    ///
    /// # Errors
    /// No resolver responds.
    pub async fn addresses(&self, name: &str) -> Result<Addresses, DnsError> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let (v4, v6) = tokio::join!(
            find(&self.resolver, &name, RecordType::A),
            find(&self.resolver, &name, RecordType::AAAA),
        );
        let mut addresses = Addresses::default();
        let found = match (v4, v6) {
            (Err(error), Err(_)) => return Err(error),
            (v4, v6) => v4.into_iter().chain(v6).flatten(),
        };
        for (_, data) in found {
            match data {
                RData::A(address) => addresses.add(IpAddr::V4(address.0)),
                RData::AAAA(address) => addresses.add(IpAddr::V6(address.0)),
                RData::CNAME(target) => addresses.add_alias(plain(&target.0)),
                _ => {}
            }
        }
        Ok(addresses)
    }

    /// The name that this one is an alias of.
    async fn alias(&self, name: &str) -> Result<Option<String>, DnsError> {
        let found = find(&self.resolver, name, RecordType::CNAME).await?;
        Ok(found.into_iter().find_map(|(owner, data)| match data {
            RData::CNAME(target) if owner == name => Some(plain(&target.0)),
            _ => None,
        }))
    }

    /// The zone of a name, as one server sees it.
    pub(crate) async fn zone_at(&self, server: SocketAddr, name: &str) -> Result<String, DnsError> {
        let resolver = asking(&[server], false)?;
        for zone in zones_of(name) {
            let found = find(&resolver, zone, RecordType::SOA).await?;
            if found
                .iter()
                .any(|(owner, data)| owner == zone && matches!(data, RData::SOA(_)))
            {
                return Ok(zone.to_owned());
            }
        }
        Err(DnsError::new(format_args!(
            "{server} serves no zone with `{name}`"
        )))
    }

    /// Describes the servers that must have the records of a name.
    pub(crate) async fn servers(&self, name: &str) -> Result<String, DnsError> {
        if self.settings.propagation_timeout.is_zero() {
            return Ok("its name servers are not asked".to_owned());
        }
        let servers = self.servers_of(name).await?;
        let mut silent = Vec::new();
        for server in &servers {
            if texts(server, name).await.is_err() {
                silent.push(format!("{} ({})", server.name, server.address));
            }
        }
        if silent.len() == servers.len() {
            return Err(DnsError::new(format_args!(
                "no name server of its zone responds: {}",
                silent.join(", ")
            )));
        }
        Ok(format!("{} name servers", servers.len()))
    }

    /// Waits until the zone's servers have a TXT record. Servers that do not respond are ignored if another one does.
    pub(crate) async fn wait_for(&self, name: &str, value: &str) -> Result<(), DnsError> {
        let limit = self.settings.propagation_timeout;
        if limit.is_zero() {
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        loop {
            let lacking = self.lacking(name, value);
            let why = match tokio::time::timeout_at(deadline, lacking).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(why))) => why,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "its name servers do not respond".to_owned(),
            };
            if Instant::now() + LOOK_AFTER > deadline {
                return Err(DnsError::new(format_args!(
                    "not visible after {limit:?}: {why}"
                )));
            }
            tokio::time::sleep(LOOK_AFTER).await;
        }
    }

    /// The reason why not all servers have a record yet.
    async fn lacking(&self, name: &str, value: &str) -> Result<Option<String>, DnsError> {
        let servers = self.servers_of(name).await?;
        let mut has_answered = false;
        let mut failed = None;
        for server in &servers {
            match texts(server, name).await {
                Ok(values) if values.iter().any(|one| one == value) => has_answered = true,
                Ok(_) => {
                    return Ok(Some(format!(
                        "{} ({}) does not have it",
                        server.name, server.address
                    )));
                }
                Err(error) => {
                    let at = format!("{} ({})", server.name, server.address);
                    failed = Some(error.about(&at).to_string());
                }
            }
        }
        let nothing = || Some(failed.unwrap_or_else(|| "the zone names no name server".into()));
        Ok(if has_answered { None } else { nothing() })
    }

    /// The servers of the zone of a name.
    async fn servers_of(&self, name: &str) -> Result<Vec<Server>, DnsError> {
        if !self.settings.nameservers.is_empty() {
            let given = self.settings.nameservers.iter().take(SERVERS_MAX);
            return Ok(given
                .map(|address| Server {
                    name: "name server".to_owned(),
                    address: *address,
                })
                .collect());
        }
        for zone in zones_of(name) {
            let found = find(&self.resolver, zone, RecordType::NS).await?;
            let names = found.into_iter().filter_map(|(owner, data)| match data {
                RData::NS(server) if owner == zone => Some(plain(&server.0)),
                _ => None,
            });
            let names: Vec<String> = names.take(SERVERS_MAX).collect();
            if !names.is_empty() {
                return self.addresses_of(&names).await;
            }
        }
        Err(DnsError::new(format_args!(
            "no zone with `{name}` has NS records"
        )))
    }

    async fn addresses_of(&self, names: &[String]) -> Result<Vec<Server>, DnsError> {
        let mut servers = Vec::new();
        let mut barred = Vec::new();
        for name in names {
            for kind in [RecordType::A, RecordType::AAAA] {
                let found = find(&self.resolver, name, kind).await.unwrap_or_default();
                for (_, data) in found {
                    let address = match data {
                        RData::A(address) => IpAddr::V4(address.0),
                        RData::AAAA(address) => IpAddr::V6(address.0),
                        _ => continue,
                    };
                    if !(self.settings.may_ask)(address) {
                        barred.push(format!("{name} ({address})"));
                    } else if servers.len() < SERVERS_MAX {
                        servers.push(Server {
                            name: name.clone(),
                            address: SocketAddr::new(address, PORT),
                        });
                    }
                }
            }
        }
        match (servers.is_empty(), barred.is_empty()) {
            (false, _) => Ok(servers),
            (true, true) => Err(DnsError::new("its name servers have no addresses")),
            (true, false) => Err(DnsError::new(format_args!(
                "the address of its name servers is private: {}; see \
                 `destinations.allow_networks` and `acme.dns.nameservers`",
                barred.join(", ")
            ))),
        }
    }
}

/// A resolver that asks these servers.
fn asking(servers: &[SocketAddr], recursion: bool) -> Result<TokioResolver, DnsError> {
    let servers = servers.iter().map(|address| {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
        let connections = connections.map(|mut connection| {
            connection.port = address.port();
            connection
        });
        NameServerConfig::new(address.ip(), true, connections.into())
    });
    let config = ResolverConfig::from_name_servers(servers.collect());
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    set(builder.options_mut());
    builder.options_mut().recursion_desired = recursion;
    let built = builder.build();
    built.map_err(|error| DnsError::new(format_args!("creating a resolver: {error}")))
}

fn set(options: &mut ResolverOpts) {
    options.cache_size = 0;
    options.timeout = QUERY_WITHIN;
    options.attempts = 2;
    options.use_hosts_file = ResolveHosts::Never;
    options.edns0 = true;
}

/// The records of a name, each with its owner; none if there are none.
async fn find(
    resolver: &TokioResolver,
    name: &str,
    kind: RecordType,
) -> Result<Vec<(String, RData)>, DnsError> {
    let parsed = Name::from_ascii(format!("{name}."))
        .map_err(|error| DnsError::new(format_args!("`{name}` is not a name: {error}")))?;
    match resolver.lookup(parsed, kind).await {
        Ok(found) => {
            let records = found.answers().iter();
            Ok(records
                .map(|record| (plain(&record.name), record.data.clone()))
                .collect())
        }
        Err(error) if error.is_no_records_found() => Ok(Vec::new()),
        Err(error) => Err(DnsError::new(format_args!(
            "looking up {kind} of `{name}`: {error}"
        ))),
    }
}

/// The TXT records of a name at one server.
async fn texts(server: &Server, name: &str) -> Result<Vec<String>, DnsError> {
    let resolver = asking(&[server.address], false)?;
    let found = find(&resolver, name, RecordType::TXT).await?;
    let values = found.into_iter().filter_map(|(_, data)| match data {
        RData::TXT(text) => {
            let bytes = text.txt_data.concat();
            String::from_utf8(bytes).ok()
        }
        _ => None,
    });
    Ok(values.collect())
}

/// A name in lower case, without the dot at the end.
fn plain(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.trim_end_matches('.').to_owned()
}
