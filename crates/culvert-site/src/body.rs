//! Bodies of responses: pieces of text, and ranges of a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use culvert_base::{BoxFuture, Share};
use culvert_io::file_calls;
use http_body::{Body, Frame, SizeHint};

/// The most bytes of a file that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A part of a body.
pub(crate) enum Part {
    Text(Bytes),
    File(Range<u64>),
}

impl Part {
    fn bytes(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::File(range) => range.end.saturating_sub(range.start),
        }
    }
}

/// A body, read by one piece at a time on threads for blocking work. A file that became shorter ends it with an error, so the
/// connection is closed before the announced length; what a file grew by is not sent.
#[derive(Default)]
pub(crate) struct SiteBody {
    parts: VecDeque<Part>,
    file: Option<Arc<File>>,
    reading: Option<BoxFuture<'static, io::Result<Bytes>>>,
    /// The share of its reads; `None` without a file.
    share: Option<Share>,
}

impl SiteBody {
    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self {
            parts: [Part::Text(text.into())].into(),
            ..Self::default()
        }
    }

    /// Parts of a file, which is read in a share.
    pub(crate) fn of_file(file: File, share: Share, parts: impl Into<VecDeque<Part>>) -> Self {
        Self {
            parts: parts.into(),
            file: Some(Arc::new(file)),
            reading: None,
            share: Some(share),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }
}

impl Body for SiteBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                let piece = read?;
                if let Some(Part::File(range)) = self.parts.front_mut() {
                    range.start += piece.len() as u64;
                }
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match self.parts.pop_front() {
                None => return Poll::Ready(None),
                Some(part) if part.bytes() == 0 => {}
                Some(Part::Text(text)) => return Poll::Ready(Some(Ok(Frame::data(text)))),
                Some(Part::File(range)) => {
                    let (Some(file), Some(share)) = (self.file.clone(), self.share) else {
                        return Poll::Ready(None);
                    };
                    self.parts.push_front(Part::File(range.clone()));
                    self.reading = Some(Box::pin(async move {
                        file_calls::run(share, move || read(&file, range)).await?
                    }));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes())
    }
}

/// The first piece of a range of a file.
fn read(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let left = usize::try_from(range.end - range.start).unwrap_or(PIECE_BYTES);
    let mut piece = vec![0; left.min(PIECE_BYTES)];
    let read = loop {
        match file.read_at(&mut piece, range.start) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    piece.truncate(read);
    Ok(piece.into())
}
