//! Accepts connections, and determines the endpoint of each.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::BytesMut;
use culvert_base::net::plain_address;
use culvert_edge_config::Timeouts;
use culvert_events::Reason;
use culvert_io::proxy::{ProxyAddresses, ProxyHeader};
use culvert_io::{Inherited, Prefixed, proxy, tcp_options};
use culvert_overload::{Level, TURN_WHEN_TIGHT};
use culvert_policy::conn::{TlsInfo, source_number};
use culvert_tls::handshake;
use culvert_tls::peek::{self, Peeked};
use culvert_tls::server_certificate::{Alpn, ServerCertificate};
use culvert_tls::tls_policy::TlsPolicy;
use rustls::server::danger::ClientCertVerifier;
use rustls::{PeerIncompatible, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::error::Elapsed;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::connection::connection_phase::{self, Admission};
use crate::connection::downstream::Downstream;
use crate::connection::socket::{Carrier, CountedSocket, Wire};
use crate::edge::edge_context::EdgeContext;
use crate::http::{server, streams};
use crate::kubernetes;
use crate::recording::ConnEnd;
use crate::recording::refusals::RefusedFacts;
use crate::settings::rules::ListenerKind;
use crate::snapshot::group::{Group, Member};
use crate::tcp;

/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 1024;

/// Listens on an address, with an inherited socket if there is one.
pub(crate) fn bind(address: SocketAddr, inherited: &Inherited) -> std::io::Result<TcpListener> {
    if let Some(socket) = inherited.take(address) {
        let socket = socket?;
        socket.set_nonblocking(true)?;
        return TcpListener::from_std(socket);
    }
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    // So that a restart does not wait for the last connections of its predecessor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until cancelled.
pub(crate) async fn accept(
    edge: Arc<EdgeContext>,
    listener: Arc<TcpListener>,
    kind: ListenerKind,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((tcp, client)) => hand_over(&edge, tcp, client, kind),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands a connection that was accepted to the thread that serves it.
fn hand_over(edge: &Arc<EdgeContext>, tcp: TcpStream, client: SocketAddr, kind: ListenerKind) {
    let Some(thread) = edge.threads.next() else {
        return admit(edge, tcp, client, kind);
    };
    // The socket moves to the reactor of the other runtime.
    let Ok(tcp) = tcp.into_std() else { return };
    let shared = Arc::clone(edge);
    let admitting = async move {
        match TcpStream::from_std(tcp) {
            Ok(tcp) => admit(&shared, tcp, client, kind),
            Err(error) => tracing::warn!(%error, "cannot watch a connection"),
        }
    };
    edge.state.tasks.spawn_on(admitting, thread);
}

/// Checks the overload level, and serves the connection.
fn admit(edge: &Arc<EdgeContext>, tcp: TcpStream, client: SocketAddr, kind: ListenerKind) {
    edge.state.meters.accepted.up();
    let Ok(server) = tcp.local_addr() else { return };
    if edge.state.level() == Level::Full {
        edge.state.meters.shed_connections.up();
        return turn_away(edge, Reason::Overloaded, (client, server));
    }
    let own = ProxyAddresses { client, server };
    let peer = plain_address(client.ip());
    if edge.rules.load().is_announced(kind, peer) {
        edge.state
            .track(announced(Arc::clone(edge), tcp, own, kind));
    } else {
        serve(edge, tcp, own, kind);
    }
}

/// Counts a connection that is refused before anything of it is known.
fn turn_away(edge: &EdgeContext, reason: Reason, ends: (SocketAddr, SocketAddr)) {
    let facts = RefusedFacts::default();
    edge.state.refuse(reason, ends, edge.clock.now(), facts);
}

/// A connection that begins with a PROXY header.
async fn announced(
    edge: Arc<EdgeContext>,
    mut tcp: TcpStream,
    own: ProxyAddresses,
    kind: ListenerKind,
) {
    let ends = (own.client, own.server);
    let Ok(_place) = edge.announcements.try_acquire() else {
        edge.state.meters.refused_full.up();
        return turn_away(&edge, Reason::ConnectionLimit, ends);
    };
    let limit = edge.rules.load().limits.first_byte;
    let header = tokio::select! {
        biased;
        () = edge.accepting.cancelled() => return,
        header = tokio::time::timeout(limit, read_header(&mut tcp)) => header,
    };
    match header {
        Ok(Some(ends)) => serve(&edge, tcp, ends.unwrap_or(own), kind),
        _ => {
            edge.state.meters.refused_announcements.up();
            turn_away(&edge, Reason::ProxyHeader, ends);
        }
    }
}

/// Reads a PROXY header and no byte after it. `None` if it is malformed.
async fn read_header(tcp: &mut TcpStream) -> Option<Option<ProxyAddresses>> {
    let mut bytes = Vec::new();
    loop {
        match proxy::parse(&bytes) {
            ProxyHeader::Whole(ends) => return Some(ends),
            ProxyHeader::Malformed => return None,
            ProxyHeader::Partial(missing) => {
                let begin = bytes.len();
                bytes.resize(begin + missing, 0);
                tcp.read_exact(bytes.get_mut(begin..)?).await.ok()?;
            }
        }
    }
}

/// Serves a connection, unless a limit is reached.
fn serve(edge: &Arc<EdgeContext>, tcp: TcpStream, ends: ProxyAddresses, kind: ListenerKind) {
    let ProxyAddresses { client, server } = ends;
    let Some(down) = Downstream::accept(edge, client, server) else {
        return turn_away(edge, Reason::ConnectionLimit, (client, server));
    };
    if tcp.set_nodelay(true).is_err() {
        return;
    }
    tcp_options::probe(&tcp);
    tcp_options::keep_little(&tcp);
    let counted = |tcp| CountedSocket::new(Carrier::Tcp(tcp), Arc::clone(&down.conn));
    match kind {
        ListenerKind::Http => {
            let wire = Wire::Plain(counted(tcp));
            edge.state.track(server::http1(wire, down));
        }
        ListenerKind::Tls => edge.state.track(secure(counted(tcp), down)),
        ListenerKind::Tcp(port) => edge.state.track(raw(counted(tcp), down, port)),
        ListenerKind::Kubernetes => edge.state.track(kubernetes::serve(tcp, down)),
    }
}

/// A connection to a TCP endpoint.
async fn raw(socket: CountedSocket, down: Arc<Downstream>, port: u16) {
    let group = down.edge.live.load().tcp.get(&port).cloned();
    if let Some(group) = group {
        if down.edge.refuses_outdated() {
            down.refuse(Some(&group), Reason::Outdated);
            return socket.reset();
        }
        down.conn
            .attribute(group.account(), group.endpoint_id(), group.host());
        if !group.admits(down.conn.info.client.ip()) {
            down.conn.block();
            return;
        }
        let name = group.host().to_owned();
        let member = Arc::clone(group.pick(down.edge.agents()));
        Box::pin(pass(socket, Vec::new(), &name, member, &down)).await;
    }
}

/// Forwards a connection of a TCP or TLS endpoint, through further endpoints if policies say so, and decrypted if one of
/// them terminates its TLS. `ahead` was read from it.
pub(crate) async fn pass(
    socket: CountedSocket,
    ahead: Vec<u8>,
    name: &str,
    mut member: Arc<Member>,
    down: &Arc<Downstream>,
) {
    down.conn.served_by(&member.id);
    let mut timeouts = member.endpoint.timeouts;
    let mut passed = vec![Arc::clone(&member)];
    let mut tls_policy: Option<Arc<TlsPolicy>> = None;
    let mut hops = 0;
    loop {
        match connection_phase::enter(down, &member.endpoint, hops, tls_policy).await {
            Admission::Accept(all) => {
                tls_policy = all;
                break;
            }
            Admission::Forward(next, so_far) => {
                tls_policy = so_far;
                member = next;
                passed.push(Arc::clone(&member));
                timeouts = member.endpoint.timeouts.or(timeouts);
            }
            Admission::Reject => {
                down.conn.end_for(Reason::Restricted);
                return socket.reset();
            }
        }
        hops += 1;
    }
    match tls_policy {
        None => tcp::endpoint(socket, ahead, &passed, timeouts, down).await,
        // In a box, so that other connections keep no room for it.
        Some(tls_policy) => {
            Box::pin(decrypted(
                socket, ahead, name, &passed, timeouts, tls_policy, down,
            ))
            .await;
        }
    }
}

/// Terminates the TLS of a connection to a TLS endpoint under its policy, and forwards the rest.
async fn decrypted(
    socket: CountedSocket,
    ahead: Vec<u8>,
    name: &str,
    passed: &[Arc<Member>],
    timeouts: Timeouts,
    tls_policy: Arc<TlsPolicy>,
    down: &Arc<Downstream>,
) {
    let own = down.edge.certificate(&down.edge.live.load(), name);
    let presented = tls_policy.present(own.as_ref().map(|own| &own.key), Alpn::None);
    let Some(presented) = presented else {
        down.edge.state.meters.handshakes_failed.up();
        fail(down, passed, Reason::NoCertificate);
        return socket.reset();
    };
    let deadline = tokio::time::Instant::now() + down.conn.rules.limits.handshake;
    let config = handshake_config(&presented, down);
    let clients = presented.clients.as_ref();
    let handshake = shake(config, clients, Prefixed::new(ahead, socket), down);
    match tokio::time::timeout_at(deadline, Box::pin(handshake)).await {
        Ok(Ok(stream)) => tcp::endpoint(stream, Vec::new(), passed, timeouts, down).await,
        failed => {
            down.edge.state.meters.handshakes_failed.up();
            fail(down, passed, reason_of(failed));
        }
    }
}

/// The handshake of a connection failed after policies of these endpoints have accepted it.
fn fail(down: &Downstream, passed: &[Arc<Member>], reason: Reason) {
    let Some((first, more)) = passed.split_first() else {
        return down.conn.end_for(reason);
    };
    let sampled = down.refused_at(first, reason);
    // The event is the only one that has what the policies logged.
    let mut has_logs = false;
    down.conn.policy.with_logs(|_| has_logs = true);
    down.conn.end(ConnEnd {
        reason,
        sampled: sampled.unwrap_or(u64::from(has_logs)),
        is_refused: false,
    });
    if let Some(position) = reason.refusal() {
        for member in more {
            member.counters(&down.conn.edge).refused(position);
        }
    }
}

/// Why a handshake within a deadline failed.
fn reason_of<T>(failed: Result<Result<T, Reason>, Elapsed>) -> Reason {
    match failed {
        Ok(Err(reason)) => reason,
        _ => Reason::HandshakeTimeout,
    }
}

/// Terminates a client's TLS. Handshakes take turns; under load one that waits too long is rejected.
///
/// A session that is resumed carries the certificate that the client showed when it began. `clients` verifies
/// it again, because it may have expired since (RFC 8446 section 4.6.1).
pub(crate) async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ServerConfig>,
    clients: Option<&Arc<dyn ClientCertVerifier>>,
    socket: S,
    down: &Arc<Downstream>,
) -> Result<TlsStream<S>, Reason> {
    let turn_timeout = match down.edge.state.level() < Level::Tight {
        true => down.conn.rules.limits.handshake,
        false => TURN_WHEN_TIGHT,
    };
    let source = source_number(down.conn.info.client.ip());
    let handshake = TlsAcceptor::from(config).accept(socket);
    let Ok(stream) = down
        .edge
        .handshakes
        .run(source, turn_timeout, handshake)
        .await
    else {
        down.edge.state.meters.shed_handshakes.up();
        return Err(Reason::Overloaded);
    };
    let stream = stream.map_err(|error| {
        note_failure(&error, down);
        Reason::HandshakeFailed
    })?;
    let (_, session) = stream.get_ref();
    let is_trusted = clients
        .is_none_or(|clients| handshake::is_still_trusted(session, clients, down.conn.info.now()));
    is_trusted.then_some(stream).ok_or(Reason::HandshakeFailed)
}

/// The settings of a handshake. A secret that is not bound to its handshake lets a server in the middle take over the
/// identity of a client with a certificate (RFC 7627 1), so such clients always need the extended one.
fn handshake_config(presented: &ServerCertificate, down: &Downstream) -> Arc<ServerConfig> {
    if !down.conn.rules.tls12_without_ems || presented.clients.is_some() {
        return Arc::clone(&presented.config);
    }
    let mut config = ServerConfig::clone(&presented.config);
    config.require_ems = false;
    Arc::new(config)
}

/// Logs what an operator may want to allow, at most once a minute.
#[cold]
fn note_failure(error: &std::io::Error, down: &Downstream) {
    const NO_EMS: rustls::Error =
        rustls::Error::PeerIncompatible(PeerIncompatible::ExtendedMasterSecretExtensionRequired);
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    if cause == Some(&NO_EMS)
        && let Some(more) = down.edge.state.without_ems.due(tokio::time::Instant::now())
    {
        tracing::warn!(
            client = %down.conn.info.client.ip(),
            server.name = down.conn.info.sni(),
            more,
            "refused a client of TLS 1.2 without extended master secret (`edge.tls12_without_ems`)"
        );
    }
}

/// A connection that must begin with TLS.
async fn secure(mut socket: CountedSocket, down: Arc<Downstream>) {
    let meters = &down.edge.state.meters;
    let deadline = tokio::time::Instant::now() + down.conn.rules.limits.handshake;
    let hello = tokio::time::timeout_at(deadline, read_hello(&mut socket)).await;
    let (ahead, name) = match hello {
        Ok(Ok(hello)) => hello,
        failed => {
            meters.handshakes_failed.up();
            // A client that sends nothing asks for nothing.
            if down.conn.counters.bytes().0 > 0 {
                down.refuse_unnamed(reason_of(failed));
            }
            return;
        }
    };
    let name = name.unwrap_or_else(|| down.conn.rules.default_server_name.to_string());
    let name = down.conn.info.set_sni(name);
    let live = down.edge.live.load_full();
    if let Some(config) = live.challenges.handshake(name, &ahead) {
        let handshake = shake(config, None, Prefixed::new(ahead, socket), &down);
        if let Ok(Ok(mut stream)) = tokio::time::timeout_at(deadline, handshake).await {
            meters.challenges_answered.up();
            // The authority has its answer.
            drop(tokio::time::timeout_at(deadline, stream.shutdown()).await);
        }
        return;
    }
    if let Some(group) = live.tls.find(name) {
        if down.edge.refuses_outdated() {
            down.refuse(Some(group), Reason::Outdated);
            return socket.reset();
        }
        down.conn
            .attribute(group.account(), group.endpoint_id(), name);
        if !group.admits(down.conn.info.client.ip()) {
            down.conn.block();
            return;
        }
        let member = Arc::clone(group.pick(down.edge.agents()));
        Box::pin(pass(socket, ahead, name, member, &down)).await;
        return;
    }
    drop(live);
    // Short or rare steps are boxed, so that idle connections are small.
    let Some(stream) = Box::pin(terminate(socket, ahead, &down, deadline)).await else {
        return;
    };
    let (_, session) = stream.get_ref();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    if let Some(facts) = down.conn.info.tls.get() {
        facts.handshake.get_or_init(|| handshake::info(session));
    }
    let wire = Wire::Tls(Box::new(stream));
    if is_http2 {
        Box::pin(streams::http2(wire, BytesMut::new(), down)).await;
    } else {
        server::http1(wire, down).await;
    }
}

/// Terminates the TLS of a connection to an https endpoint, under the endpoint's policy.
async fn terminate(
    mut socket: CountedSocket,
    ahead: Vec<u8>,
    down: &Arc<Downstream>,
    deadline: tokio::time::Instant,
) -> Option<TlsStream<Prefixed<CountedSocket>>> {
    let meters = &down.edge.state.meters;
    let name = down.conn.info.sni();
    let (own, group) = {
        let live = down.edge.live.load();
        let group: Option<Arc<Group>> = live.https.find(name).map(Arc::clone);
        (down.edge.certificate(&live, name), group)
    };
    let mut tls_policy = None;
    // A policy may have a certificate if there is no other.
    if let Some(group) = &group
        && (own.is_some() || group.has_tls_policy())
    {
        // As in [`Downstream::refuse`]. The rules hold nevertheless, because the configuration may be confirmed later.
        if !down.edge.freshness.is_outdated() {
            down.conn
                .attribute(group.account(), group.endpoint_id(), name);
        }
        match connection_phase::first(down, &group.first().endpoint).await {
            Admission::Accept(wanted) => tls_policy = wanted,
            Admission::Forward(..) | Admission::Reject => {
                match down.edge.freshness.is_outdated() {
                    // No endpoint's event has it.
                    true => down.refuse_unnamed(Reason::Restricted),
                    false => down.conn.end_for(Reason::Restricted),
                }
                socket.reset();
                return None;
            }
        }
    }
    let presented = match &tls_policy {
        None => own,
        Some(tls_policy) => tls_policy.present(own.as_ref().map(|own| &own.key), Alpn::Http),
    };
    let Some(presented) = presented else {
        meters.unknown_names.up();
        let reason = match group {
            Some(_) => Reason::NoCertificate,
            None => Reason::UnknownName,
        };
        down.refuse(group.as_ref(), reason);
        let alert = async {
            socket.write_all(&handshake::UNRECOGNIZED_NAME).await?;
            socket.shutdown().await
        };
        // The client learns the reason if it still listens.
        drop(tokio::time::timeout_at(deadline, alert).await);
        return None;
    };
    if let Some(group) = &group {
        down.tls_group.get_or_init(|| Arc::clone(group));
    }
    down.conn.info.tls.get_or_init(|| TlsInfo {
        certificate: Arc::clone(&presented),
        tls_policy,
        handshake: OnceLock::new(),
    });
    let config = handshake_config(&presented, down);
    let clients = presented.clients.as_ref();
    let handshake = shake(config, clients, Prefixed::new(ahead, socket), down);
    match tokio::time::timeout_at(deadline, handshake).await {
        Ok(Ok(stream)) => Some(stream),
        failed => {
            meters.handshakes_failed.up();
            down.refuse(group.as_ref(), reason_of(failed));
            None
        }
    }
}

/// Reads a whole ClientHello: its bytes, and the name it asks for.
pub(crate) async fn read_hello(
    socket: &mut CountedSocket,
) -> Result<(Vec<u8>, Option<String>), Reason> {
    let mut bytes = Vec::with_capacity(2048);
    loop {
        let read = socket.read_buf(&mut bytes).await;
        if read.map_or(true, |read| read == 0) {
            return Err(Reason::HandshakeFailed);
        }
        match peek::client_hello(&bytes) {
            Peeked::Partial => {}
            Peeked::Hello(name) => return Ok((bytes, name)),
            Peeked::Other => return Err(Reason::NotTls),
        }
    }
}
