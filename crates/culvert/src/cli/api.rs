//! `culvert api <collection> <operation> …`: all operations of the management API. Commands and flags are generated
//! from the operation table.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;
use culvert_control::{EVENTS_PATH, Operation};
use serde_json::{Map, Value};

use super::{CommandType, Failure, say};
use crate::client::{self, Client};
use crate::config;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "api",
    arguments,
    run,
};

/// The default URL of the API.
const DEFAULT_URL: &str = "http://127.0.0.1:8420";

fn arguments(command: Command) -> Command {
    let mut command = with_client(command.about("Call the management API"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("table")
                .long("table")
                .global(true)
                .action(ArgAction::SetTrue)
                .help("Print a table instead of JSON"),
        );
    for (collection, operations) in collections() {
        let mut group = Command::new(collection)
            .aliases(Some(dashed(collection)).filter(|alias| alias != collection))
            .subcommand_required(true)
            .arg_required_else_help(true);
        for operation in operations {
            group = group.subcommand(operation_command(operation));
        }
        command = command.subcommand(group);
    }
    command
}

/// Adds the flags for the URL and the token of the API.
pub fn with_client(command: Command) -> Command {
    command
        .arg(
            Arg::new("api-url")
                .long("api-url")
                .global(true)
                .value_name("URL")
                .help(format!("Address of the API [env: CULVERT_API_URL] [default: {DEFAULT_URL}]")),
        )
        .arg(
            Arg::new("token-file")
                .long("token-file")
                .global(true)
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("File with the API key's token [env: CULVERT_API_KEY] [default: ./culvert-data/bootstrap-key]"),
        )
}

/// The client for the flags of [`with_client`] and the environment.
pub fn client_of(matches: &ArgMatches) -> Result<Client, Failure> {
    let mut environment = config::environment();
    let url = matches.get_one::<String>("api-url").cloned();
    let url = url.or_else(|| environment.remove("CULVERT_API_URL"));
    let token = match (
        matches.get_one::<PathBuf>("token-file"),
        environment.remove("CULVERT_API_KEY"),
    ) {
        (Some(path), _) => client::read_token(path)?,
        (None, Some(token)) => token,
        (None, None) => {
            let folder = environment
                .remove("CULVERT_DATA_DIR")
                .unwrap_or("./culvert-data".into());
            let path = PathBuf::from(folder).join("bootstrap-key");
            if !path.is_file() {
                let text = "no API key; set CULVERT_API_KEY or use `--token-file`";
                return Err(Failure::Usage(text.into()));
            }
            client::read_token(&path)?
        }
    };
    Ok(Client::new(url.as_deref().unwrap_or(DEFAULT_URL), token)?)
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((collection, group)) = matches.subcommand() else {
            return Ok(());
        };
        let Some((name, given)) = group.subcommand() else {
            return Ok(());
        };
        let operation = culvert_control::operations()
            .iter()
            .find(|o| collection_of(o) == collection && command_name(o) == name)
            .context("the operation left the table")?;
        let path = filled_path(operation, given);
        let body = body_of(operation, given)?;
        let client = client_of(given)?;
        if is_followed(operation, given) {
            return follow(&client, &path, given).await;
        }
        let answer = client
            .call(
                operation
                    .method
                    .as_str()
                    .parse()
                    .map_err(anyhow::Error::from)?,
                &path,
                body.as_ref(),
            )
            .await?;
        if answer.status >= 300 {
            return Err(Failure::Failed(answer.refusal()));
        }
        if given.get_flag("table") {
            say(table(&answer.body).trim_end())?;
        } else if !answer.body.is_null() {
            say(format_args!("{:#}", answer.body))?;
        }
        // A successful response may report a failure, such as that of `event-destinations test`.
        if answer.body["delivered"] == false {
            let why = answer.body["error"].as_str().unwrap_or("no reason given");
            return Err(Failure::Failed(format!(
                "the event was not delivered: {why}"
            )));
        }
        Ok(())
    })
}

/// Whether the response is a stream: that of the list of events with `--follow true`.
fn is_followed(operation: &Operation, given: &ArgMatches) -> bool {
    let follow = || {
        given
            .get_many::<String>("follow")
            .into_iter()
            .flatten()
            .any(|value| value == "true")
    };
    operation.path == EVENTS_PATH && follow()
}

/// Prints the data of each message of a stream as one line.
async fn follow(client: &Client, path: &str, given: &ArgMatches) -> Result<(), Failure> {
    if given.get_flag("table") {
        let text = "`--table` cannot be used with `--follow true`";
        return Err(Failure::Usage(text.into()));
    }
    let mut said = Ok(());
    client
        .follow(path, |_, data| {
            said = say(data);
            said.is_ok()
        })
        .await?;
    said?;
    Err(Failure::Failed("the server ended the stream".into()))
}

/// All operations by collection, both sorted.
fn collections() -> BTreeMap<&'static str, Vec<&'static Operation>> {
    let mut collections: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for operation in culvert_control::operations() {
        collections
            .entry(collection_of(operation))
            .or_default()
            .push(operation);
    }
    collections
}

fn collection_of(operation: &Operation) -> &'static str {
    operation.collection
}

fn command_name(operation: &Operation) -> String {
    dashed(operation.name)
}

/// A name as spelled on the command line.
fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

fn operation_command(operation: &'static Operation) -> Command {
    let mut command = Command::new(command_name(operation)).about(operation.doc.as_str());
    for parameter in path_parameters(&operation.path) {
        command = command.arg(Arg::new(parameter.to_owned()).required(true));
    }
    for parameter in operation.query {
        command = command.arg(
            Arg::new(parameter.name)
                .long(parameter.name.replace('_', "-"))
                .value_name("VALUE")
                .action(ArgAction::Append)
                .help(parameter.doc),
        );
    }
    if operation.body.is_some() {
        command = command.arg(
            Arg::new("json")
                .long("json")
                .value_name("OBJECT")
                .help("Request body as JSON; other flags override its fields"),
        );
        for (name, property) in body_properties(operation) {
            if path_parameters(&operation.path).contains(&name.as_str()) {
                continue;
            }
            let doc = property["description"]
                .as_str()
                .unwrap_or_default()
                .replace('\n', " ");
            // The flag of a list may be repeated.
            let action = match takes(&property) {
                Takes::Texts => ArgAction::Append,
                Takes::Text | Takes::Json => ArgAction::Set,
            };
            command = command.arg(
                Arg::new(name.clone())
                    .long(dashed(&name))
                    .value_name("VALUE")
                    .action(action)
                    // PEM begins with dashes.
                    .allow_hyphen_values(true)
                    .help(doc),
            );
        }
    }
    command
}

/// The parameters of a path: `id` and `type` for `/a/{id}/b/{type}`.
fn path_parameters(path: &str) -> Vec<&str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .collect()
}

/// Top-level properties of an operation's body, from its schema.
fn body_properties(operation: &Operation) -> Map<String, Value> {
    let Some(body) = &operation.body else {
        return Map::new();
    };
    let mut generator = schemars::SchemaGenerator::default();
    let schema = (body.schema)(&mut generator).to_value();
    let target = match schema["$ref"]
        .as_str()
        .and_then(|r| r.strip_prefix("#/$defs/"))
    {
        Some(name) => generator
            .definitions()
            .get(name)
            .cloned()
            .unwrap_or_default(),
        None => schema,
    };
    target["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default()
}

fn filled_path(operation: &Operation, given: &ArgMatches) -> String {
    let mut path = String::new();
    for part in operation.path.split('/').skip(1) {
        path.push('/');
        match part
            .strip_prefix('{')
            .and_then(|part| part.strip_suffix('}'))
        {
            Some(name) => {
                let value = given
                    .get_one::<String>(name)
                    .map(String::as_str)
                    .unwrap_or_default();
                path.extend(url::form_urlencoded::byte_serialize(value.as_bytes()));
            }
            None => path.push_str(part),
        }
    }
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for parameter in operation.query {
        for value in given
            .get_many::<String>(parameter.name)
            .into_iter()
            .flatten()
        {
            query.append_pair(parameter.name, value);
        }
    }
    let query = query.finish();
    if path.is_empty() {
        path.push('/');
    }
    if query.is_empty() {
        path
    } else {
        format!("{path}?{query}")
    }
}

fn body_of(operation: &Operation, given: &ArgMatches) -> Result<Option<Value>, Failure> {
    if operation.body.is_none() {
        return Ok(None);
    }
    let mut body = match given.get_one::<String>("json") {
        Some(text) => match serde_json::from_str(text) {
            Ok(Value::Object(body)) => body,
            _ => return Err(Failure::Usage("`--json` must be a JSON object".into())),
        },
        None => Map::new(),
    };
    for (name, property) in body_properties(operation) {
        if path_parameters(&operation.path).contains(&name.as_str()) {
            continue;
        }
        let mut texts = given.get_many::<String>(&name).into_iter().flatten();
        let Some(text) = texts.next() else {
            continue;
        };
        let is_json = || {
            let flag = dashed(&name);
            serde_json::from_str(text)
                .map_err(|_| Failure::Usage(format!("`--{flag}` must be JSON, not `{text}`")))
        };
        let value = match takes(&property) {
            Takes::Text => Value::String(text.clone()),
            // The flag also accepts a whole list as JSON.
            Takes::Texts if text.starts_with('[') => is_json()?,
            Takes::Texts => std::iter::once(text).chain(texts).cloned().collect(),
            Takes::Json => is_json()?,
        };
        body.insert(name, value);
    }
    Ok(Some(Value::Object(body)))
}

/// How the value of a flag is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// As text.
    Text,
    /// As one item of a list of texts.
    Texts,
    /// As JSON.
    Json,
}

fn takes(property: &Value) -> Takes {
    let is = |kind: &str| match &property["type"] {
        Value::String(name) => name == kind,
        Value::Array(names) => names.iter().any(|name| name == kind),
        _ => false,
    };
    if is("string") {
        Takes::Text
    } else if is("array") && property["items"]["type"] == "string" {
        Takes::Texts
    } else {
        Takes::Json
    }
}

/// Formats a list with one row per item, or an object with one row per field.
fn table(body: &Value) -> String {
    let Some(object) = body.as_object() else {
        return String::new();
    };
    let cell = |value: &Value| match value {
        Value::String(text) => text.escape_debug().to_string(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let list = object
        .values()
        .find_map(Value::as_array)
        .filter(|_| object.contains_key("next_page_uri"));
    let rows: Vec<Vec<String>> = match list {
        Some(items) => {
            let Some(first) = items.first().and_then(Value::as_object) else {
                return String::new();
            };
            let names: Vec<&String> = first.keys().filter(|name| *name != "uri").collect();
            let head = names.iter().map(|name| name.to_uppercase()).collect();
            let items = items.iter().map(|item| {
                names
                    .iter()
                    .map(|name| cell(&item[name.as_str()]))
                    .collect()
            });
            std::iter::once(head).chain(items).collect()
        }
        None => object
            .iter()
            .map(|(name, value)| vec![name.clone(), cell(value)])
            .collect(),
    };
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            rows.iter()
                .filter_map(|row| row.get(c))
                .map(|text| text.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}
