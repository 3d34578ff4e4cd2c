//! The installation's master key: a file with 64 hex digits, created at the first start.
//!
//! During a rotation the file has a second line with the previous key. Secrets are then encrypted with the first key,
//! and decrypted with either.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use anyhow::{Context, Result, bail};
use culvert_base::{Digest, Entropy, Secret};
use rustix::fs::Access;

/// The master key, and the previous one during a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterKey {
    /// The key for encryption.
    pub current: Secret,
    /// The previous key, under which some secrets may still be encrypted.
    pub older: Option<Secret>,
}

impl MasterKey {
    /// Both keys, the current one first.
    pub fn each(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.current).chain(&self.older)
    }

    /// Adds a new key and keeps this one as the previous key.
    pub fn rotated(self, entropy: &dyn Entropy) -> Self {
        Self {
            current: new(entropy),
            older: Some(self.current),
        }
    }

    /// Whether one of the keys is the key of a database with this mark.
    pub fn is_marked(&self, mark: &str) -> bool {
        self.each().any(|key| mark_of(key) == mark)
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        for key in self.each() {
            text.push_str(key.reveal());
            text.push('\n');
        }
        write_private(path, &text)
    }
}

/// The mark by which a database recognises a key.
pub fn mark_of(key: &Secret) -> String {
    Digest::of(key.reveal().as_bytes(), "culvert master key mark").to_hex()
}

/// The key that authenticates copies of the configuration.
pub(crate) fn copy_key_of(key: &Secret) -> [u8; 32] {
    Digest::of(key.reveal().as_bytes(), "culvert edge copy 1").to_bytes()
}

/// Reads the key file; `None` if it does not exist.
///
/// # Errors
/// If the file cannot be read, is readable by others, or contains no key.
pub fn load(path: &Path) -> Result<Option<MasterKey>> {
    match read_private(path) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => {
            let is_key =
                |line: &str| line.len() == 64 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            match (lines.next(), lines.next(), lines.next()) {
                (Some(current), older, None) if is_key(current) && older.is_none_or(is_key) => {
                    Ok(Some(MasterKey {
                        current: Secret::new(current.to_owned()),
                        older: older.map(|older| Secret::new(older.to_owned())),
                    }))
                }
                _ => bail!("the master key `{}` must be 64 hex digits", path.display()),
            }
        }
        Err(error) => {
            Err(error).with_context(|| format!("reading the master key `{}`", path.display()))
        }
    }
}

/// Whether a file with this mode and owner is for the server alone. A file of root may be readable by a group: that is
/// how an orchestrator mounts a secret for a process that does not run as root.
pub(crate) fn is_private(mode: u32, owner: u32) -> bool {
    let others = if owner == 0 { 0o037 } else { 0o077 };
    mode & others == 0
}

/// Reads a file that only its owner can read; `None` if there is none.
///
/// # Errors
/// If the file cannot be read, is readable by others, or belongs to another user.
pub(crate) fn read_private(path: &Path) -> Result<Option<String>> {
    let mut file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Of what was opened: the name may be another file by now.
    let found = file.metadata()?;
    if !is_private(found.mode(), found.uid()) {
        bail!("other users can read it; run `chmod 600` on it");
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = std::fs::metadata(folder)?.uid();
    if !is_of(found.uid(), rustix::process::geteuid().as_raw(), folder) {
        bail!("it belongs to another user, who may have put it there");
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Whether a user may trust a file of this owner: their own, or that of root. For commands that root runs, also that of the
/// owner of the folder.
fn is_of(owner: u32, user: u32, folder: u32) -> bool {
    owner == user || owner == 0 || (user == 0 && owner == folder)
}

/// Creates the key of a new installation and writes its file.
///
/// # Errors
/// If the file cannot be written.
pub fn make(path: &Path, entropy: &dyn Entropy) -> Result<MasterKey> {
    let made = MasterKey {
        current: new(entropy),
        older: None,
    };
    made.write(path)?;
    Ok(made)
}

fn new(entropy: &dyn Entropy) -> Secret {
    Secret::new(entropy.text(b"0123456789abcdef", 64))
}

/// Atomically writes a file that only its owner can read. If root replaces a file, the new one has the same owner.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    write_whole(path, text, 0o600, path)
}

/// As [`write_private`]. If root writes it, it belongs to the owner of the file `of`.
pub fn write_private_for_owner(of: &Path, path: &Path, text: &str) -> Result<()> {
    write_whole(path, text, 0o600, of)
}

/// Atomically writes a file that everyone can read.
pub fn write_public(path: &Path, text: &str) -> Result<()> {
    // An unchanged file is not written, so that a full disk does not prevent the start.
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    write_whole(path, text, 0o644, path)
}

fn write_whole(path: &Path, text: &str, mode: u32, owned_as: &Path) -> Result<()> {
    let doing = || format!("writing `{}`", path.display());
    // The whole name: files that differ in their extension are written at the same time, such as `audit.key` and `audit.head`.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    // An interrupted write left it, or another user who wants to read the new content.
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(doing);
        }
        _ => {}
    }
    // A new file follows no link.
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&fresh)
        .with_context(doing)?;
    // What a command of root writes in the data directory has to be readable for the server.
    if rustix::process::geteuid().is_root()
        && let Ok(found) = std::fs::symlink_metadata(owned_as)
        && found.is_file()
    {
        fchown(&file, Some(found.uid()), Some(found.gid())).with_context(doing)?;
    }
    file.write_all(text.as_bytes()).with_context(doing)?;
    file.sync_all().with_context(doing)?;
    std::fs::rename(&fresh, path).with_context(doing)?;
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .with_context(doing)?;
    }
    Ok(())
}

/// Creates the data directory with mode 0700 if it does not exist.
pub fn make_data_dir(path: &Path) -> Result<()> {
    if !path.exists() {
        std::fs::create_dir_all(path)
            .with_context(|| format!("creating the directory `{}`", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("setting the mode of the directory `{}`", path.display()))?;
    }
    Ok(())
}

/// Checks that the directory can be created if it does not exist, and that files can be created in it.
///
/// # Errors
/// If not.
pub fn check_data_dir(path: &Path) -> Result<()> {
    let existing = path.ancestors().find(|it| it.exists());
    let existing = existing.unwrap_or(Path::new("."));
    if !existing.is_dir() {
        bail!("`{}` is not a directory", existing.display());
    }
    rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("writing to the directory `{}`", existing.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use culvert_base::SeededEntropy;

    #[test]
    fn files_that_differ_in_their_extension_are_written_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // What another program has begun to write.
        std::fs::write(at("audit.new"), "half").unwrap();
        std::thread::scope(|scope| {
            for name in ["audit.key", "audit.head"] {
                let path = at(name);
                scope.spawn(move || {
                    for _ in 0..200 {
                        write_private(&path, name).unwrap();
                        assert_eq!(std::fs::read_to_string(&path).unwrap(), name);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(at("audit.new")).unwrap(), "half");
    }

    #[test]
    fn what_another_user_left_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("audit.key.new"), "").unwrap();
        let open = std::fs::File::open(at("audit.key.new")).unwrap();
        write_private(&at("audit.key"), "secret").unwrap();
        assert_eq!(std::io::read_to_string(open).unwrap(), "");
        std::fs::write(at("other"), "kept").unwrap();
        std::os::unix::fs::symlink(at("other"), at("audit.key.new")).unwrap();
        write_private(&at("audit.key"), "secret").unwrap();
        assert_eq!(std::fs::read_to_string(at("other")).unwrap(), "kept");
        let found = std::fs::symlink_metadata(at("audit.key")).unwrap();
        assert!(found.is_file());
        assert_eq!(found.mode() & 0o777, 0o600);
    }

    /// `sudo culvert admin rotate-master-key` on the machine of a package.
    #[test]
    fn what_root_replaces_keeps_its_owner() {
        if !rustix::process::geteuid().is_root() {
            culvert_testing::ignore("only root gives files to others");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let owner = |name: &str| {
            let found = std::fs::metadata(at(name)).unwrap();
            (found.uid(), found.gid())
        };
        write_private(&at("master.key"), "old").unwrap();
        assert_eq!(
            owner("master.key"),
            (0, rustix::process::getegid().as_raw())
        );
        std::os::unix::fs::chown(at("master.key"), Some(1234), Some(1235)).unwrap();
        write_private(&at("master.key"), "new").unwrap();
        write_private_for_owner(&at("master.key"), &at("next"), "new").unwrap();
        write_private_for_owner(&at("missing"), &at("own"), "new").unwrap();
        assert_eq!(owner("master.key"), (1234, 1235));
        assert_eq!(owner("next"), (1234, 1235));
        assert_eq!(owner("own").0, 0);
    }

    #[test]
    fn a_key_of_another_user_is_refused() {
        for (owner, user, folder, expected) in [
            (1000, 1000, 0, true),
            (0, 1000, 0, true),
            (1001, 1000, 0, false),
            (1001, 1000, 1001, false),
            // `/dev/shm`, and the data directory of the server.
            (1001, 0, 0, false),
            (1000, 0, 1000, true),
        ] {
            let found = is_of(owner, user, folder);
            assert_eq!(found, expected, "{owner} for {user} in {folder}");
        }
    }

    #[test]
    fn only_a_file_of_root_may_be_readable_by_a_group() {
        for (mode, owner, expected) in [
            (0o600, 1000, true),
            (0o400, 0, true),
            (0o440, 0, true),
            (0o640, 0, true),
            (0o440, 1000, false),
            (0o444, 0, false),
            (0o660, 0, false),
        ] {
            assert_eq!(is_private(mode, owner), expected, "{mode:o} of {owner}");
        }
    }

    #[test]
    fn a_key_is_generated_once_with_private_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.key");
        assert_eq!(load(&path).unwrap(), None);
        let made = make(&path, &SeededEntropy::new(1)).unwrap();
        assert_eq!(load(&path).unwrap(), Some(made));
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load(&path).is_err());
    }

    #[test]
    fn a_damaged_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.key");
        let key = "0".repeat(64);
        for text in [
            "short",
            "",
            &format!("{key}\nshort"),
            &format!("{key}\n{key}\n{key}"),
        ] {
            write_private(&path, text).unwrap();
            assert!(load(&path).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rotated_key_is_read_with_the_previous_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("master.key");
        let before = make(&path, &SeededEntropy::new(1)).unwrap();
        let rotated = before.clone().rotated(&SeededEntropy::new(2));
        rotated.write(&path).unwrap();
        let read = load(&path).unwrap().unwrap();
        assert_eq!(read, rotated);
        assert_eq!(read.older, Some(before.current.clone()));
        assert_ne!(read.current, before.current);
    }
}
