//! `culvert witness`: a witness of transparency logs (C2SP `tlog-witness`), for another machine and another person than those
//! of the log. It signs only heads that extend the one it signed before.

mod serve;
mod state;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use culvert_base::{BoxFuture, Entropy, OsEntropy};
use culvert_installation::keys::write_private;
use culvert_tlog::{KeyType, SigningKey, VerifierKey};

use super::{CommandType, Failure, say};
use state::WitnessState;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "witness",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let state = || {
        Arg::new("state")
            .long("state")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .default_value("witness-state.json")
            .help("File with the logs and their latest signed heads")
    };
    command
        .about("Watch the audit logs of other servers: sign that their history was only added to")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("add")
                .about("Add a log, or another key of a log after a rotation; a running witness needs no restart")
                .arg(
                    Arg::new("key")
                        .value_name("KEY")
                        .required(true)
                        .help("Key of the log, as `culvert audit key` prints it"),
                )
                .arg(state()),
        )
        .subcommand(
            Command::new("serve")
                .about("Serve requests of logs; prints the key of the witness, for `audit.witnesses` and `--witness-key`")
                .arg(state())
                .arg(
                    Arg::new("key-file")
                        .long("key-file")
                        .value_name("FILE")
                        .value_parser(value_parser!(PathBuf))
                        .default_value("witness.key")
                        .help("File with the key of the witness"),
                )
                .arg(
                    Arg::new("name")
                        .long("name")
                        .value_name("NAME")
                        .help("Name of the witness, such as `witness.example.com/1`; needed once, to make its key"),
                )
                .arg(
                    Arg::new("listen")
                        .long("listen")
                        .value_name("ADDRESS")
                        .value_parser(value_parser!(SocketAddr))
                        .default_value("127.0.0.1:8425")
                        .help("Address to listen on, without TLS; port 0 selects a free port"),
                ),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((name, given)) = matches.subcommand() else {
            return Ok(());
        };
        let path = |name: &str| given.get_one::<PathBuf>(name).cloned().unwrap_or_default();
        let state = WitnessState::at(path("state"));
        if name == "add" {
            let text = given.get_one::<String>("key").cloned().unwrap_or_default();
            let key: VerifierKey = text
                .parse()
                .map_err(|why| Failure::Usage(format!("`KEY`: {why}")))?;
            if key.key_type() != KeyType::Note {
                let why = "`KEY`: it is the key of a witness, not of a log";
                return Err(Failure::Usage(why.to_owned()));
            }
            state.add(&key).map_err(failed)?;
            return say(format_args!("the witness knows the log `{}`", key.name()));
        }
        let name = given.get_one::<String>("name").map(String::as_str);
        let key = key(&path("key-file"), name)?;
        let listen = given.get_one::<SocketAddr>("listen").copied();
        let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8425)));
        serve::run(state, key, listen).await
    })
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// The key of the file; makes it if there is none.
fn key(path: &PathBuf, name: Option<&str>) -> Result<SigningKey, Failure> {
    let shown = path.display();
    let key = match std::fs::read_to_string(path) {
        Ok(text) => SigningKey::parse(text.trim_end())
            .map_err(|why| Failure::Failed(format!("`{shown}`: {why}")))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = name.ok_or_else(|| {
                Failure::Usage(format!(
                    "there is no `{shown}`; name the witness with `--name`"
                ))
            })?;
            let entropy: &dyn Entropy = &OsEntropy;
            let key = SigningKey::new(name, KeyType::Cosignature, entropy.bytes())
                .map_err(|why| Failure::Usage(format!("`--name`: {why}")))?;
            let text = format!("{}\n", &*key.secret_text());
            write_private(path, &text).map_err(|error| Failure::Failed(format!("{error:#}")))?;
            key
        }
        Err(error) => return Err(Failure::Failed(format!("reading `{shown}`: {error}"))),
    };
    if key.verifier().key_type() != KeyType::Cosignature {
        return Err(Failure::Failed(format!(
            "`{shown}` is not the key of a witness"
        )));
    }
    match name {
        Some(name) if name != key.verifier().name() => Err(Failure::Usage(format!(
            "`{shown}` is the key of `{}`; leave out `--name`, or give another `--key-file`",
            key.verifier().name()
        ))),
        _ => Ok(key),
    }
}
