//! The snapshot in use: tables that requests read without a lock.

use std::sync::Arc;

use culvert_base::PersistentMap;
use culvert_edge_config::{Endpoint, ForwardRights, may_forward};
use culvert_login::Logins;
use culvert_policy::host::EndpointInfo;
use culvert_policy::scheme::Scheme;
use culvert_tls::acme::ChallengeAnswers;
use culvert_tls::server_certificate::ServerCertificate;

use crate::snapshot::address::EndpointAddress;
use crate::snapshot::data_readers::DataReaders;
use crate::snapshot::group::Group;
use crate::snapshot::operators::OperatorTable;
use crate::snapshot::route::Hosts;

/// A snapshot in use.
///
/// A clone is cheap and shares what it has in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSnapshot {
    pub(crate) http: Hosts<Arc<Group>>,
    pub(crate) https: Hosts<Arc<Group>>,
    pub(crate) tls: Hosts<Arc<Group>>,
    pub(crate) tcp: PersistentMap<u16, Arc<Group>>,
    /// Internal endpoints, which are names of their account.
    internal: PersistentMap<(Arc<str>, Scheme, u16), Hosts<Arc<Group>>>,
    /// Endpoints that only Kubernetes operators of their account reach.
    kubernetes: PersistentMap<(Arc<str>, Arc<str>, u16), Arc<Group>>,
    pub(crate) operators: Arc<OperatorTable>,
    pub(super) forward_rights: Option<Arc<dyn ForwardRights>>,
    pub(crate) certificates: Hosts<Arc<ServerCertificate>>,
    pub(crate) fallback: Hosts<Arc<ServerCertificate>>,
    pub(crate) challenges: Arc<ChallengeAnswers>,
    pub(crate) logins: Option<Arc<Logins>>,
    pub(crate) data_readers: DataReaders,
}

impl LiveSnapshot {
    /// Sets the group at an address; `None` removes it.
    pub(super) fn set(&mut self, place: &EndpointAddress, group: Option<Arc<Group>>) {
        let (hosts, host) = match place {
            EndpointAddress::Port(port) => {
                match group {
                    Some(group) => self.tcp.insert(*port, group),
                    None => self.tcp.remove(port),
                }
                return;
            }
            EndpointAddress::Internal(account, scheme, host, port) => {
                let key = (Arc::clone(account), *scheme, *port);
                let mut hosts = self.internal.get(&key).cloned().unwrap_or_default();
                match group {
                    Some(group) => hosts.insert(host, group),
                    None => hosts.remove(host),
                }
                if hosts.is_empty() {
                    self.internal.remove(&key);
                } else {
                    self.internal.insert(key, hosts);
                }
                return;
            }
            EndpointAddress::Kubernetes(account, host, port) => {
                let key = (Arc::clone(account), Arc::from(&**host), *port);
                match group {
                    Some(group) => self.kubernetes.insert(key, group),
                    None => self.kubernetes.remove(&key),
                }
                return;
            }
            EndpointAddress::Host(Scheme::Http, host) => (&mut self.http, host),
            EndpointAddress::Host(Scheme::Https, host) => (&mut self.https, host),
            EndpointAddress::Host(_, host) => (&mut self.tls, host),
        };
        match group {
            Some(group) => hosts.insert(host, group),
            None => hosts.remove(host),
        }
    }

    /// The internal endpoints of an account at an address.
    pub(crate) fn internal(
        &self,
        account: &Arc<str>,
        scheme: Scheme,
        host: &str,
        port: u16,
    ) -> Option<&Arc<Group>> {
        let hosts = self.internal.get(&(Arc::clone(account), scheme, port))?;
        hosts.find(host)
    }

    /// Whether the policy of one endpoint may forward to an internal one by this host.
    pub(crate) fn may_forward(&self, from: EndpointInfo<'_>, host: &str, to: &Endpoint) -> bool {
        may_forward(self.forward_rights.as_deref(), from, host, to)
    }

    /// The endpoints at an address in the clusters of an account.
    pub(crate) fn kubernetes(
        &self,
        account: &Arc<str>,
        host: &str,
        port: u16,
    ) -> Option<&Arc<Group>> {
        let key = (Arc::clone(account), Arc::from(host), port);
        self.kubernetes.get(&key)
    }
}
