//! `culvert audit verify` with `--rebuild` and `--checkpoint`: the tree, computed again, and the history that an auditor
//! knows.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_store::{AuditLog, AuditTree, Rebuilt, TreeDamage};
use culvert_tlog::{Checkpoint, Policy, SignedCheckpoint, continuation, continued};

use super::failed;
use super::proof::{named, policy, read_checkpoint, trust};
use crate::commands::{Failure, say};

/// Adds the options.
pub(super) fn arguments(command: Command) -> Command {
    trust(command)
        .arg(
            Arg::new("rebuild")
                .long("rebuild")
                .action(ArgAction::SetTrue)
                .help("Compute the tree of the log again and compare it with the stored one"),
        )
        .arg(
            Arg::new("checkpoint")
                .long("checkpoint")
                .value_name("FILE")
                .action(ArgAction::Append)
                .help("Signed head that was kept earlier: the log must still begin with its history; repeatable, which narrows down where it was rewritten"),
        )
}

/// What to compare the log with.
pub(super) struct Asked {
    is_rebuilt: bool,
    /// The smallest first.
    checkpoints: Vec<SignedCheckpoint>,
    policy: Policy,
}

impl Asked {
    pub(super) fn read(given: &ArgMatches) -> Result<Self, Failure> {
        let files = given.get_many::<String>("checkpoint").into_iter().flatten();
        let checkpoints = files.map(|path| read_checkpoint(path));
        let mut checkpoints = checkpoints.collect::<Result<Vec<_>, _>>()?;
        checkpoints.sort_by_key(|signed| signed.checkpoint().size);
        let policy = policy(given)?;
        // Keys are asked of the heads, and the heads of the tree.
        let has_keys = !policy.origin_keys.is_empty() || !policy.witness_keys.is_empty();
        Ok(Self {
            is_rebuilt: given.get_flag("rebuild") || has_keys,
            checkpoints,
            policy,
        })
    }
}

pub(super) async fn verify(log: &AuditLog, asked: &Asked) -> Result<(), Failure> {
    if !asked.is_rebuilt && asked.checkpoints.is_empty() {
        return Ok(());
    }
    let rebuilt = log.rebuild().await.map_err(|error| match error {
        TreeDamage::Fault(fault) => failed(fault),
        found => Failure::Failed(found.to_string()),
    })?;
    let Rebuilt {
        tree,
        from_rows,
        root,
    } = rebuilt;
    let size = tree.size;
    say(format_args!(
        "the tree is that of the log: leaves={size} from_rows={from_rows} root={root}"
    ))?;
    if !asked.policy.origin_keys.is_empty() {
        let signed = tree.signed.as_ref();
        let signed = signed.ok_or_else(|| Failure::Failed("no head is signed yet".into()))?;
        // Witnesses may not have signed the latest one yet.
        let by_log = Policy {
            quorum: 0,
            ..asked.policy.clone()
        };
        let verified = by_log.verify(&signed.checkpoint);
        verified.map_err(|error| Failure::Failed(error.to_string()))?;
        if !asked.policy.witness_keys.is_empty() {
            witnessed(log, &tree, &asked.policy).await?;
        }
    }
    let mut last_same = tree.base;
    for signed in &asked.checkpoints {
        let known = signed.checkpoint();
        let mut witnesses = Vec::new();
        if !asked.policy.origin_keys.is_empty() {
            let verified = policy_of(&asked.policy, known).verify(signed);
            witnesses = verified.map_err(|error| Failure::Failed(error.to_string()))?;
        }
        let stored = tree.signed.as_ref();
        if let Some(stored) = stored {
            let stored = stored.checkpoint.checkpoint();
            let is_asked = asked.policy.origin.as_ref() == Some(&stored.origin);
            refuse_other_log(known, stored, is_asked)?;
        }
        let position = tree.base.saturating_add_unsigned(known.size);
        if known.size > size {
            return Err(Failure::Failed(format!(
                "the audit log was truncated, or an older copy was restored: the checkpoint has events up to {position}, the log up to {}",
                tree.last()
            )));
        }
        if log.root(known.size).await.map_err(failed)? != known.root {
            return Err(Failure::Failed(format!(
                "the audit log was rewritten: an event of the positions {} to {position} is not the one that the checkpoint knows",
                last_same.saturating_add(1)
            )));
        }
        last_same = position;
        let added = size - known.size;
        say(format_args!(
            "the same history: the log begins with the {} events of the checkpoint, {added} were added{}",
            known.size,
            named(&witnesses)
        ))?;
    }
    Ok(())
}

/// Verifies the newest head that enough witnesses signed: the log must begin with it.
async fn witnessed(log: &AuditLog, tree: &AuditTree, policy: &Policy) -> Result<(), Failure> {
    let published = tree.published();
    let published = published.ok_or_else(|| Failure::Failed("no head is signed yet".into()))?;
    let witnesses = policy.verify(published);
    let witnesses = witnesses.map_err(|error| Failure::Failed(error.to_string()))?;
    let head = published.checkpoint();
    if head.size > tree.size || log.root(head.size).await.map_err(failed)? != head.root {
        return Err(Failure::Failed(
            "the audit log was rewritten: it does not begin with the stored head that witnesses signed"
                .to_owned(),
        ));
    }
    say(format_args!(
        "witnesses signed the first {} events{}",
        head.size,
        named(&witnesses)
    ))
}

/// Says that the log continues one that ended, unless it is asked for by name.
pub(super) async fn warn_of_continuation(
    log: &AuditLog,
    asked: Option<&Asked>,
) -> Result<(), Failure> {
    // A database of an earlier version has no tree.
    let tree = log.tree().await.ok();
    let Some(signed) = tree.and_then(|tree| tree.signed) else {
        return Ok(());
    };
    let origin = &signed.checkpoint.checkpoint().origin;
    let is_named = asked.is_some_and(|asked| asked.policy.origin.as_ref() == Some(origin));
    let (name, n) = continuation(origin);
    if n == 0 || is_named {
        return Ok(());
    }
    say(format_args!(
        "warning: the signed log is `{origin}`, which continues `{}`, which ended: the database was restored, or written again; \
         heads of that one may have events that are missing here",
        continued(name, n - 1)
    ))
}

/// A checkpoint of an earlier continuation counts if a later one is asked for by name.
fn policy_of(policy: &Policy, known: &Checkpoint) -> Policy {
    let is_earlier = policy.origin.as_deref().is_some_and(|asked| {
        let ((asked, n), (log, earlier)) = (continuation(asked), continuation(&known.origin));
        asked == log && earlier < n
    });
    let origin = match is_earlier {
        true => Some(known.origin.clone()),
        false => policy.origin.clone(),
    };
    Policy {
        origin,
        ..policy.clone()
    }
}

/// Fails if the checkpoint is of another log than the stored one, or of one that ended at a restore and whose continuation
/// is not asked for.
fn refuse_other_log(
    known: &Checkpoint,
    stored: &Checkpoint,
    is_asked: bool,
) -> Result<(), Failure> {
    let (known, stored) = (&known.origin, &stored.origin);
    let ((log, n), (stored_log, stored_n)) = (continuation(known), continuation(stored));
    if known == stored || log == stored_log && n < stored_n && is_asked {
        return Ok(());
    }
    Err(Failure::Failed(match log == stored_log && n < stored_n {
        true => format!(
            "the log `{known}` of the checkpoint ended: its server was restored, and continues it as `{stored}`; to compare with that, add `--origin {stored}`"
        ),
        false => format!("the checkpoint is of `{known}`, and this is the log `{stored}`"),
    }))
}
