//! Sends one request to its upstream and takes the head of the answer.
//!
//! A request is sent a second time only over a new connection, only when a kept one turned out
//! closed without a byte of an answer, and only when it had not begun or may be repeated.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::HOST;
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{HeaderValue, Method, Request, StatusCode, Version, request, response};
use http_body::Body;
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::http::body::{RequestBody, Source};
use crate::http::fields;
use crate::http::upgrade;
use crate::http1;
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
    mut head: Box<request::Parts>,
    mut body: RequestBody,
) -> Result<Answer, Failure> {
    let down = Arc::clone(recording.down());
    let meters = &down.edge.meters;
    if head.uri.authority().is_some() {
        let path = head.uri.path_and_query().cloned();
        head.uri = path
            .unwrap_or_else(|| PathAndQuery::from_static("/"))
            .into();
    }
    let can_be_repeated = body.is_end_stream() && is_idempotent(&head.method);
    if let Some(mut lease) = poll_fn(|cx| Poll::Ready(pool.reuse(cx))).await {
        recording.upstream(true);
        meters.upstream_reused.up();
        match send(&mut lease, recording, &down, &head, body).await? {
            Sent::Answered(head) => return Ok(take(head, lease)),
            Sent::Failed(error, _) => return Err(error.into()),
            Sent::Stale if can_be_repeated => meters.upstream_retries.up(),
            Sent::Stale => return Err(Failure::Closed),
        }
        body = RequestBody::empty();
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
        recording.upstream(false);
        match (send(&mut lease, recording, &down, &head, body).await?, next) {
            (Sent::Answered(head), _) => return Ok(take(head, lease)),
            // The agent went away with a request that another can serve.
            (Sent::Failed(_, Heard::Nothing), Some(next)) if can_be_repeated => {
                meters.upstream_retries.up();
                body = RequestBody::empty();
                pool = down.pool(next);
            }
            (Sent::Failed(error, Heard::Nothing), _) if is_agents => {
                return Err(Failure::Silent(error));
            }
            (Sent::Failed(error, _), _) => return Err(error.into()),
            (Sent::Stale, _) => return Err(Failure::Closed),
        }
    }
}

/// Forwards over HTTP/2. Where nobody is behind `pool`, one of the `stand_ins` is asked.
pub(crate) async fn over_http2(
    pool: &Arc<Pool>,
    stand_ins: &[Arc<Pool>],
    recording: &mut Recording,
    head: Box<request::Parts>,
    body: RequestBody,
) -> Result<Answer, Failure> {
    let down = Arc::clone(recording.down());
    let mut request = Request::from_parts(*head, body);
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
                http1::content_length(&parts.headers).map_err(Failure::Unacceptable)?;
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
            Some(Err((error, _))) => return Err(error.into()),
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
    head: &request::Parts,
    body: RequestBody,
) -> Result<Sent, Failure> {
    let limit = down.rules.limits.answer;
    let takes_more = recording.takes_interim();
    let inform = |mut head: response::Parts| {
        // A client that waits to be told to go on was told by us.
        if takes_more && head.status != StatusCode::CONTINUE {
            fields::to_client(&mut head.headers);
            down.inform(head);
        }
    };
    within_progress(
        &mut recording.alarm,
        down,
        limit,
        lease.send(head, body, inform),
    )
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

/// An HTTP/1 answer, with the connection given back at once if nothing follows the head.
fn take(head: response::Parts, lease: Lease) -> Answer {
    if !lease.is_spent() || head.status == StatusCode::SWITCHING_PROTOCOLS {
        return (head, Source::Http1(lease));
    }
    lease.give_back();
    (head, Source::None)
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
