//! Counts exchanges and relayed bytes for the statistics of the endpoints that they reach.
//!
//! Unlike events, which tell everything about an exchange after its end, statistics count a request with the head of its
//! response, and bytes while they move.

use std::sync::Arc;
use std::time::Duration;

use culvert_statistics::{EndpointCounters, UpstreamUse};
use futures_util::future::FusedFuture;
use http::StatusCode;
use tokio::time::Instant;

use crate::edge::edge_state::EdgeState;
use crate::snapshot::group::{Member, StandIn};
use crate::snapshot::removal::{Removal, one_of};

/// Bytes of a response after which they are counted before its end, so that a long download has no single peak.
const COUNTED_EVERY: u64 = 256 << 10;

/// The counts of one exchange.
#[derive(Debug)]
pub(crate) struct ExchangeCount {
    began: Instant,
    /// The endpoint that clients know.
    first: Option<Arc<Member>>,
    /// Internal endpoints that it was forwarded to.
    further: Vec<Arc<Member>>,
    /// The stand-in of the last of them that serves it.
    stand_in: Option<Arc<Removal>>,
    is_answered: bool,
    /// Body bytes of the response that are not counted yet.
    sent: u64,
}

impl ExchangeCount {
    /// An exchange that begins now and has reached no endpoint.
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
            first: None,
            further: Vec::new(),
            stand_in: None,
            is_answered: false,
            sent: 0,
        }
    }

    /// When it began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The exchange reaches an endpoint.
    pub(crate) fn add(&mut self, member: &Arc<Member>, edge: &EdgeState) {
        member.counters(edge);
        match &self.first {
            None => self.first = Some(Arc::clone(member)),
            Some(_) => self.further.push(Arc::clone(member)),
        }
    }

    /// A stand-in of the endpoint that it reached last serves it.
    pub(crate) fn stands_in(&mut self, stand_in: &StandIn) {
        self.stand_in = stand_in.removal().cloned();
    }

    fn passed(&self) -> PassedEndpoints<'_> {
        PassedEndpoints {
            first: self.first.as_slice(),
            further: &self.further,
            stand_in: self.stand_in.as_deref(),
        }
    }

    fn each(&self) -> impl Iterator<Item = &EndpointCounters> {
        self.passed().counters()
    }

    /// Whether it has reached an endpoint.
    pub(crate) fn has_endpoint(&self) -> bool {
        self.first.is_some()
    }

    /// Counts the request with the status of its response. Returns the time until then, the first time.
    pub(crate) fn answer(&mut self, status: StatusCode, upstream: UpstreamUse) -> Option<Duration> {
        if self.first.is_none() || std::mem::replace(&mut self.is_answered, true) {
            return None;
        }
        let latency = self.began.elapsed();
        for counters in self.each() {
            counters.request(Some((status.as_u16(), latency)), upstream);
        }
        Some(latency)
    }

    /// Counts that it is refused, by the position of the reason.
    pub(crate) fn refused(&self, reason: usize) {
        for counters in self.each() {
            counters.refused(reason);
        }
    }

    /// Adds body bytes of the response.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64);
        if self.sent >= COUNTED_EVERY {
            self.count_bytes(0);
        }
    }

    /// Subtracts bytes that were added and not sent.
    pub(crate) fn unsent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_sub(bytes as u64);
    }

    /// The exchange has ended. Its request had this many bytes of payload.
    pub(crate) fn end(&mut self, received: u64) {
        if !self.is_answered {
            for counters in self.each() {
                counters.request(None, UpstreamUse::Unneeded);
            }
        }
        self.count_bytes(received);
    }

    fn count_bytes(&mut self, received: u64) {
        let sent = std::mem::take(&mut self.sent);
        for counters in self.each() {
            counters.bytes(received, sent);
        }
    }

    /// Counts the bytes of its upgraded connection, which has moved `bytes` in each direction before.
    pub(crate) fn relay(&self, bytes: (u64, u64)) -> RelayCount<'_> {
        RelayCount {
            passed: self.passed(),
            counted: bytes,
        }
    }
}

/// The endpoints that a connection or an exchange passes: the one that clients know, and internal ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedEndpoints<'x> {
    first: &'x [Arc<Member>],
    further: &'x [Arc<Member>],
    stand_in: Option<&'x Removal>,
}

impl<'x> PassedEndpoints<'x> {
    fn counters(self) -> impl Iterator<Item = &'x EndpointCounters> {
        let all = self.first.iter().chain(self.further);
        all.filter_map(|member| Some(&**member.counted.get()?))
    }

    /// The removals that end the connection. A connection to an agent ends with the agent's session, which may outlive its
    /// endpoint while the agent moves to another server.
    fn removals(self) -> impl Iterator<Item = &'x Removal> {
        let last = self.further.last().or_else(|| self.first.last());
        let is_kept = move |member: &&Arc<Member>| {
            last.is_some_and(|last| Arc::ptr_eq(member, last)) && member.is_agents()
        };
        let all = self.first.iter().chain(self.further);
        let ending = all.filter(move |member| !is_kept(member));
        ending.map(|member| &*member.removal).chain(self.stand_in)
    }

    /// Whether one of them was removed, so that the connection must end.
    pub(crate) fn is_removed(self) -> bool {
        self.removals().any(Removal::is_removed)
    }

    /// Completes with the next of these removals.
    pub(crate) fn removed(self) -> impl FusedFuture<Output = ()> + 'x {
        one_of(self.removals())
    }
}

/// Counts bytes of a relayed connection while they move.
#[derive(Debug)]
pub(crate) struct RelayCount<'x> {
    pub(crate) passed: PassedEndpoints<'x>,
    /// Bytes received and sent that are counted.
    counted: (u64, u64),
}

impl<'x> RelayCount<'x> {
    /// Counts a connection without HTTP, with all its bytes, for the endpoints that it passes.
    /// `stand_in` serves it instead of the last of them.
    pub(crate) fn of_connection(
        passed: &'x [Arc<Member>],
        stand_in: Option<&'x StandIn>,
        edge: &EdgeState,
    ) -> Self {
        for member in passed {
            member.counters(edge).connection();
        }
        let passed = PassedEndpoints {
            first: passed,
            further: &[],
            stand_in: stand_in.and_then(|stand_in| Some(&**stand_in.removal()?)),
        };
        let counted = (0, 0);
        Self { passed, counted }
    }

    /// Counts up to these bytes received and sent. Returns their sum.
    pub(crate) fn up_to(&mut self, (received, sent): (u64, u64)) -> u64 {
        if (received, sent) != self.counted {
            let (before_in, before_out) = std::mem::replace(&mut self.counted, (received, sent));
            for counters in self.passed.counters() {
                counters.bytes(
                    received.saturating_sub(before_in),
                    sent.saturating_sub(before_out),
                );
            }
        }
        received.wrapping_add(sent)
    }
}
