//! Certificates and API keys that expire soon, and keys that are not used any more.
//!
//! Each stage is reported once: the mark about an object has the stage that was reported and the end that it is about, so
//! a renewal begins again. A clock that is set forward reports nothing for a day, as with retention.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use culvert_base::{Event, Fault, Timestamp};
use culvert_certificates::expiry::{Expiry, KINDS};
use culvert_identity::api_key::key_use;
use culvert_identity::api_key::model::ApiKey;
use culvert_resources::access::key_rules::KeyRules;
use culvert_resources::access::tenant::Account;
use culvert_resources::resource::model::Model;
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Document};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::mark::{Mark, MarkKind};
use super::names::{API_KEY_EXPIRING, API_KEY_UNUSED, CERTIFICATE_EXPIRING};

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The days before the end at which an object is reported.
const STAGES: [u32; 3] = [1, 7, 30];
/// Days after the end during which an object is still reported, if no server ran before.
const OVER_DAYS: u32 = 7;
/// The marks of objects that expire.
const EXPIRING: MarkKind = MarkKind {
    kind: "expiry_notice",
    prefix: "expn",
};
/// The marks of keys that are not used.
const UNUSED: MarkKind = MarkKind {
    kind: "unused_notice",
    prefix: "unun",
};
/// Names of a certificate in an event.
const NAMES_MAX: usize = 32;
/// Events of one pass; more follow with the next one.
const EVENTS_MAX: usize = 1_000;

/// The object of the event of a certificate.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CertificateExpiring<'a> {
    /// ID of the certificate; that of the installation's own certificates begins with `owncert_`.
    id: &'a str,
    /// The kind of the object, such as `tls_certificate`.
    kind: &'a str,
    /// What it is for: host names, principals, or the name of an authority. At most 32.
    names: &'a [String],
    /// When it expires.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
    /// The reported stage: it expires within 30, 7 or 1 days.
    within_days: u32,
    /// Whether the installation renews it, which is overdue.
    is_renewed: bool,
}

/// The object of the event of a key that expires.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KeyExpiring<'a> {
    /// ID of the API key.
    id: &'a str,
    /// ID of its owner.
    owner_id: &'a str,
    /// Description of the key.
    description: &'a str,
    /// When it expires: its own end, or that of its token by the maximum age of the account.
    #[schemars(with = "String", extend("format" = "date-time"))]
    expires_at: Timestamp,
    /// The reported stage: it expires within 30, 7 or 1 days.
    within_days: u32,
}

/// The object of the event of a key that is not used.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KeyUnused<'a> {
    /// ID of the API key.
    id: &'a str,
    /// ID of its owner.
    owner_id: &'a str,
    /// Description of the key.
    description: &'a str,
    /// When it was used last; null for one that was never used.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    last_used_at: Option<Timestamp>,
    /// When it was created.
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
}

/// The mark of an object that expires.
#[derive(Debug, Deserialize, Serialize)]
struct Noticed {
    format: Format<1>,
    expires_at: Timestamp,
    within_days: u32,
}

/// The mark of a key that is not used.
#[derive(Debug, Deserialize, Serialize)]
struct NoticedUnused {
    format: Format<1>,
    since: Timestamp,
}

/// The stage of an end at this time, of an object that is valid for so long. `None` for an end that is long over.
fn stage(expires_at: Timestamp, now: Timestamp, longest: Duration) -> Option<u32> {
    let left = expires_at.since(now);
    if now.since(expires_at) > DAY * OVER_DAYS {
        return None;
    }
    let mut stages = STAGES.into_iter();
    stages.find(|days| left <= DAY * *days && DAY * *days < longest)
}

/// The stages that make sense for a certificate are shorter than its life; for one that is renewed at two thirds of it,
/// shorter than the last third.
fn longest(expiry: &Expiry) -> Duration {
    let life = expiry.expires_at.since(expiry.valid_from);
    if expiry.is_renewed { life / 3 } else { life }
}

/// What events say of an API key.
#[derive(Clone, Debug)]
struct Key {
    id: String,
    account: String,
    owner_id: String,
    description: String,
    created_at: Timestamp,
}

/// What one walk over all keys found.
#[derive(Debug, Default)]
struct KeyNotices {
    /// Keys with a stage that was not reported, their end and the stage.
    expiring: Vec<(Key, Timestamp, u32)>,
    /// Keys that are not used, and their last use.
    unused: Vec<(Key, Option<Timestamp>)>,
}

/// The marks about objects that expire, by their IDs, and which of these objects are still there.
#[derive(Debug, Default)]
struct ExpiryMarks {
    marks: BTreeMap<String, Mark<Noticed>>,
    there: BTreeSet<String>,
}

impl ExpiryMarks {
    /// Notes that the object is there. Returns the stage to report.
    fn due_stage(
        &mut self,
        id: &str,
        end: Timestamp,
        now: Timestamp,
        longest: Duration,
    ) -> Option<u32> {
        let mark = self.marks.get(id);
        if mark.is_some() {
            self.there.insert(id.to_owned());
        }
        stage(end, now, longest).filter(|days| is_new(mark, end, *days))
    }
}

impl ServerLog {
    /// Reports what expires, as of `now`. Keys that were not used for `unused_after` are reported too; zero for none.
    pub async fn watch_expiry(&self, now: Timestamp, unused_after: Duration) -> Result<(), Fault> {
        let Some(account) = self.account().await? else {
            return Ok(());
        };
        let marks = self.marks::<Noticed>(EXPIRING).await?;
        let mut known = ExpiryMarks {
            marks: marks
                .into_iter()
                .map(|mark| (mark.of().to_owned(), mark))
                .collect(),
            there: BTreeSet::new(),
        };
        for (document, expiry, days) in self.expiring_certificates(now, &mut known).await? {
            let event = self.event_of_certificate(&account, &document, &expiry, days)?;
            let mark = known.marks.remove(&document.head.id);
            self.notice(&document.head.id, mark, expiry.expires_at, days, event)
                .await?;
        }
        let notices = self.keys(now, unused_after, &mut known).await?;
        for (key, end, days) in notices.expiring {
            let object = KeyExpiring {
                id: &key.id,
                owner_id: &key.owner_id,
                description: &key.description,
                expires_at: end,
                within_days: days,
            };
            let event = self.event(&key.account, API_KEY_EXPIRING, None, &object)?;
            let mark = known.marks.remove(&key.id);
            self.notice(&key.id, mark, end, days, event).await?;
        }
        self.report_unused(notices.unused).await?;
        for (id, mark) in known.marks {
            if !known.there.contains(&id) {
                let reason = "the object is gone";
                let changes = mark.removal(AuditEvent::Suppress { reason });
                self.commit_once("forgetting what expired", changes).await?;
            }
        }
        Ok(())
    }

    async fn notice(
        &self,
        id: &str,
        known: Option<Mark<Noticed>>,
        expires_at: Timestamp,
        within_days: u32,
        event: Event,
    ) -> Result<(), Fault> {
        let state = Noticed {
            format: Format,
            expires_at,
            within_days,
        };
        let (known, event) = (known.map(|mark| mark.document), AuditEvent::Emit(event));
        let changes = self.marking(EXPIRING, id, known, &state, event)?;
        let is_written = self.commit_once("reporting what expires", changes).await;
        is_written.map(drop)
    }

    /// The certificates with a stage that was not reported.
    async fn expiring_certificates(
        &self,
        now: Timestamp,
        known: &mut ExpiryMarks,
    ) -> Result<Vec<(Document, Expiry, u32)>, Fault> {
        let mut due = Vec::new();
        for kind in KINDS {
            let look = |document: Document| {
                let expiry = match Expiry::of(&document) {
                    Ok(Some(expiry)) => expiry,
                    Ok(None) => return,
                    Err(fault) => {
                        tracing::error!(cause = %fault.chain(), "the end of a certificate is not known");
                        return;
                    }
                };
                let (id, end) = (&document.head.id, expiry.expires_at);
                if let Some(days) = known.due_stage(id, end, now, longest(&expiry))
                    && due.len() < EVENTS_MAX
                {
                    due.push((document, expiry, days));
                }
            };
            self.store.each_changed(kind, 0, look).await?;
        }
        Ok(due)
    }

    fn event_of_certificate(
        &self,
        account: &str,
        document: &Document,
        expiry: &Expiry,
        within_days: u32,
    ) -> Result<Event, Fault> {
        let object = CertificateExpiring {
            id: &document.head.id,
            kind: &document.head.kind,
            names: &expiry.names[..expiry.names.len().min(NAMES_MAX)],
            expires_at: expiry.expires_at,
            within_days,
            is_renewed: expiry.is_renewed,
        };
        // The installation's own certificates belong to no account.
        let account = match document.head.account.as_str() {
            "" => account,
            own => own,
        };
        self.event(account, CERTIFICATE_EXPIRING, None, &object)
    }

    /// The keys with a stage that was not reported, and those that were not used for `unused_after`.
    async fn keys(
        &self,
        now: Timestamp,
        unused_after: Duration,
        known: &mut ExpiryMarks,
    ) -> Result<KeyNotices, Fault> {
        let used = key_use::stored_uses(&self.store).await?;
        let mut rules = BTreeMap::new();
        for document in self.store.all(Account::KIND).await? {
            let account: Account = stored::read(&document)?;
            rules.insert(document.head.id, account.key_rules);
        }
        let mut found = KeyNotices::default();
        let look = |document: Document| {
            let Ok(key) = stored::read::<ApiKey>(&document) else {
                return;
            };
            let created_at = document.head.created_at;
            let issued_at = key.issued_at(&document.head);
            let rules = rules.get(&document.head.account);
            let end_of_token = rules.and_then(|rules: &KeyRules| rules.ends_at(issued_at));
            let own = key.restrictions.expires_at.map(|end| (end, created_at));
            let ends = own
                .into_iter()
                .chain(end_of_token.map(|end| (end, issued_at)));
            let (end, from) = Option::unzip(ends.min_by_key(|(end, _)| *end));
            let key = Key {
                id: document.head.id,
                account: document.head.account,
                owner_id: key.owner_id,
                description: key.description.to_string(),
                created_at,
            };
            let last = used.get(&key.id).copied();
            let since = last.unwrap_or(created_at);
            let is_unused = !unused_after.is_zero() && now.since(since) >= unused_after;
            // An expired key needs no use.
            let is_over = end.is_some_and(|end| end <= now);
            if is_unused && !is_over && found.unused.len() < EVENTS_MAX {
                found.unused.push((key.clone(), last));
            }
            if let Some(end) = end
                && let Some(from) = from
                && let Some(days) = known.due_stage(&key.id, end, now, end.since(from))
                && found.expiring.len() < EVENTS_MAX
            {
                found.expiring.push((key, end, days));
            }
        };
        self.store.each_changed(ApiKey::KIND, 0, look).await?;
        Ok(found)
    }

    /// Reports keys that are not used, and forgets the marks of those that are used again or gone.
    async fn report_unused(&self, unused: Vec<(Key, Option<Timestamp>)>) -> Result<(), Fault> {
        let is_whole = unused.len() < EVENTS_MAX;
        let still: BTreeSet<&str> = unused.iter().map(|(key, _)| key.id.as_str()).collect();
        let mut known = BTreeMap::new();
        for mark in self.marks::<NoticedUnused>(UNUSED).await? {
            if is_whole && !still.contains(mark.of()) {
                let reason = "the key is used again, or gone";
                let changes = mark.removal(AuditEvent::Suppress { reason });
                self.commit_once("forgetting an unused key", changes)
                    .await?;
            } else {
                known.insert(mark.of().to_owned(), mark);
            }
        }
        for (key, last_used_at) in &unused {
            let since = last_used_at.unwrap_or(key.created_at);
            let mark = known.remove(&key.id);
            let state = mark.as_ref().and_then(|mark| mark.state.as_ref());
            if state.is_some_and(|state| state.since == since) {
                continue;
            }
            let object = KeyUnused {
                id: &key.id,
                owner_id: &key.owner_id,
                description: &key.description,
                last_used_at: *last_used_at,
                created_at: key.created_at,
            };
            let event = self.event(&key.account, API_KEY_UNUSED, None, &object)?;
            let state = NoticedUnused {
                format: Format,
                since,
            };
            let (mark, event) = (mark.map(|mark| mark.document), AuditEvent::Emit(event));
            let changes = self.marking(UNUSED, &key.id, mark, &state, event)?;
            self.commit_once("reporting an unused key", changes).await?;
        }
        Ok(())
    }
}

/// Whether this stage before this end was not reported yet.
fn is_new(mark: Option<&Mark<Noticed>>, expires_at: Timestamp, days: u32) -> bool {
    let state = mark.and_then(|mark| mark.state.as_ref());
    state.is_none_or(|state| state.expires_at != expires_at || state.within_days > days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_reported_in_stages_that_are_shorter_than_the_life() {
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        let year = 365 * DAY;
        for (left, longest, expected) in [
            (31 * DAY, year, None),
            (30 * DAY, year, Some(30)),
            (8 * DAY, year, Some(30)),
            (7 * DAY, year, Some(7)),
            (DAY, year, Some(1)),
            (Duration::ZERO, year, Some(1)),
            // 90 days that are renewed after 60.
            (29 * DAY, 30 * DAY, None),
            (7 * DAY, 30 * DAY, Some(7)),
            // A certificate of six days.
            (2 * DAY, 2 * DAY, None),
            (DAY, 2 * DAY, Some(1)),
        ] {
            assert_eq!(stage(now.plus(left), now, longest), expected, "{left:?}");
        }
        assert_eq!(stage(now.minus(DAY), now, year), Some(1), "it has expired");
        assert_eq!(stage(now.minus(8 * DAY), now, year), None, "long ago");
    }
}
