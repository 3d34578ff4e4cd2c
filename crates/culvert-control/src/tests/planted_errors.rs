//! A secret in any text of a body, of any operation: the refusal and the log do not repeat it. Generated from the table
//! of operations and the schemas of their bodies.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span;

use super::schemas::{body, schema_of, valid};
use super::*;

const PLANT: &str = "planted-5f1c9e";

/// Texts with the secret as people write them: in URLs, connection strings, tokens, header values and expressions.
fn texts() -> [String; 9] {
    [
        PLANT.to_owned(),
        format!("Bearer {PLANT}"),
        format!("https://me:{PLANT}@a.example/x?token={PLANT}"),
        format!("ftp://me:{PLANT}@a.example:99999/"),
        format!("postgres://me:{PLANT}@[bad"),
        format!("me:{PLANT}@a.example"),
        format!("${{'{PLANT}' + }}"),
        format!(
            "{{\"on_http_request\":[{{\"actions\":[{{\"type\":\"basic-auth\",\"config\":{{\"credentials\":[\"{PLANT}\"]}}}}]}}]}}"
        ),
        format!("{PLANT}\u{7}\u{e9}"),
    ]
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>, Arc<AtomicU64>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        *self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut Line(&mut self.0.lock().unwrap()));
        span::Id::from_u64(self.1.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn errors_and_log_lines_never_contain_secrets() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let rig = Rig::start().await;
    let (mut wrong, mut n_refused) = (Vec::new(), 0);
    for operation in operations() {
        let Some(spec) = &operation.body else {
            continue;
        };
        let (path, base) = valid(&rig, operation).await;
        let method = operation.method.as_str();
        for (way, schema) in schema_of(spec) {
            let kind = schema.get("type").unwrap_or(&Value::Null).to_string();
            if way.is_empty() || !(kind.contains("string") || kind == "null") {
                continue;
            }
            for text in texts() {
                let sent = body(&base, &way, json!(text));
                let answered = rig.call(&rig.admin, method, &path, sent).await;
                if let Answered::Refused(_, code, message) = &answered {
                    n_refused += 1;
                    if message.contains(PLANT) {
                        wrong.push(format!("{method} {path} {way:?} {code:?}: {message}"));
                    }
                }
                // The next value may be unique too.
                if let (Answered::Created(made), "create") = (&answered, operation.name) {
                    rig.delete(&format!("{path}/{}", made["id"].as_str().unwrap()))
                        .await;
                }
                let logged = std::mem::take(&mut *log.0.lock().unwrap());
                if logged.contains(PLANT) {
                    wrong.push(format!("{method} {path} {way:?} logged: {logged}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_refused > 500, "{n_refused}");
}
