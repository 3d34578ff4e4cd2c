//! `culvert status`: whether an installation is healthy, and what it has.

use clap::{ArgMatches, Command};
use culvert_base::BoxFuture;
use http::Method;
use serde_json::{Value, json};

use super::api::{Target, with_client};
use super::output::{format, is_text};
use super::whoami::{named, text};
use super::{CommandType, Failure, say};
use crate::client::Client;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "status",
    arguments,
    run,
};

/// Maximum number of pages that are counted.
const PAGES_MAX: usize = 50;
/// Objects per page.
const PER_PAGE: usize = 100;
/// Maximum number of destinations whose health is read.
const DESTINATIONS_MAX: usize = 100;

fn arguments(command: Command) -> Command {
    let help = "Output format [default: text on a terminal, otherwise JSON]";
    let command = command.about(
        "Show whether a server is healthy, its version, endpoints, agents and destinations; exits with 1 if it is not",
    );
    with_client(command).arg(format(None, help))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let target = Target::of(&matches)?;
        let found = found(&target).await?;
        match is_text(&matches) {
            true => describe(&found, &target)?,
            false => {
                say(format_args!("{found:#}"))?;
                if !target.has_token() {
                    eprintln!("culvert: {}", target.missing());
                }
            }
        }
        let problems: Vec<&str> = found["problems"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(problems.join("; "))),
        }
    })
}

/// The state of the installation.
async fn found(target: &Target) -> Result<Value, Failure> {
    let mut problems = Vec::new();
    let public = target.with_token(String::new())?;
    let ready = public.call(Method::GET, "/readyz", None).await?;
    match (ready.status, &ready.body["ready"]) {
        (200, Value::Bool(true)) => {}
        (503, Value::Bool(false)) => {
            problems.push(format!(
                "not ready: {}",
                super::health::problems(ready.body.to_string().as_bytes())
            ));
        }
        (status, _) => {
            let text = format!(
                "{} responded with status {status}; is it the API of culvert?",
                target.url
            );
            return Err(Failure::Failed(text));
        }
    }
    let mut found = json!({
        "url": target.url, "ready": problems.is_empty(), "version": null, "account": null, "user": null,
        "owner_id": null, "role": null, "endpoints": null, "agent_sessions": null, "destinations": null,
    });
    if target.has_token() {
        let client = target.client()?;
        let oneself = client.call(Method::GET, "/self", None).await?;
        match oneself.status {
            200 => {
                for name in ["account", "user", "owner_id", "role"] {
                    found[name] = oneself.body[name].clone();
                }
                let nodes = listed(&client, "/nodes", "nodes", 1).await?;
                let version = nodes.as_ref().and_then(|list| list.items.first());
                found["version"] = version.map_or(Value::Null, |node| node["version"].clone());
                for (name, path, field) in [
                    ("endpoints", "/endpoints", "endpoints"),
                    ("agent_sessions", "/tunnel_sessions", "tunnel_sessions"),
                ] {
                    let list = listed(&client, path, field, PAGES_MAX).await?;
                    found[name] = list.map_or(Value::Null, |list| list.items.len().into());
                }
                found["destinations"] = destinations(&client, &mut problems).await?;
            }
            _ => problems.push(oneself.refusal()),
        }
    }
    found["healthy"] = problems.is_empty().into();
    found["problems"] = problems.into();
    Ok(found)
}

/// Objects of a list.
struct List {
    items: Vec<Value>,
}

/// The objects of a list, at most this number of pages; `None` if the key may not read it.
async fn listed(
    client: &Client,
    path: &str,
    field: &str,
    pages: usize,
) -> Result<Option<List>, Failure> {
    let mut items = Vec::new();
    let mut path = match path {
        "/nodes" => path.to_owned(),
        path => format!("{path}?limit={PER_PAGE}"),
    };
    for _ in 0..pages {
        let mut answer = client.call(Method::GET, &path, None).await?;
        match answer.status {
            200 => {}
            403 => return Ok(None),
            _ => return Err(Failure::Failed(answer.refusal())),
        }
        if let Value::Array(more) = answer.body[field].take() {
            items.extend(more);
        }
        match answer.body["next_page_uri"].take() {
            Value::String(next) => path = next,
            _ => break,
        }
    }
    Ok(Some(List { items }))
}

/// The number of destinations in each state.
async fn destinations(client: &Client, problems: &mut Vec<String>) -> Result<Value, Failure> {
    let field = "event_destinations";
    let Some(list) = listed(client, "/event_destinations", field, PAGES_MAX).await? else {
        return Ok(Value::Null);
    };
    let mut counts = json!({"total": list.items.len(), "ok": 0, "retrying": 0, "unhealthy": 0});
    for destination in list.items.iter().take(DESTINATIONS_MAX) {
        let id = destination["id"].as_str().unwrap_or_default();
        let path = format!("/event_destinations/{id}/health");
        let answer = client.call(Method::GET, &path, None).await?;
        // It may have been deleted meanwhile.
        let Some(state) = answer.body["state"]
            .as_str()
            .filter(|_| answer.status == 200)
        else {
            continue;
        };
        let count = counts[state].as_u64().unwrap_or_default();
        counts[state] = (count + 1).into();
        if state == "unhealthy" {
            let shown = named(&destination["description"], &destination["id"]);
            problems.push(format!("the event destination {shown} is unhealthy"));
        }
    }
    Ok(counts)
}

fn describe(found: &Value, target: &Target) -> Result<(), Failure> {
    let number = |value: &Value| match value.as_u64() {
        Some(count) if count >= (PAGES_MAX * PER_PAGE) as u64 => format!("{count} or more"),
        Some(count) => count.to_string(),
        None => "-".to_owned(),
    };
    let ready = match found["ready"] == true {
        true => "ready",
        false => "not ready",
    };
    say(format_args!(
        "server        {} {ready}",
        text(&found["url"])
    ))?;
    if found["user"].is_null() {
        return say(format_args!("key           {}", target.missing()));
    }
    let account = &found["account"];
    say(format_args!("version       {}", text(&found["version"])))?;
    say(format_args!(
        "account       {}",
        named(&account["name"], &account["id"])
    ))?;
    let user = named(&found["user"], &found["owner_id"]);
    say(format_args!(
        "user          {user}, {}",
        text(&found["role"])
    ))?;
    say(format_args!(
        "endpoints     {}",
        number(&found["endpoints"])
    ))?;
    say(format_args!(
        "agents        {} online",
        number(&found["agent_sessions"])
    ))?;
    let destinations = &found["destinations"];
    say(format_args!(
        "destinations  {}: {} ok, {} retrying, {} unhealthy",
        number(&destinations["total"]),
        number(&destinations["ok"]),
        number(&destinations["retrying"]),
        number(&destinations["unhealthy"]),
    ))
}
