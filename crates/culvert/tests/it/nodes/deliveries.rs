//! A node that dies while it delivers: which batches are repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert::client::Client;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::process_beside;
use crate::events_arrive::subscribe;
use crate::harness::{Harness, Receiver, cluster, eventually};

/// Takes batches slowly, and sees whether one is delivered twice at the same time.
#[derive(Default)]
struct Watch {
    /// Ids by request, in the order of their ends.
    batches: Vec<BTreeSet<String>>,
    in_flight: BTreeMap<String, usize>,
    at_once: usize,
}

/// Ids that a request carries, for as long as it lasts.
struct Carried(Arc<Mutex<Watch>>, BTreeSet<String>);

impl Carried {
    fn of(watch: &Arc<Mutex<Watch>>, ids: BTreeSet<String>) -> Self {
        let mut seen = watch.lock().unwrap();
        for id in &ids {
            let n = seen.in_flight.entry(id.clone()).or_default();
            *n += 1;
            if *n > 1 {
                seen.at_once += 1;
            }
        }
        drop(seen);
        Self(Arc::clone(watch), ids)
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let mut seen = self.0.lock().unwrap();
        for id in &self.1 {
            if let Some(n) = seen.in_flight.get_mut(id) {
                *n -= 1;
            }
        }
        seen.batches.push(std::mem::take(&mut self.1));
    }
}

async fn take(
    request: Request<Incoming>,
    watch: Arc<Mutex<Watch>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let Ok(body) = request.into_body().collect().await else {
        return Ok(Response::new(Full::new(Bytes::new())));
    };
    let events = match serde_json::from_slice(&body.to_bytes()).unwrap() {
        Value::Array(batch) => batch,
        one => vec![one],
    };
    let id = |event: &Value| event["object"]["id"].as_str().unwrap().to_owned();
    let carried = Carried::of(&watch, events.iter().map(id).collect());
    // Long enough for a kill to find one of them on its way.
    tokio::time::sleep(Duration::from_millis(40)).await;
    drop(carried);
    Ok(Response::new(Full::new(Bytes::new())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_repeats_at_most_one_batch() {
    let Some(backend) = cluster(2).await else {
        return;
    };
    let stays = Harness::start(&backend).await;
    let folder = tempfile::tempdir().unwrap();
    let dies = process_beside(&stays, folder.path());
    let watch: Arc<Mutex<Watch>> = Arc::default();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut hook = Receiver::start().await;
    hook.address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let seen = Arc::clone(&watch);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            connections.spawn(async move {
                let service = service_fn(move |request| take(request, Arc::clone(&seen)));
                let served = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                drop(served.await);
            });
        }
    });
    let doomed = Client::new(&dies.api, stays.token.clone()).unwrap();
    subscribe(&doomed, &hook, json!([{"type": "api_key_created.v0"}])).await;

    let mut writers = JoinSet::new();
    for client in [doomed, stays.client.clone()] {
        for _ in 0..2 {
            writers.spawn(make_keys(client.clone(), 120));
        }
    }
    let n_taken = || watch.lock().unwrap().batches.len();
    eventually("batches are under way", async || n_taken() > 8).await;
    dies.kill();
    let made: BTreeSet<String> = writers.join_all().await.into_iter().flatten().collect();
    // A batch that the dead one held is free again when its lease is over.
    let deadline = Instant::now() + Duration::from_secs(180);
    let missing = || {
        let seen = watch.lock().unwrap();
        let reported: BTreeSet<&String> = seen.batches.iter().flatten().collect();
        made.iter().filter(|id| !reported.contains(id)).count()
    };
    while missing() > 0 {
        assert!(
            Instant::now() < deadline,
            "{} were never reported",
            missing()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (batches, at_once) = {
        let seen = watch.lock().unwrap();
        (seen.batches.clone(), seen.at_once)
    };
    assert_eq!(at_once, 0, "no batch was with two nodes at once");
    let mut times: BTreeMap<&String, usize> = BTreeMap::new();
    for id in batches.iter().flatten() {
        *times.entry(id).or_default() += 1;
    }
    let repeated: BTreeSet<String> = times
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .map(|(id, _)| id.clone())
        .collect();
    let is_of_one = |batch: &BTreeSet<String>| repeated.is_subset(batch);
    assert!(batches.iter().any(is_of_one), "{repeated:?}");
    println!(
        "1 kill, {} acknowledged changes, lost 0, repeated {} of one batch, with two at once 0",
        made.len(),
        repeated.len()
    );
    stays.stop().await;
}

/// Ids of the keys that were acknowledged.
async fn make_keys(client: Client, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        match client
            .call(Method::POST, "/api_keys", Some(&json!({})))
            .await
        {
            Ok(answer) if answer.status == 201 => {
                ids.push(answer.body["id"].as_str().unwrap().to_owned());
            }
            // Its server is gone.
            Ok(_) => {}
            Err(_) => return ids,
        }
    }
    ids
}
