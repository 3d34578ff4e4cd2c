//! Logging, which is set up once per process.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::reload;

use culvert_installation::config::{Invalid, Log, LogFormat};

/// Replaces the filter of the running logger.
type Retune = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

static RETUNE: OnceLock<Retune> = OnceLock::new();

/// Starts logging to standard error. A second call has no effect.
pub fn start(log: &Log) -> Result<(), Invalid> {
    let text = match log.format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(log)?)
        .with_writer(std::io::stderr)
        // Otherwise, a failure to write the log, as on a full disk, would be reported on standard error, which panics
        // if the log goes there.
        .log_internal_errors(false)
        .with_span_events(FmtSpan::NONE);
    let (started, retune): (_, Retune) = if text {
        let lines = lines
            .with_ansi(std::io::stderr().is_terminal())
            .with_filter_reloading();
        let handle = lines.reload_handle();
        let retune = move |filter| handle.reload(filter);
        (lines.try_init(), Box::new(retune))
    } else {
        let lines = lines.json().flatten_event(true).with_filter_reloading();
        let handle = lines.reload_handle();
        let retune = move |filter| handle.reload(filter);
        (lines.try_init(), Box::new(retune))
    };
    match started {
        Ok(()) => drop(RETUNE.set(retune)),
        // A subscriber already exists, because tests start several servers in one process.
        Err(_) => tracing::debug!("logging was set up before"),
    }
    Ok(())
}

/// Applies another `log.level`.
pub fn reload(log: &Log) -> Result<(), Invalid> {
    let filter = filter(log)?;
    if let Some(retune) = RETUNE.get() {
        retune(filter).map_err(|error| Invalid(format!("cannot change `log.level`: {error}")))?;
    }
    Ok(())
}

pub(crate) fn filter(log: &Log) -> Result<EnvFilter, Invalid> {
    EnvFilter::builder()
        .parse(&log.level)
        .map_err(|error| Invalid(format!("`log.level` is invalid: {error}")))
}
