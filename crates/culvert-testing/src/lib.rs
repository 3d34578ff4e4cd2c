//! What tests of several crates need. A dev-dependency only.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod http_server;
pub mod nats;
mod postgres;
mod tls_front;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::time::Duration;

pub use postgres::Postgres;
pub use tls_front::{TlsFront, tls_front};

/// How long a test waits for something that must happen. A loaded machine needs a fraction of it; only a broken test
/// takes as long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Names the file that [`ignore`] adds a line to.
const FILE: &str = "CULVERT_TEST_IGNORED";

/// Reports that the running test, or the part of it that `reason` names, cannot run on this machine. The caller
/// returns after it.
///
/// The test harness cannot ignore a test that has started, and counts it as passed. So the report goes to standard
/// error, past the harness, and as a line `TEST: REASON` to the file that the variable `CULVERT_TEST_IGNORED`
/// names. `./test` reads that file and counts its tests as ignored.
///
/// # Panics
///
/// When the file cannot be written.
pub fn ignore(reason: impl Display) {
    let thread = std::thread::current();
    // The harness names the thread of a test after it; an asynchronous test may be on a worker's thread.
    let test = thread.name().unwrap_or("a test");
    drop(writeln!(io::stderr(), "ignored: {test}: {reason}"));
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    // One write, so that lines of other processes stay whole.
    let line = format!("{test}: {reason}\n");
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// After [`PATIENCE`].
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Writes a certificate for one name to `cert.pem` and `key.pem` in `folder`.
///
/// # Panics
///
/// When they cannot be written.
pub fn certificate(folder: &tempfile::TempDir, name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made
}
