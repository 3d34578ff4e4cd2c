//! Health checks of upstreams: one connection, at most one request, and what its response must be.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TE, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use memchr::memmem;

use super::{Pool, StreamTasks};
use crate::connector::Connector;
use crate::dial_error::DialError;
use crate::ports::{PoolOwner, UploadBody};
use crate::stream::UpstreamStream;
use crate::upstream::Protocol;

/// How much of a body is searched, in bytes.
const BODY_MAX: usize = 64 << 10;
const GRPC_PATH: &str = "/grpc.health.v1.Health/Check";
const USER_AGENT_VALUE: HeaderValue = HeaderValue::from_static("culvert-health-check");

/// What a health check does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Connects, with TLS if the upstream has it.
    Tcp,
    /// Sends a request for a path.
    Http(HttpProbe),
    /// Asks the health service of gRPC (`grpc.health.v1`) for this service; empty for the whole server. The upstream speaks
    /// HTTP/2.
    Grpc(String),
}

/// A check by an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// Whether the method is HEAD, and not GET.
    pub is_head: bool,
    /// Path with query.
    pub path: String,
    /// The Host field; empty for the host of the upstream.
    pub host: String,
    /// The statuses that pass.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// A text that the first 64 KiB of the body must have; empty for any body.
    pub body: String,
}

/// Why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// The upstream cannot be connected to.
    #[error("{0}")]
    Dial(DialError),
    /// The exchange failed.
    #[error("no response: {0}")]
    Http(#[from] hyper::Error),
    /// The check took too long.
    #[error("no response in time")]
    TooSlow,
    /// The response has another status.
    #[error("status {0}")]
    Status(u16),
    /// The body lacks the text.
    #[error("the body does not have the expected text")]
    Body,
    /// The health service reports an error.
    #[error("gRPC status {0}")]
    GrpcStatus(String),
    /// The health service says that the service does not serve.
    #[error("the gRPC health service says {0}")]
    NotServing(&'static str),
    /// The check cannot be sent, such as a path that is no path.
    #[error("the request of the check is invalid")]
    Invalid,
}

impl ProbeFailure {
    /// Whether this process, and not the upstream, is the cause.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Dial(error) if error.is_local())
    }
}

impl Probe {
    /// Whether it sends a request, which only an upstream of HTTP understands.
    pub fn is_http(&self) -> bool {
        !matches!(self, Self::Tcp)
    }
}

impl<B: UploadBody> Pool<B> {
    /// Opens a connection for a check, within `limit`. Other endpoints share the pool, so it learns nothing of that.
    ///
    /// # Errors
    ///
    /// The upstream cannot be connected to.
    pub async fn dial_apart(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        limit: Duration,
    ) -> Result<UpstreamStream, ProbeFailure> {
        let wire = connector.dial(self.upstream(), limit, false).await;
        wire.map_err(ProbeFailure::Dial)
    }

    /// Checks the upstream on a new connection.
    ///
    /// # Errors
    ///
    /// It does not pass.
    pub async fn check_health(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        wire: UpstreamStream,
        probe: &Probe,
    ) -> Result<(), ProbeFailure> {
        match probe {
            Probe::Tcp => Ok(()),
            Probe::Http(http) => {
                let request = self.request_of(http)?;
                let response = self.exchange(connector, wire, request);
                http.judge(response.await?).await
            }
            Probe::Grpc(service) => {
                let request = self.grpc_request(service)?;
                let response = self.exchange(connector, wire, request);
                judge_grpc(response.await?).await
            }
        }
    }

    /// Sends a request as the only one of a connection.
    async fn exchange(
        &self,
        connector: &Connector<'_, impl PoolOwner>,
        wire: UpstreamStream,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ProbeFailure> {
        let wire = TokioIo::new(wire);
        match self.upstream().protocol() {
            Protocol::Http2 => {
                let tasks = StreamTasks(Arc::clone(connector.owner));
                let (mut sender, connection) =
                    http2::Builder::new(tasks.clone()).handshake(wire).await?;
                // It ends with the sender and the response.
                connector.owner.track(async move { drop(connection.await) });
                Ok(sender.send_request(request).await?)
            }
            Protocol::Http1 => {
                let (mut sender, connection) = http1::handshake(wire).await?;
                connector.owner.track(async move { drop(connection.await) });
                Ok(sender.send_request(request).await?)
            }
        }
    }

    fn request_of(&self, probe: &HttpProbe) -> Result<Request<Full<Bytes>>, ProbeFailure> {
        let host = match probe.host.as_str() {
            "" => self.upstream().authority(),
            host => host.to_owned(),
        };
        let mut request = Request::new(Full::default());
        if probe.is_head {
            *request.method_mut() = Method::HEAD;
        }
        self.address(&mut request, &host, &probe.path)?;
        Ok(request)
    }

    /// Sets the target of a request, and the fields that each check has.
    fn address(
        &self,
        request: &mut Request<Full<Bytes>>,
        host: &str,
        path: &str,
    ) -> Result<(), ProbeFailure> {
        let is_http2 = self.upstream().protocol() == Protocol::Http2;
        let target = match (is_http2, self.upstream().is_tls()) {
            (false, _) => path.to_owned(),
            (true, false) => format!("http://{host}{path}"),
            (true, true) => format!("https://{host}{path}"),
        };
        *request.uri_mut() = target.parse().map_err(|_| ProbeFailure::Invalid)?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, USER_AGENT_VALUE);
        if is_http2 {
            *request.version_mut() = Version::HTTP_2;
        } else {
            let host = HeaderValue::from_str(host).map_err(|_| ProbeFailure::Invalid)?;
            headers.insert(HOST, host);
        }
        Ok(())
    }

    fn grpc_request(&self, service: &str) -> Result<Request<Full<Bytes>>, ProbeFailure> {
        let mut request = Request::new(Full::new(grpc_message(service)));
        *request.method_mut() = Method::POST;
        self.address(&mut request, &self.upstream().authority(), GRPC_PATH)?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        Ok(request)
    }
}

impl HttpProbe {
    /// Whether a text is a path with or without a query that a request may have.
    pub fn is_path(text: &str) -> bool {
        text.starts_with('/')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'#')
            && text.parse::<PathAndQuery>().is_ok()
    }

    /// Whether a text is a host with or without a port.
    pub fn is_host(text: &str) -> bool {
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        is_visible && !text.contains('@') && text.parse::<Authority>().is_ok()
    }

    async fn judge(&self, response: Response<Incoming>) -> Result<(), ProbeFailure> {
        let status = response.status().as_u16();
        if !self.statuses.iter().any(|range| range.contains(&status)) {
            return Err(ProbeFailure::Status(status));
        }
        if self.body.is_empty() {
            return Ok(());
        }
        let body = begin_of(response.into_body()).await?;
        match memmem::find(&body.0, self.body.as_bytes()) {
            Some(_) => Ok(()),
            None => Err(ProbeFailure::Body),
        }
    }
}

/// The begin of a body, and its trailers if it ends within [`BODY_MAX`].
async fn begin_of(mut body: Incoming) -> Result<(Bytes, HeaderMap), ProbeFailure> {
    let mut begin = BytesMut::new();
    let mut trailers = HeaderMap::new();
    while begin.len() < BODY_MAX {
        let Some(frame) = body.frame().await else {
            break;
        };
        match frame?.into_data() {
            Ok(data) => begin.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    begin.truncate(BODY_MAX);
    Ok((begin.freeze(), trailers))
}

/// `HealthCheckRequest` of `grpc.health.v1`: field 1 is the service. Before it stand the flag of compression and the length.
fn grpc_message(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    // A name of at most 127 bytes has a length of one byte.
    if let Ok(length @ 1..=127) = u8::try_from(service.len()) {
        message.put_slice(&[0x0a, length]);
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(0));
    framed.put_slice(&message);
    framed.freeze()
}

async fn judge_grpc(response: Response<Incoming>) -> Result<(), ProbeFailure> {
    if response.status() != StatusCode::OK {
        return Err(ProbeFailure::Status(response.status().as_u16()));
    }
    let (head, body) = response.into_parts();
    let (body, trailers) = begin_of(body).await?;
    // A response without a message has the status among its fields.
    let status = trailers.get("grpc-status");
    let status = status.or_else(|| head.headers.get("grpc-status"));
    match status.map(HeaderValue::as_bytes) {
        Some(b"0") => {}
        other => {
            let status = other.map_or("missing", |status| {
                let is_number = status.len() <= 3 && status.iter().all(u8::is_ascii_digit);
                let number = std::str::from_utf8(status).ok().filter(|_| is_number);
                number.unwrap_or("invalid")
            });
            return Err(ProbeFailure::GrpcStatus(status.to_owned()));
        }
    }
    serving(&body)
}

/// Reads a framed `HealthCheckResponse`: field 1 is the status, and 1 means that the service serves.
fn serving(framed: &[u8]) -> Result<(), ProbeFailure> {
    match framed.get(5..) {
        Some([0x08, 1, ..]) => Ok(()),
        Some([0x08, 2, ..]) => Err(ProbeFailure::NotServing("NOT_SERVING")),
        Some([0x08, 3, ..]) => Err(ProbeFailure::NotServing("SERVICE_UNKNOWN")),
        _ => Err(ProbeFailure::NotServing("UNKNOWN")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those of the protocol's description: `08 01` is `status: SERVING`.
    #[test]
    fn messages_of_the_health_service_are_framed() {
        assert_eq!(&*grpc_message(""), [0, 0, 0, 0, 0]);
        assert_eq!(&*grpc_message("a.B"), b"\0\0\0\0\x05\x0a\x03a.B");
        assert!(serving(&[0, 0, 0, 0, 2, 0x08, 1]).is_ok());
        for other in [
            &[0, 0, 0, 0, 2, 0x08, 2][..],
            &[0, 0, 0, 0, 2, 0x08, 3],
            &[0, 0, 0, 0, 0],
            &[],
        ] {
            assert!(serving(other).is_err(), "{other:?}");
        }
    }
}
