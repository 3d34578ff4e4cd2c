//! What the headers of a call ask for beside its operation, and what its response says in headers: conditions on the
//! object, entity tags, and the key of a request that may be repeated.
//!
//! An entity tag has two parts: `"<state>.<representation>"`. The first is a digest of the stored object and of the
//! commit that wrote it. The second is a digest of the bytes of the response, which depend also on the caller, on
//! `include`, and on facts that change without a write, such as a last use. A whole tag names one sequence of bytes, so
//! it is strong, and `If-None-Match` of a read compares it. A condition of a write compares only the first part: who has
//! read the object in any of its representations may write it, unless it was written since.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use culvert_base::{Digest, DigestKey, Refusal, Timestamp, code};
use culvert_store::{Document, Head};

use crate::operation::once::Claim;
use crate::stored::seal::Pepper;

/// Hexadecimal digits of each part of a tag: 64 bits.
const DIGITS: usize = 16;

/// What the headers of a call ask for, and what its response says in headers.
#[derive(Debug, Default)]
pub struct Terms {
    /// The key of a request that may be repeated (`Idempotency-Key`).
    pub key: Option<String>,
    /// Conditions on the object.
    pub conditions: Conditions,
    pub(crate) claim: OnceLock<Claim>,
    shown: Mutex<Option<Shown>>,
    is_repeated: OnceLock<()>,
}

/// The state of the object in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The first part of its entity tag.
    pub state: String,
    /// When it was last written.
    pub at: Timestamp,
}

impl Terms {
    /// Sets the state of the object that the response shows.
    pub fn show(&self, document: &Document) {
        let key = &self.conditions.key;
        self.show_state(key.shown(&document.head, &document.body));
    }

    /// Sets it, for a part of an object.
    pub fn show_state(&self, state: Shown) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// The state of the object that the response shows, if it shows one.
    pub fn shown(&self) -> Option<Shown> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    pub(crate) fn set_repeated(&self) {
        self.is_repeated.get_or_init(|| ());
    }

    /// Whether the response is that of an earlier request with the same key.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated.get().is_some()
    }
}

/// The secret of entity tags, which all nodes share. Tags are digests of stored forms and of responses, also of what their
/// reader may not see; without the secret, guesses could be compared with a tag.
#[derive(Clone)]
pub struct TagKey(Arc<TagKeys>);

/// A key for each part of a tag. They are prepared once, because each response with an object uses all.
#[derive(Debug)]
struct TagKeys {
    stored: DigestKey,
    state: DigestKey,
    representation: DigestKey,
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey")
    }
}

impl Default for TagKey {
    /// One that everyone knows, for calls without headers.
    fn default() -> Self {
        static KNOWN: LazyLock<TagKey> = LazyLock::new(|| TagKey::from_secret(""));
        KNOWN.clone()
    }
}

impl TagKey {
    /// That of an installation.
    pub fn of(pepper: &Pepper) -> Self {
        Self::from_secret(&pepper.digest("entity tags"))
    }

    fn from_secret(secret: &str) -> Self {
        let secret = DigestKey::new(secret.as_bytes());
        let key = |of| DigestKey::new(&secret.digest(of).to_bytes());
        Self(Arc::new(TagKeys {
            stored: key("culvert stored form 1"),
            state: key("culvert state 1"),
            representation: key("culvert representation 1"),
        }))
    }

    /// The state of an object with this head and stored form.
    fn shown(&self, head: &Head, body: &str) -> Shown {
        self.shown_at(head, head.revision, &self.digest_of(body))
    }

    /// The same, of a form with this [`Self::digest_of`] that another revision wrote.
    pub(crate) fn shown_at(&self, head: &Head, revision: i64, digest: &str) -> Shown {
        Shown {
            state: self.state_of(&head.id, revision, digest),
            at: head.updated_at,
        }
    }

    /// The state of a part of an object that has its own conditions. It has this name and this stored form. Writes of other
    /// parts keep it.
    pub fn shown_part(&self, head: &Head, name: &str, body: &str) -> Shown {
        Shown {
            state: self.state_of(&format!("{} {name}", head.id), 0, &self.digest_of(body)),
            at: head.updated_at,
        }
    }

    /// A digest of a stored form.
    pub(crate) fn digest_of(&self, body: &str) -> String {
        self.0.stored.digest(body).to_hex()
    }

    pub(crate) fn state_of(&self, id: &str, revision: i64, digest: &str) -> String {
        short(&self.0.state.digest(&format!("{id} {revision} {digest}")))
    }

    /// The entity tag, with its quotes, of a response body that shows an object in this state.
    pub fn entity_tag(&self, state: &str, body: &str) -> String {
        let representation = short(&self.0.representation.digest(body));
        format!("\"{state}.{representation}\"")
    }
}

fn short(digest: &Digest) -> String {
    let mut text = digest.to_hex();
    text.truncate(DIGITS);
    text
}

/// Entity tags in a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tags {
    /// `*`: any state of an object that exists.
    Any,
    /// These, without quotes; whether each is weak.
    Of(Vec<(String, bool)>),
}

/// Conditions on the object in the path of a call (RFC 9110 13). The default has none.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// The secret of the tags in them, and of those of the response.
    pub key: TagKey,
    /// `If-Match`.
    pub if_match: Option<Tags>,
    /// `If-None-Match`.
    pub if_none_match: Option<Tags>,
    /// `If-Unmodified-Since`, which counts only without `If-Match`.
    pub if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Whether there is one.
    pub fn guard(&self) -> bool {
        self.if_match.is_some()
            || self.if_none_match.is_some()
            || self.if_unmodified_since.is_some()
    }

    /// Refuses a call on an object in another state (266). Whether the caller of a read has its representation already is
    /// decided once the response is known.
    pub fn check(&self, document: &Document, is_write: bool) -> Result<(), Refusal> {
        if !self.guard() {
            return Ok(());
        }
        self.check_state(&self.key.shown(&document.head, &document.body), is_write)
    }

    /// The same, for a part of an object.
    pub fn check_state(&self, shown: &Shown, is_write: bool) -> Result<(), Refusal> {
        let failed = |name| Err(Refusal::of(code::PRECONDITION_FAILED).with("condition", name));
        match (&self.if_match, self.if_unmodified_since) {
            (Some(tags), _) if !tags.name_state(&shown.state, false) => return failed("if-match"),
            (None, Some(since)) if shown.at.whole_seconds() > since => {
                return failed("if-unmodified-since");
            }
            _ => {}
        }
        match &self.if_none_match {
            Some(tags) if is_write && tags.name_state(&shown.state, true) => {
                failed("if-none-match")
            }
            _ => Ok(()),
        }
    }
}

impl Tags {
    /// Whether one of them is of a representation of an object in this state. Weak tags count if `with_weak`.
    fn name_state(&self, state: &str, with_weak: bool) -> bool {
        match self {
            Self::Any => true,
            Self::Of(tags) => tags.iter().any(|(tag, is_weak)| {
                let of = tag.split_once('.').map(|(of, _)| of);
                of == Some(state) && (with_weak || !is_weak)
            }),
        }
    }

    /// Whether one of them is this tag, with its quotes, in the weak comparison.
    pub fn name(&self, entity_tag: &str) -> bool {
        let opaque = entity_tag.trim_matches('"');
        match self {
            Self::Any => true,
            Self::Of(tags) => tags.iter().any(|(tag, _)| tag == opaque),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(revision: i64, body: &str) -> Document {
        Document {
            head: Head {
                id: "vault_1".to_owned(),
                kind: "vault".to_owned(),
                account: "ac_1".to_owned(),
                revision,
                created_at: Timestamp::from_unix_seconds(5),
                updated_at: Timestamp::from_unix_seconds(9),
            },
            body: body.to_owned(),
            keys: Vec::new(),
            refs: Vec::new(),
            topics: Vec::new(),
        }
    }

    fn tags(list: &[(&str, bool)]) -> Option<Tags> {
        let list = list.iter().map(|(tag, weak)| ((*tag).to_owned(), *weak));
        Some(Tags::Of(list.collect()))
    }

    #[test]
    fn a_tag_changes_with_each_commit_and_each_representation() {
        let key = TagKey::from_secret("a");
        let other = TagKey::from_secret("b");
        let state = |revision, body: &str| key.shown(&document(revision, body).head, body).state;
        assert_eq!(state(1, "{}"), state(1, "{}"));
        assert_ne!(
            state(1, "{}"),
            state(2, "{}"),
            "written again with the same form"
        );
        assert_ne!(state(1, "{}"), state(1, "[]"), "a number of a lost commit");
        assert_ne!(key.entity_tag("a", "1"), key.entity_tag("a", "2"));
        assert_eq!(key.entity_tag("a", "1"), key.entity_tag("a", "1"));
        // A reader without the key cannot compare guesses with a tag.
        let document = document(1, "{}");
        assert_ne!(
            key.shown(&document.head, "{}"),
            other.shown(&document.head, "{}")
        );
        assert_ne!(key.entity_tag("a", "1"), other.entity_tag("a", "1"));
    }

    #[test]
    fn conditions_compare_as_rfc_9110_says() {
        let before = document(7, "{}");
        let state = TagKey::default().shown(&before.head, &before.body).state;
        let one = format!("{state}.0000000000000000");
        let old = "0000000000000000.0000000000000000";
        let passes = |conditions: Conditions, is_write| conditions.check(&before, is_write).is_ok();
        let if_match = |tags| Conditions {
            if_match: tags,
            ..Conditions::default()
        };
        let if_none_match = |tags| Conditions {
            if_none_match: tags,
            ..Conditions::default()
        };
        let since = |seconds| Conditions {
            if_unmodified_since: Some(Timestamp::from_unix_seconds(seconds)),
            ..Conditions::default()
        };
        for (conditions, write, read) in [
            (Conditions::default(), true, true),
            (if_match(Some(Tags::Any)), true, true),
            (if_match(tags(&[(&one, false)])), true, true),
            (if_match(tags(&[(old, false), (&one, false)])), true, true),
            (if_match(tags(&[(&one, true)])), false, false),
            (if_match(tags(&[(old, false)])), false, false),
            (if_match(tags(&[(&state, false)])), false, false),
            (if_match(tags(&[])), false, false),
            (if_none_match(Some(Tags::Any)), false, true),
            (if_none_match(tags(&[(&one, true)])), false, true),
            (if_none_match(tags(&[(old, false)])), true, true),
            (since(8), false, false),
            (since(9), true, true),
            (
                Conditions {
                    if_match: Some(Tags::Any),
                    ..since(8)
                },
                true,
                true,
            ),
        ] {
            assert_eq!(passes(conditions.clone(), true), write, "{conditions:?}");
            assert_eq!(passes(conditions.clone(), false), read, "{conditions:?}");
        }
    }
}
