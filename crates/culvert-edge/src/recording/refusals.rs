//! Refused traffic: its counts, its share of the event log, and what has no endpoint.
//!
//! A refusal is counted by reason, in total and for the endpoint that its host or TLS server name names. Whether it has an
//! event decides the [sampler](crate::recording::refusal_sampler). Refusals without an endpoint are collected by network
//! and reason, until [`Edge::take_refused`](crate::Edge::take_refused) hands them over.
//!
//! Nothing here runs for traffic that is not refused.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use culvert_base::Timestamp;
use culvert_base::net::plain_address;
use culvert_base::sync::lock;
use culvert_events::{Reason, RefusedSample, RefusedTraffic};
use culvert_statistics::EndpointCounters;
use tokio::time::Instant;

use crate::edge::edge_state::EdgeState;
use crate::recording::refusal_sampler::{RefusalSampler, RefusalSubject, Skipped, network_number};

/// Networks and reasons that are collected one by one. Those beyond are collected by reason.
const COLLECTED_MAX: usize = 1_024;
/// Longest texts of a sample, in bytes.
const HOST_BYTES_MAX: usize = 253;
const METHOD_BYTES_MAX: usize = 32;
const USER_AGENT_BYTES_MAX: usize = 256;

/// The known parts of a refused request or connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusedFacts<'x> {
    pub(crate) host: &'x str,
    pub(crate) method: &'x str,
    pub(crate) user_agent: &'x [u8],
}

/// The refusals of an edge.
#[derive(Debug)]
pub(crate) struct Refusals {
    sampler: RefusalSampler,
    collected: Mutex<HashMap<(Reason, Option<u64>), RefusedTraffic>>,
    started: Instant,
}

impl Refusals {
    /// `whole_max` and `events` are limits of the [`RefusalSampler`].
    pub(crate) fn new(whole_max: u64, events: u64) -> Self {
        Self {
            sampler: RefusalSampler::new(whole_max, events),
            collected: Mutex::default(),
            started: Instant::now(),
        }
    }

    fn second(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Collects refusals of a network.
    fn collect(&self, mut refused: RefusedTraffic, network: u64) {
        let mut collected = lock(&self.collected);
        let mut key = (refused.reason, Some(network));
        if collected.len() >= COLLECTED_MAX && !collected.contains_key(&key) {
            key.1 = None;
            refused.network = None;
        }
        match collected.get_mut(&key) {
            Some(known) => {
                known.count = known.count.saturating_add(refused.count);
                known.last_at = known.last_at.max(refused.last_at);
                if refused.sample.is_some() {
                    (known.sample, known.sampled) = (refused.sample, refused.sampled);
                }
            }
            None => drop(collected.insert(key, refused)),
        }
    }

    /// Takes what was collected.
    pub(crate) fn take(&self, now: Timestamp) -> Vec<RefusedTraffic> {
        for Skipped {
            network,
            reason,
            count,
        } in self.sampler.take_skipped(self.second())
        {
            let Some(reason) = Reason::at(reason) else {
                continue;
            };
            let refused = RefusedTraffic {
                reason,
                network: Some(first_address(network)),
                count,
                sampled: count,
                first_at: now,
                last_at: now,
                sample: None,
            };
            self.collect(refused, network);
        }
        std::mem::take(&mut *lock(&self.collected))
            .into_values()
            .collect()
    }
}

/// The first address of a network.
fn first_address(network: u64) -> IpAddr {
    match u32::try_from(network) {
        // No network of IPv6 begins with 32 zeros.
        Ok(network) => Ipv4Addr::from(network).into(),
        Err(_) => Ipv6Addr::from(u128::from(network) << 64).into(),
    }
}

/// The beginning of a text.
fn beginning(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].to_owned()
}

impl EdgeState {
    /// Counts refused traffic without an endpoint, and collects it.
    #[cold]
    pub(crate) fn refuse(
        &self,
        reason: Reason,
        (client, server): (SocketAddr, SocketAddr),
        now: Timestamp,
        facts: RefusedFacts<'_>,
    ) {
        let Some(position) = self.count_refusal(reason) else {
            return;
        };
        if let Some(count) = self.meters.refused_elsewhere.get(position) {
            count.up();
        }
        let (port, client, refusals) = (client.port(), plain_address(client.ip()), &self.refusals);
        let subject = RefusalSubject::Reason(position);
        let decided = refusals.sampler.decide(client, subject, refusals.second());
        let Some(sampled) = decided else {
            self.meters.refusals_sampled.up();
            return;
        };
        let network = network_number(client);
        let user_agent = String::from_utf8_lossy(facts.user_agent);
        let sample = RefusedSample {
            client_ip: client,
            client_port: port,
            server_port: server.port(),
            host: beginning(facts.host, HOST_BYTES_MAX),
            method: beginning(facts.method, METHOD_BYTES_MAX),
            user_agent: beginning(&user_agent, USER_AGENT_BYTES_MAX),
        };
        let refused = RefusedTraffic {
            reason,
            network: Some(first_address(network)),
            count: sampled,
            sampled,
            first_at: now,
            last_at: now,
            sample: Some(sample),
        };
        refusals.collect(refused, network);
    }

    /// Counts traffic that is refused at an endpoint before anything of the endpoint has seen it. Returns how many
    /// refusals its event stands for; `None` if it has no event.
    #[cold]
    pub(crate) fn refuse_at(
        &self,
        reason: Reason,
        client: IpAddr,
        (account, counters): (&Arc<str>, &EndpointCounters),
    ) -> Option<u64> {
        let position = self.count_refusal(reason)?;
        counters.refused(position);
        let subject = RefusalSubject::Account(account);
        let second = self.refusals.second();
        let decided = self.refusals.sampler.decide(client, subject, second);
        if decided.is_none() {
            self.meters.refusals_sampled.up();
        }
        decided
    }

    /// Counts a refusal. Returns the position of its reason; `None` if the reason is not one of refused traffic.
    pub(crate) fn count_refusal(&self, reason: Reason) -> Option<usize> {
        let position = reason.refusal()?;
        self.meters.refused.get(position)?.up();
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_are_those_of_the_statistics() {
        use culvert_statistics::{Field, REFUSED};

        assert_eq!(REFUSED, Reason::REFUSALS);
        for (field, reason) in Field::REFUSED.iter().zip(Reason::ALL) {
            assert_eq!(format!("{field:?}"), format!("Refused{reason:?}"));
        }
    }

    #[test]
    fn what_is_collected_is_bounded_and_complete() {
        let refusals = Refusals::new(100, 1_000);
        let at = Timestamp::from_unix_seconds(1);
        for network in 0..3_000_u64 {
            let refused = RefusedTraffic {
                reason: Reason::UnknownHost,
                network: Some(first_address(network << 8)),
                count: 2,
                sampled: 1,
                first_at: at,
                last_at: at,
                sample: None,
            };
            refusals.collect(refused, network << 8);
        }
        let taken = refusals.take(at);
        assert_eq!(taken.len(), COLLECTED_MAX + 1);
        assert_eq!(taken.iter().map(|one| one.count).sum::<u64>(), 6_000);
        let others: Vec<_> = taken.iter().filter(|one| one.network.is_none()).collect();
        assert_eq!(others.len(), 1);
        assert!(refusals.take(at).is_empty());
    }

    #[test]
    fn networks_have_an_address() {
        for address in ["192.0.2.0", "0.0.1.0", "2001:db8:1:2::"] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(first_address(network_number(address)), address);
        }
    }
}
