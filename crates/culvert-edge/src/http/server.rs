//! Drives one HTTP connection, from its first request to its close.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::{Downstream, lock};
use crate::edge::{Phase, Streams};
use crate::http::exchange;
use crate::http::framing;
use crate::http::guard::Guard;
use crate::http::reply::Problem;
use crate::http::upgrade::Tunnel;
use crate::http::watch::{Cut, CutSlot, Watch};
use crate::overload::Level;
use crate::socket::Wire;
use crate::tcp;

/// Where an exchange leaves what the connection becomes.
pub(crate) type TunnelSlot = Arc<Mutex<Option<Tunnel>>>;

/// What an HTTP/1 message's buffers hold at most: a whole head, and what came with it.
const BUFFER_BYTES_MAX: usize =
    framing::REQUEST_LINE_BYTES_MAX + framing::FIELD_SECTION_BYTES_MAX + (16 << 10);
/// How much of an unread request is read, and for how long, so that the answer is not lost.
const LINGER_BYTES_MAX: usize = 64 << 10;
const LINGER_FOR: Duration = Duration::from_secs(2);

/// Serves HTTP/1 until the connection is over.
///
/// While nothing is asked the protocol's buffers are given up: an idle connection is its socket, its
/// guard and this task.
pub(crate) async fn http1(wire: Wire, down: Arc<Downstream>) {
    let mut guard = Guard::new(wire, Arc::clone(&down));
    loop {
        let Some(end) = Box::pin(session(guard, &down)).await else {
            return;
        };
        let (read, tunnel) = (end.read, end.tunnel);
        guard = end.guard;
        if let Some(upgraded) = tunnel {
            let early = [read.as_ref(), &guard.take_early()].concat();
            return Box::pin(tcp::tunnel(guard.wire(), &early, upgraded, &down)).await;
        }
        // Even when nothing is left to read in it, it is the library's whole buffer.
        drop(read);
        if !guard.is_dozing() || !doze(&mut guard, &down).await {
            return Box::pin(finish(&mut guard, &down)).await;
        }
    }
}

/// What a session leaves.
struct End {
    guard: Guard,
    /// What the library read and did not use.
    read: Bytes,
    tunnel: Option<Tunnel>,
}

/// Serves requests until the connection ends, becomes something else, or rests; `None` when the edge
/// cuts.
async fn session(guard: Guard, down: &Arc<Downstream>) -> Option<End> {
    let tunnel: TunnelSlot = Arc::default();
    let service =
        service_fn(|request| exchange::serve(Arc::clone(down), Arc::clone(&tunnel), request));
    let mut builder = http1::Builder::new();
    builder
        .max_headers(framing::FIELDS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .header_read_timeout(None)
        .auto_date_header(false);
    let mut connection = builder.serve_connection(TokioIo::new(guard), service);
    let mut is_told = false;
    let is_cut = poll_fn(|cx| {
        down.driver.register(cx.waker());
        // What already arrived is served before the connection hears of the end.
        if Pin::new(&mut connection).poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        match down.edge.phase() {
            Phase::Cut => Poll::Ready(true),
            Phase::Draining if !is_told => {
                is_told = true;
                Pin::new(&mut connection).graceful_shutdown();
                Pin::new(&mut connection).poll(cx).map(|_| false)
            }
            Phase::Serving | Phase::Parting | Phase::Draining => Poll::Pending,
        }
    })
    .await;
    if is_cut {
        return None;
    }
    let parts = connection.into_parts();
    let tunnel = lock(&tunnel).take();
    Some(End {
        guard: parts.io.into_inner(),
        read: parts.read_buf,
        tunnel,
    })
}

/// Rests until the next request begins. False when none will.
async fn doze(guard: &mut Guard, down: &Downstream) -> bool {
    poll_fn(|cx| {
        down.driver.register(cx.waker());
        match guard.poll_wake(cx) {
            Poll::Pending if down.edge.phase() >= Phase::Draining => Poll::Ready(false),
            Poll::Pending if down.edge.level() >= Level::Tight => {
                down.edge.meters.shed_idle.up();
                Poll::Ready(false)
            }
            other => other,
        }
    })
    .await
}

/// Says why, if the last message was refused, and closes so that the last answer arrives.
async fn finish(guard: &mut Guard, down: &Downstream) {
    // What was refused inside a body has been answered by its exchange.
    let refusal = guard.refused().filter(|_| down.broken().is_none());
    let is_drained = guard.is_drained();
    let close = async {
        if let Some(violation) = refusal {
            let bytes = Problem::Violation(violation).bytes(down);
            guard.wire().write_all(&bytes).await?;
            guard.wire().flush().await?;
        }
        guard.wire().shutdown().await?;
        if is_drained {
            return Ok(());
        }
        linger(guard.wire()).await
    };
    // Whatever goes wrong here, the connection is over.
    drop(tokio::time::timeout(LINGER_FOR, close).await);
}

/// Reads some of what nobody wants any more: closed before, the last words might not arrive.
async fn linger(wire: &mut Wire) -> std::io::Result<()> {
    let mut room = [0; 4096];
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        match wire.read(&mut room).await? {
            0 => break,
            bytes => read += bytes,
        }
    }
    Ok(())
}

/// Tells a client that it is cut, and closes.
async fn dismiss(cut: Cut) {
    let Cut { mut wire, farewell } = cut;
    let close = async {
        if let Some(frame) = farewell {
            wire.write_all(&frame).await?;
            wire.flush().await?;
        }
        wire.shutdown().await?;
        linger(&mut wire).await
    };
    drop(tokio::time::timeout(LINGER_FOR, close).await);
}

/// Serves HTTP/2 until the connection is over.
pub(crate) async fn http2(wire: Wire, down: Arc<Downstream>) {
    let slot = CutSlot::default();
    let watch = Watch::new(wire, Arc::clone(&down), Arc::clone(&slot));
    streams(watch, &down).await;
    let cut = lock(&slot).take();
    if let Some(cut) = cut {
        dismiss(cut).await;
    }
}

/// Serves the streams of an HTTP/2 connection.
async fn streams(watch: Watch, down: &Arc<Downstream>) {
    let limits = &down.rules.limits;
    let service = {
        let down = Arc::clone(down);
        service_fn(move |request| {
            // What a stream becomes is not left in the slot, it lives beside the connection.
            exchange::serve(Arc::clone(&down), TunnelSlot::default(), request)
        })
    };
    let mut builder = http2::Builder::new(Streams(Arc::clone(&down.edge)));
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(limits.http2_streams)
        .initial_stream_window_size(64 << 10)
        .initial_connection_window_size(1 << 20)
        .max_frame_size(16 << 10)
        .header_table_size(4 << 10)
        .max_header_list_size(64 << 10)
        .max_send_buf_size(64 << 10)
        .max_pending_accept_reset_streams(100)
        .auto_date_header(false);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(watch), service));
    let mut alarm = Alarm::default();
    let mut idle_since = Instant::now();
    let mut stalled: Option<(u64, Instant)> = None;
    let mut is_told = false;
    poll_fn(|cx| {
        down.driver.register(cx.waker());
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if down.is_hung_up() {
            // The client is told before the socket goes.
            connection.as_mut().graceful_shutdown();
            drop(connection.as_mut().poll(cx));
            return Poll::Ready(());
        }
        let is_idle = down.open.load(Ordering::Acquire) == 0;
        if !is_idle {
            idle_since = Instant::now();
        }
        // A client that takes nothing of what waits for it.
        let (_, bytes_out) = down.bytes();
        stalled = match stalled {
            _ if down.waiting.load(Ordering::Acquire) == 0 => None,
            Some((seen, since)) if seen == bytes_out => Some((seen, since)),
            _ => Some((bytes_out, Instant::now())),
        };
        if let Some((_, since)) = stalled
            && alarm.is_due(cx, since + limits.write_stall)
        {
            return Poll::Ready(());
        }
        // Looked at again after the idle time even while busy, since the end of an exchange may not
        // wake this task.
        let is_due = alarm.is_due(cx, idle_since + limits.http2_idle);
        let ends = match down.edge.phase() {
            Phase::Cut => return Poll::Ready(()),
            Phase::Parting | Phase::Draining => true,
            Phase::Serving if is_idle && down.edge.level() >= Level::Tight => {
                if !is_told {
                    down.edge.meters.shed_idle.up();
                }
                true
            }
            Phase::Serving => is_due || down.begun.load(Ordering::Relaxed) >= limits.http2_requests,
        };
        if ends && !is_told {
            is_told = true;
            connection.as_mut().graceful_shutdown();
            return connection.as_mut().poll(cx).map(|_| ());
        }
        Poll::Pending
    })
    .await;
}
