//! Compressed responses: lists, which repeat the names of their fields for every item. Responses about one object are not
//! compressed: they are short, and may contain a secret, whose length compression could reveal.

use bytes::Bytes;
use culvert_http::coding::{Coding, Encoder, negotiate, negotiate_named, set_fields};
use http::header::VARY;
use http::{HeaderMap, HeaderValue};

/// Bodies below this size are sent as they are.
const BYTES_MIN: usize = 1 << 10;
/// Codings in the order of preference.
const OFFERED: [Coding; 1] = [Coding::Gzip];

/// The body of a list for a client that sent `asked`, with the fields of its response in `headers`.
pub async fn packed(body: Bytes, asked: &HeaderMap, headers: &mut HeaderMap) -> Bytes {
    headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    let coding = negotiate(asked, &OFFERED);
    let Some(coding) = coding.filter(|_| body.len() >= BYTES_MIN) else {
        return body;
    };
    let plain = body.clone();
    let encode = move || {
        let mut encoder = Encoder::new(coding);
        encoder.write(&plain)?;
        encoder.finish()
    };
    // A page may have megabytes of policies.
    match tokio::task::spawn_blocking(encode).await {
        Ok(Ok(packed)) => {
            set_fields(headers, coding);
            packed
        }
        _ => body,
    }
}

/// Of the codings of a file, the one that a client that sent `asked` prefers.
pub fn negotiated(asked: &HeaderMap, codings: &[&'static str]) -> Option<&'static str> {
    negotiate_named(asked, codings)
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};

    use super::*;

    #[tokio::test]
    async fn a_long_list_is_compressed_for_who_accepts_it() {
        let long = Bytes::from("\"name\",".repeat(1000));
        for (asked, body, coding) in [
            ("gzip", long.clone(), Some("gzip")),
            ("br, GZIP;q=0.5", long.clone(), Some("gzip")),
            ("gzip;q=0", long.clone(), None),
            ("identity", long.clone(), None),
            ("gzip", Bytes::from_static(b"{}"), None),
        ] {
            let value = HeaderValue::from_static(asked);
            let request = HeaderMap::from_iter([(ACCEPT_ENCODING, value)]);
            let mut headers = HeaderMap::new();
            let packed = packed(body.clone(), &request, &mut headers).await;
            let got = headers.get(CONTENT_ENCODING).map(|it| it.to_str().unwrap());
            assert_eq!(got, coding, "{asked}");
            assert_eq!(packed.len() < body.len(), coding.is_some());
            let vary = headers.get_all(VARY).iter().count();
            assert_eq!(vary, 1, "{asked}");
        }
    }
}
