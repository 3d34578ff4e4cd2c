//! The log of an agent: where it goes, its format and its level.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use culvert_command::Failure;

/// Where the log goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogTo {
    /// To standard error, unless a screen is shown on the same terminal.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// To standard output.
    Stdout,
    /// To standard error.
    Stderr,
    /// To the end of this file.
    File(PathBuf),
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStyle {
    /// Text for people.
    Term,
    /// `name=value` pairs, with ngrok's names for time, level and message.
    Logfmt,
    /// A JSON object per line.
    Json,
}

/// The log that the user wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPlan {
    /// Where it goes.
    pub to: LogTo,
    /// Without a style: text on a terminal, otherwise JSON, or logfmt where the user chose the place.
    pub style: Option<LogStyle>,
    /// Without a level: `info`.
    pub level: Option<Level>,
}

impl LogTo {
    /// Parses `stdout`, `stderr`, `false` or the name of a file.
    pub fn parse(text: &str) -> Self {
        match text {
            "stdout" => Self::Stdout,
            "stderr" => Self::Stderr,
            "false" | "" => Self::Off,
            path => Self::File(path.into()),
        }
    }
}

impl LogStyle {
    /// Parses the name of a style. The error is a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "term" => Ok(Self::Term),
            "logfmt" => Ok(Self::Logfmt),
            "json" => Ok(Self::Json),
            other => Err(format!(
                "the log format must be term, logfmt or json, not `{other}`"
            )),
        }
    }
}

/// Parses a level, also under the names that ngrok uses. The error is a sentence without a full stop.
pub fn parse_level(text: &str) -> Result<Level, String> {
    match text {
        "trace" => Ok(Level::TRACE),
        "debug" => Ok(Level::DEBUG),
        "info" => Ok(Level::INFO),
        "warn" => Ok(Level::WARN),
        "error" | "crit" => Ok(Level::ERROR),
        other => Err(format!(
            "the log level must be debug, info, warn, error or crit, not `{other}`"
        )),
    }
}

impl LogPlan {
    /// Reads the values of the flags, or of the file's keys with the same names.
    pub fn read(
        to: Option<&str>,
        style: Option<&str>,
        level: Option<&str>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            to: to.map(LogTo::parse).unwrap_or_default(),
            style: style
                .map(LogStyle::parse)
                .transpose()
                .map_err(Failure::Usage)?,
            level: level.map(parse_level).transpose().map_err(Failure::Usage)?,
        })
    }

    /// Completes missing values from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            to: match self.to {
                LogTo::Auto => other.to,
                to => to,
            },
            style: self.style.or(other.style),
            level: self.level.or(other.level),
        }
    }

    /// Whether the log needs the terminal on which a screen would be shown.
    pub fn takes_the_terminal(&self) -> bool {
        match self.to {
            LogTo::Stdout => true,
            LogTo::Stderr => std::io::stderr().is_terminal(),
            LogTo::Auto | LogTo::Off | LogTo::File(_) => false,
        }
    }

    /// Starts logging. A second call in a process has no effect.
    pub fn start(&self, has_screen: bool) -> Result<(), Failure> {
        let (writer, is_terminal) = match &self.to {
            LogTo::Off => return Ok(()),
            LogTo::Auto if has_screen && std::io::stderr().is_terminal() => return Ok(()),
            LogTo::Auto | LogTo::Stderr => (
                BoxMakeWriter::new(std::io::stderr),
                std::io::stderr().is_terminal(),
            ),
            LogTo::Stdout => (
                BoxMakeWriter::new(std::io::stdout),
                std::io::stdout().is_terminal(),
            ),
            LogTo::File(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let file = file.with_context(|| format!("opening the log `{}`", path.display()))?;
                (BoxMakeWriter::new(Arc::new(file)), false)
            }
        };
        let style = self.style.unwrap_or(match (is_terminal, &self.to) {
            (true, _) => LogStyle::Term,
            (false, LogTo::Auto) => LogStyle::Json,
            (false, _) => LogStyle::Logfmt,
        });
        let level = self.level.unwrap_or(Level::INFO);
        let has_color = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
        let lines = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(level.as_str().to_ascii_lowercase()))
            .with_writer(writer)
            // A failure to write the log must not be reported to the log's own place.
            .log_internal_errors(false);
        let started = match style {
            LogStyle::Term => lines.with_ansi(has_color).try_init(),
            LogStyle::Json => lines.json().flatten_event(true).try_init(),
            LogStyle::Logfmt => lines.with_ansi(false).event_format(Logfmt).try_init(),
        };
        if started.is_err() {
            tracing::debug!("logging was set up before");
        }
        Ok(())
    }
}

/// Writes events as `t=… lvl=… msg=… name=value`.
struct Logfmt;

impl<S, N> FormatEvent<S, N> for Logfmt
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "eror",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "dbug",
            Level::TRACE => "trce",
        };
        let mut pairs = Pairs::default();
        event.record(&mut pairs);
        let now = jiff::Timestamp::now();
        let now = now.strftime("%Y-%m-%dT%H:%M:%S%.3f%z");
        write!(writer, "t={now} lvl={level} msg=")?;
        write_value(&mut writer, &pairs.message)?;
        writeln!(writer, "{}", pairs.others)
    }
}

/// The fields of an event.
#[derive(Default)]
struct Pairs {
    message: String,
    others: String,
}

impl Pairs {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
            return;
        }
        // Writing to a string cannot fail.
        write!(self.others, " {}=", field.name()).ok();
        write_value(&mut self.others, value).ok();
    }
}

impl Visit for Pairs {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
}

/// Writes a value, in quotation marks if it needs them.
fn write_value(to: &mut impl fmt::Write, value: &str) -> fmt::Result {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '"' && c != '=';
    if !value.is_empty() && value.chars().all(is_plain) {
        return to.write_str(value);
    }
    to.write_char('"')?;
    for c in value.chars() {
        match c {
            '"' => to.write_str("\\\"")?,
            '\\' => to.write_str("\\\\")?,
            '\n' => to.write_str("\\n")?,
            '\r' => to.write_str("\\r")?,
            '\t' => to.write_str("\\t")?,
            c if c.is_control() => write!(to, "\\u{:04x}", c as u32)?,
            c => to.write_char(c)?,
        }
    }
    to.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_if_necessary() {
        let written = |value: &str| {
            let mut text = String::new();
            write_value(&mut text, value).unwrap();
            text
        };
        assert_eq!(written("https://a.test:1/x?y"), "https://a.test:1/x?y");
        assert_eq!(written("a=b"), "\"a=b\"");
        assert_eq!(written(""), "\"\"");
        assert_eq!(
            written("a \"b\"\n\u{1b}[0m"),
            "\"a \\\"b\\\"\\n\\u001b[0m\""
        );
    }

    #[test]
    fn log_destinations_styles_and_levels_are_parsed() {
        assert_eq!(LogTo::parse("stdout"), LogTo::Stdout);
        assert_eq!(LogTo::parse("false"), LogTo::Off);
        assert_eq!(LogTo::parse("a.log"), LogTo::File("a.log".into()));
        assert!(LogStyle::parse("xml").unwrap_err().contains("`xml`"));
        assert_eq!(parse_level("crit"), Ok(Level::ERROR));
        assert!(parse_level("loud").is_err());
    }
}
