//! `culvert events`: follows captured events, searches and replays retained events, and prints the catalogue.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;
use culvert_command::StopSignals;
use culvert_events::Family;
use http::Method;
use serde_json::{Value, json};

use super::api::{client_of, with_client};
use super::output::{format, is_text};
use super::{CommandType, Failure, say};
use crate::client::ApiResponse;
use crate::linked::Linked;

/// Polling interval while waiting for a replay.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const TAIL_FORMAT: &str = "Output format: one JSON object or one line of text per event [default: text on a terminal, otherwise JSON]";
const QUERY_EXAMPLES: &str = "\
Examples:
  culvert events query 502 shop.example.com last 24h
  culvert events query POST /checkout '>500ms' not 2xx
  culvert events query by:anna@example.com since yesterday
  culvert events query --filter 'ev.http.response.status_code >= 500'

Dates and times of day are in UTC. The guide `docs/how-to/events.md` lists all words.";
const QUERY_FORMAT: &str = "Output format: one JSON object or one line of text per event";

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "events",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .about("Follow, search and replay events, and list event types")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            with_client(
                Command::new("tail").about("Stream events as they occur"),
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
            )
            .arg(format(None, TAIL_FORMAT)),
        )
        .subcommand(
            query_command(),
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

fn query_command() -> Command {
    with_client(
        Command::new("query")
            .about("Search retained audit and traffic events, newest first")
            .after_help(QUERY_EXAMPLES),
    )
    .arg(
        Arg::new("words")
            .value_name("WORDS")
            .num_args(0..)
            .help("Search in plain words, such as `502 shop.example.com /checkout '>500ms' last 24h`; `not` before a word excludes it"),
    )
    .arg(
        Arg::new("type")
            .long("type")
            .value_name("KIND[,KIND]")
            .help("Event types to search [default: all]"),
    )
    .arg(
        Arg::new("filter")
            .long("filter")
            .value_name("EXPRESSION")
            .help("CEL condition over the envelope, `endpoint_id` and the fields below `ev`"),
    )
    .arg(
        Arg::new("object_id")
            .long("object")
            .value_name("ID")
            .help("Only audit events about this object, and traffic of this endpoint"),
    )
    .arg(
        Arg::new("actor_id")
            .long("actor")
            .value_name("ID")
            .help("Only audit events of this user or bot"),
    )
    .arg(
        Arg::new("from")
            .long("from")
            .value_name("TIME")
            .help("Only events at or after this RFC 3339 time"),
    )
    .arg(
        Arg::new("to")
            .long("to")
            .value_name("TIME")
            .help("Only events at or before this RFC 3339 time"),
    )
    .arg(
        Arg::new("order")
            .long("order")
            .value_name("ORDER")
            .value_parser(["newest", "oldest"])
            .default_value("newest")
            .help("Which events come first"),
    )
    .arg(
        Arg::new("limit")
            .long("limit")
            .value_name("NUMBER")
            .value_parser(value_parser!(u32).range(1..))
            .default_value("100")
            .help("Maximum number of events"),
    )
    .arg(
        Arg::new("follow")
            .long("follow")
            .action(ArgAction::SetTrue)
            .conflicts_with_all(["order", "limit", "to"])
            .help("Stream the events, oldest first, and continue with new ones"),
    )
    .arg(format(Some("text"), QUERY_FORMAT))
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        match matches.subcommand() {
            Some(("tail", given)) => tail(given).await,
            Some(("query", given)) if given.get_flag("follow") => follow(given).await,
            Some(("query", given)) => query(given).await,
            Some(("replay", given)) => replay(given).await,
            Some(("kinds", _)) => {
                for kind in (Linked::get().catalogue)().entries() {
                    say(format_args!("{:44} {}", kind.name(), kind.doc()))?;
                }
                Ok(())
            }
            Some(("schema", given)) => {
                let kind = given
                    .get_one::<String>("kind")
                    .map(String::as_str)
                    .unwrap_or_default();
                match (Linked::get().catalogue)().find(kind) {
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
    let path = path_of("/events/tail", given, &["type", "filter", "fields"]);
    let is_text = is_text(given);
    let mut said = Ok(());
    client
        .follow(&path, |name, data| {
            match name {
                "lost" => {
                    eprintln!("culvert: lost {data} events because this reader was too slow")
                }
                _ if is_text => said = say(line_of(&parsed(data), None)),
                _ => said = say(data),
            }
            said.is_ok()
        })
        .await?;
    said?;
    Err(Failure::Failed("the server ended the stream".into()))
}

/// What a query of retained events may name.
const SEARCHED: [&str; 6] = ["type", "filter", "object_id", "actor_id", "from", "to"];

/// The path of a query: its words and its parameters.
fn query_path(given: &ArgMatches, names: &[&str]) -> String {
    let path = path_of("/events", given, names);
    let words = given.get_many::<String>("words").into_iter().flatten();
    let words: Vec<&str> = words.map(String::as_str).collect();
    match words.is_empty() {
        true => path,
        false => {
            let words: String =
                url::form_urlencoded::byte_serialize(words.join(" ").as_bytes()).collect();
            let joint = if path.contains('?') { '&' } else { '?' };
            format!("{path}{joint}q={words}")
        }
    }
}

async fn query(given: &ArgMatches) -> Result<(), Failure> {
    let client = client_of(given)?;
    let mut stop = StopSignals::new()
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    let mut search = Search {
        is_text: is_text(given),
        n_left: given.get_one::<u32>("limit").copied().unwrap_or(1),
        n_found: 0,
        searched: Value::Null,
        shows_progress: std::io::stderr().is_terminal(),
    };
    let mut path = query_path(given, &[&SEARCHED[..], &["order"]].concat());
    while search.n_left > 0 {
        let answer = tokio::select! {
            answer = client.call(Method::GET, &path, None) => answer?,
            () = stop.next() => {
                search.clear_progress();
                return Err(Failure::Stopped(search.how_far()));
            }
        };
        search.clear_progress();
        let mut page = answered(answer)?;
        search.show(&mut page)?;
        match page["next_page_uri"].take() {
            Value::String(next) => path = next,
            _ => return Ok(()),
        }
        search.show_progress();
    }
    Ok(())
}

/// A search that continues until it has enough events, or the logs end.
struct Search {
    is_text: bool,
    n_left: u32,
    n_found: u64,
    /// How far it came, as in the last page.
    searched: Value,
    /// Whether standard error is a terminal.
    shows_progress: bool,
}

impl Search {
    fn show(&mut self, page: &mut Value) -> Result<(), Failure> {
        self.searched = page["searched"].take();
        let entries = page["events"].as_array().into_iter().flatten();
        for entry in entries.take(self.n_left as usize) {
            match self.is_text {
                true => say(line_of(&entry["event"], Some(entry)))?,
                false => say(entry)?,
            }
            self.n_left -= 1;
            self.n_found += 1;
        }
        Ok(())
    }

    fn show_progress(&self) {
        if self.shows_progress {
            eprint!("\r\x1b[2K{}", self.how_far());
        }
    }

    fn clear_progress(&self) {
        if self.shows_progress {
            eprint!("\r\x1b[2K");
        }
    }

    fn how_far(&self) -> String {
        let share = self.searched["share"].as_f64().unwrap_or(0.0) * 100.0;
        let to = match self.searched["to"].as_str() {
            Some(to) if to.chars().all(|c| !c.is_control()) => format!(", to {to}"),
            _ => String::new(),
        };
        format!("searched {share:.0} %{to}; found {}", self.n_found)
    }
}

async fn follow(given: &ArgMatches) -> Result<(), Failure> {
    let client = client_of(given)?;
    let is_text = is_text(given);
    let path = query_path(given, &SEARCHED);
    let joint = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{joint}follow=true");
    let mut said = Ok(());
    client
        .follow(&path, |_, data| {
            let entry = parsed(data);
            said = match is_text {
                true => say(line_of(&entry["event"], Some(&entry))),
                false => say(data),
            };
            said.is_ok()
        })
        .await?;
    said?;
    Err(Failure::Failed("the server ended the stream".into()))
}

fn parsed(data: &str) -> Value {
    serde_json::from_str(data).unwrap_or(Value::Null)
}

/// An event as one line for people: time, type, and what it is about. Texts of others are quoted, so that they
/// write nothing to a terminal but themselves.
fn line_of(event: &Value, entry: Option<&Value>) -> String {
    let text = |value: &Value| match value {
        Value::String(text) if text.chars().all(|c| !c.is_control()) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let object = &event["object"];
    // Why the edge refused it, or an upstream failed.
    let why = match &object["culvert"]["reason"] {
        Value::Null => String::new(),
        Value::String(reason) if reason.is_empty() => String::new(),
        reason => format!(": {}", text(reason)),
    };
    let about = match event["event_type"].as_str() {
        Some("traffic_refused.v0") => format!(
            "{} from {} to {}: {}",
            text(&object["count"]),
            text(&object["network"]),
            text(&object["sample"]["host"]),
            text(&object["reason"]),
        ),
        Some("http_request_complete.v0") => format!(
            "{} {} {} from {}{why}",
            text(&object["http"]["response"]["status_code"]),
            text(&object["http"]["request"]["method"]),
            text(&object["http"]["request"]["url"]["raw"]),
            text(&object["conn"]["client_ip"]),
        ),
        Some("tcp_connection_closed.v0") => format!(
            "{}:{} from {}, {} bytes in, {} bytes out{why}",
            text(&object["conn"]["server_name"]),
            text(&object["conn"]["server_port"]),
            text(&object["conn"]["client_ip"]),
            text(&object["conn"]["bytes_in"]),
            text(&object["conn"]["bytes_out"]),
        ),
        _ => {
            let id = match &object["id"] {
                Value::Null => &object["session"]["id"],
                id => id,
            };
            let by = text(&event["principal"]["subject"]);
            match entry.map(|entry| &entry["audit"]["position"]) {
                Some(position) => format!("{} by {by}, position {}", text(id), text(position)),
                None => format!("{} by {by}", text(id)),
            }
        }
    };
    let (at, kind) = (text(&event["event_timestamp"]), text(&event["event_type"]));
    format!("{at} {kind:32} {about}")
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
    let entries = (Linked::get().catalogue)().entries();
    let of_them = entries.filter(|kind| families.contains(&kind.family()));
    of_them.map(|kind| kind.name().to_owned()).collect()
}

fn answered(answer: ApiResponse) -> Result<Value, Failure> {
    if answer.status >= 300 {
        return Err(Failure::Failed(answer.refusal()));
    }
    Ok(answer.body)
}

/// A path with the arguments of these names as its query.
fn path_of(path: &str, given: &ArgMatches, names: &[&str]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for name in names {
        if let Some(value) = given.get_one::<String>(name) {
            query.append_pair(name, value);
        }
    }
    match query.finish().as_str() {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_subject_of_an_event() {
        let request = json!({"url": {"raw": "http://a/b"}, "method": "get"});
        let traffic = json!({
            "event_type": "http_request_complete.v0",
            "event_timestamp": "2026-11-20T19:53:18.737Z",
            "object": {
                "conn": {"client_ip": "203.0.113.7"},
                "http": {"request": request, "response": {"status_code": 200}},
            },
        });
        assert_eq!(
            line_of(&traffic, None),
            "2026-11-20T19:53:18.737Z http_request_complete.v0         200 get http://a/b from 203.0.113.7"
        );
        let mut failed = traffic;
        failed["object"]["culvert"] = json!({"reason": "upstream_aborted"});
        assert!(line_of(&failed, None).ends_with(" from 203.0.113.7: upstream_aborted"));
        let refused = json!({
            "event_type": "traffic_refused.v0",
            "event_timestamp": "2026-11-20T19:53:18.737Z",
            "object": {"reason": "unknown_host", "network": "203.0.113.0/24", "count": 9, "sample": {"host": "a\u{1b}"}},
        });
        assert_eq!(
            line_of(&refused, None),
            "2026-11-20T19:53:18.737Z traffic_refused.v0               9 from 203.0.113.0/24 to \"a\\u001b\": unknown_host"
        );
        let audit = json!({
            "event_type": "vault_created.v0",
            "event_timestamp": "2026-11-20T19:53:18.737Z",
            "principal": {"subject": "a\u{1b}[31m"},
            "object": {"id": "vault_1"},
        });
        let entry = json!({"audit": {"position": 7}});
        assert_eq!(
            line_of(&audit, Some(&entry)),
            "2026-11-20T19:53:18.737Z vault_created.v0                 vault_1 by \"a\\u001b[31m\", position 7"
        );
    }
}
