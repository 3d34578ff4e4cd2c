//! `culvert policy lsp`: serves an editor over standard input and output. Every document that the editor opens counts as
//! a traffic policy; the editor's configuration says which files it opens here.
//!
//! The problems of a document are published when the editor has nothing more to say, so fast typing costs one check.
//! Messages are handled in their order, and problems have the version of their text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};

use culvert_command::version;
use culvert_policy_editor::check::{Diagnostic, Place, Severity, check};
use culvert_policy_editor::complete::{Completion, Kind, complete};
use culvert_policy_editor::hover::hover;
use culvert_policy_editor::{LineIndex, Position, Unit};
use serde_json::{Value, json};

use super::super::Failure;
use super::messages::{self, Message};

/// Maximum number of open documents; further ones are ignored.
const DOCUMENTS_MAX: usize = 256;
/// Size of the read buffer. Messages in them are handled before problems are published.
const READ_BYTES: usize = 1 << 16;

const METHOD_NOT_FOUND: i32 = -32601;
const PARSE_ERROR: i32 = -32700;
const NOT_INITIALIZED: i32 = -32002;
const INVALID_REQUEST: i32 = -32600;

/// Serves standard input and output until the editor ends it.
pub(super) fn run(place: &Place) -> Result<(), Failure> {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    match serve(input, output, place) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Failed(
            "the editor left without a shutdown".to_owned(),
        )),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        Err(error) => Err(Failure::Failed(format!("cannot serve the editor: {error}"))),
    }
}

/// Serves an editor. Returns whether it asked to shut down before it left.
fn serve(input: impl Read, output: impl Write, place: &Place) -> io::Result<bool> {
    let mut input = BufReader::with_capacity(READ_BYTES, input);
    let mut server = Server {
        output,
        place,
        documents: BTreeMap::new(),
        changed: BTreeSet::new(),
        state: State::New,
    };
    while let Some(body) = messages::read(&mut input)? {
        match serde_json::from_slice::<Message>(&body) {
            Ok(message) if message.method == "exit" => break,
            Ok(message) => server.handle(message)?,
            Err(error) => server.refuse(&Value::Null, PARSE_ERROR, &error.to_string())?,
        }
        if input.buffer().is_empty() {
            server.publish()?;
        }
    }
    Ok(server.state == State::ShutDown)
}

/// What the editor has asked for so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Initialized,
    ShutDown,
}

/// A document as the editor has it.
struct Document {
    version: Option<i64>,
    text: String,
}

struct Server<'p, W> {
    output: W,
    place: &'p Place,
    documents: BTreeMap<String, Document>,
    /// Documents whose problems are not published yet.
    changed: BTreeSet<String>,
    state: State,
}

impl<W: Write> Server<'_, W> {
    fn handle(&mut self, message: Message) -> io::Result<()> {
        let Message { id, method, params } = message;
        let Some(id) = id else {
            return self.note(&method, &params);
        };
        let result = match (self.state, method.as_str()) {
            // A response to a request of the server, which makes none.
            (_, "") => return Ok(()),
            (State::New, "initialize") => {
                self.state = State::Initialized;
                capabilities()
            }
            (State::New, _) => {
                return self.refuse(&id, NOT_INITIALIZED, "the first request is `initialize`");
            }
            (State::ShutDown, _) => {
                return self.refuse(&id, INVALID_REQUEST, "the server is shut down");
            }
            (State::Initialized, "shutdown") => {
                self.state = State::ShutDown;
                Value::Null
            }
            (State::Initialized, "textDocument/completion") => {
                self.at(&params, completions).unwrap_or_else(|| json!([]))
            }
            (State::Initialized, "textDocument/hover") => {
                self.at(&params, hovered).unwrap_or_default()
            }
            (State::Initialized, _) => {
                let why = format!("`{method}` is not supported");
                return self.refuse(&id, METHOD_NOT_FOUND, &why);
            }
        };
        messages::write(&mut self.output, json!({"id": id, "result": result}))
    }

    fn refuse(&mut self, id: &Value, code: i32, message: &str) -> io::Result<()> {
        let error = json!({"code": code, "message": message});
        messages::write(&mut self.output, json!({"id": id, "error": error}))
    }

    fn note(&mut self, method: &str, params: &Value) -> io::Result<()> {
        let document = &params["textDocument"];
        let Some(uri) = document["uri"].as_str() else {
            return Ok(());
        };
        let version = document["version"].as_i64();
        match method {
            "textDocument/didOpen" => self.set(uri, version, document["text"].as_str()),
            "textDocument/didChange" => {
                let known = self.documents.get(uri).and_then(|known| known.version);
                // A change that is older than the text is late, and the text is right.
                let is_late =
                    matches!((version, known), (Some(version), Some(known)) if version < known);
                let changes = params["contentChanges"].as_array();
                let last = changes.and_then(|changes| changes.last());
                if !is_late && self.documents.contains_key(uri) {
                    self.set(
                        uri,
                        version,
                        last.and_then(|change| change["text"].as_str()),
                    );
                }
            }
            "textDocument/didClose" => {
                self.changed.remove(uri);
                if self.documents.remove(uri).is_some() {
                    return self.send(uri, None, &json!([]));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn set(&mut self, uri: &str, version: Option<i64>, text: Option<&str>) {
        let is_known = self.documents.contains_key(uri);
        let Some(text) = text.filter(|_| is_known || self.documents.len() < DOCUMENTS_MAX) else {
            return;
        };
        let text = text.to_owned();
        self.documents
            .insert(uri.to_owned(), Document { version, text });
        self.changed.insert(uri.to_owned());
    }

    /// Publishes the problems of the documents that have changed.
    fn publish(&mut self) -> io::Result<()> {
        for uri in std::mem::take(&mut self.changed) {
            let Some(document) = self.documents.get(&uri) else {
                continue;
            };
            let index = LineIndex::new(&document.text);
            let found = match document.text.trim().is_empty() {
                true => Vec::new(),
                false => check(&document.text, self.place),
            };
            let found: Vec<Value> = found.iter().map(|one| diagnostic(&index, one)).collect();
            let version = document.version;
            self.send(&uri, version, &json!(found))?;
        }
        Ok(())
    }

    fn send(&mut self, uri: &str, version: Option<i64>, found: &Value) -> io::Result<()> {
        let mut params = json!({"uri": uri, "diagnostics": found});
        if let Some(version) = version {
            params["version"] = json!(version);
        }
        let method = "textDocument/publishDiagnostics";
        messages::write(
            &mut self.output,
            json!({"method": method, "params": params}),
        )
    }

    /// What there is at a position of a document.
    fn at(&self, params: &Value, what: fn(&str, usize) -> Option<Value>) -> Option<Value> {
        let uri = params["textDocument"]["uri"].as_str()?;
        let text = &self.documents.get(uri)?.text;
        let number = |name: &str| usize::try_from(params["position"][name].as_u64()?).ok();
        let position = Position {
            line: number("line")?,
            column: number("character")?,
        };
        what(text, LineIndex::new(text).byte(position, Unit::Utf16))
    }
}

fn capabilities() -> Value {
    json!({
        "capabilities": {
            "positionEncoding": "utf-16",
            // Each change has the whole text.
            "textDocumentSync": {"openClose": true, "change": 1},
            "completionProvider": {"triggerCharacters": [".", ":", " ", "\"", "{", "-"]},
            "hoverProvider": true,
        },
        "serverInfo": {"name": "culvert", "version": version()},
    })
}

fn range(index: &LineIndex<'_>, at: &std::ops::Range<usize>) -> Value {
    let position = |byte| {
        let Position { line, column } = index.position(byte, Unit::Utf16);
        json!({"line": line, "character": column})
    };
    json!({"start": position(at.start), "end": position(at.end)})
}

fn diagnostic(index: &LineIndex<'_>, problem: &Diagnostic) -> Value {
    let mut one = json!({
        "range": range(index, &problem.at),
        "severity": match problem.severity {
            Severity::Error => 1,
            Severity::Warning => 2,
        },
        "source": "culvert",
        "message": problem.message,
    });
    if let Some(code) = problem.code {
        one["code"] = json!(format!("ERR_NGROK_{code}"));
    }
    one
}

fn completions(text: &str, byte: usize) -> Option<Value> {
    let found = complete(text, byte);
    let range = range(&LineIndex::new(text), &found.at);
    let items = found.items.iter().enumerate();
    let items = items.map(|(rank, item)| completion(item, rank, &range));
    Some(items.collect())
}

fn completion(item: &Completion, rank: usize, range: &Value) -> Value {
    json!({
        "label": item.label,
        "kind": match item.kind {
            Kind::Template => 15,
            Kind::Field => 10,
            Kind::Action => 8,
            Kind::Value => 12,
            Kind::Variable => 6,
            Kind::Function => 3,
        },
        "detail": item.detail,
        "documentation": {"kind": "markdown", "value": item.doc},
        // The order of the list, with the required fields first.
        "sortText": format!("{rank:04}"),
        "filterText": item.label,
        "textEdit": {"range": range, "newText": item.insert},
    })
}

fn hovered(text: &str, byte: usize) -> Option<Value> {
    let found = hover(text, byte)?;
    let range = range(&LineIndex::new(text), &found.at);
    Some(json!({"contents": {"kind": "markdown", "value": found.doc}, "range": range}))
}

#[cfg(test)]
mod tests {
    use culvert_policy::Scheme;

    use super::*;

    const URI: &str = "file:///policy.yaml";

    /// What the server says to these messages, all of which arrive at once.
    fn said(messages: &[Value]) -> (Vec<Value>, io::Result<bool>) {
        let mut input = Vec::new();
        for message in messages {
            messages::write(&mut input, message.clone()).unwrap();
        }
        answers(&input)
    }

    fn answers(input: &[u8]) -> (Vec<Value>, io::Result<bool>) {
        let mut output = Vec::new();
        let place = Place::offline(Scheme::Https, true);
        let ended = serve(input, &mut output, &place);
        let (mut output, mut said) = (&*output, Vec::new());
        while let Some(body) = messages::read(&mut output).unwrap() {
            said.push(serde_json::from_slice(&body).unwrap());
        }
        (said, ended)
    }

    fn initialize() -> Value {
        json!({"id": 1, "method": "initialize", "params": {"capabilities": {}}})
    }

    fn open(text: &str) -> Value {
        let document = json!({"uri": URI, "languageId": "yaml", "version": 1, "text": text});
        json!({"method": "textDocument/didOpen", "params": {"textDocument": document}})
    }

    fn change(version: i64, text: &str) -> Value {
        json!({"method": "textDocument/didChange", "params": {
            "textDocument": {"uri": URI, "version": version}, "contentChanges": [{"text": text}],
        }})
    }

    fn ask(method: &str, line: usize, character: usize) -> Value {
        json!({"id": 7, "method": format!("textDocument/{method}"), "params": {
            "textDocument": {"uri": URI}, "position": {"line": line, "character": character},
        }})
    }

    #[test]
    fn an_editor_has_problems_completion_and_hover() {
        let text = "on_http_request:\n  - expressions: [\"'😀' == req.hots\"]\n    actions:\n      - type: deny\n";
        let (said, ended) = said(&[
            initialize(),
            json!({"method": "initialized", "params": {}}),
            open(text),
            ask("hover", 3, 16),
            ask("completion", 1, 32),
            json!({"id": 8, "method": "shutdown"}),
            json!({"method": "exit"}),
        ]);
        assert!(ended.unwrap());
        assert_eq!(said[0]["result"]["capabilities"]["hoverProvider"], true);
        let hover = &said[1]["result"];
        assert!(
            hover["contents"]["value"]
                .as_str()
                .unwrap()
                .starts_with("**deny**")
        );
        let items = said[2]["result"].as_array().unwrap();
        let host = items.iter().find(|item| item["label"] == "host").unwrap();
        // A character outside of the basic plane counts as two.
        assert_eq!(host["textEdit"]["range"]["start"]["character"], 31);
        assert_eq!(said[3], json!({"jsonrpc": "2.0", "id": 8, "result": null}));
        // The editor had more to say until its end, so no problem was published before.
        assert_eq!(said.len(), 4);
    }

    #[test]
    fn only_the_newest_text_is_checked() {
        let wrong = "on_http_request:\n- actions:\n  - type: dney";
        let (said, ended) = said(&[
            initialize(),
            open("on_http_request: []"),
            change(3, wrong),
            change(2, "on_http_request: []"),
            change(4, wrong),
        ]);
        assert!(!ended.unwrap());
        let [_, published] = said.try_into().unwrap();
        assert_eq!(published["params"]["version"], 4);
        let found = &published["params"]["diagnostics"][0];
        assert_eq!(found["code"], "ERR_NGROK_2201");
        assert_eq!(found["range"]["start"], json!({"line": 2, "character": 10}));
        assert!(
            found["message"]
                .as_str()
                .unwrap()
                .contains("did you mean `deny`?")
        );
        let late = said_after_late(wrong);
        assert_eq!(late["params"]["version"], 3);
        assert_eq!(late["params"]["diagnostics"].as_array().unwrap().len(), 1);
    }

    /// What is published if the last change is older than the one before it.
    fn said_after_late(wrong: &str) -> Value {
        let messages = [initialize(), open(""), change(3, wrong), change(2, "")];
        said(&messages).0.pop().unwrap()
    }

    #[test]
    fn wrong_messages_are_refused_and_end_nothing() {
        let unknown = json!({"id": "a", "method": "textDocument/rename", "params": {}});
        let (said, _) = said(&[
            unknown.clone(),
            initialize(),
            unknown,
            json!({"id": 9, "result": null}),
            json!({"method": "$/cancelRequest", "params": {"id": 7}}),
            ask("hover", 0, 0),
            json!({"id": 7, "method": "textDocument/completion", "params": {"position": {"line": -1}}}),
            json!({"id": 2, "method": "shutdown"}),
            json!({"id": 3, "method": "textDocument/hover"}),
        ]);
        let codes: Vec<_> = said
            .iter()
            .map(|one| one["error"]["code"].as_i64())
            .collect();
        let refused = |code: i32| Some(i64::from(code));
        assert_eq!(
            codes,
            [
                refused(NOT_INITIALIZED),
                None,
                refused(METHOD_NOT_FOUND),
                None,
                None,
                None,
                refused(INVALID_REQUEST)
            ]
        );
        let (said, ended) = answers(b"Content-Length: 1\r\n\r\n{Content-Length: 2\r\n\r\n[]");
        assert_eq!(said.len(), 2);
        assert!(said.iter().all(|one| one["error"]["code"] == PARSE_ERROR));
        assert!(!ended.unwrap());
        for input in [
            "Content-Length: 99999999999\r\n\r\n".to_owned(),
            "Content-Length: -1\r\n\r\n".to_owned(),
            "\r\n".to_owned(),
            "Content-Length: 5\r\n\r\n{}".to_owned(),
            "x".repeat(5000),
        ] {
            assert!(answers(input.as_bytes()).1.is_err(), "{input}");
        }
    }

    #[test]
    fn many_and_large_documents_have_a_limit() {
        let mut messages = vec![initialize(), open(&"é".repeat(1 << 19))];
        for n in 0..2 * DOCUMENTS_MAX {
            let mut one = open("");
            one["params"]["textDocument"]["uri"] = json!(format!("file:///{n}"));
            messages.push(one);
        }
        let (said, _) = said(&messages);
        assert_eq!(said.len(), 1 + DOCUMENTS_MAX);
        let large = said.iter().find(|one| one["params"]["uri"] == URI).unwrap();
        let message = &large["params"]["diagnostics"][0]["message"];
        assert!(message.as_str().unwrap().contains("the limit is"));
    }
}
