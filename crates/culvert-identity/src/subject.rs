//! What the subject holds.

use std::sync::Arc;

use arc_swap::ArcSwap;
use culvert_access::ip::restrictions::Restrictions;
use culvert_base::RetentionClock;
use culvert_login::LeakPartner;
use culvert_resources::Kernel;

use crate::console::link::ConsoleLink;
use crate::console::provider::ConsoleSignIn;
use crate::standing::Standings;

/// Decides who a caller is and from where calls are accepted.
#[derive(Debug)]
pub struct Identity {
    pub(crate) kernel: Arc<Kernel>,
    /// The standing of owners, as far as it is known.
    pub standings: Standings,
    /// The IP restrictions in force.
    pub restrictions: ArcSwap<Restrictions>,
    pub(crate) console_link: ConsoleLink,
    /// Decides which ended sessions of applications can be forgotten.
    pub(crate) login_retention: RetentionClock,
    /// How people sign in to the console at an OpenID provider, if they do.
    pub(crate) console_sign_in: Option<ConsoleSignIn>,
    /// The partner whose signed reports of leaked tokens are accepted, if there is one.
    pub leak_partner: Option<LeakPartner>,
}

impl Identity {
    /// The subject with the restrictions that are in force from the start.
    pub fn new(
        kernel: Arc<Kernel>,
        restrictions: Restrictions,
        console_sign_in: Option<ConsoleSignIn>,
        leak_partner: Option<LeakPartner>,
    ) -> Self {
        Self {
            standings: Standings::new(kernel.store.watch()),
            restrictions: ArcSwap::from_pointee(restrictions),
            console_link: ConsoleLink::default(),
            login_retention: RetentionClock::default(),
            console_sign_in,
            leak_partner,
            kernel,
        }
    }
}

impl AsRef<Kernel> for Identity {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}
