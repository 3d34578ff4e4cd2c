//! Sign-in attempts: the content of the `state` parameter, and its binding to the browser that began the sign-in.
//!
//! The browser keeps a random nonce in a cookie. `state` names that nonce. The OpenID nonce and the PKCE verifier
//! (RFC 7636) are derived from the nonce and the id of the attempt. So no secret passes through the provider, the
//! server stores nothing, and several tabs may sign in concurrently. A `state` is useless without the cookie.
//!
//! With a common callback address, the host that exchanges the code does not get the cookie. So these two values derive
//! from a seed in the encrypted `state`, and the endpoint compares the cookie when it gets the [`Ticket`].

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{Digest, Entropy, Timestamp};
use serde::{Deserialize, Serialize};

use crate::action::session_middleware::SignInAction;
use crate::journal::Person;
use crate::seal::{LoginKeys, Purpose};
use crate::session::Tokens;

/// Time limit for the user at the provider.
pub(crate) const ATTEMPT_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Maximum length of the path that the user returns to. Longer paths become `/`.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum length of a `state`, in bytes.
pub(crate) const STATE_BYTES_MAX: usize = 4096;
/// Time limit from the common callback address to the endpoint.
pub(crate) const TICKET_WITHIN: Duration = Duration::from_secs(60);
/// Maximum length of a ticket, in bytes. It fits into a request line of the edge.
const TICKET_BYTES_MAX: usize = 15 << 10;

/// The nonce that a browser keeps during a sign-in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Nonce {
    #[serde(rename = "n")]
    secret: [u8; 16],
    #[serde(rename = "t")]
    since: i64,
}

/// The `state` parameter, which the provider returns unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct AttemptState {
    #[serde(rename = "i")]
    id: [u8; 16],
    /// Identifies the nonce that the attempt belongs to.
    #[serde(rename = "n")]
    pub(crate) nonce: String,
    /// The sign-in that it is for, with its application and its host, as a digest.
    #[serde(rename = "c")]
    pub(crate) context: String,
    /// The action that it is for.
    #[serde(rename = "k")]
    pub(crate) kind: SignInAction,
    /// Its `auth_id`.
    #[serde(rename = "a")]
    pub(crate) auth_id: String,
    /// The endpoint whose policy has the action.
    #[serde(rename = "e")]
    pub(crate) endpoint: EndpointPlace,
    /// Present if the sign-in is completed at the common callback address.
    #[serde(rename = "v", default)]
    pub(crate) seed: Option<[u8; 16]>,
    /// `https://host:port` of the endpoint.
    #[serde(rename = "o")]
    pub(crate) origin: String,
    /// The path that the user requested.
    #[serde(rename = "p")]
    pub(crate) path: String,
    #[serde(rename = "t")]
    since: i64,
}

/// An endpoint, and where it is found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct EndpointPlace {
    /// `ep_…`.
    #[serde(rename = "i")]
    pub(crate) id: String,
    /// Scheme, host and port of an endpoint that only policies of its account reach.
    #[serde(rename = "p", default)]
    pub(crate) internal: Option<(String, String, u16)>,
}

/// What a sign-in attempt is for.
#[derive(Debug)]
pub(crate) struct Aim<'a> {
    pub(crate) context: &'a str,
    pub(crate) kind: SignInAction,
    pub(crate) auth_id: &'a str,
    pub(crate) endpoint: EndpointPlace,
    pub(crate) origin: &'a str,
    pub(crate) path: &'a str,
    /// Whether it is completed at the common callback address.
    pub(crate) is_central: bool,
}

/// A sign-in that was completed at the common callback address. It has the user and the tokens, and no code.
#[derive(Deserialize, Serialize)]
pub(crate) struct Ticket {
    #[serde(rename = "s")]
    pub(crate) state: AttemptState,
    #[serde(rename = "w")]
    pub(crate) person: Person,
    #[serde(rename = "t")]
    pub(crate) tokens: Tokens,
    #[serde(rename = "at")]
    since: i64,
}

impl Ticket {
    pub(crate) fn new(state: AttemptState, person: Person, tokens: Tokens, now: Timestamp) -> Self {
        Self {
            state,
            person,
            tokens,
            since: now.unix_seconds(),
        }
    }

    /// Encrypts the ticket. Omits tokens that do not fit: first the identity token, last the refresh token.
    pub(crate) fn seal(mut self, keys: &LoginKeys, entropy: &dyn Entropy) -> Option<String> {
        for step in 0..4 {
            self.tokens.shorten(step);
            let bytes = serde_json::to_vec(&self).ok()?;
            let context = self.state.context.clone();
            let sealed = keys.seal(entropy, Purpose::Ticket, &context, &bytes)?;
            if sealed.len() <= TICKET_BYTES_MAX {
                return Some(sealed);
            }
        }
        None
    }

    /// Decrypts a ticket for a sign-in, which may be too old.
    pub(crate) fn open(keys: &LoginKeys, context: &str, text: &str) -> Option<Self> {
        if text.len() > TICKET_BYTES_MAX {
            return None;
        }
        let bytes = keys.open(Purpose::Ticket, context, text)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether it has not expired.
    pub(crate) fn is_recent(&self, now: Timestamp) -> bool {
        now.since(Timestamp::from_unix_seconds(self.since)) <= TICKET_WITHIN
    }
}

impl Nonce {
    pub(crate) fn new(entropy: &dyn Entropy, now: Timestamp) -> Self {
        Self {
            secret: entropy.bytes(),
            since: now.unix_seconds(),
        }
    }

    /// Decrypts the nonce of a cookie. `None` if it is invalid or too old.
    pub(crate) fn open(
        keys: &LoginKeys,
        context: &str,
        text: &str,
        now: Timestamp,
    ) -> Option<Self> {
        let bytes = keys.open(Purpose::Nonce, context, text)?;
        let nonce: Self = serde_json::from_slice(&bytes).ok()?;
        is_recent(nonce.since, now).then_some(nonce)
    }

    pub(crate) fn seal(
        &self,
        keys: &LoginKeys,
        entropy: &dyn Entropy,
        context: &str,
    ) -> Option<String> {
        let bytes = serde_json::to_vec(self).ok()?;
        keys.seal(entropy, Purpose::Nonce, context, &bytes)
    }

    /// The same nonce with its age reset.
    pub(crate) fn renewed(self, now: Timestamp) -> Self {
        Self {
            since: now.unix_seconds(),
            ..self
        }
    }

    fn derive(&self, of: &str, id: &[u8; 16]) -> String {
        derived(&self.secret, of, id)
    }

    /// The PKCE verifier of an attempt: 43 characters.
    pub(crate) fn verifier(&self, state: &AttemptState) -> String {
        derived(
            state.seed.as_ref().unwrap_or(&self.secret),
            "verifier",
            &state.id,
        )
    }

    /// The nonce of the attempt's ID token.
    pub(crate) fn token_nonce(&self, state: &AttemptState) -> String {
        derived(
            state.seed.as_ref().unwrap_or(&self.secret),
            "nonce",
            &state.id,
        )
    }

    /// Whether the attempt began in the browser with this nonce.
    pub(crate) fn is_of(&self, state: &AttemptState) -> bool {
        use subtle::ConstantTimeEq;
        let name = self.derive("state", &state.id);
        name.as_bytes().ct_eq(state.nonce.as_bytes()).into()
    }
}

/// A value that derives from a secret, for one attempt: 43 characters.
fn derived(secret: &[u8; 16], of: &str, id: &[u8; 16]) -> String {
    let id = URL_SAFE_NO_PAD.encode(id);
    URL_SAFE_NO_PAD.encode(Digest::of(secret, &format!("{of} {id}")).to_bytes())
}

impl AttemptState {
    pub(crate) fn new(entropy: &dyn Entropy, nonce: &Nonce, aim: Aim<'_>, now: Timestamp) -> Self {
        let id = entropy.bytes();
        Self {
            id,
            nonce: nonce.derive("state", &id),
            context: aim.context.to_owned(),
            kind: aim.kind,
            auth_id: aim.auth_id.to_owned(),
            endpoint: aim.endpoint,
            seed: aim.is_central.then(|| entropy.bytes()),
            origin: aim.origin.to_owned(),
            path: local_path(aim.path).unwrap_or("/").to_owned(),
            since: now.unix_seconds(),
        }
    }

    /// Decrypts a `state` parameter. `None` if it is invalid or too old.
    pub(crate) fn open(keys: &LoginKeys, text: &str, now: Timestamp) -> Option<Self> {
        let state = Self::read(keys, text)?;
        is_recent(state.since, now).then_some(state)
    }

    /// Decrypts a `state` that may be too old. `None` if it is invalid.
    pub(crate) fn read(keys: &LoginKeys, text: &str) -> Option<Self> {
        if text.len() > STATE_BYTES_MAX {
            return None;
        }
        let bytes = keys.open(Purpose::State, "", text)?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(crate) fn seal(&self, keys: &LoginKeys, entropy: &dyn Entropy) -> Option<String> {
        let bytes = serde_json::to_vec(self).ok()?;
        keys.seal(entropy, Purpose::State, "", &bytes)
    }

    /// The PKCE verifier and the nonce of the ID token, if the attempt is completed at the common callback address.
    pub(crate) fn central_secrets(&self) -> Option<(String, String)> {
        let seed = self.seed.as_ref()?;
        let of = |of| derived(seed, of, &self.id);
        Some((of("verifier"), of("nonce")))
    }

    /// The URL that the user returns to.
    pub(crate) fn back(&self) -> String {
        format!("{}{}", self.origin, self.path)
    }

    /// Whether the time limit of the attempt has not passed.
    pub(crate) fn is_recent(&self, now: Timestamp) -> bool {
        is_recent(self.since, now)
    }

    /// The id under which the attempt is remembered once it is used.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.id
    }
}

/// The value of a parameter. `None` if it is empty or repeated.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut all = url::form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
    let (_, value) = all.next()?;
    (all.next().is_none() && !value.is_empty()).then(|| value.into_owned())
}

/// The code challenge of a PKCE verifier (RFC 7636 4.2).
pub(crate) fn challenge(verifier: &str) -> String {
    use sha2::{Digest, Sha256};
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

fn is_recent(since: i64, now: Timestamp) -> bool {
    now.since(Timestamp::from_unix_seconds(since)) <= ATTEMPT_WITHIN
}

/// Accepts a path with an optional query on the same host. Rejects texts that browsers interpret as another host.
pub(crate) fn local_path(text: &str) -> Option<&str> {
    let is_local = text.starts_with('/')
        && !text.starts_with("//")
        && text.len() <= PATH_BYTES_MAX
        && text
            .bytes()
            .all(|byte| (b'!'..=b'~').contains(&byte) && byte != b'\\');
    is_local.then_some(text)
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;

    use super::*;

    #[test]
    fn an_attempt_is_of_its_browser_and_for_a_quarter_of_an_hour() {
        let (keys, entropy) = (LoginKeys::new([[1; 32]]), SeededEntropy::new(1));
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        let (nonce, other) = (Nonce::new(&entropy, now), Nonce::new(&entropy, now));
        let aim = |path| Aim {
            context: "c",
            kind: SignInAction::OAuth,
            auth_id: "",
            endpoint: EndpointPlace {
                id: "ep_1".to_owned(),
                internal: None,
            },
            origin: "https://a.example",
            path,
            is_central: path == "/",
        };
        let state = AttemptState::new(&entropy, &nonce, aim("/x?y=z"), now);
        let again = AttemptState::new(&entropy, &nonce, aim("/"), now);
        assert!(nonce.is_of(&state) && nonce.is_of(&again) && !other.is_of(&state));
        assert_ne!(nonce.verifier(&state), nonce.verifier(&again));
        assert_ne!(nonce.verifier(&state), nonce.token_nonce(&state));
        assert_eq!(nonce.verifier(&state).len(), 43);

        assert_eq!(state.central_secrets(), None);
        let central = (nonce.verifier(&again), nonce.token_nonce(&again));
        assert_eq!(again.central_secrets(), Some(central));

        let sealed = state.seal(&keys, &entropy).unwrap();
        let late = now.plus(ATTEMPT_WITHIN);
        let later = late.plus(Duration::from_secs(1));
        assert_eq!(AttemptState::open(&keys, &sealed, late), Some(state));
        assert_eq!(AttemptState::open(&keys, &sealed, later), None);
        let sealed = nonce.seal(&keys, &entropy, "c").unwrap();
        // Decrypting for another purpose fails.
        assert_eq!(AttemptState::open(&keys, &sealed, now), None);
        assert_eq!(Nonce::open(&keys, "c", &sealed, later), None);
        assert_eq!(Nonce::open(&keys, "d", &sealed, now), None);
        let renewed = Nonce::open(&keys, "c", &sealed, late)
            .unwrap()
            .renewed(late);
        let sealed = renewed.seal(&keys, &entropy, "c").unwrap();
        assert!(Nonce::open(&keys, "c", &sealed, later).is_some_and(|nonce| nonce.is_of(&again)));
    }

    #[test]
    fn a_ticket_is_for_one_sign_in_and_expires_in_a_minute() {
        let (keys, entropy) = (LoginKeys::new([[1; 32]]), SeededEntropy::new(1));
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        let nonce = Nonce::new(&entropy, now);
        let aim = Aim {
            context: "c",
            kind: SignInAction::OpenIdConnect,
            auth_id: "staff",
            endpoint: EndpointPlace {
                id: "ep_1".to_owned(),
                internal: Some(("https".to_owned(), "a.internal".to_owned(), 443)),
            },
            origin: "https://a.example",
            path: "/",
            is_central: true,
        };
        let state = AttemptState::new(&entropy, &nonce, aim, now);
        let tokens = Tokens {
            access: "a".repeat(9000),
            identity: "i".repeat(9000),
            ..Tokens::default()
        };
        let ticket = Ticket::new(state.clone(), Person::default(), tokens, now);
        let sealed = ticket.seal(&keys, &entropy).unwrap();
        assert!(sealed.len() <= TICKET_BYTES_MAX);
        let opened = Ticket::open(&keys, "c", &sealed).unwrap();
        assert_eq!(opened.state, state);
        assert_eq!(opened.tokens.access.len(), 9000);
        assert!(opened.tokens.identity.is_empty());
        assert!(opened.is_recent(now.plus(TICKET_WITHIN)));
        assert!(!opened.is_recent(now.plus(TICKET_WITHIN + Duration::from_secs(1))));
        assert!(Ticket::open(&keys, "d", &sealed).is_none());
        assert!(AttemptState::open(&keys, &sealed, now).is_none());
    }

    #[test]
    fn paths_of_other_hosts_are_not_gone_to() {
        for local in ["/", "/a/b?c=d&e=%2F", "/a//b", "/@x", "/x:y"] {
            assert_eq!(local_path(local), Some(local));
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for foreign in [
            "",
            "a",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "https://evil.example",
            "/a\\b",
            "/a b",
            "/a\tb",
            "/\n/evil.example",
            "/é",
            "javascript:alert(1)",
            " /a",
            &long,
        ] {
            assert_eq!(local_path(foreign), None, "{foreign}");
        }
    }
}
