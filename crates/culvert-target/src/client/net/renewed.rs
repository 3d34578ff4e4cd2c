//! Pools of connections that are replaced from time to time.
//!
//! A connection that is always in use would never end, and the name of its host would never be resolved again. A new
//! pool makes new connections; those of the old one end with their requests.

use std::sync::Mutex;

use culvert_base::sync::lock;
use tokio::time::Instant;

use super::CONNECTION_LIFE;

/// Requests that a pool is used for.
pub(super) const REQUESTS_MAX: u32 = 1000;

/// A pool, or none yet.
pub(super) struct Renewed<C>(Mutex<Option<Pool<C>>>);

struct Pool<C> {
    client: C,
    began: Instant,
    requests: u32,
}

impl<C: Clone> Renewed<C> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The pool for one request.
    pub(super) fn get(&self, make: impl FnOnce() -> C) -> C {
        let mut pool = lock(&self.0);
        if let Some(pool) = &mut *pool
            && pool.requests < REQUESTS_MAX
            && pool.began.elapsed() < CONNECTION_LIFE
        {
            pool.requests += 1;
            return pool.client.clone();
        }
        let client = make();
        *pool = Some(Pool {
            client: client.clone(),
            began: Instant::now(),
            requests: 1,
        });
        client
    }

    /// Makes the next request use new connections.
    pub(super) fn renew(&self) {
        *lock(&self.0) = None;
    }
}
