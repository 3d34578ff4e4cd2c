//! `culvert admin acknowledge-restore`: signs the audit log of a restored database, under another origin.

use std::io::Write;

use anyhow::{Context, Result, bail};
use culvert_audit_tree::heads;
use culvert_base::Clock;
use culvert_command::with_causes;
use culvert_control::AdminCommand;
use culvert_installation::audit_key::AuditKey;
use culvert_installation::config::Settings;
use culvert_installation::{ProcessContext, audit_head};
use culvert_tlog::{continuation, continued};

use crate::server_log;

/// Nodes add leaves and witnesses sign meanwhile.
const TRIES: usize = 10;
/// A log has no more continuations. Marks of later ones are not ours.
const CONTINUATIONS_MAX: u64 = 1 << 32;

/// Signs a head of the next continuation (`+1`, `+2`), which nodes then continue. Its event is in this head.
pub(super) async fn acknowledge(
    context: &ProcessContext,
    (settings, key): (&Settings, &AuditKey),
    command: &AdminCommand,
) -> Result<()> {
    let shown = key.shown();
    let key = key.load()?;
    let key = key.with_context(|| format!("there is no {shown}; run this where it is"))?;
    let name = key.verifier().name();
    let file = audit_head::load(&settings.audit_head_file())?;
    let (store, log) = (&context.store, server_log(context));
    let ended = log.ended_origins().await.map_err(with_causes)?;
    let mut is_recorded = false;
    for _ in 0..TRIES {
        store.grow_audit_tree().await.map_err(with_causes)?;
        let audit_log = store.audit_log();
        let tree = audit_log.tree().await.map_err(with_causes)?;
        let stored = tree.signed.as_ref();
        if stored.is_some_and(|head| !head.checkpoint.is_signed_last_by(key.verifier())) {
            bail!("{shown} is not the key that signed the latest head");
        }
        let stored_head = stored.map(|head| &head.checkpoint);
        let known = heads::latest(file.as_ref(), stored_head);
        let known = known.map_or(name, |head| &head.checkpoint().origin);
        let origins = ended.iter().map(String::as_str).chain([known]);
        let of_log = origins.filter(|origin| {
            let (log, n) = continuation(origin);
            log == name && n < CONTINUATIONS_MAX
        });
        let last = of_log.max_by_key(|origin| continuation(origin).1);
        let last = last.context("the key is not that of this log")?;
        if !ended.iter().any(|origin| origin == last) {
            bail!(
                "the signed audit log `{last}` did not end; a server that starts on a restored database notices it"
            );
        }
        if !is_recorded {
            // The event is written before anything is changed.
            log.commanded(command).await.map_err(with_causes)?;
            is_recorded = true;
            continue;
        }
        let next = continued(name, continuation(last).1 + 1);
        let at = context.clock.now();
        let head = heads::signed(&audit_log, &tree, &key, &next, at).await;
        let head = head.map_err(with_causes)?;
        let text = head.checkpoint.to_string();
        let signed = store.sign_audit_tree(stored, head).await;
        if !signed.map_err(with_causes)? {
            continue;
        }
        let size = tree.size;
        let said = format!(
            "the audit log `{last}` ended; it goes on as `{next}` with {size} events\n\
             tell auditors, and add the new origin to the witnesses\n\
             its first head, signed with the same key:\n\n{text}"
        );
        // A closed output does not undo the change.
        drop(std::io::stdout().write_all(said.as_bytes()));
        return Ok(());
    }
    bail!("heads are signed faster than this command; try again")
}
