//! `culvert audit prove`, `check-proof`, `checkpoint` and `key`: proofs of events that hold without a server.

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::Timestamp;
use culvert_base::names::{escaped, is_deceptive};
use culvert_installation::audit_key::AuditKey;
use culvert_installation::config::Settings;
use culvert_installation::with_settings;
use culvert_store::{AuditLog, AuditRecord, ProveError};
use culvert_tlog::{InclusionProof, Policy, SignedCheckpoint, TreeHash, VerifierKey, continuation};
use std::io::Write;

use super::{failed, usage};
use crate::commands::{Failure, say};

/// Adds the commands.
pub(super) fn arguments(command: Command) -> Command {
    command
        .subcommand(
            with_settings(Command::new("prove").about(
                "Print the proof that the audit log has an event, as a text that `check-proof` verifies without a server",
            ))
            .arg(
                Arg::new("event")
                    .value_name("EVENT")
                    .required(true)
                    .help("ID of the event, `ev_…`"),
            ),
        )
        .subcommand(trust(
            Command::new("check-proof")
                .about("Verify a proof and print its event; needs no server, no data and no network")
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .required(true)
                        .help("File with the proof"),
                ),
        ))
        .subcommand(with_settings(Command::new("checkpoint").about(
            "Print the newest head of the audit log that enough witnesses signed (`audit.quorum`), or the latest signed one if there is none, to be kept elsewhere",
        )))
        .subcommand(with_settings(Command::new("key").about(
            "Print the key that verifies the signed heads of the audit log, from `audit.key` in the data directory",
        )))
}

/// The options that say whose signatures count.
pub(super) fn trust(command: Command) -> Command {
    command
        .arg(
            Arg::new("origin-key")
                .long("origin-key")
                .value_name("KEY")
                .action(ArgAction::Append)
                .help(
                    "Key of the log, as `culvert audit key` prints it; repeatable after a rotation",
                ),
        )
        .arg(
            Arg::new("origin")
                .long("origin")
                .value_name("ORIGIN")
                .help(
                    "Origin of the log, if it ended at a restore and is continued: such as `…/audit/ac_…+1` [default: the name of the key]",
                ),
        )
        .arg(
            Arg::new("witness-key")
                .long("witness-key")
                .value_name("KEY")
                .action(ArgAction::Append)
                .help("Key of a witness; repeatable"),
        )
        .arg(
            Arg::new("quorum")
                .long("quorum")
                .value_name("N")
                .value_parser(clap::value_parser!(u16))
                .help("How many of the witnesses must have signed [default: all of them]"),
        )
}

/// Whose signatures count; without a key of the log, none is demanded.
pub(super) fn policy(given: &ArgMatches) -> Result<Policy, Failure> {
    let keys = |name: &str| {
        let texts = given.get_many::<String>(name).into_iter().flatten();
        let key = |text: &String| text.parse().map_err(|why| usage(name, why));
        texts.map(key).collect::<Result<Vec<VerifierKey>, _>>()
    };
    let witness_keys = keys("witness-key")?;
    let quorum = given.get_one::<u16>("quorum").copied().map(usize::from);
    if quorum.is_some_and(|quorum| quorum > witness_keys.len()) {
        return Err(usage("quorum", "is more than there are `--witness-key`"));
    }
    let origin_keys = keys("origin-key")?;
    // Without it no signature is verified.
    if origin_keys.is_empty() && !witness_keys.is_empty() {
        return Err(usage("witness-key", "needs `--origin-key`"));
    }
    Ok(Policy {
        origin_keys,
        origin: given.get_one::<String>("origin").cloned(),
        quorum: quorum.unwrap_or(witness_keys.len()),
        witness_keys,
    })
}

/// The bytes of a file, at most `bytes_max` of them.
pub(super) fn file(path: &str, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let read = || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(bytes_max)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let file = std::fs::File::open(path)?;
        std::io::Read::read_to_end(&mut std::io::Read::take(file, limit), &mut bytes)?;
        Ok(bytes)
    };
    read()
        .map_err(|error: std::io::Error| Failure::Failed(format!("cannot read `{path}`: {error}")))
}

pub(super) async fn prove(log: &AuditLog, event: &str) -> Result<(), Failure> {
    let proof = log.prove(event, None).await.map_err(|error| match error {
        ProveError::Fault(fault) => failed(fault),
        refused => Failure::Failed(refused.to_string()),
    })?;
    let origin = &proof.signed.checkpoint().origin;
    let (ended, n) = continuation(origin);
    if n > 0 {
        // The proof alone is printed to standard output.
        drop(writeln!(
            std::io::stderr(),
            "the log `{ended}` ended at a restore; `check-proof` accepts this proof with `--origin {origin}`"
        ));
    }
    print(&proof.to_string())
}

pub(super) async fn checkpoint(log: &AuditLog) -> Result<(), Failure> {
    match log.tree().await.map_err(failed)?.published() {
        Some(head) => print(&head.to_string()),
        None => Err(Failure::Failed(
            "the audit log has no signed head yet; `culvert serve` signs it".to_owned(),
        )),
    }
}

pub(super) fn key(settings: &Settings) -> Result<(), Failure> {
    let problem = |error: anyhow::Error| Failure::Failed(format!("{error:#}"));
    let source = AuditKey::open(settings).map_err(problem)?;
    let key = source.load().map_err(problem)?;
    let missing = || {
        let shown = source.shown();
        Failure::Failed(format!("there is no {shown}; `culvert serve` makes it"))
    };
    say(key.ok_or_else(missing)?.verifier())
}

/// `check-proof`.
pub(super) fn check(given: &ArgMatches) -> Result<(), Failure> {
    let policy = policy(given)?;
    if policy.origin_keys.is_empty() {
        return Err(usage("origin-key", "is required"));
    }
    let path = given.get_one::<String>("file").cloned().unwrap_or_default();
    let bytes = file(&path, culvert_tlog::PROOF_BYTES_MAX)?;
    // What comes from the file may be anyone's text.
    let refused = |why: &dyn std::fmt::Display| {
        let why = why.to_string();
        Failure::Failed(format!("`{path}`: {}", escaped(&why)))
    };
    let proof = InclusionProof::parse(&bytes).map_err(|error| refused(&error))?;
    let row = proof.extra.as_deref().unwrap_or_default();
    let witnesses = proof
        .verify(TreeHash::leaf(row), &policy)
        .map_err(|error| refused(&error))?;
    let record = AuditRecord::parse(row);
    let record = record.ok_or_else(|| refused(&"the proof is not of a row of an audit log"))?;
    let head = proof.signed.checkpoint();
    say(format_args!(
        "the proof holds: event={} type={} position={} origin={} tree_size={}{}",
        escaped(&record.id),
        escaped(&record.kind),
        record.seq,
        escaped(&head.origin),
        head.size,
        escaped(&named(&witnesses))
    ))?;
    say(escaped_json(&record.body))
}

/// A text in which what a terminal would not show as it is, is escaped as in JSON: in JSON, the meaning stays.
fn escaped_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_deceptive(character) {
            let mut units = [0; 2];
            let units = character.encode_utf16(&mut units).iter();
            shown.extend(units.map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The witnesses that signed, as the end of a line.
pub(super) fn named(witnesses: &[(String, u64)]) -> String {
    let named = |(name, at): &(String, u64)| {
        let at =
            Timestamp::from_unix_seconds(i64::try_from(*at).unwrap_or(i64::MAX / 1_000_000_000));
        format!(" witness={name}@{}", at.to_millis_text())
    };
    witnesses.iter().map(named).collect()
}

/// Reads a file with a checkpoint.
pub(super) fn read_checkpoint(path: &str) -> Result<SignedCheckpoint, Failure> {
    let bytes = file(path, culvert_tlog::NOTE_BYTES_MAX)?;
    SignedCheckpoint::parse(&bytes).map_err(|why| Failure::Failed(format!("`{path}`: {why}")))
}

fn print(text: &str) -> Result<(), Failure> {
    culvert_command::print(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_shown_without_commands_to_a_terminal() {
        let event = "{\"a\":\"\u{9b}31m \u{7f}\u{202e}\u{e0041}\u{fffd}é\"}";
        let shown = escaped_json(event);
        assert_eq!(
            shown,
            "{\"a\":\"\\u009b31m \\u007f\\u202e\\udb40\\udc41\u{fffd}é\"}"
        );
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(event));
        assert_eq!(
            escaped_json("\u{1b}]0;x\u{7}\n"),
            "\\u001b]0;x\\u0007\\u000a"
        );
    }
}
