//! The link that opens the console once without a token, for the person who has just started a new server.
//!
//! A link exists only in the process that printed it. It represents a key, and is valid until it was used for a
//! sign-in, a new link is made, ten sign-ins with it were refused, or an hour has passed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_base::{Ksuid, Refusal, Secret, Timestamp, code};
use culvert_resources::Error;
use culvert_resources::access::caller::Caller;
use culvert_resources::access::token;

use crate::Identity;

/// How long an unused link is valid.
const VALID_FOR: Duration = Duration::from_secs(3_600);

/// How many sign-ins with the link may be refused.
const TRIES_MAX: u32 = 10;

/// The unused link of this process, if there is one.
#[derive(Debug, Default)]
pub struct ConsoleLink(Mutex<Option<Unused>>);

impl ConsoleLink {
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

impl Identity {
    /// Makes a link that signs in once with the key of this token, and returns the link's secret. A previous unused
    /// link becomes invalid.
    pub fn make_console_link(&self, key: &Secret) -> Secret {
        let id: Ksuid = self
            .kernel
            .ids
            .next(&*self.kernel.clock, &*self.kernel.entropy);
        let secret = token::mint(id, &*self.kernel.entropy);
        let link = Unused {
            digest: self.kernel.pepper.digest(secret.reveal()),
            until: self.kernel.clock.now().plus(VALID_FOR),
            key: key.clone(),
            tries: 0,
        };
        *self.console_link.lock() = Some(link);
        secret
    }

    /// The caller of an unused link. The link becomes invalid when its use is complete, or when too many sign-ins with
    /// it were refused.
    ///
    /// # Errors
    ///
    /// 203 if the link is not valid, and those of [`Identity::authenticate`] for its key.
    pub async fn use_console_link(&self, secret: &str) -> Result<(Caller, LinkUse<'_>), Error> {
        let is_it = |link: &mut Unused| self.kernel.pepper.recognises(Some(&link.digest), secret);
        let taken = self.console_link.lock().take_if(is_it);
        let Some(link) = taken.filter(|link| self.kernel.clock.now() < link.until) else {
            let why = "The sign-in link was used before, or has expired. Sign in with a token.";
            return Err(Refusal::new(code::API_KEY_INVALID, why).into());
        };
        let header = Secret::new(format!("Bearer {}", link.key.reveal()));
        let link_use = LinkUse {
            of: &self.console_link,
            link: Some(link),
        };
        let caller = self.authenticate(Some(header.reveal())).await?;
        Ok((caller, link_use))
    }
}
