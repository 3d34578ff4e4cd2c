//! Documents that policies need from elsewhere, such as the certificates of signers: fetched when
//! first asked for, and kept for a while.
//!
//! A fetch goes where its dialer goes, follows no redirect, and has a limit on everything. Who asks
//! names no address of a stranger's making without having judged it first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::Url;

use crate::upstream::{Cause, Dialer, answer};

/// Documents that are kept.
const DOCUMENTS_MAX: u64 = 256;
/// Bytes of one.
const BYTES_MAX: usize = 64 << 10;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Fetches at once; who comes later goes without.
const FETCHES_MAX: usize = 16;
/// From the name's lookup to the last byte.
pub(crate) const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// A document younger than this is not fetched anew, whoever wants it fresh.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// The documents that are here, by their address.
#[derive(Debug)]
pub(crate) struct Documents {
    kept: Cache<String, Kept>,
    /// Whether no more are to be kept than there are.
    is_frozen: AtomicBool,
    fetches: Semaphore,
}

#[derive(Clone, Debug)]
struct Kept {
    document: Bytes,
    since: Instant,
}

/// Why a document is not to be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("fetching {host}: {why}")]
pub(crate) struct NotFetched {
    host: String,
    why: String,
}

impl Documents {
    pub(crate) fn new() -> Self {
        Self {
            kept: Cache::builder()
                .max_capacity(DOCUMENTS_MAX)
                .time_to_live(KEPT_FOR)
                .build(),
            is_frozen: AtomicBool::new(false),
            fetches: Semaphore::new(FETCHES_MAX),
        }
    }

    /// The document at an `https` address. Those who ask for the same at once share a fetch.
    pub(crate) async fn get(&self, dialer: &Dialer, url: &Url) -> Result<Bytes, Arc<NotFetched>> {
        if self.is_frozen.load(Ordering::Relaxed) && !self.kept.contains_key(url.as_str()) {
            let fetched = self.fetch(dialer, url).await;
            return fetched.map(|fetched| fetched.document).map_err(Arc::new);
        }
        let fetched = self.fetch(dialer, url);
        let fetched = self.kept.try_get_with_by_ref(url.as_str(), fetched);
        fetched.await.map(|kept| kept.document)
    }

    /// Says whether no more are to be kept than there are: others are fetched each time.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    async fn fetch(&self, dialer: &Dialer, url: &Url) -> Result<Kept, NotFetched> {
        let fetch = async {
            let _turn = self.fetches.try_acquire()?;
            fetch(dialer, url).await
        };
        let fetched = match tokio::time::timeout(FETCH_WITHIN, fetch).await {
            Ok(fetched) => fetched,
            Err(_) => Err("it timed out".into()),
        };
        let kept = |document| Kept {
            document,
            since: Instant::now(),
        };
        fetched.map(kept).map_err(|why| NotFetched {
            host: url.host_str().unwrap_or_default().to_owned(),
            why: why.to_string(),
        })
    }

    /// Forgets a document, so that it is fetched when it is asked for next; not one that was fetched
    /// a moment ago.
    pub(crate) async fn expire(&self, url: &str) {
        let kept = self.kept.get(url).await;
        if kept.is_some_and(|kept| kept.since.elapsed() >= FRESH_FOR) {
            self.kept.invalidate(url).await;
        }
    }

    /// Puts a document here as if it had been fetched.
    #[cfg(test)]
    pub(crate) async fn put(&self, url: &str, document: Bytes) {
        let kept = Kept {
            document,
            since: Instant::now(),
        };
        self.kept.insert(url.to_owned(), kept).await;
    }
}

async fn fetch(dialer: &Dialer, url: &Url) -> Result<Bytes, Cause> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let answer = answer(dialer, Method::GET, url, headers, Bytes::new(), BYTES_MAX);
    let (head, body) = answer.await?;
    if head.status != StatusCode::OK {
        return Err(format!("it returned status {}", head.status).into());
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::tests::harness::{Client, Turns, certificate};
    use crate::upstream::Reach;

    #[tokio::test]
    async fn a_document_is_fetched_once_and_within_limits() {
        let (_, key, root) = certificate(&["localhost"]);
        let acceptor = TlsAcceptor::from(Arc::clone(
            &culvert_tls::server_certificate::Presented::plain(key)
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
        let reach = Reach::new(true, &[]);
        let dialer = Dialer::new(&[root], Duration::from_secs(5), reach).unwrap();
        let documents = Documents::new();
        let get = async |dialer: &Dialer, path: &str| {
            let url = Url::parse(&format!("https://localhost:{port}{path}")).unwrap();
            let got = documents.get(dialer, &url).await;
            got.map(|document| document.len())
                .map_err(|error| error.to_string())
        };

        let both = tokio::join!(get(&dialer, "/a.pem?b"), get(&dialer, "/a.pem?b"));
        assert_eq!(both, (Ok(3), Ok(3)));
        assert_eq!(asked.get(), 1);
        assert_eq!(get(&dialer, "/longest").await, Ok(BYTES_MAX));
        for path in ["/longer", "/moved", "/nothing"] {
            let error = get(&dialer, path).await.unwrap_err();
            assert!(error.starts_with("fetching localhost: "), "{error}");
        }
        // What failed is tried again.
        let before = asked.get();
        assert!(get(&dialer, "/nothing").await.is_err());
        assert_eq!(asked.get(), before + 1);

        // What is here stays, but nothing is added.
        documents.freeze(true);
        let (before, document) = (asked.get(), get(&dialer, "/a.pem?b").await);
        assert_eq!((document, asked.get()), (Ok(3), before));
        documents.kept.invalidate_all();
        for count in 1..3 {
            let document = get(&dialer, "/a.pem?b").await;
            assert_eq!((document, asked.get()), (Ok(3), before + count));
        }
        documents.freeze(false);
        for _ in 0..2 {
            let document = get(&dialer, "/a.pem?b").await;
            assert_eq!((document, asked.get()), (Ok(3), before + 3));
        }

        let before = asked.get();
        let error = get(&dialer.to_public([]), "/else").await.unwrap_err();
        assert!(error.contains("private"), "{error}");
        assert_eq!(asked.get(), before);
    }
}
