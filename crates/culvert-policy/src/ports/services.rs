//! Services that all policies of an edge share, with their ports to the network and to the runtime.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Clock, Entropy, FairPermits, Meter, Share};
use culvert_events::bodies::BodyBudget;
use culvert_http::coding;
use http::header::HeaderMap;
use http::{Method, response};
use url::Url;

use crate::rate_limit::shared_counts::SharedCounts;
use crate::token::documents::{Documents, NotFetched};
use culvert_ip_data::IpDatabases;

/// Most concurrent requests of policies. One endpoint gets at most half of them.
pub const CALLS_MAX: usize = 512;
/// Default limit of a response's body, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Services that all policies of an edge share.
#[derive(Debug)]
pub struct PolicyServices {
    /// The clock of decisions and records.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// IP data of the operator's files.
    pub ip_data: IpDatabases,
    /// Counts of rate limits with `scope: cluster`.
    pub counts: SharedCounts,
    /// Documents that were fetched for policies.
    pub documents: Documents,
    /// The region of this node.
    pub region: String,
    /// Permits for requests of policies.
    pub calls: FairPermits,
    /// Counters.
    pub meters: Arc<PolicyMeters>,
    /// The memory for captured messages; `None` if they are not stored.
    pub bodies: Option<Arc<BodyBudget>>,
    /// Sends requests.
    pub network: Arc<dyn Fetch>,
    /// Runs tasks that outlive a request.
    pub tasks: Box<dyn Spawn>,
    /// Whether the edge serves from a copy of the configuration, without what the database and other nodes know: sessions
    /// that ended, and shared counts. Actions that need it refuse.
    pub is_from_copy: bool,
}

/// The counters of policies.
#[derive(Debug, Default)]
pub struct PolicyMeters {
    /// Expressions of traffic policies that failed, and header fields they could not make.
    pub failures: Meter,
    /// Requests and connections that were rejected because a rule could not be decided.
    pub refusals: Meter,
    /// Completed sign-ins.
    pub logins: Meter,
}

/// The addresses that a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FetchScope {
    /// Those of upstreams.
    Upstreams,
    /// Public addresses, except those where this process listens: for URLs from third parties.
    Public,
}

/// A request that a policy makes.
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
    /// The whole response, whose body may have at most `bytes_max` bytes. The lookup of its name is in the share of the
    /// owner. Follows no redirect and sets no
    /// timeout.
    fn fetch(
        &self,
        share: Share,
        scope: FetchScope,
        call: Call,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<(response::Parts, Bytes), Cause>>;
}

/// Runs tasks that outlive the request that started them.
pub trait Spawn: Send + Sync + fmt::Debug {
    /// Runs a task to its end. A panic ends only this task.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

impl PolicyServices {
    /// The document at an `https` URL, from the cache or the network.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub async fn document(
        &self,
        share: Share,
        scope: FetchScope,
        url: &Url,
    ) -> Result<Bytes, Arc<NotFetched>> {
        let documents = &self.documents;
        documents
            .get(&self.network, &*self.tasks, share, scope, url)
            .await
    }

    /// The same for a user who needs more than the cached document has.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub async fn newer_document(
        &self,
        share: Share,
        scope: FetchScope,
        url: &Url,
    ) -> Result<Bytes, Arc<NotFetched>> {
        let documents = &self.documents;
        documents
            .get_newer(&self.network, &*self.tasks, share, scope, url)
            .await
    }

    /// One request to a service that the operator or a policy names, and its response, whose body is decoded.
    ///
    /// # Errors
    ///
    /// When there is no response.
    pub async fn call(&self, share: Share, call: Call) -> Result<(response::Parts, Bytes), Cause> {
        let response = self
            .network
            .fetch(share, FetchScope::Upstreams, call, RESPONSE_BYTES_MAX);
        let (head, body) = response.await?;
        let body = coding::decode(&head.headers, body, RESPONSE_BYTES_MAX)?;
        Ok((head, body))
    }
}
