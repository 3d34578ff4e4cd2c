//! `culvert api <collection> <operation> …`: all operations of the management API. Commands and flags are generated
//! from the operation table.

mod history;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use culvert_base::BoxFuture;
use culvert_base::names::escaped;
use culvert_command::environment;
use culvert_resources::operation::{EVENTS_PATH, OperationSpec, SchemaOf};
use http::Method;
use serde_json::{Map, Value};

use super::table::{field_of, table_of, with_table};
use super::{CommandType, Failure, say};
use crate::client::{self, Client};
use crate::linked::Linked;
use culvert_command::Profile;

/// Registered in [`super::ALL`].
pub static TYPE: CommandType = CommandType {
    name: "api",
    arguments,
    run,
};

/// The default URL of the API.
const DEFAULT_URL: &str = "http://127.0.0.1:8420";

fn arguments(command: Command) -> Command {
    let mut command = with_table(with_client(command.about("Call the management API")))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(
            "The value of a text field may be `@FILE` for the text of a file, without its last line break, or `-` for \
             standard input; `@@` begins a text with `@`. The flag of a list may be repeated.",
        );
    for (collection, operations) in collections() {
        // `root` and `self` belong to no collection.
        if collection.is_empty() {
            for operation in operations {
                command = command.subcommand(operation_command(operation));
            }
            continue;
        }
        let doc = (Linked::get().collection_doc)(collection);
        let first = doc.split_once(". ").map_or(doc, |(first, _)| first);
        let mut group = Command::new(collection)
            .about(first.trim_end_matches('.'))
            .long_about(doc)
            .aliases(Some(dashed(collection)).filter(|alias| alias != collection))
            .subcommand_required(true)
            .arg_required_else_help(true);
        let versions = history::has_versions(&operations);
        for operation in operations {
            group = group.subcommand(operation_command(operation));
        }
        if versions {
            group = group.subcommands(history::commands(&dashed(collection)));
        }
        command = command.subcommand(group);
    }
    command
}

/// Adds the flags for the URL, the token and the CAs of the API.
pub fn with_client(command: Command) -> Command {
    let file = |id: &'static str, name: &'static str| {
        Arg::new(id)
            .long(name)
            .global(true)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
    };
    command
        .arg(
            Arg::new("api-url")
                .long("api-url")
                .global(true)
                .value_name("URL")
                .help(format!("Address of the API [env: CULVERT_API_URL] [default: that of `culvert login`, otherwise {DEFAULT_URL}]")),
        )
        .arg(
            file("token-file", "token-file")
                .help("File with the API key's token [env: CULVERT_API_KEY] [default: the key of `culvert login`, otherwise ./culvert-data/bootstrap-key or /var/lib/culvert/bootstrap-key]"),
        )
        .arg(
            file("api-ca", "ca")
                .help("PEM file of CAs to verify the API [env: CULVERT_API_CA_FILE] [default: that of `culvert login`, otherwise the system's CAs]"),
        )
}

/// The data directory of the packaged service.
const SERVICE_FOLDER: &str = "/var/lib/culvert";
/// File with the token of the first key, in a data directory.
const FIRST_KEY: &str = "bootstrap-key";

/// The API that a command calls, from flags, the environment and what `culvert login` saved.
#[derive(Debug)]
pub struct Target {
    /// Its URL.
    pub url: String,
    /// PEM file of CAs.
    pub ca: Option<PathBuf>,
    token: Option<String>,
    /// Where the token is from.
    origin: Option<Arc<str>>,
    /// Why there is no token, if there is more to say than how to give one.
    missing: Option<String>,
}

/// Whether a URL names this machine.
fn is_loopback(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    })
}

/// Says which key a token is of, and where it is from.
fn origin(token: &str, from: impl std::fmt::Display) -> Arc<str> {
    match culvert_command::id_of(token, "ak") {
        Some(id) => format!("the key `{id}` is from {from}").into(),
        None => format!("the key is from {from}").into(),
    }
}

/// The token of the first key in a data directory; `None` without the file.
fn first_key(folder: &Path) -> Option<Result<(String, Arc<str>), Failure>> {
    let path = folder.join(FIRST_KEY);
    path.is_file().then(|| {
        let token = client::read_token(&path)?;
        let origin = origin(&token, format_args!("`{}`", path.display()));
        Ok((token, origin))
    })
}

impl Target {
    /// For the flags of [`with_client`]. A key that was saved for a URL is sent to no other URL.
    pub fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut environment = environment();
        let url = matches.get_one::<String>("api-url").cloned();
        let url = url.or_else(|| environment.remove("CULVERT_API_URL"));
        let url = url.map(|url| url.trim_end_matches('/').to_owned());
        let ca = matches.get_one::<PathBuf>("api-ca").cloned();
        let ca = ca.or_else(|| environment.remove("CULVERT_API_CA_FILE").map(PathBuf::from));
        let given = match matches.get_one::<PathBuf>("token-file") {
            Some(path) => {
                let token = client::read_token(path)?;
                let origin = origin(&token, format_args!("`{}`", path.display()));
                Some((token, origin))
            }
            None => environment.remove("CULVERT_API_KEY").map(|token| {
                let origin = origin(&token, "CULVERT_API_KEY");
                (token, origin)
            }),
        };
        if let (Some(url), Some((token, origin))) = (&url, &given) {
            return Ok(Self {
                url: url.clone(),
                ca,
                token: Some(token.clone()),
                origin: Some(Arc::clone(origin)),
                missing: None,
            });
        }
        let saved = Profile::load()?;
        let is_saved = url.is_none() || url == saved.api_url;
        let mut target = Self {
            url: url
                .or_else(|| saved.api_url.clone())
                .unwrap_or_else(|| DEFAULT_URL.to_owned()),
            ca: ca.or(saved.api_ca.filter(|_| is_saved)),
            token: None,
            origin: None,
            missing: None,
        };
        if let Some((token, origin)) = given {
            target.take(token, origin);
            return Ok(target);
        }
        // The first key of the server in this directory is for this machine alone.
        let folder = environment.remove("CULVERT_DATA_DIR");
        let folder = PathBuf::from(folder.unwrap_or("./culvert-data".into()));
        let local = match is_loopback(&target.url) {
            true => first_key(&folder).transpose()?,
            false => None,
        };
        match saved.api_key {
            Some(key) if is_saved => {
                let path = Profile::path()?;
                let mut origin = origin(key.reveal(), format_args!("`{}`", path.display()));
                if local.is_some() {
                    let path = folder.join(FIRST_KEY);
                    origin = format!(
                        "{origin}, where `culvert login` saved it; `--token-file {}` uses that of the server in this directory",
                        path.display()
                    )
                    .into();
                }
                target.take(key.reveal().to_owned(), origin);
                return Ok(target);
            }
            Some(_) => {
                target.missing = saved.api_url.map(|other| {
                    format!(
                        "no API key for {}: the saved one is for {other}; set CULVERT_API_KEY or use `--token-file`",
                        target.url
                    )
                });
            }
            None => {}
        }
        let service = || match is_loopback(&target.url) {
            true => first_key(Path::new(SERVICE_FOLDER)).transpose(),
            false => Ok(None),
        };
        if let Some((token, origin)) = local.map_or_else(service, |local| Ok(Some(local)))? {
            target.take(token, origin);
        } else if target.missing.is_none() && is_loopback(&target.url) {
            target.missing = hidden_key(Path::new(SERVICE_FOLDER));
        }
        Ok(target)
    }

    fn take(&mut self, token: String, origin: Arc<str>) {
        (self.token, self.origin) = (Some(token), Some(origin));
    }

    /// The API at another address, without a token.
    pub fn at(self, url: &str) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        match url == self.url {
            true => self,
            false => Self {
                url,
                token: None,
                origin: None,
                ..self
            },
        }
    }

    /// Whether there is a token for this address.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// A client with the token, which must exist.
    pub fn client(&self) -> Result<Client, Failure> {
        match &self.token {
            Some(token) => Ok(self
                .with_token(token.clone())?
                .with_origin(self.origin.clone())),
            None => Err(Failure::Usage(self.missing())),
        }
    }

    /// Why there is no token, and how to give one.
    pub fn missing(&self) -> String {
        let usual = || "no API key; use `culvert login`, CULVERT_API_KEY or `--token-file`".into();
        self.missing.clone().unwrap_or_else(usual)
    }

    /// A client with another token; empty for none.
    pub fn with_token(&self, token: String) -> Result<Client, Failure> {
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("reading `{}`", path.display()))
        };
        let pem = self.ca.as_ref().map(read).transpose()?;
        Ok(Client::with_authorities(&self.url, token, pem.as_deref())?)
    }
}

/// What to do where the packaged service has a data directory that this user cannot read.
fn hidden_key(folder: &Path) -> Option<String> {
    let found = std::fs::metadata(folder.join(FIRST_KEY));
    let is_hidden = found.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    is_hidden.then(|| {
        format!(
            "no API key; that of the service is in `{}`, which only root and the user of the service can read: use sudo, or save a key of your own with `culvert login`",
            folder.join(FIRST_KEY).display()
        )
    })
}

/// The client for the flags of [`with_client`], the environment and what `culvert login` saved.
pub fn client_of(matches: &ArgMatches) -> Result<Client, Failure> {
    Target::of(matches)?.client()
}

fn run(matches: ArgMatches) -> BoxFuture<'static, Result<(), Failure>> {
    Box::pin(async move {
        let Some((collection, group)) = matches.subcommand() else {
            return Ok(());
        };
        let (collection, name, given) = match group.subcommand() {
            Some((name, given)) => (collection, name, given),
            None => ("", collection, group),
        };
        if name == history::HISTORY || name == history::RESTORE {
            let operations = collections().remove(collection).unwrap_or_default();
            return history::run(&operations, name, given).await;
        }
        let operation = (Linked::get().operations)()
            .iter()
            .find(|o| collection_of(o) == collection && command_name(o) == name)
            .context("the operation left the table")?;
        let path = filled_path(operation, given);
        let body = body_of(operation, given)?;
        check_field(operation, given)?;
        let client = client_of(given)?;
        if is_followed(operation, given) {
            return follow(&client, &path, given).await;
        }
        let mut answer = client
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
        if has_pages(operation) {
            let is_all = given.get_flag(ALL_PAGES);
            answer.body = with_further_pages(&client, answer.body, is_all).await?;
        }
        show(given, &answer.body)?;
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

/// Refuses a `--field` that a response cannot have before the call: a token is shown once, and a misspelled field would
/// lose it.
fn check_field(operation: &OperationSpec, given: &ArgMatches) -> Result<(), Failure> {
    let (Some(field), Some(schema)) = (given.get_one::<String>("field"), operation.response.schema)
    else {
        return Ok(());
    };
    let mut known = properties(schema);
    known.extend(operation.preview.map(properties).unwrap_or_default());
    let first = field.split('.').next().unwrap_or_default();
    // The fields of a list are those of its items, which are read only.
    match has_pages(operation) || known.is_empty() || known.contains_key(first) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "the response has no field `{}`",
            escaped(first)
        ))),
    }
}

/// Prints a response in the form that the flags ask for.
fn show(given: &ArgMatches, body: &Value) -> Result<(), Failure> {
    if let Some(values) = field_of(given, body) {
        values?.iter().try_for_each(say)
    } else if let Some(table) = table_of(given) {
        say(table.render(body).trim_end())
    } else if body.is_null() {
        Ok(())
    } else {
        say(format_args!("{body:#}"))
    }
}

/// Refuses the flags of [`show`] for an output that is no response.
fn without_form(given: &ArgMatches, what: &str) -> Result<(), Failure> {
    match table_of(given).is_some() || given.contains_id("field") {
        true => Err(Failure::Usage(format!(
            "`--table`, `--columns` and `--field` cannot be used with {what}"
        ))),
        false => Ok(()),
    }
}

/// The flag for all pages of a list.
const ALL_PAGES: &str = "all-pages";

/// Whether an operation returns a list in pages.
fn has_pages(operation: &OperationSpec) -> bool {
    let is_page = |parameter: &culvert_resources::Parameter| parameter.name == "limit";
    operation.name.starts_with("list") && operation.query.iter().any(is_page)
}

/// Adds the further pages to the first one of a list, or says that there are some.
async fn with_further_pages(
    client: &Client,
    mut body: Value,
    is_all: bool,
) -> Result<Value, Failure> {
    while let Some(next) = body["next_page_uri"].as_str().map(str::to_owned) {
        if !is_all {
            eprintln!("culvert: the list has more; `--{ALL_PAGES}` gets all of it");
            break;
        }
        let mut page = client.expect(Method::GET, &next, None).await?;
        let more = items_of(&mut page).map(std::mem::take).unwrap_or_default();
        // A page without items is the last one, whatever it says.
        let next = match more.is_empty() {
            true => Value::Null,
            false => page["next_page_uri"].take(),
        };
        if let Some(list) = items_of(&mut body) {
            list.extend(more);
        }
        body["next_page_uri"] = next;
    }
    Ok(body)
}

/// The items of a page.
fn items_of(page: &mut Value) -> Option<&mut Vec<Value>> {
    let fields = page.as_object_mut()?;
    fields.values_mut().find_map(Value::as_array_mut)
}

/// Whether the response is a stream: that of the list of events with `--follow true`.
fn is_followed(operation: &OperationSpec, given: &ArgMatches) -> bool {
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
    without_form(given, "`--follow true`")?;
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
fn collections() -> BTreeMap<&'static str, Vec<&'static OperationSpec>> {
    let mut collections: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for operation in (Linked::get().operations)() {
        collections
            .entry(collection_of(operation))
            .or_default()
            .push(operation);
    }
    collections
}

fn collection_of(operation: &OperationSpec) -> &'static str {
    operation.collection
}

fn command_name(operation: &OperationSpec) -> String {
    dashed(operation.name)
}

/// A name as spelled on the command line.
fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

fn operation_command(operation: &'static OperationSpec) -> Command {
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
    if has_pages(operation) {
        command = command.arg(
            Arg::new(ALL_PAGES)
                .long(ALL_PAGES)
                .action(ArgAction::SetTrue)
                .help("Get all pages; without it, the first one"),
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
                Takes::Texts | Takes::Items => ArgAction::Append,
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
fn body_properties(operation: &OperationSpec) -> Map<String, Value> {
    operation
        .body
        .as_ref()
        .map_or_else(Map::new, |body| properties(body.schema))
}

/// Top-level properties of a schema.
fn properties(schema: SchemaOf) -> Map<String, Value> {
    let mut generator = schemars::SchemaGenerator::default();
    let schema = schema(&mut generator).to_value();
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

fn filled_path(operation: &OperationSpec, given: &ArgMatches) -> String {
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

fn body_of(operation: &OperationSpec, given: &ArgMatches) -> Result<Option<Value>, Failure> {
    if operation.body.is_none() {
        return Ok(None);
    }
    let mut input = Input::default();
    let mut body = match given.get_one::<String>("json") {
        Some(text) => match serde_json::from_str(&input.text("json", text)?) {
            Ok(Value::Object(body)) => body,
            _ => return Err(Failure::Usage("`--json` must be a JSON object".into())),
        },
        None => Map::new(),
    };
    for (name, property) in body_properties(operation) {
        if path_parameters(&operation.path).contains(&name.as_str()) {
            continue;
        }
        let flag = dashed(&name);
        let mut texts = Vec::new();
        for text in given.get_many::<String>(&name).into_iter().flatten() {
            texts.push(input.text(&flag, text)?);
        }
        let Some(first) = texts.first() else {
            continue;
        };
        // The value may be a secret, so the message does not repeat it.
        let json = |text: &String| {
            serde_json::from_str::<Value>(text)
                .map_err(|_| Failure::Usage(format!("the value of `--{flag}` is not JSON")))
        };
        let value = match takes(&property) {
            Takes::Text => Value::String(first.clone()),
            // The flag also accepts a whole list as JSON.
            Takes::Texts | Takes::Items if first.trim_start().starts_with('[') => json(first)?,
            Takes::Texts => texts.into_iter().collect(),
            Takes::Items => Value::Array(texts.iter().map(json).collect::<Result<_, _>>()?),
            Takes::Json => json(first)?,
        };
        body.insert(name, value);
    }
    Ok(Some(Value::Object(body)))
}

/// Reads the values that flags take from files and standard input.
#[derive(Debug, Default)]
struct Input {
    /// The flag that took standard input.
    taken_by: Option<String>,
}

impl Input {
    /// The text that a value stands for: `@FILE` for that of a file, `-` or `@-` for standard input.
    fn text(&mut self, flag: &str, value: &str) -> Result<String, Failure> {
        if let Some(text) = value.strip_prefix("@@") {
            return Ok(format!("@{text}"));
        }
        let mut text = match (value, value.strip_prefix('@')) {
            ("-", _) | (_, Some("-")) => {
                if let Some(other) = self.taken_by.replace(flag.to_owned()) {
                    let text =
                        format!("`--{other}` and `--{flag}` cannot both read standard input");
                    return Err(Failure::Usage(text));
                }
                std::io::read_to_string(std::io::stdin())
                    .with_context(|| format!("reading standard input for `--{flag}`"))?
            }
            (_, Some(path)) => std::fs::read_to_string(path)
                .with_context(|| format!("reading `{path}` for `--{flag}`"))?,
            (text, None) => return Ok(text.to_owned()),
        };
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(text)
    }
}

/// How the value of a flag is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// As text.
    Text,
    /// As one item of a list of texts.
    Texts,
    /// As one item of a list, in JSON.
    Items,
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
    } else if is("array") {
        Takes::Items
    } else {
        Takes::Json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_urls_get_the_first_key() {
        for (url, expected) in [
            ("http://127.0.0.1:8420", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:8420", true),
            ("https://localhost", true),
            ("http://LOCALHOST:1", true),
            ("http://localhost.evil.example", false),
            ("http://127.0.0.1.evil.example", false),
            ("http://127.0.0.1@evil.example", false),
            ("http://evil.example/127.0.0.1", false),
            ("http://evil.example#localhost", false),
            ("http://0.0.0.0:8420", false),
            ("http://192.0.2.1", false),
            ("http://[::ffff:127.0.0.1]", false),
            ("localhost:8420", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(url), expected, "{url}");
        }
    }
}
