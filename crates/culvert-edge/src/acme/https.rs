//! HTTPS towards an authority: one request on a connection of its own, with a limit on everything.
//!
//! The operator names the directory, and the directory names everything else: no request goes to an
//! address that is not public unless the operator allows it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::sync::lock;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use url::Url;

use crate::documents::{self, Cause};
use crate::upstream::Dialer;

/// From the first packet to the last byte of the answer.
const REQUEST_WITHIN: Duration = Duration::from_secs(30);
/// No answer of an authority is nearly as long.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest wait an authority may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Sends requests. Clones share what was last heard of waiting.
#[derive(Clone, Debug)]
pub(super) struct Https {
    dialer: Dialer,
    /// What the last answer that was a refusal asked for.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Https {
    pub(super) fn new(dialer: Dialer) -> Self {
        Self {
            dialer,
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
            let answered = tokio::time::timeout(REQUEST_WITHIN, exchange(&this.dialer, request));
            let answer = match answered.await {
                Ok(answer) => answer.map_err(|cause| format!("request to {host}: {cause}")),
                Err(_) => Err(format!("request to {host}: timed out")),
            };
            let answer = answer.map_err(|why| Error::Other(why.into()))?;
            this.heard(&answer);
            Ok(BytesResponse::from(answer.map(Full::new)))
        })
    }
}

async fn exchange(
    dialer: &Dialer,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, Cause> {
    let (parts, body) = request.into_parts();
    let url = Url::parse(&parts.uri.to_string())?;
    if url.scheme() != "https" {
        return Err("a certificate authority requires https".into());
    }
    let body = body.collect().await?.to_bytes();
    let (method, headers) = (parts.method, parts.headers);
    let answer = documents::answer(dialer, method, &url, headers, body, ANSWER_BYTES_MAX);
    let (head, body) = answer.await?;
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::Reach;

    /// What comes of asking a place, from where these networks are allowed.
    async fn ask(url: &str, networks: &[IpNet], own: &TcpListener) -> String {
        let reach = Reach::new(true, networks);
        let dialer = Dialer::new(&[], Duration::from_secs(5), reach).unwrap();
        let dialer = dialer.to_public([own.local_addr().unwrap()]);
        let request = Request::get(url).body(BodyWrapper::from(Vec::new()));
        match Https::new(dialer).request(request.unwrap()).await {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn only_what_is_public_or_allowed_is_asked() {
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
        let in_clear = ask(&format!("http://127.0.0.1:{port}/"), &everywhere, &own).await;
        assert!(in_clear.contains("requires https"), "{in_clear}");

        // Nobody was asked so far. Who is allowed is, and hears a client of TLS.
        let allowed = ["127.0.0.1/32".parse().unwrap()];
        let url = format!("https://127.0.0.1:{port}/dir");
        let answering = async {
            let (mut tcp, _) = authority.accept().await.unwrap();
            assert_eq!(tcp.read_u8().await.unwrap(), 22);
        };
        let (why, ()) = tokio::join!(ask(&url, &allowed, &own), answering);
        assert!(why.contains("TLS handshake"), "{why}");
    }
}
