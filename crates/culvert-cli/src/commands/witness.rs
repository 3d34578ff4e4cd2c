//! `culvert witness`: a witness of transparency logs (C2SP `tlog-witness`), for another machine and another person than those
//! of the log. It signs only heads that extend the one it signed before.

mod connections;
mod serve;
mod state;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::names::escaped;
use culvert_base::{BoxFuture, Entropy, OsEntropy};
use culvert_installation::keys::write_private;
use culvert_tlog::{KeyType, SigningKey, VerifierKey, continuation};

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
                .about("Add a log, or the next key of a log for a rotation; a running witness needs no restart")
                .arg(
                    Arg::new("key")
                        .value_name("KEY")
                        .required(true)
                        .help("Key of the log, as `culvert audit key` prints it"),
                )
                .arg(
                    Arg::new("replace")
                        .long("replace")
                        .action(ArgAction::SetTrue)
                        .help("Trust no other key of the log from now on, instead of from the first head that this key signs"),
                )
                .arg(
                    Arg::new("origin")
                        .long("origin")
                        .value_name("ORIGIN")
                        .help("Continuation of the log after a restore, such as `log.example/audit/ac_1+1`; without this, the log that the key names"),
                )
                .arg(state()),
        )
        .subcommand(
            Command::new("remove")
                .about("Sign no more heads of a log; the witness remembers the last one, in case the log is added again")
                .arg(
                    Arg::new("origin")
                        .value_name("ORIGIN")
                        .required(true)
                        .help("Name of the log: the text of its key before the first `+`"),
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
                        .help("Address to listen on; port 0 selects a free port"),
                )
                .arg(
                    Arg::new("tls-certificate")
                        .long("tls-certificate")
                        .value_name("FILE")
                        .value_parser(value_parser!(PathBuf))
                        .requires("tls-key")
                        .help("File with a certificate chain in PEM, to serve over TLS; SIGHUP reads it again"),
                )
                .arg(
                    Arg::new("tls-key")
                        .long("tls-key")
                        .value_name("FILE")
                        .value_parser(value_parser!(PathBuf))
                        .requires("tls-certificate")
                        .help("File with the private key of the certificate, in PEM"),
                )
                .arg(
                    Arg::new("new-state")
                        .long("new-state")
                        .action(ArgAction::SetTrue)
                        .help("Begin with the state file of another key, or without one; the witness then does not know the heads that it signed before"),
                ),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((name, given)) = matches.subcommand() else {
            return Ok(());
        };
        let state = given.get_one::<PathBuf>("state").cloned();
        let state = WitnessState::at(state.unwrap_or_default());
        match name {
            "add" => add(&state, given),
            "remove" => {
                let origin = given.get_one::<String>("origin").cloned();
                let origin = origin.unwrap_or_default();
                let shown = escaped(&origin);
                match state.remove(&origin).map_err(failed)? {
                    true => say(format_args!("the witness signs no more heads of `{shown}`")),
                    false => Err(Failure::Failed(format!(
                        "the witness does not know the log `{shown}`"
                    ))),
                }
            }
            _ => serve(state, given).await,
        }
    })
}

fn add(state: &WitnessState, given: &ArgMatches) -> Result<(), Failure> {
    let text = given.get_one::<String>("key").cloned().unwrap_or_default();
    let key: VerifierKey = text
        .parse()
        .map_err(|why| Failure::Usage(format!("`KEY`: {why}")))?;
    if key.key_type() != KeyType::Note {
        let why = "`KEY`: it is the key of a witness, not of a log";
        return Err(Failure::Usage(why.to_owned()));
    }
    let origin = given.get_one::<String>("origin").map(String::as_str);
    let origin = origin.unwrap_or(key.name());
    let shown = escaped(origin);
    if continuation(origin).0 != key.name() {
        let why =
            format!("`--origin`: `{shown}` is not a continuation of the log that the key names");
        return Err(Failure::Usage(why));
    }
    let in_place = given.get_flag("replace");
    state.add(origin, &key, in_place).map_err(failed)?;
    say(format_args!("the witness knows the log `{shown}`"))
}

async fn serve(state: WitnessState, given: &ArgMatches) -> Result<(), Failure> {
    let path = |name: &str| given.get_one::<PathBuf>(name).cloned();
    let name = given.get_one::<String>("name").map(String::as_str);
    let key_file = path("key-file").unwrap_or_default();
    let (key, is_made) = key(&key_file, name)?;
    let is_new = is_made || given.get_flag("new-state");
    if !state.claim(key.verifier(), is_new).map_err(failed)? {
        return Err(Failure::Failed(format!(
            "the state is not that of the witness with the key `{}`: it was lost or exchanged, and another history could be \
             signed without it. Restore it, or give `--new-state`",
            key_file.display()
        )));
    }
    let listen = given.get_one::<SocketAddr>("listen").copied();
    let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8425)));
    let files = path("tls-certificate").zip(path("tls-key"));
    let tls = files.map(|(certificate, key)| serve::TlsFiles { certificate, key });
    serve::run(state, key, listen, tls).await
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// The key of the file, and whether it was made because there was none.
fn key(path: &PathBuf, name: Option<&str>) -> Result<(SigningKey, bool), Failure> {
    let shown = path.display();
    let mut is_made = false;
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
            is_made = true;
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
        _ => Ok((key, is_made)),
    }
}
