//! Users sign in at an identity provider before they reach an endpoint. This crate implements the actions `oauth` and
//! `openid-connect`.
//!
//! ```text
//! no session ─▶ provider ─▶ callback ─▶ session cookie ─▶ the page that was wanted
//!               (state,      (code, tokens, user info)
//!                nonce, PKCE)
//! ```
//!
//! A session is stored whole in its encrypted cookie (`seal`), so any node of an installation accepts it and no
//! request waits for a store. Records of sessions go through the module `journal`. The state in memory, such as used
//! attempts and refreshes in progress, is bounded and may be lost.
//!
//! Requests to providers go through the ports of [`culvert_policy::services`].
//!
//! # A sign-in
//!
//! A sign-in (`crates/culvert-login/src`). No session → a redirect to the provider. Its `state` is encrypted and
//! bound to a nonce in the browser's cookie, from which the PKCE verifier and the ID token's nonce are derived: the
//! server stores nothing → the callback exchanges the code, verifies the ID token and requests the user's data →
//! the session with its tokens is encrypted into cookies under a key derived from the master key, which any node
//! can decrypt. The record of sessions in the API goes through a bounded queue, which
//! `crates/culvert-identity/src/application/login.rs` writes into application users and sessions. A full
//! queue or an unavailable store loses a note, which the next renewal makes again. The cookies are removed from
//! every request before policies run (`crates/culvert-policy/src/headers/own_cookies.rs`), so nothing but the sign-in
//! actions has them. Paths below `/culvert/` are answered before all rules by the actions that own them
//! (`EdgePaths` in `crates/culvert-policy/src/policy/run.rs`). With `oauth.callback_base`, the exchange ends at the
//! central callback, and the endpoint gets an encrypted ticket (`crates/culvert-login/src/central.rs`). Sessions
//! that an operator ends early are documents by user, which outlive them; control hands every edge their table
//! without a new snapshot.

mod action;
mod attempt;
mod central;
mod console;
mod event_slots;
pub mod fuzz;
mod journal;
mod logins;
mod partner;
mod provider;
mod seal;
mod session;

use culvert_policy::action_type::ActionType;

use self::action::{oauth, openid_connect};

pub(crate) use self::action::session_middleware::{AppSource, Provider, SignInAction};
pub use self::central::{CentralCallback, may_be_callback};
pub use self::console::{
    CONSOLE_SIGN_IN_WITHIN, ConsoleOpenId, ConsoleProvider, ConsoleSignInError, Identity,
    is_callback_of,
};
pub use self::journal::{
    Ending, JournalEntry, Noted, Person, Revocations, Revoked, Sighting, UserKey,
};
pub use self::logins::{LoginSettings, Logins, SESSION_MAX};
pub use self::partner::{LeakPartner, NotSigned};
pub(crate) use self::provider::grant::App;
pub(crate) use self::provider::{BuiltInProvider, Issuer, is_secure};
pub use self::provider::{ProviderSettings, ProvidersSettings, provider_names};
pub use self::seal::LoginKeys;

/// The sign-in actions, sorted by name.
pub static ALL: &[&ActionType] = &[&oauth::TYPE, &openid_connect::TYPE];
