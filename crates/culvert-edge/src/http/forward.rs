//! Sends one request to its upstream and takes the head of the answer.
//!
//! A request is sent a second time only over a new connection, only when a kept one turned out
//! closed without a byte of an answer, and only when it had not begun or may be repeated.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::http::body::{RequestBody, Source};
use crate::http::upgrade;
use crate::recording::Recording;
use crate::upstream::{Failure, Heard, Lease, Pool, Sent};

/// An answer's head, and where its body comes from.
pub(crate) type Answer = (response::Parts, Source);

/// Forwards over HTTP/1.1. Where nobody is behind `pool`, or goes away without a word, one of the
/// `stand_ins` is asked.
pub(crate) async fn over_http1(
    pool: &Arc<Pool>,
    stand_ins: &[Arc<Pool>],
    recording: &mut Recording,
    mut request: Request<RequestBody>,
) -> Result<Answer, Failure> {
    let down = Arc::clone(recording.down());
    let meters = &down.edge.meters;
    *request.version_mut() = Version::HTTP_11;
    if request.uri().authority().is_some() {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path
            .unwrap_or_else(|| PathAndQuery::from_static("/"))
            .into();
    }
    if let Some(mut lease) = poll_fn(|cx| Poll::Ready(pool.reuse(cx))).await {
        let spare = can_be_repeated(&request).then(|| repeatable(&request));
        recording.upstream(true);
        meters.upstream_reused.up();
        match send(&mut lease, recording, &down, request).await? {
            Sent::Answered(response) => return take(response, lease).await,
            Sent::Failed(error, _) => return Err(Failure::Broken(error)),
            Sent::Stale(unsent) => {
                request = unsent
                    .map(|unsent| *unsent)
                    .or(spare)
                    .ok_or(Failure::Closed)?;
                meters.upstream_retries.up();
            }
        }
    }
    let is_agents = pool.upstream().agents_endpoint().is_some();
    let mut stand_ins = stand_ins.iter();
    let mut pool = Arc::clone(pool);
    loop {
        let next = stand_ins.next();
        let mut lease = match (pool.connect(&down).await, next) {
            (Ok(lease), _) => lease,
            (Err(Failure::Dial(_)), Some(next)) => {
                pool = down.pool(next);
                continue;
            }
            (Err(failure), _) => return Err(failure),
        };
        let spare = (next.is_some() && can_be_repeated(&request)).then(|| repeatable(&request));
        recording.upstream(false);
        match (
            send(&mut lease, recording, &down, request).await?,
            spare,
            next,
        ) {
            (Sent::Answered(response), ..) => return take(response, lease).await,
            // The agent went away with a request that another can serve.
            (Sent::Failed(_, Heard::Nothing), Some(spare), Some(next)) => {
                meters.upstream_retries.up();
                request = spare;
                pool = down.pool(next);
            }
            (Sent::Failed(error, Heard::Nothing), ..) if is_agents => {
                return Err(Failure::Silent(error));
            }
            (Sent::Failed(error, _), ..) => return Err(Failure::Broken(error)),
            (Sent::Stale(_), ..) => return Err(Failure::Closed),
        }
    }
}

/// Forwards over HTTP/2. Where nobody is behind `pool`, one of the `stand_ins` is asked.
pub(crate) async fn over_http2(
    pool: &Arc<Pool>,
    stand_ins: &[Arc<Pool>],
    recording: &mut Recording,
    mut request: Request<RequestBody>,
) -> Result<Answer, Failure> {
    let down = Arc::clone(recording.down());
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(HOST);
    let host = host.ok_or(Failure::Unacceptable("no target"))?;
    let key = upgrade::into_stream(&mut request);
    let mut stand_ins = stand_ins.iter();
    let mut pool = Arc::clone(pool);
    let mut attempts = 0;
    loop {
        let mut link = match (pool.http2(&down).await, attempts) {
            (Ok(link), _) => link,
            (Err(Failure::Dial(error)), 0) => match stand_ins.next() {
                Some(next) => {
                    pool = down.pool(next);
                    continue;
                }
                None => return Err(Failure::Dial(error)),
            },
            (Err(failure), _) => return Err(failure),
        };
        attempts += 1;
        if key.is_some() && !link.takes_streams().await {
            return Err(Failure::Unsuited);
        }
        let (sender, was_used) = (&mut link.sender, link.was_used);
        let target = absolute(&pool, &host, request.uri());
        *request.uri_mut() = target.ok_or(Failure::Unacceptable("no target"))?;
        recording.upstream(was_used);
        let sent = async {
            // Waits while the upstream takes no more streams.
            match sender.ready().await {
                Ok(()) => sender.try_send_request(request).await,
                Err(error) => return Err((error, Some(request))),
            }
            .map_err(|mut error| {
                let back = error.take_message();
                (error.into_error(), back)
            })
        };
        let limit = down.rules.limits.answer;
        match within_progress(&mut recording.alarm, &down, limit, sent).await {
            None => return Err(Failure::TooSlow),
            Some(Ok(mut response)) => {
                let is_open = key.is_some() && response.status().is_success();
                let stream = is_open.then(|| hyper::upgrade::on(&mut response));
                let (mut parts, incoming) = response.into_parts();
                acceptable(&parts.headers)?;
                if let (Some(stream), Some(key)) = (stream, &key) {
                    upgrade::accept(&mut parts, key);
                    return Ok((parts, Source::Stream(stream)));
                }
                return Ok((parts, Source::Http2(incoming)));
            }
            Some(Err((_, Some(back)))) if was_used && attempts == 1 && key.is_none() => {
                down.edge.meters.upstream_retries.up();
                request = back;
            }
            Some(Err((error, _))) => return Err(Failure::Broken(error)),
        }
    }
}

/// The target as HTTP/2 has it: with scheme and authority.
fn absolute(pool: &Pool, host: &HeaderValue, target: &Uri) -> Option<Uri> {
    let scheme = if pool.upstream().is_tls() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    };
    let path = target.path_and_query().cloned();
    Uri::builder()
        .scheme(scheme)
        .authority(host.as_bytes())
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        .build()
        .ok()
}

async fn send(
    lease: &mut Lease,
    recording: &mut Recording,
    down: &Downstream,
    request: Request<RequestBody>,
) -> Result<Sent, Failure> {
    let limit = down.rules.limits.answer;
    within_progress(&mut recording.alarm, down, limit, lease.send(request))
        .await
        .ok_or(Failure::TooSlow)
}

/// Waits for an answer's head; bytes from the client, such as a long upload, are progress.
async fn within_progress<F: Future>(
    alarm: &mut Alarm,
    down: &Downstream,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let (mut seen, _) = down.bytes();
    loop {
        let output = alarm.within(Instant::now() + limit, future.as_mut()).await;
        let (bytes, _) = down.bytes();
        if output.is_some() || bytes == seen {
            return output;
        }
        seen = bytes;
    }
}

/// Takes an HTTP/1 answer apart, giving the connection back at once if nothing follows the head.
async fn take(response: Response<Incoming>, lease: Lease) -> Result<Answer, Failure> {
    let (parts, incoming) = response.into_parts();
    acceptable(&parts.headers)?;
    if incoming.is_end_stream() && !parts.status.is_informational() {
        let mut lease = Some(lease);
        poll_fn(|cx| {
            if let Some(lease) = lease.take() {
                lease.give_back(cx);
            }
            Poll::Ready(())
        })
        .await;
        return Ok((parts, Source::None));
    }
    Ok((parts, Source::Http1(incoming, lease)))
}

/// Whether an answer's framing can be read in one way only.
fn acceptable(headers: &HeaderMap) -> Result<(), Failure> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(Failure::Unacceptable(
            "the answer has more than one content-length",
        ));
    }
    if length.is_some_and(|length| !length.as_bytes().iter().all(u8::is_ascii_digit)) {
        return Err(Failure::Unacceptable(
            "the answer's content-length is not a number",
        ));
    }
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(encoding) = encodings.next() {
        let is_chunked = encoding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || encodings.next().is_some() {
            return Err(Failure::Unacceptable(
                "the answer's transfer-encoding is not exactly chunked",
            ));
        }
        if length.is_some() {
            return Err(Failure::Unacceptable(
                "the answer has both a length and an encoding",
            ));
        }
    }
    Ok(())
}

/// Whether repeating a request is harmless (RFC 9110 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::DELETE,
    ]
    .contains(method)
}

/// Whether a request may be sent once more, and can be.
fn can_be_repeated(request: &Request<RequestBody>) -> bool {
    request.body().is_end_stream() && is_idempotent(request.method())
}

/// The same request, without a body.
fn repeatable(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}
