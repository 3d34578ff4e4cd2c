//! Requests with an `Idempotency-Key`: a request that is repeated with its key has its effect once, and gets its answer
//! again.
//!
//! A key belongs to a caller (its owner and its API key) and an operation. What the request says is stored as a digest;
//! another request with the key is refused (262). The answer is stored in the commit of the write that it reports, on
//! every node the same database, so there is no moment in which a write is acknowledged and not known. Two requests at
//! one time both run, and the one that commits second finds the answer of the first.
//!
//! An operation whose effect is outside of the database, such as a test event, stores its key before it runs and its
//! answer after it, together with its audit event. Until then a repeated request is refused (263), and also after a
//! crash between the two: it is not known whether the first one had its effect.
//!
//! A report of leaked tokens commits each token apart, because a conflict about one must not keep the others from being
//! revoked, and keeps its answer after them. After a crash between these it runs again, which changes nothing: a token that
//! was revoked is no token any more, and one that was flagged is not flagged again.
//!
//! Only success is stored. A refused request changed nothing, and may be repeated with its key, corrected or
//! not. Secrets in an answer are encrypted, are shown again for a minute, and are then removed. An answer is given again
//! only while the caller has at least the rights of the first request (265), and it leaves no event.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_base::{Fault, Refusal, Secret, Timestamp, code};
use culvert_store::{AnswerRoom, Changes, CommitError, Document, KeptAnswer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::access::key_restrictions::KeyRestrictions;
use crate::cx::Cx;
use crate::operation::terms::{Shown, Terms};
use crate::operation::{Call, Reply};
use crate::resource::Reveal;
use crate::{Caller, Error, Kernel, Role, stored};

/// How long an answer is given again.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the secrets of an answer are shown again.
pub const SECRET_FOR: Duration = Duration::from_secs(60);
/// The room of one owner of API keys. One key takes at most half of it.
pub const ROOM: AnswerRoom = AnswerRoom {
    answers: 10_000,
    bytes: 64 << 20,
};
/// Limit of a key.
pub const KEY_BYTES_MAX: usize = 255;
/// After this time a request without an answer is no longer running.
const RUNS_FOR: Duration = Duration::from_secs(60);

/// The key of a request in the name of its caller, and what the request says.
#[derive(Debug)]
pub(crate) struct Claim {
    id: String,
    owner: String,
    key_id: String,
    /// A digest of the request.
    request: String,
    at: Timestamp,
    /// Whether it is committed.
    is_kept: AtomicBool,
}

/// The stored form of a request.
#[derive(Debug, Deserialize, Serialize)]
struct Kept {
    request: String,
    /// The rights of its caller.
    role: Role,
    restrictions: KeyRestrictions,
    /// `None` while it runs.
    answer: Option<KeptReply>,
}

#[derive(Debug, Deserialize, Serialize)]
struct KeptReply {
    status: KeptStatus,
    /// Without secrets; `None` if the response has no body.
    body: Option<Box<RawValue>>,
    /// The field of its secret, as a JSON pointer; empty without one.
    secret_at: String,
    /// The object that it shows; `None` if there is none.
    shows: Option<KeptState>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum KeptStatus {
    Created,
    Ok,
    NoContent,
}

#[derive(Debug, Deserialize, Serialize)]
struct KeptState {
    id: String,
    digest: String,
    at: Timestamp,
}

/// An answer that is about to be committed.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The response without its secret.
    pub view: &'a str,
    /// Its secret.
    pub reveal: Option<&'a Reveal>,
    /// The object that it shows.
    pub document: &'a Document,
    /// Whether the response is 201.
    pub is_created: bool,
}

impl Claim {
    /// The claim of a call, if it has a key.
    pub(crate) fn of(kernel: &Kernel, operation: &str, call: &Call) -> Option<Self> {
        let key = call.terms.key.as_deref()?;
        let Caller {
            account,
            owner_id,
            key_id,
            ..
        } = &call.caller;
        // No part contains the separator: a key is visible ASCII.
        let named = format!("idempotency key\n{account}\n{owner_id}\n{key_id}\n{operation}\n{key}");
        let body = call.body.clone().map(sorted).unwrap_or_default();
        let said = format!(
            "request\n{operation}\n{:?}\n{:?}\n{body}",
            call.path, call.query
        );
        Some(Self {
            id: kernel.pepper.digest(&named),
            owner: format!("{account} {owner_id}"),
            key_id: key_id.clone(),
            // The body may be a secret that is easy to guess.
            request: kernel.pepper.digest(&said),
            at: kernel.clock.now(),
            is_kept: AtomicBool::new(false),
        })
    }

    /// Whether the answer of this call is committed.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    pub(crate) fn set_kept(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    fn form(&self, caller: &Caller, answer: Option<KeptReply>) -> Result<String, Fault> {
        stored::write(&Kept {
            request: self.request.clone(),
            role: caller.role,
            restrictions: caller.restrictions(),
            answer,
        })
    }

    fn keeping(&self, body: String, secret: Option<String>) -> Changes {
        let answer = KeptAnswer {
            id: self.id.clone(),
            owner: self.owner.clone(),
            key: self.key_id.clone(),
            kept_at: self.at,
            revision: 0,
            body,
            secret,
        };
        Changes::keep(answer, self.at.minus(KEPT_FOR), ROOM)
    }

    /// The write that keeps an answer, for the commit of the write that it reports. It stands before that one.
    fn kept(&self, cx: &Cx<'_>, answer: &Answer<'_>) -> Result<Changes, Fault> {
        let head = &answer.document.head;
        let tags = cx.terms.map(|terms| &terms.conditions.key);
        let digest = tags.map(|key| key.digest_of(&answer.document.body));
        let reply = KeptReply {
            status: match answer.is_created {
                true => KeptStatus::Created,
                false => KeptStatus::Ok,
            },
            body: Some(raw(answer.view)?),
            secret_at: answer
                .reveal
                .map_or_else(String::new, |reveal| reveal.pointer.clone()),
            shows: Some(KeptState {
                id: head.id.clone(),
                digest: digest.unwrap_or_default(),
                at: head.updated_at,
            }),
        };
        let secret = answer
            .reveal
            .map(|reveal| cx.seal.seal(cx.entropy, &self.id, reveal.json.reveal()));
        Ok(self.keeping(self.form(cx.caller, Some(reply))?, secret.transpose()?))
    }

    /// The write of the key of a request that is about to run.
    pub(crate) fn begun(&self, caller: &Caller) -> Result<Changes, Fault> {
        Ok(self.keeping(self.form(caller, None)?, None))
    }

    /// The write of the answer to a request that has run.
    pub(crate) fn ended(&self, caller: &Caller, reply: &Reply) -> Result<Changes, Fault> {
        let form = self.form(caller, KeptReply::of(reply)?)?;
        Ok(Changes::complete_answer(&self.id, self.at, form))
    }

    /// The removal of the key of a request that was refused.
    pub(crate) fn refused(&self) -> Changes {
        Changes::forget_answer(&self.id, self.at)
    }

    /// The write of an answer whose write is committed already.
    pub(crate) fn late(&self, caller: &Caller, reply: &Reply) -> Result<Option<Changes>, Fault> {
        match KeptReply::of(reply)? {
            None => Ok(None),
            reply => Ok(Some(self.keeping(self.form(caller, reply)?, None))),
        }
    }

    /// The answer to the earlier request with this key. `None` if there is none, or if it is too old.
    ///
    /// # Errors
    /// 262 if that was another request, 263 if it has no answer, 265 if its caller had more rights.
    pub(crate) async fn answered(
        &self,
        kernel: &Kernel,
        caller: &Caller,
        terms: &Terms,
    ) -> Result<Option<Reply>, Error> {
        let now = kernel.clock.now();
        let Some(found) = kernel.store.kept_answer(&self.id).await? else {
            return Ok(None);
        };
        if found.kept_at <= now.minus(KEPT_FOR) {
            return Ok(None);
        }
        let kept: Kept = serde_json::from_str(&found.body)
            .map_err(|error| Fault::new("reading a kept answer", error))?;
        if kept.request != self.request {
            return Err(Refusal::of(code::IDEMPOTENCY_KEY_OF_OTHER_REQUEST).into());
        }
        if caller.role < kept.role || !kept.restrictions.is_within(&caller.restrictions()) {
            return Err(Refusal::of(code::IDEMPOTENCY_RIGHTS_REDUCED).into());
        }
        let Some(reply) = kept.answer else {
            return Err(unanswered(now.since(found.kept_at)).into());
        };
        if let Some(shows) = reply.shows {
            terms.show_state(Shown {
                state: terms
                    .conditions
                    .key
                    .state_of(&shows.id, found.revision, &shows.digest),
                at: shows.at,
            });
        }
        terms.set_repeated();
        // The clock of another node may be ahead of this one.
        let is_recent = now.since(found.kept_at) < SECRET_FOR;
        let sealed = found.secret.as_deref().filter(|_| is_recent);
        // Without its key, as after a rotation of keys, the secret is over.
        let secret = sealed.and_then(|sealed| kernel.seal.open(&found.id, sealed).ok());
        let body = reply
            .body
            .map_or(String::new(), |body| body.get().to_owned());
        Ok(Some(match reply.status {
            KeptStatus::NoContent => Reply::NoContent,
            KeptStatus::Ok => Reply::Ok(body),
            KeptStatus::Created => {
                let is_secret = secret.is_some();
                Reply::Created {
                    body: with_secret(body, &reply.secret_at, secret)?,
                    secret: is_secret,
                }
            }
        }))
    }
}

impl KeptReply {
    /// The answer of an operation without secrets; `None` for one with secrets.
    fn of(reply: &Reply) -> Result<Option<Self>, Fault> {
        let (status, body) = match reply {
            Reply::Created {
                body,
                secret: false,
            } => (KeptStatus::Created, Some(body)),
            Reply::Ok(body) => (KeptStatus::Ok, Some(body)),
            Reply::NoContent => (KeptStatus::NoContent, None),
            Reply::Created { secret: true, .. } | Reply::Secret { .. } => return Ok(None),
        };
        Ok(Some(Self {
            status,
            body: body.map(|body| raw(body)).transpose()?,
            secret_at: String::new(),
            shows: None,
        }))
    }
}

/// A response as it is kept: its bytes, within the JSON of the row.
fn raw(body: &str) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(body.to_owned()).map_err(|error| Fault::new("keeping an answer", error))
}

fn with_secret(body: String, pointer: &str, secret: Option<Secret>) -> Result<String, Fault> {
    let Some(json) = secret else { return Ok(body) };
    let reveal = Reveal {
        pointer: pointer.to_owned(),
        json,
    };
    reveal.shown_in(&body)
}

/// The refusal of a request whose first one has no answer after this time.
fn unanswered(after: Duration) -> Refusal {
    if after < RUNS_FOR {
        return Refusal::of(code::IDEMPOTENCY_KEY_RUNNING);
    }
    Refusal::new(
        code::IDEMPOTENCY_KEY_RUNNING,
        "A request with this `Idempotency-Key` began and did not end, so its outcome is unknown; check it, and use a \
         new key.",
    )
}

/// The write that keeps an answer, in the commit of the write that it reports; nothing for a call without a key.
pub(crate) fn keeping(cx: &Cx<'_>, answer: &Answer<'_>) -> Result<Changes, Fault> {
    match cx.terms.and_then(|terms| terms.claim.get()) {
        Some(claim) => claim.kept(cx, answer),
        None => Ok(Changes::default()),
    }
}

/// The refusal of a commit that keeps an answer; `None` for other errors.
pub(crate) fn refusal_of(error: &CommitError) -> Option<Refusal> {
    match error {
        CommitError::Kept => Some(Refusal::of(code::IDEMPOTENCY_KEY_RUNNING)),
        CommitError::NoRoom => Some(Refusal::of(code::IDEMPOTENCY_ANSWERS_FULL)),
        _ => None,
    }
}

/// JSON text whose objects have their members in the order of their names.
fn sorted(value: Value) -> String {
    fn order(value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let mut members: Vec<(String, Value)> = map.into_iter().collect();
                members.sort_by(|(a, _), (b, _)| a.cmp(b));
                let ordered = members.into_iter().map(|(name, of)| (name, order(of)));
                Value::Object(ordered.collect())
            }
            Value::Array(list) => list.into_iter().map(order).collect(),
            other => other,
        }
    }
    order(value).to_string()
}

impl Kernel {
    /// Removes the responses that are given no longer, and the secrets that are shown no longer. Returns how many rows it
    /// changed.
    ///
    /// # Errors
    /// The store fails.
    pub async fn prune_answers(&self) -> Result<u64, Fault> {
        let now = self.clock.now();
        let (answers, secrets) = (now.minus(KEPT_FOR), now.minus(SECRET_FOR));
        self.store.prune_answers(answers, secrets).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy in it, which is JSON or YAML in a JSON string, is escaped no second time.
    #[test]
    fn an_answer_is_stored_in_its_own_bytes() {
        let body = r#"{"traffic_policy":"{\"on_http_request\":[]}\n","z":1.0, "é":"\u00e9"}"#;
        let reply = Reply::Ok(body.to_owned());
        let kept = stored::write(&KeptReply::of(&reply).unwrap().unwrap()).unwrap();
        assert!(kept.contains(body), "{kept}");
        let read: KeptReply = serde_json::from_str(&kept).unwrap();
        assert_eq!(read.body.unwrap().get(), body);
        let nothing = KeptReply::of(&Reply::NoContent).unwrap().unwrap();
        assert!(nothing.body.is_none());
    }

    #[test]
    fn the_order_of_members_is_no_difference() {
        let read = |text: &str| sorted(serde_json::from_str(text).unwrap());
        let (one, other) = (
            r#"{"b":[{"d":1,"c":2}],"a":null}"#,
            r#"{"a":null,"b":[{"c":2,"d":1}]}"#,
        );
        assert_eq!(read(one), read(other));
        assert_ne!(read(r#"{"a":[1,2]}"#), read(r#"{"a":[2,1]}"#));
    }
}
