//! Decides about a request: which file it gets, in which coding, and which part of it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::Bytes;
use culvert_base::Share;
use culvert_io::file_calls;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED, LOCATION, RANGE, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::body::{Part, SiteBody};
use crate::conditions::{Validators, Verdict};
use crate::folder::{Node, open};
use crate::media_type;
use crate::range::{self, Ranges};
use crate::target::Target;
use crate::{Site, SiteError};

/// The file of a folder.
const INDEX: &str = "index.html";
/// Codings of files beside a file, and the endings of their names. Among those that a client likes equally, the first.
const CODINGS: [(&str, &str); 3] = [("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz")];

/// What a target names.
enum Found {
    /// A folder, named without a slash at the end.
    Folder,
    File(Box<Resource>),
}

/// A file to send.
struct Resource {
    file: File,
    /// That of its reads.
    share: Share,
    metadata: Metadata,
    media_type: &'static str,
    coding: Option<&'static str>,
    /// Whether other clients get another coding of it.
    varies: bool,
}

/// Responds to a request.
pub(crate) async fn respond(
    site: Site,
    request: Request<Incoming>,
) -> Result<Response<SiteBody>, Infallible> {
    let (head, _) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    if !is_head && head.method != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED);
        set(&mut refused, ALLOW, "GET, HEAD");
        return Ok(refused);
    }
    let Some(target) = Target::parse(head.uri.path()) else {
        return Ok(without_body(plain(StatusCode::NOT_FOUND), is_head));
    };
    let qualities = qualities(&head.headers);
    let share = site.share();
    let looking = file_calls::run(share, move || {
        let found = find(&site, &target, &qualities);
        (found, target)
    });
    let response = match looking.await {
        Ok((Ok(Found::File(resource)), _)) => resource.response(&head.headers, is_head),
        Ok((Ok(Found::Folder), target)) => {
            let mut moved = plain(StatusCode::MOVED_PERMANENTLY);
            set(&mut moved, LOCATION, &target.folder_url(head.uri.query()));
            moved
        }
        Ok((Err(error), _)) => plain(status_of(&error)),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR),
    };
    Ok(without_body(response, is_head))
}

/// Looks up a file, and the best coding that its neighbours have.
fn find(site: &Site, target: &Target, qualities: &[u16; CODINGS.len()]) -> io::Result<Found> {
    let folder = site.open().map_err(|error| match error {
        SiteError::NotAllowed => io::ErrorKind::PermissionDenied.into(),
        SiteError::Open(error) => error,
    })?;
    let mut path = target.path();
    let mut node = open(&folder, &path)?;
    if matches!(node, Node::Folder) {
        if !target.is_folder {
            return Ok(Found::Folder);
        }
        path.push(INDEX);
        node = open(&folder, &path)?;
    } else if target.is_folder {
        return Err(io::ErrorKind::NotFound.into());
    }
    let Node::File(file) = node else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let metadata = file.metadata()?;
    let mut resource = Resource {
        media_type: media_type::of(&path),
        file,
        share: site.share(),
        metadata,
        coding: None,
        varies: false,
    };
    let mut best = 0;
    let plain_modified = resource.metadata.modified().ok();
    for ((coding, ending), quality) in CODINGS.into_iter().zip(qualities) {
        let Some((file, metadata)) = neighbour(&folder, &path, ending) else {
            continue;
        };
        // One of an older state of the file.
        if metadata.modified().ok() < plain_modified {
            continue;
        }
        resource.varies = true;
        if *quality > best {
            best = *quality;
            resource.file = file;
            resource.metadata = metadata;
            resource.coding = Some(coding);
        }
    }
    Ok(Found::File(Box::new(resource)))
}

/// The file beside another one, whose name has this ending too.
fn neighbour(folder: &OwnedFd, path: &Path, ending: &str) -> Option<(File, Metadata)> {
    let mut name = OsString::from(path);
    name.push(ending);
    let Ok(Node::File(file)) = open(folder, Path::new(&name)) else {
        return None;
    };
    let metadata = file.metadata().ok()?;
    Some((file, metadata))
}

/// How much a client likes each of [`CODINGS`], from 0 for not at all to 1000 (RFC 9110, 12.5.3). 0 also for those that it likes less
/// than no coding.
fn qualities(headers: &HeaderMap) -> [u16; CODINGS.len()] {
    let of = |wanted: &str| {
        let lists = headers.get_all(ACCEPT_ENCODING).iter();
        let lists = lists.filter_map(|list| list.to_str().ok());
        let mut items = lists.flat_map(|list| list.split(','));
        items.find_map(|item| {
            let (name, parameters) = item.split_once(';').unwrap_or((item, "q=1"));
            let is_named = name.trim().eq_ignore_ascii_case(wanted);
            let weight = parameters.trim().strip_prefix("q=");
            let weight = weight.and_then(|weight| weight.trim().parse::<f32>().ok());
            let weight = weight.unwrap_or(0.0).clamp(0.0, 1.0);
            is_named.then_some((weight * 1_000.0) as u16)
        })
    };
    let (any, plain) = (of("*").unwrap_or(0), of("identity").unwrap_or(0));
    CODINGS.map(|(coding, _)| {
        Some(of(coding).unwrap_or(any))
            .filter(|it| *it >= plain)
            .unwrap_or(0)
    })
}

impl Resource {
    /// The response to a request with these fields.
    fn response(self, headers: &HeaderMap, is_head: bool) -> Response<SiteBody> {
        let validators = Validators::of(&self.metadata, self.coding);
        let (media_type, coding, varies) = (self.media_type, self.coding, self.varies);
        let mut response = match validators.verdict(headers) {
            Verdict::Failed => return plain(StatusCode::PRECONDITION_FAILED),
            Verdict::NotModified => {
                let mut response = Response::new(SiteBody::default());
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response
            }
            Verdict::Send => {
                // Only GET has ranges (RFC 9110, 14.2).
                let field = headers.get(RANGE).filter(|_| !is_head);
                let field = field.filter(|_| validators.allows_range(headers));
                let field = field.and_then(|field| field.to_str().ok());
                let length = self.metadata.len();
                match field.map_or(Ranges::Whole, |field| range::parse(field, length)) {
                    Ranges::Unsatisfiable => return unsatisfiable(length),
                    Ranges::Whole => sent(
                        StatusCode::OK,
                        (self.file, self.share),
                        [Part::File(0..length)],
                        media_type,
                    ),
                    Ranges::Some(ranges) => {
                        partial((self.file, self.share), ranges, length, media_type)
                    }
                }
            }
        };
        if response.status() != StatusCode::NOT_MODIFIED {
            set(&mut response, ACCEPT_RANGES, "bytes");
            if let Some(coding) = coding {
                set(&mut response, CONTENT_ENCODING, coding);
            }
        }
        if varies {
            set(&mut response, VARY, "accept-encoding");
        }
        if let Some(date) = validators.last_modified() {
            set(&mut response, LAST_MODIFIED, &date);
        }
        set(&mut response, ETAG, &validators.tag);
        response
    }
}

/// A response with parts of a file.
fn sent(
    status: StatusCode,
    (file, share): (File, Share),
    parts: impl Into<VecDeque<Part>>,
    media_type: &str,
) -> Response<SiteBody> {
    let mut response = Response::new(SiteBody::of_file(file, share, parts));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, media_type);
    let bytes = response.body().bytes();
    response.headers_mut().insert(CONTENT_LENGTH, bytes.into());
    response
}

/// A response with one range, or with several in a `multipart/byteranges` (RFC 9110, 14.6).
fn partial(
    file: (File, Share),
    ranges: Vec<Range<u64>>,
    length: u64,
    media_type: &str,
) -> Response<SiteBody> {
    let content_range =
        |range: &Range<u64>| format!("bytes {}-{}/{length}", range.start, range.end - 1);
    if let [range] = &*ranges {
        let field = content_range(range);
        let part = Part::File(range.clone());
        let mut response = sent(StatusCode::PARTIAL_CONTENT, file, [part], media_type);
        set(&mut response, CONTENT_RANGE, &field);
        return response;
    }
    // Parts have lengths of their own, so it does not matter that a file may contain it.
    let boundary = format!("culvert-range-{length:x}");
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for range in ranges {
        let field = content_range(&range);
        let head = format!(
            "\r\n--{boundary}\r\ncontent-type: {media_type}\r\ncontent-range: {field}\r\n\r\n"
        );
        parts.extend([Part::Text(head.into()), Part::File(range)]);
    }
    parts.push(Part::Text(format!("\r\n--{boundary}--\r\n").into()));
    let media_type = format!("multipart/byteranges; boundary={boundary}");
    sent(StatusCode::PARTIAL_CONTENT, file, parts, &media_type)
}

fn unsatisfiable(length: u64) -> Response<SiteBody> {
    let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE);
    set(&mut response, CONTENT_RANGE, &format!("bytes */{length}"));
    response
}

/// The status for an error of the system. None tells whether something exists outside of the folder.
fn status_of(error: &io::Error) -> StatusCode {
    // EMFILE and ENFILE.
    let is_short_of_files = matches!(error.raw_os_error(), Some(24 | 23));
    match error.kind() {
        io::ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        io::ErrorKind::WouldBlock => StatusCode::SERVICE_UNAVAILABLE,
        _ if is_short_of_files => StatusCode::SERVICE_UNAVAILABLE,
        // No such name, a link that leads out, a loop of links, a name that is too long.
        _ => StatusCode::NOT_FOUND,
    }
}

/// A response without content of the folder.
fn plain(status: StatusCode) -> Response<SiteBody> {
    let text = format!(
        "{} {}\n",
        status.as_str(),
        status.canonical_reason().unwrap_or_default()
    );
    let mut response = Response::new(SiteBody::text(Bytes::from(text)));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "text/plain; charset=utf-8");
    let bytes = response.body().bytes();
    response.headers_mut().insert(CONTENT_LENGTH, bytes.into());
    response
}

/// For HEAD, the same response without its body.
fn without_body(mut response: Response<SiteBody>, is_head: bool) -> Response<SiteBody> {
    if is_head {
        *response.body_mut() = SiteBody::default();
    }
    response
}

fn set(response: &mut Response<SiteBody>, name: HeaderName, value: &str) {
    // None of the values can have a character that is not allowed.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
