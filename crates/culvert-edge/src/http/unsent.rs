//! What an HTTP/2 connection was given of its answers and has not sent (reliability 4.2).
//!
//! The library keeps what streams hand it until the socket takes it. A [`Sending`] hands it what its
//! connection's allowance has room for, and waits while there is none. A part of the allowance is each
//! stream's own: those whose client takes nothing cannot keep the others waiting.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use crate::downstream::lock;

/// Bytes that the streams of a connection have unsent together.
const UNSENT_BYTES_MAX: usize = 512 << 10;

/// The allowance of a connection.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// Each stream's own; together they are half of it.
    own: usize,
    /// What all share, and how much of it is taken.
    shared: usize,
    taken: AtomicUsize,
    /// Streams that found no room.
    waiting: Mutex<Vec<Waker>>,
}

/// What one stream has unsent.
#[derive(Debug)]
struct Stream {
    bytes: AtomicUsize,
    of: Arc<Unsent>,
}

impl Unsent {
    /// For a connection with so many streams.
    pub(crate) fn of(streams: u32) -> Arc<Self> {
        let streams = (streams as usize).max(1);
        let own = UNSENT_BYTES_MAX / 2 / streams;
        Arc::new(Self {
            own,
            shared: UNSENT_BYTES_MAX - own * streams,
            taken: AtomicUsize::new(0),
            waiting: Mutex::default(),
        })
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Stream {
    /// Takes room for as many of `wanted` bytes as there is.
    fn take(&self, wanted: usize) -> usize {
        let of = &self.of;
        // Meanwhile it can only become less: this stream alone adds to it.
        let before = self.bytes.load(Ordering::Acquire);
        let own_left = of.own.saturating_sub(before);
        let wanted_shared = wanted.saturating_sub(own_left);
        let share = |taken| wanted_shared.min(of.shared.saturating_sub(taken));
        let took = of
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                Some(taken + share(taken))
            });
        let from_shared = took.map_or(0, share);
        let bytes = own_left.min(wanted) + from_shared;
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        bytes
    }

    /// The same; a task that finds none is woken when there may be some.
    fn poll_take(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<usize> {
        let bytes = self.take(wanted);
        if bytes > 0 {
            return Poll::Ready(bytes);
        }
        {
            let mut waiting = lock(&self.of.waiting);
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
        }
        // Some may have come before the task could be woken for it.
        match self.take(wanted) {
            0 => Poll::Pending,
            bytes => Poll::Ready(bytes),
        }
    }

    /// So many bytes were sent, or never will be.
    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let of = &self.of;
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        let after = before.saturating_sub(bytes);
        let to_shared = before.saturating_sub(of.own) - after.saturating_sub(of.own);
        let taken = of.taken.fetch_sub(to_shared, Ordering::AcqRel) - to_shared;
        if after == 0 || taken <= of.shared / 2 {
            of.wake();
        }
    }
}

/// A part of an answer, until it was sent.
#[derive(Debug)]
pub(crate) struct Part {
    bytes: Bytes,
    stream: Arc<Stream>,
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
        self.stream.give_back(bytes);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.stream.give_back(self.bytes.len());
    }
}

/// A body that may hear that not all of what it gave was handed on.
pub(crate) trait Source: Body<Data = Bytes> + Unpin {
    /// The last so many bytes were not.
    fn left_over(&mut self, bytes: usize);
}

/// An answer's body within the allowance of its connection.
#[derive(Debug)]
pub(crate) struct Sending<B: Source> {
    body: B,
    /// What the body gave and there was no room for yet.
    rest: Bytes,
    stream: Arc<Stream>,
}

impl<B: Source> Sending<B> {
    pub(crate) fn new(body: B, of: Arc<Unsent>) -> Self {
        let bytes = AtomicUsize::new(0);
        Self {
            body,
            rest: Bytes::new(),
            stream: Arc::new(Stream { bytes, of }),
        }
    }
}

impl<B: Source> Body for Sending<B> {
    type Data = Part;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, B::Error>>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
            }
            if this.rest.is_empty() && this.body.is_end_stream() {
                return Poll::Ready(None);
            }
        }
        let room = ready!(this.stream.poll_take(cx, this.rest.len()));
        let part = Part {
            bytes: this.rest.split_to(room),
            stream: Arc::clone(&this.stream),
        };
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let of_body = self.body.size_hint();
        let rest = self.rest.len() as u64;
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(of_body.lower().saturating_add(rest));
        hint
    }
}

impl<B: Source> Drop for Sending<B> {
    fn drop(&mut self) {
        if !self.rest.is_empty() {
            self.body.left_over(self.rest.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    /// A body without end, in large parts.
    #[derive(Debug, Default)]
    struct Endless(Arc<AtomicUsize>);

    const LARGE: usize = 100_000;

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.fetch_add(LARGE, Ordering::SeqCst);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; LARGE])))))
        }
    }

    impl Source for Endless {
        fn left_over(&mut self, bytes: usize) {
            self.0.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn poll(body: &mut Sending<Endless>, woken: &Arc<Woken>) -> Option<Part> {
        let waker = Waker::from(Arc::clone(woken));
        match Pin::new(body).poll_frame(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(Ok(frame))) => Some(frame.into_data().unwrap()),
            Poll::Pending => None,
            Poll::Ready(other) => panic!("it has no end: {other:?}"),
        }
    }

    /// As much as the body has room for.
    fn fill(body: &mut Sending<Endless>, woken: &Arc<Woken>, parts: &mut Vec<Part>) -> usize {
        let before = parts.len();
        parts.extend(std::iter::from_fn(|| poll(body, woken)));
        parts[before..].iter().map(Buf::remaining).sum()
    }

    #[test]
    fn streams_have_so_much_unsent_together_and_none_is_without() {
        const STREAMS: u32 = 100;
        let unsent = Unsent::of(STREAMS);
        let own = unsent.own;
        let woken = Arc::new(Woken::default());
        let mut parts = Vec::new();
        let mut bodies: Vec<_> = (0..STREAMS)
            .map(|_| Sending::new(Endless::default(), Arc::clone(&unsent)))
            .collect();
        let taken: Vec<usize> = bodies
            .iter_mut()
            .map(|body| fill(body, &woken, &mut parts))
            .collect();
        // The first takes all that is shared, the others have their own, and not a byte more.
        assert_eq!(taken[0], UNSENT_BYTES_MAX - 99 * own);
        assert!(taken[1..].iter().all(|bytes| *bytes == own));
        assert_eq!(taken.iter().sum::<usize>(), UNSENT_BYTES_MAX);
        assert!(!woken.0.load(Ordering::SeqCst));

        // What one stream of many sent is its own to fill again.
        let (mine, others): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .partition(|part| Arc::ptr_eq(&part.stream, &bodies[50].stream));
        drop(mine);
        assert!(woken.0.swap(false, Ordering::SeqCst));
        let mut parts = others;
        assert_eq!(fill(&mut bodies[50], &woken, &mut parts), own);
        assert_eq!(fill(&mut bodies[51], &woken, &mut parts), 0);

        // What is sent bit by bit makes room, whether its stream goes on or is gone.
        let mut sent = 0;
        bodies.remove(0);
        for part in &mut parts {
            if part.remaining() > 70_000 {
                sent += 70_000;
                part.advance(70_000);
            }
        }
        assert!(woken.0.load(Ordering::SeqCst));
        assert_eq!(fill(&mut bodies[7], &woken, &mut parts), sent);
        drop(parts);
        assert_eq!(unsent.taken.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn what_was_not_handed_on_is_told() {
        let unsent = Unsent::of(100);
        let given = Arc::<AtomicUsize>::default();
        let mut body = Sending::new(Endless(Arc::clone(&given)), unsent);
        let woken = Arc::new(Woken::default());
        let mut parts = Vec::new();
        let taken = fill(&mut body, &woken, &mut parts);
        assert!(given.load(Ordering::SeqCst) > taken);
        drop(body);
        assert_eq!(given.load(Ordering::SeqCst), taken);
    }
}
