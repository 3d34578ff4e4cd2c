//! Asks the witnesses of the settings to sign each head of the audit log (C2SP `tlog-witness`), one task for each, so that
//! one that is away delays nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::Fault;
use culvert_base::sync::lock;
use culvert_delivery::Net;
use culvert_installation::config::Witness;
use culvert_store::{SignedHead, Store};
use culvert_tlog::{ADD_CHECKPOINT_PATH, AddCheckpoint, SignatureLine, consistency_ranges};
use http::HeaderMap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a witness may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
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
    /// The size of the last head that it signed; 0 at the start.
    known: AtomicU64,
    /// What the witness says against the log, or why it does not answer.
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Good,
    /// It does not answer as a witness does.
    Away(String),
    /// It knows another history.
    Refuses(String),
}

impl WitnessClient {
    pub(crate) fn new(store: Store, net: Net, witness: Witness) -> Self {
        Self {
            store,
            net,
            witness,
            known: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// What an operator should know; `None` if the witness signs.
    pub(crate) fn notice(&self) -> Option<&'static str> {
        match *lock(&self.state) {
            State::Good => None,
            State::Away(_) => Some("a witness does not answer"),
            State::Refuses(_) => Some("a witness knows another history of it"),
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
        match &state {
            State::Good => tracing::info!(witness, "a witness signs the heads of the audit log"),
            State::Away(why) => tracing::warn!(witness, cause = why, "a witness does not answer"),
            State::Refuses(why) => tracing::error!(
                witness,
                cause = why,
                "a witness refuses the audit log: it was rewritten, or an older copy was restored"
            ),
        }
        *known = state;
    }

    /// Asks for a signature of the latest head, unless it has one.
    async fn ask(&self) -> Result<(), State> {
        let store = |fault: Fault| State::Away(fault.chain());
        let log = self.store.audit_log();
        let Some(head) = log.tree().await.map_err(store)?.signed else {
            return Ok(());
        };
        if matches!(
            head.checkpoint.note().signed_by(&self.witness.key),
            Ok(Some(_))
        ) {
            return Ok(());
        }
        // At the start, the answer names the size that the witness knows.
        let mut old = self.known.load(Ordering::Relaxed).min(head.size());
        for _ in 0..REQUESTS_MAX {
            let proof = consistency_ranges(old, head.size()).map_err(|_| ahead(old, &head))?;
            let request = AddCheckpoint {
                old,
                proof: log.range_hashes(&proof).await.map_err(store)?,
                signed: head.checkpoint.clone(),
            };
            let answer = self.post(request.to_string()).await?;
            match answer.status {
                200 => return self.keep(&head, &answer.text).await,
                409 => {
                    let size = answer.text.trim_end().parse::<u64>();
                    old = size.map_err(|_| State::Away("its answer has no size".to_owned()))?;
                }
                422 => {
                    let why = format!(
                        "the head of {} events does not extend the one that it signed",
                        head.size()
                    );
                    return Err(State::Refuses(why));
                }
                status => return Err(State::Away(format!("it answered with status {status}"))),
            }
        }
        Err(State::Away("it names another size each time".to_owned()))
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
        self.known.store(head.size(), Ordering::Relaxed);
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
            let kept = self.store.sign_audit_tree(Some(&stored), after).await;
            // Another witness may have signed meanwhile.
            if kept.map_err(store)? {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn ahead(known: u64, head: &SignedHead) -> State {
    State::Refuses(format!(
        "it signed a head of {known} events, and this log has {}",
        head.size()
    ))
}
