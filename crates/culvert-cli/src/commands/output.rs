//! The output format of commands that people and programs use.

use std::io::IsTerminal;

use clap::{Arg, ArgMatches};

/// The flag. Without a default, the format is text on a terminal and JSON elsewhere.
pub(super) fn format(default: Option<&'static str>, help: &'static str) -> Arg {
    let arg = Arg::new("format")
        .long("format")
        .value_name("FORMAT")
        .value_parser(["json", "text"])
        .help(help);
    match default {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

/// Whether the format is text.
pub(super) fn is_text(given: &ArgMatches) -> bool {
    match given.get_one::<String>("format") {
        Some(format) => format == "text",
        None => std::io::stdout().is_terminal(),
    }
}
