//! Serves the files of a folder over HTTP, as a service that the edge or an agent connects to without a socket.
//!
//! - A [`Site`] is a folder. [`Site::connect`] opens a [`SiteStream`], whose bytes are HTTP/1.1, so whatever works with a service
//!   works with files: pools, checks, policies, events. The stream has no task: its reads and writes drive the server.
//! - `folder` opens files below the folder and nothing else, whatever links, races and paths say.
//! - `response` decides about a request: the file, the coding of its neighbours `.br`, `.zst` and `.gz`, conditions and ranges.
//!
//! Only GET and HEAD; no listing of folders; names that begin with a dot do not exist, except `.well-known` (RFC 8615). The system is
//! asked on few threads for blocking work, with a share for each path that is allowed, and a response holds few pieces of a file in
//! memory.

mod body;
mod conditions;
mod folder;
mod media_type;
mod range;
mod response;
mod stream;
mod target;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_base::Share;
use culvert_base::net::AllowedPaths;
use culvert_io::file_calls;

pub use stream::SiteStream;

/// A folder with files.
#[derive(Clone, Debug)]
pub struct Site {
    path: Arc<Path>,
    /// Where it must be after all symbolic links; `None` for anywhere.
    allowed: Option<AllowedPaths>,
}

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// Its path leads out of the allowed ones.
    #[error("the path of the folder is not allowed")]
    NotAllowed,
    /// The system refused to open it. The usual reasons are in words.
    #[error("{0}")]
    Open(io::Error),
}

impl Site {
    /// The folder at a path, which need not exist yet. It is opened for each request, so a deployment may replace it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into().into(),
            allowed: None,
        }
    }

    /// The same, served only as long as its path is one of these, or below one, after all symbolic links.
    #[must_use]
    pub fn only_in(self, allowed: AllowedPaths) -> Self {
        Self {
            allowed: Some(allowed),
            ..self
        }
    }

    /// The share of calls about its files: that of the path that is allowed.
    fn share(&self) -> Share {
        let allowed = self.allowed.as_ref();
        let root = allowed.and_then(|allowed| allowed.root_of(&self.path));
        Share::of_owner(&root.unwrap_or(&self.path).to_string_lossy())
    }

    /// Opens a connection to its server.
    ///
    /// # Errors
    ///
    /// There is no such folder, or it may not be served.
    pub async fn connect(&self) -> Result<SiteStream, SiteError> {
        let site = self.clone();
        let opened = file_calls::run(self.share(), move || site.open().map(drop)).await;
        opened.map_err(SiteError::Open)??;
        Ok(SiteStream::to(self.clone()))
    }
}
