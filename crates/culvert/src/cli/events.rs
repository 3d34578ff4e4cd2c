//! `culvert events`: follows captured events, replays retained events, and prints the catalogue.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use culvert_base::BoxFuture;
use culvert_events::Family;
use http::Method;
use serde_json::{Value, json};

use super::api::{client_of, with_client};
use super::{CommandType, Failure, say};
use crate::client::Answer;

/// Polling interval while waiting for a replay.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "events",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Follow and replay events, and list event types")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            with_client(
                Command::new("tail").about("Stream events, one JSON object per line"),
            )
            .arg(
                Arg::new("type")
                    .long("type")
                    .value_name("KIND[,KIND]")
                    .help("Event types to stream [default: all]"),
            )
            .arg(
                Arg::new("filter")
                    .long("filter")
                    .value_name("EXPRESSION")
                    .help("CEL filter for traffic events"),
            )
            .arg(
                Arg::new("fields")
                    .long("fields")
                    .value_name("FIELD[,FIELD]")
                    .help("Fields of traffic events to include"),
            ),
        )
        .subcommand(
            with_client(Command::new("replay").about(
                "Replay retained events to a destination with their original IDs: audit events, and traffic events if `events.traffic_retention` is set",
            ))
            .arg(
                Arg::new("destination")
                    .long("destination")
                    .value_name("ID")
                    .required(true)
                    .help("Event destination"),
            )
            .arg(
                Arg::new("from")
                    .long("from")
                    .value_name("TIME|ID")
                    .required(true)
                    .help("First event, as an RFC 3339 time or an event ID"),
            )
            .arg(
                Arg::new("to")
                    .long("to")
                    .value_name("TIME|ID")
                    .help("Last event, as an RFC 3339 time or an event ID [default: the latest]"),
            )
            .arg(
                Arg::new("kinds")
                    .long("kinds")
                    .value_name("KIND[,KIND]")
                    .value_delimiter(',')
                    .help("Event types to replay, or `audit`, `traffic` or `all` [default: the types of the destination's subscriptions]"),
            )
            .arg(
                Arg::new("wait")
                    .long("wait")
                    .action(ArgAction::SetTrue)
                    .help("Wait until all events are in the destination's queue"),
            ),
        )
        .subcommand(Command::new("kinds").about("List all event types"))
        .subcommand(
            Command::new("schema")
                .about("Print the JSON Schema of an event type")
                .arg(Arg::new("kind").required(true)),
        )
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        match matches.subcommand() {
            Some(("tail", given)) => tail(given).await,
            Some(("replay", given)) => replay(given).await,
            Some(("kinds", _)) => {
                for kind in culvert_control::catalogue().entries() {
                    say(format_args!("{:44} {}", kind.name(), kind.doc()))?;
                }
                Ok(())
            }
            Some(("schema", given)) => {
                let kind = given
                    .get_one::<String>("kind")
                    .map(String::as_str)
                    .unwrap_or_default();
                match culvert_control::catalogue().find(kind) {
                    Some(found) => say(format_args!("{:#}", found.json_schema())),
                    None => Err(Failure::Usage(format!(
                        "the event type `{kind}` does not exist; `culvert events kinds` lists all types"
                    ))),
                }
            }
            _ => Ok(()),
        }
    })
}

async fn tail(given: &ArgMatches) -> Result<(), Failure> {
    let client = client_of(given)?;
    let path = tail_path(given);
    let mut said = Ok(());
    client
        .follow(&path, |name, data| {
            match name {
                "lost" => {
                    eprintln!("culvert: lost {data} events because this reader was too slow")
                }
                _ => said = say(data),
            }
            said.is_ok()
        })
        .await?;
    said?;
    Err(Failure::Failed("the server ended the stream".into()))
}

async fn replay(given: &ArgMatches) -> Result<(), Failure> {
    let client = client_of(given)?;
    let text = |name: &str| given.get_one::<String>(name).map(String::as_str);
    let named = given.get_many::<String>("kinds").into_iter().flatten();
    let kinds: Vec<String> = named.flat_map(|name| kinds_of(name)).collect();
    let body = json!({"from": text("from"), "to": text("to"), "event_types": kinds});
    let destination = text("destination").unwrap_or_default();
    let destination: String =
        url::form_urlencoded::byte_serialize(destination.as_bytes()).collect();
    let path = format!("/event_destinations/{destination}/replay");
    let mut replay = answered(client.call(Method::POST, &path, Some(&body)).await?)?;
    let id = replay["id"].clone();
    while given.get_flag("wait") && replay["state"] == "running" {
        tokio::time::sleep(LOOK_EVERY).await;
        replay = answered(client.call(Method::GET, &path, None).await?)?;
        if replay["id"] != id {
            let text = "another replay to this destination replaced this one";
            return Err(Failure::Failed(text.into()));
        }
    }
    say(format_args!("{replay:#}"))
}

/// The event kinds of a group.
fn kinds_of(name: &str) -> Vec<String> {
    let families: &[Family] = match name {
        "audit" => &[Family::Audit, Family::Agent],
        "traffic" => &[Family::Traffic],
        "all" => &[Family::Audit, Family::Agent, Family::Traffic],
        kind => return vec![kind.to_owned()],
    };
    let entries = culvert_control::catalogue().entries();
    let of_them = entries.filter(|kind| families.contains(&kind.family()));
    of_them.map(|kind| kind.name().to_owned()).collect()
}

fn answered(answer: Answer) -> Result<Value, Failure> {
    if answer.status >= 300 {
        return Err(Failure::Failed(answer.refusal()));
    }
    Ok(answer.body)
}

fn tail_path(given: &ArgMatches) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for name in ["type", "filter", "fields"] {
        if let Some(value) = given.get_one::<String>(name) {
            query.append_pair(name, value);
        }
    }
    match query.finish().as_str() {
        "" => "/events/tail".to_owned(),
        query => format!("/events/tail?{query}"),
    }
}
