//! The fixed limits on message sizes (reliability 4.1, 4.2): one table for the reference and for the tests,
//! which send each message at its limit and one unit above it.

use std::fmt::Write;

use culvert_io::proxy;
use culvert_tls::peek;

use crate::http::exchange;

/// A fixed limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// The limited quantity.
    pub(crate) what: &'static str,
    /// The highest accepted value.
    pub(crate) most: u64,
    unit: Unit,
    /// The reaction to a higher value.
    pub(crate) beyond: Beyond,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Count,
}

/// The reaction to a message above a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// A response with this status.
    Status(u16),
    /// A reset of the stream.
    Stream(Reason),
    /// The end of the HTTP/2 connection.
    Connection(Reason),
    /// The connection closes without a response.
    Close,
}

use Beyond::{Close, Connection, Status, Stream};
use Unit::{Bytes, Count};
use culvert_http::http1::limits as http1;
use culvert_http::http2::{Reason, limits as http2};
use culvert_http::target;

const fn bound(what: &'static str, most: usize, unit: Unit, beyond: Beyond) -> Bound {
    Bound {
        what,
        most: most as u64,
        unit,
        beyond,
    }
}

/// Every limit.
#[rustfmt::skip]
pub(crate) static BOUNDS: &[Bound] = &[
    bound("HTTP/1: request line", http1::REQUEST_LINE_BYTES_MAX, Bytes, Status(414)),
    bound("HTTP/1: field line", http1::FIELD_LINE_BYTES_MAX, Bytes, Status(431)),
    bound("HTTP/1: field section", http1::FIELD_SECTION_BYTES_MAX, Bytes, Status(431)),
    bound("HTTP/1: field lines", http1::FIELDS_MAX, Count, Status(431)),
    bound("HTTP/1: digits of a chunk's size", http1::CHUNK_DIGITS_MAX, Count, Status(400)),
    bound("HTTP/1: extension of a chunk", http1::CHUNK_EXTENSION_BYTES_MAX, Bytes, Status(400)),
    bound("HTTP/1: trailer section", http1::TRAILER_BYTES_MAX, Bytes, Status(400)),
    bound("HTTP/1: trailer lines", http1::TRAILERS_MAX, Count, Status(400)),
    bound("HTTP/1: head of an upstream response", http1::RESPONSE_HEAD_BYTES_MAX, Bytes, Status(502)),
    bound("HTTP/1: field lines of an upstream response", http1::RESPONSE_FIELDS_MAX, Count, Status(502)),
    bound("HTTP/1: interim responses of an upstream", http1::INTERIMS_MAX as usize, Count, Status(502)),
    bound("HTTP/2: payload of a frame", http2::PAYLOAD_BYTES_MAX, Bytes, Connection(Reason::FRAME_SIZE_ERROR)),
    bound("HTTP/2: field section, decoded, with 32 for each field", http2::LIST_BYTES_MAX, Bytes, Stream(Reason::ENHANCE_YOUR_CALM)),
    bound("HTTP/2: fields including the authority, all cookies counted as one", http1::FIELDS_MAX, Count, Status(431)),
    bound("HTTP/2: path with its query", target::TARGET_BYTES_MAX, Bytes, Status(414)),
    bound("HTTP/2: trailer fields", http1::TRAILERS_MAX, Count, Stream(Reason::PROTOCOL_ERROR)),
    bound("HTTP/2: HPACK dynamic table", http2::TABLE_BYTES_MAX, Bytes, Connection(Reason::COMPRESSION_ERROR)),
    bound("HTTP/2: CONTINUATION frames of a field section", http2::CONTINUATIONS_MAX as usize, Count, Connection(Reason::ENHANCE_YOUR_CALM)),
    bound("HTTP/2: unread data of a stream", http2::STREAM_WINDOW as usize, Bytes, Stream(Reason::FLOW_CONTROL_ERROR)),
    bound("HTTP/2: unread data of a connection", http2::CONNECTION_WINDOW as usize, Bytes, Connection(Reason::FLOW_CONTROL_ERROR)),
    bound("HTTP/2: resets in one burst", http2::RESETS.0 as usize, Count, Connection(Reason::ENHANCE_YOUR_CALM)),
    bound("HTTP/2: frames without progress in one burst", http2::IDLE_FRAMES.0 as usize, Count, Connection(Reason::ENHANCE_YOUR_CALM)),
    bound("HTTP/2: field sections of the open requests of a connection", exchange::HEADER_BYTES_MAX, Bytes, Status(431)),
    bound("TLS: ClientHello with its records", peek::HELLO_BYTES_MAX, Bytes, Close),
    bound("PROXY protocol: header", proxy::HEADER_BYTES_MAX, Bytes, Close),
];

/// Renders `docs/reference/sizes.md`.
pub fn sizes() -> String {
    let mut page = INTRODUCTION.to_owned();
    for bound in BOUNDS {
        let most = match bound.unit {
            Bytes if bound.most.is_multiple_of(1 << 20) => format!("{} MiB", bound.most >> 20),
            Bytes if bound.most.is_multiple_of(1 << 10) => format!("{} KiB", bound.most >> 10),
            Bytes => format!("{} bytes", bound.most),
            Count => bound.most.to_string(),
        };
        let beyond = match bound.beyond {
            Status(status) => status.to_string(),
            Stream(reason) => format!("the stream is reset with error {}", reason.0),
            Connection(reason) => format!("GOAWAY with error {}", reason.0),
            Close => "the connection is closed".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ok = writeln!(page, "| {} | {most} | {beyond} |", bound.what);
    }
    page
}

const INTRODUCTION: &str = "# Sizes

Generated from the table that the tests of the edge use. For each limit, the tests send a message at the limit,
which is accepted, and a larger one, which is rejected.

These limits are fixed. [settings.md](settings.md) lists the configurable limits (connections, streams, timeouts,
body lengths), and [traffic-policy.md](traffic-policy.md) the limits of traffic policies.

| Item | Limit | If exceeded |
|---|---|---|
";
