//! Asks the witnesses of the settings to sign each head of the audit log (C2SP `tlog-witness`), one task for each, so that
//! one that is away delays nothing.
//!
//! A refusal has no signature, so it ends nothing. A witness that shows the head that it knows,
//! as ours do below the digest of the origin, proves with it what it says: the log itself signed that head.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::Fault;
use culvert_base::sync::lock;
use culvert_installation::config::Witness;
use culvert_store::{SignedHead, Store};
use culvert_target::Net;
use culvert_target::net::HttpResponse;
use culvert_tlog::{
    ADD_CHECKPOINT_PATH, AddCheckpoint, Checkpoint, SignatureLine, SignedCheckpoint, VerifierKey,
    consistency_ranges, continuation, continued, origin_digest,
};
use futures_util::future::join_all;
use http::HeaderMap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{LogIdentity, heads};

/// How long a witness may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The pause after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The pause while the log has neither a key nor a head.
const KEY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The states of a witness in metrics.
pub const STANDINGS: [&str; 4] = ["good", "away", "unproven", "refuses"];
/// Requests for one head: one for the size that the witness knows, and one with the proof from there.
const REQUESTS_MAX: u32 = 3;
/// How long the first question may take: these requests, and one for the head that the witness shows.
pub(crate) const FIRST_WITHIN: Duration = ANSWER_WITHIN.saturating_mul(REQUESTS_MAX + 1);
/// How many continuations after the one of the database a witness is asked for.
const LATER_MAX: u64 = 8;
/// Heads that may follow while a signature is stored.
const STORES_MAX: usize = 5;

/// Asks one witness.
#[derive(Debug)]
pub struct WitnessClient {
    store: Store,
    net: Net,
    witness: Witness,
    identity: Arc<LogIdentity>,
    quorum: Arc<Quorum>,
    /// Origin and size of the last head that it signed, as far as this process knows.
    known: Mutex<(String, u64)>,
    /// Whether it was asked once, with or without an answer.
    is_asked: AtomicBool,
    /// The origin whose later continuations it was asked for.
    later_asked: Mutex<String>,
    /// A head of the log that it showed and that the log does not continue.
    evidence: Mutex<Option<SignedCheckpoint>>,
    /// What the witness says against the log, or why it does not answer.
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Good,
    /// It does not answer as a witness does.
    Away(String),
    /// It says that it knows another history, and shows no head that proves it.
    Unproven(String),
    /// It knows another history, with this head, which a key of the log signed.
    Refuses(Box<SignedCheckpoint>),
}

/// How many witnesses have to have signed a head until it is published.
#[derive(Debug)]
pub struct Quorum {
    /// The keys of the witnesses.
    pub keys: Vec<VerifierKey>,
    /// How many of them.
    pub n: usize,
}

impl Quorum {
    fn is_reached(&self, head: &SignedCheckpoint) -> bool {
        let signed = |key: &&VerifierKey| matches!(head.note().signed_by(key), Ok(Some(_)));
        self.keys.iter().filter(signed).count() >= self.n
    }
}

impl WitnessClient {
    /// The client of one witness.
    pub fn new(
        store: Store,
        net: Net,
        witness: Witness,
        (identity, quorum): (Arc<LogIdentity>, Arc<Quorum>),
    ) -> Self {
        Self {
            store,
            net,
            witness,
            identity,
            quorum,
            known: Mutex::default(),
            is_asked: AtomicBool::new(false),
            later_asked: Mutex::default(),
            evidence: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Whether it was asked once since the start, with or without an answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// A signed head that it showed and that ends this origin: the log does not continue it, or it is of a later continuation.
    pub(crate) fn refused(&self, origin: &str) -> Option<Checkpoint> {
        let head = self.kept_evidence(origin);
        head.map(|head| head.checkpoint().clone())
    }

    fn kept_evidence(&self, origin: &str) -> Option<SignedCheckpoint> {
        let evidence = lock(&self.evidence);
        let head = evidence.as_ref();
        head.filter(|head| heads::ends(&head.checkpoint().origin, origin))
            .cloned()
    }

    /// What an operator should know; `None` if the witness signs.
    pub fn notice(&self) -> Option<&'static str> {
        match *lock(&self.state) {
            State::Good => None,
            State::Away(_) => Some("a witness does not answer"),
            State::Unproven(_) => Some("a witness fails: it refuses the log and proves nothing"),
            State::Refuses(..) => Some("a witness knows another history of it"),
        }
    }

    /// The name of the witness, and its state for metrics.
    pub fn standing(&self) -> (&str, &'static str) {
        let [good, away, unproven, refuses] = STANDINGS;
        let state = match *lock(&self.state) {
            State::Good => good,
            State::Away(_) => away,
            State::Unproven(_) => unproven,
            State::Refuses(..) => refuses,
        };
        (self.witness.key.name(), state)
    }

    /// Runs until the stop. Asks at the start, and for each head that this node signs.
    pub async fn run(self: Arc<Self>, mut signed: watch::Receiver<u64>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            signed.mark_unchanged();
            let asked = tokio::select! {
                asked = self.ask() => asked,
                () = stop.cancelled() => return,
            };
            let again_after = match &asked {
                Ok(true) => None,
                Ok(false) => Some(KEY_AGAIN_AFTER),
                Err(_) => Some(AGAIN_AFTER),
            };
            let is_asked = asked != Ok(false);
            self.note(asked.err().unwrap_or_default());
            self.is_asked.fetch_or(is_asked, Ordering::AcqRel);
            tokio::select! {
                changed = signed.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(again_after.unwrap_or_default()), if again_after.is_some() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    fn note(&self, state: State) {
        let mut known = lock(&self.state);
        if *known == state {
            return;
        }
        let witness = self.witness.key.name();
        match &state {
            State::Good => tracing::info!(witness, "a witness signs the heads of the audit log"),
            State::Away(why) => tracing::warn!(witness, cause = why, "a witness does not answer"),
            State::Unproven(why) => tracing::warn!(
                witness,
                cause = why,
                "a witness refuses the audit log and shows no head of it that the log does not continue; it counts as away"
            ),
            State::Refuses(head) => {
                tracing::error!(
                    witness,
                    head = %head,
                    "a witness has a signed head of the audit log that the log does not continue: it was rewritten, or an older copy was restored"
                );
                *lock(&self.evidence) = Some(SignedCheckpoint::clone(head));
                self.identity.refused.notify_one();
            }
        }
        *known = state;
    }

    /// Asks for a signature of the latest head, and once for heads of later continuations. What it proved against this origin
    /// stays. Returns whether there was something to ask for.
    async fn ask(&self) -> Result<bool, State> {
        let away = |error: anyhow::Error| State::Away(format!("{error:#}"));
        let tree = self.store.audit_log().tree().await;
        let tree = tree.map_err(|fault| State::Away(fault.chain()))?;
        let origin = match tree.signed {
            Some(head) => head.checkpoint.checkpoint().origin.clone(),
            None => match self.identity.known_origin().map_err(away)? {
                Some(origin) => origin,
                None => return Ok(false),
            },
        };
        if let Some(head) = self.kept_evidence(&origin) {
            return Err(State::Refuses(Box::new(head)));
        }
        // At the same time, so that one that does not answer delays the first head once.
        let (asked, later) = tokio::join!(self.ask_for_latest(), self.later(&origin));
        match later? {
            Some(head) => Err(State::Refuses(Box::new(head))),
            None => asked,
        }
    }

    /// The last head that the witness shows of a later continuation than the database has. A key of this log signed it, so an
    /// administrator acknowledged the end of this origin, and an older copy was restored since.
    async fn later(&self, origin: &str) -> Result<Option<SignedCheckpoint>, State> {
        if *lock(&self.later_asked) == origin {
            return Ok(None);
        }
        let keys = self.identity.own_keys();
        let keys = keys.map_err(|error| State::Away(format!("{error:#}")))?;
        let (name, n) = continuation(origin);
        let later = (1..=LATER_MAX).map(|i| continued(name, n.saturating_add(i)));
        let later = Vec::from_iter(later);
        let shown = join_all(later.iter().map(|origin| self.shown(origin))).await;
        let is_answered = shown.iter().all(Result::is_ok);
        let shown = shown.into_iter().zip(&later).rev();
        let last = shown.into_iter().find_map(|(head, origin)| {
            let head = head.ok().flatten();
            head.filter(|head| heads::is_own(head, origin, &keys))
        });
        if let Some(last) = last {
            // Read after the answer: an administrator may have continued the log meanwhile.
            let tree = self.store.audit_log().tree().await;
            let stored = tree.map_err(|fault| State::Away(fault.chain()))?.signed;
            let is_known = stored.is_some_and(|stored| {
                let stored = &stored.checkpoint.checkpoint().origin;
                continuation(stored).1 >= continuation(&last.checkpoint().origin).1
            });
            return Ok((!is_known).then_some(last));
        }
        if is_answered {
            origin.clone_into(&mut lock(&self.later_asked));
        }
        Ok(None)
    }

    /// Asks for a signature of the latest head, unless it has one. The first request is sent nevertheless: a witness that
    /// signed a later head says so. Returns whether there was something to ask for.
    async fn ask_for_latest(&self) -> Result<bool, State> {
        let store = |fault: Fault| State::Away(fault.chain());
        let log = self.store.audit_log();
        let latest = async || Ok::<_, State>(log.tree().await.map_err(store)?.signed);
        let Some(mut head) = latest().await? else {
            return self.ask_for_any().await;
        };
        if self.is_signed(&head) && self.is_asked() {
            return Ok(true);
        }
        let origin = head.checkpoint.checkpoint().origin.clone();
        // At the start, the answer names the size that the witness knows.
        let mut old = match &*lock(&self.known) {
            (known, size) if *known == origin => *size,
            _ => 0,
        };
        for _ in 0..REQUESTS_MAX {
            if old > head.size() {
                // Another node may have signed since.
                let newer = latest().await?;
                let newer = newer
                    .filter(|it| it.size() >= old && it.checkpoint.checkpoint().origin == origin);
                let Some(newer) = newer else {
                    return Err(self.conflict(&origin, "it names a later head").await);
                };
                head = newer;
            }
            let Ok(proof) = consistency_ranges(old, head.size()) else {
                return Err(self.conflict(&origin, "it names no head of the log").await);
            };
            let request = AddCheckpoint {
                old,
                proof: log.range_hashes(&proof).await.map_err(store)?,
                signed: head.checkpoint.clone(),
            };
            let answer = self.post(request.to_string()).await?;
            match answer.status {
                200 => return self.keep(&head, &answer.text).await.map(|()| true),
                404 => {
                    return Err(State::Away(format!(
                        "it does not know the log `{origin}`; add it there"
                    )));
                }
                409 => {
                    let size = answer.text.trim_end().parse::<u64>();
                    old = size.map_err(|_| State::Away("its answer has no size".to_owned()))?;
                }
                422 => return Err(self.conflict(&origin, "it refuses the proof").await),
                status => return Err(State::Away(format!("it answered with status {status}"))),
            }
        }
        Err(self
            .conflict(&origin, "it names another size each time")
            .await)
    }

    /// Without a stored head, asks for the head that the witness knows: the database may have been exchanged. A log without
    /// a key has no heads anywhere. Returns whether there was something to ask for.
    async fn ask_for_any(&self) -> Result<bool, State> {
        if self.is_asked() {
            return Ok(true);
        }
        let away = |error: anyhow::Error| State::Away(format!("{error:#}"));
        let Some(origin) = self.identity.known_origin().map_err(away)? else {
            return Ok(false);
        };
        match self.evidence(&origin).await? {
            Some(head) => Err(State::Refuses(Box::new(head))),
            None => Ok(true),
        }
    }

    /// The state of a witness that says this about the log.
    async fn conflict(&self, origin: &str, said: &str) -> State {
        match self.evidence(origin).await {
            Ok(Some(head)) => State::Refuses(Box::new(head)),
            Ok(None) => State::Unproven(said.to_owned()),
            Err(State::Away(why)) => {
                State::Unproven(format!("{said}, and its head cannot be read: {why}"))
            }
            Err(state) => state,
        }
    }

    /// The head of this origin that the witness shows, if a key of this log signed it and the log does not continue it.
    async fn evidence(&self, origin: &str) -> Result<Option<SignedCheckpoint>, State> {
        let Some(shown) = self.shown(origin).await? else {
            return Ok(None);
        };
        let keys = self.identity.own_keys();
        let keys = keys.map_err(|error| State::Away(format!("{error:#}")))?;
        if !heads::is_own(&shown, origin, &keys) {
            return Ok(None);
        }
        // Read after the answer: the stored tree has all heads that any node published before.
        let log = self.store.audit_log();
        let continued = async {
            let tree = log.tree().await?;
            heads::is_begun_by(&log, &tree, &shown).await
        };
        let is_continued = continued.await;
        let is_continued = is_continued.map_err(|fault| State::Away(fault.chain()))?;
        Ok((!is_continued).then_some(shown))
    }

    /// The head of this origin that the witness shows. The protocol has no such request; ours show it, and others may.
    async fn shown(&self, origin: &str) -> Result<Option<SignedCheckpoint>, State> {
        let url = format!("{}/{}/checkpoint", self.witness.url, origin_digest(origin));
        let url = self.net.checked(&url);
        let url = url.map_err(|denied| State::Away(denied.to_string()))?;
        let shown = self.net.http().get(&url, ANSWER_WITHIN).await;
        let shown = shown.map_err(|failure| State::Away(failure.text))?;
        let is_found = shown.status == 200;
        let head = is_found.then(|| SignedCheckpoint::parse(&shown.body).ok());
        Ok(head.flatten())
    }

    fn is_signed(&self, head: &SignedHead) -> bool {
        let signed = head.checkpoint.note().signed_by(&self.witness.key);
        matches!(signed, Ok(Some(_)))
    }

    async fn post(&self, body: String) -> Result<HttpResponse, State> {
        let url = format!("{}{ADD_CHECKPOINT_PATH}", self.witness.url);
        let url = self.net.checked(&url);
        let url = url.map_err(|denied| State::Away(denied.to_string()))?;
        // Heads are seconds apart at least, so a new connection costs nothing that counts.
        let http = self.net.http();
        let posted = http.post(&url, HeaderMap::new(), body.into(), ANSWER_WITHIN);
        posted.await.map_err(|failure| State::Away(failure.text))
    }

    /// Adds the signature to the stored head, if that is still the one that was signed.
    async fn keep(&self, head: &SignedHead, answer: &str) -> Result<(), State> {
        let text = head.checkpoint.note().text();
        let key = &self.witness.key;
        let lines = answer
            .lines()
            .filter_map(|line| line.parse::<SignatureLine>().ok());
        let line = lines
            .into_iter()
            .find(|line| line.cosigned_at(text, key).is_some())
            .ok_or_else(|| State::Away("its answer has no signature of its key".to_owned()))?;
        let origin = head.checkpoint.checkpoint().origin.clone();
        *lock(&self.known) = (origin, head.size());
        let store = |fault: Fault| State::Away(fault.chain());
        for _ in 0..STORES_MAX {
            let stored = self.store.audit_log().tree().await.map_err(store)?.signed;
            let Some(stored) = stored.filter(|it| it.checkpoint.note().text() == text) else {
                return Ok(());
            };
            let Some(checkpoint) = stored.checkpoint.with(std::slice::from_ref(&line)) else {
                return Err(State::Away("the head has too many signatures".to_owned()));
            };
            let after = SignedHead {
                at: stored.at,
                checkpoint,
            };
            let kept = match self.quorum.is_reached(&after.checkpoint) {
                true => self.store.cosign_audit_tree(&stored, after).await,
                false => self.store.sign_audit_tree(Some(&stored), after).await,
            };
            // Another witness may have signed meanwhile.
            if kept.map_err(store)? {
                return Ok(());
            }
        }
        Ok(())
    }
}
