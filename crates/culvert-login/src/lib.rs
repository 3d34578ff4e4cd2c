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

mod attempt;
mod central;
mod config;
mod console;
mod cookie;
mod event_slots;
pub mod fuzz;
mod grant;
mod journal;
mod logins;
mod oauth;
mod openid_connect;
mod provider;
mod seal;
mod session;
mod session_middleware;

use culvert_policy::action;
use culvert_policy::action_type::Actions;

pub use self::central::{CentralCallback, may_be_callback};
pub use self::console::{
    CONSOLE_SIGN_IN_WITHIN, ConsoleOpenId, ConsoleProvider, ConsoleSignInError, Identity,
};
pub(crate) use self::grant::App;
pub use self::journal::{
    Ending, JournalEntry, Noted, Person, Revocations, Revoked, Sighting, UserKey,
};
pub use self::logins::{LoginSettings, Logins, SESSION_MAX};
pub(crate) use self::provider::{Issuer, Known, is_secure};
pub use self::provider::{ProviderSettings, ProvidersSettings, provider_names};
pub use self::seal::LoginKeys;
pub(crate) use self::session_middleware::{AppSource, Provider, SignInAction};

/// The actions of traffic policies: those of `culvert-policy`, and the sign-in actions.
pub static ACTIONS: Actions = Actions(&[action::ALL, &[&oauth::TYPE, &openid_connect::TYPE]]);
