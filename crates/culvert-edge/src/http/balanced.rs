//! Sends a request to one of several upstreams, and to another one if that fails.
//!
//! A request goes on to another upstream only before anything of a response, also an interim one, has gone to the client. One whose upstream could
//! not be connected to has reached no upstream, so it always may. Any other is sent again only if it has no body, its
//! method is idempotent and it asks for no other protocol, and a budget limits how many are: if everything fails, the
//! upstreams do not get a multiple of their traffic.

use std::sync::Arc;

use culvert_edge_config::{Balancing, HashKey};
use culvert_upstream::{Http1ClientError, Protocol, UpstreamError, UpstreamHead};
use http_body::Body;

use crate::balance::gate::{InFlight, NoPlace, Terms};
use crate::balance::target_set::entry::Wish;
use crate::balance::target_set::{Outcome, Tried, address_hash, hash_of};
use crate::connection::downstream::Downstream;
use crate::http::exchange::HttpExchange;
use crate::http::forward::{
    UpstreamResponse, Way, is_idempotent, over_http1, over_http2, pool_for, reason_of,
};
use crate::http::plain_head::OutgoingHead;
use crate::http::request_body::RequestBody;
use crate::http::sticky;
use crate::pools::{Attempt, TargetSet};

/// Sends a request to one of the upstreams of an endpoint, and to others if it fails and may be sent again.
pub(super) async fn send(
    targets: &Arc<TargetSet>,
    way: Way<'_>,
    exchange: &mut HttpExchange,
    head: &mut OutgoingHead<'_>,
    body: &mut RequestBody,
) -> Result<UpstreamResponse, UpstreamError> {
    let down = Arc::clone(exchange.down());
    let meters = &down.edge.state.meters;
    let retries = &targets.list().retries;
    let is_repeatable = body.is_end_stream() && is_idempotent(head.method()) && !head.is_upgrade();
    let per_try = retries.per_try_timeout.filter(|_| is_repeatable);
    targets.budget.earn();
    let mut tried = Tried::default();
    let of_client = down.known_upstream(&way.member.id, |upstream| targets.position(upstream));
    let key = key_of(&targets.list().balancing, exchange, head);
    let is_tls = down.conn.info.tls.get().is_some();
    let sticky = targets.list().sticky.as_ref();
    let kept = kept_at(targets, &down, head);
    let terms = way.member.terms(&down.edge.state);
    let pinned = of_client.or(kept);
    let mut wish = Wish { pinned, key, tried };
    down.conn.http1.set_queued(targets.is_limited());
    let entered = targets.enter(wish, terms, &mut exchange.patience).await;
    down.conn.http1.set_queued(false);
    let mut next = entered.map_err(|NoPlace| UpstreamError::Full)?;
    let mut attempts = 0;
    loop {
        let entered = next.take();
        let Some((index, place, pool)) =
            entered.and_then(|(index, place)| Some((index, place, targets.pool(index)?)))
        else {
            return Err(UpstreamError::Unacceptable("no upstream"));
        };
        attempts += 1;
        tried.add(index);
        let is_last = attempts >= retries.attempts || !targets.has_more(tried);
        let at = Attempt::new(targets, index, way.limits.connect, meters);
        let way = Way {
            // Only after the upstreams of the list.
            stand_ins: if is_last { way.stand_ins } else { &[] },
            attempt: Some(&at),
            ..way
        };
        let pool = pool_for(exchange, pool, way.member);
        exchange.opens_at(Some(place));
        let sent_before = exchange.recording.attempts();
        let attempt = async {
            match (pool.upstream().protocol(), &mut *head) {
                // Cloned, because the connection consumes it.
                (Protocol::Http2, OutgoingHead::Parts(head)) => {
                    over_http2(&pool, way, &mut *exchange, head.clone(), &mut *body).await
                }
                (_, head) => over_http1(&pool, way, &mut *exchange, head, &mut *body).await,
            }
        };
        // Whatever the client sends meanwhile does not prolong it.
        let sent = match per_try {
            Some(limit) => tokio::time::timeout(limit, attempt)
                .await
                .unwrap_or(Err(UpstreamError::TooSlow)),
            None => attempt.await,
        };
        if let Err(failure) = &sent {
            // One that took too long.
            exchange.recording.end_attempt(Err(reason_of(failure)));
        }
        let was_sent = exchange.recording.attempts() > sent_before;
        let failed = match &sent {
            // The response is that of another one.
            Ok(_) if exchange.is_at_stand_in => Failed::ToConnect,
            Ok((head, _)) if retries.statuses.has(head.status().as_u16()) => Failed::Status,
            Ok(_) => Failed::No,
            // That does not depend on the client.
            Err(UpstreamError::Dial(error)) if !was_sent && !error.is_local() => Failed::ToConnect,
            Err(UpstreamError::Dial(_)) if !was_sent => Failed::ToBegin,
            Err(_) if has_gone(exchange) => Failed::ByClient,
            Err(failure) => failure_of(failure, per_try.is_some(), was_sent),
        };
        // An upstream that ends an upload may have its reasons, which a client could bring about.
        let is_uploading = exchange.upload().is_some_and(|upload| !upload.is_over());
        let failed = match failed {
            Failed::Reset if is_uploading => Failed::Otherwise,
            failed => failed,
        };
        at.settle(failed.outcome());
        // A policy's own request has no browser.
        if failed == Failed::No && kept != Some(index) && !exchange.is_call() {
            exchange.sticky_cookie =
                sticky.and_then(|sticky| sticky::cookie(sticky, index, is_tls));
        }
        let may_go_on = match failed {
            Failed::ToConnect | Failed::ToBegin => retries.connect_failure,
            Failed::Reset => retries.reset && is_repeatable,
            Failed::Status => is_repeatable,
            Failed::No | Failed::ByClient | Failed::Otherwise => false,
        };
        if !may_go_on || is_last || exchange.has_informed || has_gone(exchange) {
            return sent;
        }
        // An upstream without a connection has no more work from a further attempt.
        let was_received = !matches!(failed, Failed::ToConnect | Failed::ToBegin);
        if was_received && !targets.budget.spend() {
            meters.upstream_moves_refused.up();
            return sent;
        }
        wish = Wish {
            pinned: None,
            key,
            tried,
        };
        next = next_of(targets, sent.is_ok(), exchange, (wish, terms)).await;
        if next.is_none() {
            return sent;
        }
        meters.upstream_moves.up();
    }
}

/// The upstream that served a client before, by its cookie, as long as it gets traffic.
fn kept_at(targets: &TargetSet, down: &Downstream, head: &OutgoingHead<'_>) -> Option<usize> {
    let sticky = targets.list().sticky.as_ref()?;
    // Plain requests are not for endpoints with this.
    let OutgoingHead::Parts(parts) = head else {
        return None;
    };
    let is_tls = down.conn.info.tls.get().is_some();
    let kept = sticky::position(sticky, &parts.extensions, is_tls)?;
    let is_used = targets.is_used(kept, &down.edge.state.meters);
    is_used.then_some(kept)
}

/// The next upstream of a request after one that failed, and its place there.
async fn next_of(
    targets: &TargetSet,
    has_response: bool,
    exchange: &mut HttpExchange,
    (wish, terms): (Wish, Terms<'_>),
) -> Option<(usize, InFlight)> {
    if has_response {
        // Rather this response than a wait for a better one.
        return targets.enter_now(wish.key, wish.tried, &terms.state.meters);
    }
    exchange.opens_at(None);
    let down = Arc::clone(exchange.down());
    down.conn.http1.set_queued(targets.is_limited());
    let entered = targets.enter(wish, terms, &mut exchange.patience).await;
    down.conn.http1.set_queued(false);
    entered.unwrap_or_default()
}

/// What decides which upstream a request gets, if it is not its turn.
fn key_of(balancing: &Balancing, exchange: &HttpExchange, head: &OutgoingHead<'_>) -> Option<u64> {
    let Balancing::Hash(key) = balancing else {
        return None;
    };
    match key {
        HashKey::ClientAddress => Some(address_hash(exchange.down().conn.info.client.ip())),
        HashKey::Header(name) => {
            let mut hash = None;
            head.each_value(name, &mut |value| {
                // Of several values, each counts.
                hash = Some(hash.unwrap_or(0_u64).rotate_left(1) ^ hash_of(value));
            });
            hash
        }
        HashKey::Cookie(name) => {
            let mut hash = None;
            head.each_value("cookie", &mut |value| {
                let found = value.split(|byte| *byte == b';').find_map(|pair| {
                    let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
                    value.strip_prefix(b"=")
                });
                hash = hash.or_else(|| found.map(hash_of));
            });
            hash
        }
    }
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed {
    /// It did not.
    No,
    /// The response has a status that counts as a failure.
    Status,
    /// The upstream cannot be connected to.
    ToConnect,
    /// This process lacked what a connection needs. Another upstream may need less, such as no lookup of a name.
    ToBegin,
    /// It closed the connection, or took too long, before the head of a response.
    Reset,
    /// The client left or sent too much or too slowly.
    ByClient,
    /// In a way that another upstream would not better, or that says nothing about this one.
    Otherwise,
}

impl Failed {
    /// What it says about the upstream.
    fn outcome(self) -> Outcome {
        match self {
            Self::No => Outcome::Good,
            Self::Status => Outcome::Bad("the response has a status that counts as a failure"),
            Self::ToConnect => Outcome::Bad("it cannot be connected to"),
            Self::Reset => Outcome::Bad("it closed the connection or took too long"),
            Self::ToBegin | Self::ByClient | Self::Otherwise => Outcome::Unknown,
        }
    }
}

/// Whether the client has ended the request.
fn has_gone(exchange: &HttpExchange) -> bool {
    exchange.down().conn.http1.broken().is_some() || exchange.is_cut() || exchange.is_over()
}

/// `was_sent` is whether it was sent on a connection before that.
fn failure_of(failure: &UpstreamError, has_try_timeout: bool, was_sent: bool) -> Failed {
    match failure {
        // An open connection closed, and there is no other: the request may be what ended the upstream.
        UpstreamError::Dial(error) if error.is_local() => Failed::Otherwise,
        UpstreamError::Dial(_) if was_sent => Failed::Reset,
        UpstreamError::Dial(_) => Failed::ToConnect,
        UpstreamError::Http1(Http1ClientError::Io(_) | Http1ClientError::Ended) => Failed::Reset,
        // All but errors of the request's body.
        UpstreamError::Http2(error) if !error.is_user() => Failed::Reset,
        // The limit of the endpoint is for the whole request.
        UpstreamError::TooSlow if has_try_timeout => Failed::Reset,
        // A reused connection that had closed, for a request that cannot be repeated, is no failure of the upstream.
        UpstreamError::Http1(_)
        | UpstreamError::Http2(_)
        | UpstreamError::Silent(_)
        | UpstreamError::Closed
        | UpstreamError::TooSlow
        | UpstreamError::ClientTooSlow
        | UpstreamError::Unsuited
        | UpstreamError::Full
        | UpstreamError::Unacceptable(_) => Failed::Otherwise,
    }
}
