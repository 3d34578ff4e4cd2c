//! Bodies of requests: HTML forms, and compressed ones.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

/// The body of an HTML form.
pub(crate) fn form(fields: &[(&str, &str)]) -> Bytes {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(fields);
    form.finish().into()
}

/// The headers of a form.
pub(crate) fn form_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    headers
}

/// Compresses a body with gzip, at the fastest level.
pub(crate) fn gzipped(body: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, body)
        .and_then(|()| packed.finish())
        .expect("memory takes every write")
}
