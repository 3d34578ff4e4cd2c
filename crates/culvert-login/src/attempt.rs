//! Sign-in attempts: the content of the `state` parameter, and its binding to the browser that began the sign-in.
//!
//! The browser keeps a random nonce in a cookie. `state` names that nonce. The OpenID nonce and the PKCE verifier
//! (RFC 7636) are derived from the nonce and the id of the attempt. So no secret passes through the provider, the
//! server stores nothing, and several tabs may sign in concurrently. A `state` is useless without the cookie.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_base::{Digest, Entropy, Timestamp};
use serde::{Deserialize, Serialize};

use super::seal::{LoginKeys, Purpose};

/// Time limit for the user at the provider.
pub(crate) const ATTEMPT_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Maximum length of the path that the user returns to. Longer paths become `/`.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum length of a `state`, in bytes.
pub(crate) const STATE_BYTES_MAX: usize = 4096;

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
    nonce: String,
    /// `https://host:port` of the endpoint.
    #[serde(rename = "o")]
    pub(crate) origin: String,
    /// The path that the user requested.
    #[serde(rename = "p")]
    pub(crate) path: String,
    #[serde(rename = "t")]
    since: i64,
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

    fn made(&self, of: &str, id: &[u8; 16]) -> String {
        let id = URL_SAFE_NO_PAD.encode(id);
        URL_SAFE_NO_PAD.encode(Digest::of(&self.secret, &format!("{of} {id}")).to_bytes())
    }

    /// The PKCE verifier of an attempt: 43 characters.
    pub(crate) fn verifier(&self, state: &AttemptState) -> String {
        self.made("verifier", &state.id)
    }

    /// The nonce of the attempt's ID token.
    pub(crate) fn token_nonce(&self, state: &AttemptState) -> String {
        self.made("nonce", &state.id)
    }

    /// Whether the attempt began in the browser with this nonce.
    pub(crate) fn is_of(&self, state: &AttemptState) -> bool {
        use subtle::ConstantTimeEq;
        let name = self.made("state", &state.id);
        name.as_bytes().ct_eq(state.nonce.as_bytes()).into()
    }
}

impl AttemptState {
    pub(crate) fn new(
        entropy: &dyn Entropy,
        nonce: &Nonce,
        origin: &str,
        path: &str,
        now: Timestamp,
    ) -> Self {
        let id = entropy.bytes();
        Self {
            id,
            nonce: nonce.made("state", &id),
            origin: origin.to_owned(),
            path: local_path(path).unwrap_or("/").to_owned(),
            since: now.unix_seconds(),
        }
    }

    /// Decrypts a `state` parameter. `None` if it is invalid or too old.
    pub(crate) fn open(
        keys: &LoginKeys,
        context: &str,
        text: &str,
        now: Timestamp,
    ) -> Option<Self> {
        if text.len() > STATE_BYTES_MAX {
            return None;
        }
        let bytes = keys.open(Purpose::State, context, text)?;
        let state: Self = serde_json::from_slice(&bytes).ok()?;
        is_recent(state.since, now).then_some(state)
    }

    pub(crate) fn seal(
        &self,
        keys: &LoginKeys,
        entropy: &dyn Entropy,
        context: &str,
    ) -> Option<String> {
        let bytes = serde_json::to_vec(self).ok()?;
        keys.seal(entropy, Purpose::State, context, &bytes)
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
        let state = AttemptState::new(&entropy, &nonce, "https://a.example", "/x?y=z", now);
        let again = AttemptState::new(&entropy, &nonce, "https://a.example", "/", now);
        assert!(nonce.is_of(&state) && nonce.is_of(&again) && !other.is_of(&state));
        assert_ne!(nonce.verifier(&state), nonce.verifier(&again));
        assert_ne!(nonce.verifier(&state), nonce.token_nonce(&state));
        assert_eq!(nonce.verifier(&state).len(), 43);

        let sealed = state.seal(&keys, &entropy, "c").unwrap();
        let late = now.plus(ATTEMPT_WITHIN);
        let later = late.plus(Duration::from_secs(1));
        assert_eq!(AttemptState::open(&keys, "c", &sealed, late), Some(state));
        assert_eq!(AttemptState::open(&keys, "c", &sealed, later), None);
        assert_eq!(AttemptState::open(&keys, "d", &sealed, now), None);
        let sealed = nonce.seal(&keys, &entropy, "c").unwrap();
        // Decrypting for another purpose fails.
        assert_eq!(AttemptState::open(&keys, "c", &sealed, now), None);
        assert_eq!(Nonce::open(&keys, "c", &sealed, later), None);
        let renewed = Nonce::open(&keys, "c", &sealed, late)
            .unwrap()
            .renewed(late);
        let sealed = renewed.seal(&keys, &entropy, "c").unwrap();
        assert!(Nonce::open(&keys, "c", &sealed, later).is_some_and(|nonce| nonce.is_of(&again)));
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
