//! The uses of API keys on this node, until they are written.
//!
//! A call notes its use under one lock, without an allocation once the key, its token and the operation are known. A use
//! stays in memory until it is stored and its calls are counted. Keys are made by their owners, so there is room for a
//! number of keys, of which no owner can take the share of another: what does not fit is lost of the owner with the most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use culvert_base::Timestamp;
use culvert_base::sync::lock;
use hashlink::LruCache;
use tokio::sync::Notify;

use crate::access::caller::Caller;

/// Limit of keys whose use is in memory.
const KEYS_MAX: usize = 4096;
/// Uses that are not stored are written early once there are this many, and again with each further [`WRITE_STEP`].
const WRITE_AT: usize = KEYS_MAX / 2;
const WRITE_STEP: usize = KEYS_MAX / 16;
/// Limit of operations of one key that are counted apart in one frame of statistics. Further ones are counted as [`OTHERS`].
const OPERATIONS_MAX: usize = 64;
/// The operations beyond that limit, together.
pub const OTHERS: Called = ("", "others");

/// An operation: its collection and its name.
pub type Called = (&'static str, &'static str);

/// The uses of keys on this node.
#[derive(Debug, Default)]
pub struct KeyUses {
    known: Mutex<Known>,
    is_crowded: Notify,
}

#[derive(Debug)]
struct Known {
    /// By the IDs of the keys, that of the latest use last.
    uses: LruCache<String, Noted>,
    /// How many of them each owner has; no owner has none.
    shares: HashMap<String, usize>,
    /// How many are not stored.
    n_due: usize,
}

/// The uses of one key.
#[derive(Debug)]
struct Noted {
    owner_id: String,
    /// Its last use.
    last: Use,
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

impl Default for Known {
    fn default() -> Self {
        Self {
            uses: LruCache::new_unbounded(),
            shares: HashMap::new(),
            n_due: 0,
        }
    }
}

impl Known {
    fn remove(&mut self, key_id: &str) {
        let Some(noted) = self.uses.remove(key_id) else {
            return;
        };
        self.n_due -= usize::from(!noted.last.is_written);
        if let Some(share) = self.shares.get_mut(&noted.owner_id) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&noted.owner_id);
            }
        }
    }

    /// Removes a key if its use is stored and its calls are counted.
    fn remove_settled(&mut self, key_id: &str) {
        let noted = self.uses.peek(key_id);
        if noted.is_some_and(|noted| noted.last.is_written && noted.calls.is_empty()) {
            self.remove(key_id);
        }
    }

    /// Makes room for another key of this owner. Returns whether there is.
    fn make_room(&mut self, owner_id: &str) -> bool {
        if self.uses.len() < KEYS_MAX {
            return true;
        }
        let own = self.shares.get(owner_id).copied().unwrap_or(0);
        let others = self.shares.iter().filter(|(_, share)| **share > own);
        let largest = others.max_by_key(|(_, share)| **share);
        let loser = largest.map_or(owner_id, |(owner, _)| owner);
        let its = || {
            self.uses
                .iter()
                .filter(|(_, noted)| noted.owner_id == loser)
        };
        let stored = its().find(|(_, noted)| noted.last.is_written);
        // An owner's own further key displaces nothing that is not stored.
        let oldest = stored.or_else(|| its().next().filter(|_| largest.is_some()));
        let Some(removed) = oldest.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.remove(&removed);
        true
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
    /// The last use of a key, if it is in memory.
    pub fn last(&self, key_id: &str) -> Option<Use> {
        let known = lock(&self.known);
        known.uses.peek(key_id).map(|noted| noted.last.clone())
    }

    /// Notes that the caller's key was used at this time from this address, for this operation.
    pub fn note_use(&self, caller: &Caller, at: Timestamp, from: IpAddr, called: Option<Called>) {
        let known = &mut *lock(&self.known);
        if let Some(noted) = known.uses.get_mut(&caller.key_id) {
            let was_stored = noted.last.is_written;
            noted.note(caller, at, from, called);
            if !was_stored {
                return;
            }
        } else {
            if !known.make_room(&caller.owner_id) {
                return;
            }
            let last = Use {
                account: caller.account.clone(),
                at,
                from,
                tokens: [None, None],
                is_written: false,
            };
            let mut noted = Noted {
                owner_id: caller.owner_id.clone(),
                last,
                calls: Vec::new(),
            };
            noted.note(caller, at, from, called);
            *known.shares.entry(caller.owner_id.clone()).or_default() += 1;
            known.uses.insert(caller.key_id.clone(), noted);
        }
        known.n_due += 1;
        if known.n_due >= WRITE_AT && known.n_due.is_multiple_of(WRITE_STEP) {
            self.is_crowded.notify_one();
        }
    }

    /// Waits until the uses that are not stored should be written early: there are many.
    pub async fn crowded(&self) {
        self.is_crowded.notified().await;
    }

    /// The uses that are not written.
    pub fn due(&self) -> Vec<(String, Use)> {
        let known = lock(&self.known);
        let uses = known.uses.iter();
        let due = uses.filter(|(_, noted)| !noted.last.is_written);
        due.map(|(id, noted)| (id.clone(), noted.last.clone()))
            .collect()
    }

    /// Notes that these uses are stored. A later one of the same key stays due.
    pub fn set_written(&self, written: &[(String, Use)]) {
        let known = &mut *lock(&self.known);
        for (id, one) in written {
            let noted = known.uses.peek_mut(id);
            let Some(noted) = noted.filter(|noted| noted.last.at == one.at) else {
                continue;
            };
            if !noted.last.is_written {
                noted.last.is_written = true;
                known.n_due -= 1;
            }
            known.remove_settled(id);
        }
    }

    /// Takes the calls since the last time, those of the keys first that were not used for the longest time. Calls of
    /// more than `max` pairs of key and operation stay for the next time.
    pub fn take_calls(&self, max: usize) -> Vec<KeyCalls> {
        let mut taken: Vec<KeyCalls> = Vec::new();
        let known = &mut *lock(&self.known);
        for (key_id, noted) in &mut known.uses {
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
        for one in &taken {
            known.remove_settled(&one.key_id);
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

    /// What a stranger does with many keys does not reach the uses of others, and calls them to be written.
    #[tokio::test]
    async fn an_owner_takes_no_room_of_others() {
        let uses = KeyUses::default();
        let (from, called) = ([192, 0, 2, 1].into(), Some(("api_keys", "get")));
        let note = |owner: &str, key: &str, seconds: u64| {
            let caller = Caller {
                owner_id: owner.to_owned(),
                ..caller(key, "d")
            };
            let at = Timestamp::from_unix_seconds(seconds.try_into().unwrap());
            uses.note_use(&caller, at, from, called);
        };
        let many = |owner: &str, count: usize| {
            for n in 0..count {
                note(owner, &format!("ak_{owner}{n}"), 2);
            }
        };
        note("usr_1", "ak_victim", 1);
        many("bot_1", WRITE_AT - 2);
        let mut crowded = Box::pin(uses.crowded());
        let early = std::future::poll_fn(|cx| std::task::Poll::Ready(crowded.as_mut().poll(cx)));
        assert!(early.await.is_pending());
        many("bot_1", 2 * KEYS_MAX);
        crowded.await;
        let own = |owner: &str| {
            let due = uses.due();
            due.iter().filter(|(id, _)| id.starts_with(owner)).count()
        };
        assert_eq!((own("ak_victim"), own("ak_bot_1")), (1, KEYS_MAX - 1));
        // A further key of the same owner displaces none of it, and others get their share.
        assert!(uses.last("ak_bot_10").is_some() && uses.last("ak_bot_14100").is_none());
        many("bot_2", KEYS_MAX);
        assert_eq!(own("ak_victim"), 1);
        assert!(own("ak_bot_2").abs_diff(own("ak_bot_1")) <= 1);
        assert_eq!(own("ak_"), KEYS_MAX);
        // Counts of calls are in the same share.
        let mut counted = 0;
        loop {
            let taken = uses.take_calls(500);
            if taken.is_empty() {
                break;
            }
            counted += taken.iter().filter(|one| one.key_id == "ak_victim").count();
        }
        assert_eq!(counted, 1);
        // What is stored and counted leaves.
        uses.set_written(&uses.due());
        assert!(lock(&uses.known).uses.is_empty() && lock(&uses.known).shares.is_empty());
        assert_eq!(lock(&uses.known).n_due, 0);
    }

    /// A key of the owner with the most displaces one whose use is stored, if only its calls are not counted.
    #[test]
    fn stored_uses_make_room() {
        let uses = KeyUses::default();
        let from = [192, 0, 2, 1].into();
        let at = Timestamp::from_unix_seconds(1);
        let note = |n: usize| {
            let caller = caller(&format!("ak_{n}"), "d");
            uses.note_use(&caller, at, from, Some(("api_keys", "get")));
        };
        (0..KEYS_MAX).for_each(note);
        uses.set_written(&uses.due()[1..2]);
        note(KEYS_MAX);
        note(KEYS_MAX + 1);
        assert!(uses.last("ak_0").is_some() && uses.last("ak_1").is_none());
        let is_known = |n: usize| uses.last(&format!("ak_{n}")).is_some();
        assert_eq!((is_known(KEYS_MAX), is_known(KEYS_MAX + 1)), (true, false));
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
