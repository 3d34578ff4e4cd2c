//! What `culvert login` and `culvert config` save for a user: addresses, tokens and CAs, in a file that only the user
//! may read.
//!
//! Flags and the environment take precedence. A token goes only to the address that it was saved for.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use culvert_base::Secret;
use serde::Deserialize;

use crate::environment::environment;
use crate::failure::Failure;
use crate::invalid::Invalid;

/// Maximum size of the file.
const BYTES_MAX: u64 = 64 << 10;

/// The saved settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// URL of the management API.
    pub api_url: Option<String>,
    /// PEM file of CAs to verify the API.
    pub api_ca: Option<PathBuf>,
    /// The API key.
    pub api_key: Option<Secret>,
    /// Addresses of the agent ingress.
    pub server: Option<String>,
    /// PEM file of CAs to verify the agent ingress.
    pub server_ca: Option<PathBuf>,
    /// The agent's token.
    pub authtoken: Option<Secret>,
}

impl Profile {
    /// The file: `$XDG_CONFIG_HOME/culvert/config.toml`, or below `~/.config`.
    ///
    /// # Errors
    /// If there is no home directory.
    pub fn path() -> Result<PathBuf, Failure> {
        path_of(&environment()).ok_or_else(|| {
            Failure::Failed("no home directory: HOME and XDG_CONFIG_HOME are not set".into())
        })
    }

    /// Reads the file. Without a file, nothing is saved.
    ///
    /// # Errors
    /// If others may read the file, or it is not a profile.
    pub fn load() -> Result<Self, Failure> {
        match path_of(&environment()) {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let invalid = |why: String| {
            let text = format!("`{}`: {why}", path.display());
            Failure::Configuration(Invalid(text))
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(invalid(error.to_string())),
        };
        check_owner(&file, path).map_err(invalid)?;
        let mut text = String::new();
        file.take(BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| invalid(error.to_string()))?;
        // The whole message of an error shows the line, which may contain a token.
        toml::from_str(&text).map_err(|error| invalid(error.message().to_owned()))
    }

    /// Replaces the file as a whole. A profile without values removes it.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        if *self == Self::default() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(anyhow::Error::from(error)
                        .context(format!("removing `{}`", path.display()))
                        .into())
                }
                _ => Ok(()),
            };
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("creating `{}`", folder.display()))?;
        let next = path.with_extension(format!("toml.{}", std::process::id()));
        let written = self.write(&next).and_then(|()| fs::rename(&next, path));
        if written.is_err() {
            fs::remove_file(&next).ok();
        }
        written.with_context(|| format!("writing `{}`", path.display()))?;
        Ok(())
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = |text: &Option<String>| text.clone();
        let secret = |secret: &Option<Secret>| secret.as_ref().map(|it| it.reveal().to_owned());
        let file = |path: &Option<PathBuf>| path.as_ref().map(|it| it.display().to_string());
        let table: toml::Table = [
            ("api_url", text(&self.api_url)),
            ("api_ca", file(&self.api_ca)),
            ("api_key", secret(&self.api_key)),
            ("server", text(&self.server)),
            ("server_ca", file(&self.server_ca)),
            ("authtoken", secret(&self.authtoken)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), toml::Value::String(value?))))
        .collect();
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(table.to_string().as_bytes())?;
        file.sync_all()
    }
}

fn path_of(environment: &HashMap<String, String>) -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = PathBuf::from(environment.get(name)?);
        path.is_absolute().then_some(path)
    };
    let base = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(base.join("culvert/config.toml"))
}

/// Whether only the user may read the file. The error is a sentence without a full stop.
fn check_owner(file: &File, path: &Path) -> Result<(), String> {
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is not a file".into());
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err("the file contains tokens and belongs to another user".into());
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!(
            "the file contains tokens and other users may open it; run `chmod 600 {}`",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn full() -> Profile {
        Profile {
            api_url: Some("https://a.test".into()),
            api_ca: Some("/etc/ca.pem".into()),
            api_key: Some(Secret::new("key \"quoted\"".into())),
            server: None,
            server_ca: None,
            authtoken: Some(Secret::new("token".into())),
        }
    }

    #[test]
    fn a_saved_profile_is_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/culvert/config.toml");
        assert_eq!(Profile::read(&path).unwrap(), Profile::default());
        full().save(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), full());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

        for open in [0o640, 0o604] {
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
            let refused = format!("{:?}", Profile::read(&path).unwrap_err());
            assert!(refused.contains("chmod 600"), "{refused}");
        }
        // Saving mends the mode.
        full().save(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        Profile::default().save(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn an_error_shows_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        for text in ["api_key = \"hidden", "api_key = [\"hidden\"]", "hidden = 1"] {
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path);
            file.unwrap().write_all(text.as_bytes()).unwrap();
            let refused = format!("{:?}", Profile::read(&path).unwrap_err());
            assert!(
                text.starts_with("hidden") || !refused.contains("hidden"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_path_follows_xdg() {
        let path = |variables: &[(&str, &str)]| {
            let pairs = variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            path_of(&pairs.collect())
        };
        let at = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            path(&[("HOME", "/h")]),
            at("/h/.config/culvert/config.toml")
        );
        assert_eq!(
            path(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]),
            at("/x/culvert/config.toml")
        );
        assert_eq!(
            path(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")]),
            at("/h/.config/culvert/config.toml")
        );
        assert_eq!(path(&[]), None);
    }
}
