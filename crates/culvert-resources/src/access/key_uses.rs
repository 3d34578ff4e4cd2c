//! The uses of API keys on this node, until they are written.
//!
//! A call notes its use under one lock, without an allocation once the key, its token and the operation are known.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_base::Timestamp;
use hashlink::LruCache;

use crate::access::caller::Caller;

/// Limit of keys whose use is in memory. Beyond it, the oldest use is dropped.
const KEYS_MAX: usize = 4096;
/// Limit of operations of one key that are counted apart in one frame of statistics. Further ones are counted as [`OTHERS`].
const OPERATIONS_MAX: usize = 64;
/// The operations beyond that limit, together.
pub const OTHERS: Called = ("", "others");

/// An operation: its collection and its name.
pub type Called = (&'static str, &'static str);

/// The uses of keys on this node.
#[derive(Debug)]
pub struct KeyUses(Mutex<LruCache<String, Noted>>);

/// The uses of one key.
#[derive(Debug)]
pub struct Noted {
    /// Its last use.
    pub last: Use,
    /// Calls by operation since they were taken last.
    calls: Vec<(Called, u64)>,
}

/// The last use of a key, and that of each of its tokens.
#[derive(Clone, Debug)]
pub struct Use {
    /// `ac_…` of the key.
    pub account: String,
    /// When it was used.
    pub at: Timestamp,
    /// From where.
    pub from: IpAddr,
    /// The last use of the two tokens that were used last, the later one first: around a rotation there are two.
    pub tokens: [Option<TokenUse>; 2],
    /// Whether the use is stored.
    pub is_written: bool,
}

/// The last use of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// Its digest, as the key has it.
    pub digest: Arc<str>,
    /// When it was used.
    pub at: Timestamp,
    /// From where.
    pub from: IpAddr,
}

/// Calls of an operation with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCalls {
    /// `ac_…` of the key.
    pub account: String,
    /// `ak_…`.
    pub key_id: String,
    /// The operation.
    pub called: Called,
    /// How many.
    pub count: u64,
}

impl Default for KeyUses {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(KEYS_MAX)))
    }
}

impl Noted {
    fn note(&mut self, caller: &Caller, at: Timestamp, from: IpAddr, called: Option<Called>) {
        let last = &mut self.last;
        (last.at, last.from, last.is_written) = (at, from, false);
        if let Some(token) = &caller.token {
            last.note_token(&token.digest, at, from);
        }
        if let Some(called) = called {
            self.count(called);
        }
    }

    fn count(&mut self, called: Called) {
        // The texts are constants of the table of operations, and few for one key.
        if let Some((_, count)) = self.calls.iter_mut().find(|(known, _)| *known == called) {
            *count += 1;
        } else if self.calls.len() < OPERATIONS_MAX {
            self.calls.push((called, 1));
        } else {
            match self.calls.iter_mut().find(|(known, _)| *known == OTHERS) {
                Some((_, count)) => *count += 1,
                None => self.calls.push((OTHERS, 1)),
            }
        }
    }
}

impl Use {
    fn note_token(&mut self, digest: &Arc<str>, at: Timestamp, from: IpAddr) {
        let [first, second] = &mut self.tokens;
        let is_it = |one: &Option<TokenUse>| one.as_ref().is_some_and(|one| one.digest == *digest);
        if !is_it(first) {
            std::mem::swap(first, second);
        }
        match first {
            Some(known) if known.digest == *digest => {
                known.at = at;
                known.from = from;
            }
            _ => {
                *first = Some(TokenUse {
                    digest: Arc::clone(digest),
                    at,
                    from,
                });
            }
        }
    }
}

impl KeyUses {
    /// All of them, by the IDs of their keys.
    pub fn lock(&self) -> MutexGuard<'_, LruCache<String, Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the caller's key was used at this time from this address, for this operation.
    pub fn note_use(&self, caller: &Caller, at: Timestamp, from: IpAddr, called: Option<Called>) {
        let uses = &mut *self.lock();
        if let Some(noted) = uses.get_mut(&caller.key_id) {
            noted.note(caller, at, from, called);
            return;
        }
        let mut noted = Noted {
            last: Use {
                account: caller.account.clone(),
                at,
                from,
                tokens: [None, None],
                is_written: false,
            },
            calls: Vec::new(),
        };
        noted.note(caller, at, from, called);
        uses.insert(caller.key_id.clone(), noted);
    }

    /// The uses that are not written.
    pub fn due(&self) -> Vec<(String, Use)> {
        let uses = self.lock();
        let due = uses.iter().filter(|(_, noted)| !noted.last.is_written);
        due.map(|(id, noted)| (id.clone(), noted.last.clone()))
            .collect()
    }

    /// Notes that these uses are stored. A later one of the same key stays due.
    pub fn set_written(&self, written: &[(String, Use)]) {
        let mut uses = self.lock();
        for (id, one) in written {
            if let Some(noted) = uses.peek_mut(id) {
                noted.last.is_written = noted.last.at == one.at;
            }
        }
    }

    /// Takes the calls since the last time, those of the keys first that were not used for the longest time. Calls of
    /// more than `max` pairs of key and operation stay for the next time.
    pub fn take_calls(&self, max: usize) -> Vec<KeyCalls> {
        let mut taken = Vec::new();
        let mut uses = self.lock();
        for (key_id, noted) in uses.iter_mut() {
            while taken.len() < max
                && let Some((called, count)) = noted.calls.pop()
            {
                taken.push(KeyCalls {
                    account: noted.last.account.clone(),
                    key_id: key_id.clone(),
                    called,
                    count,
                });
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::caller::{OwnerKind, PresentedToken, Role};

    fn caller(key: &str, digest: &str) -> Caller {
        Caller {
            owner_id: "usr_1".to_owned(),
            owner_kind: OwnerKind::User,
            role: Role::Member,
            key_id: key.to_owned(),
            subject: String::new(),
            account: "ac_1".to_owned(),
            restrictions: None,
            token: Some(PresentedToken {
                digest: digest.into(),
                issued_at: Timestamp::from_unix_seconds(0),
                until: None,
            }),
            context: None,
        }
    }

    #[test]
    fn each_token_has_its_last_use() {
        let uses = KeyUses::default();
        let at = Timestamp::from_unix_seconds;
        let from: IpAddr = [192, 0, 2, 1].into();
        for (digest, seconds) in [
            ("old", 1),
            ("new", 2),
            ("old", 3),
            ("new", 2),
            ("newest", 4),
        ] {
            uses.note_use(&caller("ak_1", digest), at(seconds), from, None);
        }
        let [(_, used)] = &uses.due()[..] else {
            panic!("one key");
        };
        assert_eq!(used.at, at(4));
        let tokens: Vec<_> = used.tokens.iter().flatten().collect();
        let found: Vec<_> = tokens.iter().map(|one| (&*one.digest, one.at)).collect();
        assert_eq!(found, [("newest", at(4)), ("new", at(2))]);
        uses.set_written(&uses.due());
        assert!(uses.due().is_empty());
    }

    #[test]
    fn calls_are_taken_once_and_within_limits() {
        let uses = KeyUses::default();
        let (now, from) = (Timestamp::from_unix_seconds(1), [192, 0, 2, 1].into());
        let note = |key: &str, name: &'static str| {
            uses.note_use(&caller(key, "d"), now, from, Some(("api_keys", name)));
        };
        note("ak_1", "list");
        note("ak_1", "list");
        note("ak_1", "get");
        note("ak_2", "list");
        let sum = |taken: &[KeyCalls]| taken.iter().map(|one| one.count).sum::<u64>();
        let first = uses.take_calls(2);
        assert_eq!(
            (first.len(), sum(&first)),
            (2, 3),
            "the key of the earlier use first"
        );
        assert!(first.iter().all(|one| one.key_id == "ak_1"));
        let second = uses.take_calls(2);
        assert_eq!((second.len(), sum(&second)), (1, 1));
        assert!(uses.take_calls(2).is_empty());
        // Operations beyond the limit are counted together.
        for n in 0..OPERATIONS_MAX + 10 {
            note("ak_3", format!("operation {n}").leak());
        }
        let taken = uses.take_calls(1_000);
        assert_eq!(taken.len(), OPERATIONS_MAX + 1);
        assert_eq!(sum(&taken), OPERATIONS_MAX as u64 + 10);
        let others = taken.iter().find(|one| one.called == OTHERS).unwrap();
        assert_eq!(others.count, 10);
    }
}
