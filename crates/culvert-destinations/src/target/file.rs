//! `file`: events as lines of JSON in a local file, with rotation.
//!
//! A batch is one write of whole lines. It counts as delivered after the file was synced (unless
//! `fsync` is `none`). A write that fails halfway is truncated, so a reader does not see part of an
//! event and then the whole event again. If another program moves the file away, it is opened
//! again. Paths stay under the operator's root: no `..` and no symbolic links.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use culvert_base::{BoxFuture, Entropy, Refusal};
use culvert_target::batch::{Batch, BatchLimits};
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::Net;
use culvert_target::rotating_file::{Escape, Fsync, Rotation, Slot, stays_inside};
use culvert_target::{
    Checked, DestinationIds, Target, TargetContext, TargetSettings, TargetType, Verdict,
};

use crate::config::{ConfigDuration, invalid, parse};

const NAME: &str = "file";

/// This target.
pub static TYPE: TargetType = TargetType {
    name: NAME,
    doc: "Appends events as JSON lines to a file in the directory that the operator configured.",
    limits: BatchLimits {
        events_max: 2000,
        bytes_max: 2 << 20,
    },
    schema: |generator| generator.subschema_for::<Config>(),
    check,
    merge: |_, given| given,
    redact: Value::clone,
    open,
};

/// Configuration of the `file` target.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FileTarget")]
struct Config {
    /// Path relative to the server's `destinations.file.root`; directories are created as needed.
    path: String,
    /// Maximum file size in bytes before rotation: 4 KiB to 1 TiB, default 100 MiB.
    #[serde(default)]
    max_bytes: Option<u64>,
    /// Maximum file age before rotation: `1m` to `366d`, default `24h`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    #[schemars(extend("pattern" = crate::config::DURATION))]
    max_age: Option<ConfigDuration>,
    /// Number of rotated files to keep: 1 to 10000, default 10.
    #[serde(default)]
    max_files: Option<u32>,
    /// Whether a batch must be synced to disk before it counts as delivered. Default: `batch`.
    #[serde(default)]
    fsync: Option<Fsync>,
}

const MAX_BYTES: u64 = 100 << 20;
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
const MAX_FILES: u32 = 10;
const PATH_BYTES_MAX: usize = 1024;

fn check(given: &Value, settings: &TargetSettings, _: &dyn Entropy) -> Result<Checked, Refusal> {
    let mut config: Config = parse(NAME, given)?;
    let root = settings
        .file_root
        .as_ref()
        .ok_or_else(|| invalid(NAME, "this server has no `destinations.file.root`"))?;
    let relative = relative(&config.path).map_err(|sentence| invalid(NAME, sentence))?;
    stays_inside(root, &relative).map_err(|error| match error {
        Escape::Link => invalid(NAME, "`path` contains a symbolic link"),
        Escape::Io(_) => invalid(NAME, "`path` cannot be used on this server"),
    })?;
    let max_bytes = *config.max_bytes.get_or_insert(MAX_BYTES);
    if !(4 << 10..=1 << 40).contains(&max_bytes) {
        return Err(invalid(
            NAME,
            "`max_bytes` must be between 4096 and 1099511627776",
        ));
    }
    let max_age = config.max_age.get_or_insert(ConfigDuration(MAX_AGE)).0;
    if !(Duration::from_secs(60)..=Duration::from_secs(366 * 86_400)).contains(&max_age) {
        return Err(invalid(NAME, "`max_age` must be between `1m` and `366d`"));
    }
    if !(1..=10_000).contains(config.max_files.get_or_insert(MAX_FILES)) {
        return Err(invalid(NAME, "`max_files` must be between 1 and 10000"));
    }
    config.fsync.get_or_insert(Fsync::Batch);
    Ok(Checked {
        stored: serde_json::to_value(&config).expect("a configuration is plain JSON"),
        shown_once: None,
    })
}

/// Parses a relative path without `.` or `..` components.
fn relative(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() || text.len() > PATH_BYTES_MAX {
        return Err("`path` must have 1 to 1024 bytes");
    }
    if text.chars().any(char::is_control) {
        return Err("`path` must not contain control characters");
    }
    if text.ends_with('/') {
        return Err("`path` must be the path of a file");
    }
    let path = Path::new(text);
    let plain = path.components().all(|part| match part {
        Component::Normal(name) => name.len() <= 200,
        _ => false,
    });
    // `components` normalises `a/./b` and `a//b`; such paths are rejected.
    let folded = text
        .split('/')
        .any(|part| part.is_empty() || part == "." || part == "..");
    if !plain || folded {
        return Err(
            "`path` must be relative, without `.` and `..`, with names of at most 200 bytes",
        );
    }
    Ok(path.to_owned())
}

fn open(
    stored: &Value,
    context: &TargetContext,
    _: DestinationIds<'_>,
) -> Result<Arc<dyn Target>, Refusal> {
    let config: Config = parse(NAME, stored)?;
    let root = context
        .settings()
        .file_root
        .clone()
        .ok_or_else(|| invalid(NAME, "this server has no `destinations.file.root`"))?;
    let relative = relative(&config.path).map_err(|sentence| invalid(NAME, sentence))?;
    Ok(Arc::new(FileTarget {
        slot: context.files().slot(root, relative),
        rotation: Rotation {
            max_bytes: config.max_bytes.unwrap_or(MAX_BYTES),
            max_age: config.max_age.map_or(MAX_AGE, |span| span.0),
            max_files: config.max_files.unwrap_or(MAX_FILES),
        },
        fsync: config.fsync.unwrap_or(Fsync::Batch),
        net: context.net().clone(),
    }))
}

#[derive(Debug)]
struct FileTarget {
    slot: Arc<Slot>,
    rotation: Rotation,
    fsync: Fsync,
    net: Net,
}

impl Target for FileTarget {
    fn send<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let slot = self.slot.clone();
            let (rotation, fsync, now) = (self.rotation, self.fsync, self.net.now());
            let lines = batch.lines();
            let written =
                tokio::task::spawn_blocking(move || slot.append(&lines, rotation, fsync, now));
            match written.await {
                Ok(Ok(())) => Verdict::Delivered,
                Ok(Err(failure)) => Verdict::Failed(failure),
                Err(_) => Verdict::Failed(Failure::new(
                    FailureClass::Unknown,
                    "io",
                    "writing was interrupted",
                )),
            }
        })
    }

    fn limits(&self) -> BatchLimits {
        TYPE.limits
    }
}

#[cfg(test)]
mod tests;
