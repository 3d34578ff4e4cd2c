//! Compiles snapshots and changes into the tables that requests read.
//!
//! Connection pools and TLS settings outlive a snapshot: the compiler keeps those that the next one names
//! again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use culvert_edge_config::{
    Change, Endpoint, EndpointBinding, NamedCertificate, Restriction, Snapshot,
};
use culvert_statistics::Slot;
use culvert_tls::acme::{ChallengeAnswers, PreparedChallenges};
use culvert_tls::server_certificate::ServerCertificate;
use culvert_upstream::Upstream;
use rustls_pki_types::CertificateDer;

use crate::balance::gate::{Gate, Places};
use crate::pools::{Pool, TargetSet};
use crate::snapshot::address::EndpointAddress;
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live_snapshot::LiveSnapshot;
use crate::snapshot::operators::OperatorTable;
use crate::snapshot::removal::Removal;
use crate::snapshot::route::Hosts;

/// Compiles snapshots, and keeps what outlives one.
#[derive(Debug, Default)]
pub(crate) struct SnapshotCompiler {
    pools: Pools,
    /// By certificate chain.
    presented: HashMap<Vec<CertificateDer<'static>>, Arc<ServerCertificate>>,
    prepared: PreparedChallenges,
    /// The endpoints at each place, in the order of their ids.
    places: HashMap<EndpointAddress, Vec<Arc<Endpoint>>>,
    by_id: HashMap<String, Placed>,
    restrictions: HashMap<Arc<str>, Arc<Restriction>>,
}

/// An endpoint, what ends its open relays, and the state of its upstreams if it has several.
#[derive(Debug)]
struct Placed {
    endpoint: Arc<Endpoint>,
    removal: Arc<Removal>,
    targets: Option<Arc<TargetSet>>,
    /// Those of its requests and connections in flight, if it has or had a limit or several upstreams.
    places: Option<Arc<Places>>,
}

/// The pools of each account.
#[derive(Debug, Default)]
struct Pools(HashMap<Arc<str>, HashMap<Upstream, CountedPool>>);

/// A pool, with the number of endpoints that forward to it.
type CountedPool = (Arc<Pool>, usize);

impl Pools {
    /// The pool of an endpoint.
    fn of(&self, endpoint: &Endpoint) -> Option<&Arc<Pool>> {
        self.pool_to(&endpoint.account, endpoint.upstream.as_ref()?)
    }

    /// The pool of an upstream.
    fn pool_to(&self, account: &str, upstream: &Upstream) -> Option<&Arc<Pool>> {
        let pool = self.0.get(account)?.get(upstream);
        pool.map(|(pool, _)| pool)
    }

    /// Counts one more endpoint that forwards to its upstreams. Their pools are those of `before`, if it had them.
    #[expect(
        clippy::mutable_key_type,
        reason = "an upstream compares by its options of TLS, not by the connectors that are made from them"
    )]
    fn acquire(&mut self, endpoint: &Endpoint, before: Option<&Self>) {
        for upstream in endpoint.all_upstreams() {
            let of_account = match self.0.get_mut(&endpoint.account) {
                Some(of_account) => of_account,
                None => self.0.entry(Arc::clone(&endpoint.account)).or_default(),
            };
            if let Some((_, count)) = of_account.get_mut(upstream) {
                *count += 1;
                continue;
            }
            let known = before.and_then(|before| before.pool_to(&endpoint.account, upstream));
            let new = || Arc::new(Pool::new(upstream.clone()));
            let pool = known.cloned().unwrap_or_else(new);
            of_account.insert(upstream.clone(), (pool, 1));
        }
    }

    /// Counts one less, and forgets the pools after the last.
    fn release(&mut self, endpoint: &Endpoint) {
        let Some(of_account) = self.0.get_mut(&endpoint.account) else {
            return;
        };
        for upstream in endpoint.all_upstreams() {
            if let Some((_, count)) = of_account.get_mut(upstream) {
                *count -= 1;
                if *count == 0 {
                    of_account.remove(upstream);
                }
            }
        }
        if of_account.is_empty() {
            self.0.remove(&endpoint.account);
        }
    }
}

impl SnapshotCompiler {
    /// Compiles a snapshot into tables. Reuses the pools and TLS settings of the one before, and drops those that are
    /// no longer named.
    pub(crate) fn compile(&mut self, snapshot: Snapshot) -> Result<LiveSnapshot, rustls::Error> {
        let mut live = LiveSnapshot::default();
        self.present(&mut live, snapshot.certificates, snapshot.fallback)?;
        live.logins = snapshot.logins;
        live.operators = OperatorTable::compile(snapshot.operators)?;
        live.forward_rights = snapshot.forward_rights;
        live.challenges = Arc::new(ChallengeAnswers::of(
            snapshot.challenges,
            &mut self.prepared,
        ));

        let before = std::mem::take(&mut self.pools);
        self.places.clear();
        let mut placed = std::mem::take(&mut self.by_id);
        for endpoint in snapshot.endpoints {
            self.pools.acquire(&endpoint, Some(&before));
            live.data_readers.add_endpoint(&endpoint);
            let before = placed.remove(&endpoint.id);
            let place = self.record(&endpoint, before);
            self.places.entry(place).or_default().push(endpoint);
        }
        for gone in placed.into_values() {
            gone.removal.remove();
        }
        self.restrictions = snapshot
            .restrictions
            .into_iter()
            .map(|one| (Arc::clone(&one.account), Arc::new(one)))
            .collect();
        for (place, endpoints) in &self.places {
            live.set(place, self.group(place, endpoints));
        }
        Ok(live)
    }

    /// The tables of `live` with a change. The time depends on the size of the change, not of the tables.
    pub(crate) fn apply(
        &mut self,
        live: &LiveSnapshot,
        change: Change,
    ) -> Result<LiveSnapshot, rustls::Error> {
        let mut live = live.clone();
        if let Some((certificates, fallback)) = change.certificates {
            live.certificates = Hosts::default();
            live.fallback = Hosts::default();
            self.present(&mut live, certificates, fallback)?;
        }
        if let Some(challenges) = change.challenges {
            live.challenges = Arc::new(ChallengeAnswers::of(challenges, &mut self.prepared));
        }
        if let Some(operators) = change.operators {
            live.operators = OperatorTable::compile(operators)?;
        }
        if let Some(rights) = change.forward_rights {
            live.forward_rights = Some(rights);
        }
        let mut touched: HashSet<EndpointAddress> = HashSet::new();
        let mut released = Vec::new();
        let put = change.put;
        // A pool stays open if another endpoint takes it over.
        for endpoint in &put {
            self.pools.acquire(endpoint, None);
        }
        let mut placed = HashMap::new();
        let ids = change.removed.iter().chain(put.iter().map(|one| &one.id));
        for id in ids {
            let Some(before) = self.by_id.remove(id) else {
                continue;
            };
            let place = EndpointAddress::of(&before.endpoint);
            placed.insert(id.clone(), before);
            if let Some(there) = self.places.get_mut(&place) {
                let of_id = there.extract_if(.., |endpoint| endpoint.id == *id);
                for endpoint in of_id {
                    live.data_readers.remove_endpoint(&endpoint);
                    released.push(endpoint);
                }
                if there.is_empty() {
                    self.places.remove(&place);
                }
            }
            touched.insert(place);
        }
        for endpoint in put {
            live.data_readers.add_endpoint(&endpoint);
            let place = self.record(&endpoint, placed.remove(&endpoint.id));
            let there = self.places.entry(place.clone()).or_default();
            let at = there.partition_point(|other| other.id < endpoint.id);
            there.insert(at, endpoint);
            touched.insert(place);
        }
        for gone in placed.into_values() {
            gone.removal.remove();
        }
        for endpoint in released {
            self.pools.release(&endpoint);
        }
        for place in touched {
            let endpoints = self.places.get(&place).map_or(&[][..], Vec::as_slice);
            live.set(&place, self.group(&place, endpoints));
        }
        Ok(live)
    }

    /// The upstreams of an endpoint that has several.
    pub(crate) fn targets(&self, endpoint_id: &str) -> Option<&Arc<TargetSet>> {
        self.by_id.get(endpoint_id)?.targets.as_ref()
    }

    /// The upstreams of all endpoints that have several, by ID.
    pub(crate) fn all_targets(&self) -> impl Iterator<Item = (String, Arc<TargetSet>)> {
        let with_list = |(id, placed): (&String, &Placed)| {
            let targets = placed.targets.as_ref()?;
            Some((id.clone(), Arc::clone(targets)))
        };
        self.by_id.iter().filter_map(with_list)
    }

    /// Whether Kubernetes operators reach one of the endpoints with these ids.
    pub(crate) fn is_bound<'a>(&self, mut ids: impl Iterator<Item = &'a String>) -> bool {
        ids.any(|id| {
            let placed = self.by_id.get(id);
            placed.is_some_and(|placed| {
                matches!(placed.endpoint.binding, EndpointBinding::Kubernetes(_))
            })
        })
    }

    /// The ports of TCP endpoints among those with these ids.
    pub(crate) fn ports_of<'a>(&self, ids: impl Iterator<Item = &'a String>) -> Vec<u16> {
        let places = ids.filter_map(|id| self.by_id.get(id));
        let port = |placed: &Placed| match EndpointAddress::of(&placed.endpoint) {
            EndpointAddress::Port(port) => Some(port),
            _ => None,
        };
        places.filter_map(port).collect()
    }

    fn present(
        &mut self,
        live: &mut LiveSnapshot,
        certificates: Vec<NamedCertificate>,
        fallback: Vec<NamedCertificate>,
    ) -> Result<(), rustls::Error> {
        let mut presented: HashMap<Vec<CertificateDer<'static>>, Arc<ServerCertificate>> =
            HashMap::new();
        let tables = [
            (certificates, &mut live.certificates),
            (fallback, &mut live.fallback),
        ];
        for (certificates, table) in tables {
            for (names, key) in certificates {
                let known = presented
                    .get(&key.cert)
                    .or_else(|| self.presented.get(&key.cert));
                let one = match known {
                    Some(one) => Arc::clone(one),
                    None => ServerCertificate::plain(Arc::clone(&key))?,
                };
                for name in names {
                    table.insert(&name, Arc::clone(&one));
                }
                presented.insert(key.cert.clone(), one);
            }
        }
        self.presented = presented;
        Ok(())
    }

    /// Records an endpoint, and returns its address. `before` is what was recorded, if it was in the snapshot before: its
    /// open relays go on, and its upstreams keep their state.
    fn record(&mut self, endpoint: &Arc<Endpoint>, before: Option<Placed>) -> EndpointAddress {
        let (removal, known, places) = match before {
            Some(before) => (before.removal, before.targets, before.places),
            None => Default::default(),
        };
        let has_queue = endpoint.in_flight.is_some() || endpoint.upstreams.is_some();
        let new = || Places::new(&Arc::<Gate>::default(), None);
        let places = places.or_else(|| has_queue.then(new));
        if let Some(places) = &places {
            places.set_most(endpoint.in_flight.and_then(|limits| limits.in_flight_max));
        }
        let targets = endpoint.upstreams.as_ref().map(|list| match known {
            Some(known) if known.list() == list && known.owner() == &*endpoint.owner => known,
            known => {
                let upstreams = list.upstreams.iter().map(|listed| &listed.upstream);
                let pools = upstreams.filter_map(|one| self.pools.pool_to(&endpoint.account, one));
                let list = Arc::clone(list);
                let pools = pools.cloned();
                Arc::new(TargetSet::new(
                    (&endpoint.id, &endpoint.account, &endpoint.owner),
                    list,
                    pools,
                    known.as_deref(),
                    places
                        .as_ref()
                        .map_or(&Arc::default(), |places| places.gate()),
                ))
            }
        });
        let placed = Placed {
            endpoint: Arc::clone(endpoint),
            removal,
            targets,
            places,
        };
        self.by_id.insert(endpoint.id.clone(), placed);
        EndpointAddress::of(endpoint)
    }

    /// The group of the endpoints at an address.
    fn group(&self, place: &EndpointAddress, endpoints: &[Arc<Endpoint>]) -> Option<Arc<Group>> {
        let member = |endpoint: &Arc<Endpoint>| Member {
            id: endpoint.id.as_str().into(),
            endpoint: Arc::clone(endpoint),
            pool: self.pools.of(endpoint).cloned(),
            targets: self
                .by_id
                .get(&endpoint.id)
                .and_then(|placed| placed.targets.clone()),
            places: self
                .by_id
                .get(&endpoint.id)
                .filter(|_| {
                    endpoint
                        .in_flight
                        .is_some_and(|limits| limits.in_flight_max.is_some())
                })
                .and_then(|placed| placed.places.clone()),
            stand_ins: Vec::new(),
            counted: Slot::default(),
            removal: self
                .by_id
                .get(&endpoint.id)
                .map(|placed| Arc::clone(&placed.removal))
                .unwrap_or_default(),
        };
        let restriction = |first: &Member| match place {
            // The endpoint that forwards has checked the client.
            EndpointAddress::Internal(..) => None,
            _ => self.restrictions.get(&first.endpoint.account).cloned(),
        };
        Group::new(endpoints.iter().map(member).collect(), restriction).map(Arc::new)
    }

    /// The pools in use, with their accounts.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Pool>)> {
        self.pools.0.iter().flat_map(|(account, pools)| {
            let pools = pools.values();
            pools.map(move |(pool, _)| (account, pool))
        })
    }
}

#[cfg(test)]
mod tests;
