//! Opens files below a folder, and nothing else.
//!
//! On Linux one call of the system resolves a whole path and refuses to leave the folder (`openat2` with `RESOLVE_BENEATH`), so no
//! name that changes meanwhile leads out. Links within the folder are followed if they are relative. Elsewhere, and on kernels
//! without that call, no link below the folder is followed.
//!
//! What was found is examined before it is opened for reading: a FIFO, device or socket is never opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use crate::{Site, SiteError};

/// Attempts to resolve a path while names in it change.
#[cfg(target_os = "linux")]
const ATTEMPTS: usize = 4;

/// Handles that only examine; on other systems these are open for reading.
#[cfg(target_os = "linux")]
const EXAMINE: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const EXAMINE: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// What a path names.
pub(crate) enum Node {
    Folder,
    File(File),
    /// Neither: it is not served.
    Other,
}

impl Site {
    /// Opens the folder itself.
    pub(crate) fn open(&self) -> Result<OwnedFd, SiteError> {
        let flags = EXAMINE | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&*self.path, flags, Mode::empty());
        let opened = opened.map_err(|error| SiteError::Open(in_words(error.into())))?;
        if let Some(allowed) = &self.allowed {
            let path = resolved(&self.path, &opened).map_err(SiteError::Open)?;
            if !allowed.covers_resolved(&path) {
                return Err(SiteError::NotAllowed);
            }
        }
        Ok(opened)
    }
}

/// The path of a folder that was opened, without links.
#[cfg(target_os = "linux")]
fn resolved(_: &Path, opened: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(handle(opened.as_fd()))
}

#[cfg(not(target_os = "linux"))]
fn resolved(path: &Path, _: &OwnedFd) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// Opens what a relative path names below a folder, if it is a file.
pub(crate) fn open(folder: &OwnedFd, path: &Path) -> io::Result<Node> {
    let found = find(folder.as_fd(), path)?;
    Ok(
        match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
            FileType::Directory => Node::Folder,
            FileType::RegularFile => Node::File(readable(found)?),
            _ => Node::Other,
        },
    )
}

/// A handle of what a path names, without leaving the folder.
#[cfg(target_os = "linux")]
fn find(folder: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{ResolveFlags, openat2};
    use rustix::io::Errno;

    let flags = EXAMINE | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..ATTEMPTS {
        match openat2(folder, path, flags, Mode::empty(), within) {
            // A name in the path was moved meanwhile.
            Err(Errno::AGAIN) => {}
            // An old kernel, or a filter of system calls that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => return find_without_links(folder, path),
            found => return Ok(found?),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(not(target_os = "linux"))]
fn find(folder: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    find_without_links(folder, path)
}

/// As [`find`], part by part. A link is not followed.
fn find_without_links(folder: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = EXAMINE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut found: Option<OwnedFd> = None;
    for part in path.components() {
        let parent = found.as_ref().map_or(folder, AsFd::as_fd);
        found = Some(rustix::fs::openat(
            parent,
            part.as_os_str(),
            flags,
            Mode::empty(),
        )?);
    }
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The same file, open for reading.
#[cfg(target_os = "linux")]
fn readable(found: OwnedFd) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(handle(found.as_fd()), flags, Mode::empty())?;
    Ok(File::from(opened))
}

#[cfg(not(target_os = "linux"))]
fn readable(found: OwnedFd) -> io::Result<File> {
    Ok(File::from(found))
}

/// Names the file of a handle, whatever happened to its path.
#[cfg(target_os = "linux")]
fn handle(of: BorrowedFd<'_>) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", of.as_raw_fd())
}

/// The errors that a path causes, without numbers of the system.
fn in_words(error: io::Error) -> io::Error {
    let words = match error.kind() {
        io::ErrorKind::NotFound => "no such file",
        io::ErrorKind::PermissionDenied => "permission denied",
        io::ErrorKind::NotADirectory => "not a directory",
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use culvert_base::net::AllowedPaths;

    use super::*;

    #[test]
    fn nothing_outside_of_the_folder_is_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("site/folder")).unwrap();
        std::fs::write(at("secret"), "secret").unwrap();
        std::fs::write(at("site/file"), "file").unwrap();
        symlink("../secret", at("site/up")).unwrap();
        symlink("..", at("site/parent")).unwrap();
        symlink(at("secret"), at("site/absolute")).unwrap();
        symlink("/proc/self/root/etc/passwd", at("site/proc")).unwrap();
        symlink("loop", at("site/loop")).unwrap();
        symlink("../file", at("site/folder/inside")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("site/fifo"),
            FileType::Fifo,
            Mode::from(0o644),
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("site/socket")).unwrap();
        let folder = Site::new(at("site")).open().unwrap();
        let without = |path: &str| {
            let found = find_without_links(folder.as_fd(), Path::new(path))?;
            let mode = rustix::fs::fstat(&found)?.st_mode;
            Ok::<_, io::Error>(FileType::from_raw_mode(mode) == FileType::RegularFile)
        };
        for (path, is_file) in [
            ("file", true),
            ("folder/inside", true),
            ("up", false),
            ("parent/secret", false),
            ("absolute", false),
            ("proc", false),
            ("loop", false),
            ("fifo", false),
            ("socket", false),
            ("folder", false),
            (".", false),
            ("absent", false),
            ("file/x", false),
            (&"a".repeat(300), false),
        ] {
            let opened = open(&folder, Path::new(path));
            assert_eq!(matches!(opened, Ok(Node::File(_))), is_file, "{path}");
            let is_plain = is_file && path == "file";
            assert_eq!(without(path).unwrap_or(false), is_plain, "{path}");
        }
        assert!(matches!(open(&folder, Path::new("fifo")), Ok(Node::Other)));
    }

    #[test]
    fn a_folder_that_leads_out_of_the_allowed_ones_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("www/site")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        symlink(at("other"), at("www/link")).unwrap();
        let allowed = AllowedPaths::parse(&[at("www").to_str().unwrap()]).unwrap();
        let open = |name: &str| Site::new(at(name)).only_in(allowed.clone()).open();
        assert!(open("www/site").is_ok() && open("www").is_ok());
        for name in ["www/link", "other"] {
            assert!(matches!(open(name), Err(SiteError::NotAllowed)), "{name}");
        }
        let absent = open("www/absent").unwrap_err();
        assert_eq!(absent.to_string(), "no such file");
        std::fs::write(at("www/file"), "").unwrap();
        assert_eq!(open("www/file").unwrap_err().to_string(), "not a directory");
    }
}
