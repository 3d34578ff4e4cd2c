//! Re-encrypts all secrets of older master keys with the current one.
//!
//! Scans every stored document, so resources need not be listed: an encrypted value is a string that names
//! its key and decrypts for the ID of its document. The process can be interrupted and restarted at any time:
//! each value is under one key or the other, and the seal has both.

use culvert_base::{Entropy, Fault};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Store};
use serde_json::Value;

use crate::stored::seal::Seal;

/// The result of a re-encryption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reencrypted {
    /// Documents written.
    pub documents: u64,
    /// Strings that look like values of an older key but are not encrypted; they come from user input.
    pub strange: u64,
}

/// Documents per batch.
const DOCUMENTS: u32 = 64;

/// Re-encrypts until a whole scan finds no value under an older key.
///
/// # Errors
/// The store fails.
pub async fn reencrypt(
    store: &Store,
    seal: &Seal,
    entropy: &dyn Entropy,
) -> Result<Reencrypted, Fault> {
    let mut total = Reencrypted::default();
    loop {
        let pass = pass(store, seal, entropy).await?;
        total.documents = total.documents.saturating_add(pass.documents);
        total.strange = pass.strange;
        if pass.documents == 0 {
            return Ok(total);
        }
    }
}

async fn pass(store: &Store, seal: &Seal, entropy: &dyn Entropy) -> Result<Reencrypted, Fault> {
    let mut found = Reencrypted::default();
    let mut after = String::new();
    loop {
        let documents = store.documents_after(&after, DOCUMENTS).await?;
        let Some(last) = documents.last() else {
            return Ok(found);
        };
        after.clone_from(&last.head.id);
        let mut changes = Changes::default();
        let before = found.documents;
        for document in documents {
            if let Some(body) = anew(seal, entropy, &document, &mut found.strange)? {
                found.documents = found.documents.saturating_add(1);
                let event = AuditEvent::Suppress {
                    reason: "a secret under another key is the same secret",
                };
                changes = changes.and(Changes::replace(Document { body, ..document }, event));
            }
        }
        if found.documents == before {
            continue;
        }
        match store.commit(changes).await {
            // Another writer changed the document; the next scan reads it again.
            Ok(_) | Err(CommitError::Stale) => {}
            Err(error) => return Err(Fault::new("re-encrypting secrets", error)),
        }
    }
}

/// Re-encrypts the values of a document that are under an older key. Returns the new body; `None` if it has
/// no such value.
fn anew(
    seal: &Seal,
    entropy: &dyn Entropy,
    document: &Document,
    strange: &mut u64,
) -> Result<Option<String>, Fault> {
    let id = &document.head.id;
    let body: Value = serde_json::from_str(&document.body)
        .map_err(|error| Fault::new(format!("reading the stored {id}"), error))?;
    let mut older = Vec::new();
    collect(&body, seal, &mut older);
    let mut text = None;
    for sealed in older {
        let Ok(secret) = seal.open(id, sealed) else {
            *strange = strange.saturating_add(1);
            continue;
        };
        let fresh = seal.seal(entropy, id, secret.reveal())?;
        // An encrypted value contains no character that JSON escapes.
        let body = text.get_or_insert_with(|| document.body.clone());
        *body = body.replace(sealed, &fresh);
    }
    Ok(text)
}

fn collect<'a>(value: &'a Value, seal: &Seal, older: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if seal.is_under_older(text) => older.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, seal, older)),
        Value::Object(fields) => fields
            .values()
            .for_each(|field| collect(field, seal, older)),
        _ => {}
    }
}
