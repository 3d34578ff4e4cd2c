//! The link that opens the console once without a token, for the person who has just started a new server.
//!
//! A link exists only in the process that printed it. It represents a key, and is valid until it was used for a
//! sign-in, a new link is made, ten sign-ins with it were refused, or an hour has passed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_base::{Secret, Timestamp};

/// How long an unused link is valid.
const VALID_FOR: Duration = Duration::from_secs(3_600);

/// How many sign-ins with the link may be refused.
const TRIES_MAX: u32 = 10;

/// The unused link of this process, if there is one.
#[derive(Debug, Default)]
pub struct ConsoleLink(Mutex<Option<Unused>>);

impl ConsoleLink {
    /// Replaces the link by a new one, whose secret has this digest, for the key of this token.
    pub(super) fn renew(&self, digest: String, key: &Secret, now: Timestamp) {
        *self.lock() = Some(Unused {
            digest,
            until: now.plus(VALID_FOR),
            key: key.clone(),
            tries: 0,
        });
    }

    /// Takes the link whose digest is recognised, unless it has expired: the token of its key, and its use, which puts
    /// it back unless it is complete.
    pub(super) fn take(
        &self,
        now: Timestamp,
        is_it: impl Fn(&str) -> bool,
    ) -> Option<(Secret, LinkUse<'_>)> {
        let taken = self.lock().take_if(|link| is_it(&link.digest));
        let link = taken.filter(|link| now < link.until)?;
        let key = link.key.clone();
        let link_use = LinkUse {
            of: self,
            link: Some(link),
        };
        Some((key, link_use))
    }

    /// Ends the link whose digest is recognised.
    pub(crate) fn end(&self, is_it: impl Fn(&str) -> bool) {
        drop(self.lock().take_if(|link| is_it(&link.digest)));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Unused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Unused {
    digest: String,
    until: Timestamp,
    /// The token of the key that the link represents.
    key: Secret,
    /// How many sign-ins with it were refused.
    tries: u32,
}

/// A sign-in with the link. Only one can be in progress. If it is dropped without [`LinkUse::complete`], the link stays
/// valid.
#[derive(Debug)]
pub struct LinkUse<'a> {
    of: &'a ConsoleLink,
    link: Option<Unused>,
}

impl LinkUse<'_> {
    /// Notes that the person is signed in: the link becomes invalid.
    pub fn complete(mut self) {
        self.link = None;
    }
}

impl Drop for LinkUse<'_> {
    fn drop(&mut self) {
        let Some(mut link) = self.link.take() else {
            return;
        };
        link.tries += 1;
        if link.tries < TRIES_MAX {
            // A new link replaces it.
            self.of.lock().get_or_insert(link);
        }
    }
}
