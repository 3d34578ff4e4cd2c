//! Loads settings from flags, environment and file.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use config::{Config, ConfigError, Environment, File, FileFormat};
use culvert_base::text::similar::distance;
use serde_json::Value;

use super::{Invalid, Key, Settings, keys};

/// Variables with the prefix `CULVERT_` that are not settings: those of the client, the agent and the test suite.
const OTHER_VARIABLES: [&str; 7] = [
    "CULVERT_API_CA_FILE",
    "CULVERT_API_URL",
    "CULVERT_API_KEY",
    "CULVERT_AUTHTOKEN",
    "CULVERT_CA_FILE",
    "CULVERT_SERVER",
    "CULVERT_TEST_",
];

/// The settings file: `file` if it is given, or else the first of the usual ones that exists.
pub fn file_used(file: Option<&Path>) -> Option<PathBuf> {
    let usual = || {
        ["./culvert.toml", "/etc/culvert/culvert.toml"]
            .into_iter()
            .map(PathBuf::from)
            .find(|path| path.is_file())
    };
    file.map(Path::to_owned).or_else(usual)
}

/// Loads settings. `flags` (dotted key and text) take precedence over `environment`, then the file, then defaults. If
/// `file` is given, it must exist; otherwise `./culvert.toml` or `/etc/culvert/culvert.toml` is used if it exists.
pub fn load(
    file: Option<&Path>,
    environment: &HashMap<String, String>,
    flags: &[(String, String)],
) -> Result<Settings, Invalid> {
    let settings = read_all(file, environment, flags)?;
    settings.check()?;
    Ok(settings)
}

/// As [`load`], for commands that use only the storage. What concerns the CA is not checked.
pub fn load_for_storage(
    file: Option<&Path>,
    environment: &HashMap<String, String>,
    flags: &[(String, String)],
) -> Result<Settings, Invalid> {
    let settings = read_all(file, environment, flags)?;
    settings.check_storage()?;
    Ok(settings)
}

/// As [`load`], with the text of a settings file, and without flags.
pub fn parse(text: &str, environment: &HashMap<String, String>) -> Result<Settings, Invalid> {
    let settings = read_text(Some(text), environment, &[])?;
    settings.check()?;
    Ok(settings)
}

fn read_all(
    file: Option<&Path>,
    environment: &HashMap<String, String>,
    flags: &[(String, String)],
) -> Result<Settings, Invalid> {
    let text = file_used(file).map(|path| match path.is_file() {
        true => read(&path),
        false => Err(Invalid(format!(
            "cannot read the configuration file `{}`",
            path.display()
        ))),
    });
    read_text(text.transpose()?.as_deref(), environment, flags)
}

fn read_text(
    text: Option<&str>,
    environment: &HashMap<String, String>,
    flags: &[(String, String)],
) -> Result<Settings, Invalid> {
    let keys = keys();
    let mut builder = Config::builder();
    if let Some(text) = text {
        builder = builder.add_source(File::from_str(text, FileFormat::Toml));
    }
    let ours: HashMap<String, String> = environment
        .iter()
        .filter(|(name, _)| name.starts_with("CULVERT_"))
        .filter(|(name, _)| !OTHER_VARIABLES.iter().any(|other| name.starts_with(other)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut variables = Environment::with_prefix("CULVERT")
        .prefix_separator("_")
        .separator("__")
        .try_parsing(true)
        .list_separator(",")
        .source(Some(ours));
    for key in keys.iter().filter(|key| key.list) {
        variables = variables.with_list_parse_key(&key.name);
    }
    builder = builder.add_source(variables);
    for (name, value) in flags {
        let list = keys.iter().any(|key| key.name == *name && key.list);
        let set = if list {
            let items: Vec<&str> = value.split(',').filter(|item| !item.is_empty()).collect();
            builder.set_override(name, items)
        } else {
            builder.set_override(name, value.as_str())
        };
        builder = set.map_err(|e| {
            let why = without_values(&e);
            Invalid(format!("invalid value for the setting `{name}`: {why}"))
        })?;
    }
    let config = builder.build().map_err(|e| {
        Invalid(format!(
            "cannot read the configuration: {}",
            without_values(&e)
        ))
    })?;

    let given: BTreeMap<String, Value> = config.clone().try_deserialize().map_err(|e| {
        Invalid(format!(
            "cannot read the configuration: {}",
            without_values(&e)
        ))
    })?;
    refuse_unknown(&given, keys)?;
    let mut settings: Settings = config.try_deserialize().map_err(|e| {
        Invalid(format!(
            "the configuration is invalid: {}",
            without_values(&e)
        ))
    })?;
    // An empty variable for a list parses as one empty item.
    for list in [
        &mut settings.api.trusted_proxies,
        &mut settings.edge.trusted_proxies,
        &mut settings.edge.reserved_names,
        &mut settings.edge.proxy_protocol_from,
        &mut settings.agents.names,
        &mut settings.agents.connect_addresses,
        &mut settings.acme.challenges,
        &mut settings.events.redact_headers,
        &mut settings.events.redact_query,
        &mut settings.destinations.allow_networks,
        &mut settings.destinations.deny_ports,
        &mut settings.destinations.datadog.sites,
    ] {
        list.retain(|item| !item.trim().is_empty());
    }
    Ok(settings)
}

/// The text of a configuration file, which is TOML. The error names the line and does not repeat it: it may have a secret.
fn read(path: &Path) -> Result<String, Invalid> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Invalid(format!(
            "cannot read the configuration file `{shown}`: {error}"
        ))
    })?;
    if let Err(error) = toml::from_str::<toml::Table>(&text) {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let why = error.message();
        return Err(Invalid(format!("`{shown}`, line {line}: {why}")));
    }
    Ok(text)
}

/// An error without the value that has the wrong type.
fn without_values(error: &ConfigError) -> String {
    let key = |key: &Option<String>| match key {
        Some(key) => format!(" for key `{key}`"),
        None => String::new(),
    };
    match error {
        ConfigError::Type {
            expected, key: at, ..
        } => format!("invalid type, expected {expected}{}", key(at)),
        ConfigError::At { error, key: at, .. } => {
            format!("{}{}", without_values(error), key(at))
        }
        other => other.to_string(),
    }
}

fn refuse_unknown(given: &BTreeMap<String, Value>, keys: &[Key]) -> Result<(), Invalid> {
    let mut flat = Vec::new();
    for (name, value) in given {
        flatten(name.clone(), value, keys, &mut flat);
    }
    for name in flat {
        if !keys.iter().any(|key| key.name == name) {
            let nearest = keys
                .iter()
                .map(|key| (distance(&key.name, &name), key.name.as_str()))
                .min()
                // Suggests only similar names.
                .filter(|(distance, _)| 3 * distance <= name.len());
            return Err(Invalid(match nearest {
                Some((_, nearest)) => {
                    format!("unknown setting `{name}`; did you mean `{nearest}`?")
                }
                None => {
                    format!("unknown setting `{name}`; `culvert config show` lists all settings")
                }
            }));
        }
    }
    Ok(())
}

fn flatten(name: String, value: &Value, keys: &[Key], flat: &mut Vec<String>) {
    match value.as_object() {
        Some(inner) if !keys.iter().any(|key| key.name == name) => {
            for (child, value) in inner {
                flatten(format!("{name}.{child}"), value, keys, flat);
            }
        }
        _ => flat.push(name),
    }
}
