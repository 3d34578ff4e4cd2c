//! A client of the management API, for the command line and the demo.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use culvert_base::net::without_secrets;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

pub use culvert_command::read_token;

/// The user agent, by which audit events recognise the command line.
const USER_AGENT: &str = concat!("culvert-cli/", env!("CARGO_PKG_VERSION"));

/// A client with one URL and one token.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    token: String,
    /// Where the token is from, for the message that the API refuses it.
    origin: Option<Arc<str>>,
    http: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// A response of the API.
#[derive(Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub status: u16,
    /// The body; `null` if there is none.
    pub body: Value,
    /// Where the refused token is from; `None` if it was not refused.
    origin: Option<Arc<str>>,
}

impl Client {
    /// A client of the API at `base`, such as `http://127.0.0.1:8420`.
    pub fn new(base: &str, token: String) -> Result<Self> {
        Self::with_authorities(base, token, None)
    }

    /// A client that trusts the CAs in this PEM text, and no others.
    pub fn with_authorities(base: &str, token: String, pem: Option<&[u8]>) -> Result<Self> {
        let uri: http::Uri = base
            .parse()
            .with_context(|| format!("`{}` is not a URL", without_secrets(base)))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            let base = without_secrets(base);
            bail!("`{base}` is not an http or https URL");
        }
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let with_roots = |roots: RootCertStore| {
            let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider.clone()))
                .with_safe_default_protocol_versions()
                .context("setting up TLS")?;
            anyhow::Ok(config.with_root_certificates(roots).with_no_client_auth())
        };
        let builder = match pem {
            // A machine without certificate authorities reaches its own server.
            None if uri.scheme_str() == Some("http") => {
                builder.with_tls_config(with_roots(RootCertStore::empty())?)
            }
            None => builder
                .with_provider_and_native_roots(provider)
                .context("reading the system's certificate authorities")?,
            Some(pem) => builder.with_tls_config(with_roots(roots(pem)?)?),
        };
        let connector = builder.https_or_http().enable_http1().build();
        let http =
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self {
            base: base.trim_end_matches('/').to_owned(),
            token,
            origin: None,
            http,
        })
    }

    /// Says where the token is from: a part of a sentence, such as "it is `ak_…` of the file `x`".
    #[must_use]
    pub fn with_origin(self, origin: Option<Arc<str>>) -> Self {
        Self { origin, ..self }
    }

    /// Sends one request. Error responses are `Ok`.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<ApiResponse> {
        self.call_because(method, path, body, None).await
    }

    /// Like [`Self::call`], for an update that follows this event about its object.
    pub async fn call_because(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        cause: Option<&str>,
    ) -> Result<ApiResponse> {
        let response = self.send(method, path, body, cause).await?;
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .context("reading the API response")?;
        let bytes = bytes.to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).context("the API response is not JSON")?
        };
        Ok(self.response(status, body))
    }

    /// Sends a request that must succeed. An error response becomes an error with its message.
    pub async fn expect(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = self.call(method, path, body).await?;
        if answer.status >= 300 {
            bail!("{}", answer.refusal());
        }
        Ok(answer.body)
    }

    /// Reads a stream of server-sent events until the server ends it or `each` returns false. `each` receives the
    /// name and the data of each event.
    pub async fn follow(&self, path: &str, mut each: impl FnMut(&str, &str) -> bool) -> Result<()> {
        let response = self.send(Method::GET, path, None, None).await?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await?.to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            bail!("{}", self.response(status, body).refusal());
        }
        let mut body = response.into_body();
        let mut pending: Vec<u8> = Vec::new();
        let (mut name, mut data) = (String::from("message"), String::new());
        while let Some(frame) = body.frame().await {
            let Ok(bytes) = frame.context("reading the event stream")?.into_data() else {
                continue;
            };
            pending.extend_from_slice(&bytes);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end_matches(['\r', '\n']);
                if line.is_empty() {
                    if !data.is_empty() && !each(&name, &data) {
                        return Ok(());
                    }
                    name = "message".into();
                    data.clear();
                } else if let Some(text) = line.strip_prefix("event:") {
                    name = text.trim_start().to_owned();
                } else if let Some(text) = line.strip_prefix("data:") {
                    data.push_str(text.strip_prefix(' ').unwrap_or(text));
                }
            }
        }
        Ok(())
    }

    fn response(&self, status: u16, body: Value) -> ApiResponse {
        let is_refused = status == 401;
        ApiResponse {
            status,
            body,
            origin: self.origin.clone().filter(|_| is_refused),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        cause: Option<&str>,
    ) -> Result<http::Response<Incoming>> {
        // The link to the next page is absolute; other paths are relative to the base.
        let uri = if path.starts_with("http://") || path.starts_with("https://") {
            path.to_owned()
        } else {
            format!("{}{path}", self.base)
        };
        let mut request = Request::builder()
            .method(method)
            .uri(&uri)
            .header(header::USER_AGENT, USER_AGENT);
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        }
        if let Some(cause) = cause {
            request = request.header("culvert-cause", cause);
        }
        let bytes = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request
            .body(Full::new(bytes))
            .context("building the request")?;
        self.http.request(request).await.with_context(|| {
            format!(
                "no response from the API at {}; is `culvert serve` running?",
                self.base
            )
        })
    }
}

impl ApiResponse {
    /// The message of an error response.
    pub fn refusal(&self) -> String {
        let message = self.body["msg"]
            .as_str()
            .unwrap_or("the API returned no message");
        let origin = match &self.origin {
            Some(origin) => format!("; {origin}"),
            None => String::new(),
        };
        match self.body["error_code"].as_str() {
            Some(code) => format!("{message} ({code}, HTTP {}){origin}", self.status),
            None => format!("{message} (HTTP {}){origin}", self.status),
        }
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.context("the CA file is not valid PEM")?;
        roots.add(certificate).context("a CA is unusable")?;
    }
    if roots.is_empty() {
        bail!("the CA file contains no certificate");
    }
    Ok(roots)
}
