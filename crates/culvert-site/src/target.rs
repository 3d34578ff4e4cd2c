//! The path of a request, as names below a folder.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Characters of a path segment that need no escape (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// The only name with a dot at its start that exists (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// The names that a path consists of. None is `..`, begins with a dot, or has a slash, backslash or zero.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    names: Vec<Vec<u8>>,
    /// Whether the path ends with a slash.
    pub(crate) is_folder: bool,
}

impl Target {
    /// Reads the path of a URL. `None` if it names nothing that may exist.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix('/')?;
        let mut names = Vec::new();
        for segment in rest.split('/').filter(|segment| !segment.is_empty()) {
            let name: Vec<u8> = percent_decode_str(segment).collect();
            let is_hidden = name.starts_with(b".") && !(names.is_empty() && name == WELL_KNOWN);
            if is_hidden || name.iter().any(|byte| b"/\\\0".contains(byte)) {
                return None;
            }
            names.push(name);
        }
        Some(Self {
            is_folder: names.is_empty() || rest.ends_with('/'),
            names,
        })
    }

    /// The relative path of the file system.
    pub(crate) fn path(&self) -> PathBuf {
        let names = self.names.iter().cloned().map(OsString::from_vec);
        let path: PathBuf = names.collect();
        match self.names.is_empty() {
            true => PathBuf::from("."),
            false => path,
        }
    }

    /// The URL of the same folder, with a slash at the end. It never begins with two slashes, which would name another host.
    pub(crate) fn folder_url(&self, query: Option<&str>) -> String {
        let mut url = String::from("/");
        for name in &self.names {
            url.extend(percent_encode(name, ESCAPED));
            url.push('/');
        }
        if let Some(query) = query {
            url.push('?');
            url.push_str(query);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_names_below_the_folder() {
        for (url, path, is_folder) in [
            ("/", ".", true),
            ("//", ".", true),
            ("/a", "a", false),
            ("/a/b/", "a/b", true),
            ("//a//b", "a/b", false),
            ("/a%20b", "a b", false),
            ("/a%25b", "a%b", false),
            ("/a%zz", "a%zz", false),
            ("/a..b", "a..b", false),
            ("/.well-known/x", ".well-known/x", false),
        ] {
            let target = Target::parse(url).unwrap();
            let expected = (PathBuf::from(path), is_folder);
            assert_eq!((target.path(), target.is_folder), expected, "{url}");
        }
        for url in [
            "*",
            "",
            "a",
            "/..",
            "/a/../b",
            "/a/.",
            "/%2e%2e/a",
            "/a%2fb",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "/.git/config",
            "/a/.well-known/x",
            "/%2egit",
            "/.well-known/.git",
        ] {
            assert_eq!(Target::parse(url), None, "{url}");
        }
    }

    #[test]
    fn a_redirect_stays_on_the_host() {
        for (url, query, folder) in [
            ("/a", None, "/a/"),
            ("//evil.example", None, "/evil.example/"),
            ("/a%20%0d%0ab", Some("q=1"), "/a%20%0D%0Ab/?q=1"),
            ("/%E9", None, "/%E9/"),
        ] {
            assert_eq!(Target::parse(url).unwrap().folder_url(query), folder);
        }
    }
}
