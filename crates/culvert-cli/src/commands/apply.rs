//! `culvert apply -f PATH`: makes the server match files.

use std::collections::HashMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;
use culvert_command::environment;

use super::api::{client_of, with_client};
use super::{CommandType, Failure, say};
use crate::apply::{self, Plan, Selector};
use crate::client::Client;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "apply",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    with_files(command.about("Make the server match files with objects of the API"))
        .arg(flag("yes", "Do not ask before changes").short('y'))
        .arg(flag("dry-run", "Print the changes and make none"))
        .arg(flag(
            "detailed-exitcode",
            "With --dry-run: exit with 3 if there are changes",
        ))
}

/// Adds the flags that choose files, and those of the API.
pub(super) fn with_files(command: Command) -> Command {
    with_client(command)
        .arg(
            Arg::new("file")
                .short('f')
                .long("file")
                .required(true)
                .value_name("PATH")
                .action(ArgAction::Append)
                .value_parser(value_parser!(PathBuf))
                .help("File or directory with YAML or JSON; may be repeated"),
        )
        .arg(
            Arg::new("selector")
                .short('l')
                .long("selector")
                .value_name("KEY=VALUE,…")
                .value_parser(Selector::parse)
                .help("Only objects with these labels"),
        )
        .arg(
            Arg::new("prune")
                .long("prune")
                .action(ArgAction::SetTrue)
                .requires("selector")
                .help("Delete objects with the labels of --selector that no file has"),
        )
        .arg(
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FORMAT")
                .value_parser(["text", "json"])
                .default_value("text")
                .help("Output format"),
        )
}

/// Reads the files and plans the changes.
pub(super) async fn plan(matches: &ArgMatches) -> Result<(Client, Plan), Failure> {
    let paths: Vec<PathBuf> = matches
        .get_many("file")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let selector = matches
        .get_one::<Selector>("selector")
        .cloned()
        .unwrap_or_default();
    let environment: HashMap<String, String> = environment();
    let manifests = apply::load(&paths, &environment, &selector).map_err(Failure::Failed)?;
    let client = client_of(matches)?;
    let prune = matches.get_flag("prune").then_some(&selector);
    let plan = apply::plan(&client, manifests, prune).await?;
    Ok((client, plan))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let is_dry = matches.get_flag("dry-run");
        if matches.get_flag("detailed-exitcode") && !is_dry {
            return Err(Failure::Usage(
                "`--detailed-exitcode` needs `--dry-run`".into(),
            ));
        }
        let is_json = matches
            .get_one::<String>("output")
            .is_some_and(|it| it == "json");
        let (client, plan) = plan(&matches).await?;
        if is_dry {
            show(&plan, is_json)?;
            return match matches.get_flag("detailed-exitcode") && !plan.is_empty() {
                true => Err(Failure::Differs),
                false => Ok(()),
            };
        }
        if !is_json {
            show(&plan, false)?;
        }
        if !plan.is_empty() && !matches.get_flag("yes") && !is_confirmed()? {
            return Err(Failure::Failed("nothing was changed".into()));
        }
        let mut said = Ok(());
        let results = apply::execute(&client, &plan, |line| {
            if !is_json && said.is_ok() {
                said = say(line);
            }
        });
        let results = results.await;
        said?;
        if is_json {
            say(format_args!("{:#}", apply::as_json(&plan, Some(&results))))?;
        }
        match results.failures() {
            0 => Ok(()),
            failures => Err(Failure::Failed(format!(
                "{failures} objects were not changed; run the command again when the causes are gone"
            ))),
        }
    })
}

/// Prints the plan.
pub(super) fn show(plan: &Plan, is_json: bool) -> Result<(), Failure> {
    match is_json {
        true => say(format_args!("{:#}", apply::as_json(plan, None))),
        false => say(apply::as_text(plan).trim_end()),
    }
}

fn is_confirmed() -> Result<bool, Failure> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        let why = "standard input is no terminal to confirm at; use `--yes` or `--dry-run`";
        return Err(Failure::Usage(why.into()));
    }
    let mut line = String::new();
    let asked = write!(std::io::stderr(), "Make these changes? [y/N] ")
        .and_then(|()| input.lock().read_line(&mut line));
    asked.map_err(|error| Failure::Failed(format!("cannot read the answer: {error}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
