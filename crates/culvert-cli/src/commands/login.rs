//! `culvert login`: checks an API key and saves it for this user.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Arg, ArgMatches, Command};
use culvert_base::{BoxFuture, Secret};
use culvert_command::environment;

use super::api::{Target, with_client};
use super::prompt::{ask, ask_secret};
use super::{CommandType, Failure, say, whoami};
use culvert_command::Profile;
use culvert_command::read_token;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "login",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    with_client(command.about(
        "Check an API key and save it, with the address of the API, for the commands of this user",
    ))
    .after_help(
        "The key comes from --token-file, CULVERT_API_KEY, the terminal or standard input. It is saved in \
         $XDG_CONFIG_HOME/culvert/config.toml or ~/.config/culvert/config.toml, which only the user may read.",
    )
    .arg(
        Arg::new("url")
            .value_name("URL")
            .conflicts_with("api-url")
            .help("Address of the API"),
    )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let path = Profile::path()?;
        let mut profile = Profile::load()?;
        let mut target = Target::of(&matches)?;
        let is_named =
            matches.contains_id("api-url") || environment().contains_key("CULVERT_API_URL");
        if let Some(url) = matches.get_one::<String>("url") {
            target = target.at(url);
        } else if !is_named && std::io::stdin().is_terminal() {
            let url = ask(&format!("Address of the API [{}]", target.url))?;
            if !url.is_empty() {
                target = target.at(&url);
            }
        }
        if !is_private(&target.url) {
            eprintln!("culvert: warning: without https, others on the network can read the key");
        }
        let token = match matches.get_one::<PathBuf>("token-file") {
            Some(path) => Secret::new(read_token(path)?),
            None => match environment().remove("CULVERT_API_KEY") {
                Some(token) => Secret::new(token),
                None => ask_secret("API key")?,
            },
        };
        let client = target.with_token(token.reveal().to_owned())?;
        let oneself = whoami::oneself(&client).await?;
        profile.api_url = Some(target.url.clone());
        profile.api_ca = match &target.ca {
            Some(ca) => Some(absolute(ca)?),
            None => None,
        };
        profile.api_key = Some(token);
        profile.save(&path)?;
        let user = oneself["user"].as_str().unwrap_or_default();
        let role = oneself["role"].as_str().unwrap_or_default();
        say(format_args!(
            "logged in to {} as {} ({role}); saved in {}",
            target.url,
            user.escape_debug(),
            path.display()
        ))
    })
}

/// Whether requests to this URL are encrypted, or stay on this machine.
fn is_private(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else {
        return true;
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_matches(['[', ']']);
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// A path that also holds in another directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let found = path.canonicalize();
    Ok(found.with_context(|| format!("reading `{}`", path.display()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_accepted_only_for_loopback() {
        for url in [
            "https://a.test",
            "http://127.0.0.1:1",
            "http://[::1]:1/",
            "http://localhost",
        ] {
            assert!(is_private(url), "{url}");
        }
        for url in [
            "http://a.test",
            "http://10.0.0.1:8420",
            "http://localhost.a.test",
        ] {
            assert!(!is_private(url), "{url}");
        }
    }
}
