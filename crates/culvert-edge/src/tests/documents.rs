//! Documents that policies fetch.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Share};
use culvert_policy::documents::Documents;
use culvert_policy::services::{self, Fetch, Spawn};
use culvert_upstream::{AddressGuard, Dialer, Network};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use url::Url;

use super::harness::{Client, Turns, certificate};

/// Runs tasks on the runtime of the test.
#[derive(Debug)]
struct Tasks;

impl Spawn for Tasks {
    #[allow(
        clippy::disallowed_methods,
        reason = "the runtime of the test ends them"
    )]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }
}

/// Bytes of a document.
const BYTES_MAX: usize = 64 << 10;

#[tokio::test]
async fn a_document_is_fetched_once_and_within_limits() {
    let (_, key, root) = certificate(&["localhost"]);
    let acceptor = TlsAcceptor::from(Arc::clone(
        &culvert_tls::server_certificate::ServerCertificate::plain(key)
            .unwrap()
            .config,
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Turns::default());
    let mut tasks = JoinSet::new();
    let turns = Arc::clone(&asked);
    tasks.spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(tls) = acceptor.accept(tcp).await else {
                continue;
            };
            let mut client = Client::new(tls);
            let (head, _) = client.request().await.unwrap();
            turns.next();
            let (status, length) = match head.split(' ').nth(1).unwrap() {
                "/a.pem?b" => (200, 3),
                "/longest" => (200, BYTES_MAX),
                "/longer" => (200, BYTES_MAX + 1),
                "/moved" => (302, 3),
                _ => (404, 3),
            };
            let answer = format!(
                "HTTP/1.1 {status} \r\nlocation: /a.pem?b\r\ncontent-length: {length}\r\n\r\n{}",
                "x".repeat(length)
            );
            client.send(answer).await;
        }
    });
    let reach = AddressGuard::new(true, &[]);
    let dialer = Dialer::new(&[root], Duration::from_secs(5), reach).unwrap();
    let network: Arc<dyn Fetch> = Arc::new(Network::new(dialer, Vec::new()));
    let fetch = async |documents: &Documents, reach: services::FetchScope, path: &str| {
        let url = Url::parse(&format!("https://localhost:{port}{path}")).unwrap();
        let share = Share::of_owner("");
        let got = documents.get(&network, &Tasks, share, reach, &url).await;
        got.map(|document| document.len())
            .map_err(|error| error.to_string())
    };
    let documents = Documents::new();
    let get = async |path: &str| fetch(&documents, services::FetchScope::Upstreams, path).await;

    let both = tokio::join!(get("/a.pem?b"), get("/a.pem?b"));
    assert_eq!(both, (Ok(3), Ok(3)));
    assert_eq!(asked.get(), 1);
    assert_eq!(get("/longest").await, Ok(BYTES_MAX));
    for path in ["/longer", "/moved", "/nothing"] {
        let error = get(path).await.unwrap_err();
        assert!(error.starts_with("fetching localhost: "), "{error}");
    }
    // What failed is not fetched for each user.
    let before = asked.get();
    for _ in 0..10 {
        assert!(get("/nothing").await.is_err());
    }
    assert!(asked.get() <= before + 1);

    // Existing documents stay, and none is added.
    documents.freeze(true);
    let (before, document) = (asked.get(), get("/a.pem?b").await);
    assert_eq!((document, asked.get()), (Ok(3), before));
    let others = Documents::new();
    let get_other = async || fetch(&others, services::FetchScope::Upstreams, "/a.pem?b").await;
    others.freeze(true);
    for count in 1..3 {
        assert_eq!((get_other().await, asked.get()), (Ok(3), before + count));
    }
    others.freeze(false);
    for _ in 0..2 {
        assert_eq!((get_other().await, asked.get()), (Ok(3), before + 3));
    }

    let before = asked.get();
    let refused = fetch(&documents, services::FetchScope::Public, "/else").await;
    let error = refused.unwrap_err();
    assert!(error.contains("private"), "{error}");
    assert_eq!(asked.get(), before);
}
