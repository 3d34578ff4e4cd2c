//! One write and its events, as a value.
//!
//! A write cannot be built without its audit event, or a reason why it has none. A `Changes` is committed as a whole or
//! not at all.

use culvert_base::{Event, Timestamp};

use crate::commit::answers::{AnswerRoom, AnswerStep, KeptAnswer};
use crate::commit::condition::Condition;
use crate::commit::revision::Revision;
use crate::document::{Document, Head};
use crate::feed::Touched;

/// The audit event of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditEvent {
    /// This event, committed together with the write.
    Emit(Event),
    /// No event, for this reason.
    Suppress {
        /// Logged at level debug; not stored.
        reason: &'static str,
    },
}

/// Writes and their events, committed together in the order they were joined.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub(crate) steps: Vec<Step>,
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Insert(Document, AuditEvent),
    Replace(Document, AuditEvent),
    Remove(Head, AuditEvent),
    Tell(Event),
    Meta { name: String, value: String },
    Answer(AnswerStep),
}

impl Changes {
    /// Inserts a document. The store assigns its revision.
    pub fn insert(document: Document, audit_event: AuditEvent) -> Self {
        Self::of(Step::Insert(document, audit_event))
    }

    /// Replaces the body, keys, references and topics of a document. Stale unless the stored revision is the one in
    /// `document.head`.
    pub fn replace(document: Document, audit_event: AuditEvent) -> Self {
        Self::of(Step::Replace(document, audit_event))
    }

    /// Removes a document with its keys, references and topics. Stale unless the stored revision is the one in `head`.
    pub fn remove(head: Head, audit_event: AuditEvent) -> Self {
        Self::of(Step::Remove(head, audit_event))
    }

    /// An event without a write.
    pub fn event(event: Event) -> Self {
        Self::of(Step::Tell(event))
    }

    /// Sets a named value ([`Store::meta_get`](crate::Store::meta_get)) in the same transaction.
    pub fn meta(name: &str, value: String) -> Self {
        let name = name.to_owned();
        Self::of(Step::Meta { name, value })
    }

    /// Adds `more`, to be committed together.
    pub fn and(mut self, more: Self) -> Self {
        self.steps.extend(more.steps);
        self.conditions.extend(more.conditions);
        self
    }

    /// A condition: stale unless the document is still at the revision in `head`.
    pub fn while_at(head: &Head) -> Self {
        Self::when(Condition::Unchanged(head.clone()))
    }

    /// A condition: stale if a document refers to this id.
    pub fn unless_referred(id: &str) -> Self {
        Self::when(Condition::Unreferred(id.to_owned()))
    }

    /// A condition: stale if a document of this kind that refers to this id was written after the revision `since`. Read
    /// `since` before the documents.
    pub fn while_referrers_at(kind: &str, to: &str, since: Revision) -> Self {
        Self::when(Condition::ReferrersUnwritten {
            kind: kind.to_owned(),
            to: to.to_owned(),
            since,
        })
    }

    /// A condition: stale if a document of this kind with one of these keys was written after the revision `since`. Read
    /// `since` before searching for the keys.
    pub fn unless_written(
        kind: &str,
        key_name: &'static str,
        values: Vec<String>,
        since: Revision,
    ) -> Self {
        Self::when(Condition::Unwritten {
            kind: kind.to_owned(),
            name: key_name,
            values,
            since,
        })
    }

    /// Like [`Self::unless_written`], for every key that ends in `end`. Reads all documents of the kind that were
    /// written since.
    pub fn unless_written_below(
        kind: &str,
        key_name: &'static str,
        end: String,
        since: Revision,
    ) -> Self {
        Self::when(Condition::UnwrittenBelow {
            kind: kind.to_owned(),
            name: key_name,
            end,
            since,
        })
    }

    /// With each event replaced by what `of` makes of it.
    #[must_use]
    pub fn map_events(mut self, mut of: impl FnMut(Event) -> Event) -> Self {
        for step in &mut self.steps {
            let (Step::Insert(_, AuditEvent::Emit(event))
            | Step::Replace(_, AuditEvent::Emit(event))
            | Step::Remove(_, AuditEvent::Emit(event))
            | Step::Tell(event)) = step
            else {
                continue;
            };
            *event = of(event.clone());
        }
        self
    }

    /// The documents it writes or removes.
    pub(crate) fn touched(&self) -> impl Iterator<Item = Touched> {
        self.steps.iter().filter_map(|step| {
            let head = match step {
                Step::Insert(document, _) | Step::Replace(document, _) => &document.head,
                Step::Remove(head, _) => head,
                Step::Tell(_) | Step::Meta { .. } | Step::Answer(_) => return None,
            };
            Some(Touched {
                kind: head.kind.clone(),
                id: head.id.clone(),
            })
        })
    }

    /// Keeps an answer. Refused if an answer with its ID was kept after `since`
    /// ([`Kept`](crate::CommitError::Kept)), or if the owner has no room ([`NoRoom`](crate::CommitError::NoRoom)).
    pub fn keep(answer: KeptAnswer, since: Timestamp, room: AnswerRoom) -> Self {
        Self::of(Step::Answer(AnswerStep::Keep {
            answer,
            since,
            room,
        }))
    }

    /// Replaces the body of an answer that was kept before the outcome was known.
    pub fn complete_answer(id: &str, kept_at: Timestamp, body: String) -> Self {
        let id = id.to_owned();
        Self::of(Step::Answer(AnswerStep::Complete { id, kept_at, body }))
    }

    /// Removes an answer that was kept before the outcome was known.
    pub fn forget_answer(id: &str, kept_at: Timestamp) -> Self {
        let id = id.to_owned();
        Self::of(Step::Answer(AnswerStep::Forget { id, kept_at }))
    }

    fn of(step: Step) -> Self {
        Self {
            steps: vec![step],
            conditions: Vec::new(),
        }
    }

    fn when(condition: Condition) -> Self {
        Self {
            steps: Vec::new(),
            conditions: vec![condition],
        }
    }
}
