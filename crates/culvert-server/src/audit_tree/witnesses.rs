//! Asks the witnesses of the settings to sign each head of the audit log (C2SP `tlog-witness`), one task for each, so that
//! one that is away delays nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::Fault;
use culvert_base::sync::lock;
use culvert_delivery::Net;
use culvert_installation::config::Witness;
use culvert_store::{SignedHead, Store};
use culvert_tlog::{
    ADD_CHECKPOINT_PATH, AddCheckpoint, SignatureLine, SignedCheckpoint, VerifierKey,
    consistency_ranges,
};
use http::HeaderMap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a witness may take.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The pause after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Requests for one head: one for the size that the witness knows, and one with the proof from there.
const REQUESTS_MAX: usize = 3;
/// Heads that may follow while a signature is stored.
const STORES_MAX: usize = 5;

/// Asks one witness.
#[derive(Debug)]
pub(crate) struct WitnessClient {
    pub(crate) store: Store,
    pub(crate) net: Net,
    pub(crate) witness: Witness,
    quorum: Arc<Quorum>,
    /// Origin and size of the last head that it signed, as far as this process knows.
    known: Mutex<(String, u64)>,
    /// Whether it was asked once, with or without an answer.
    is_asked: AtomicBool,
    /// The origin that it refuses, and the size that it knows.
    refused: Mutex<Option<(String, u64)>>,
    /// What the witness says against the log, or why it does not answer.
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Good,
    /// It does not answer as a witness does.
    Away(String),
    /// It knows another history, of this origin, with this number of events.
    Refuses(String, u64),
}

/// How many witnesses have to have signed a head until it is published.
#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) keys: Vec<VerifierKey>,
    pub(crate) n: usize,
}

impl Quorum {
    fn is_reached(&self, head: &SignedCheckpoint) -> bool {
        let signed = |key: &&VerifierKey| matches!(head.note().signed_by(key), Ok(Some(_)));
        self.keys.iter().filter(signed).count() >= self.n
    }
}

impl WitnessClient {
    pub(crate) fn new(store: Store, net: Net, witness: Witness, quorum: Arc<Quorum>) -> Self {
        Self {
            store,
            net,
            witness,
            quorum,
            known: Mutex::default(),
            is_asked: AtomicBool::new(false),
            refused: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Whether it was asked once since the start, with or without an answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// The number of events in the head that it knows, if it refuses those of this origin.
    pub(crate) fn refused(&self, origin: &str) -> Option<u64> {
        let refused = lock(&self.refused);
        let refused = refused.as_ref().filter(|(refused, _)| refused == origin);
        refused.map(|(_, size)| *size)
    }

    /// What an operator should know; `None` if the witness signs.
    pub(crate) fn notice(&self) -> Option<&'static str> {
        match *lock(&self.state) {
            State::Good => None,
            State::Away(_) => Some("a witness does not answer"),
            State::Refuses(..) => Some("a witness knows another history of it"),
        }
    }

    /// Runs until the stop. Asks at the start, and for each head that this node signs.
    pub(crate) async fn run(
        self: Arc<Self>,
        mut signed: watch::Receiver<u64>,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            signed.mark_unchanged();
            let asked = tokio::select! {
                asked = self.ask() => asked,
                () = stop.cancelled() => return,
            };
            let state = asked.err().unwrap_or_default();
            let is_good = state == State::Good;
            self.note(state);
            self.is_asked.store(true, Ordering::Release);
            tokio::select! {
                changed = signed.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(AGAIN_AFTER), if !is_good => {}
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
        if let State::Refuses(origin, size) = &state {
            *lock(&self.refused) = Some((origin.clone(), *size));
        }
        match &state {
            State::Good => tracing::info!(witness, "a witness signs the heads of the audit log"),
            State::Away(why) => tracing::warn!(witness, cause = why, "a witness does not answer"),
            State::Refuses(origin, size) => tracing::error!(
                witness,
                origin,
                size,
                "a witness signed a head of that size and refuses the audit log: it was rewritten, or an older copy was restored"
            ),
        }
        *known = state;
    }

    /// Asks for a signature of the latest head, unless it has one. The first request is sent nevertheless: a witness that
    /// signed a later head says so.
    async fn ask(&self) -> Result<(), State> {
        let store = |fault: Fault| State::Away(fault.chain());
        let log = self.store.audit_log();
        let latest = async || Ok::<_, State>(log.tree().await.map_err(store)?.signed);
        let Some(mut head) = latest().await? else {
            return Ok(());
        };
        if self.is_signed(&head) && self.is_asked() {
            return Ok(());
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
                head = newer.ok_or_else(|| State::Refuses(origin.clone(), old))?;
            }
            let proof = consistency_ranges(old, head.size());
            let proof = proof.map_err(|_| State::Refuses(origin.clone(), old))?;
            let request = AddCheckpoint {
                old,
                proof: log.range_hashes(&proof).await.map_err(store)?,
                signed: head.checkpoint.clone(),
            };
            let answer = self.post(request.to_string()).await?;
            match answer.status {
                200 => return self.keep(&head, &answer.text).await,
                404 => {
                    return Err(State::Away(format!(
                        "it does not know the log `{origin}`; add it there"
                    )));
                }
                409 => {
                    let size = answer.text.trim_end().parse::<u64>();
                    old = size.map_err(|_| State::Away("its answer has no size".to_owned()))?;
                }
                422 => return Err(State::Refuses(origin, old)),
                status => return Err(State::Away(format!("it answered with status {status}"))),
            }
        }
        Err(State::Away("it names another size each time".to_owned()))
    }

    fn is_signed(&self, head: &SignedHead) -> bool {
        let signed = head.checkpoint.note().signed_by(&self.witness.key);
        matches!(signed, Ok(Some(_)))
    }

    async fn post(&self, body: String) -> Result<culvert_delivery::net::HttpResponse, State> {
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
