//! `culvert service`: a server or an agent as a systemd service, of the machine or of a user.
//!
//! The units are those of the packages, without the sockets and the user that the packages create.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;
use culvert_command::environment;

use super::login::absolute;
use super::{CommandType, Failure, say};

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "service",
    arguments,
    run,
};

const SERVER_UNIT: &str = include_str!("../../../../packaging/systemd/culvert.service");
const AGENT_UNIT: &str = include_str!("../../../../packaging/systemd/culvert-agent.service");
/// The first line of every unit that this command writes. It changes no other unit.
const MARK: &str = "# Written by `culvert service install`.";
/// Where packages install units.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];

fn arguments(command: Command) -> Command {
    let user = || {
        Arg::new("user")
            .long("user")
            .action(ArgAction::SetTrue)
            .help("A service of this user instead of the machine")
    };
    let what = |help| {
        Arg::new("what")
            .value_name("COMMAND")
            .value_parser(["serve", "start"])
            .help(help)
    };
    command
        .about("Run a server or an agent as a systemd service")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("install")
                .about("Write a systemd unit, enable it and start it")
                .arg(what("`serve` for a server or `start` for an agent [default: `start` if --config is a YAML or JSON file, otherwise `serve`]"))
                .arg(
                    Arg::new("config")
                        .long("config")
                        .value_name("FILE")
                        .value_parser(value_parser!(PathBuf))
                        .help("Configuration file [default: /etc/culvert/culvert.toml for a server]"),
                )
                .arg(user())
                .arg(
                    Arg::new("run-as")
                        .long("run-as")
                        .value_name("USER")
                        .conflicts_with("user")
                        .help("User of the process [default: one that systemd creates]"),
                )
                .arg(
                    Arg::new("print")
                        .long("print")
                        .action(ArgAction::SetTrue)
                        .help("Print the unit and change nothing"),
                ),
        )
        .subcommand(
            Command::new("uninstall")
                .about("Stop the service and remove its unit; data and configuration stay")
                .arg(what("Service [default: the one that is installed]"))
                .arg(user()),
        )
        .subcommand(
            Command::new("status")
                .about("Show whether the service runs; exits with 1 if it does not")
                .arg(what("Service [default: all that are installed]"))
                .arg(user()),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        match matches.subcommand() {
            Some(("install", given)) => install(given),
            Some(("uninstall", given)) => uninstall(given),
            Some(("status", given)) => status(given),
            _ => Ok(()),
        }
    })
}

/// The command that a service runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    Agent,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Server, Self::Agent];

    const fn unit_name(self) -> &'static str {
        match self {
            Self::Server => "culvert.service",
            Self::Agent => "culvert-agent.service",
        }
    }

    fn named(given: &ArgMatches) -> Option<Self> {
        match given.get_one::<String>("what")?.as_str() {
            "serve" => Some(Self::Server),
            _ => Some(Self::Agent),
        }
    }
}

/// Whose service manager is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    System,
    User,
}

impl Scope {
    fn of(given: &ArgMatches) -> Self {
        match given.get_flag("user") {
            true => Self::User,
            false => Self::System,
        }
    }

    /// The directory of its units.
    fn folder(self) -> Result<PathBuf, Failure> {
        let environment = environment();
        let path = |name: &str| environment.get(name).map(PathBuf::from);
        match self {
            Self::System => Ok("/etc/systemd/system".into()),
            Self::User => path("XDG_CONFIG_HOME")
                .or_else(|| Some(path("HOME")?.join(".config")))
                .map(|base| base.join("systemd/user"))
                .ok_or_else(|| Failure::Failed("HOME is not set".into())),
        }
    }

    /// Runs `systemctl` and returns what it prints, and whether it succeeded.
    pub(super) fn systemctl(self, arguments: &[&str]) -> Result<(bool, String), Failure> {
        let mut process = Process::new("systemctl");
        if self == Self::User {
            process.arg("--user");
        }
        let output = process
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("running `systemctl`; is systemd installed?")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let shown = match output.stdout.is_empty() {
            true => text(&output.stderr),
            false => text(&output.stdout),
        };
        Ok((output.status.success(), shown))
    }

    pub(super) fn must(self, arguments: &[&str]) -> Result<(), Failure> {
        match self.systemctl(arguments)? {
            (true, _) => Ok(()),
            (false, shown) => Err(Failure::Failed(format!(
                "`systemctl {}` failed: {shown}",
                arguments.join(" ")
            ))),
        }
    }
}

fn install(given: &ArgMatches) -> Result<(), Failure> {
    let config = given.get_one::<PathBuf>("config");
    let is_of_agent = config.is_some_and(|path| super::settings::is_of_agent(path));
    let kind = Kind::named(given).unwrap_or(match is_of_agent {
        true => Kind::Agent,
        false => Kind::Server,
    });
    let config = match (config, kind) {
        (Some(path), _) => absolute(path)?,
        (None, Kind::Server) => "/etc/culvert/culvert.toml".into(),
        (None, Kind::Agent) => {
            let text = "an agent needs `--config` with its configuration file";
            return Err(Failure::Usage(text.into()));
        }
    };
    let scope = Scope::of(given);
    let program = std::env::current_exe().context("finding this program")?;
    let run_as = given.get_one::<String>("run-as").map(String::as_str);
    let unit = unit(kind, scope, &program, &config, run_as).map_err(Failure::Usage)?;
    if given.get_flag("print") {
        return say(unit.trim_end());
    }
    let name = kind.unit_name();
    if scope == Scope::System
        && PACKAGED
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
    {
        let text = format!("a package has installed `{name}`; use `systemctl enable --now {name}`");
        return Err(Failure::Failed(text));
    }
    if !config.is_file() {
        let text = format!(
            "the configuration file `{}` does not exist",
            config.display()
        );
        return Err(Failure::Failed(text));
    }
    let path = scope.folder()?.join(name);
    if path.exists() && !is_ours(&path) {
        let text = format!("`{}` was not written by this command", path.display());
        return Err(Failure::Failed(text));
    }
    let folder = scope.folder()?;
    std::fs::create_dir_all(&folder).with_context(|| format!("creating `{}`", folder.display()))?;
    std::fs::write(&path, unit).with_context(|| format!("writing `{}`", path.display()))?;
    scope.must(&["daemon-reload"])?;
    scope.must(&["enable", "--now", name])?;
    say(format_args!("{name} runs; its unit is {}", path.display()))
}

fn uninstall(given: &ArgMatches) -> Result<(), Failure> {
    let scope = Scope::of(given);
    let installed = installed(scope)?;
    let kind = match (Kind::named(given), &installed[..]) {
        (Some(kind), installed) if installed.contains(&kind) => kind,
        (None, [only]) => *only,
        (None, [_, ..]) => {
            let text = "name the service: `serve` or `start`";
            return Err(Failure::Usage(text.into()));
        }
        _ => return Err(none_installed()),
    };
    let name = kind.unit_name();
    scope.must(&["disable", "--now", name])?;
    let path = scope.folder()?.join(name);
    std::fs::remove_file(&path).with_context(|| format!("removing `{}`", path.display()))?;
    scope.must(&["daemon-reload"])?;
    say(format_args!("removed {name}"))
}

fn status(given: &ArgMatches) -> Result<(), Failure> {
    let scope = Scope::of(given);
    let kinds = match Kind::named(given) {
        Some(kind) => vec![kind],
        None => installed(scope)?,
    };
    if kinds.is_empty() {
        return Err(none_installed());
    }
    let mut broken = Vec::new();
    for kind in kinds {
        let name = kind.unit_name();
        let (is_active, state) = scope.systemctl(&["is-active", name])?;
        say(format_args!("{name:22} {state}"))?;
        if !is_active {
            broken.push(format!("{name} is {state}"));
        }
    }
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(broken.join("; "))),
    }
}

fn none_installed() -> Failure {
    Failure::Failed("`culvert service install` has installed no such service".into())
}

/// The services whose units this command wrote.
fn installed(scope: Scope) -> Result<Vec<Kind>, Failure> {
    let folder = scope.folder()?;
    let is_installed = |kind: &Kind| is_ours(&folder.join(kind.unit_name()));
    Ok(Kind::ALL.into_iter().filter(is_installed).collect())
}

fn is_ours(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARK))
}

/// The unit. The error is a sentence without a full stop.
fn unit(
    kind: Kind,
    scope: Scope,
    program: &Path,
    config: &Path,
    run_as: Option<&str>,
) -> Result<String, String> {
    let is_hidden = |path: &Path| ["/home", "/root"].iter().any(|home| path.starts_with(home));
    if scope == Scope::System && is_hidden(program) {
        return Err(format!(
            "a service cannot see `{}`; install the program below /usr/local",
            program.display()
        ));
    }
    if run_as.is_some_and(|user| {
        user.is_empty() || user.contains(|c: char| c.is_whitespace() || c.is_control())
    }) {
        return Err("`--run-as` must be the name of a user".into());
    }
    let program = quoted(program)?;
    let file = quoted(config)?;
    let lines = match kind {
        Kind::Server => SERVER_UNIT.lines(),
        Kind::Agent => AGENT_UNIT.lines(),
    };
    let mut unit = format!("{MARK}\n");
    // systemd reads a file that belongs to root for a user that it creates.
    let owner = std::fs::metadata(config).ok().map(|found| found.uid());
    let is_credential = kind == Kind::Agent
        && scope == Scope::System
        && run_as.is_none()
        && owner.is_none_or(|owner| owner == 0);
    let mut is_sandbox = false;
    for line in lines {
        let (key, _) = line.split_once('=').unwrap_or((line, ""));
        is_sandbox &= line != "[Install]";
        let text = match key {
            // The sockets belong to the packages.
            "Requires" | "Also" => continue,
            "After" | "Wants" if scope == Scope::User => continue,
            "After" => line.replace("culvert.socket ", ""),
            "Group" => continue,
            "User" | "DynamicUser" => match (scope, run_as, owner) {
                (Scope::User, ..) => continue,
                (Scope::System, Some(user), _) => format!("User={user}"),
                (Scope::System, None, Some(owner)) if kind == Kind::Agent && owner != 0 => {
                    format!("User={owner}")
                }
                (Scope::System, None, _) => "DynamicUser=yes".to_owned(),
            },
            "ExecStart" => match kind {
                Kind::Server => format!("ExecStart={program} serve --config {file}"),
                Kind::Agent if is_credential => {
                    format!("ExecStart={program} start --config %d/agent.yml --console-ui=false")
                }
                Kind::Agent => {
                    format!("ExecStart={program} start --config {file} --console-ui=false")
                }
            },
            "LoadCredential" if is_credential => {
                format!("LoadCredential=agent.yml:{}", escaped(config)?)
            }
            "LoadCredential" => continue,
            _ if line.starts_with("# The file may contain a token") && !is_credential => continue,
            // A user's manager may not be allowed to restrict processes, and has other names of directories.
            "WorkingDirectory" if scope == Scope::User => "WorkingDirectory=%S/culvert".to_owned(),
            "EnvironmentFile" if scope == Scope::User => {
                "EnvironmentFile=-%E/culvert/environment".to_owned()
            }
            "WantedBy" if scope == Scope::User => "WantedBy=default.target".to_owned(),
            "NoNewPrivileges" => line.to_owned(),
            "LimitNOFILE" if scope == Scope::User => continue,
            _ if is_sandbox && scope == Scope::User && !line.is_empty() => continue,
            _ => line.to_owned(),
        };
        unit.push_str(&text);
        unit.push('\n');
        // Everything behind it restricts the process.
        is_sandbox |= key == "UMask";
    }
    Ok(unit)
}

/// A path as systemd reads it in a setting.
fn escaped(path: &Path) -> Result<String, String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| format!("`{}` cannot stand in a unit", path.display()))?;
    Ok(text.replace('%', "%%"))
}

/// A path as systemd reads it in a command line.
fn quoted(path: &Path) -> Result<String, String> {
    let text = escaped(path)?
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('$', "$$");
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-%$".contains(&byte));
    Ok(match is_plain {
        true => text,
        false => format!("\"{text}\""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: Kind, scope: Scope, run_as: Option<&str>) -> String {
        let program = Path::new("/usr/local/bin/culvert");
        unit(kind, scope, program, Path::new("/srv/a b/50%.yml"), run_as).unwrap()
    }

    #[test]
    fn a_unit_has_the_users_program_file_and_rights() {
        let server = made(Kind::Server, Scope::System, None);
        assert!(
            server.contains(
                "\nExecStart=/usr/local/bin/culvert serve --config \"/srv/a b/50%%.yml\"\n"
            )
        );
        assert!(server.contains("\nDynamicUser=yes\n") && !server.contains("culvert.socket"));
        assert!(server.contains("\nProtectSystem=strict\n"));
        let named = made(Kind::Server, Scope::System, Some("web"));
        assert!(named.contains("\nUser=web\n") && !named.contains("DynamicUser"));
        let agent = made(Kind::Agent, Scope::System, None);
        assert!(agent.contains("\nLoadCredential=agent.yml:/srv/a b/50%%.yml\n"));
        let own = made(Kind::Agent, Scope::User, None);
        assert!(own.contains("start --config \"/srv/a b/50%%.yml\" --console-ui=false\n"));
        assert!(
            own.contains("\nWantedBy=default.target\n") && own.contains("\nNoNewPrivileges=true\n")
        );
        assert!(!own.contains("Protect") && !own.contains("User=") && !own.contains("Credential"));
        for text in [server, named, agent, own] {
            assert!(
                text.starts_with(MARK) && !text.contains("/usr/bin/culvert"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_program_in_a_home_directory_is_refused() {
        let program = Path::new("/root/culvert");
        let config = Path::new("/etc/culvert/culvert.toml");
        assert!(unit(Kind::Server, Scope::System, program, config, None).is_err());
        assert!(unit(Kind::Server, Scope::User, program, config, None).is_ok());
        let program = Path::new("/usr/bin/culvert");
        assert!(unit(Kind::Server, Scope::System, program, config, Some("a\nb")).is_err());
    }
}
