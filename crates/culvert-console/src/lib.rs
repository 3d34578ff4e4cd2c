//! The files of the web console, in the binary.
//!
//! Their source is `console/`; `npm run build` there writes them to `dist/`, which is committed, so that a
//! build needs no Node and no network. `dist/MANIFEST` has the hash of every source file. Tests hold the list of
//! files below against `dist/`, and the manifest against `console/`.
//!
//! Not here: how files are served (the HTTP face).

mod files;

use std::io::Write as _;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

/// A file of the console.
#[derive(Debug)]
pub struct File {
    /// Its path below `/console/`, such as `assets/app.js`.
    pub name: &'static str,
    /// The value of its `content-type` field.
    pub media_type: &'static str,
    /// What it holds.
    pub bytes: &'static [u8],
    tag: OnceLock<String>,
    gzip: OnceLock<Vec<u8>>,
}

impl File {
    const fn new(name: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Self {
        Self {
            name,
            media_type,
            bytes,
            tag: OnceLock::new(),
            gzip: OnceLock::new(),
        }
    }

    /// Its entity tag, quoted: the start of its SHA-256. Weak, since a compressed copy shares it.
    pub fn tag(&self) -> &str {
        self.tag.get_or_init(|| {
            let digest = Sha256::digest(self.bytes);
            let start = digest.iter().take(12).map(|byte| format!("{byte:02x}"));
            format!("W/\"{}\"", start.collect::<String>())
        })
    }

    /// What it holds, compressed. Made when it is first asked for: most servers never are.
    pub fn gzip(&self) -> &[u8] {
        self.gzip.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // Writing to memory does not fail.
            drop(encoder.write_all(self.bytes));
            encoder.finish().unwrap_or_default()
        })
    }
}

/// The file with this name.
pub fn find(name: &str) -> Option<&'static File> {
    files::FILES.iter().find(|file| file.name == name)
}

/// The page that every path of the console shows.
///
/// # Panics
///
/// Never: a test holds that the list has it.
pub fn page() -> &'static File {
    find("index.html").expect("the console has a page")
}
