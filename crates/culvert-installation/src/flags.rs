//! Settings as flags of a command.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_command::{Failure, Invalid};
use sha2::{Digest, Sha256};

use crate::config::{self, Settings};

/// Adds `--config` and a flag for each setting.
pub fn with_settings(command: Command) -> Command {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Configuration file [default: ./culvert.toml, otherwise /etc/culvert/culvert.toml]");
    let mut command = command.arg(file);
    for key in config::keys() {
        command = command.arg(
            Arg::new(&*key.name)
                .long(key.flag())
                .value_name("VALUE")
                .action(ArgAction::Set)
                .help(&*key.doc)
                .hide_short_help(true)
                .help_heading("Settings"),
        );
    }
    command
}

/// The settings of a command built with [`with_settings`].
///
/// # Errors
/// If they are invalid, or the command line has a secret.
pub fn settings_of(matches: &ArgMatches) -> Result<Settings, Failure> {
    read_settings(matches, config::load)
}

/// As [`settings_of`], for commands that use only the storage: they need no secrets of a CA or a DNS provider.
///
/// # Errors
/// If the settings are invalid, or the command line has a secret.
pub fn storage_settings_of(matches: &ArgMatches) -> Result<Settings, Failure> {
    read_settings(matches, config::load_for_storage)
}

type Load =
    fn(Option<&Path>, &HashMap<String, String>, &[(String, String)]) -> Result<Settings, Invalid>;

fn read_settings(matches: &ArgMatches, load: Load) -> Result<Settings, Failure> {
    let flags: Vec<(String, String)> = config::keys()
        .iter()
        // Secrets have no flags, because every user of the machine can read command lines.
        .filter_map(|key| {
            Some((
                key.name.clone(),
                matches.get_one::<String>(&key.name)?.clone(),
            ))
        })
        .collect();
    if flags.iter().any(|(name, _)| name == "bootstrap.api_key") {
        let text = "other users can see a token on the command line; set CULVERT_BOOTSTRAP__API_KEY instead";
        return Err(Failure::Usage(text.into()));
    }
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let mut environment = config::environment();
    let beside = match config::file_used(file) {
        Some(used) => environment_beside(&used),
        None => Ok(HashMap::new()),
    };
    // The process may have more than the service.
    for (name, value) in beside.iter().flatten() {
        let entry = environment.entry(name.clone());
        entry.or_insert_with(|| value.clone());
    }
    load(file, &environment, &flags).map_err(|Invalid(why)| {
        Failure::Configuration(Invalid(match &beside {
            Ok(_) => why,
            Err(path) => format!(
                "{why}; this user cannot read the variables in `{}`, which may set it: use sudo",
                path.display()
            ),
        }))
    })
}

/// Directory of the settings of the packaged service.
const SERVICE_FOLDER: &str = "/etc/culvert";

/// The variables that the packaged service gets in addition to its settings file, if this is that file. The error is the
/// path of a file that exists and cannot be read.
fn environment_beside(settings: &Path) -> Result<HashMap<String, String>, PathBuf> {
    if settings.parent() != Some(Path::new(SERVICE_FOLDER)) {
        return Ok(HashMap::new());
    }
    let path = settings.with_file_name("environment");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(variables(&text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(HashMap::new()),
        Err(_) => Err(path),
    }
}

/// Variables of culvert in a file for `EnvironmentFile=` of systemd.
pub fn variables(text: &str) -> HashMap<String, String> {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        let value = value.trim();
        let within = |mark| value.strip_prefix(mark)?.strip_suffix(mark);
        let value = match (within('"'), within('\'')) {
            (Some(text), _) => unescaped(text),
            (None, Some(text)) => text.to_owned(),
            (None, None) => value.to_owned(),
        };
        name.starts_with("CULVERT_")
            .then(|| (name.to_owned(), value))
    };
    text.lines().filter_map(line).collect()
}

/// The line of such a file that sets a variable. The value has no control characters.
pub fn variable(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}=\"{value}\"\n")
}

/// The text of a value between double quotes.
fn unescaped(text: &str) -> String {
    let mut chars = text.chars();
    let next = || {
        let next = chars.next()?;
        Some(if next == '\\' { chars.next()? } else { next })
    };
    std::iter::from_fn(next).collect()
}

/// SHA-256 of the settings file of the command line, in hexadecimal; `None` without a file.
pub fn file_digest(matches: &ArgMatches) -> Option<String> {
    let file = matches.get_one::<PathBuf>("config").map(PathBuf::as_path);
    let bytes = std::fs::read(config::file_used(file)?).ok()?;
    Some(culvert_base::text::hex(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_the_service_are_read_as_systemd_reads_them() {
        let text = "# CULVERT_A=1\n;CULVERT_B=1\nCULVERT_C=a=b\n CULVERT_D='x y' \nCULVERT_E=\"z\"\nPATH=/bin\nCULVERT_F\n";
        let secret = "a\"b\\";
        let written = variables(&variable("CULVERT_G", secret));
        assert_eq!(written["CULVERT_G"], secret);
        let mut found: Vec<(String, String)> = variables(text).into_iter().collect();
        found.sort();
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            found,
            [
                of("CULVERT_C", "a=b"),
                of("CULVERT_D", "x y"),
                of("CULVERT_E", "z")
            ]
        );
        let other = environment_beside(Path::new("./culvert.toml"));
        assert_eq!(other, Ok(HashMap::new()));
    }
}
