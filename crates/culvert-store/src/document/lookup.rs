//! Reads documents by id, as every authenticated call does.
//!
//! Concurrent requests are combined into one statement, so they share the switch to the driver's
//! thread or the round trip to the server. A read starts after its request, so it sees every commit
//! that returned before. Nothing is cached.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_base::Fault;
use tokio::sync::{mpsc, oneshot, watch};

use crate::database::dialect::{Access, Arg, Connection, Site, While};
use crate::database::statements::{GET_MANY, state};
use crate::document::Document;

/// Passes lookups to the reading tasks.
#[derive(Debug)]
pub(crate) struct Lookup {
    tasks: Vec<mpsc::Sender<LookupRequest>>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct LookupRequest {
    id: String,
    answer: oneshot::Sender<Result<Option<Document>, Fault>>,
}

impl Lookup {
    /// A lookup and its tasks, which run until `closing`.
    pub(crate) fn new(
        site: &Site,
        closing: &watch::Receiver<bool>,
    ) -> (Self, Vec<impl Future<Output = ()> + Send + use<>>) {
        let mut senders = Vec::new();
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            // If the channel is full, callers wait until their deadline.
            let (sender, requests) = mpsc::channel(REQUESTS_MAX);
            senders.push(sender);
            tasks.push(run(site.clone(), requests, closing.clone()));
        }
        let lookup = Self {
            tasks: senders,
            next: AtomicUsize::new(0),
        };
        (lookup, tasks)
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Option<Document>, Fault> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.tasks.len();
        let closed = || Fault::bare("reading a document: the store is closed");
        let task = self.tasks.get(turn).ok_or_else(closed)?;
        let read = async {
            let (answer, outcome) = oneshot::channel();
            let request = LookupRequest {
                id: id.to_owned(),
                answer,
            };
            task.send(request).await.map_err(|_| closed())?;
            outcome.await.map_err(|_| closed())?
        };
        tokio::time::timeout(READ_TIMEOUT, read)
            .await
            .unwrap_or_else(|_| {
                let why = "reading a document: no response from the database in time";
                Err(Fault::bare(why).passing())
            })
    }
}

async fn run(
    site: Site,
    mut requests: mpsc::Receiver<LookupRequest>,
    mut closing: watch::Receiver<bool>,
) {
    let mut connection: Option<Connection> = None;
    let mut group = Vec::with_capacity(GROUP_MAX);
    loop {
        tokio::select! {
            n = requests.recv_many(&mut group, GROUP_MAX) => if n == 0 { break },
            _ = closing.wait_for(|closing| *closing) => break,
        }
        group.retain(|one| !one.answer.is_closed());
        // The server may have closed an idle connection. Repeating a read is harmless.
        let mut found = Err(Fault::bare("reading a document"));
        let as_is = site.read_as_is().await;
        for _ in 0..2 {
            let open = match connection.take().filter(|open| site.is_current(open)) {
                Some(open) => Ok(open),
                None => site
                    .connect(Access::Read)
                    .await
                    .during("reading a document"),
            };
            found = match open {
                Ok(mut open) => {
                    match tokio::time::timeout(READ_TIMEOUT, read(&site, &mut open, &group)).await {
                        Ok(Ok(found)) => {
                            connection = Some(open);
                            Ok(found)
                        }
                        Ok(Err(error)) => {
                            site.judge(&error);
                            Err(error).during("reading a document")
                        }
                        Err(late) => Err(Fault::new("reading a document", late).passing()),
                    }
                }
                Err(fault) => Err(fault),
            };
            if found.is_ok() {
                break;
            }
        }
        if as_is.is_some()
            && let Some(connection) = connection.take()
        {
            connection.close().await;
        }
        drop(as_is);
        answer(&mut group, found);
    }
    if let Some(connection) = connection {
        connection.close().await;
    }
}

async fn read(
    site: &Site,
    connection: &mut Connection,
    group: &[LookupRequest],
) -> Result<HashMap<String, Document>, sqlx::Error> {
    let mut ids: Vec<&str> = group.iter().map(|one| one.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let rows = match ids.as_slice() {
        [] => Vec::new(),
        [id] => connection.rows(state::GET, &[Arg::Text(id)]).await?,
        ids => {
            let list =
                serde_json::to_string(ids).map_err(|error| sqlx::Error::Encode(error.into()))?;
            connection
                .rows(site.spell(GET_MANY), &[Arg::Text(&list)])
                .await?
        }
    };
    rows.iter()
        .map(|row| Document::read(row).map(|document| (document.head.id.clone(), document)))
        .collect()
}

fn answer(group: &mut Vec<LookupRequest>, found: Result<HashMap<String, Document>, Fault>) {
    for one in group.drain(..) {
        let outcome = match &found {
            Ok(documents) => Ok(documents.get(&one.id).cloned()),
            Err(fault) => Err(fault.copy()),
        };
        // Fails if the caller no longer waits.
        drop(one.answer.send(outcome));
    }
}

/// Number of tasks; each holds one connection.
pub(crate) const TASKS: usize = 2;
const REQUESTS_MAX: usize = 1024;
const GROUP_MAX: usize = 64;
const READ_TIMEOUT: Duration = Duration::from_secs(5);
