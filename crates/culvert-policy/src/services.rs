//! What all policies of an edge share, with their ports to the network and to the runtime.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Clock, Entropy, Meter};
use http::header::HeaderMap;
use http::{Method, StatusCode, response};
use tokio::sync::Semaphore;
use url::Url;

use crate::documents::{Documents, NotFetched};
use crate::ipdata::IpDatabases;
use crate::shared_counts::SharedCounts;

/// Requests at once that policies make on their own account.
pub const CALLS_MAX: usize = 256;
/// Bytes of a response's body, where nothing else is said.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// What all policies of an edge share.
#[derive(Debug)]
pub struct PolicyServices {
    /// The clock of decisions and records.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// What the operator's files say of addresses.
    pub ip_data: IpDatabases,
    /// What rate limits of the cluster count.
    pub counts: SharedCounts,
    /// What was fetched for policies.
    pub documents: Documents,
    /// The region of this node.
    pub region: String,
    /// Requests that policies make on their own account.
    pub calls: Semaphore,
    /// Counters.
    pub meters: Arc<PolicyMeters>,
    /// Sends requests.
    pub network: Arc<dyn Fetch>,
    /// Runs tasks that outlive a request.
    pub tasks: Box<dyn Spawn>,
}

/// Everything policies count.
#[derive(Debug, Default)]
pub struct PolicyMeters {
    /// Expressions of traffic policies that failed, and header fields they could not make.
    pub failures: Meter,
    /// Users who logged in.
    pub logins: Meter,
}

/// Which addresses a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchScope {
    /// Those that upstreams may have.
    Upstreams,
    /// Public ones, and none where this process listens: for hosts that strangers name.
    Public,
}

/// A request of a policy. The fields are those that travel, but for the host.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The URL, whose host is that of the request.
    pub url: Url,
    /// Fields, without the host.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why a request has no response.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sends single requests, each on a new connection.
pub trait Fetch: Send + Sync + fmt::Debug {
    /// The whole response, whose body may have at most `bytes_max` bytes. Follows no redirect and sets no
    /// timeout.
    fn fetch(
        &self,
        scope: FetchScope,
        call: Call,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<(response::Parts, Bytes), Cause>>;
}

/// Runs tasks that outlive the request they began with.
pub trait Spawn: Send + Sync + fmt::Debug {
    /// Runs a task to its end. A panic ends it alone.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

impl PolicyServices {
    /// The document at an `https` address, fetched unless it is here.
    ///
    /// # Errors
    ///
    /// When it cannot be fetched.
    pub async fn document(&self, scope: FetchScope, url: &Url) -> Result<Bytes, Arc<NotFetched>> {
        self.documents.get(&*self.network, scope, url).await
    }

    /// One request to a service that the operator or a policy names, and its response.
    ///
    /// # Errors
    ///
    /// When there is no response.
    pub async fn call(&self, call: Call) -> Result<(StatusCode, Bytes), Cause> {
        let answer = self
            .network
            .fetch(FetchScope::Upstreams, call, RESPONSE_BYTES_MAX);
        let (head, body) = answer.await?;
        Ok((head.status, body))
    }
}
