//! An edge with one endpoint for `benches/instructions`: no API, and an event of each request that is filtered and
//! written to memory, or retained in a database. So it is built in minutes, and what it does is the path of a request.
//!
//! `serve UPSTREAM HOST [threads=N]` serves `http://HOST` and `https://HOST` until its input ends, with one thread if it
//! names no number. It prints both addresses. With `captured` at the end, it writes events. With `kept FOLDER`, it has a
//! server's recorder, which retains events for 24 hours in a database in that folder, and no subscription.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for measurements: its caller reads what it prints, and sees its panics"
)]

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{OsEntropy, SystemClock};
use culvert_delivery::Delivery;
use culvert_edge::{Edge, Endpoint, EndpointBinding, Settings, Snapshot, Timeouts, Upstream};
use culvert_events::{
    Capture, EventIds, EventKind, Filter, HTTP_REQUEST_COMPLETE, Record, Recorder, Selection,
    encode,
};
use culvert_policy::Scheme;
use culvert_store::{Queue, Store, StoreUrl, Texts};
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Where the written events start again.
const EVENT_BYTES_MAX: usize = 512 << 10;

/// Filters and writes events, as the recorder of a server does.
#[derive(Debug)]
struct Writer {
    is_on: bool,
    filter: Filter,
    selection: Selection,
    written: Mutex<(EventIds, Vec<u8>)>,
}

impl Recorder for Writer {
    fn capture(&self, kind: &'static EventKind) -> Capture {
        match self.is_on && *kind == HTTP_REQUEST_COMPLETE {
            true => Capture::usual(kind),
            false => Capture::NONE,
        }
    }

    fn offer(&self, record: Record) {
        if !self.filter.matches(&record).unwrap() {
            return;
        }
        let (ids, out) = &mut *self.written.lock().unwrap();
        if out.len() > EVENT_BYTES_MAX {
            out.clear();
        }
        let id = ids.next(record.at());
        let truncated = encode::event(&record, &self.selection, &id, out);
        assert!(!truncated.headers && !truncated.url);
    }
}

fn endpoint(scheme: Scheme, port: u16, host: &HostName, upstream: &str) -> Endpoint {
    Endpoint {
        id: "ep_1".into(),
        account: "ac_1".into(),
        owner: "usr_1".into(),
        scheme,
        binding: EndpointBinding::Public,
        host: host.clone(),
        port,
        upstream: Some(Upstream::parse(upstream, "").unwrap()),
        upstreams: None,
        policy: None,
        merge_slashes: true,
        timeouts: Timeouts::default(),
        in_flight: None,
        maintenance: None,
    }
}

fn certificate(host: &HostName) -> Arc<CertifiedKey> {
    let made = rcgen::generate_simple_self_signed([host.to_string()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key))
}

fn writer(is_on: bool) -> Writer {
    Writer {
        is_on,
        filter: Filter::compile(&HTTP_REQUEST_COMPLETE, "ev.conn.server_port > 0").unwrap(),
        selection: Selection::usual(&HTTP_REQUEST_COMPLETE),
        written: Mutex::new((EventIds::new(Arc::new(OsEntropy)), Vec::new())),
    }
}

/// What a server delivers and retains events with, as by default but without a subscription.
async fn keeper(folder: &Path) -> Arc<Delivery> {
    let url = StoreUrl::Sqlite(folder.join("state.db"));
    let clock = || Arc::new(SystemClock);
    let store = Store::open(&url, clock(), Texts::default()).await.unwrap();
    let queue = Queue::open(&url, clock()).await.unwrap();
    let settings = culvert_delivery::Settings {
        traffic_retention: Duration::from_secs(24 * 3600),
        ..culvert_delivery::Settings::default()
    };
    let delivery = Delivery::new(settings, queue, store, clock(), Arc::new(OsEntropy));
    delivery.apply(culvert_delivery::TableChange::default());
    delivery
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [upstream, host, rest @ ..] = &words[..] else {
        // `cargo test` and `cargo bench` start it without arguments.
        println!("usage: serve UPSTREAM HOST [threads=N] [captured | kept FOLDER]");
        return;
    };
    if upstream.starts_with('-') {
        return;
    }
    let host = HostName::parse(host).unwrap();
    let (threads, rest) = match rest.first().and_then(|word| word.strip_prefix("threads=")) {
        Some(threads) => (threads.parse().unwrap(), &rest[1..]),
        None => (1, rest),
    };
    let settings = Settings {
        http_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
        https_addr: Some((Ipv4Addr::LOCALHOST, 0).into()),
        threads,
        ..Settings::default()
    };
    let snapshot = Snapshot::builder()
        .endpoint(endpoint(Scheme::Http, 80, &host, upstream))
        .endpoint(endpoint(Scheme::Https, 443, &host, upstream))
        .certificate([host.clone()], certificate(&host))
        .build();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let cancel = CancellationToken::new();
    let ended = cancel.clone();
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        ended.cancel();
    });
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let recorder: Arc<dyn Recorder> = match rest[..] {
            ["kept", folder] => {
                let delivery = keeper(Path::new(folder)).await;
                tasks.spawn(delivery.clone().run(cancel.clone()));
                delivery.recorder()
            }
            ["captured"] => Arc::new(writer(true)),
            _ => Arc::new(writer(false)),
        };
        let edge = Edge::bind(settings, recorder, Arc::new(SystemClock));
        let edge = edge.await.unwrap();
        edge.publish(snapshot).await;
        println!("{}", edge.http_addr().unwrap());
        println!("{}", edge.https_addr().unwrap());
        edge.run(cancel).await;
        tasks.join_all().await;
    });
}
