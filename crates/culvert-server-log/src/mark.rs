//! Marks: what was reported already.

use culvert_base::sync::lock;
use culvert_base::{Fault, Ksuid};
use culvert_resources::stored;
use culvert_store::{AuditEvent, Changes, Document, Head, Key};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ServerLog;

/// The name of the key of marks, which two nodes cannot both write.
const OF: &str = "of";
/// Limit of unreadable marks that are logged.
const UNREADABLE_MAX: usize = 1_000;

/// A kind of marks, and the type of their contents.
#[derive(Clone, Copy, Debug)]
pub struct MarkKind {
    /// The kind of the documents.
    pub kind: &'static str,
    /// The prefix of their IDs.
    pub prefix: &'static str,
}

/// A mark as it is stored.
#[derive(Clone, Debug)]
pub struct Mark<T> {
    /// Its document.
    pub document: Document,
    /// `None` if it cannot be read: then what it is about may be reported a second time, which replaces the mark.
    pub state: Option<T>,
}

impl<T> Mark<T> {
    /// What it is about.
    pub fn of(&self) -> &str {
        let mut keys = self.document.keys.iter();
        keys.find(|key| key.name == OF)
            .map_or("", |key| key.value.as_str())
    }

    /// Removes it, with an event.
    pub fn removal(self, event: AuditEvent) -> Changes {
        Changes::remove(self.document.head, event)
    }
}

impl ServerLog {
    /// The mark about `of`.
    pub async fn mark<T: DeserializeOwned>(
        &self,
        ty: MarkKind,
        of: &str,
    ) -> Result<Option<Mark<T>>, Fault> {
        let found = self.store.find(ty.kind, OF, of).await?;
        Ok(found.map(|document| self.read(document)))
    }

    /// All marks of a kind.
    pub async fn marks<T: DeserializeOwned>(&self, ty: MarkKind) -> Result<Vec<Mark<T>>, Fault> {
        let all = self.store.all(ty.kind).await?;
        let all = all.into_iter().map(|document| self.read(document));
        Ok(all.collect())
    }

    fn read<T: DeserializeOwned>(&self, document: Document) -> Mark<T> {
        let state = stored::read(&document);
        let id = &document.head.id;
        if let Err(fault) = &state {
            let mut unreadable = lock(&self.unreadable);
            if unreadable.len() < UNREADABLE_MAX && unreadable.insert(id.clone()) {
                tracing::error!(
                    mark = id,
                    kind = document.head.kind,
                    cause = %fault.chain(),
                    "a mark of an event cannot be read; the event may be reported again"
                );
            }
        }
        Mark {
            state: state.ok(),
            document,
        }
    }

    /// Writes the mark about `of` with an event. `known` is the mark that the decision was made with: if there is another
    /// one, nothing is committed.
    pub fn marking<T: Serialize>(
        &self,
        ty: MarkKind,
        of: &str,
        known: Option<Document>,
        state: &T,
        event: AuditEvent,
    ) -> Result<Changes, Fault> {
        let body = stored::write(state)?;
        let now = self.clock.now();
        if let Some(mut document) = known {
            document.body = body;
            document.head.updated_at = now;
            return Ok(Changes::replace(document, event));
        }
        let id = Ksuid::new(now, self.entropy.bytes());
        let document = Document {
            head: Head {
                id: format!("{}_{id}", ty.prefix),
                kind: ty.kind.to_owned(),
                account: String::new(),
                revision: 0,
                created_at: now,
                updated_at: now,
            },
            body,
            keys: vec![Key::new(OF, of)],
            refs: Vec::new(),
            topics: Vec::new(),
        };
        Ok(Changes::insert(document, event))
    }
}
