//! The files of the web console and of the agent's page, in the binary.
//!
//! Their source is `console/`. `npm run build` there writes them to `dist/`, which is committed, so
//! a build needs neither Node nor a network. `dist/MANIFEST` has the hash of every source file.
//! Tests compare the list of files below with `dist/`, and the manifest with `console/`.
//!
//! Not here: how files are served (`culvert-api`).

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
    /// Its content.
    pub bytes: &'static [u8],
    /// Its content, compressed with Brotli.
    brotli: Option<&'static [u8]>,
    tag: OnceLock<String>,
    gzip: OnceLock<Vec<u8>>,
}

impl File {
    /// A file with this content.
    pub const fn new(name: &'static str, media_type: &'static str, bytes: &'static [u8]) -> Self {
        Self {
            name,
            media_type,
            bytes,
            brotli: None,
            tag: OnceLock::new(),
            gzip: OnceLock::new(),
        }
    }

    /// The same file with its content compressed with Brotli, as `npm run build` made it: at its best quality, which takes too long
    /// for a server.
    pub(crate) const fn with_brotli(mut self, brotli: &'static [u8]) -> Self {
        self.brotli = Some(brotli);
        self
    }

    /// Its entity tag, quoted: the start of its SHA-256. It is weak, because the compressed forms
    /// have the same tag.
    pub fn tag(&self) -> &str {
        self.tag.get_or_init(|| {
            let digest = Sha256::digest(self.bytes);
            let start = digest.iter().take(12).map(|byte| format!("{byte:02x}"));
            format!("W/\"{}\"", start.collect::<String>())
        })
    }

    /// The content codings that it has forms in, the smallest form first.
    pub fn codings(&self) -> &'static [&'static str] {
        match self.brotli {
            Some(_) => &["br", "gzip"],
            None => &["gzip"],
        }
    }

    /// Its content in one of these codings; as it is for any other.
    pub fn encoded(&self, coding: Option<&str>) -> &[u8] {
        match (coding, self.brotli) {
            (Some("br"), Some(brotli)) => brotli,
            (Some("gzip"), _) => self.gzip(),
            _ => self.bytes,
        }
    }

    /// Its content, compressed with gzip. Compressed on first use, because most servers never need
    /// it.
    fn gzip(&self) -> &[u8] {
        self.gzip.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // Writing to memory cannot fail.
            drop(encoder.write_all(self.bytes));
            encoder.finish().unwrap_or_default()
        })
    }
}

/// The directory of the page that agents serve.
const AGENT: &str = "agent/";

/// The file of the console with this name.
pub fn find(name: &str) -> Option<&'static File> {
    files::FILES
        .iter()
        .find(|file| file.name == name && !name.starts_with(AGENT))
}

/// The file of the agent's page with this name, such as `assets/agent.js`.
pub fn agent_file(name: &str) -> Option<&'static File> {
    files::FILES
        .iter()
        .find(|file| file.name.strip_prefix(AGENT) == Some(name))
}

/// The page that an agent serves to the user of its machine.
///
/// # Panics
///
/// Never: a test checks that the list has it.
pub fn agent_page() -> &'static File {
    agent_file("agent.html").expect("agents have a page")
}

/// The build that the console's page is of. It asks for every file with it, as `?v=…`.
pub fn build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let page = String::from_utf8_lossy(page().bytes);
        let (_, rest) = page.split_once("assets/app.js?v=").unwrap_or_default();
        rest.chars().take_while(char::is_ascii_hexdigit).collect()
    })
}

/// The page that is served for every path of the console.
///
/// # Panics
///
/// Never: a test checks that the list has it.
pub fn page() -> &'static File {
    find("index.html").expect("the console has a page")
}

/// The same page for a browser with a session: it names the files of the first page, so that the browser asks for all of them
/// in one round trip. Without a session they would delay the sign-in page, which needs none of them.
///
/// # Panics
///
/// Never: a test checks that the list has it.
pub fn page_with_session() -> &'static File {
    find("signed-in.html").expect("the console has a page for sessions")
}
