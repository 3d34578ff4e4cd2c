//! Keeps the tree over the audit log and signs its heads, off the path of every request.
//!
//! It follows the commits of the store, a second behind them, and signs a head every ten seconds if there is something new,
//! and at the stop. With several nodes, one adds leaves and the others take over if it is gone; each may sign, and a head
//! replaces only the one that it was made after.
//!
//! Nothing is signed that does not continue the last head: see `heads`.

pub mod heads;
pub mod witnesses;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use culvert_base::sync::lock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use culvert_base::{Clock, Entropy, Fault};
use culvert_control::{LostHead, ServerLog};
use culvert_installation::audit_head;
use culvert_installation::audit_key::{self, AuditKey};
use culvert_store::{AuditLog, AuditTree, SignedHead, Store};
use culvert_tlog::{SignedCheckpoint, SigningKey, VerifierKey, continuation};
use tokio_util::sync::CancellationToken;

use witnesses::{FIRST_WITHIN, WitnessClient};

/// The time from a commit to its leaf, so that one transaction adds the leaves of many.
const GROW_AFTER: Duration = Duration::from_secs(1);
/// The time between two signed heads.
const SIGN_EVERY: Duration = Duration::from_secs(10);
/// How long the stop waits for the last leaves and their head.
const LAST_WITHIN: Duration = Duration::from_secs(5);

/// Why this node does not sign.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Trouble {
    /// Something is missing or fails.
    Problem(String),
    /// The tree lacks tiles that the next leaves need.
    Damaged(String),
    /// The log does not continue the last signed head, and no administrator acknowledged that.
    Ended(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Problem(fault.chain())
    }
}

/// Where the log of this node is, and its files.
#[derive(Debug)]
pub struct LogIdentity {
    /// The name of this node.
    pub node: String,
    /// The key that signs heads.
    pub key: AuditKey,
    /// The last head that this node knows to be signed.
    pub head_file: PathBuf,
    /// The identity of the log, if this node makes its key.
    pub origin: String,
    /// Wakes the keeper: a witness showed a head that the log does not continue.
    pub refused: Notify,
}

impl LogIdentity {
    /// The origin that the next head has as far as the files say; `None` if there is neither a key nor a head.
    fn known_origin(&self) -> anyhow::Result<Option<String>> {
        if let Some(head) = audit_head::load(&self.head_file)? {
            return Ok(Some(head.checkpoint().origin.clone()));
        }
        let key = self.key.load()?;
        Ok(key.map(|key| key.verifier().name().to_owned()))
    }

    /// The keys that may have signed heads of this log: the current one, and the one before it.
    fn own_keys(&self) -> anyhow::Result<Vec<VerifierKey>> {
        let current = self.key.load()?.map(|key| key.verifier().clone());
        let old = self.key.load_old()?.map(|key| key.verifier().clone());
        Ok(current.into_iter().chain(old).collect())
    }
}

/// Keeps the tree of this node's database.
#[derive(Debug)]
pub struct AuditTreeKeeper {
    store: Store,
    /// The time that all nodes share.
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    server_log: ServerLog,
    witnesses: Vec<Arc<WitnessClient>>,
    identity: Arc<LogIdentity>,
    trouble: Mutex<Option<Trouble>>,
    /// The stored head that was checked last; empty for none.
    checked: Mutex<Option<String>>,
    /// When this process began to wait for witnesses, with something to sign.
    waits_since: OnceLock<Instant>,
    /// How many leaves the latest head has that this node signed.
    signed: watch::Sender<u64>,
}

impl AuditTreeKeeper {
    /// The keeper of a database, with the clock that all its nodes share.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        (server_log, witnesses, identity): (ServerLog, Vec<Arc<WitnessClient>>, Arc<LogIdentity>),
    ) -> Self {
        Self {
            store,
            clock,
            entropy,
            server_log,
            witnesses,
            identity,
            trouble: Mutex::default(),
            checked: Mutex::default(),
            waits_since: OnceLock::new(),
            signed: watch::Sender::new(0),
        }
    }

    /// Which part an operator should know about, and what; `None` if heads are signed. The log has the cause.
    pub fn notice(&self) -> Option<(&'static str, &'static str)> {
        match *lock(&self.trouble) {
            None => None,
            Some(Trouble::Damaged(_)) => Some((
                "audit_log",
                "its tree is damaged: it is neither signed nor pruned until `culvert admin rebuild-audit-tree`",
            )),
            Some(Trouble::Problem(_)) => Some(("audit_log", "its heads are not signed here")),
            Some(Trouble::Ended(_)) => Some((
                "restored",
                "the database does not continue the signed audit log; `culvert admin acknowledge-restore` does",
            )),
        }
    }

    /// Changes with each head that this node signs.
    pub fn signed(&self) -> watch::Receiver<u64> {
        self.signed.subscribe()
    }

    /// Runs until the stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut revisions = self.store.watch();
        while !stop.is_cancelled() {
            revisions.mark_unchanged();
            let is_done = self.step(false).await;
            if is_done {
                tokio::select! {
                    changed = revisions.changed() => if changed.is_err() { break },
                    () = self.identity.refused.notified() => {}
                    () = stop.cancelled() => break,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(GROW_AFTER) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Signs a head with all that was written, after the last event of this process.
    pub async fn sign_last(&self) {
        let last = async { while !self.step(true).await && self.notice().is_none() {} };
        // The database may be away.
        drop(tokio::time::timeout(LAST_WITHIN, last).await);
    }

    /// Adds leaves and signs a head if it is time. Returns whether nothing remains to be done until the next commit.
    async fn step(&self, is_last: bool) -> bool {
        let done = self.advance(is_last).await;
        let (is_done, trouble) = match done {
            Ok(is_done) => (is_done, None),
            Err(trouble) => (false, Some(self.named(trouble).await)),
        };
        let mut known = lock(&self.trouble);
        if *known != trouble {
            match &trouble {
                None => {}
                Some(Trouble::Problem(cause)) => {
                    tracing::error!(cause, "the audit log is not signed");
                }
                Some(Trouble::Damaged(cause)) => tracing::error!(
                    cause,
                    "the tree of the audit log is damaged; it is neither signed nor pruned until `culvert admin rebuild-audit-tree`"
                ),
                Some(Trouble::Ended(cause)) => tracing::error!(
                    cause,
                    "the database does not continue the signed audit log: an older copy was restored, a fail-over lost commits, or it was written again; nothing is signed until `culvert admin acknowledge-restore`"
                ),
            }
            *known = trouble;
        }
        is_done
    }

    /// The same trouble, or the damage that causes it, which is reported.
    async fn named(&self, trouble: Trouble) -> Trouble {
        let Trouble::Problem(cause) = trouble else {
            return trouble;
        };
        if !matches!(self.store.audit_log().is_tree_damaged().await, Ok(true)) {
            return Trouble::Problem(cause);
        }
        match self.server_log.tree_damaged(&self.identity.node).await {
            Ok(()) => Trouble::Damaged(cause),
            Err(fault) => fault.into(),
        }
    }

    async fn advance(&self, is_last: bool) -> Result<bool, Trouble> {
        let now = self.clock.now();
        match is_last {
            true => self.store.grow_audit_tree().await?,
            false => {
                self.store
                    .follow_audit_log(&self.identity.node, now)
                    .await?
            }
        };
        let log = self.store.audit_log();
        let tree = log.tree().await?;
        let is_whole = log.extent().await?.head.seq <= tree.last();
        let n_signed = tree.signed.as_ref().map_or(0, SignedHead::size);
        let has_news = tree.size > n_signed;
        let is_due = has_news
            && tree.signed.as_ref().is_none_or(|head| {
                // A head from the future was signed with a wrong clock.
                is_last || now >= head.at.plus(SIGN_EVERY) || head.at > now.plus(SIGN_EVERY)
            });
        if !is_due && self.is_checked(&tree) {
            return Ok(is_whole && !has_news);
        }
        let (key, file) = self.key(&tree)?;
        let known = [
            file.clone(),
            tree.signed.clone().map(|head| head.checkpoint),
        ];
        // Read before what they said, which then has the answer of each.
        let is_asked = is_due && self.are_witnesses_asked();
        let origin = self.origin_to_continue(&log, &tree, &key, file).await?;
        if !is_due {
            return Ok(is_whole && !has_news);
        }
        if !is_asked {
            // At the stop, the next start signs.
            return Ok(is_last);
        }
        let mut known = Vec::from_iter(known.into_iter().flatten());
        known.retain(|head| head.checkpoint().origin == origin);
        let is_signed = self.sign(&log, &tree, &key, &origin, &known).await?;
        Ok(is_whole && is_signed)
    }

    /// Whether it is known that the log continues the stored head, and no witness says otherwise since.
    fn is_checked(&self, tree: &AuditTree) -> bool {
        let origin = tree
            .signed
            .as_ref()
            .map(|head| &head.checkpoint.checkpoint().origin);
        let is_refused =
            |it: &Arc<WitnessClient>| origin.is_some_and(|origin| it.refused(origin).is_some());
        *lock(&self.checked) == Some(stored_text(tree)) && !self.witnesses.iter().any(is_refused)
    }

    /// Whether each witness said what it knows, or does not answer. One that is away delays the first head only, and by no
    /// more than the requests to it take.
    fn are_witnesses_asked(&self) -> bool {
        let waits_since = self.waits_since.get_or_init(Instant::now);
        let mut witnesses = self.witnesses.iter();
        witnesses.all(|it| it.is_asked()) || waits_since.elapsed() > FIRST_WITHIN
    }

    /// The origin to sign with: the one of the last head that is known. Notes a head of another node.
    async fn origin_to_continue(
        &self,
        log: &AuditLog,
        tree: &AuditTree,
        key: &SigningKey,
        file: Option<SignedCheckpoint>,
    ) -> Result<String, Trouble> {
        let stored = tree.signed.as_ref().map(|head| &head.checkpoint);
        let known = heads::latest(file.as_ref(), stored);
        // Without a head, witnesses may know one nevertheless.
        let name = key.verifier().name();
        let origin = known.map_or(name, |known| &known.checkpoint().origin);
        let is_later = continuation(origin).1 > stored.map_or(0, continuation_of);
        let by_key =
            |head: &SignedCheckpoint| matches!(head.note().signed_by(key.verifier()), Ok(Some(_)));
        if is_later && !known.is_none_or(by_key) {
            let shown = self.identity.head_file.display();
            return Err(Trouble::Problem(format!(
                "`{shown}` names the continuation `{origin}` and has no signature of the key"
            )));
        }
        if continuation(origin).0 != name {
            let shown = self.identity.head_file.display();
            return Err(Trouble::Problem(format!(
                "`{shown}` is of the log `{origin}`, and the key is another one's; remove the file if the log is new"
            )));
        }
        let stored = stored.filter(|it| it.checkpoint().origin == *origin);
        for head in [known, stored].into_iter().flatten() {
            if !heads::is_continued(log, tree, head).await? {
                return Err(self.end(tree, origin, head.checkpoint().size, false).await);
            }
        }
        self.heed_witnesses(tree, origin).await?;
        let mut ended = self.server_log.ended_origins().await?.into_iter();
        if let Some(ended) = ended.find(|ended| heads::ends(ended, origin)) {
            let cause = format!("`{ended}` ended, as another node or an earlier start noticed");
            return Err(Trouble::Ended(cause));
        }
        let file = file.as_ref().map(SignedCheckpoint::checkpoint);
        let file = file.filter(|file| file.origin == *origin);
        if let Some(stored) = stored
            && file.is_none_or(|file| file.size < stored.checkpoint().size)
        {
            self.note(stored.clone()).await?;
            if file.is_none() {
                // Witnesses are not asked about this origin yet.
                self.signed.send_replace(stored.checkpoint().size);
            }
        }
        *lock(&self.checked) = Some(stored_text(tree));
        Ok(origin.to_owned())
    }

    /// Ends the origin that a witness has evidence against: this one, or a later one.
    async fn heed_witnesses(&self, tree: &AuditTree, origin: &str) -> Result<(), Trouble> {
        let shown = self.witnesses.iter().filter_map(|it| it.refused(origin));
        match shown.max_by_key(|head| (continuation(&head.origin).1, head.size)) {
            Some(head) => Err(self.end(tree, &head.origin, head.size, true).await),
            None => Ok(()),
        }
    }

    /// Ends the heads of an origin, on all nodes.
    async fn end(&self, tree: &AuditTree, origin: &str, size: u64, is_of_witness: bool) -> Trouble {
        let lost = LostHead {
            origin: origin.to_owned(),
            position: tree.base.saturating_add_unsigned(size),
            is_of_witness,
        };
        let known_by = match is_of_witness {
            true => "a witness",
            false => "this node or the database",
        };
        match self.server_log.end_origin(&self.identity.node, &lost).await {
            Ok(()) => Trouble::Ended(format!(
                "{known_by} knows a head of `{origin}` with {size} events that the log does not continue"
            )),
            Err(fault) => fault.into(),
        }
    }

    /// Signs the head of this tree, which has to extend these heads. False if the head before it got another signature
    /// meanwhile, or another node signed.
    async fn sign(
        &self,
        log: &AuditLog,
        tree: &AuditTree,
        key: &SigningKey,
        origin: &str,
        known: &[SignedCheckpoint],
    ) -> Result<bool, Trouble> {
        let after = heads::signed(log, tree, key, origin, self.clock.now()).await?;
        for old in known.iter().map(SignedCheckpoint::checkpoint) {
            if !heads::is_extended(log, old, after.checkpoint.checkpoint()).await? {
                return Err(self.end(tree, origin, old.size, false).await);
            }
        }
        // One may have answered meanwhile.
        self.heed_witnesses(tree, origin).await?;
        // First the file: a head that was published must be known after a loss of the database.
        self.note(after.checkpoint.clone()).await?;
        let is_signed = self
            .store
            .sign_audit_tree(tree.signed.as_ref(), after)
            .await?;
        if is_signed {
            self.signed.send_replace(tree.size);
        }
        Ok(is_signed)
    }

    /// Writes the file of the last head.
    async fn note(&self, head: SignedCheckpoint) -> Result<(), Trouble> {
        let path = self.identity.head_file.clone();
        let written = tokio::task::spawn_blocking(move || audit_head::store(&path, &head)).await;
        let problem = |error: &dyn std::fmt::Display| Trouble::Problem(format!("{error:#}"));
        written
            .map_err(|error| problem(&error))?
            .map_err(|error| problem(&error))
    }

    /// The key, and the head of the file. Both are read again each time: another program may replace them. The first head
    /// makes the key.
    fn key(
        &self,
        tree: &AuditTree,
    ) -> Result<(Arc<SigningKey>, Option<SignedCheckpoint>), Trouble> {
        let problem = |error: anyhow::Error| Trouble::Problem(format!("{error:#}"));
        let LogIdentity {
            key,
            head_file,
            origin,
            ..
        } = &*self.identity;
        let shown = key.shown();
        let file = audit_head::load(head_file).map_err(problem)?;
        let key = match (key.load().map_err(problem)?, &tree.signed) {
            (Some(key), None) => key,
            (Some(key), Some(head)) if head.checkpoint.is_signed_last_by(key.verifier()) => key,
            (Some(_), Some(_)) => {
                return Err(Trouble::Problem(format!(
                    "{shown} is not the key that signed the latest head; use the key of the node that signed it"
                )));
            }
            (None, None) if file.is_none() => {
                let file = key.file().map_err(problem)?;
                let made = audit_key::make(file, origin, &*self.entropy).map_err(problem)?;
                // Witnesses have something to be asked about.
                self.signed.send_modify(|_| ());
                Arc::new(made)
            }
            (None, _) => {
                return Err(Trouble::Problem(format!(
                    "{shown} is missing; copy it from another node or a backup"
                )));
            }
        };
        Ok((key, file))
    }
}

fn continuation_of(head: &SignedCheckpoint) -> u64 {
    continuation(&head.checkpoint().origin).1
}

fn stored_text(tree: &AuditTree) -> String {
    let head = tree.signed.as_ref();
    head.map_or(String::new(), |head| head.checkpoint.to_string())
}
