//! The network client of targets: an HTTP client behind the address guard.
//!
//! Every connection goes to an address that was resolved here and allowed by `guard`. All addresses of a name are
//! checked, and the one used is checked again right before the connection. The client follows no redirects, and reads at
//! most 64 KiB of a response, undecoded, within the caller's deadline. Each destination has its own client and connection
//! pool: nothing is shared between accounts or TLS identities.
//!
//! With proxies, HTTP requests reach the same checked address by CONNECT. The operator named the proxy, so no rule
//! applies to its own address, and a destination that has a proxy is never connected to directly.
//!
//! Not here: which addresses are allowed (`guard`), which failure a response reports (`http_failure`).

mod renewed;

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::Instant;
use url::Url;

use culvert_base::{BoxFuture, Clock, Entropy, Fault, RetryAfter, Timestamp};
use culvert_io::forward_proxy::{ProxiedScheme, Proxies, Proxy, ProxyError};
use culvert_io::is_own_address;

use self::renewed::Renewed;
use crate::client::guard::{CheckedUrl, Denied, Rules};
use crate::failure::{Failure, FailureClass};

/// Maximum bytes read of a response's body.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of a response's headers over HTTP/2.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Time limit of a DNS lookup.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(2);
/// Time limit of connecting to all allowed addresses in turn.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// How long a connection is used. A broker or a proxy on the way may close one that was idle for longer.
pub const CONNECTION_LIFE: Duration = Duration::from_secs(60);
/// Idle connections are closed after this.
const IDLE: Duration = Duration::from_secs(30);

/// Settings of the client.
#[derive(Clone, Debug, Default)]
pub struct NetSettings {
    /// Rules of the address guard.
    pub rules: Rules,
    /// PEM file of additional trusted certificates.
    pub extra_ca_file: Option<PathBuf>,
    /// Proxies of HTTP requests.
    pub proxies: Proxies,
}

/// Resolves host names.
pub trait Resolve: Send + Sync + fmt::Debug {
    /// All addresses of `host`. The error is a short sentence for the user.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>>;
}

/// The network client, the clock and the random source of targets.
#[derive(Clone, Debug)]
pub struct Net {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: NetSettings,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    resolver: Arc<dyn Resolve>,
    own_listeners: ArcSwap<Vec<SocketAddr>>,
    trust: tokio::sync::OnceCell<Trust>,
    refused: [AtomicU64; Denied::ALL.len()],
}

impl Net {
    /// A client with the resolver of the operating system.
    pub fn new(settings: NetSettings, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self::with_resolver(
            settings,
            clock,
            entropy,
            Arc::new(SystemResolver::default()),
        )
    }

    /// A client with another resolver, for tests.
    pub fn with_resolver(
        settings: NetSettings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        resolver: Arc<dyn Resolve>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                clock,
                entropy,
                resolver,
                own_listeners: ArcSwap::default(),
                trust: tokio::sync::OnceCell::new(),
                refused: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }

    /// Sets the addresses that this server listens on. They are always denied.
    pub fn set_own_listeners(&self, addresses: Vec<SocketAddr>) {
        self.inner.own_listeners.store(Arc::new(addresses));
    }

    /// Checks a URL by the address guard, for [`Http::post`].
    ///
    /// # Errors
    /// If requests to it are denied.
    pub fn checked(&self, url: &str) -> Result<CheckedUrl, Denied> {
        self.rules().url(url)
    }

    /// Rules of the address guard.
    pub fn rules(&self) -> &Rules {
        &self.inner.settings.rules
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The source of random bytes.
    pub fn entropy(&self) -> &dyn Entropy {
        &*self.inner.entropy
    }

    /// A client with its own connection pool, for hosts that users name.
    pub fn http(&self) -> Http {
        self.http_within(HostSource::Judged)
    }

    /// A client like [`Self::http`] that uses only HTTP/2, also without TLS.
    pub fn http2(&self) -> Http {
        Http {
            is_http2: true,
            ..self.http_within(HostSource::Judged)
        }
    }

    /// A client like [`Self::http`] for hosts that the operator configured: no rule applies.
    pub fn http_to_named_by_operator(&self) -> Http {
        self.http_within(HostSource::NamedByOperator)
    }

    fn http_within(&self, source: HostSource) -> Http {
        Http {
            guarded: Guarded(self.clone(), source),
            is_http2: false,
            plain: Renewed::new(),
            tls: Renewed::new(),
        }
    }

    /// Number of refusals by rule: `guard_refused_total{rule}`.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Denied::ALL
            .iter()
            .zip(&self.inner.refused)
            .map(|(denied, count)| (denied.rule(), count.load(Ordering::Relaxed)))
    }

    fn refuse(&self, denied: Denied) -> io::Error {
        let index = Denied::ALL.iter().position(|known| *known == denied);
        if let Some(count) = index.and_then(|index| self.inner.refused.get(index)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        io::Error::new(io::ErrorKind::PermissionDenied, denied)
    }

    /// A connection to a host that a user named, for protocols other than HTTP. Resolved, checked, within the deadlines
    /// of every connection.
    pub async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, Failure> {
        self.connect_in_time(host, port, HostSource::Judged, None)
            .await
            .map_err(|error| blame(&error, true))
    }

    /// The checked addresses of a host that a user named, for libraries that open connections themselves.
    pub async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        self.resolve(host, port, HostSource::Judged)
            .await
            .map_err(|error| blame(&error, true))
    }

    async fn connect_in_time(
        &self,
        host: &str,
        port: u16,
        source: HostSource,
        proxy: Option<&Proxy>,
    ) -> io::Result<TcpStream> {
        let connecting = self.connect(host, port, source, proxy);
        tokio::time::timeout(RESOLVE_DEADLINE + CONNECT_DEADLINE, connecting)
            .await
            .map_err(|_| {
                let text = match proxy {
                    None => "connecting timed out",
                    Some(_) => "connecting through the proxy timed out",
                };
                io::Error::new(io::ErrorKind::TimedOut, text)
            })?
    }

    /// Resolves a host and checks its addresses.
    async fn resolve(
        &self,
        host: &str,
        port: u16,
        source: HostSource,
    ) -> io::Result<Vec<SocketAddr>> {
        let rules = &self.inner.settings.rules;
        // The operator's own hosts, such as the metadata service that gives it keys, may have any address and port.
        let is_judged = source == HostSource::Judged;
        if is_judged {
            rules.port(port).map_err(|denied| self.refuse(denied))?;
        }
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let addresses = match bare.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => tokio::time::timeout(RESOLVE_DEADLINE, self.inner.resolver.resolve(bare))
                .await
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the DNS lookup timed out"))?
                .map_err(io::Error::other)?,
        };
        let checked = match is_judged {
            true => rules.addresses(&addresses),
            false => rules.count(&addresses),
        };
        checked.map_err(|denied| self.refuse(denied))?;
        let addresses: Vec<SocketAddr> = addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, port))
            .collect();
        if addresses
            .iter()
            .any(|address| self.is_own_listener(*address))
        {
            return Err(self.refuse(Denied::OwnListener));
        }
        Ok(addresses)
    }

    /// Resolves, checks and connects.
    async fn connect(
        &self,
        host: &str,
        port: u16,
        source: HostSource,
        proxy: Option<&Proxy>,
    ) -> io::Result<TcpStream> {
        let mut last = io::Error::other("no address");
        for address in self.resolve(host, port, source).await? {
            let connected = match proxy {
                None => TcpStream::connect(address).await,
                Some(proxy) => match proxy.connect(address).await {
                    // The answer of a proxy that rejects the request would be the same for the next address.
                    Err(error) if !error.is_of_address() => return Err(io::Error::other(error)),
                    other => other.map_err(io::Error::other),
                },
            };
            match connected {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether a listener of this server has `address`.
    fn is_own_listener(&self, address: SocketAddr) -> bool {
        let listeners = self.inner.own_listeners.load();
        let ip = address.ip().to_canonical();
        listeners.iter().any(|own| {
            own.port() == address.port()
                && (own.ip().to_canonical() == ip
                    || (own.ip().is_unspecified() && is_own_address(ip)))
        })
    }

    async fn tls(&self) -> Result<Arc<rustls::ClientConfig>, Fault> {
        Ok(self.trust().await?.https.clone())
    }

    /// TLS for protocols other than HTTP.
    pub async fn tls_without_alpn(&self) -> Result<Arc<rustls::ClientConfig>, Failure> {
        let trust = self.trust().await.map_err(|fault| no_tls(&fault))?;
        let mut config = (*trust.https).clone();
        config.alpn_protocols.clear();
        Ok(Arc::new(config))
    }

    /// Like [`Self::tls_without_alpn`], for a library that connects to an address of the host `name`.
    pub async fn tls_verified_for(
        &self,
        name: ServerName<'static>,
    ) -> Result<rustls::ClientConfig, Failure> {
        let trust = self.trust().await.map_err(|fault| no_tls(&fault))?;
        crate::client::certificate_verifier::verified_for(name, &trust.https, trust.roots.clone())
            .ok_or_else(|| no_tls(&Fault::bare("making a verifier of certificates")))
    }

    async fn trust(&self) -> Result<&Trust, Fault> {
        let extra = self.inner.settings.extra_ca_file.clone();
        self.inner
            .trust
            .get_or_try_init(|| async {
                tokio::task::spawn_blocking(move || Trust::load(extra))
                    .await
                    .map_err(|error| Fault::new("loading trusted certificates", error))?
            })
            .await
    }
}

fn no_tls(fault: &Fault) -> Failure {
    tracing::error!(cause = %fault.chain(), "cannot configure TLS for destinations");
    Failure::new(
        FailureClass::Config,
        "tls",
        "TLS is not configured on this server",
    )
}

/// Trusted certificates.
#[derive(Debug)]
struct Trust {
    roots: Arc<rustls::RootCertStore>,
    https: Arc<rustls::ClientConfig>,
}

impl Trust {
    /// The system's roots and the additional ones, TLS 1.2 and 1.3. Names are always verified.
    fn load(extra: Option<PathBuf>) -> Result<Self, Fault> {
        let doing = "loading trusted certificates";
        let mut roots = rustls::RootCertStore::empty();
        let (_, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = extra {
            for certificate in
                CertificateDer::pem_file_iter(&path).map_err(|error| Fault::new(doing, error))?
            {
                let certificate = certificate.map_err(|error| Fault::new(doing, error))?;
                roots
                    .add(certificate)
                    .map_err(|error| Fault::new(doing, error))?;
            }
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::new(doing, error))?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            roots,
            https: Arc::new(config),
        })
    }
}

/// One destination's HTTP client.
pub struct Http {
    guarded: Guarded,
    is_http2: bool,
    plain: Renewed<Client<Guarded, Body>>,
    tls: Renewed<Client<HttpsConnector<Guarded>, Body>>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its trailers.
    pub trailers: HeaderMap,
    /// `Retry-After`, if present and valid.
    pub retry_after: Option<RetryAfter>,
    /// The body, up to the requested size.
    pub body: Bytes,
    /// The body as text; invalid UTF-8 is replaced.
    pub text: String,
}

/// The body of a request: whole, or in pieces that are produced while it is sent; then a header has its length.
pub type Body = Either<Full<Bytes>, Pieces>;
/// A body in pieces.
pub type Pieces = Channel<Bytes, io::Error>;

/// The code of a failure that concerns only the connection.
const MISDIRECTED: &str = "421";

/// An HTTP request.
#[derive(Debug)]
pub struct HttpRequest {
    /// Its method.
    pub method: Method,
    /// Its URL.
    pub url: Url,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Body,
    /// Time limit until the response is complete.
    pub deadline: Duration,
    /// Maximum bytes of the response's body that are read.
    pub answer_bytes_max: usize,
    /// How success is determined.
    pub success: Success,
}

/// How success is determined after a status of 200 to 299.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// By the status. The body is read for this long, to reuse the connection and for details; a slow or truncated body
    /// has no effect.
    Head(Duration),
    /// By the complete body, which has the result of each event.
    Whole,
}

/// How long an unused body is read.
pub const EMPTY_BODY_FOR: Duration = Duration::from_millis(50);
/// With less time left, a request is not sent again on a new connection.
const CONNECT_FOR: Duration = Duration::from_secs(1);
/// How long the body of an error response is read.
const REFUSAL_BODY_FOR: Duration = Duration::from_secs(2);

impl HttpRequest {
    /// A POST with a short response.
    pub fn post(url: Url, headers: HeaderMap, body: Bytes, deadline: Duration) -> Self {
        Self {
            method: Method::POST,
            url,
            headers,
            body: Either::Left(Full::new(body)),
            deadline,
            answer_bytes_max: ANSWER_BYTES_MAX,
            success: Success::Whole,
        }
    }

    /// The same request; `None` if its body can be read only once.
    fn repeated(&self) -> Option<Self> {
        let Either::Left(body) = &self.body else {
            return None;
        };
        Some(Self {
            method: self.method.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            body: Either::Left(body.clone()),
            ..*self
        })
    }

    /// Sets that the status decides success.
    pub fn succeeds_by_head(self) -> Self {
        self.succeeds_by_head_within(EMPTY_BODY_FOR)
    }

    /// Like [`Self::succeeds_by_head`], with a body that is used if it arrives in time.
    pub fn succeeds_by_head_within(self, body_for: Duration) -> Self {
        Self {
            success: Success::Head(body_for),
            ..self
        }
    }
}

tokio::task_local! {
    /// The status of the last HTTP response to a send.
    pub static LAST_STATUS: Cell<Option<u16>>;
}

impl Http {
    /// Sends `body` and reads the response within `deadline`. The status decides success.
    pub async fn post(
        &self,
        to: &CheckedUrl,
        headers: HeaderMap,
        body: Bytes,
        deadline: Duration,
    ) -> Result<HttpResponse, Failure> {
        let order = HttpRequest::post(to.url.clone(), headers, body, deadline);
        self.send(order.succeeds_by_head()).await
    }

    /// Reads the document at a URL, whole, within `deadline`.
    pub async fn get(
        &self,
        from: &CheckedUrl,
        deadline: Duration,
    ) -> Result<HttpResponse, Failure> {
        let url = from.url.clone();
        let order = HttpRequest {
            method: Method::GET,
            ..HttpRequest::post(url, HeaderMap::new(), Bytes::new(), deadline)
        };
        self.send(order).await
    }

    /// Sends a request of any form. If the server says that it does not serve the host on this connection, the request is
    /// sent once more on another, unless its body was read from a file or the server asks for a wait.
    pub async fn send(&self, order: HttpRequest) -> Result<HttpResponse, Failure> {
        let until = Instant::now() + order.deadline;
        let again = order.repeated();
        let sent = self.send_once(order, until).await;
        // A server that asks for a wait gets it.
        let is_misdirected = matches!(
            &sent,
            Err(failure) if failure.code == MISDIRECTED && failure.after.is_none()
        );
        match again {
            Some(order) if is_misdirected && Instant::now() + CONNECT_FOR <= until => {
                self.send_once(order, until).await
            }
            _ => sent,
        }
    }

    async fn send_once(&self, order: HttpRequest, until: Instant) -> Result<HttpResponse, Failure> {
        let deadline = order.deadline;
        let late = |_| {
            Failure::new(
                FailureClass::Unknown,
                "timeout",
                format!("no response within {} s", deadline.as_secs()),
            )
        };
        let (success, answer_bytes_max) = (order.success, order.answer_bytes_max);
        let head = tokio::time::timeout_at(until, self.exchange(order)).await;
        let (head, mut body) = head.map_err(late)??.into_parts();
        // Requests that are part of no send, such as test events, have no place for it.
        LAST_STATUS
            .try_with(|last| last.set(Some(head.status.as_u16())))
            .ok();
        let retry_after = head
            .headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| RetryAfter::parse(value, self.guarded.0.now()));
        if head.status == StatusCode::MISDIRECTED_REQUEST {
            // The fault is that of the connection, not of the content (RFC 9110, 15.5.20).
            self.plain.renew();
            self.tls.renew();
            let text = "the server does not serve this host on this connection";
            return Err(Failure {
                after: retry_after,
                ..Failure::new(FailureClass::Retryable, MISDIRECTED, text)
            });
        }
        let is_success = head.status.is_success();
        let body_until = match (is_success, success) {
            (true, Success::Whole) => until,
            (true, Success::Head(body_for)) => until.min(Instant::now() + body_for),
            (false, _) => until.min(Instant::now() + REFUSAL_BODY_FOR),
        };
        let mut text = Vec::new();
        let mut trailers = HeaderMap::new();
        let reading = read(&mut body, answer_bytes_max, &mut text, &mut trailers);
        let outcome = tokio::time::timeout_at(body_until, reading).await;
        if is_success && success == Success::Whole {
            outcome.map_err(late)??;
        }
        Ok(HttpResponse {
            status: head.status.as_u16(),
            headers: head.headers,
            trailers,
            retry_after,
            text: String::from_utf8_lossy(&text).into_owned(),
            body: text.into(),
        })
    }

    /// Sends the request and returns the response with its headers.
    async fn exchange(&self, order: HttpRequest) -> Result<Response<Incoming>, Failure> {
        let uri: Uri = order
            .url
            .as_str()
            .parse()
            .map_err(|_| Failure::new(FailureClass::Config, "url", "the URL is invalid"))?;
        let mut request = Request::new(order.body);
        *request.method_mut() = order.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = order.headers;
        request
            .headers_mut()
            .entry(header::USER_AGENT)
            .or_insert(header::HeaderValue::from_static("culvert"));
        let answer = if order.url.scheme() == "https" {
            let config = self.guarded.0.tls().await;
            let mut config = config.map_err(|fault| no_tls(&fault))?;
            let client = self.tls.get(|| {
                if self.is_http2 {
                    Arc::make_mut(&mut config).alpn_protocols = vec![b"h2".to_vec()];
                }
                let connector = HttpsConnector::from((self.guarded.clone(), config));
                pool(connector, self.is_http2)
            });
            client.request(request).await
        } else {
            let make = || pool(self.guarded.clone(), self.is_http2);
            self.plain.get(make).request(request).await
        };
        answer.map_err(|error| {
            let connecting = error.is_connect();
            blame(&error, connecting)
        })
    }
}

/// Reads a body up to a maximum size.
async fn read(
    body: &mut Incoming,
    bytes_max: usize,
    text: &mut Vec<u8>,
    trailers: &mut HeaderMap,
) -> Result<(), Failure> {
    while text.len() < bytes_max {
        match body.frame().await {
            Some(Ok(frame)) => match frame.into_data().map_err(hyper::body::Frame::into_trailers) {
                Ok(data) => {
                    let room = bytes_max - text.len();
                    text.extend_from_slice(&data[..data.len().min(room)]);
                }
                Err(Ok(end)) => *trailers = end,
                Err(Err(_)) => {}
            },
            Some(Err(error)) => return Err(blame(&error, false)),
            None => break,
        }
    }
    Ok(())
}

fn pool<C>(connector: C, is_http2: bool) -> Client<C, Body>
where
    C: hyper_util::client::legacy::connect::Connect + Clone,
{
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(1)
        .pool_timer(TokioTimer::new())
        .http1_max_headers(64)
        .http1_max_buf_size(ANSWER_BYTES_MAX)
        .http2_only(is_http2)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .build(connector)
}

/// Makes connections through the guard.
#[derive(Clone, Debug)]
struct Guarded(Net, HostSource);

/// The origin of a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostSource {
    /// A user: the rules apply.
    Judged,
    /// The operator, in a setting.
    NamedByOperator,
}

impl tower_service::Service<Uri> for Guarded {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self(net, source) = self.clone();
        Box::pin(async move {
            let (scheme, usual) = match uri.scheme_str() {
                Some("http") => (ProxiedScheme::Http, 80),
                _ => (ProxiedScheme::Https, 443),
            };
            let port = uri.port_u16().unwrap_or(usual);
            let host = uri.host().unwrap_or_default();
            let proxy = net.inner.settings.proxies.of(scheme, host, port);
            net.connect_in_time(host, port, source, proxy)
                .await
                .map(TokioIo::new)
        })
    }
}

/// The failure of an exchange. Its text has neither addresses nor the URL.
pub fn blame(error: &(dyn Error + 'static), connecting: bool) -> Failure {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(denied) = cause.downcast_ref::<Denied>() {
            return Failure::new(FailureClass::Config, "address", denied.to_string());
        }
        if let Some(proxy) = cause.downcast_ref::<ProxyError>() {
            let class = match proxy.needs_operator() {
                true => FailureClass::Config,
                false => FailureClass::Retryable,
            };
            return Failure::new(class, "proxy", proxy.to_string());
        }
        if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
            let class = match tls {
                rustls::Error::InvalidCertificate(_) => FailureClass::Config,
                _ => FailureClass::Retryable,
            };
            return Failure::new(class, "tls", tls.to_string());
        }
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            if let Some(inner) = io.get_ref() {
                let inner: &(dyn Error + 'static) = inner;
                let is_known = inner.is::<Denied>()
                    || inner.is::<ProxyError>()
                    || inner.is::<rustls::Error>()
                    || inner.is::<io::Error>();
                if is_known {
                    return blame(inner, connecting);
                }
                if inner.source().is_none() && !inner.is::<hyper::Error>() {
                    return Failure::new(class_of(connecting), "connection", inner.to_string());
                }
            } else {
                return Failure::new(class_of(connecting), "connection", io.kind().to_string());
            }
        }
        next = cause.source();
    }
    let text = if connecting {
        "connecting failed"
    } else {
        "the connection failed before the response was complete"
    };
    Failure::new(class_of(connecting), "connection", text)
}

fn class_of(connecting: bool) -> FailureClass {
    if connecting {
        FailureClass::Retryable
    } else {
        FailureClass::Unknown
    }
}

/// The resolver of the operating system, created at first use.
#[derive(Default)]
struct SystemResolver(OnceLock<Result<hickory_resolver::TokioResolver, String>>);

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemResolver")
    }
}

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        Box::pin(async move {
            let resolver = self
                .0
                .get_or_init(|| {
                    hickory_resolver::TokioResolver::builder_tokio()
                        .map(|mut builder| {
                            builder.options_mut().ip_strategy =
                                hickory_resolver::config::LookupIpStrategy::Ipv4AndIpv6;
                            builder
                        })
                        .and_then(|builder| builder.build())
                        .map_err(|error| error.to_string())
                })
                .as_ref()
                .map_err(|error| {
                    tracing::error!(cause = %error, "cannot configure the resolver");
                    "the resolver is not configured on this server".to_owned()
                })?;
            let found = resolver
                .lookup_ip(host)
                .await
                .map_err(|_| "the host name does not resolve".to_owned())?;
            Ok(found.iter().collect())
        })
    }
}

#[cfg(test)]
mod tests;
