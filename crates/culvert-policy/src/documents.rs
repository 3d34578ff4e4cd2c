//! Remote documents that policies need, such as the certificates of signers. They are fetched on first use and
//! cached.
//!
//! A fetch connects where its dialer may connect, follows no redirect, and has limits on time and size. A caller
//! must check a URL that a client has supplied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use culvert_http::coding;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::Url;

use crate::services::{Call, Cause, Fetch, FetchScope};

/// Most cached documents.
const DOCUMENTS_MAX: u64 = 256;
/// Largest document, in bytes.
const BYTES_MAX: usize = 64 << 10;
/// How long a document is cached.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// Most concurrent fetches; further ones fail.
const FETCHES_MAX: usize = 16;
/// Time limit of a fetch, from the name's lookup to the last byte.
pub const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// A document younger than this is not fetched again.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// The cached documents, by URL.
#[derive(Debug)]
pub struct Documents {
    kept: Cache<String, CachedDocument>,
    /// Whether the cache accepts no more documents.
    is_frozen: AtomicBool,
    fetches: Semaphore,
}

#[derive(Clone, Debug)]
struct CachedDocument {
    document: Bytes,
    since: Instant,
}

/// Why a document is unavailable.
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

    /// The document at an `https` URL. Concurrent calls for one document share a fetch.
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

    /// Sets whether the cache accepts no more documents; others are then fetched each time.
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

    /// Removes a document from the cache, unless it is recent. The next use fetches it.
    pub async fn expire(&self, url: &str) {
        let kept = self.kept.get(url).await;
        if kept.is_some_and(|kept| kept.since.elapsed() >= FRESH_FOR) {
            self.kept.invalidate(url).await;
        }
    }

    /// Puts a document into the cache.
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
    Ok(coding::decode(&head.headers, body, BYTES_MAX)?)
}
