//! `culvert import FILE`: turns configurations of other products into files.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;

use super::{CommandType, Failure, say};
use culvert_import::Format;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "import",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Turn a configuration of frp, cloudflared or Caddy into files for culvert")
        .arg(
            Arg::new("file")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help(
                    "The configuration, such as frpc.toml, frps.toml, cloudflared.yml or Caddyfile",
                ),
        )
        .arg(
            Arg::new("format")
                .long("format")
                .value_name("FORMAT")
                .value_parser(PossibleValuesParser::new(Format::ALL.map(|(name, _)| name)))
                .help("Format of the file, if its name does not tell"),
        )
        .arg(
            Arg::new("domain")
                .long("domain")
                .value_name("NAME")
                .help("Base domain of the culvert server: names below it need no reservation"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("DIRECTORY")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Where the files are written; existing files are kept"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let (Some(path), Some(out)) = (
            matches.get_one::<PathBuf>("file"),
            matches.get_one::<PathBuf>("out"),
        ) else {
            return Ok(());
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::Failed(format!("cannot read `{}`: {error}", path.display()))
        })?;
        let named = matches.get_one::<String>("format");
        let format = match named {
            Some(named) => Format::ALL
                .into_iter()
                .find(|(name, _)| name == named)
                .map(|(_, format)| format),
            None => Format::guess(path, &text),
        };
        let format = format.ok_or_else(|| {
            Failure::Usage(format!(
                "the format of `{}` is not known; use `--format`",
                path.display()
            ))
        })?;
        let domain = matches.get_one::<String>("domain").map(String::as_str);
        let imported = culvert_import::import(format, &text, domain)
            .map_err(|why| Failure::Failed(format!("`{}`: {why}", path.display())))?;
        let wrong = |error: std::io::Error, path: &std::path::Path| {
            Failure::Failed(format!("cannot write `{}`: {error}", path.display()))
        };
        std::fs::create_dir_all(out).map_err(|error| wrong(error, out))?;
        for (name, text) in imported.files() {
            let file = out.join(name);
            write_new(&file, &text).map_err(|error| wrong(error, &file))?;
            say(format_args!("wrote {}", file.display()))?;
        }
        for note in &imported.notes {
            say(format_args!(
                "{}:{}: {}: {}",
                path.display(),
                note.line,
                note.what,
                note.why
            ))?;
        }
        Ok(())
    })
}

/// Writes a file that only its owner reads, because it may hold passwords. Keeps an existing one.
fn write_new(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_reserved_names_are_those_of_a_server() {
        let settings = culvert_installation::config::Settings::default();
        let mut reserved = settings.edge.reserved_names;
        reserved.extend(["acme-challenge", "tcp"].map(str::to_owned));
        reserved.sort();
        assert_eq!(reserved, culvert_import::RESERVED_NAMES);
    }
}
