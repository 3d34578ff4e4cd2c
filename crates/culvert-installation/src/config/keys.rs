//! The keys of the settings, from their schema, and the reference page.

use std::sync::LazyLock;

use serde_json::Value;

use super::Settings;

/// Keys of [`Settings`] that a reload applies. The others need a restart.
pub const LIVE: [&str; 31] = [
    "agents.cert_file",
    "agents.key_file",
    "api.tls.cert_file",
    "api.tls.key_file",
    "edge.asn_database",
    "edge.body_bytes_max",
    "edge.certificates",
    "edge.connections_max",
    "edge.connections_per_source_max",
    "edge.copy_age_max",
    "edge.default_server_name",
    "edge.error_pages",
    "edge.extra_ca_file",
    "edge.geo_database",
    "edge.ip_categories",
    "edge.memory_bytes",
    "edge.proxy_protocol",
    "edge.proxy_protocol_from",
    "edge.redirect_http",
    "edge.timeouts.connect",
    "edge.timeouts.first_byte",
    "edge.timeouts.idle",
    "edge.timeouts.request",
    "edge.timeouts.write",
    "edge.tls12_without_ems",
    "edge.trusted_proxies",
    "edge.underscore_headers",
    "events.redact_headers",
    "events.redact_query",
    "log.level",
    "shutdown.drain",
];

/// One key, as found in the schema of [`Settings`].
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted: `edge.http_addr`.
    pub name: String,
    /// The doc comment.
    pub doc: String,
    /// The default, as JSON.
    pub default: Value,
    /// Whether the value is a list.
    pub list: bool,
}

impl Key {
    /// The environment variable: `CULVERT_EDGE__HTTP_ADDR`.
    pub fn variable(&self) -> String {
        format!("CULVERT_{}", self.name.to_uppercase().replace('.', "__"))
    }

    /// The flag: `edge-http-addr`.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }
}

/// Every key, sorted by name within its section.
pub fn keys() -> &'static [Key] {
    // Many commands have a flag for each of them.
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        let schema =
            serde_json::to_value(schemars::schema_for!(Settings)).expect("a schema is always JSON");
        let defaults = serde_json::to_value(Settings::default()).expect("settings are always JSON");
        let mut keys = Vec::new();
        collect_keys(&schema, &schema, &defaults, "", &mut keys);
        keys
    });
    &KEYS
}

fn collect_keys(root: &Value, schema: &Value, defaults: &Value, path: &str, keys: &mut Vec<Key>) {
    let resolve = |schema: &'_ Value| -> Value {
        match schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')) {
            Some(pointer) => root.pointer(pointer).cloned().unwrap_or_default(),
            None => schema.clone(),
        }
    };
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let Some(defaults) = defaults.as_object() else {
        return;
    };
    for (name, default) in defaults {
        let Some(property) = properties.get(name) else {
            continue;
        };
        let target = resolve(property);
        let name = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        if target["properties"].is_object() {
            collect_keys(root, &target, default, &name, keys);
        } else {
            let doc = property["description"]
                .as_str()
                .or(target["description"].as_str());
            let doc = doc.unwrap_or_default().replace('\n', " ");
            keys.push(Key {
                name,
                doc,
                default: default.clone(),
                list: default.is_array(),
            });
        }
    }
}

/// The reference page of all keys, in Markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Settings\n\nSources in order of precedence: flag, environment variable, \
         `culvert.toml` (`--config`, otherwise\n`./culvert.toml`, otherwise \
         `/etc/culvert/culvert.toml`), default. Flags and variables use commas to\nseparate list \
         entries.\n\nSIGHUP reloads the settings and the files that they name. Settings marked \
         *Live* take effect\nimmediately. Other changes take effect at the next start, and the log \
         lists them. An invalid configuration\nis rejected, and the server keeps the current \
         one.\n\n| Key | Default | Variable, flag | Meaning |\n|---|---|---|---|\n",
    );
    for key in keys() {
        let default = match &key.default {
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            Value::Array(items) if items.is_empty() => "none".to_owned(),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                format!("`{}`", items.join(","))
            }
            other => format!("`{other}`"),
        };
        let (name, variable, flag, doc) = (&key.name, key.variable(), key.flag(), &key.doc);
        let live = match LIVE.contains(&name.as_str()) {
            true => " *Live.*",
            false => "",
        };
        page.push_str(&format!(
            "| `{name}` | {default} | `{variable}`, `--{flag}` | {doc}{live} |\n"
        ));
    }
    page
}
