//! Traffic policies at a URL, which the agent fetches when it starts.

use std::time::Duration;

use culvert_tunnel::client::Endpoint;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use culvert_command::Failure;

/// Maximum size of a policy.
const BYTES_MAX: usize = 1 << 20;
/// Timeout of a fetch, from the resolution of the host to the last byte.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A policy that an endpoint needs.
#[derive(Clone, Debug)]
pub struct PolicyUrl {
    /// Position of the endpoint.
    pub(super) endpoint: usize,
    /// What names the URL: a flag, or a key with its file and line.
    pub(super) place: String,
    pub(super) url: Uri,
}

/// Parses a URL. The error is a sentence without a full stop.
pub(super) fn parse(text: &str) -> Result<Uri, String> {
    let url: Uri = text
        .parse()
        .map_err(|error| format!("the URL is invalid: {error}"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err("the value must be an http or https URL".into());
    }
    if url.authority().is_some_and(|it| it.as_str().contains('@')) {
        return Err("the URL must not contain a user or password".into());
    }
    Ok(url)
}

/// Fetches the policies and gives them to their endpoints. Each URL is fetched once.
pub(crate) async fn fetch_all(
    policies: &[PolicyUrl],
    endpoints: &mut [Endpoint],
) -> Result<(), Failure> {
    let mut known: Vec<(&Uri, String)> = Vec::new();
    for PolicyUrl {
        endpoint,
        place,
        url,
    } in policies
    {
        let policy = match known.iter().find(|(it, _)| *it == url) {
            Some((_, policy)) => policy.clone(),
            None => {
                let fetched = fetch(url, TIMEOUT).await;
                let policy = fetched.map_err(|why| {
                    Failure::Failed(format!("{place}: cannot fetch `{url}`: {why}"))
                })?;
                tracing::info!(%url, bytes = policy.len(), "fetched the traffic policy");
                known.push((url, policy.clone()));
                policy
            }
        };
        if let Some(endpoint) = endpoints.get_mut(*endpoint) {
            endpoint.set_policy(policy);
        }
    }
    Ok(())
}

/// Fetches a text. The error is a sentence without a full stop.
async fn fetch(url: &Uri, timeout: Duration) -> Result<String, String> {
    let fetching = fetch_in_time(url);
    match tokio::time::timeout(timeout, fetching).await {
        Ok(fetched) => fetched,
        Err(_) => Err(format!("no complete response in {} s", timeout.as_secs())),
    }
}

async fn fetch_in_time(url: &Uri) -> Result<String, String> {
    let connector = HttpsConnectorBuilder::new()
        .with_provider_and_native_roots(rustls::crypto::aws_lc_rs::default_provider())
        .map_err(|error| format!("reading the system's certificate authorities: {error}"))?
        .https_or_http()
        .enable_http1()
        .build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let request = Request::get(url)
        .header(
            header::USER_AGENT,
            concat!("culvert/", env!("CARGO_PKG_VERSION")),
        )
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let response = client
        .request(request)
        .await
        .map_err(|error| culvert_base::chain(&error))?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_redirection() => {
            let location = response.headers().get(header::LOCATION);
            let location = location
                .and_then(|it| it.to_str().ok())
                .unwrap_or("another URL");
            return Err(format!(
                "the server redirects to `{}` with status {}; use that URL",
                location.escape_debug(),
                status.as_u16()
            ));
        }
        status => return Err(format!("the response has the status {}", status.as_u16())),
    }
    let body = Limited::new(response.into_body(), BYTES_MAX)
        .collect()
        .await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => format!("the policy is larger than {BYTES_MAX} bytes"),
        false => format!(
            "the response is incomplete: {}",
            culvert_base::chain(error.as_ref())
        ),
    })?;
    let text = String::from_utf8(body.to_bytes().to_vec());
    let text = text.map_err(|_| "the policy is not UTF-8".to_owned())?;
    match culvert_yaml::read_yaml(&text) {
        Ok(serde_json::Value::Object(_)) => Ok(text),
        Ok(_) => Err("the response is not a traffic policy in YAML or JSON".into()),
        Err(why) => Err(format!("the policy cannot be read: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Fetches from a server that sends these bytes to its only client.
    async fn fetched(response: Vec<u8>) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.unwrap());
            }
            // The client may have enough before the end.
            drop(socket.write_all(&response).await);
            drop(socket.shutdown().await);
        };
        let url = parse(&format!("http://{address}/policy.yml?v=1")).unwrap();
        tokio::join!(fetch(&url, TIMEOUT), serving).0
    }

    fn response(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{fields}\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    }

    #[tokio::test]
    async fn a_policy_is_fetched() {
        let policy = b"on_http_request: []\n";
        let text = fetched(response("200 OK", "", policy)).await.unwrap();
        assert_eq!(text.as_bytes(), policy);
    }

    #[tokio::test]
    async fn invalid_policies_are_refused_with_a_reason() {
        let large = vec![b'a'; BYTES_MAX + 1];
        for (response, why) in [
            (response("404 Not Found", "", b"a: b"), "the status 404"),
            (
                response("302 Found", "location: https://b.test/x\r\n", b""),
                "redirects to `https://b.test/x` with status 302",
            ),
            (response("200 OK", "", &large), "larger than 1048576 bytes"),
            (response("200 OK", "", b"\xff"), "not UTF-8"),
            (response("200 OK", "", b"hello"), "not a traffic policy"),
            (response("200 OK", "", b""), "not a traffic policy"),
            (response("200 OK", "", b"{"), "cannot be read"),
            (
                b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na: b".to_vec(),
                "incomplete",
            ),
            (b"220 mail.test\r\n".to_vec(), "error"),
        ] {
            let shown = String::from_utf8_lossy(&response[..response.len().min(60)]).into_owned();
            let error = fetched(response).await.unwrap_err();
            assert!(error.contains(why), "{shown}: {error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_from_a_silent_server_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let error = fetch(&url, TIMEOUT).await.unwrap_err();
        assert_eq!(error, "no complete response in 10 s");
    }

    #[test]
    fn policy_urls_are_validated() {
        for (text, why) in [
            ("policy.yml", "http or https"),
            ("/policy.yml", "http or https"),
            ("file:///etc/passwd", "invalid"),
            ("ftp://a.test/p", "http or https"),
            ("https://me:secret@a.test/p", "user or password"),
            ("https://a b", "invalid"),
            ("", "invalid"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.contains(why) && !error.contains("secret"),
                "{text}: {error}"
            );
        }
    }
}
