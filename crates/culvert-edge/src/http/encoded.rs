//! Response bodies that are encoded while they are forwarded.
//!
//! An encoder flushes whenever the upstream pauses, so no data waits for later data. All encoders share a memory limit; a
//! response that exceeds it is not encoded.

use std::task::{Context, Poll};

use bytes::Bytes;
use culvert_base::FairPermit;
use culvert_http::coding::{Coding, Encoder};
use culvert_io::yield_turn;
use http::HeaderMap;
use http_body::Frame;

use crate::http::response_body::{BodyError, Source};

/// Memory limit of all encoders, in KiB.
pub(crate) const ENCODERS_KIB_MAX: usize = 128 << 10;
/// Bytes that are encoded at a time, so that a complete body does not occupy a thread for long.
const SLICE_BYTES: usize = 16 << 10;
/// Slices before other tasks run.
const SLICES_MAX: usize = 16;

/// A body and its encoder.
pub(crate) struct Encoded {
    pub(crate) coding: Coding,
    source: Source,
    /// `None` after the end of the body.
    encoder: Option<Encoder>,
    /// Bytes that are not encoded yet.
    waiting: Bytes,
    trailers: Option<HeaderMap>,
    /// Bytes before encoding.
    raw: u64,
    /// Whether the encoder may hold output back.
    holds: bool,
    _room: FairPermit,
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoded")
            .field("coding", &self.coding)
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

impl Encoded {
    pub(crate) fn new(source: Source, coding: Coding, room: FairPermit) -> Self {
        Self {
            coding,
            source,
            encoder: Some(Encoder::new(coding)),
            waiting: Bytes::new(),
            trailers: None,
            raw: 0,
            holds: false,
            _room: room,
        }
    }

    /// Bytes before encoding so far.
    pub(crate) fn raw(&self) -> u64 {
        self.raw
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.encoder.is_none() && self.trailers.is_none()
    }

    /// The upstream's body is complete.
    pub(crate) fn end(&mut self) {
        self.source.end();
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut slices = 0;
        loop {
            let Some(encoder) = &mut self.encoder else {
                let trailers = self.trailers.take();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            };
            if !self.waiting.is_empty() {
                if slices == SLICES_MAX {
                    return yield_turn(cx);
                }
                slices += 1;
                let slice = self.waiting.split_to(self.waiting.len().min(SLICE_BYTES));
                encoder.write(&slice)?;
                self.raw += slice.len() as u64;
                self.holds = true;
                let made = encoder.take();
                if !made.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(made))));
                }
                continue;
            }
            match self.source.poll(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.waiting = data,
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    self.source.end();
                    let rest = self.encoder.take().map(Encoder::finish).transpose()?;
                    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                }
                Poll::Pending if self.holds => {
                    self.holds = false;
                    encoder.flush()?;
                    let made = encoder.take();
                    if !made.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(made))));
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
