//! The host key for SSH clients: created once, stored encrypted, and shared by all nodes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Fault, IdMaker};
use culvert_resources::stored::{self, Format};
use culvert_store::{AuditEvent, Changes, CommitError, Document, Head, Key};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::CertificateManager;

const KIND: &str = "ssh_host_key";
const PREFIX: &str = "sshhost";
const KEY: &str = "name";
/// The name of the only host key.
const NAME: &str = "ed25519";
const NOTHING: AuditEvent = AuditEvent::Suppress {
    reason: "the host key belongs to the installation and to no account",
};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: Format<1>,
    sealed_seed: String,
}

impl CertificateManager {
    /// The secret bytes of the key.
    pub async fn ssh_host_seed(&self) -> Result<Zeroizing<[u8; 32]>, Fault> {
        // If two nodes start concurrently, one creates it and the other reads it.
        for _ in 0..2 {
            if let Some(document) = self.kernel.store.find(KIND, KEY, NAME).await? {
                return self.opened(&document);
            }
            let id = IdMaker::next(&self.kernel.ids, &*self.kernel.clock, &*self.kernel.entropy);
            let head = Head {
                id: format!("{PREFIX}_{id}"),
                kind: KIND.to_owned(),
                account: String::new(),
                revision: 0,
                created_at: id.at(),
                updated_at: id.at(),
            };
            let seed = Zeroizing::new(self.kernel.entropy.bytes::<32>());
            let text = Zeroizing::new(STANDARD.encode(*seed));
            let sealed_seed = self
                .kernel
                .seal
                .seal(&*self.kernel.entropy, &head.id, &text)?;
            let document = Document {
                body: stored::write(&Stored {
                    format: Format,
                    sealed_seed,
                })?,
                head,
                keys: vec![Key::new(KEY, NAME)],
                refs: Vec::new(),
                topics: Vec::new(),
            };
            match self
                .kernel
                .store
                .commit(Changes::insert(document, NOTHING))
                .await
            {
                Ok(_) | Err(CommitError::Duplicate { .. }) => {}
                Err(error) => return Err(Fault::new("storing the SSH host key", error)),
            }
        }
        Err(Fault::bare("reading the new SSH host key"))
    }

    fn opened(&self, document: &Document) -> Result<Zeroizing<[u8; 32]>, Fault> {
        let stored: Stored = stored::read(document)?;
        let text = self
            .kernel
            .seal
            .open(&document.head.id, &stored.sealed_seed)?;
        let mut seed = Zeroizing::new([0; 32]);
        match STANDARD.decode_slice(text.reveal(), &mut *seed) {
            Ok(32) => Ok(seed),
            _ => Err(Fault::bare(
                "reading the SSH host key, which is not 32 bytes",
            )),
        }
    }
}
