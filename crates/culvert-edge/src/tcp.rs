//! Relays bytes in both directions: TCP endpoints, TLS passed through, upgraded connections.

use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_edge_config::{Balancing, Endpoint, HashKey, Timeouts};
use culvert_events::Reason;
use culvert_io::{CountedUpstream, MovedBytes, Pipe, Prefixed, RelayEnd, RelayLimits, run_relay};
use culvert_upstream::{DialError, UpstreamStream, refusal};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;

use crate::balance::gate::{InFlight, NoPlace, Patience};
use crate::balance::target_set::entry::Wish;
use crate::balance::target_set::{Outcome, Tried, address_hash};
use crate::connection::conn_state::ConnState;
use crate::connection::downstream::Downstream;
use crate::edge::meters::Meters;
use crate::http::forward::reason_of_dial;
use crate::http::upgrade::Tunnel;
use crate::http1::server::Http1Server;
use crate::http2::stream::Tunnelled;
use crate::pools::{Attempt, Pool};
use crate::recording::ReachedUpstream;
use crate::recording::counting::RelayCount;
use crate::snapshot::group::{Member, StandIn};
use crate::snapshot::removal::RemovalWatch;

/// Most bytes of a client that are kept until the upstream's first byte.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// The first pause before a connection that an agent refused goes to another, which doubles each time, and the time
/// limit of these attempts.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
const REFUSED_RETRY_WITHIN: Duration = Duration::from_secs(5);

/// Serves a connection that passed these TCP or TLS endpoints, from which `ahead` was read. If the upstream of the last
/// is unreachable, the other endpoints of its address are tried.
pub(crate) async fn endpoint<S>(
    mut socket: S,
    ahead: Vec<u8>,
    passed: &[Arc<Member>],
    timeouts: Timeouts,
    down: &Arc<Downstream>,
) where
    S: RelayEnd,
{
    let Some(member) = passed.last() else { return };
    // In a box, so that a connection keeps no room for it while bytes pass.
    let connecting = Box::pin(async {
        let places = enter(passed, down).await?;
        let reached = reach(ahead, member, timeouts, down).await?;
        Some((reached, places))
    });
    let Some(((mut wire, stand_in, _places), _passed_places)) = connecting.await else {
        for member in passed {
            member.counters(&down.conn.edge).unreached();
        }
        return;
    };
    let count = RelayCount::of_connection(passed, stand_in, &down.conn.edge);
    relay(&mut socket, &mut wire, timeouts, down, count).await;
}

/// Takes the places of a connection at the endpoints that it passes and that have a limit.
async fn enter(passed: &[Arc<Member>], down: &Downstream) -> Option<Vec<InFlight>> {
    let mut entered = Vec::new();
    for member in passed {
        let Some(places) = &member.places else {
            continue;
        };
        let terms = member.terms(&down.edge.state);
        let place = places.enter_in_turn(terms, &mut Patience::default()).await;
        entered.push(place_or_end(place, down)?);
    }
    Some(entered)
}

/// Notes why a connection ends that gets no place.
fn place_or_end<P>(entered: Result<P, NoPlace>, down: &Downstream) -> Option<P> {
    let noted = entered.map_err(|NoPlace| down.conn.end_for(Reason::UpstreamFull));
    noted.ok()
}

/// Connects to an upstream of an endpoint or of a stand-in, and sends the bytes that were already read from the client.
async fn reach<'m>(
    ahead: Vec<u8>,
    member: &'m Member,
    timeouts: Timeouts,
    down: &'m Arc<Downstream>,
) -> Option<(RetryingUpstream, Option<&'m StandIn>, Vec<InFlight>)> {
    let limits = DialLimits {
        connect: timeouts.connect.unwrap_or(down.conn.rules.limits.connect),
        write: timeouts.write.unwrap_or(down.conn.rules.limits.write_stall),
    };
    member.wait_for_agent(down.edge.agents()).await;
    let mut places = Places::new(
        member,
        down.conn.info.client.ip(),
        limits,
        &down.edge.state.meters,
    );
    if let Some(targets) = &member.targets {
        let wish = Wish {
            key: places.key,
            ..Wish::default()
        };
        let terms = member.terms(&down.edge.state);
        let entered = targets.enter(wish, terms, &mut Patience::default()).await;
        places.entered = place_or_end(entered, down)?;
    }
    let (wire, place) = connected(&mut places, &member.endpoint, limits, down).await?;
    if places.count > 1 && member.targets.is_some() {
        down.edge.state.meters.upstream_moves.up();
    }
    let (stand_in, held) = match place {
        Place::Only => (None, Vec::new()),
        Place::Listed(_, in_flight) => (None, vec![in_flight]),
        Place::StandIn(stand_in, in_flight) => (Some(stand_in), in_flight),
    };
    let mut wire = match member.is_agents() {
        true => RetryingUpstream::new(wire, member, limits, down),
        false => RetryingUpstream::fixed(wire),
    };
    let is_sent = send_ahead(&mut wire, &ahead, limits.write).await;
    is_sent.then_some((wire, stand_in, held))
}

/// Sends bytes that were read before the connection to the upstream existed. False if the upstream does not take them in time.
async fn send_ahead(wire: &mut (impl AsyncWrite + Unpin), bytes: &[u8], limit: Duration) -> bool {
    let sent = tokio::time::timeout(limit, wire.write_all(bytes)).await;
    matches!(sent, Ok(Ok(())))
}

/// Time limits of the edge as a client of an upstream.
#[derive(Clone, Copy)]
struct DialLimits {
    connect: Duration,
    write: Duration,
}

/// Where a connection leads.
enum Place<'m> {
    /// To the only upstream of the endpoint, or to its agents.
    Only,
    /// To one of several upstreams.
    Listed(Attempt<'m>, InFlight),
    StandIn(&'m StandIn, Vec<InFlight>),
}

/// The places that a connection is tried at, one after the other. Each is chosen when the one before it has failed: a choice
/// takes a turn.
struct Places<'m> {
    member: &'m Member,
    limits: DialLimits,
    meters: &'m Meters,
    tried: Tried,
    /// The hash of the client's address, if the list is divided by it.
    key: Option<u64>,
    /// The first upstream of the list, which has a place for it.
    entered: Option<(usize, InFlight)>,
    /// How many upstreams of the endpoint may still be tried.
    left: u32,
    stand_ins: std::slice::Iter<'m, StandIn>,
    /// How many were chosen.
    count: u32,
}

impl<'m> Places<'m> {
    fn new(member: &'m Member, client: IpAddr, limits: DialLimits, meters: &'m Meters) -> Self {
        let by_client = Balancing::Hash(HashKey::ClientAddress);
        let targets = member.targets.as_ref();
        let key = targets.filter(|it| it.list().balancing == by_client);
        let retries = member.targets.as_ref().map(|it| &it.list().retries);
        Self {
            member,
            limits,
            meters,
            tried: Tried::default(),
            key: key.map(|_| address_hash(client)),
            entered: None,
            left: match retries {
                Some(retries) if retries.connect_failure => retries.attempts,
                _ => 1,
            },
            stand_ins: member.stand_ins.iter(),
            count: 0,
        }
    }

    /// The next upstream of the endpoint.
    fn own(&mut self) -> Option<(Arc<Pool>, Place<'m>)> {
        self.left = self.left.checked_sub(1)?;
        let Some(targets) = &self.member.targets else {
            return Some((Arc::clone(self.member.pool.as_ref()?), Place::Only));
        };
        let entered = self.entered.take();
        let next = || targets.enter_now(self.key, self.tried, self.meters);
        let (index, in_flight) = entered.or_else(next)?;
        self.tried.add(index);
        let attempt = Attempt::new(targets, index, self.limits.connect, self.meters);
        let place = Place::Listed(attempt, in_flight);
        Some((Arc::clone(targets.pool(index)?), place))
    }
}

impl<'m> Iterator for Places<'m> {
    type Item = (Arc<Pool>, Place<'m>);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.own().or_else(|| {
            self.left = 0;
            let stand_in = self.stand_ins.find(|one| one.has_room())?;
            let (pool, in_flight) = stand_in.enter(self.meters);
            Some((Arc::clone(pool), Place::StandIn(stand_in, in_flight)))
        });
        self.count += u32::from(next.is_some());
        next
    }
}

impl Place<'_> {
    fn begin(&self) {
        if let Self::Listed(attempt, _) = self {
            attempt.set_connecting(true);
        }
    }

    fn settle(&self, outcome: Outcome) {
        if let Self::Listed(attempt, _) = self {
            attempt.settle(outcome);
        }
    }
}

/// A connection to the first place that accepts one. If all reachable agents are busy, waits for the first.
async fn connected<'m>(
    places: impl Iterator<Item = (Arc<Pool>, Place<'m>)>,
    endpoint: &Endpoint,
    limits: DialLimits,
    down: &Arc<Downstream>,
) -> Option<(UpstreamStream, Place<'m>)> {
    let began = Instant::now();
    let reached = |pool: &Pool| {
        down.conn.reached(|| ReachedUpstream {
            upstream: pool.name().to_owned(),
            connecting: began.elapsed(),
        });
    };
    let unreached = |error: &DialError| {
        tracing::debug!(endpoint.id = endpoint.id, %error, "upstream unreachable");
    };
    let (mut busy, mut last) = (None, None);
    for (pool, place) in places {
        place.begin();
        match pool.dial(&down.connector(endpoint), limits.connect).await {
            Ok(wire) => {
                place.settle(Outcome::Good);
                reached(&pool);
                return Some((wire, place));
            }
            Err(error) => {
                place.settle(match error.is_local() {
                    true => Outcome::Unknown,
                    false => Outcome::Bad("it cannot be connected to"),
                });
                unreached(&error);
                last = Some(reason_of_dial(&error));
                if error.is_busy() {
                    busy.get_or_insert((pool, place));
                }
            }
        }
    }
    let Some((pool, place)) = busy else {
        last.into_iter()
            .for_each(|reason| down.conn.end_for(reason));
        return None;
    };
    let dialled = pool
        .dial_in_turn(&down.connector(endpoint), limits.connect)
        .await;
    match dialled.inspect_err(unreached) {
        Ok(wire) => {
            reached(&pool);
            Some((wire, place))
        }
        Err(error) => {
            down.conn.end_for(reason_of_dial(&error));
            None
        }
    }
}

/// A connection to an upstream behind agents. If an agent refuses it, it starts again at the next one: the client's
/// bytes are kept until the first byte of the upstream.
struct RetryingUpstream {
    state: UpstreamState,
    /// Whether the client has closed its side.
    is_shut: bool,
    /// `None` if it cannot start again.
    retry: Option<Box<RetryPlan>>,
}

enum UpstreamState {
    Connected(UpstreamStream),
    Connecting(BoxFuture<'static, Option<UpstreamStream>>),
}

/// How to start again.
struct RetryPlan {
    /// The bytes sent to the upstream.
    sent: Vec<u8>,
    pools: Vec<Arc<Pool>>,
    endpoint: Arc<Endpoint>,
    limits: DialLimits,
    down: Arc<Downstream>,
    until: Instant,
    pause: Duration,
}

impl RetryingUpstream {
    fn new(
        wire: UpstreamStream,
        member: &Member,
        limits: DialLimits,
        down: &Arc<Downstream>,
    ) -> Self {
        // Agents are no list, so nothing is chosen here.
        let meters = &down.edge.state.meters;
        let stand_ins = member.stand_ins.iter().map(|one| one.pool(meters));
        let retry = RetryPlan {
            sent: Vec::new(),
            pools: member.pool.iter().chain(stand_ins).cloned().collect(),
            endpoint: Arc::clone(&member.endpoint),
            limits,
            down: Arc::clone(down),
            until: Instant::now() + REFUSED_RETRY_WITHIN,
            pause: REFUSED_PAUSE,
        };
        Self {
            state: UpstreamState::Connected(wire),
            is_shut: false,
            retry: Some(Box::new(retry)),
        }
    }

    fn fixed(wire: UpstreamStream) -> Self {
        Self {
            state: UpstreamState::Connected(wire),
            is_shut: false,
            retry: None,
        }
    }

    /// Stops keeping bytes: it cannot start again.
    fn settle(&mut self) {
        self.retry = None;
    }

    fn keep(&mut self, bytes: &[u8]) {
        match &mut self.retry {
            Some(retry) if retry.sent.len() + bytes.len() <= KEPT_BYTES_MAX => {
                retry.sent.extend(bytes);
            }
            _ => self.settle(),
        }
    }

    /// Starts again at another agent, if possible.
    fn retry_elsewhere(&mut self) -> bool {
        let Some(retry) = &mut self.retry else {
            return false;
        };
        if Instant::now() >= retry.until {
            return false;
        }
        retry.down.edge.state.meters.upstream_retries.up();
        // The next agent in turn.
        retry.pools.rotate_left(1);
        let (pools, endpoint) = (retry.pools.clone(), Arc::clone(&retry.endpoint));
        let (limits, down, pause) = (retry.limits, Arc::clone(&retry.down), retry.pause);
        retry.pause = pause * 2;
        let (sent, is_shut) = (retry.sent.clone(), self.is_shut);
        self.state = UpstreamState::Connecting(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let places = pools.into_iter().map(|pool| (pool, Place::Only));
            let (mut wire, _) = connected(places, &endpoint, limits, &down).await?;
            if !send_ahead(&mut wire, &sent, limits.write).await {
                return None;
            }
            if is_shut {
                wire.shutdown().await.ok()?;
            }
            Some(wire)
        }));
        true
    }

    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut UpstreamStream>> {
        if let UpstreamState::Connecting(moving) = &mut self.state {
            let wire = ready!(moving.as_mut().poll(cx));
            let wire = wire.ok_or(io::ErrorKind::ConnectionRefused)?;
            self.state = UpstreamState::Connected(wire);
        }
        match &mut self.state {
            UpstreamState::Connected(wire) => Poll::Ready(Ok(wire)),
            UpstreamState::Connecting(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for RetryingUpstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_read(cx, buf)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                read => {
                    self.settle();
                    return Poll::Ready(read);
                }
            }
        }
    }
}

impl AsyncWrite for RetryingUpstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(Pin::new(wire).poll_write(cx, bytes)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                Ok(count) => {
                    self.keep(bytes.get(..count).unwrap_or_default());
                    return Poll::Ready(Ok(count));
                }
                failed => return Poll::Ready(failed),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = ready!(self.poll_wire(cx))?;
        Pin::new(wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = ready!(self.poll_wire(cx))?;
        let shut = ready!(Pin::new(wire).poll_shutdown(cx));
        self.is_shut = true;
        match shut {
            // The reader handles the refusal.
            Err(error) if refusal(&error).is_some() && self.retry.is_some() => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}

impl RelayEnd for RetryingUpstream {
    fn has_pieces(&self) -> bool {
        match &self.state {
            UpstreamState::Connected(wire) => wire.has_pieces(),
            UpstreamState::Connecting(_) => true,
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Bytes>> {
        loop {
            let wire = ready!(self.poll_wire(cx))?;
            match ready!(wire.poll_piece(cx, bytes_max)) {
                Err(error) if refusal(&error).is_some() && self.retry_elsewhere() => {}
                read => {
                    self.settle();
                    return Poll::Ready(read);
                }
            }
        }
    }

    fn is_socket(&self) -> bool {
        match &self.state {
            UpstreamState::Connected(wire) => self.retry.is_none() && wire.is_socket(),
            UpstreamState::Connecting(_) => false,
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_wire(cx))?.poll_fill(cx, pipe, bytes_max)
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        ready!(self.poll_wire(cx))?.poll_empty(cx, pipe)
    }
}

/// Relays an upgraded connection. The client has sent `early` before the 101.
///
/// What either side sent before the relay began is a part of it: who does not read it holds the connection no longer than
/// who does not read the rest.
pub(crate) async fn tunnel(
    client: Http1Server,
    early: Bytes,
    tunnel: Tunnel,
    down: &Arc<Downstream>,
) {
    let Tunnel {
        upstream,
        early: late,
        exchange,
    } = tunnel;
    let mut client = Prefixed::new(early, client);
    let mut upstream = Prefixed::new(late, upstream);
    let count = exchange.count.relay(down.conn.counters.bytes());
    relay(&mut client, &mut upstream, exchange.timeouts(), down, count).await;
    exchange.tunnel_closed();
}

/// Relays an upgraded stream of HTTP/2. It ends with its connection at the latest.
pub(crate) async fn stream(mut client: Tunnelled, tunnel: Tunnel) {
    let Tunnel {
        upstream,
        early,
        exchange,
    } = tunnel;
    let limits = RelayLimits {
        idle: exchange.idle_limit(),
        write: exchange.write_limit(),
    };
    let moved = Arc::new(MovedBytes::default());
    let upstream = Prefixed::new(early, upstream);
    let mut upstream = CountedUpstream::new(upstream, Arc::clone(&moved));
    {
        let mut count = exchange.count.relay((0, 0));
        let passed = count.passed;
        let removed = pin!(passed.removed());
        let mut watch = RemovalWatch::new(removed);
        let moved = || count.up_to(moved.bytes());
        let is_cut = |waker: &Waker| {
            watch.register(waker);
            passed.is_removed()
        };
        let owner = None::<&Arc<ConnState>>;
        run_relay(&mut client, &mut upstream, owner, limits, moved, is_cut).await;
    }
    exchange.tunnel_closed();
}

/// Relays a whole connection, until the edge cuts it, one of its endpoints is removed, or an operator that brings it
/// loses the endpoint.
async fn relay<A, B>(
    client: &mut A,
    upstream: &mut B,
    timeouts: Timeouts,
    down: &Arc<Downstream>,
    mut count: RelayCount<'_>,
) where
    A: RelayEnd,
    B: RelayEnd,
{
    let limits = &down.conn.rules.limits;
    let limits = RelayLimits {
        idle: timeouts.idle.unwrap_or(limits.tunnel_idle),
        write: timeouts.write.unwrap_or(limits.write_stall),
    };
    let passed = count.passed;
    let removed = pin!(passed.removed());
    let mut watch = RemovalWatch::new(removed);
    let moved = || count.up_to(down.conn.counters.bytes());
    let is_cut = |waker: &Waker| {
        down.conn.driver.register(waker);
        watch.register(waker);
        // Without its endpoint, it moves no further byte.
        down.conn.is_cut() || passed.is_removed() || down.is_unbound()
    };
    run_relay(client, upstream, Some(&down.conn), limits, moved, is_cut).await;
}

/// A stream of HTTP/2 is no socket.
impl RelayEnd for Tunnelled {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upstream_takes_what_was_read_ahead_in_time_or_loses_the_connection() {
        let limit = Duration::from_secs(5);
        let (mut wire, upstream) = tokio::io::duplex(4);
        let began = Instant::now();
        assert!(!send_ahead(&mut wire, b"hello", limit).await);
        assert_eq!(began.elapsed(), limit);
        drop(upstream);
        let (mut wire, _upstream) = tokio::io::duplex(5);
        assert!(send_ahead(&mut wire, b"hello", limit).await);
    }
}
