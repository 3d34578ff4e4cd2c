//! `culvert doctor`: examines an installation and says how to mend each problem. It changes nothing there. With a URL it
//! examines what clients see there.

mod certificates;
mod client;
mod listeners;
mod names;
mod report;
mod storage;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::names::escaped;
use culvert_base::{BoxFuture, SystemClock};
use culvert_store::Depth;
use serde_json::json;

use self::report::Report;
use super::{CommandType, Failure, say};
use culvert_installation::certificate_checks::CertificateChecks;
use culvert_installation::config::Role;
use culvert_installation::{settings_of, with_settings};
use culvert_tls::acme::check::Level;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "doctor",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    with_settings(command.about(
        "Examine an installation: data, keys, store, clock, listeners, DNS and certificates; or a URL as its clients see it. Exits with 1 if something does not work",
    ))
    .arg(
        Arg::new("url")
            .value_name("URL")
            .help("Examine this URL instead: name, TLS of new and old clients, HTTP/1.0, HTTP/1.1, HTTP/2, WebSocket, upgrades and an upload"),
    )
    .arg(
        Arg::new("connect")
            .long("connect")
            .value_name("ADDRESS")
            .requires("url")
            .value_parser(value_parser!(SocketAddr))
            .help("Connect to this IP address and port instead of those of the URL"),
    )
    .arg(
        Arg::new("upload-mib")
            .long("upload-mib")
            .value_name("MIB")
            .requires("url")
            .default_value("8")
            .value_parser(value_parser!(u32).range(0..=4096))
            .help("Size of the body that is sent to the URL with POST, in MiB; 0 to send none"),
    )
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
        if let Some(url) = matches.get_one::<String>("url") {
            let mib = matches.get_one::<u32>("upload-mib").copied();
            let wanted = client::Examination {
                url,
                connect: matches.get_one("connect").copied(),
                upload_bytes: u64::from(mib.unwrap_or(0)) << 20,
            };
            client::examine(&wanted, &settings, &mut report).await?;
            return conclude(&report, matches.get_flag("json"));
        }
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
        conclude(&report, matches.get_flag("json"))
    })
}

/// Prints the findings. The error says how many failed.
fn conclude(report: &Report, as_json: bool) -> Result<(), Failure> {
    if as_json {
        say(format_args!("{:#}", json!({"findings": report.0})))?;
    } else {
        print(report)?;
    }
    match report.count(Level::Fail) {
        0 => Ok(()),
        1 => Err(Failure::Failed("one check failed".into())),
        n => Err(Failure::Failed(format!("{n} checks failed"))),
    }
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
            finding.area,
            // It may quote a server, whose control characters a terminal would obey.
            escaped(&finding.text)
        ))?;
        let is_in_order = finding.level == Level::Ok;
        for seen in finding.evidence.iter().filter(|_| !is_in_order) {
            say(format_args!("                    {}", escaped(seen)))?;
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
