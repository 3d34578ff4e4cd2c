//! `culvert doctor`: examines an installation and says how to mend each problem. It changes nothing.

mod certificates;
mod listeners;
mod names;
mod storage;

use std::io::IsTerminal;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::{BoxFuture, SystemClock};
use culvert_store::Depth;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{CommandType, Failure, say};
use culvert_installation::certificate_checks::CertificateChecks;
use culvert_installation::config::Role;
use culvert_installation::{settings_of, with_settings};
use culvert_tls::acme::check::{self, Level};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "doctor",
    arguments,
    run,
};

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    /// What was examined: `data`, `key`, `copy`, `store`, `grants`, `policies`, `clock`, `listeners`, `dns`, `certificates`,
    /// `services`.
    area: &'static str,
    #[serde(serialize_with = "name_of")]
    level: Level,
    /// One clause without a period.
    text: String,
    /// What was seen: addresses, a status, the message of another party.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<String>,
    /// What to do, unless the level is [`Level::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

fn name_of<S: Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(level.name())
}

/// The findings so far.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, area: &'static str, text: impl Into<String>) {
        self.add(area, Level::Ok, text.into(), None);
    }

    fn warn(&mut self, area: &'static str, text: impl Into<String>, mend: impl Into<String>) {
        self.add(area, Level::Warn, text.into(), Some(mend.into()));
    }

    fn fail(&mut self, area: &'static str, text: impl Into<String>, mend: impl Into<String>) {
        self.add(area, Level::Fail, text.into(), Some(mend.into()));
    }

    fn add(&mut self, area: &'static str, level: Level, text: String, mend: Option<String>) {
        self.0.push(Finding {
            area,
            level,
            text,
            evidence: Vec::new(),
            mend,
        });
    }

    /// A finding of the checks that the server has too.
    fn found(&mut self, area: &'static str, found: check::Finding) {
        self.0.push(Finding {
            area,
            level: found.level,
            text: found.text,
            evidence: found.evidence,
            mend: found.mend,
        });
    }

    fn count(&self, level: Level) -> usize {
        let of_level = |finding: &&Finding| finding.level == level;
        self.0.iter().filter(of_level).count()
    }
}

fn arguments(command: Command) -> Command {
    with_settings(command.about(
        "Examine an installation: data, keys, store, clock, listeners, DNS and certificates; exits with 1 if something does not work",
    ))
    .arg(
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the findings as JSON"),
    )
    .arg(
        Arg::new("deep")
            .long("deep")
            .action(ArgAction::SetTrue)
            .help("Check the whole database files; takes minutes if they are large"),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let settings = settings_of(&matches)?;
        let mut report = Report::default();
        let depth = match matches.get_flag("deep") {
            true => Depth::Deep,
            false => Depth::Quick,
        };
        storage::examine(&settings, &SystemClock, depth, &mut report).await;
        certificates::examine(&settings, &SystemClock, &mut report);
        let checks = CertificateChecks::new(&settings, std::iter::empty(), Arc::new(SystemClock));
        let has_edge = settings.roles.contains(&Role::Edge);
        certificates::examine_authority(&checks, has_edge, &mut report).await;
        listeners::examine(&settings, &mut report).await;
        names::examine(&settings, &checks, &mut report).await;
        if matches.get_flag("json") {
            say(format_args!("{:#}", json!({"findings": report.0})))?;
        } else {
            print(&report)?;
        }
        match report.count(Level::Fail) {
            0 => Ok(()),
            1 => Err(Failure::Failed("one check failed".into())),
            n => Err(Failure::Failed(format!("{n} checks failed"))),
        }
    })
}

fn print(report: &Report) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    for finding in &report.0 {
        let (word, colour) = match finding.level {
            Level::Ok => ("ok", "32"),
            Level::Warn => ("warn", "33"),
            Level::Fail => ("FAIL", "31"),
        };
        let word = match is_terminal {
            true => format!("\u{1b}[{colour}m{word:4}\u{1b}[0m"),
            false => format!("{word:4}"),
        };
        say(format_args!(
            "{word}  {:12}  {}",
            finding.area, finding.text
        ))?;
        let is_in_order = finding.level == Level::Ok;
        for seen in finding.evidence.iter().filter(|_| !is_in_order) {
            say(format_args!("                    {seen}"))?;
        }
        if let Some(mend) = &finding.mend {
            say(format_args!("                    To fix it: {mend}."))?;
        }
    }
    say(format_args!(
        "{} in order, {} warnings, {} failed",
        report.count(Level::Ok),
        report.count(Level::Warn),
        report.count(Level::Fail)
    ))
}
