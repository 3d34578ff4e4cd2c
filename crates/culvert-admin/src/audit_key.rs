//! `culvert admin rotate-audit-key`: another key for the heads of the audit log.

use std::io::Write;

use anyhow::{Context, Result, bail};
use culvert_command::with_causes;
use culvert_installation::ProcessContext;
use culvert_installation::audit_key::{self, AuditKey};
use culvert_installation::keys::write_private_for_owner;
use culvert_store::SignedHead;

/// Nodes sign heads meanwhile.
const TRIES: usize = 10;

/// Signs the latest head with the new key too, and then replaces the file. The head with both signatures shows to those
/// who know the old key that the new one is its successor.
pub(super) async fn rotate(context: &ProcessContext, key: &AuditKey) -> Result<()> {
    let path = key.file()?;
    let shown = path.display();
    let old = audit_key::load(path)?;
    let old = old.with_context(|| format!("there is no `{shown}`; run this where it is"))?;
    let next = audit_key::next_file(path);
    // An interrupted rotation left it.
    let new = match audit_key::load(&next)? {
        Some(new) if new.verifier().name() != old.verifier().name() => bail!(
            "`{}` is the key of another log, `{}`; remove it",
            next.display(),
            new.verifier().name()
        ),
        Some(new) => new,
        None => audit_key::make_next(path, old.verifier().name(), &*context.entropy)?,
    };
    for _ in 0..TRIES {
        let tree = context
            .store
            .audit_log()
            .tree()
            .await
            .map_err(with_causes)?;
        let head = tree
            .signed
            .context("no head is signed yet; `culvert serve` signs it")?;
        let is_by =
            |key: &culvert_tlog::SigningKey| head.checkpoint.is_signed_last_by(key.verifier());
        let mut both = head.checkpoint.clone();
        if !is_by(&new) {
            if !is_by(&old) {
                bail!("`{shown}` is not the key that signed the latest head");
            }
            let line = new.sign(both.note().text(), 0);
            both = both
                .with(&[line])
                .context("the head has too many signatures")?;
            let after = SignedHead {
                at: head.at,
                checkpoint: both.clone(),
            };
            let signed = context.store.sign_audit_tree(Some(&head), after).await;
            if !signed.map_err(with_causes)? {
                continue;
            }
        }
        // A database from before the rotation needs the old key.
        let kept = audit_key::old_file(path);
        write_private_for_owner(path, &kept, &format!("{}\n", &*old.secret_text()))?;
        std::fs::rename(&next, path).with_context(|| format!("replacing `{shown}`"))?;
        let said = format!(
            "created a new key in `{shown}`; copy the file to every node\nkey: {}\n\
             the last head, signed with both keys, for those who know the old key:\n\n{both}",
            new.verifier()
        );
        // A closed output does not undo the change.
        drop(std::io::stdout().write_all(said.as_bytes()));
        return Ok(());
    }
    bail!("heads are signed faster than this command; try again")
}
