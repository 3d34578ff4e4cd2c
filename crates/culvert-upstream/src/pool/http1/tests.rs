//! A connection is not used again once anything has arrived on it, even if the runtime does not know of it yet.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::pin::Pin;
use std::task::Waker;

use culvert_http::http1::{BodyWriter, WriteBuffer, write_request};
use http::{Method, Request, request};
use http_body::Body;

use super::*;
use crate::ports::UploadError;

const REQUEST: &str = "GET /a HTTP/1.1\r\nhost: h\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

type Pool = super::Pool<NoBody>;
type Lease = super::Lease<NoBody>;

/// The head of a request, with a map of its fields.
struct Head(request::Parts);

impl UpstreamHead for Head {
    fn method(&self) -> &Method {
        &self.0.method
    }

    fn wants_raw_response(&self) -> bool {
        false
    }

    fn awaits_continue(&self) -> bool {
        false
    }

    fn write(&self, out: &mut WriteBuffer, body_bytes: Option<u64>) -> BodyWriter {
        write_request(out, &self.0, body_bytes)
    }
}

/// No body.
#[derive(Debug)]
struct NoBody;

impl Body for NoBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

/// A pool with a connection, and the origin's end of it.
fn pair() -> (Arc<Pool>, Lease, TcpStream) {
    let upstream = Upstream::parse("http://127.0.0.1:1", "").unwrap();
    let pool = Arc::new(Pool::new(upstream));
    let (lease, origin) = another(&pool);
    (pool, lease, origin)
}

/// Another connection of a pool.
fn another(pool: &Arc<Pool>) -> (Lease, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let edge = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    edge.set_nonblocking(true).unwrap();
    let edge = tokio::net::TcpStream::from_std(edge).unwrap();
    let (origin, _) = listener.accept().unwrap();
    (pool.lease(UpstreamStream::plain(edge)), origin)
}

/// Exchanges a request and its response.
async fn exchange(lease: &mut Lease, origin: &mut TcpStream) {
    let (parts, ()) = Request::get("/a")
        .header("host", "h")
        .body(())
        .unwrap()
        .into_parts();
    let head = Head(parts);
    let mut origin = origin.try_clone().unwrap();
    let answering = tokio::task::spawn_blocking(move || {
        origin.read_exact(&mut [0; REQUEST.len()]).unwrap();
        origin.write_all(RESPONSE).unwrap();
    });
    let sent = lease.send(&head, NoBody, |_| {}).await;
    assert!(matches!(sent, SendResult::Responded(_)), "{sent:?}");
    while let Some(frame) = poll_fn(|cx| lease.poll_frame(cx)).await {
        frame.unwrap();
    }
    answering.await.unwrap();
}

fn reused(pool: &Arc<Pool>) -> Option<Lease> {
    pool.reuse(&mut Context::from_waker(Waker::noop()))
}

/// Nothing here awaits after the origin has written, so the runtime cannot have seen it.
#[tokio::test]
async fn what_arrives_between_two_requests_ends_the_connection() {
    type Late = fn(&mut TcpStream);
    let late: [(&str, Late); 3] = [
        ("a second response", |origin| {
            origin.write_all(RESPONSE).unwrap()
        }),
        ("one byte", |origin| origin.write_all(b"H").unwrap()),
        ("the end", |origin| {
            origin.shutdown(Shutdown::Write).unwrap()
        }),
    ];
    for (what, arrives) in late {
        let (pool, mut lease, mut origin) = pair();
        exchange(&mut lease, &mut origin).await;
        lease.give_back();
        arrives(&mut origin);
        assert!(reused(&pool).is_none(), "{what}");
        assert!(reused(&pool).is_none(), "{what}: it stays");
        // It is closed: the origin reads the end, or a reset because of what it sent.
        origin.set_read_timeout(None).unwrap();
        let read = origin.read(&mut [0; 1]);
        assert!(read.is_err() || matches!(read, Ok(0)), "{what}: {read:?}");
    }
}

#[tokio::test]
async fn what_arrives_before_a_handover_ends_the_connection() {
    let (pool, mut lease, mut origin) = pair();
    exchange(&mut lease, &mut origin).await;
    pool.handover.enter();
    lease.give_back();
    origin.write_all(RESPONSE).unwrap();
    let mut link = pool.handover.next().await;
    let mut cx = Context::from_waker(Waker::noop());
    assert!(!pool.is_free(&mut link, &mut cx));
}

#[tokio::test]
async fn a_silent_connection_serves_the_next_request() {
    let (pool, mut lease, mut origin) = pair();
    for _ in 0..3 {
        exchange(&mut lease, &mut origin).await;
        lease.give_back();
        lease = reused(&pool).expect("nothing has arrived");
    }
}

/// Neither idle nor to a request that waits.
#[tokio::test]
async fn a_connection_that_closes_or_moves_serves_no_other_request_of_the_pool() {
    for is_awaited in [false, true] {
        for closes in [false, true] {
            let (pool, mut lease, mut origin) = pair();
            let own = Arc::new(Pool::new(pool.upstream().clone()));
            match closes {
                true => lease.close_after(),
                false => lease.move_to(|_| Arc::clone(&own)),
            }
            if is_awaited {
                pool.handover.enter();
            }
            exchange(&mut lease, &mut origin).await;
            lease.give_back();
            assert!(reused(&pool).is_none());
            if is_awaited {
                assert!(pool.handover.leave().is_empty());
            }
            let again = reused(&own);
            assert_eq!(again.is_some(), !closes);
            drop((again, own));
            assert_eq!(origin.read(&mut [0; 1]).unwrap(), 0, "it is closed");
        }
    }
}

/// What arrives after the next request was sent looks like its response. An upstream that sent more than was
/// requested once gets no further chance.
#[tokio::test]
async fn an_upstream_that_sends_more_than_a_response_serves_one_request_on_a_connection() {
    let (pool, mut lease, mut origin) = pair();
    exchange(&mut lease, &mut origin).await;
    lease.give_back();
    origin.write_all(RESPONSE).unwrap();
    assert!(reused(&pool).is_none());
    let (mut lease, mut origin) = another(&pool);
    exchange(&mut lease, &mut origin).await;
    lease.give_back();
    assert!(reused(&pool).is_none(), "it is not trusted");
    tokio::time::pause();
    tokio::time::advance(DISTRUSTED_FOR).await;
    tokio::time::resume();
    let (mut lease, mut origin) = another(&pool);
    exchange(&mut lease, &mut origin).await;
    lease.give_back();
    assert!(reused(&pool).is_some(), "after a minute");
}

/// A server may close an idle connection at any time, and may say why.
#[tokio::test]
async fn an_upstream_that_closes_idle_connections_is_trusted() {
    for last in [
        b"".as_slice(),
        b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
    ] {
        let (pool, mut lease, mut origin) = pair();
        exchange(&mut lease, &mut origin).await;
        lease.give_back();
        origin.write_all(last).unwrap();
        drop(origin);
        assert!(reused(&pool).is_none());
        let (mut lease, mut origin) = another(&pool);
        exchange(&mut lease, &mut origin).await;
        lease.give_back();
        assert!(reused(&pool).is_some());
    }
}

/// Bytes that arrive together with a response show when the connection is given back.
#[tokio::test]
async fn bytes_behind_a_response_are_noticed() {
    let (pool, mut lease, mut origin) = pair();
    origin.write_all(&[RESPONSE, b"HTTP"].concat()).unwrap();
    exchange(&mut lease, &mut origin).await;
    lease.give_back();
    let (mut lease, mut origin) = another(&pool);
    exchange(&mut lease, &mut origin).await;
    lease.give_back();
    assert!(reused(&pool).is_none());
}

/// A name that leads elsewhere keeps no connection to where it led.
#[tokio::test]
async fn connections_to_addresses_that_a_name_no_longer_has_serve_no_further_request() {
    let addresses = |texts: &[&str]| -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let (pool, mut kept, mut origin) = pair();
    exchange(&mut kept, &mut origin).await;
    kept.give_back();
    pool.note_addresses(&addresses(&["127.0.0.1", "127.0.0.2"]));
    let mut kept = reused(&pool).expect("its address is still one of them");
    // Nothing is known of a name without an address.
    pool.note_addresses(&[]);
    exchange(&mut kept, &mut origin).await;
    kept.give_back();
    let mut kept = reused(&pool).expect("the addresses before count");
    pool.note_addresses(&addresses(&["127.0.0.2"]));
    exchange(&mut kept, &mut origin).await;
    // It serves its request to the end, and no other.
    kept.give_back();
    assert!(reused(&pool).is_none());
    assert_eq!(
        Arc::strong_count(&pool.addresses.connections),
        1,
        "none is open"
    );
}
