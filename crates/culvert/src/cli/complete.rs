//! `culvert complete -- WORDS`: what may follow on the command line. The scripts of `culvert completions` call it, so that
//! they need not change with the commands.

use clap::{Arg, ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_command::print;

use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "complete",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Print what may follow on the command line, for completion scripts")
        .hide(true)
        .arg(
            Arg::new("words")
                .num_args(0..)
                .last(true)
                .value_name("WORD")
                .help("The words after `culvert` up to the cursor; the last one is not complete"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let words: Vec<String> = matches
            .get_many::<String>("words")
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let mut text = String::new();
        for (word, help) in candidates(&super::command(), &words) {
            text.push_str(&format!("{word}\t{help}\n"));
        }
        print(text.as_bytes())
    })
}

/// The words that may stand in the place of the last of `words`, each with its first line of help. None where a file or
/// another value is expected.
fn candidates(root: &Command, words: &[String]) -> Vec<(String, String)> {
    let Some((last, before)) = words.split_last() else {
        return Vec::new();
    };
    let before = super::expanded(root, before);
    let (mut path, mut wants) = (vec![root], None);
    for word in &before {
        let command = path[path.len() - 1];
        if wants.take().is_some() {
            continue;
        }
        if let Some(flag) = word.strip_prefix("--") {
            wants = flag_of(&path, flag).filter(|arg| takes_next_word(arg));
        } else if let Some(child) = command.find_subcommand(word) {
            path.push(child);
        }
    }
    let command = path[path.len() - 1];
    let found = match wants {
        Some(arg) => values(arg),
        None if last.starts_with('-') => flags(&path),
        None => {
            let mut found: Vec<(String, String)> = command
                .get_subcommands()
                .filter(|child| !child.is_hide_set())
                .map(|child| (child.get_name().to_owned(), first_line(child.get_about())))
                .collect();
            if path.len() == 1 {
                found.extend(super::collections(root));
            }
            found.extend(command.get_positionals().flat_map(values));
            found
        }
    };
    let mut found: Vec<_> = found
        .into_iter()
        .filter(|(word, _)| word.starts_with(last.as_str()))
        .collect();
    found.dedup();
    found
}

/// The flag of this name, of the command or one above it.
fn flag_of<'a>(path: &[&'a Command], name: &str) -> Option<&'a Arg> {
    let has_name = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    let mut commands = path.iter().rev();
    commands.find_map(|command| command.get_arguments().find(has_name))
}

/// Whether the word after a flag is its value.
fn takes_next_word(arg: &Arg) -> bool {
    let is_optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    arg.get_action().takes_values() && !is_optional
}

fn flags(path: &[&Command]) -> Vec<(String, String)> {
    let mut found = vec![("--help".to_owned(), "Print help".to_owned())];
    for (nth, command) in path.iter().rev().enumerate() {
        for arg in command.get_arguments() {
            if let Some(long) = arg.get_long()
                && !arg.is_hide_set()
                && (nth == 0 || arg.is_global_set())
            {
                found.push((format!("--{long}"), first_line(arg.get_help())));
            }
        }
    }
    found
}

fn values(arg: &Arg) -> Vec<(String, String)> {
    let possible = arg.get_possible_values();
    let shown = possible.iter().filter(|value| !value.is_hide_set());
    shown
        .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
        .collect()
}

fn first_line(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    let line = help.lines().next().unwrap_or_default();
    line.replace('\t', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed_everywhere() {
        let root = super::super::command();
        for (line, expected) in [
            ("", &["http", "serve", "endpoints"][..]),
            ("comp", &["completions"]),
            ("completions ", &["bash", "zsh", "fish"]),
            ("config ", &["add-authtoken", "check", "show"]),
            ("http --poo", &["--pooling-enabled", "--pooling"]),
            ("serve --api-a", &["--api-addr"]),
            ("api endpoints ", &["list", "create", "get", "delete"]),
            ("endpoints l", &["list"]),
            ("endpoints create --upstream-u", &["--upstream-url"]),
            ("api endpoints list --api", &["--api-url"]),
            ("status --format ", &["json", "text"]),
            ("--v", &[]),
            ("http --url ", &[]),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = candidates(&root, &words);
            for word in expected {
                let is_found = found.iter().any(|(found, _)| found == word);
                assert!(is_found, "`{line}`: {word} in {found:?}");
            }
            assert_eq!(found.is_empty(), expected.is_empty(), "`{line}`: {found:?}");
        }
    }
}
