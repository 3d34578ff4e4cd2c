//! Connections of the probes, and messages of HTTP/1 on them.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_base::Timestamp;
use culvert_tls::server_certificate::expires_at;
use http::{HeaderMap, StatusCode};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::commands::doctor::listeners::roots;
use culvert_installation::config::Settings;

pub(super) const USER_AGENT: &str = concat!("culvert-doctor/", env!("CARGO_PKG_VERSION"));
/// Most bytes of a response head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes of one write of an upload.
const PIECE_BYTES: u64 = 64 << 10;

/// A connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The server of a URL.
pub(super) struct Target {
    pub(super) url: Url,
    /// Without the brackets of an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
    /// Those that accept connections.
    pub(super) addresses: Vec<SocketAddr>,
    roots: Arc<RootCertStore>,
}

/// What a TLS client offers.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    protocols: Vec<Vec<u8>>,
    is_tls12: bool,
    is_named: bool,
}

impl Offer {
    pub(super) fn new(protocols: &[&str]) -> Self {
        Self {
            protocols: protocols.iter().map(|it| it.as_bytes().to_vec()).collect(),
            is_tls12: false,
            is_named: true,
        }
    }

    /// Nothing newer than TLS 1.2.
    pub(super) fn tls12(self) -> Self {
        Self {
            is_tls12: true,
            ..self
        }
    }

    /// Without server name.
    pub(super) fn unnamed(self) -> Self {
        Self {
            is_named: false,
            ..self
        }
    }
}

/// A connection on which requests may be sent.
pub(super) struct Dialled {
    pub(super) io: Box<dyn Io>,
    /// That of TLS, if there is TLS.
    pub(super) version: Option<ProtocolVersion>,
    /// The choice of ALPN.
    pub(super) protocol: Option<Vec<u8>>,
    /// The end of the certificate.
    pub(super) expires: Option<Timestamp>,
}

/// The head of a response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    fields: Vec<(String, String)>,
}

impl Answer {
    pub(super) fn of(status: StatusCode, fields: &HeaderMap) -> Self {
        let fields = fields.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), value.into_owned())
        });
        Self {
            status: status.as_u16(),
            fields: fields.collect(),
        }
    }

    /// The first field of this name, which is in lower case.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields
            .find(|(of, _)| of == name)
            .map(|(_, value)| value.as_str())
    }

    /// Reads a head; `None` if it is none.
    fn read(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let rest = lines.next()?.strip_prefix("HTTP/1.")?;
        let status = rest.get(2..5)?.parse().ok()?;
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields =
            fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Some(Self {
            status,
            fields: fields.collect(),
        })
    }
}

impl Target {
    pub(super) fn new(url: Url, settings: &Settings) -> Self {
        let host = url.host_str().unwrap_or_default();
        Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(443),
            url,
            addresses: Vec::new(),
            roots: Arc::new(roots(settings)),
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// A TCP connection to this address.
    pub(super) async fn dial_to(&self, address: SocketAddr) -> Result<TcpStream, String> {
        let stream = TcpStream::connect(address).await;
        stream.map_err(|error| error.to_string())
    }

    /// A TCP connection to the first address.
    pub(super) async fn dial_tcp(&self) -> Result<TcpStream, String> {
        let address = self.addresses.first().ok_or("there is no address")?;
        self.dial_to(*address).await
    }

    /// A connection, with TLS if the URL has it.
    pub(super) async fn dial(&self, offer: &Offer) -> Result<Dialled, String> {
        let stream = self.dial_tcp().await?;
        if !self.is_tls() {
            return Ok(Dialled {
                io: Box::new(stream),
                version: None,
                protocol: None,
                expires: None,
            });
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = match offer.is_tls12 {
            true => builder.with_protocol_versions(&[&rustls::version::TLS12]),
            false => builder.with_safe_default_protocol_versions(),
        };
        let mut config = builder
            .map_err(|error| error.to_string())?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_no_client_auth();
        config.alpn_protocols.clone_from(&offer.protocols);
        config.enable_sni = offer.is_named;
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = connecting.await.map_err(|error| error.to_string())?;
        let (_, session) = stream.get_ref();
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        Ok(Dialled {
            version: session.protocol_version(),
            protocol: session.alpn_protocol().map(<[u8]>::to_vec),
            expires: leaf.and_then(expires_at),
            io: Box::new(stream),
        })
    }

    /// A request for the URL without body. `fields` are whole lines.
    pub(super) fn request(&self, method: &str, version: &str, fields: &str) -> String {
        let host = &self.url[url::Position::BeforeHost..url::Position::AfterPort];
        let path = &self.url[url::Position::BeforePath..url::Position::AfterQuery];
        let close = match fields.contains("Connection:") || version == "1.0" {
            true => "",
            false => "Connection: close\r\n",
        };
        format!(
            "{method} {path} HTTP/{version}\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nAccept: */*\r\n{close}{fields}\r\n"
        )
    }

    /// Sends a request without body on a new connection, and reads the head of the response.
    pub(super) async fn ask(&self, request: &str) -> Result<Answer, String> {
        let mut io = self.dial(&Offer::new(&["http/1.1"])).await?.io;
        send(&mut io, request.as_bytes()).await?;
        head(&mut io).await
    }

    /// Sends a body of zeros until it is sent or a response arrives. Returns the response and the bytes that were sent.
    pub(super) async fn upload(&self, bytes: u64) -> Result<(Answer, u64), String> {
        let io = self.dial(&Offer::new(&["http/1.1"])).await?.io;
        let (mut read, mut write) = tokio::io::split(io);
        let fields =
            format!("Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n");
        let request = self.request("POST", "1.1", &fields);
        let mut taken = 0;
        let sending = async {
            send(&mut write, request.as_bytes()).await?;
            let piece = [0; PIECE_BYTES as usize];
            while taken < bytes {
                let length = usize::try_from((bytes - taken).min(PIECE_BYTES)).unwrap_or(0);
                send(&mut write, piece.get(..length).unwrap_or_default()).await?;
                taken += length as u64;
            }
            Ok::<_, String>(())
        };
        let mut sending = Box::pin(sending);
        let mut reading = Box::pin(head(&mut read));
        let answer = tokio::select! {
            biased;
            answer = &mut reading => answer?,
            // A server that closes may have responded before.
            _ = &mut sending => reading.await?,
        };
        drop(sending);
        Ok((answer, taken))
    }
}

async fn send(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), String> {
    let sent = io.write_all(bytes).await;
    sent.map_err(|error| error.to_string())?;
    io.flush().await.map_err(|error| error.to_string())
}

/// Reads the head of a final response, or of a 101.
async fn head(io: &mut (impl AsyncRead + Unpin)) -> Result<Answer, String> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
            let answer = Answer::read(&text).ok_or("the response is not one of HTTP/1")?;
            if answer.status >= 200 || answer.status == 101 {
                return Ok(answer);
            }
            bytes.drain(..end + 4);
            continue;
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err("the head of the response is too long".into());
        }
        match io.read_buf(&mut bytes).await {
            Ok(0) => return Err("the connection closed".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(bytes: &[u8]) -> Option<(u16, Option<String>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let mut bytes = bytes;
        let answer = runtime.unwrap().block_on(head(&mut bytes)).ok()?;
        Some((answer.status, answer.field("a").map(str::to_owned)))
    }

    #[test]
    fn heads_of_responses() {
        let field = |text: &str| Some(text.to_owned());
        assert_eq!(
            reads(b"HTTP/1.1 200 OK\r\nA: b \r\n\r\nx"),
            Some((200, field("b")))
        );
        assert_eq!(
            reads(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 413\r\n\r\n"),
            Some((413, None))
        );
        assert_eq!(
            reads(b"HTTP/1.1 101 x\r\na: 1\r\na: 2\r\n\r\n"),
            Some((101, field("1")))
        );
        assert_eq!(reads(b"HTTP/1.1 200 OK\r\n"), None);
        assert_eq!(reads(b"SSH-2.0-x\r\n\r\n"), None);
        assert_eq!(reads(b""), None);
    }
}
