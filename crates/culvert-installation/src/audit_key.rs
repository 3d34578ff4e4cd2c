//! The key that signs the heads of the audit log: a file beside the master key and apart from it, in the format of Go's
//! checksum database, or the content of an inherited descriptor. Its name is the identity of the log, so it stays when the
//! address of the API changes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use culvert_base::Entropy;
use culvert_tlog::{KeyType, SigningKey};

use crate::config::{KeyPlace, Settings};
use crate::keys::{is_private, read_private, write_private, write_private_for_owner};

/// Limit of the text of a key, in bytes.
const KEY_BYTES_MAX: u64 = 4 << 10;
/// How long a descriptor may take to give the key.
const GIVEN_WITHIN: Duration = Duration::from_secs(10);

/// The key of a process.
#[derive(Clone, Debug)]
pub enum AuditKey {
    /// In a file, which is read each time: another program may replace it.
    File(PathBuf),
    /// In memory only.
    Given(Arc<SigningKey>),
}

impl AuditKey {
    /// The key that the settings name. A descriptor is read here, once, so this comes before anything else of the process is
    /// opened, which could have its number.
    ///
    /// # Errors
    /// If a descriptor does not give a key.
    pub fn open(settings: &Settings) -> Result<Self> {
        Ok(match settings.audit_key_place() {
            KeyPlace::File(path) => Self::File(path),
            KeyPlace::Descriptor(number) => Self::Given(Arc::new(given(number)?)),
        })
    }

    /// The key; `None` if there is no file.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self) -> Result<Option<Arc<SigningKey>>> {
        Ok(match self {
            Self::File(path) => load(path)?.map(Arc::new),
            Self::Given(key) => Some(Arc::clone(key)),
        })
    }

    /// The key before the last rotation, if it is kept.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load_old(&self) -> Result<Option<SigningKey>> {
        match self {
            Self::File(path) => load(&old_file(path)),
            Self::Given(_) => Ok(None),
        }
    }

    /// The file.
    ///
    /// # Errors
    /// If it is a descriptor, which cannot be written.
    pub fn file(&self) -> Result<&Path> {
        match self {
            Self::File(path) => Ok(path),
            Self::Given(_) => bail!(
                "`audit.key_file` is a descriptor, which cannot be written; name a file for this command, such as one in memory \
                 (`--audit-key-file`), and give its new content to the descriptor from then on"
            ),
        }
    }

    /// How messages name it.
    pub fn shown(&self) -> String {
        match self {
            Self::File(path) => format!("`{}`", path.display()),
            Self::Given(_) => "the key of the descriptor".to_owned(),
        }
    }
}

/// Reads the key from a descriptor of this process: a pipe, or a file that was opened for it.
fn given(number: u32) -> Result<SigningKey> {
    let shown = format!("the descriptor {number} of `audit.key_file`");
    let (done, answer) = mpsc::channel();
    // A pipe that nothing is written to must not hang the start. The path is another descriptor of the same.
    let read = move || {
        let file = File::open(format!("/dev/fd/{number}"))?;
        let found = file.metadata()?;
        if found.is_file() && !is_private(found.mode(), found.uid()) {
            return Err(std::io::Error::other(
                "it is a file that other users can read; run `chmod 600` on it",
            ));
        }
        let mut line = String::new();
        BufReader::new(file.take(KEY_BYTES_MAX)).read_line(&mut line)?;
        Ok::<_, std::io::Error>(line)
    };
    std::thread::Builder::new()
        .name("audit_key".to_owned())
        .spawn(move || drop(done.send(read())))
        .with_context(|| format!("reading {shown}"))?;
    let line = answer.recv_timeout(GIVEN_WITHIN);
    let line = line.map_err(|_| anyhow!("{shown} gave no key within 10 s"))?;
    let line = line.with_context(|| format!("reading {shown}"))?;
    let key = SigningKey::parse(line.trim_end()).with_context(|| shown.clone())?;
    if key.verifier().key_type() != KeyType::Note {
        bail!("{shown} gave the key of a witness; the audit log needs another one");
    }
    Ok(key)
}

/// Reads the key; `None` if there is no file.
///
/// # Errors
/// If the file cannot be read, is readable by others, belongs to another user, or has no key that signs notes.
pub fn load(path: &Path) -> Result<Option<SigningKey>> {
    let shown = path.display();
    let text = read_private(path).with_context(|| format!("reading the key `{shown}`"))?;
    let Some(text) = text else {
        return Ok(None);
    };
    let key = SigningKey::parse(text.trim_end()).with_context(|| format!("`{shown}`"))?;
    if key.verifier().key_type() != KeyType::Note {
        bail!("`{shown}` is the key of a witness; the audit log needs another one");
    }
    Ok(Some(key))
}

/// Creates a key of this name and writes its file.
///
/// # Errors
/// If the name cannot be the name of a key, or the file cannot be written.
pub fn make(path: &Path, name: &str, entropy: &dyn Entropy) -> Result<SigningKey> {
    let key = new(name, entropy)?;
    write_private(path, &format!("{}\n", &*key.secret_text()))?;
    Ok(key)
}

/// Creates the key of a rotation, in the [`next_file`] of this one.
///
/// # Errors
/// As [`make`].
pub fn make_next(path: &Path, name: &str, entropy: &dyn Entropy) -> Result<SigningKey> {
    let key = new(name, entropy)?;
    let text = format!("{}\n", &*key.secret_text());
    write_private_for_owner(path, &next_file(path), &text)?;
    Ok(key)
}

fn new(name: &str, entropy: &dyn Entropy) -> Result<SigningKey> {
    SigningKey::new(name, KeyType::Note, entropy.bytes())
        .with_context(|| format!("making a key of the name `{name}`"))
}

/// The file of the key before the last rotation, which a database from before it needs.
pub fn old_file(path: &Path) -> PathBuf {
    beside(path, ".old")
}

/// The file of the key of a rotation that is not complete.
pub fn next_file(path: &Path) -> PathBuf {
    beside(path, ".next")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The identity of the audit log of an account at a server with this base URL: `<host>/audit/<account>`.
pub fn origin(base_url: &str, account: &str) -> String {
    let url = url::Url::parse(base_url).ok();
    let host = url.as_ref().and_then(|url| {
        let host = url.host_str()?;
        Some(match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        })
    });
    format!("{}/audit/{account}", host.as_deref().unwrap_or("culvert"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use culvert_base::OsEntropy;

    use super::*;

    #[test]
    fn a_given_file_is_private() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.key");
        let made = make(&path, "log.test", &OsEntropy).unwrap();
        let file = File::open(&path).unwrap();
        let number = u32::try_from(file.as_raw_fd()).unwrap();
        assert_eq!(given(number).unwrap().verifier(), made.verifier());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let error = format!("{:#}", given(number).unwrap_err());
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_key_is_private_and_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.key");
        assert!(load(&path).unwrap().is_none());
        let made = make(
            &path,
            &origin("https://culvert.example/", "ac_1"),
            &OsEntropy,
        )
        .unwrap();
        let found = load(&path).unwrap().unwrap();
        assert_eq!(found.verifier(), made.verifier());
        assert_eq!(found.verifier().name(), "culvert.example/audit/ac_1");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(load(&path).is_err());
        for (base, expected) in [
            ("http://127.0.0.1:8420", "127.0.0.1:8420/audit/ac_1"),
            ("https://[::1]:1/x", "[::1]:1/audit/ac_1"),
            ("", "culvert/audit/ac_1"),
        ] {
            assert_eq!(origin(base, "ac_1"), expected);
        }
    }
}
