//! HTTPS towards an authority: one request on a connection of its own, with a limit on everything.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue, RETRY_AFTER};
use http::uri::Scheme;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::downstream::lock;

/// From the first packet to the last byte of the answer.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// No answer of an authority is nearly as long.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest wait an authority may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests. Clones share what was last heard of waiting.
#[derive(Clone)]
pub(super) struct Https {
    connector: TlsConnector,
    /// What the last answer that was a refusal asked for.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Https {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self {
            connector: TlsConnector::from(Arc::new(config)),
            retry_after: Arc::default(),
        }
    }

    /// How long the last refusal asked us to wait.
    pub(super) fn take_retry_after(&self) -> Option<Duration> {
        lock(&self.retry_after).take()
    }

    fn heard(&self, answer: &Response<Bytes>) {
        if answer.status().is_success() {
            return;
        }
        let seconds = answer.headers().get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let wait = seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        *lock(&self.retry_after) = wait;
    }
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let host = request.uri().host().unwrap_or_default().to_owned();
            let answered = tokio::time::timeout(REQUEST_WITHIN, exchange(&this.connector, request));
            let answer = match answered.await {
                Ok(answer) => answer.map_err(|cause| format!("asking {host}: {cause}")),
                Err(_) => Err(format!("asking {host}: it does not answer in time")),
            };
            let answer = answer.map_err(|why| Error::Other(why.into()))?;
            this.heard(&answer);
            Ok(BytesResponse::from(answer.map(Full::new)))
        })
    }
}

async fn exchange(
    connector: &TlsConnector,
    mut request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, Cause> {
    let uri = request.uri().clone();
    if uri.scheme() != Some(&Scheme::HTTPS) {
        return Err("only https is spoken with an authority".into());
    }
    let authority = uri.authority().ok_or("the address names no host")?;
    let host = authority.host();
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(plain.to_owned())?;
    let tcp = TcpStream::connect((plain, authority.port_u16().unwrap_or(443))).await?;
    let tls = connector.connect(name, tcp).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tls)).await?;

    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = Uri::try_from(target)?;
    let host = HeaderValue::from_str(authority.as_str())?;
    request.headers_mut().insert(HOST, host);
    let answer = async {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
        Ok::<_, Cause>(Response::from_parts(parts, body.to_bytes()))
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // What it ended with is told to the one who waits for the answer.
        _ = &mut connection => answer.await,
    }
}
