//! Connects to Unix sockets of this machine.

use std::io;
use std::path::Path;
use std::time::Duration;

use culvert_base::Share;
use culvert_base::net::AllowedPaths;
use tokio::net::UnixStream;

use crate::file_calls;

/// Waits between attempts at a socket whose queue of connections is full: the first, and the longest.
const FULL_WAIT: Duration = Duration::from_millis(1);
const FULL_WAIT_MAX: Duration = Duration::from_millis(50);

/// Why a socket was not connected to.
#[derive(Debug, thiserror::Error)]
pub enum UnixError {
    /// Its path leads out of the allowed ones.
    #[error("the path of the socket is not allowed")]
    NotAllowed,
    /// The system refused. The usual reasons are in words.
    #[error("{0}")]
    Connect(#[from] io::Error),
}

/// Connects to a socket. If its queue is full, waits until there is room: the system refuses such a connection, while over TCP
/// it would wait. The caller limits the time.
///
/// # Errors
///
/// The system's error; those that a path can cause have plain words.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let mut wait = FULL_WAIT;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(FULL_WAIT_MAX);
            }
            connected => return connected.map_err(in_words),
        }
    }
}

/// As [`connect`], if the path is allowed after all symbolic links.
///
/// # Errors
///
/// The path is not allowed, or as for [`connect`].
#[cfg(target_os = "linux")]
pub async fn connect_allowed(path: &Path, allowed: &AllowedPaths) -> Result<UnixStream, UnixError> {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::PathBuf;

    use rustix::fs::{Mode, OFlags};

    let handle = |found: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let share = share_of(path, allowed);
    let (path, allowed) = (path.to_owned(), allowed.clone());
    let find = move || {
        // A handle of the file without its content. The connection goes to this file, so links that change meanwhile
        // change nothing.
        let found = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let found = found.map_err(|error| in_words(error.into()))?;
        match allowed.covers_resolved(&std::fs::read_link(handle(&found))?) {
            true => Ok(found),
            false => Err(UnixError::NotAllowed),
        }
    };
    let found = file_calls::run(share, find).await??;
    Ok(connect(&handle(&found)).await?)
}

/// As [`connect`], if the path is allowed after all symbolic links. Without `/proc`, a link that changes between the check and the
/// connection is not noticed.
///
/// # Errors
///
/// The path is not allowed, or as for [`connect`].
#[cfg(not(target_os = "linux"))]
pub async fn connect_allowed(path: &Path, allowed: &AllowedPaths) -> Result<UnixStream, UnixError> {
    let share = share_of(path, allowed);
    let (path, allowed) = (path.to_owned(), allowed.clone());
    let find = move || {
        let found = path.canonicalize().map_err(in_words)?;
        match allowed.covers_resolved(&found) {
            true => Ok(found),
            false => Err(UnixError::NotAllowed),
        }
    };
    let found = file_calls::run(share, find).await??;
    Ok(connect(&found).await?)
}

/// The share of calls about a path: that of the place that the operator allowed.
fn share_of(path: &Path, allowed: &AllowedPaths) -> Share {
    let root = allowed.root_of(path).unwrap_or(path);
    Share::of_owner(&root.to_string_lossy())
}

/// The errors that a path causes, without numbers of the system.
fn in_words(error: io::Error) -> io::Error {
    let words = match error.kind() {
        io::ErrorKind::NotFound => "no such file",
        io::ErrorKind::PermissionDenied => "permission denied",
        io::ErrorKind::ConnectionRefused => "connection refused: no process listens at the socket",
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::UnixListener;

    use super::*;

    fn allowed(paths: &[&Path]) -> AllowedPaths {
        let paths: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        AllowedPaths::parse(&paths).unwrap()
    }

    #[tokio::test]
    async fn only_allowed_sockets_are_reached_whatever_links_say() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["app", "host"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let _own = UnixListener::bind(at("app/own.sock")).unwrap();
        let _docker = UnixListener::bind(at("host/docker.sock")).unwrap();
        symlink(at("host/docker.sock"), at("app/link.sock")).unwrap();
        symlink(at("host"), at("app/folder")).unwrap();
        symlink(at("app"), at("alias")).unwrap();
        let (app, alias) = (at("app"), at("alias"));
        for (path, allowed, is_reached) in [
            ("app/own.sock", allowed(&[&app]), true),
            ("app/own.sock", allowed(&[&alias]), true),
            ("alias/own.sock", allowed(&[&app]), true),
            ("app/own.sock", allowed(&[&at("app/own.sock")]), true),
            ("app/own.sock", allowed(&[&at("app/own")]), false),
            ("app/own.sock", allowed(&[]), false),
            ("app/link.sock", allowed(&[&app]), false),
            ("app/folder/docker.sock", allowed(&[&app]), false),
            ("host/docker.sock", allowed(&[&app, &at("absent")]), false),
        ] {
            let reached = connect_allowed(&at(path), &allowed).await;
            match is_reached {
                true => drop(reached.unwrap()),
                false => assert!(matches!(reached, Err(UnixError::NotAllowed)), "{path}"),
            }
        }
    }

    #[tokio::test]
    async fn failures_are_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(at("closed.sock")).unwrap());
        std::fs::write(at("file"), "").unwrap();
        let allowed = allowed(&[folder.path()]);
        for (name, words) in [
            ("absent.sock", "no such file"),
            (
                "closed.sock",
                "connection refused: no process listens at the socket",
            ),
            (
                "file",
                "connection refused: no process listens at the socket",
            ),
        ] {
            let plain = connect(&at(name)).await.unwrap_err();
            assert_eq!(plain.to_string(), words);
            let checked = connect_allowed(&at(name), &allowed).await.unwrap_err();
            assert_eq!(checked.to_string(), words);
        }
    }

    #[tokio::test]
    async fn a_full_queue_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.sock");
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket
            .bind(&socket2::SockAddr::unix(&path).unwrap())
            .unwrap();
        socket.listen(0).unwrap();
        let mut queued = Vec::new();
        while let Ok(one) = UnixStream::connect(&path).await {
            queued.push(one);
        }
        let mut connecting = std::pin::pin!(connect(&path));
        assert!(futures_util::poll!(connecting.as_mut()).is_pending());
        drop(socket.accept().unwrap());
        connecting.await.unwrap();
    }
}
