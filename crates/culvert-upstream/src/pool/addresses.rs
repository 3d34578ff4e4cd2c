//! Follows the name of an upstream: connections to addresses that it no longer has serve no further request.
//!
//! Otherwise a kept connection would serve a busy upstream without end, though its name leads elsewhere. The name is looked
//! up once in a while as long as there are connections; requests only compare a number.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use culvert_base::Share;

use super::Pool;
use super::http1::Http1;
use crate::fetch::Network;
use crate::names::LookupFor;
use crate::ports::{PoolOwner, UploadBody};

/// How often the name is looked up.
const LOOK_UP_EVERY: Duration = Duration::from_secs(60);
/// How long one waits for its result, so that a stop of the process does not.
const WAITS_AT_MOST: Duration = Duration::from_secs(5);
/// The generation of a connection that was not compared yet.
pub(super) const NOT_COMPARED: u64 = u64::MAX;

/// The addresses that the name of an upstream has.
#[derive(Debug, Default)]
pub(super) struct CurrentAddresses {
    /// `None` if they are not known.
    addresses: ArcSwapOption<Box<[IpAddr]>>,
    /// Increases when they change.
    generation: AtomicU64,
    /// When they were last looked up, in milliseconds since the pool was created.
    looked_up_at: AtomicU64,
    /// Each connection has a clone.
    pub(super) connections: Arc<()>,
}

impl CurrentAddresses {
    pub(super) fn has(&self, peer: Option<IpAddr>) -> bool {
        let addresses = self.addresses.load();
        match (addresses.as_ref(), peer) {
            (Some(addresses), Some(peer)) => addresses.contains(&peer.to_canonical()),
            _ => true,
        }
    }
}

impl<B: UploadBody> Pool<B> {
    /// Looks up the name of the upstream, if it has one, there are connections, and the last time is a minute ago. The lookup
    /// counts for `share`.
    pub fn follow_name(
        self: &Arc<Self>,
        owner: &Arc<impl PoolOwner>,
        network: &Network,
        share: Share,
    ) {
        let state = &self.addresses;
        let is_named = self.upstream.agents_endpoint().is_none()
            && self.upstream.port() > 0
            && self.upstream.host().parse::<IpAddr>().is_err();
        if !is_named || Arc::strong_count(&state.connections) == 1 {
            return;
        }
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = state.looked_up_at.load(Ordering::Relaxed);
        if Duration::from_millis(now.saturating_sub(last)) < LOOK_UP_EVERY {
            return;
        }
        // Also if the lookup fails: it is no more urgent then.
        state.looked_up_at.store(now, Ordering::Relaxed);
        let names = network.dialer.load().names().clone();
        let pool = Arc::clone(self);
        owner.track(async move {
            // Not urgent: as long as the share is used up, it waits in its turn, once for each pool.
            let lookup = (LookupFor::Checks, share);
            let is_queued = AtomicBool::new(false);
            let found = names.addresses(pool.upstream.host(), lookup, &is_queued);
            if let Ok(Ok(addresses)) = tokio::time::timeout(WAITS_AT_MOST, found).await {
                let addresses: Vec<IpAddr> = addresses.iter().map(|one| one.ip()).collect();
                pool.note_addresses(&addresses);
            }
        });
    }

    /// Notes the addresses that the name has. Without any, those before stay.
    pub fn note_addresses(&self, addresses: &[IpAddr]) {
        let mut addresses: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
        addresses.sort_unstable();
        let known = self.addresses.addresses.load();
        let is_known = known.as_ref().is_some_and(|known| ***known == *addresses);
        if addresses.is_empty() || is_known {
            return;
        }
        let addresses: Box<[IpAddr]> = addresses.into();
        self.addresses.addresses.store(Some(Arc::new(addresses)));
        self.addresses.generation.fetch_add(1, Ordering::Release);
        for connection in self.http2.load().iter() {
            if !self.addresses.has(connection.peer) {
                connection.is_retired.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether a connection leads to an address that the name has.
    pub(super) fn is_current(&self, link: &mut Http1<B>) -> bool {
        let generation = self.addresses.generation.load(Ordering::Acquire);
        if link.generation == generation {
            return true;
        }
        let is_current = self.addresses.has(link.peer);
        if is_current {
            link.generation = generation;
        }
        is_current
    }
}
