//! `culvert man`: writes the manual pages, one for each command.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_mangen::Man;
use culvert_base::BoxFuture;

use super::{CommandType, Failure};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "man",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.about("Write the manual pages to a directory").arg(
        Arg::new("folder")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("Directory, which is made if it does not exist"),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let folder = matches.get_one::<PathBuf>("folder").cloned();
        let folder = folder.unwrap_or_default();
        let shown = || format!("creating `{}`", folder.display());
        std::fs::create_dir_all(&folder).with_context(shown)?;
        write_pages(&super::command(), "culvert", &folder)?;
        Ok(())
    })
}

/// The page with a title line that also has a manual and a version. The library leaves empty fields out, so that the
/// next one is in their place: readers would show the name of the command as the date.
fn titled(page: &str, name: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let title = format!(".TH \"{name}\" 1 \"\" \"culvert {version}\" \"culvert manual\"");
    let lines = page.lines().map(|line| match line.starts_with(".TH ") {
        true => title.as_str(),
        false => line,
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Writes the page of a command and those of its subcommands. Settings are described in the page of `serve` alone,
/// and the operations of `culvert api` in its help.
fn write_pages(command: &Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    let mut command = command.clone().disable_help_subcommand(true);
    if name != "culvert-serve" {
        command = command.mut_args(|argument| match argument.get_help_heading() {
            Some("Settings") => argument.hide(true),
            _ => argument,
        });
    }
    let children: Vec<Command> = match name {
        "culvert-api" => Vec::new(),
        _ => command.get_subcommands().cloned().collect(),
    };
    if name == "culvert-api" {
        command = command.after_help("`culvert api --help` lists the collections and operations.");
        command = command.mut_subcommands(|child| child.hide(true));
    }
    let path = folder.join(format!("{name}.1"));
    let command = command.display_name(name).bin_name(name.replace('-', " "));
    let mut page = Vec::new();
    Man::new(command)
        .title(name)
        .render(&mut page)
        .context("rendering a manual page")?;
    let page = titled(&String::from_utf8(page)?, name);
    std::fs::write(&path, page).with_context(|| format!("writing `{}`", path.display()))?;
    for child in children {
        write_pages(&child, &format!("{name}-{}", child.get_name()), folder)?;
    }
    Ok(())
}
