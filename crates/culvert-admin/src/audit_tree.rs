//! `culvert admin rebuild-audit-tree`: repairs the tree over the audit log.

use anyhow::Result;
use culvert_command::{say, with_causes};
use culvert_control::AdminCommand;
use culvert_installation::ProcessContext;
use culvert_store::Unrepairable;

use crate::server_log;

/// A server adds leaves meanwhile.
const TRIES: usize = 10;

/// Computes the tiles again, from rows and from the hashes of removed ones, and writes those that are missing or wrong.
pub(super) async fn rebuild(context: &ProcessContext, command: &AdminCommand) -> Result<()> {
    let log = server_log(context);
    // The event is written before anything is changed.
    log.commanded(command).await.map_err(with_causes)?;
    let mut n_tries = 1;
    let repaired = loop {
        match context.store.repair_audit_tree().await {
            Err(Unrepairable::Grew) if n_tries < TRIES => n_tries += 1,
            repaired => break repaired?,
        }
    };
    log.tree_repaired().await.map_err(with_causes)?;
    say(format_args!(
        "the tree of the audit log is right: leaves={} from_rows={} repaired_tiles={}",
        repaired.leaves, repaired.from_rows, repaired.tiles
    ))?;
    Ok(())
}
