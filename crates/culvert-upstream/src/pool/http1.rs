//! HTTP/1 connections of a pool: leased to one exchange each, kept while idle, handed over to waiting requests.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use culvert_http::http1::FinalHead;
use culvert_io::{Pipe, threads};
use http::response;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use super::addresses::NOT_COMPARED;
use super::{Pool, SHARDS, UpstreamError};
use crate::connector::Connector;
use crate::http1_client::{Http1Client, Http1ClientError, ReuseState};
use crate::ports::{PoolOwner, UploadBody, UpstreamHead};
use crate::stream::UpstreamStream;
use crate::upstream::Upstream;

/// How often in a row a connection passes directly to the next waiting request. After that its stream ends,
/// so that requests for other endpoints of the same agent get their turn.
const HANDOVERS_MAX: u8 = 64;
/// How long connections are not reused after an upstream sent more than was requested.
const DISTRUSTED_FOR: Duration = Duration::from_secs(60);

/// One HTTP/1 connection.
#[derive(Debug)]
pub(super) struct Http1<B> {
    pub(super) connection: Http1Client<B>,
    has_served: bool,
    received: Arc<AtomicU64>,
    /// When a sweep first saw it idle. Nothing reads the clock for each request.
    pub(super) idle_since: Option<Instant>,
    /// Number of handovers since it was last idle.
    handovers: u8,
    /// Whether it is closed after the exchange.
    closes: bool,
    /// The address it leads to; `None` for agents.
    pub(super) peer: Option<IpAddr>,
    /// The addresses of the name that the peer was compared with.
    pub(super) generation: u64,
    _counted: Arc<()>,
}

/// An HTTP/1 connection leased to one exchange.
#[derive(Debug)]
pub struct Lease<B> {
    link: Box<Http1<B>>,
    pool: Arc<Pool<B>>,
}

/// The result of sending a request.
#[derive(Debug)]
pub enum SendResult {
    /// A response arrived.
    Responded(FinalHead),
    /// The connection was already closed and nothing was received, so the request can be sent again.
    Stale,
    /// The exchange failed.
    Failed(Http1ClientError, Received),
}

/// Whether anything was received before an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// No byte.
    Nothing,
    /// A part of a response.
    Something,
}

impl<B: UploadBody> Pool<B> {
    /// An open connection that has served before, if there is one.
    pub fn reuse(self: &Arc<Self>, cx: &mut Context<'_>) -> Option<Lease<B>> {
        for shard in self.shards() {
            while let Some(mut link) = shard.try_lock().ok().and_then(|mut idle| idle.pop()) {
                // Events that happened while it was idle show now.
                if link.connection.wire().resume()
                    && self.is_current(&mut link)
                    && self.is_free(&mut link, cx)
                {
                    return Some(Lease {
                        link,
                        pool: Arc::clone(self),
                    });
                }
            }
        }
        None
    }

    /// Opens a new connection within `limit`.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to.
    pub async fn connect(
        self: &Arc<Self>,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<Lease<B>, UpstreamError> {
        let wire = self
            .dial(connector, limit)
            .await
            .map_err(UpstreamError::Dial)?;
        Ok(self.lease(wire))
    }

    /// As [`Pool::connect`], but if agents have no capacity, waits until one has, or until another request
    /// hands over its connection.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to.
    pub async fn connect_in_turn(
        self: &Arc<Self>,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<Lease<B>, UpstreamError> {
        let waiting = Waiting::enter(self);
        let mut dialled = pin!(self.dial_in_turn(connector, limit));
        loop {
            let mut link = tokio::select! {
                biased;
                wire = &mut dialled => return Ok(self.lease(wire.map_err(UpstreamError::Dial)?)),
                link = waiting.0.handover.next() => link,
            };
            if poll_fn(|cx| Poll::Ready(self.is_free(&mut link, cx))).await {
                return Ok(Lease {
                    link,
                    pool: Arc::clone(self),
                });
            }
        }
    }

    fn lease(self: &Arc<Self>, wire: UpstreamStream) -> Lease<B> {
        let peer = wire.peer();
        let link = Box::new(Http1 {
            has_served: false,
            received: wire.received(),
            connection: Http1Client::new(wire),
            idle_since: None,
            handovers: 0,
            closes: false,
            peer,
            generation: NOT_COMPARED,
            _counted: Arc::clone(&self.addresses.connections),
        });
        Lease {
            link,
            pool: Arc::clone(self),
        }
    }

    /// The shards that this thread uses.
    fn shards(&self) -> impl Iterator<Item = &Mutex<Vec<Box<Http1<B>>>>> {
        let looks_at = if threads::is_current() { 1 } else { SHARDS };
        let order = self.idle.iter().cycle().skip(shard());
        order.take(looks_at)
    }

    /// Whether a connection can be used for a request now.
    pub(super) fn is_free(&self, link: &mut Http1<B>, cx: &mut Context<'_>) -> bool {
        let idle = link.connection.idle(cx);
        self.note(idle);
        idle == ReuseState::Free && !self.is_distrusted()
    }

    /// Whether an upstream has recently sent more than was requested. Its connections carry one request each, because
    /// the next client could get what belongs to another.
    fn is_distrusted(&self) -> bool {
        // Nothing reads the clock for each request.
        match self.excess_at.load(Ordering::Relaxed).checked_sub(1) {
            Some(at) => self.created.elapsed() < Duration::from_millis(at) + DISTRUSTED_FOR,
            None => false,
        }
    }

    fn note(&self, idle: ReuseState) {
        if idle != ReuseState::Excess {
            return;
        }
        if !self.is_distrusted() {
            let upstream = self.upstream();
            tracing::warn!(%upstream, "the upstream sent more than a response; its connections are not reused for a minute");
        }
        let at = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.excess_at
            .store(at.saturating_add(1), Ordering::Relaxed);
    }

    /// Keeps a connection for later requests, if it is reusable.
    fn keep(&self, mut link: Box<Http1<B>>) {
        let connection = &mut link.connection;
        let idle = connection.known_idle();
        self.note(idle);
        if idle == ReuseState::Free && !self.is_distrusted() && connection.wire().set_idle() {
            self.put(link);
        } else if connection.is_over() {
            connection.wire().end();
        }
    }

    fn put(&self, mut link: Box<Http1<B>>) {
        link.idle_since = None;
        link.handovers = 0;
        for shard in self.shards() {
            if let Ok(mut idle) = shard.try_lock() {
                if idle.len() < self.idle_max.load(Ordering::Relaxed) {
                    idle.push(link);
                }
                return;
            }
        }
    }
}

/// A request that waits for a connection of a pool.
struct Waiting<'a, B: UploadBody>(&'a Pool<B>);

impl<'a, B: UploadBody> Waiting<'a, B> {
    fn enter(pool: &'a Pool<B>) -> Self {
        pool.handover.enter();
        Self(pool)
    }
}

impl<B: UploadBody> Drop for Waiting<'_, B> {
    fn drop(&mut self) {
        for link in self.0.handover.leave() {
            self.0.keep(link);
        }
    }
}

/// The first shard that this thread tries.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SHARD.with(|shard| match shard.get() {
        Some(number) => number,
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shard.set(Some(number));
            number
        }
    })
}

impl<B: UploadBody> Lease<B> {
    /// Sends a request and waits for the head of its response. Interim responses go to `inform`.
    pub async fn send(
        &mut self,
        head: &impl UpstreamHead,
        body: B,
        mut inform: impl FnMut(response::Parts),
    ) -> SendResult {
        let link = &mut *self.link;
        let before = link.received.load(Ordering::Relaxed);
        let was_reused = std::mem::replace(&mut link.has_served, true);
        let connection = &mut link.connection;
        connection.start(head, body);
        let head = poll_fn(|cx| connection.poll_head(cx, &mut inform)).await;
        let is_silent = link.received.load(Ordering::Relaxed) == before;
        match head {
            Ok(head) => SendResult::Responded(head),
            Err(Http1ClientError::Io(_) | Http1ClientError::Ended) if was_reused && is_silent => {
                SendResult::Stale
            }
            Err(error) if is_silent => SendResult::Failed(error, Received::Nothing),
            Err(error) => SendResult::Failed(error, Received::Something),
        }
    }

    /// The next frame of the response's body.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Http1ClientError>>> {
        self.link.connection.poll_frame(cx)
    }

    /// Bytes of the response's body that the kernel can move to another socket: all that are missing, if nothing else is
    /// to be done with the connection meanwhile. 0 if there are none.
    pub fn movable(&self) -> u64 {
        self.link.connection.movable()
    }

    /// Moves some of these bytes into an empty pipe. 0 means that the connection has ended.
    pub fn poll_move(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        self.link.connection.poll_move(cx, pipe)
    }

    /// Whether the response's body has been read completely.
    pub fn is_spent(&self) -> bool {
        self.link.connection.is_spent()
    }

    /// The remaining size of the response's body.
    pub fn size_hint(&self) -> SizeHint {
        self.link.connection.size_hint()
    }

    /// Closes the connection after this exchange, whatever it could still carry.
    pub fn close_after(&mut self) {
        self.link.closes = true;
    }

    /// Where the connection leads.
    pub fn upstream(&self) -> &Upstream {
        self.pool.upstream()
    }

    /// Gives the connection to another pool of its upstream after this exchange.
    pub fn move_to(&mut self, pool: impl FnOnce(&Upstream) -> Arc<Pool<B>>) {
        self.pool = pool(self.pool.upstream());
    }

    /// Ends a complete exchange and keeps the connection if it is reusable. A later lease checks whether it
    /// is still open.
    pub fn give_back(self) {
        let Self { mut link, pool } = self;
        if link.closes || !pool.is_current(&mut link) {
            if link.connection.is_over() {
                link.connection.wire().end();
            }
            return;
        }
        let is_complete = link.connection.is_complete() && !pool.is_distrusted();
        if is_complete && link.handovers < HANDOVERS_MAX {
            link.handovers += 1;
            match pool.handover.give(link) {
                Some(own) => link = own,
                None => return,
            }
        }
        pool.keep(link);
    }

    /// Whether the connection has served an earlier request.
    pub fn was_used(&self) -> bool {
        self.link.has_served
    }

    /// The raw connection after an upgrade, and the bytes received after the 101.
    pub fn into_upgraded(self) -> (UpstreamStream, Bytes) {
        self.link.connection.into_wire()
    }
}

#[cfg(test)]
mod tests;
