//! Keeps the tree over the audit log and signs its heads, off the path of every request.
//!
//! It follows the commits of the store, a second behind them, and signs a head every ten seconds if there is something new,
//! and at the stop. With several nodes, one adds leaves and the others take over if it is gone; each may sign, and a head
//! replaces only the one that it was made after.

pub(crate) mod witnesses;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::sync::lock;
use tokio::sync::watch;

use culvert_base::{Clock, Entropy, Fault};
use culvert_installation::audit_key;
use culvert_store::{AuditLog, AuditTree, SignedHead, Store};
use culvert_tlog::{Checkpoint, SignedCheckpoint, SigningKey};
use tokio_util::sync::CancellationToken;

/// The time from a commit to its leaf, so that one transaction adds the leaves of many.
const GROW_AFTER: Duration = Duration::from_secs(1);
/// The time between two signed heads.
const SIGN_EVERY: Duration = Duration::from_secs(10);
/// How long the stop waits for the last leaves and their head.
const LAST_WITHIN: Duration = Duration::from_secs(3);

/// Keeps the tree of this node's database.
#[derive(Debug)]
pub(crate) struct AuditTreeKeeper {
    pub(crate) store: Store,
    /// The time that all nodes share.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    /// The name of this node.
    pub(crate) node: String,
    pub(crate) key_file: PathBuf,
    /// The identity of the log, if this node makes its key.
    pub(crate) origin: String,
    /// Why this node does not sign.
    problem: Mutex<Option<String>>,
    /// The last head that this process signed.
    last: Mutex<Option<Checkpoint>>,
    /// How many leaves the latest head has that this node signed.
    signed: watch::Sender<u64>,
}

impl AuditTreeKeeper {
    pub(crate) fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        (node, key_file, origin): (String, PathBuf, String),
    ) -> Self {
        Self {
            store,
            clock,
            entropy,
            node,
            key_file,
            origin,
            problem: Mutex::default(),
            last: Mutex::default(),
            signed: watch::Sender::new(0),
        }
    }

    /// Why the heads of the audit log are not signed here; `None` if they are.
    pub(crate) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    /// Changes with each head that this node signs.
    pub(crate) fn signed(&self) -> watch::Receiver<u64> {
        self.signed.subscribe()
    }

    /// Runs until the stop, and signs a last head.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut revisions = self.store.watch();
        while !stop.is_cancelled() {
            revisions.mark_unchanged();
            let is_done = self.step(false).await;
            if is_done {
                tokio::select! {
                    changed = revisions.changed() => if changed.is_err() { break },
                    () = stop.cancelled() => break,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(GROW_AFTER) => {}
                () = stop.cancelled() => {}
            }
        }
        let last = async { while !self.step(true).await && self.problem().is_none() {} };
        // The database may be away.
        drop(tokio::time::timeout(LAST_WITHIN, last).await);
    }

    /// Adds leaves and signs a head if it is time. Returns whether nothing remains to be done until the next commit.
    async fn step(&self, is_last: bool) -> bool {
        let done = self.advance(is_last).await;
        let (is_done, problem) = match done {
            Ok(is_done) => (is_done, None),
            Err(problem) => (false, Some(problem)),
        };
        let mut known = lock(&self.problem);
        if *known != problem {
            if let Some(problem) = &problem {
                tracing::error!(cause = problem, "the audit log is not signed");
            }
            *known = problem;
        }
        is_done
    }

    async fn advance(&self, is_last: bool) -> Result<bool, String> {
        let chain = |fault: Fault| fault.chain();
        let now = self.clock.now();
        let grown = match is_last {
            true => self.store.grow_audit_tree().await,
            false => self.store.follow_audit_log(&self.node, now).await,
        };
        grown.map_err(chain)?;
        let log = self.store.audit_log();
        let tree = log.tree().await.map_err(chain)?;
        let is_whole = log.extent().await.map_err(chain)?.head.seq <= tree.last();
        let n_signed = tree.signed.as_ref().map_or(0, SignedHead::size);
        if tree.size == n_signed {
            return Ok(is_whole);
        }
        let is_due = tree.signed.as_ref().is_none_or(|head| {
            // A head from the future was signed with a wrong clock.
            now >= head.at.plus(SIGN_EVERY) || head.at > now.plus(SIGN_EVERY)
        });
        if is_due || is_last {
            let is_signed = self.sign(&tree).await?;
            return Ok(is_whole && is_signed);
        }
        Ok(false)
    }

    /// Signs the head of this tree. False if the head before it got another signature meanwhile, or another node signed.
    async fn sign(&self, tree: &AuditTree) -> Result<bool, String> {
        let key = self.key(tree)?;
        let log = self.store.audit_log();
        self.refuse_fork(&log, tree).await?;
        let head = log.head(key.verifier().name(), tree.size).await;
        let head = head.map_err(|fault| fault.chain())?;
        let line = key.sign(&head.to_string(), 0);
        let checkpoint = SignedCheckpoint::new(head, vec![line]);
        let checkpoint = checkpoint.ok_or("the head of the tree cannot be written")?;
        let signed_head = checkpoint.checkpoint().clone();
        let after = SignedHead {
            at: self.clock.now(),
            checkpoint,
        };
        let signed = self.store.sign_audit_tree(tree.signed.as_ref(), after);
        let is_signed = signed.await.map_err(|fault| fault.chain())?;
        if is_signed {
            self.signed.send_replace(tree.size);
            *lock(&self.last) = Some(signed_head);
        }
        Ok(is_signed)
    }

    /// Fails if the tree does not begin with the stored head, or with the last one that this process signed: the log was
    /// written again, or the database lost commits.
    async fn refuse_fork(&self, log: &AuditLog, tree: &AuditTree) -> Result<(), String> {
        let stored = tree
            .signed
            .as_ref()
            .map(|head| head.checkpoint.checkpoint().clone());
        let last = lock(&self.last).clone();
        for head in stored.into_iter().chain(last) {
            let is_extended = head.size <= tree.size
                && log.root(head.size).await.map_err(|fault| fault.chain())? == head.root;
            if !is_extended {
                return Err(format!(
                    "the log does not begin with the {} events of a head that was signed: it was rewritten, or the database lost events",
                    head.size
                ));
            }
        }
        Ok(())
    }

    /// The key, which is read for each head: another program may replace it. The first head makes it.
    fn key(&self, tree: &AuditTree) -> Result<SigningKey, String> {
        let shown = self.key_file.display();
        let found = audit_key::load(&self.key_file).map_err(|error| format!("{error:#}"))?;
        match (found, &tree.signed) {
            (Some(key), None) => Ok(key),
            (Some(key), Some(head)) if head.checkpoint.is_signed_last_by(key.verifier()) => Ok(key),
            (Some(_), Some(_)) => Err(format!(
                "`{shown}` is not the key that signed the latest head; copy the file of the node that signed it"
            )),
            (None, Some(_)) => Err(format!(
                "`{shown}` is missing; copy it from another node or a backup"
            )),
            (None, None) => audit_key::make(&self.key_file, &self.origin, &*self.entropy)
                .map_err(|error| format!("{error:#}")),
        }
    }
}
