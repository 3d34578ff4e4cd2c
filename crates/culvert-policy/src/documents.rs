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

use crate::services::{Call, Cause, Fetch, FetchScope};

/// Documents that are kept.
const DOCUMENTS_MAX: u64 = 256;
/// Bytes of one.
const BYTES_MAX: usize = 64 << 10;
/// How long one is kept.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Fetches at once; who comes later goes without.
const FETCHES_MAX: usize = 16;
/// From the name's lookup to the last byte.
pub const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// A document younger than this is not fetched anew, whoever wants it fresh.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// The documents that are here, by their address.
#[derive(Debug)]
pub struct Documents {
    kept: Cache<String, CachedDocument>,
    /// Whether no more are to be kept than there are.
    is_frozen: AtomicBool,
    fetches: Semaphore,
}

#[derive(Clone, Debug)]
struct CachedDocument {
    document: Bytes,
    since: Instant,
}

/// Why a document is not to be had.
#[derive(Clone, Debug, thiserror::Error)]
#[error("fetching {host}: {why}")]
pub struct NotFetched {
    host: String,
    why: String,
}

impl Default for Documents {
    fn default() -> Self {
        Self::new()
    }
}

impl Documents {
    /// An empty cache.
    pub fn new() -> Self {
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
    pub async fn get(
        &self,
        network: &dyn Fetch,
        scope: FetchScope,
        url: &Url,
    ) -> Result<Bytes, Arc<NotFetched>> {
        if self.is_frozen.load(Ordering::Relaxed) && !self.kept.contains_key(url.as_str()) {
            let fetched = self.fetch(network, scope, url).await;
            return fetched.map(|fetched| fetched.document).map_err(Arc::new);
        }
        let fetched = self.fetch(network, scope, url);
        let fetched = self.kept.try_get_with_by_ref(url.as_str(), fetched);
        fetched.await.map(|kept| kept.document)
    }

    /// Says whether no more are to be kept than there are: others are fetched each time.
    pub fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    async fn fetch(
        &self,
        network: &dyn Fetch,
        scope: FetchScope,
        url: &Url,
    ) -> Result<CachedDocument, NotFetched> {
        let fetch = async {
            let _turn = self.fetches.try_acquire()?;
            fetch(network, scope, url).await
        };
        let fetched = match tokio::time::timeout(FETCH_WITHIN, fetch).await {
            Ok(fetched) => fetched,
            Err(_) => Err("it timed out".into()),
        };
        let kept = |document| CachedDocument {
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
    pub async fn expire(&self, url: &str) {
        let kept = self.kept.get(url).await;
        if kept.is_some_and(|kept| kept.since.elapsed() >= FRESH_FOR) {
            self.kept.invalidate(url).await;
        }
    }

    /// Puts a document here as if it had been fetched.
    pub async fn put(&self, url: &str, document: Bytes) {
        let kept = CachedDocument {
            document,
            since: Instant::now(),
        };
        self.kept.insert(url.to_owned(), kept).await;
    }
}

async fn fetch(network: &dyn Fetch, scope: FetchScope, url: &Url) -> Result<Bytes, Cause> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    let call = Call {
        method: Method::GET,
        url: url.clone(),
        headers,
        body: Bytes::new(),
    };
    let (head, body) = network.fetch(scope, call, BYTES_MAX).await?;
    if head.status != StatusCode::OK {
        return Err(format!("it returned status {}", head.status).into());
    }
    Ok(body)
}
