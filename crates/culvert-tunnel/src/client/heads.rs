//! The heads of forwarded messages, as far as the list of recent exchanges needs them.

use culvert_http::http1::BodyReader;
use culvert_http::http1::head::{body_length, field_line, request_line, split_head, status_line};
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

/// Parses a request head; `None` if it is invalid or its body cannot be followed.
pub(crate) fn request(head: &[u8]) -> Option<RequestHead<'_>> {
    let (line, _) = split_head(head)?;
    let line = request_line(line).ok()?;
    if line.method == b"CONNECT" {
        return None;
    }
    let fields = || split_head(head).into_iter().flat_map(|(_, fields)| fields);
    let mut client = None;
    for field in fields() {
        let (name, value) = field_line(field).ok()?;
        if name.eq_ignore_ascii_case(b"x-forwarded-for") {
            client = Some(value);
        }
    }
    Some(RequestHead {
        method: std::str::from_utf8(line.method).ok()?,
        path: std::str::from_utf8(line.target).ok()?,
        body: body_length(fields()).ok()?.of_request().ok()?,
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
