//! The command line: the commands of all crates, and those that need all others, with one file for each.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Arg, Command};

pub mod complete;
pub mod completions;
pub mod demo;
mod examples;
pub mod man;

use culvert_cli::linked::Linked;
use culvert_command::version;
pub use culvert_command::{CommandType, Failure};

/// The commands of this crate, sorted by name.
pub static ALL: &[&CommandType] = &[&complete::TYPE, &completions::TYPE, &demo::TYPE, &man::TYPE];

/// Every command of the program, sorted by name.
pub fn commands() -> &'static [&'static CommandType] {
    static COMMANDS: LazyLock<Vec<&CommandType>> = LazyLock::new(|| {
        let mut commands = [
            culvert_agent::commands::ALL,
            culvert_cli::commands::of(LINKED),
            culvert_server::commands::ALL,
            &[&culvert_admin::TYPE],
            ALL,
        ]
        .concat();
        commands.sort_by_key(|command| command.name);
        commands
    });
    &COMMANDS
}

/// What the commands of users need of the control plane.
const LINKED: Linked = Linked {
    operations: culvert_control::operation_specs,
    collection_doc: culvert_control::collection_doc,
    catalogue: culvert_control::catalogue,
    policy_misuses: |url, seal, now| {
        Box::pin(async move { culvert_control::policy_misuses(&url, &seal, now).await })
    },
    check_settings: culvert_server::server::check::check,
};

/// The commands in the order of the help text, by purpose. Others follow them.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Server",
        &[
            "serve", "config", "health", "doctor", "admin", "audit", "witness", "upgrade",
        ],
    ),
    ("Agent", &["http", "tls", "tcp", "start"]),
    (
        "Manage",
        &[
            "login", "logout", "whoami", "api", "apply", "diff", "policy", "import",
        ],
    ),
    ("See", &["status", "events", "demo"]),
    (
        "Install",
        &[
            "setup",
            "service",
            "completions",
            "man",
            "openapi",
            "version",
        ],
    ),
];

/// Parses the arguments and runs the command.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let root = command();
    let mut arguments: Vec<OsString> = arguments.collect();
    let first = arguments.get(1).and_then(|it| it.to_str());
    if first.is_some_and(|first| is_short(&root, first)) {
        arguments.insert(1, "api".into());
    }
    culvert_command::run(root, commands(), arguments.into_iter())
}

/// Whether a first word stands for an operation of `culvert api`: it is a collection, and no command.
fn is_short(root: &Command, first: &str) -> bool {
    let api = root.find_subcommand("api");
    let collection = api.and_then(|api| api.find_subcommand(first));
    root.find_subcommand(first).is_none() && collection.is_some_and(Command::has_subcommands)
}

/// The words of a command line, with `api` where it is short.
fn expanded(root: &Command, words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if words.first().is_some_and(|first| is_short(root, first)) {
        words.insert(0, "api".to_owned());
    }
    words
}

/// The collections that may follow `culvert`, with their first line of help.
fn collections(root: &Command) -> Vec<(String, String)> {
    let api = root.find_subcommand("api");
    let all = api.into_iter().flat_map(Command::get_subcommands);
    let name = |it: &Command| it.get_name().to_owned();
    let about = |it: &Command| it.get_about().map(ToString::to_string).unwrap_or_default();
    all.filter(|it| is_short(root, it.get_name()))
        .map(|it| (name(it), about(it)))
        .collect()
}

/// The whole command line. Completions and the reference use it too.
pub fn command() -> Command {
    let mut root = Command::new("culvert")
        .version(version())
        .about("Self-hosted ingress with traffic policies, agents and an audit trail")
        .subcommand_required(true)
        .arg_required_else_help(true);
    for command in commands() {
        let command = (command.arguments)(Command::new(command.name));
        root = root.subcommand(examples::with_examples(command));
    }
    let commands = grouped(&root);
    root.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}Options:\n{{options}}\n\n`culvert help COMMAND` describes a command."
    ))
}

/// The list of commands, in groups.
fn grouped(root: &Command) -> String {
    let mut text = String::new();
    let is_listed = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let others: Vec<&str> = root
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(Command::get_name)
        .filter(|name| !is_listed(name))
        .collect();
    let others = [("Other", &others[..])];
    for (title, names) in GROUPS.iter().copied().chain(others) {
        let mut lines = String::new();
        for name in names {
            let about = root.find_subcommand(name).and_then(Command::get_about);
            if let Some(about) = about {
                let about = about.to_string();
                // The first part is enough here.
                let about = about.split("; ").next().unwrap_or_default();
                lines.push_str(&format!("  {name:12}{about}\n"));
            }
        }
        if !lines.is_empty() {
            text.push_str(&format!("{title}:\n{lines}\n"));
        }
    }
    text
}

/// The reference page of all commands, in Markdown. Omits the flags of settings and the operations of `culvert api`,
/// which have their own pages.
pub fn reference() -> String {
    let mut page = String::from(
        "# Commands\n\nExit codes: 0 success, 1 failure, 2 usage error, 3 differences found, 78 invalid \
         configuration. Machine-readable output is JSON on\nstandard output. Errors are one \
         sentence on standard error. `serve`, `config`, `admin` and `audit` accept every setting \
         of\n[settings.md](settings.md) as a flag. `culvert api <collection> <operation>` runs \
         the operations of [api.md](api.md), and so does \
         `culvert <collection> <operation>`.\n",
    );
    let root = command();
    let shown = root
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    for command in shown {
        describe(command, "culvert", &mut page);
    }
    page
}

fn describe(command: &Command, parent: &str, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    page.push_str(&format!("\n## `{name}`\n\n{about}.\n"));
    let arguments: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| {
            argument.get_help_heading() != Some("Settings")
                && argument.get_id() != "help"
                && !argument.is_hide_set()
        })
        .collect();
    if !arguments.is_empty() {
        page.push_str("\n| Argument | Meaning |\n|---|---|\n");
    }
    for argument in arguments {
        let shown = match argument.get_long() {
            Some(long) if argument.get_action().takes_values() => {
                let value = argument.get_value_names().and_then(|names| names.first());
                format!("--{long} <{}>", value.map_or("VALUE", |name| name.as_str()))
            }
            Some(long) => format!("--{long}"),
            None => format!("<{}>", argument.get_id()),
        };
        let mut help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        for alias in argument.get_visible_aliases().unwrap_or_default() {
            help.push_str(&format!(" [alias: --{alias}]"));
        }
        page.push_str(&format!("| `{shown}` | {} |\n", help.replace('|', "\\|")));
    }
    // The operations of `culvert api` have their own page.
    if command.get_name() != "api" {
        for child in command.get_subcommands() {
            describe(child, &name, page);
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_policy::problem::Problem;

    use super::*;

    #[test]
    fn error_pages_name_commands_and_settings_that_exist() {
        let settings = culvert_installation::config::keys();
        for problem in Problem::ALL {
            for code in problem.owner_help().split('`').skip(1).step_by(2) {
                if code.starts_with("culvert ") {
                    let parsed = command().try_get_matches_from(code.split(' '));
                    assert!(parsed.is_ok(), "{problem:?}: {code}: {parsed:?}");
                }
                if code.starts_with("edge.") {
                    let is_key = settings.iter().any(|key| key.name == code);
                    assert!(is_key, "{problem:?}: {code}");
                }
            }
        }
    }
}
