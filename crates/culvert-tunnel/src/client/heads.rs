//! The heads of forwarded messages, as far as the list of recent exchanges needs them.

use culvert_http::http1::follow::{usual_request, usual_response};
use culvert_http::http1::head::{body_length, field_line, request_line, split_head, status_line};
use culvert_http::http1::{BodyLength, BodyReader};
use http::StatusCode;

/// The head of a request.
#[derive(Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) body: BodyReader,
    /// The last address of the last `x-forwarded-for`: the client's address from the server.
    pub(crate) client: Option<&'a str>,
}

const FORWARDED_FOR: &[u8] = b"x-forwarded-for";

/// Parses a request head; `None` if it is invalid or its body cannot be followed.
pub(crate) fn request(head: &[u8]) -> Option<RequestHead<'_>> {
    let (line, fields) = split_head(head)?;
    let line = request_line(line).ok()?;
    let (mut client, mut body) = (None, BodyLength::default());
    for field in fields {
        let (name, value) = field_line(field).ok()?;
        if name.eq_ignore_ascii_case(FORWARDED_FOR) {
            client = Some(value);
        }
        body.note(name, value).ok()?;
    }
    let body = body.of_request().ok()?;
    request_head(line.method, line.target, body, client)
}

/// As [`request`], and the length of the head, if the head at the front of `bytes` is complete and in the usual form.
pub(crate) fn usual(bytes: &[u8]) -> Option<(RequestHead<'_>, usize)> {
    let mut client = None;
    let read = usual_request(bytes, |field| {
        if field.name.eq_ignore_ascii_case(FORWARDED_FOR) {
            client = Some(field.value);
        }
    })?;
    let head = request_head(read.method, read.target, read.body, client)?;
    Some((head, read.bytes))
}

fn request_head<'a>(
    method: &'a [u8],
    path: &'a [u8],
    body: BodyReader,
    client: Option<&'a [u8]>,
) -> Option<RequestHead<'a>> {
    if method == b"CONNECT" {
        return None;
    }
    Some(RequestHead {
        method: std::str::from_utf8(method).ok()?,
        path: std::str::from_utf8(path).ok()?,
        body,
        client: client
            .and_then(|value| std::str::from_utf8(value).ok()?.rsplit(',').next())
            .map(str::trim),
    })
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    /// `None` after an interim response: another head follows.
    pub(crate) body: Option<BodyReader>,
}

/// Parses a response head, to a `HEAD` or another request; `None` if it is invalid or its body cannot be
/// followed.
pub(crate) fn response(head: &[u8], to_head: bool) -> Option<ResponseHead> {
    let (line, fields) = split_head(head)?;
    let status = status_line(line).ok()?.status;
    let body = match status {
        StatusCode::SWITCHING_PROTOCOLS => Some(BodyReader::close()),
        _ if status.is_informational() => None,
        _ => Some(
            body_length(fields)
                .ok()?
                .of_response(status, to_head)
                .ok()?,
        ),
    };
    Some(ResponseHead { status, body })
}

/// As [`response`], and the length of the head, if the head at the front of `bytes` is complete, that of a final response, and
/// in the usual form.
pub(crate) fn usual_answer(bytes: &[u8], to_head: bool) -> Option<(ResponseHead, usize)> {
    let (status, body, length) = usual_response(bytes, to_head)?;
    let body = Some(body);
    Some((ResponseHead { status, body }, length))
}

#[cfg(test)]
mod tests {
    use http_body::SizeHint;

    use super::*;

    #[test]
    fn heads_say_how_long_bodies_are() {
        /// The body's size in bytes, if it is known in advance.
        fn hint(payload: &BodyReader) -> Option<u64> {
            SizeHint::exact(&payload.size_hint())
        }
        let of_request = |fields: &str| {
            let head = format!("POST /a HTTP/1.1\r\n{fields}\r\n");
            request(head.as_bytes()).map(|head| hint(&head.body))
        };
        assert_eq!(of_request(""), Some(Some(0)));
        assert_eq!(of_request("content-length: 7\r\n"), Some(Some(7)));
        assert_eq!(of_request("Transfer-Encoding: Chunked\r\n"), Some(None));
        assert!(of_request("Transfer-Encoding: gzip\r\n").is_none());
        assert!(of_request("content-length: 7\r\ncontent-length: 8\r\n").is_none());
        let of_response = |status: u16, is_head: bool| {
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: 7\r\n\r\n");
            let body = response(head.as_bytes(), is_head).and_then(|head| head.body);
            body.map(|body| (hint(&body), body.ends_with_connection()))
        };
        assert_eq!(of_response(200, false), Some((Some(7), false)));
        assert_eq!(of_response(200, true), Some((Some(0), false)));
        assert_eq!(of_response(304, false), Some((Some(0), false)));
        assert_eq!(of_response(103, false), None);
        assert_eq!(of_response(101, false), Some((None, true)));
    }

    #[test]
    fn the_last_address_of_the_last_field_is_the_client() {
        let head = b"GET / HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\nx-forwarded-for: a, 192.0.2.2\r\n\r\n";
        assert_eq!(request(head).unwrap().client, Some("192.0.2.2"));
        assert!(request(b"CONNECT a:1 HTTP/1.1\r\n\r\n").is_none());
        assert!(request(b"GET / HTTP/1.1\r\na b: c\r\n\r\n").is_none());
    }
}
