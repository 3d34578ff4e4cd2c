//! `edge.db`: a copy of the configuration of the edge, for a start while the database is away.
//!
//! The file begins with a header of fixed length: a name, a MAC, and facts about the rest, with its length and digest.
//! The rest is one entry in each line. The MAC is keyed by the master key, so the copy of another installation, one that
//! was changed, and one that was cut are all refused. Secrets are in it as in the database, encrypted.
//!
//! A MAC does not tell the latest copy from an earlier one. So a copy has the time at which the database was last read,
//! and is refused when that is too long ago.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use culvert_base::{Digest, Timestamp};
use culvert_resources::stored::copy_entry::CopyEntry;
use culvert_store::{Document, Head, Key, Ref, Revision};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::Settings;
use crate::keys::{self, MasterKey};

/// The first bytes of the file.
const NAME: &[u8; 16] = b"culvert copy  1\n";
/// Hex digits of the MAC.
const MAC_BYTES: usize = 64;
/// Bytes of the facts, filled up with spaces.
const FACTS_BYTES: usize = 944;
const HEADER_BYTES: usize = NAME.len() + MAC_BYTES + FACTS_BYTES;
/// How far the clock of this machine may have been set back since the copy was written.
const AHEAD_MAX: Duration = Duration::from_secs(300);
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Facts about a copy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CopyFacts {
    /// The ID of the database.
    pub installation: String,
    /// The epoch of the revision, in the process that wrote the copy.
    pub epoch: u64,
    /// The number of the latest commit that the copy includes.
    pub number: i64,
    /// When the database was read, in milliseconds since 1970.
    pub read_at: i64,
}

impl CopyFacts {
    /// The facts of a copy of the database with this ID.
    pub fn new(installation: String, revision: Revision, read_at: Timestamp) -> Self {
        Self {
            installation,
            epoch: revision.epoch,
            number: revision.number,
            read_at: read_at.unix_millis(),
        }
    }

    /// How long ago the database was read; zero if that is in the future.
    pub fn age(&self, now: Timestamp) -> Duration {
        let milliseconds = now.unix_millis().saturating_sub(self.read_at);
        Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
    }

    /// Fails if the copy is too old to serve from, or its age is not known because the clock was set back.
    ///
    /// # Errors
    /// Why the copy is refused.
    pub fn check_age(&self, now: Timestamp, age_max: Duration) -> Result<()> {
        let ahead = self.read_at.saturating_sub(now.unix_millis());
        if u64::try_from(ahead).is_ok_and(|ahead| Duration::from_millis(ahead) > AHEAD_MAX) {
            bail!("it is of the future; the clock of this machine was set back");
        }
        let age = self.age(now);
        if age > age_max {
            bail!(
                "it is {} s old, and `edge.copy_age_max` is {} s",
                age.as_secs(),
                age_max.as_secs()
            );
        }
        Ok(())
    }
}

/// What the MAC covers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Header {
    facts: CopyFacts,
    /// Bytes of all entries, and their SHA-256.
    bytes: u64,
    sha256: String,
}

/// Where the copy of an installation is, and the keys of its MAC.
pub struct EdgeCopy {
    path: PathBuf,
    keys: Vec<[u8; 32]>,
}

impl std::fmt::Debug for EdgeCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeCopy")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl EdgeCopy {
    /// The copy of the installation with this master key.
    pub fn of(settings: &Settings, master: &MasterKey) -> Self {
        Self {
            path: settings.data_dir.join("edge.db"),
            keys: master.each().map(keys::copy_key_of).collect(),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the copy, if there is one, and checks that it is whole and of this master key.
    ///
    /// # Errors
    /// Why the copy is refused.
    pub fn open(&self) -> Result<Option<WholeCopy>> {
        let mut file = match std::fs::metadata(&self.path) {
            // Opening a pipe would wait for its writer.
            Ok(found) if !found.is_file() => bail!("it is not a regular file"),
            Ok(_) => File::open(&self.path).context("it cannot be read")?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("it cannot be read"),
        };
        let damaged = || "it is damaged, or of another master key";
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes).context("it is too short")?;
        let (name, rest) = bytes.split_at(NAME.len());
        let (mac, facts) = rest.split_at(MAC_BYTES);
        if name != NAME {
            bail!("it is no copy, or of another version of culvert");
        }
        let (mac, facts) = (
            std::str::from_utf8(mac).with_context(damaged)?,
            std::str::from_utf8(facts).with_context(damaged)?,
        );
        let given = Digest::from_hex(mac).with_context(damaged)?;
        // There is one spelling of a MAC.
        let is_its = |key: &[u8; 32]| {
            let digest = Digest::of(key, facts);
            digest == given && digest.to_hex() == mac
        };
        if !self.keys.iter().any(is_its) {
            bail!("{}", damaged());
        }
        let header: Header = serde_json::from_str(facts).with_context(damaged)?;
        // Before anything of it is read: others may have made it longer.
        let length = file.metadata().with_context(damaged)?.len();
        if length != header.bytes.saturating_add(HEADER_BYTES as u64) {
            bail!("it is damaged: its length is {length}");
        }
        let mut copy = WholeCopy { file, header };
        copy.each_chunk(|_| Ok(()))?;
        Ok(Some(copy))
    }

    /// Begins a new copy beside the current one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(&self) -> Result<NewCopy<'_>> {
        let path = self.path.with_extension("db.new");
        let doing = || format!("writing `{}`", path.display());
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(doing);
            }
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(doing)?;
        let mut file = BufWriter::with_capacity(READ_BYTES, file);
        // The facts are known at the end.
        file.write_all(&[b' '; HEADER_BYTES]).with_context(doing)?;
        Ok(NewCopy {
            copy: self,
            path,
            file,
            hash: Sha256::new(),
            bytes: 0,
        })
    }
}

/// A copy whose MAC and digest are right.
#[derive(Debug)]
pub struct WholeCopy {
    file: File,
    header: Header,
}

impl WholeCopy {
    /// Its facts.
    pub fn facts(&self) -> &CopyFacts {
        &self.header.facts
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> u64 {
        self.header.bytes
    }

    /// Its entries, in order.
    ///
    /// # Errors
    /// If the file was changed since it was opened.
    pub fn entries(mut self) -> Result<Vec<CopyEntry>> {
        // All of it is hashed again, so the MAC covers all that is returned.
        let mut text = Vec::new();
        self.each_chunk(|chunk| {
            text.extend_from_slice(chunk);
            Ok(())
        })?;
        let lines = BufReader::new(text.as_slice()).split(b'\n');
        lines
            .map(|line| {
                let line: Line = serde_json::from_slice(&line?).context("an entry of it")?;
                Ok(line.into())
            })
            .collect()
    }

    /// Passes the bytes of all entries to `each`, and fails at the end if they are not those of the header.
    fn each_chunk(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> Result<()> {
        let changed = || "it is damaged";
        self.file
            .seek(SeekFrom::Start(HEADER_BYTES as u64))
            .with_context(changed)?;
        let (mut hash, mut left) = (Sha256::new(), self.header.bytes);
        let mut buffer = vec![0; READ_BYTES];
        while left > 0 {
            let most = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.file.read(&mut buffer[..most]).with_context(changed)?;
            if read == 0 {
                bail!("{}", changed());
            }
            hash.update(&buffer[..read]);
            each(&buffer[..read])?;
            left -= read as u64;
        }
        if hex(hash) != self.header.sha256 {
            bail!("{}", changed());
        }
        Ok(())
    }
}

/// A copy that is being written.
#[derive(Debug)]
pub struct NewCopy<'a> {
    copy: &'a EdgeCopy,
    path: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl NewCopy<'_> {
    /// Adds an entry.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, entry: CopyEntry) -> Result<()> {
        let mut line = serde_json::to_vec(&Line::from(entry)).context("writing an entry")?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Adds all entries of an earlier copy.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub fn add_all_of(&mut self, mut earlier: WholeCopy) -> Result<()> {
        earlier.each_chunk(|chunk| self.write(chunk).map_err(io::Error::other))
    }

    /// Bytes of the entries so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        let doing = || format!("writing `{}`", self.path.display());
        self.file.write_all(bytes).with_context(doing)
    }

    /// Syncs it, and replaces the current copy by it.
    ///
    /// # Errors
    /// If that fails. Then the current copy is still there.
    pub fn finish(self, facts: CopyFacts) -> Result<()> {
        let doing = || format!("writing `{}`", self.path.display());
        let header = Header {
            facts,
            bytes: self.bytes,
            sha256: hex(self.hash),
        };
        let mut facts = serde_json::to_string(&header).with_context(doing)?;
        if facts.len() > FACTS_BYTES {
            bail!("the facts of the copy are too long");
        }
        facts.push_str(&" ".repeat(FACTS_BYTES - facts.len()));
        let key = self.copy.keys.first().context("there is no master key")?;
        let mut bytes = NAME.to_vec();
        bytes.extend_from_slice(Digest::of(key, &facts).to_hex().as_bytes());
        bytes.extend_from_slice(facts.as_bytes());
        let written = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error);
        let mut file = written.with_context(doing)?;
        file.seek(SeekFrom::Start(0)).with_context(doing)?;
        file.write_all(&bytes).with_context(doing)?;
        file.sync_all().with_context(doing)?;
        std::fs::rename(&self.path, &self.copy.path).with_context(doing)?;
        let folder = self.copy.path.parent().unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .with_context(doing)
    }
}

fn hex(hash: Sha256) -> String {
    culvert_base::text::hex(&hash.finalize())
}

/// An entry as a line of the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Put {
        id: String,
        kind: String,
        account: String,
        created_at: i64,
        updated_at: i64,
        keys: Vec<Key>,
        refs: Vec<Ref>,
        body: String,
    },
    Remove {
        id: String,
    },
    Named {
        name: String,
        value: String,
    },
}

impl From<CopyEntry> for Line {
    fn from(entry: CopyEntry) -> Self {
        match entry {
            CopyEntry::Put(document) => Self::Put {
                id: document.head.id,
                kind: document.head.kind,
                account: document.head.account,
                created_at: document.head.created_at.unix_nanos(),
                updated_at: document.head.updated_at.unix_nanos(),
                keys: document.keys,
                refs: document.refs,
                body: document.body,
            },
            CopyEntry::Remove { id } => Self::Remove { id },
            CopyEntry::Named { name, value } => Self::Named { name, value },
        }
    }
}

impl From<Line> for CopyEntry {
    fn from(line: Line) -> Self {
        match line {
            Line::Put {
                id,
                kind,
                account,
                created_at,
                updated_at,
                keys,
                refs,
                body,
            } => Self::Put(Document {
                head: Head {
                    id,
                    kind,
                    account,
                    revision: 0,
                    created_at: Timestamp::from_unix_nanos(created_at),
                    updated_at: Timestamp::from_unix_nanos(updated_at),
                },
                body,
                keys,
                refs,
                topics: Vec::new(),
            }),
            Line::Remove { id } => Self::Remove { id },
            Line::Named { name, value } => Self::Named { name, value },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use culvert_base::{Secret, SeededEntropy};

    use super::*;

    fn key(seed: u64) -> MasterKey {
        let folder = tempfile::tempdir().unwrap();
        keys::make(&folder.path().join("key"), &SeededEntropy::new(seed)).unwrap()
    }

    fn entry(n: usize) -> CopyEntry {
        CopyEntry::Named {
            name: format!("name {n}"),
            value: "x".repeat(n),
        }
    }

    fn facts() -> CopyFacts {
        let at = Timestamp::from_unix_seconds(1_000_000);
        CopyFacts::new(
            "one".to_owned(),
            Revision {
                epoch: 2,
                number: 7,
            },
            at,
        )
    }

    struct Fixture {
        folder: tempfile::TempDir,
        copy: EdgeCopy,
    }

    fn written(n_entries: usize) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let copy = at(&folder, &key(1));
        let mut new = copy.begin().unwrap();
        for n in 0..n_entries {
            new.add(entry(n)).unwrap();
        }
        new.finish(facts()).unwrap();
        Fixture { folder, copy }
    }

    fn at(folder: &tempfile::TempDir, key: &MasterKey) -> EdgeCopy {
        let settings = Settings {
            data_dir: folder.path().to_owned(),
            ..Settings::default()
        };
        EdgeCopy::of(&settings, key)
    }

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let fixture = written(3);
        let mode = std::fs::metadata(fixture.copy.path())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let opened = fixture.copy.open().unwrap().unwrap();
        assert_eq!(*opened.facts(), facts());
        let expected: Vec<CopyEntry> = (0..3).map(entry).collect();
        assert_eq!(opened.entries().unwrap(), expected);

        let mut next = fixture.copy.begin().unwrap();
        next.add_all_of(fixture.copy.open().unwrap().unwrap())
            .unwrap();
        next.add(entry(3)).unwrap();
        let opened = fixture.copy.open().unwrap().unwrap();
        assert_eq!(opened.entries().unwrap().len(), 3, "until it is finished");
        next.finish(facts()).unwrap();
        let opened = fixture.copy.open().unwrap().unwrap();
        assert_eq!(opened.entries().unwrap().len(), 4);
    }

    #[test]
    fn every_changed_byte_and_every_length_is_refused() {
        let fixture = written(2);
        let path = fixture.copy.path();
        let whole = std::fs::read(path).unwrap();
        for place in 0..whole.len() {
            for bit in [0x01, 0x20, 0x80] {
                let mut changed = whole.clone();
                changed[place] ^= bit;
                std::fs::write(path, changed).unwrap();
                assert!(fixture.copy.open().is_err(), "byte {place}, bit {bit:x}");
            }
        }
        for length in 0..whole.len() {
            std::fs::write(path, &whole[..length]).unwrap();
            assert!(fixture.copy.open().is_err(), "{length} bytes");
        }
        std::fs::write(path, [whole.as_slice(), b"\n"].concat()).unwrap();
        assert!(fixture.copy.open().is_err(), "one byte more");
        std::fs::write(path, &whole).unwrap();
        assert!(fixture.copy.open().unwrap().is_some());
        std::fs::remove_file(path).unwrap();
        assert!(fixture.copy.open().unwrap().is_none());
    }

    #[test]
    fn a_copy_that_changes_while_it_is_read_is_refused() {
        let fixture = written(2);
        let opened = fixture.copy.open().unwrap().unwrap();
        let mut changed = std::fs::read(fixture.copy.path()).unwrap();
        let last = changed.len() - 3;
        changed[last] ^= 1;
        std::fs::write(fixture.copy.path(), changed).unwrap();
        assert!(opened.entries().is_err());
    }

    #[test]
    fn a_copy_is_read_with_its_master_key_and_with_the_one_after_it() {
        let fixture = written(1);
        let rotated = key(1).rotated(&SeededEntropy::new(3));
        for (key, is_read) in [(key(1), true), (rotated, true), (key(2), false)] {
            let opened = at(&fixture.folder, &key).open();
            assert_eq!(opened.is_ok(), is_read);
        }
        let other = MasterKey {
            current: Secret::new("0".repeat(64)),
            older: None,
        };
        let error = at(&fixture.folder, &other).open().unwrap_err();
        assert!(error.to_string().contains("master key"), "{error}");
    }

    #[test]
    fn a_copy_that_is_too_old_or_of_the_future_is_refused() {
        let (facts, age_max) = (facts(), Duration::from_secs(60));
        for (seconds, is_served) in [
            (1_000_000, true),
            (1_000_060, true),
            (1_000_061, false),
            (9_000_000, false),
            (999_700, true),
            (999_699, false),
            (0, false),
        ] {
            let now = Timestamp::from_unix_seconds(seconds);
            assert_eq!(
                facts.check_age(now, age_max).is_ok(),
                is_served,
                "{seconds}"
            );
        }
    }
}
