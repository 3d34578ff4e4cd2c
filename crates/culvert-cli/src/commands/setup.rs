//! `culvert setup`: from an installed package to a server that runs, with certificates, backups and a key for its operator.

mod answers;
mod plan;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::{BoxFuture, Secret};
use culvert_command::{Profile, read_token};
use http::Method;
use serde_json::json;

use self::answers::Answers;
use self::plan::{API, DATA, Plan, SETTINGS, environment_of_service};
use super::service::Scope;
use super::{CommandType, Failure, say};
use crate::client::Client;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "setup",
    arguments,
    run,
};

const SERVICE: &str = "culvert.service";
const SOCKET: &str = "culvert.socket";
const BACKUP: &str = "culvert-backup.service";
const TIMER: &str = "culvert-backup.timer";
/// Where the units of the package are.
const UNITS: [&str; 2] = ["/usr/lib/systemd/system", "/lib/systemd/system"];
const BACKUPS: &str = "/var/lib/culvert-backups";
/// The user of the server.
const USER: &str = "culvert";

const AFTER_HELP: &str = "\
Keys of the file, with their defaults:
  domain = \"tunnel.example.com\"   # no default
  api_host = \"api.<domain>\"
  acme_directory_url = \"https://acme-v02.api.letsencrypt.org/directory\"   # accepts its terms; empty: an own CA
  contact = \"\"            # mail address for the CA
  dns_provider = \"\"       # cloudflare, route53, desec, acme-dns or rfc2136: for wildcard certificates
  dns_secret = \"\"         # the secret of the provider
  dns = {}                # other settings of the provider, as below `acme.dns`
  http_port = 80          # a port of 0 turns a listener off
  https_port = 443
  agents_port = 8441
  ssh_port = 0
  api_port = 8445
  backups = true";

fn arguments(command: Command) -> Command {
    command
        .about("Set up a server that was installed from a package: settings, sockets, certificates, backups and a first key")
        .after_help(AFTER_HELP)
        .arg(
            Arg::new("yes")
                .long("yes")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Read the values from this file and ask nothing"),
        )
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Print what would be written and done, without secrets, and change nothing"),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let answers = match matches.get_one::<PathBuf>("yes") {
            Some(path) => Answers::read(path)?,
            None => Answers::asked()?,
        };
        let plan = Plan::of(&answers)?;
        if matches.get_flag("dry-run") {
            plan.show()?;
            return show_steps(&answers);
        }
        check_package()?;
        let former = plan.write()?;
        if let Some(former) = &former {
            say(format_args!(
                "the former settings are in {}",
                former.display()
            ))?;
        }
        start(former.as_deref())?;
        sign_in().await?;
        if answers.backups {
            Scope::System.must(&["enable", "--now", TIMER])?;
            test_backup()?;
        }
        say("\nculvert doctor:")?;
        let is_well = own(&["doctor", "--config", SETTINGS], true)?;
        show_end(&answers)?;
        match is_well {
            true => Ok(()),
            false => Err(Failure::Failed(
                "the server runs, but `culvert doctor` found problems; see above".into(),
            )),
        }
    })
}

fn show_steps(answers: &Answers) -> Result<(), Failure> {
    say("Then:\n")?;
    say(format_args!(
        "    systemctl daemon-reload\n    systemctl stop {SERVICE} {SOCKET}"
    ))?;
    say(format_args!(
        "    systemctl enable --now {SOCKET} {SERVICE}"
    ))?;
    say("    create an API key, save it for this user, and delete the first key")?;
    if answers.backups {
        say(format_args!("    systemctl enable --now {TIMER}"))?;
        say(format_args!(
            "    make a backup in {BACKUPS}, restore it elsewhere and check it"
        ))?;
    }
    say(format_args!("    culvert doctor --config {SETTINGS}"))
}

/// What the files and units are written for.
fn check_package() -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Usage(
            "setup writes below /etc and starts services; run it as root, or with `--dry-run`"
                .into(),
        ));
    }
    let is_installed = |unit: &&str| UNITS.iter().any(|at| Path::new(at).join(unit).exists());
    match [SERVICE, SOCKET, BACKUP, TIMER]
        .iter()
        .find(|unit| !is_installed(unit))
    {
        None => Ok(()),
        Some(unit) => Err(Failure::Failed(format!(
            "`{unit}` is not installed; install the package of culvert first. Without a package, use `culvert service install`"
        ))),
    }
}

/// Starts the server with the new settings and sockets. systemd waits until it is ready.
fn start(former: Option<&Path>) -> Result<(), Failure> {
    let systemd = Scope::System;
    systemd.must(&["daemon-reload"])?;
    // Sockets of the former settings are in the way.
    systemd.must(&["stop", SERVICE, SOCKET])?;
    let (is_started, shown) = systemd.systemctl(&["enable", "--now", SOCKET, SERVICE])?;
    if !is_started {
        let former = former.map_or_else(String::new, |path| {
            format!("; the former settings are in `{}`", path.display())
        });
        return Err(Failure::Failed(format!(
            "the server does not start: {shown}; `journalctl -u culvert -n 20` says why{former}"
        )));
    }
    say(format_args!(
        "{SERVICE} runs with the settings of {SETTINGS}"
    ))
}

/// Replaces the first key of the installation by one that is saved for the user of this command.
async fn sign_in() -> Result<(), Failure> {
    let first = Path::new(DATA).join("bootstrap-key");
    if !first.is_file() {
        return say(
            "the first API key was replaced before; `culvert login` saves one, and `culvert admin create-key` makes one",
        );
    }
    let url = format!("http://{API}");
    let with_first = Client::new(&url, read_token(&first)?)?;
    let old = with_first.expect(Method::GET, "/self", None).await?;
    let body = json!({"description": "Operator, by culvert setup"});
    let made = with_first
        .expect(Method::POST, "/api_keys", Some(&body))
        .await?;
    let token = made["token"].as_str().context("the new key has no token")?;
    let path = Profile::path()?;
    let mut profile = Profile::load()?;
    profile.api_url = Some(url.clone());
    profile.api_ca = None;
    profile.api_key = Some(Secret::new(token.to_owned()));
    profile.save(&path)?;
    let with_new = Client::new(&url, token.to_owned())?;
    let old = old["api_key"]["id"]
        .as_str()
        .context("the first key has no ID")?;
    with_new
        .expect(Method::DELETE, &format!("/api_keys/{old}"), None)
        .await?;
    fs::remove_file(&first).with_context(|| format!("removing `{}`", first.display()))?;
    say(format_args!(
        "a new API key is saved in {}; the first one is deleted",
        path.display()
    ))
}

/// Makes a backup as the timer does, and restores it beside the server.
fn test_backup() -> Result<(), Failure> {
    Scope::System.must(&["start", BACKUP])?;
    let folders = fs::read_dir(BACKUPS).with_context(|| format!("reading `{BACKUPS}`"))?;
    let folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    // Their names are times.
    let made = folders.max().context("the backup has no directory")?;
    let restored = PathBuf::from(format!("/run/culvert-setup-{}", std::process::id()));
    let copying = || format!("restoring `{}`", made.display());
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&restored)
        .with_context(copying)?;
    let check = || -> Result<bool, Failure> {
        for (from, to) in [
            (made.join("state.db"), "state.db"),
            (made.join("events.db"), "events.db"),
            (Path::new(DATA).join("master.key"), "master.key"),
        ] {
            fs::copy(from, restored.join(to)).with_context(copying)?;
        }
        let folder = restored.to_string_lossy();
        own(
            &[
                "admin",
                "check",
                "--config",
                SETTINGS,
                "--data-dir",
                &folder,
            ],
            false,
        )
    };
    let checked = check();
    fs::remove_dir_all(&restored).with_context(copying)?;
    match checked? {
        true => say(format_args!(
            "a first backup is in {}; restored elsewhere, it is intact",
            made.display()
        )),
        false => Err(Failure::Failed(format!(
            "the backup in `{}` is not usable",
            made.display()
        ))),
    }
}

/// Runs a command of this program with the variables of the service, as the user of the server if `as_server`.
fn own(arguments: &[&str], as_server: bool) -> Result<bool, Failure> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut process = match as_server {
        true => {
            let mut runuser = Process::new("runuser");
            runuser.args(["-u", USER, "--"]).arg(&program);
            runuser
        }
        false => Process::new(&program),
    };
    let status = process
        .args(arguments)
        .envs(environment_of_service())
        .current_dir("/")
        .status()
        .with_context(|| format!("running `culvert {}`", arguments.join(" ")))?;
    Ok(status.success())
}

fn show_end(answers: &Answers) -> Result<(), Failure> {
    say("")?;
    if answers.api_port != 0 {
        let (host, port) = (answers.api_host(), answers.api_port);
        say(format_args!(
            "The console is at https://{host}:{port}/console/"
        ))?;
    }
    say(format_args!(
        "Copy {DATA}/master.key and {DATA}/audit.key to another place: backups do not contain them."
    ))
}
