//! Connections of Kubernetes operators to the endpoints that they bind (contract: agent protocol, Kubernetes
//! bindings).
//!
//! In a cluster, a forwarder of the operator accepts a client's connection. It dials this listener with the operator's
//! client certificate and sends a message that names a host and a port. After the response, the connection is the
//! client's: bytes of a TCP or TLS endpoint, or requests of an HTTP endpoint.
//!
//! An operator learns nothing about endpoints that it does not bind: there is one response for all of them.

mod message;

use std::fmt;
use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_edge_config::Operator;
use culvert_events::Reason;
use culvert_policy::problem::Problem;
use culvert_policy::scheme::Scheme;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::server::TlsStream;

use crate::connection::downstream::{Bound, Downstream};
use crate::connection::listener::{pass, read_hello, shake};
use crate::connection::socket::{Carrier, CountedSocket, Wire};
use crate::edge::edge_context::EdgeContext;
use crate::http::server;
use crate::kubernetes::message::{ConnRequest, ConnResponse};
use crate::snapshot::group::{Group, Member};
use crate::snapshot::operators::OperatorTable;

/// Serves a connection of an operator.
pub(crate) async fn serve(tcp: TcpStream, down: Arc<Downstream>) {
    let deadline = Instant::now() + down.conn.rules.limits.handshake;
    // In a box: the task of a long connection keeps no room for its beginning.
    let upgraded = timeout_at(deadline, Box::pin(upgrade(tcp, &down)));
    let (stream, member) = match upgraded.await {
        Ok(Some(upgraded)) => upgraded,
        Ok(None) => return,
        Err(_) => {
            down.edge.state.meters.handshakes_failed.up();
            return down.refuse_unnamed(Reason::HandshakeTimeout);
        }
    };
    let socket = CountedSocket::new(Carrier::Operator(Box::new(stream)), Arc::clone(&down.conn));
    match member.endpoint.scheme {
        Scheme::Http | Scheme::Https => server::http1(Wire::Plain(socket), down).await,
        Scheme::Tcp => {
            let name = member.endpoint.host.to_string();
            Box::pin(pass(socket, Vec::new(), &name, member, &down)).await;
        }
        Scheme::Tls => Box::pin(tls(socket, member, down)).await,
    }
}

/// A connection to a TLS endpoint, whose client begins with TLS inside the operator's.
async fn tls(mut socket: CountedSocket, member: Arc<Member>, down: Arc<Downstream>) {
    let deadline = Instant::now() + down.conn.rules.limits.handshake;
    let hello = timeout_at(deadline, read_hello(&mut socket)).await;
    let Ok(Ok((ahead, name))) = hello else {
        down.edge.state.meters.handshakes_failed.up();
        down.conn.end_for(Reason::HandshakeFailed);
        return;
    };
    down.conn.info.set_sni(name.unwrap_or_default());
    let host = member.endpoint.host.to_string();
    pass(socket, ahead, &host, member, &down).await;
}

/// The handshake and the exchange of messages. Returns the endpoint that the operator asked for.
async fn upgrade(
    tcp: TcpStream,
    down: &Arc<Downstream>,
) -> Option<(TlsStream<TcpStream>, Arc<Member>)> {
    let meters = &down.edge.state.meters;
    let operators = Arc::clone(&down.edge.live.load().operators);
    let config = operators
        .has_authority()
        .then(|| config(&operators, &down.edge).ok());
    let stream = match config.flatten() {
        Some(config) => shake(config, None, tcp, down).await,
        None => Err(Reason::NoCertificate),
    };
    let mut stream = match stream {
        Ok(stream) => stream,
        Err(reason) => {
            meters.handshakes_failed.up();
            down.refuse_unnamed(reason);
            return None;
        }
    };
    let (_, session) = stream.get_ref();
    let leaf = session.peer_certificates()?.first()?;
    let operator = operators.of(leaf)?.clone();
    let request = match ConnRequest::read(&mut stream).await {
        Ok(request) => request,
        Err(error) => {
            tracing::debug!(operator.id, %error, "malformed message of a Kubernetes operator");
            let why = "The message that names an endpoint is malformed.";
            down.refuse_unnamed(Reason::Malformed);
            return refuse(stream, down, ConnResponse::refused(Problem::Malformed, why)).await;
        }
    };
    let pod = request.pod.clone().unwrap_or_default();
    let Some((bound, group, member)) = find(&request, operator, down) else {
        let host = request.host;
        tracing::debug!(host, request.port, pod.namespace, pod.name, "not bound");
        down.refuse_unnamed(Reason::UnknownHost);
        let why =
            "No endpoint that this Kubernetes operator binds is online at this host and port.";
        return refuse(
            stream,
            down,
            ConnResponse::refused(Problem::UnknownHost, why),
        )
        .await;
    };
    if down.edge.refuses_outdated() {
        let problem = Problem::Outdated;
        down.refuse_unnamed(Reason::Outdated);
        let refusal = ConnResponse::refused(problem, problem.sentence());
        return refuse(stream, down, refusal).await;
    }
    let is_admitted = group.admits(down.conn.info.client.ip());
    // Each request to an HTTP endpoint makes its own record.
    if member.endpoint.scheme != Scheme::Http || !is_admitted {
        down.conn
            .attribute(group.account(), &member.id, group.host());
    }
    if !is_admitted {
        down.conn.block();
        let problem = Problem::Restricted;
        let refusal = ConnResponse::refused(problem, problem.sentence());
        return refuse(stream, down, refusal).await;
    }
    down.bound.get_or_init(|| bound);
    tracing::debug!(
        endpoint.id = member.endpoint.id,
        pod.namespace,
        pod.name,
        "a pod connected through a Kubernetes operator"
    );
    let response = ConnResponse::accepted(&member.endpoint.id, member.endpoint.scheme);
    response.write(&mut stream).await.ok()?;
    Some((stream, member))
}

/// The endpoint at the address that the request names, if the operator binds it.
fn find(
    request: &ConnRequest,
    operator: Operator,
    down: &Downstream,
) -> Option<(Bound, Arc<Group>, Arc<Member>)> {
    let host = HostName::parse(&request.host).ok()?;
    let bound = Bound {
        operator_id: operator.id,
        key: operator.key,
        account: operator.account,
        host: host.to_string(),
        port: u16::try_from(request.port).ok()?,
    };
    let live = down.edge.live.load();
    let (group, member) = bound.find(&live, down.edge.agents(), "")?;
    let (group, member) = (Arc::clone(group), Arc::clone(member));
    Some((bound, group, member))
}

/// Sends a refusal, and ends the connection.
async fn refuse<T>(
    mut stream: TlsStream<TcpStream>,
    down: &Downstream,
    refusal: ConnResponse,
) -> Option<T> {
    down.edge.state.meters.refused_bindings.up();
    if refusal.write(&mut stream).await.is_ok() {
        // The operator has its answer.
        drop(stream.shutdown().await);
    }
    None
}

/// The TLS of this listener: client certificates of operators only, and no sessions to resume, so that each connection
/// is checked.
fn config(
    operators: &Arc<OperatorTable>,
    edge: &Arc<EdgeContext>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let resolver = CertificateResolver(Arc::clone(edge));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_client_cert_verifier(Arc::clone(operators) as _)
        .with_cert_resolver(Arc::new(resolver));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.require_ems = true;
    Ok(Arc::new(config))
}

/// Presents the certificate of the name that an operator dials, else that of the listener's own name.
struct CertificateResolver(Arc<EdgeContext>);

impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (edge, live) = (&self.0, self.0.live.load());
        let named = hello.server_name().map(str::to_ascii_lowercase);
        let named = named.and_then(|name| edge.certificate(&live, &name));
        let own = || edge.certificate(&live, &edge.kubernetes_host);
        Some(Arc::clone(&named.or_else(own)?.key))
    }
}
