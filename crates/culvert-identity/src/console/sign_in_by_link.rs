//! The sign-in to the console with its link.

use culvert_base::{Ksuid, Refusal, Secret, code};
use culvert_resources::Error;
use culvert_resources::access::caller::Caller;
use culvert_resources::access::token;

use crate::Identity;
use crate::console::link::LinkUse;

impl Identity {
    /// Makes a link that signs in once with the key of this token, and returns the link's secret. A previous unused
    /// link becomes invalid.
    pub fn make_console_link(&self, key: &Secret) -> Secret {
        let id: Ksuid = self
            .kernel
            .ids
            .next(&*self.kernel.clock, &*self.kernel.entropy);
        let form = self.kernel.settings.token_form;
        let secret = form.mint(token::Kind::Link, id, &*self.kernel.entropy);
        let digest = self.kernel.pepper.digest(secret.reveal());
        self.console_link
            .renew(digest, key, self.kernel.clock.now());
        secret
    }

    /// The caller of an unused link. The link becomes invalid when its use is complete, or when too many sign-ins with
    /// it were refused.
    ///
    /// # Errors
    ///
    /// 203 if the link is not valid, and those of [`Identity::authenticate`] for its key.
    pub async fn use_console_link(&self, secret: &str) -> Result<(Caller, LinkUse<'_>), Error> {
        let is_it = |digest: &str| self.kernel.pepper.recognises(Some(digest), secret);
        let Some((key, link_use)) = self.console_link.take(self.kernel.clock.now(), is_it) else {
            let why = "The sign-in link was used before, or has expired. Sign in with a token.";
            return Err(Refusal::new(code::API_KEY_INVALID, why).into());
        };
        let header = Secret::new(format!("Bearer {}", key.reveal()));
        let caller = self.authenticate(Some(header.reveal())).await?;
        Ok((caller, link_use))
    }
}
