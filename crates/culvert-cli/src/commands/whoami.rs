//! `culvert whoami`: the owner and the rights of the API key.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_resources::access::right::Scope;
use http::Method;
use serde_json::Value;

use super::api::{Target, with_client};
use super::output::{format, is_text};
use super::{CommandType, Failure, say};
use crate::client::Client;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "whoami",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let help = "Output format [default: text on a terminal, otherwise JSON]";
    with_client(command.about("Show the owner and the rights of the API key"))
        .arg(format(None, help))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let target = Target::of(&matches)?;
        let oneself = oneself(&target.client()?).await?;
        if !is_text(&matches) {
            return say(format_args!("{oneself:#}"));
        }
        let scopes = oneself["scopes"].as_array().map_or(0, Vec::len);
        let all = Scope::ALL.len();
        let rows = [
            ("api", target.url.clone()),
            (
                "account",
                named(&oneself["account"]["name"], &oneself["account"]["id"]),
            ),
            ("user", named(&oneself["user"], &oneself["owner_id"])),
            ("role", text(&oneself["role"])),
            (
                "key",
                named(
                    &oneself["api_key"]["description"],
                    &oneself["api_key"]["id"],
                ),
            ),
            (
                "expires",
                match &oneself["expires_at"] {
                    Value::Null => "never".to_owned(),
                    at => text(at),
                },
            ),
            (
                "scopes",
                match scopes == all {
                    true => "all".to_owned(),
                    false => {
                        let scopes = oneself["scopes"].as_array().into_iter().flatten();
                        scopes.map(text).collect::<Vec<_>>().join(", ")
                    }
                },
            ),
        ];
        for (name, value) in rows {
            say(format_args!("{name:8} {value}"))?;
        }
        Ok(())
    })
}

/// The response of `GET /self`.
pub(super) async fn oneself(client: &Client) -> Result<Value, Failure> {
    let answer = client.call(Method::GET, "/self", None).await?;
    match answer.status {
        200 => Ok(answer.body),
        _ => Err(Failure::Failed(answer.refusal())),
    }
}

/// A text for a terminal.
pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").escape_debug().to_string()
}

/// A name and an ID.
pub(super) fn named(name: &Value, id: &Value) -> String {
    match name.as_str() {
        Some(name) if !name.is_empty() => format!("{} ({})", name.escape_debug(), text(id)),
        _ => text(id),
    }
}
