//! The audit log as a transparency log (C2SP `tlog-tiles`): its latest signed head and the tiles of its tree, for callers
//! with a key, or for everyone if the settings say so. Entries are not served: events are read through `GET /events`.

use std::time::Duration;

use culvert_api_http::response::answer::{Body, NO_STORE};
use culvert_api_http::response::problem::Problem;
use culvert_base::Refusal;
use culvert_control::{AuditFile, Control};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};

/// Rate and burst of reads of an address without a key. A log of a million events has 4,000 tiles.
pub(crate) const PUBLIC_EVERY: Duration = Duration::from_millis(20);
pub(crate) const PUBLIC_AT_ONCE: u32 = 500;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const FOREVER: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

/// The refusal of a read without a key that is beyond the rate.
pub(crate) fn too_many(wait: Duration) -> Problem {
    Problem::too_many(
        wait,
        "Too many requests for the audit log without an API key; try again later.",
    )
}

/// The response to a path below `/audit/log/`.
pub(crate) async fn answer(control: &Control, path: &str) -> Result<Response<Body>, Problem> {
    let file = control.events.audit_log().file(path).await?;
    let (body, media_type, caching) = match file {
        None => return Err(Refusal::not_found().into()),
        Some(AuditFile::Checkpoint(text)) => (text.into_bytes(), TEXT, NO_STORE),
        Some(AuditFile::Tile { hashes, is_final }) => {
            // Leaves beyond the signed head may be lost in a fail-over, and partial tiles grow.
            (hashes, BYTES, if is_final { FOREVER } else { NO_STORE })
        }
    };
    let mut response = Response::new(Body::whole(body.into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, media_type);
    headers.insert(CACHE_CONTROL, caching);
    Ok(response)
}
