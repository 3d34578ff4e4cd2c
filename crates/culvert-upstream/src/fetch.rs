//! Single HTTP requests that the edge sends: to services that policies name, and to certificate authorities.
//!
//! Each request uses a new connection and follows no redirects.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use culvert_base::{BoxFuture, Fault, Share};
use culvert_http::http1::head::is_status;
use culvert_io::forward_proxy::Proxies;
use culvert_policy::services::{self, Call, Cause, Fetch};
use culvert_tls::acme;
use http::header::{HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls_pki_types::CertificateDer;
use url::{Position, Url};

use crate::dialer::Dialer;
use crate::guard::AddressGuard;
use crate::upstream::Upstream;

/// Sends requests to public addresses.
#[derive(Clone, Debug)]
pub struct PublicClient(Dialer);

impl PublicClient {
    /// Creates a client that connects within `connect` and trusts `roots` besides the system's. It connects
    /// to non-public addresses only in `allow_networks`, and never to `own`, the addresses of this process.
    ///
    /// # Errors
    ///
    /// A root certificate is invalid.
    pub fn new(
        roots: &[CertificateDer<'static>],
        connect: Duration,
        allow_networks: &[IpNet],
        own: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<Self, Fault> {
        let guard = AddressGuard::new(false, allow_networks);
        let dialer = Dialer::new(roots, connect, guard)
            .map_err(|error| Fault::new("reading root certificates", error))?;
        Ok(Self(dialer.to_public(own)))
    }

    /// Sends requests through these proxies.
    #[must_use]
    pub fn through(self, proxies: Proxies) -> Self {
        Self(self.0.through(proxies))
    }

    /// Whether it may connect to an address. Metadata services are no exception.
    pub fn may_reach(&self, address: IpAddr) -> bool {
        self.0.guard().admits(&[SocketAddr::new(address, 0)])
    }
}

/// Connections to upstreams and public hosts under the current settings.
#[derive(Debug)]
pub struct Network {
    /// Connects. Replaced when settings are read again.
    pub dialer: ArcSwap<Dialer>,
    /// The addresses of this process for HTTP and TLS.
    own: Vec<SocketAddr>,
}

impl Network {
    /// Connects with `dialer`. `own` are the addresses where this process listens for HTTP and TLS.
    pub fn new(dialer: Dialer, own: Vec<SocketAddr>) -> Self {
        Self {
            dialer: ArcSwap::from_pointee(dialer),
            own,
        }
    }
}

impl Fetch for Network {
    fn fetch(
        &self,
        share: Share,
        scope: services::FetchScope,
        call: Call,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<(response::Parts, Bytes), Cause>> {
        Box::pin(async move {
            let dialer = self.dialer.load_full();
            let dialer = match scope {
                services::FetchScope::Upstreams => dialer,
                services::FetchScope::Public => {
                    Arc::new(dialer.to_public(self.own.iter().copied()))
                }
            };
            let Call {
                method,
                url,
                headers,
                body,
            } = call;
            let request = (method, &url, headers, body);
            send(&dialer, share, request, bytes_max).await
        })
    }
}

impl acme::Fetch for PublicClient {
    fn fetch(
        &self,
        request: Request<Bytes>,
        bytes_max: usize,
    ) -> BoxFuture<'_, Result<Response<Bytes>, Cause>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let url = Url::parse(&parts.uri.to_string())?;
            let (method, headers) = (parts.method, parts.headers);
            let request = (method, &url, headers, body);
            let response = send(&self.0, Share::of_owner(""), request, bytes_max);
            let (head, body) = response.await?;
            Ok(Response::from_parts(head, body))
        })
    }
}

/// Sends a request on a new connection and reads the complete response, whose body may have at most
/// `bytes_max` bytes.
async fn send(
    dialer: &Dialer,
    share: Share,
    (method, url, headers, body): (Method, &Url, HeaderMap, Bytes),
    bytes_max: usize,
) -> Result<(response::Parts, Bytes), Cause> {
    let origin = &url[..Position::BeforePath];
    let wire = dialer
        .dial_by_proxy(&Upstream::parse(origin, "")?, share)
        .await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(wire)).await?;
    let authority = &url[Position::BeforeHost..Position::AfterPort];
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = url[Position::BeforePath..Position::AfterQuery].parse()?;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(authority)?);
    let own_name = || HeaderValue::from_static("culvert");
    headers.entry(USER_AGENT).or_insert_with(own_name);
    let response = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        if !is_status(head.status) {
            return Err(Cause::from("its status is not one of HTTP"));
        }
        let body = Limited::new(body, bytes_max).collect().await?;
        Ok::<_, Cause>((head, body.to_bytes()))
    };
    let (mut response, mut connection) = (std::pin::pin!(response), std::pin::pin!(connection));
    tokio::select! {
        biased;
        response = &mut response => response,
        // The error of the connection also reaches the task that waits for the response.
        _ = &mut connection => response.await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The result of a request to a URL if these networks are allowed.
    async fn ask(url: &str, networks: &[IpNet], own: &TcpListener) -> String {
        let own = [own.local_addr().unwrap()];
        let client = PublicClient::new(&[], Duration::from_secs(5), networks, own).unwrap();
        let request = Request::get(url).body(Bytes::new()).unwrap();
        match acme::Fetch::fetch(&client, request, 64 << 10).await {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn only_public_or_allowed_addresses_are_fetched() {
        let everywhere = ["0.0.0.0/0", "::/0"].map(|network| network.parse().unwrap());
        let authority = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = authority.local_addr().unwrap().port();
        for host in [
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0x7f.1",
            "10.0.0.1",
            "169.254.169.254",
        ] {
            let why = ask(&format!("https://{host}:{port}/dir"), &[], &own).await;
            assert!(why.contains("the address is private"), "{host}: {why}");
        }
        for host in [
            "169.254.169.254",
            "169.254.170.2",
            "100.100.100.200",
            "[fd00:ec2::254]",
        ] {
            let why = ask(&format!("https://{host}/dir"), &everywhere, &own).await;
            assert!(why.contains("the address is private"), "{host}: {why}");
        }
        let at_own = format!("https://{}/dir", own.local_addr().unwrap());
        let why = ask(&at_own, &everywhere, &own).await;
        assert!(why.contains("a listener of this server"), "{why}");

        // No request has reached the listener so far. An allowed one does, and it begins a TLS handshake.
        let allowed = ["127.0.0.1/32".parse().unwrap()];
        let url = format!("https://127.0.0.1:{port}/dir");
        let answering = async {
            let (mut tcp, _) = authority.accept().await.unwrap();
            assert_eq!(tcp.read_u8().await.unwrap(), 22);
        };
        let (why, ()) = tokio::join!(ask(&url, &allowed, &own), answering);
        assert!(why.contains("TLS handshake"), "{why}");
    }

    /// The guard decides first, and the proxy is asked for the checked address.
    #[tokio::test]
    async fn a_proxy_connects_to_admitted_addresses() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", proxy.local_addr().unwrap());
        let client = |networks: &[IpNet]| {
            let own = [own.local_addr().unwrap()];
            let client = PublicClient::new(&[], Duration::from_secs(5), networks, own).unwrap();
            let variable = |name: &str| (name == "HTTPS_PROXY").then(|| url.clone());
            client.through(Proxies::read(variable).unwrap())
        };
        let ask = async |client: PublicClient, url: String| {
            let request = Request::get(url).body(Bytes::new()).unwrap();
            let response = acme::Fetch::fetch(&client, request, 64 << 10).await;
            response.unwrap_err().to_string()
        };
        let why = ask(client(&[]), "https://192.0.2.7/dir".into()).await;
        assert!(why.contains("the address is private"), "{why}");
        let everywhere = ["0.0.0.0/0".parse().unwrap()];
        let at_own = format!("https://{}/dir", own.local_addr().unwrap());
        let why = ask(client(&everywhere), at_own).await;
        assert!(why.contains("a listener of this server"), "{why}");

        // The system's resolver reads this name as a loopback address. Nothing listens there.
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let here = format!("https://127.1:{port}/dir");
        let why = ask(client(&["127.0.0.0/8".parse().unwrap()]), here).await;
        assert!(!why.contains("proxy"), "{why}");

        let documentation = ["192.0.2.0/24".parse().unwrap()];
        let serve = async {
            let mut heads = Vec::new();
            for answer in ["200 OK", "502 Bad Gateway"] {
                let (mut tcp, _) = proxy.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(tcp.read_u8().await.unwrap());
                }
                heads.push(String::from_utf8(head).unwrap());
                let answer = format!("HTTP/1.1 {answer}\r\n\r\n");
                tcp.write_all(answer.as_bytes()).await.unwrap();
                if heads.len() == 1 {
                    assert_eq!(tcp.read_u8().await.unwrap(), 22, "a TLS handshake");
                }
            }
            heads
        };
        let asking = async {
            let ask = || ask(client(&documentation), "https://192.0.2.7/dir".into());
            (ask().await, ask().await)
        };
        let (heads, (tls, refused)) = tokio::join!(serve, asking);
        for head in heads {
            assert!(
                head.starts_with("CONNECT 192.0.2.7:443 HTTP/1.1\r\n"),
                "{head}"
            );
        }
        assert!(tls.contains("TLS handshake"), "{tls}");
        assert!(
            refused.contains("the proxy refused the connection: 502"),
            "{refused}"
        );
    }
}
