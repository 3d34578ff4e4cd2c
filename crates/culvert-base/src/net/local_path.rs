//! Paths of this machine that upstreams are at, and the paths that an operator allows.
//!
//! Only texts are compared here. The code that opens a path compares it again as the system resolved it, because of symbolic links.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The longest path of a Unix socket in bytes: `sun_path` of Linux without the final zero (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The path of a Unix socket: absolute, without `..`, without repeated slashes, at most 107 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketPath(String);

/// Why a text is not the URL of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASocketPath {
    /// No path, a relative one, or the name of an abstract socket.
    #[error("the path of a Unix socket must be absolute, as in `unix:/run/app.sock`")]
    Relative,
    /// It ends with a slash, or has a part `..`.
    #[error("the path of a Unix socket must not contain `..` or end with `/`")]
    Shape,
    /// A zero or another control character, or an escape that is none.
    #[error("the path of a Unix socket must not contain control characters")]
    Character,
    /// More bytes than the system takes.
    #[error("the path of a Unix socket must have at most {SOCKET_PATH_BYTES_MAX} bytes")]
    TooLong,
    /// nginx's `unix:/path:/uri`.
    #[error("the URL of a Unix socket must end after its path")]
    Uri,
    /// `unix+tls:` of cloudflared, `https+unix`.
    #[error("TLS to a Unix socket is not supported; use `unix:/path`")]
    Tls,
    /// `unix+h2c//` of Caddy.
    #[error(
        "for HTTP/2 over a Unix socket, use `unix:/path` and set the upstream protocol to `http2`"
    )]
    Http2,
}

impl SocketPath {
    /// Reads the URL of a socket: `unix:/run/app.sock`, or as other products spell it, `unix:///run/app.sock` (Docker, gRPC),
    /// `unix//run/app.sock` (Caddy), `unix@/run/app.sock` (HAProxy), `http://unix:/run/app.sock` (nginx) and
    /// `http+unix://%2Frun%2Fapp.sock` (Python's requests). `None` for a text that is no URL of a socket.
    ///
    /// # Errors
    ///
    /// It is one, but its path cannot be that of a socket, or it asks for TLS or HTTP/2.
    pub fn of_url(url: &str) -> Option<Result<Self, NotASocketPath>> {
        if url.starts_with("unix+tls:") || url.starts_with("https+unix:") {
            return Some(Err(NotASocketPath::Tls));
        }
        if url.starts_with("unix+h2c/") {
            return Some(Err(NotASocketPath::Http2));
        }
        if let Some(path) = url.strip_prefix("http+unix://") {
            let path = path.strip_suffix('/').unwrap_or(path);
            return Some(decoded(path).and_then(|path| Self::new(&path)));
        }
        if let Some(path) = url.strip_prefix("http://unix:") {
            // `http://unix:/` is a host of this name.
            if !path.starts_with('/') || path == "/" {
                return None;
            }
            return Some(match path.split_once(':') {
                None | Some((_, "" | "/")) => Self::new(path.split(':').next().unwrap_or(path)),
                Some(_) => Err(NotASocketPath::Uri),
            });
        }
        let path = match url.strip_prefix("unix:") {
            Some(path) => path.strip_prefix("//").unwrap_or(path),
            None => url
                .strip_prefix("unix/")
                .or_else(|| url.strip_prefix("unix@"))?,
        };
        Some(Self::new(path))
    }

    fn new(path: &str) -> Result<Self, NotASocketPath> {
        if !path.starts_with('/') {
            return Err(NotASocketPath::Relative);
        }
        if path.chars().any(char::is_control) {
            return Err(NotASocketPath::Character);
        }
        let plain = plain(path).ok_or(NotASocketPath::Shape)?;
        if path.ends_with('/') {
            return Err(NotASocketPath::Shape);
        }
        if plain.len() > SOCKET_PATH_BYTES_MAX {
            return Err(NotASocketPath::TooLong);
        }
        Ok(Self(plain))
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0)
    }
}

/// A text with its percent escapes decoded.
fn decoded(text: &str) -> Result<String, NotASocketPath> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2).ok_or(NotASocketPath::Character)?;
        rest = after;
        let digits = std::str::from_utf8(digits).ok();
        // A sign would be accepted too.
        let digits = digits.filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|it| u8::from_str_radix(it, 16).ok());
        bytes.push(byte.ok_or(NotASocketPath::Character)?);
    }
    String::from_utf8(bytes).map_err(|_| NotASocketPath::Character)
}

/// The path of a URL `file:///srv/site` or `file:/srv/site`, with its escapes decoded. `None` for a text that is no such URL.
///
/// # Errors
///
/// It is one, but names another host, or its path is not absolute, has a part `..`, or control characters.
pub fn folder_of_url(url: &str) -> Option<Result<PathBuf, NotAFolder>> {
    let path = url.strip_prefix("file:")?;
    let path = path.strip_prefix("//localhost").unwrap_or(path);
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Some(Err(NotAFolder::Relative));
    }
    let read = decoded(path).map_err(|_| NotAFolder::Character);
    Some(read.and_then(|path| {
        if path.chars().any(char::is_control) {
            return Err(NotAFolder::Character);
        }
        plain(&path).map(PathBuf::from).ok_or(NotAFolder::Parent)
    }))
}

/// Why a text is not the URL of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFolder {
    /// A relative path, or a host other than `localhost`.
    #[error("the path of a folder must be absolute, as in `file:///srv/site`")]
    Relative,
    /// A part `..`.
    #[error("the path of a folder must not contain `..`")]
    Parent,
    /// A zero or another control character, or an escape that is none.
    #[error("the path of a folder must not contain control characters or invalid escapes")]
    Character,
}

/// An absolute path without repeated slashes and parts `.`; `None` if it has a part `..` or is relative.
fn plain(path: &str) -> Option<String> {
    let mut plain = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::RootDir | Component::Normal(_) => plain.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    let plain = plain.into_os_string().into_string().ok()?;
    plain.starts_with('/').then_some(plain)
}

/// Paths that an operator allows, each with all that is below it.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths(Arc<[PathBuf]>);

impl AllowedPaths {
    /// Reads absolute paths.
    ///
    /// # Errors
    ///
    /// The first text that is none, or has a part `..`.
    pub fn parse<T: AsRef<str>>(paths: &[T]) -> Result<Self, &str> {
        let paths = paths.iter().map(AsRef::as_ref);
        let paths = paths.map(|path| plain(path).map(PathBuf::from).ok_or(path));
        Ok(Self(paths.collect::<Result<_, _>>()?))
    }

    /// Whether a path is one of them, or below one.
    pub fn covers(&self, path: &Path) -> bool {
        self.0.iter().any(|allowed| path.starts_with(allowed))
    }

    /// Whether a path without symbolic links is one of them, or below one, after their own links. Asks the system, last about
    /// those that it is not below as it is written: one that hangs does not affect the others.
    pub fn covers_resolved(&self, path: &Path) -> bool {
        let covers = |allowed: &PathBuf| {
            let allowed = allowed.canonicalize();
            allowed.is_ok_and(|allowed| path.starts_with(allowed))
        };
        let is_near = |allowed: &&PathBuf| path.starts_with(allowed);
        let mut near = self.0.iter().filter(is_near);
        near.any(covers) || self.0.iter().filter(|it| !is_near(it)).any(covers)
    }

    /// The one of them that a path is below as it is written: who shares its file system.
    pub fn root_of(&self, path: &Path) -> Option<&Path> {
        let mut roots = self.0.iter().filter(|allowed| path.starts_with(allowed));
        roots.next().map(PathBuf::as_path)
    }

    /// The first of them that has this path, or is below it, after all symbolic links. Asks the system.
    pub fn overlapping(&self, path: &Path) -> Option<&Path> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut overlapping = self.0.iter().filter(|allowed| {
            let allowed = allowed.canonicalize();
            allowed.is_ok_and(|allowed| path.starts_with(&allowed) || allowed.starts_with(&path))
        });
        overlapping.next().map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_as_other_products_spell_them() {
        for url in [
            "unix:/run/app.sock",
            "unix:///run/app.sock",
            "unix://///run/./app.sock",
            "unix//run/app.sock",
            "unix@/run/app.sock",
            "http://unix:/run/app.sock",
            "http://unix:/run/app.sock:",
            "http://unix:/run/app.sock:/",
            "http+unix://%2Frun%2Fapp.sock",
            "http+unix://%2frun%2fapp.sock/",
            "http+unix:///run/app.sock",
        ] {
            let read = SocketPath::of_url(url).unwrap().unwrap();
            assert_eq!(read.to_string(), "unix:/run/app.sock", "{url}");
            assert_eq!(SocketPath::of_url(&read.to_string()), Some(Ok(read)));
        }
        for other in [
            "http://unix:80/x",
            "http://unix:/",
            "http://unix",
            "unix",
            "/run/x",
            "tcp://unix:/x",
        ] {
            assert_eq!(SocketPath::of_url(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_path_of_a_socket_is_refused_with_the_reason() {
        use NotASocketPath::{Character, Http2, Relative, Shape, Tls, TooLong, Uri};
        let long = format!("unix:/{}", "a".repeat(107));
        for (url, why) in [
            ("unix:", Relative),
            ("unix:app.sock", Relative),
            ("unix:./app.sock", Relative),
            ("unix:@abstract", Relative),
            ("unix://run/app.sock", Relative),
            ("unix:/run/../app.sock", Shape),
            ("unix:/", Shape),
            ("unix:/run/", Shape),
            ("unix:/run/a\0b", Character),
            ("http+unix://%2Frun%2Fa%00b", Character),
            ("http+unix://%2Frun%2F%zz", Character),
            ("http+unix://%2Frun%2F%ff", Character),
            ("http+unix://%2Frun%2F..%2Fa", Shape),
            (&long, TooLong),
            ("http://unix:/run/app.sock:/uri", Uri),
            ("unix+tls:/run/app.sock", Tls),
            ("unix+h2c//run/app.sock", Http2),
        ] {
            assert_eq!(SocketPath::of_url(url), Some(Err(why)), "{url}");
        }
        assert!(SocketPath::of_url(&long[..long.len() - 1]).unwrap().is_ok());
    }

    #[test]
    fn folders_are_read_as_urls() {
        use NotAFolder::{Character, Parent, Relative};
        for (url, path) in [
            ("file:///srv/site", Ok("/srv/site")),
            ("file:/srv//site/", Ok("/srv/site")),
            ("file://localhost/srv/my%20site", Ok("/srv/my site")),
            ("file:///", Ok("/")),
            ("file://host/srv", Err(Relative)),
            ("file://./site", Err(Relative)),
            ("file:site", Err(Relative)),
            ("file:///srv/../etc", Err(Parent)),
            ("file:///srv/%2e%2e/etc", Err(Parent)),
            ("file:///srv/%00", Err(Character)),
            ("file:///srv/%", Err(Character)),
        ] {
            let read = folder_of_url(url).unwrap();
            assert_eq!(read, path.map(PathBuf::from), "{url}");
        }
        assert_eq!(folder_of_url("http://a"), None);
    }

    #[test]
    fn allowed_paths_cover_whole_parts() {
        let allowed = AllowedPaths::parse(&["/run/app/", "/srv//x.sock"]).unwrap();
        for (path, is_covered) in [
            ("/run/app", true),
            ("/run/app/a.sock", true),
            ("/srv/x.sock", true),
            ("/run/apple.sock", false),
            ("/run", false),
            ("/srv/x.socket", false),
        ] {
            assert_eq!(allowed.covers(Path::new(path)), is_covered, "{path}");
        }
        assert!(!AllowedPaths::default().covers(Path::new("/run/app")));
        for wrong in ["", "run", "/run/../etc"] {
            assert_eq!(AllowedPaths::parse(&[wrong]).err(), Some(wrong));
        }
    }
}
