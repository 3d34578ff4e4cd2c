//! `culvert audit`: verifies, exports and searches the audit log. It reads the data directory or the database directly, whether
//! a server runs or not, and writes nothing.

mod history;
mod proof;
mod traffic;
mod who;

pub(crate) use who::line_of;

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::{BoxFuture, Fault, Timestamp};
use culvert_store::{
    AuditError, AuditLog, AuditRow, Bound, NotedHead, Range, RangeError, StoreUrl,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{CommandType, Failure, say};
use culvert_installation::store_url;
use culvert_installation::{storage_settings_of, with_settings};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "audit",
    arguments,
    run,
};

/// Number of rows per read, of at most 256 KiB each.
const ROWS: u32 = 128;

fn arguments(command: Command) -> Command {
    proof::arguments(command)
        .about("Verify, export and search the audit log directly from the data directory or database")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            history::arguments(with_settings(Command::new("verify").about(
                "Verify the hash chain of the audit log; reports the first invalid event and exits with code 1",
            )))
            .arg(
                Arg::new("head")
                    .long("head")
                    .value_name("HEAD")
                    .help("An earlier head that the log must still contain; required to detect a truncated log"),
            )
            .arg(
                Arg::new("traffic")
                    .long("traffic")
                    .action(ArgAction::SetTrue)
                    .help("Compare the retained traffic log with its hourly records in the audit log too"),
            )
            .arg(
                Arg::new("accept-former")
                    .long("accept-former")
                    .action(ArgAction::SetTrue)
                    .requires("traffic")
                    .help("Accept that earlier records are of a file of events that was replaced or restored, and cannot be compared"),
            )
            .arg(
                Arg::new("accept-removed")
                    .long("accept-removed")
                    .action(ArgAction::SetTrue)
                    .requires("traffic")
                    .help("Accept that pieces of the traffic log were removed earlier than the retention in the settings removes them"),
            ),
        )
        .subcommand(
            with_settings(Command::new("who").about(
                "Show who did what to an object, one line per event, the oldest first; exits with code 1 if there is none",
            ))
            .arg(
                Arg::new("object")
                    .value_name("ID")
                    .required(true)
                    .help("ID of the object, such as `ep_…`"),
            )
            .arg(
                Arg::new("from")
                    .long("from")
                    .value_name("TIME|ID")
                    .help("First event, as an RFC 3339 time or an event ID [default: the oldest retained event]"),
            )
            .arg(
                Arg::new("to")
                    .long("to")
                    .value_name("TIME|ID")
                    .help("Last event, as an RFC 3339 time or an event ID [default: the latest]"),
            ),
        )
        .subcommand(
            with_settings(Command::new("export").about(
                "Export the audit log in commit order, one JSON object per line, with positions and hashes",
            ))
            .arg(
                Arg::new("from")
                    .long("from")
                    .value_name("TIME|ID")
                    .help("First event, as an RFC 3339 time or an event ID [default: the oldest retained event]"),
            )
            .arg(
                Arg::new("to")
                    .long("to")
                    .value_name("TIME|ID")
                    .help("Last event, as an RFC 3339 time or an event ID [default: the latest]"),
            )
            .arg(
                Arg::new("format")
                    .long("format")
                    .value_name("FORMAT")
                    .value_parser(["jsonl"])
                    .default_value("jsonl")
                    .help("Output format"),
            ),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((name, given)) = matches.subcommand() else {
            return Ok(());
        };
        let text = |name: &str| given.try_get_one::<String>(name).ok().flatten().cloned();
        // Checks the arguments before it opens anything.
        let head = match text("head") {
            Some(head) => Some(head.parse().map_err(|why| usage("head", why))?),
            None => None,
        };
        let from = bound("from", text("from"))?;
        let to = bound("to", text("to"))?;
        if name == "check-proof" {
            return proof::check(given);
        }
        let history = match name {
            "verify" => Some(history::Asked::read(given)?),
            _ => None,
        };
        let settings = storage_settings_of(given)?;
        if name == "key" {
            return proof::key(&settings);
        }
        let url = store_url(&settings);
        if let StoreUrl::Sqlite(path) = &url
            && !path.is_file()
        {
            return Err(Failure::Failed(format!(
                "no installation in `{}`; set its directory with `--data-dir`",
                settings.data_dir.display()
            )));
        }
        let log = AuditLog::open(&url).await.map_err(failed)?;
        let outcome = match name {
            "verify" => {
                let verified = verify(&log, head, history.as_ref()).await;
                match given.get_flag("traffic") {
                    true => match verified {
                        Ok(()) => {
                            let accepted = traffic::Accepted {
                                former: given.get_flag("accept-former"),
                                removed: given.get_flag("accept-removed"),
                            };
                            traffic::verify(&log, &url, &settings, accepted).await
                        }
                        failure => failure,
                    },
                    false => verified,
                }
            }
            "prove" => proof::prove(&log, &text("event").unwrap_or_default()).await,
            "checkpoint" => proof::checkpoint(&log).await,
            "who" => {
                let id = text("object").unwrap_or_default();
                who::run(&log, &id, (from.as_ref(), to.as_ref())).await
            }
            _ => export(&log, from.as_ref(), to.as_ref()).await,
        };
        log.close().await;
        outcome
    })
}

fn usage(flag: &str, why: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("`--{flag}`: {why}"))
}

fn failed(fault: Fault) -> Failure {
    Failure::Failed(fault.chain())
}

fn bound(flag: &str, text: Option<String>) -> Result<Option<Bound>, Failure> {
    let Some(text) = text else { return Ok(None) };
    if text.starts_with("ev_") {
        return Ok(Some(Bound::Event(text)));
    }
    match Timestamp::parse(&text) {
        Some(at) => Ok(Some(Bound::At(at))),
        None => Err(usage(flag, "must be an RFC 3339 time or an event ID")),
    }
}

async fn verify(
    log: &AuditLog,
    head: Option<NotedHead>,
    history: Option<&history::Asked>,
) -> Result<(), Failure> {
    let damaged = |error| match error {
        AuditError::Fault(fault) => failed(fault),
        found => Failure::Failed(found.to_string()),
    };
    let extent = log.verify(head).await.map_err(damaged)?;
    let beginning = log.verify_beginning().await.map_err(damaged)?;
    say(extent.summary(beginning))?;
    history::warn_of_continuation(log, history).await?;
    match history {
        Some(history) => history::verify(log, history).await,
        None => Ok(()),
    }
}

/// One line of an export. `hash` covers `previous`, the position and the fields below.
#[derive(Serialize)]
struct Line<'a> {
    seq: i64,
    hash: Option<&'a str>,
    previous: Option<&'a str>,
    happened_at_ns: i64,
    audience: &'a RawValue,
    event: &'a RawValue,
}

async fn range_of(
    log: &AuditLog,
    from: Option<&Bound>,
    to: Option<&Bound>,
) -> Result<Range, Failure> {
    let range = log.range(from, to, None).await;
    range.map_err(|error| match error {
        RangeError::Fault(fault) => failed(fault),
        unknown => Failure::Failed(unknown.to_string()),
    })
}

async fn export(log: &AuditLog, from: Option<&Bound>, to: Option<&Bound>) -> Result<(), Failure> {
    let range = range_of(log, from, to).await?;
    let mut after = range.first.saturating_sub(1);
    let mut previous: Option<(i64, Option<String>)> = None;
    loop {
        let rows = log.rows(after, range.last, ROWS).await.map_err(failed)?;
        if rows.is_empty() {
            return Ok(());
        }
        let mut text = Vec::new();
        for row in rows {
            let before = row.seq.saturating_sub(1);
            let link = match previous.take() {
                Some((seq, hash)) if seq == before => hash,
                _ => log.hash_at(before).await.map_err(failed)?,
            };
            if range.holds(Timestamp::from_unix_nanos(row.happened_at)) {
                write_line(&mut text, &row, link.as_deref())?;
            }
            after = row.seq;
            previous = Some((row.seq, row.hash));
        }
        // Writes a page in one call.
        culvert_command::print(&text)?;
    }
}

fn write_line(text: &mut Vec<u8>, row: &AuditRow, previous: Option<&str>) -> Result<(), Failure> {
    let unreadable = |error: serde_json::Error| {
        let seq = row.seq;
        Failure::Failed(format!(
            "event {seq} of the audit log is not valid JSON ({error}); run `culvert audit verify`"
        ))
    };
    let line = Line {
        seq: row.seq,
        hash: row.hash.as_deref(),
        previous,
        happened_at_ns: row.happened_at,
        audience: serde_json::from_str(&row.audience).map_err(unreadable)?,
        event: serde_json::from_str(&row.body).map_err(unreadable)?,
    };
    serde_json::to_writer(&mut *text, &line).map_err(unreadable)?;
    text.push(b'\n');
    Ok(())
}
