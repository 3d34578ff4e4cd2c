//! Stands between the client's bytes and the HTTP/1 library, and lets through only what
//! [`Framing`] believes.
//!
//! It promises: no byte of a head passes before the whole head was found good; no byte after a
//! message passes before that message was answered (so an upgrade's early bytes never move before
//! the 101, and a second request waits here, not in a parser); a refused message looks like the end
//! of the connection to the library, and the driver answers in its place. It also keeps the
//! deadlines of reading and writing, which only it can see.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::downstream::{Broken, Downstream, Turn};
use crate::http::framing::{Framing, Progress, Violation};
use crate::overload::{IDLE_WHEN_BUSY, Level};
use crate::socket::Wire;

/// Bytes a second below which a body is too slow.
const RATE_MIN: u128 = 256;

/// A guarded HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Guard {
    wire: Wire,
    down: Arc<Downstream>,
    framing: Framing,
    /// Bytes kept back: `out..fed` may pass once the head is whole, `fed..` were not looked at.
    stash: Vec<u8>,
    out: usize,
    fed: usize,
    refused: Option<Violation>,
    /// Wakes the driver when kept bytes may be read after an answer.
    waiter: Option<Waker>,
    alarm: Alarm,
    /// When the present state began: waiting for a request, or the first byte of a head.
    since: Instant,
    has_served: bool,
    read_stalled: Option<Instant>,
    write_stalled: Option<Instant>,
    /// How long the body was waited for since the rate was last judged, and its bytes then.
    waited: Duration,
    judged_payload: u64,
    handed_out: u64,
    /// Whether the library was told of an end so that its buffers are freed while nothing comes.
    is_dozing: bool,
}

impl Guard {
    pub(crate) fn new(wire: Wire, down: Arc<Downstream>) -> Self {
        Self {
            wire,
            down,
            framing: Framing::new(),
            stash: Vec::new(),
            out: 0,
            fed: 0,
            refused: None,
            waiter: None,
            alarm: Alarm::default(),
            since: Instant::now(),
            has_served: false,
            read_stalled: None,
            write_stalled: None,
            waited: Duration::ZERO,
            judged_payload: 0,
            handed_out: 0,
            is_dozing: false,
        }
    }

    /// Why the message being read is refused, if it is.
    pub(crate) fn refused(&self) -> Option<Violation> {
        self.refused
    }

    /// Whether the last request was read to its end, with nothing behind it.
    pub(crate) fn is_drained(&self) -> bool {
        self.refused.is_none()
            && self.fed == self.stash.len()
            && (self.framing.is_ended() || self.framing.is_untouched())
    }

    /// Whether the connection only rests.
    pub(crate) fn is_dozing(&self) -> bool {
        self.is_dozing
    }

    /// Waits for the next request without a buffer. False when none comes: the client left, or the
    /// idle time is over.
    pub(crate) fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        // On the stack, and only while polled.
        let mut room = [0; 1024];
        let mut buf = ReadBuf::new(&mut room);
        match Pin::new(&mut self.wire).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                self.framing = Framing::new();
                self.stash.extend_from_slice(buf.filled());
                self.is_dozing = false;
                Poll::Ready(true)
            }
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending => {
                let deadline = self.since + self.idle();
                if self.alarm.is_due(cx, deadline) {
                    Poll::Ready(false)
                } else {
                    Poll::Pending
                }
            }
        }
    }

    /// The bytes the client sent ahead of an answer.
    pub(crate) fn take_early(&mut self) -> Vec<u8> {
        let early = self.stash.get(self.fed..).unwrap_or_default().to_vec();
        self.stash = Vec::new();
        early
    }

    /// The connection without guard.
    pub(crate) fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Whether bytes are kept that may pass.
    fn has_cleared(&self) -> bool {
        self.out < self.fed && self.framing.has_head()
    }

    /// How long the connection may be idle now.
    fn idle(&self) -> Duration {
        let idle = self.down.rules.limits.idle;
        if self.down.edge.level() == Level::Calm {
            idle
        } else {
            idle.min(IDLE_WHEN_BUSY)
        }
    }

    /// Looks at bytes that follow what was read of the message.
    fn feed(&mut self, bytes: &[u8]) -> usize {
        let (was_untouched, had_head) = (self.framing.is_untouched(), self.framing.has_head());
        let (taken, progress) = self.framing.feed(bytes);
        if was_untouched && !self.framing.has_head() {
            self.since = Instant::now();
        }
        if !had_head && self.framing.has_head() {
            self.down.set_turn(Turn::Edge);
            self.waited = Duration::ZERO;
            self.judged_payload = 0;
        }
        self.down.set_payload(self.framing.payload());
        if let Progress::Refused(violation) = progress {
            self.refuse(violation);
        }
        taken
    }

    fn refuse(&mut self, violation: Violation) {
        self.down.edge.meters.requests_refused.up();
        self.framing.refuse(violation);
        self.refused = Some(violation);
        if self.down.turn() != Turn::Client {
            self.down.broke(Broken::Refused(violation));
        }
        self.stash = Vec::new();
        self.out = 0;
        self.fed = 0;
    }

    /// Looks at kept bytes.
    fn feed_stash(&mut self) {
        let stash = std::mem::take(&mut self.stash);
        let taken = self.feed(stash.get(self.fed..).unwrap_or_default());
        if self.refused.is_none() {
            self.stash = stash;
            self.fed += taken;
        }
    }

    /// Lets kept bytes pass.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) {
        let cleared = self.stash.get(self.out..self.fed).unwrap_or_default();
        let length = cleared.len().min(buf.remaining());
        buf.put_slice(cleared.get(..length).unwrap_or_default());
        self.out += length;
        if self.out == self.stash.len() {
            self.stash = Vec::new();
            self.out = 0;
            self.fed = 0;
        }
    }

    /// The message is complete and not answered: watches whether the client leaves, keeps what it
    /// sends ahead.
    fn poll_ahead(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.fed < self.stash.len() {
            self.waiter = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.wire).poll_read(cx, buf))?;
        let ahead = buf.filled().get(before..).unwrap_or_default();
        if ahead.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.stash.extend_from_slice(ahead);
        buf.set_filled(before);
        self.waiter = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The moment until which the next byte must come.
    fn read_deadline(&mut self) -> Instant {
        let limits = &self.down.rules.limits;
        if self.framing.has_head() {
            *self.read_stalled.get_or_insert_with(Instant::now) + limits.body_stall
        } else if !self.framing.is_untouched() {
            self.since + limits.head
        } else if self.has_served {
            self.since + self.idle().min(limits.rest)
        } else {
            self.since + limits.first_byte
        }
    }

    /// Judges a body's rate when bytes came after waiting.
    fn judge(&mut self) {
        let Some(stalled) = self.read_stalled.take() else {
            return;
        };
        if !self.framing.has_head() {
            return;
        }
        self.waited += stalled.elapsed();
        if self.waited >= self.down.rules.limits.body_rate_over {
            let bytes = self.framing.payload().saturating_sub(self.judged_payload);
            if u128::from(bytes) * 1_000 < RATE_MIN * self.waited.as_millis() {
                self.refuse(Violation::TooSlow);
            }
            self.waited = Duration::ZERO;
            self.judged_payload = self.framing.payload();
        }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Ready(Ok(bytes)) => {
                self.write_stalled = None;
                self.handed_out = self.handed_out.saturating_add(bytes as u64);
                self.down.set_handed_out(self.handed_out);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let since = *self.write_stalled.get_or_insert_with(Instant::now);
                if self
                    .alarm
                    .is_due(cx, since + self.down.rules.limits.write_stall)
                {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        result
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.refused.is_some() {
                return Poll::Ready(Ok(()));
            }
            if this.has_cleared() {
                this.deliver(buf);
                return Poll::Ready(Ok(()));
            }
            if this.framing.is_ended() {
                if this.down.turn() != Turn::Client {
                    return this.poll_ahead(cx, buf);
                }
                this.framing = Framing::new();
            }
            if this.fed < this.stash.len() {
                // What was let pass is gone; the rest begins the next message.
                this.stash.drain(..this.out);
                this.fed -= this.out;
                this.out = 0;
                this.feed_stash();
                continue;
            }
            let before = buf.filled().len();
            match Pin::new(&mut this.wire).poll_read(cx, buf) {
                Poll::Pending => {
                    let deadline = this.read_deadline();
                    if !this.alarm.is_due(cx, deadline) {
                        return Poll::Pending;
                    }
                    if this.framing.is_untouched() {
                        // Nobody is asking anything: the end, without a word, or a rest.
                        this.is_dozing = this.has_served && this.since.elapsed() < this.idle();
                        return Poll::Ready(Ok(()));
                    }
                    this.refuse(Violation::TooSlow);
                    continue;
                }
                Poll::Ready(result) => result?,
            }
            let bytes = buf.filled().get(before..).unwrap_or_default();
            if bytes.is_empty() {
                if this.framing.has_head() {
                    this.down.broke(Broken::Left);
                }
                return Poll::Ready(Ok(()));
            }
            this.judge();
            if this.refused.is_some() {
                buf.set_filled(before);
                continue;
            }
            if this.stash.is_empty() {
                let length = bytes.len();
                let taken = this.feed(bytes);
                if this.refused.is_none() && taken == length && this.framing.has_head() {
                    return Poll::Ready(Ok(()));
                }
                if this.refused.is_none() {
                    this.stash.extend_from_slice(bytes);
                    this.fed = taken;
                }
            } else {
                this.stash.extend_from_slice(bytes);
            }
            buf.set_filled(before);
        }
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.wire).poll_write(cx, bytes);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.wire).poll_write_vectored(cx, slices);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.wire).poll_flush(cx))?;
        if this.down.turn() == Turn::Flush {
            // The library flushes when its own buffer is empty: the answer has left.
            this.down.flushed();
            this.has_served = true;
            this.since = Instant::now();
            this.read_stalled = None;
            this.down.set_turn(Turn::Client);
            if let Some(waiter) = this.waiter.take() {
                waiter.wake();
            } else if this.framing.is_ended() {
                // The library may not read again before something comes, so the idle deadline is
                // armed here.
                let rest = this.since + this.idle().min(this.down.rules.limits.rest);
                this.alarm.is_due(cx, rest);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Only flushes. The driver closes, since it may have something to say first.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.down.set_turn(Turn::Over);
        self.down.cut();
    }
}
