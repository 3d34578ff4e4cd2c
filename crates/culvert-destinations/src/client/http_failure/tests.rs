use bytes::Bytes;
use http::HeaderMap;

use super::*;

#[test]
fn responses_are_classified_by_the_table() {
    use FailureClass::*;
    for (status, class) in [
        (200, None),
        (204, None),
        (299, None),
        (301, Some(Config)),
        (302, Some(Config)),
        (400, Some(Permanent)),
        (401, Some(Auth)),
        (403, Some(Auth)),
        (404, Some(Config)),
        (405, Some(Config)),
        (408, Some(Retryable)),
        (409, Some(Retryable)),
        (410, Some(Gone)),
        (413, Some(Split)),
        (418, Some(Permanent)),
        (422, Some(Permanent)),
        (425, Some(Retryable)),
        (429, Some(Retryable)),
        (500, Some(Retryable)),
        (503, Some(Retryable)),
        (599, Some(Retryable)),
    ] {
        let answer = HttpResponse {
            status,
            headers: HeaderMap::new(),
            trailers: HeaderMap::new(),
            retry_after: None,
            body: Bytes::new(),
            text: String::new(),
        };
        let got = judge(&answer, &[]).err().map(|failure| failure.class);
        assert_eq!(got, class, "{status}");
    }
}
