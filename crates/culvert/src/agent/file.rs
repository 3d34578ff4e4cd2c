//! The configuration file of `culvert start`. Its keys have the names of ngrok's configuration format version 3, so
//! that such files work unchanged.

use std::path::{Path, PathBuf};

use culvert_base::Secret;
use culvert_tunnel::client::{Endpoint, FLAGS, Protocol, Upstream, UpstreamTrust, Wanted};
use serde::Deserialize;
use serde_json::Value;

use super::Inspect;
use super::log::LogPlan;
use super::plan::{self, Identity, inspect_at};
use crate::client::read_token;
use crate::failure::Failure;

/// Maximum number of endpoints per agent.
const ENDPOINTS_MAX: usize = 100;

/// The parsed file.
#[derive(Debug)]
pub struct Read {
    /// The settings for the server and the agent.
    pub identity: Identity,
    /// The selected endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// The format of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Version of the format: 3.
    version: Version,
    #[serde(default)]
    agent: AgentPart,
    #[serde(default)]
    endpoints: Vec<EndpointPart>,
}

/// `3` or `"3"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Version {
    Number(u64),
    Text(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AgentPart {
    authtoken: Secret,
    authtoken_file: Option<PathBuf>,
    #[serde(alias = "server_addr")]
    connect_url: Option<String>,
    #[serde(alias = "root_cas")]
    connect_cas: Option<PathBuf>,
    metadata: Option<String>,
    /// `false` disables the inspection page.
    web_addr: Option<Value>,
    /// `false`, `stdout`, `stderr` or a file.
    log: Option<Value>,
    log_format: Option<String>,
    log_level: Option<String>,
    /// `true`, `false` or `iftty`.
    console_ui: Option<Value>,
    /// Without effect.
    region: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointPart {
    name: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    metadata: String,
    #[serde(default)]
    bindings: Vec<String>,
    #[serde(default)]
    pooling_enabled: bool,
    #[serde(default)]
    traffic_policy: Value,
    #[serde(default)]
    traffic_policy_file: Option<PathBuf>,
    upstream: UpstreamPart,
    /// Whether to record requests.
    #[serde(default = "is_true")]
    inspect: bool,
}

const fn is_true() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpstreamPart {
    /// A port may be a number.
    url: Value,
    #[serde(default)]
    protocol: Option<String>,
    #[serde(default)]
    proxy_protocol: Option<Value>,
    /// Certificate authorities for the service's certificate.
    #[serde(default)]
    ca_file: Option<PathBuf>,
}

/// Parses the text of the file at `path`. Returns the endpoints with the `names`, all if the list is empty, and none
/// without a list. Relative paths in the file are relative to its directory.
pub fn read(text: &str, path: &Path, names: Option<&[&str]>) -> Result<Read, Failure> {
    let wrong = |why: String| {
        Failure::Configuration(crate::config::Invalid(format!(
            "`{}`: {why}",
            path.display()
        )))
    };
    let value = culvert_policy::read_yaml(text).map_err(wrong)?;
    let file: File = serde_path_to_error::deserialize(value)
        .map_err(|error| wrong(format!("`{}`: {}", error.path(), error.inner())))?;
    let is_three = match &file.version {
        Version::Number(number) => *number == 3,
        Version::Text(text) => text == "3",
    };
    if !is_three {
        return Err(wrong("the format version must be 3".into()));
    }
    if file.endpoints.len() > ENDPOINTS_MAX {
        return Err(wrong(format!(
            "an agent may have at most {ENDPOINTS_MAX} endpoints"
        )));
    }
    for name in names.unwrap_or_default() {
        if !file.endpoints.iter().any(|endpoint| endpoint.name == *name) {
            return Err(wrong(format!("the endpoint `{name}` does not exist")));
        }
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut endpoints = Vec::new();
    for part in file.endpoints {
        if names.is_some_and(|names| names.is_empty() || names.contains(&&part.name[..])) {
            let name = part.name.clone();
            let endpoint = endpoint(part, folder)
                .map_err(|why| wrong(format!("endpoint `{name}`: {}", sentence(why))))?;
            endpoints.push(endpoint);
        }
    }
    if endpoints.is_empty() && names.is_some() {
        return Err(wrong("it contains no endpoint".into()));
    }
    let identity = identity(file.agent, folder).map_err(|why| wrong(sentence(why)))?;
    Ok(Read {
        identity,
        endpoints,
    })
}

fn sentence(failure: Failure) -> String {
    match failure {
        Failure::Failed(why) | Failure::Usage(why) | Failure::Broken(why) => why,
        Failure::ReaderLeft => String::new(),
        Failure::Configuration(invalid) => invalid.to_string(),
    }
}

fn identity(part: AgentPart, folder: &Path) -> Result<Identity, Failure> {
    let token = match (part.authtoken, part.authtoken_file) {
        (token, None) => Some(token).filter(|token| !token.is_empty()),
        (token, Some(path)) if token.is_empty() => {
            Some(Secret::new(read_token(&folder.join(path))?))
        }
        _ => {
            return Err(Failure::Usage(
                "a token and a token file are mutually exclusive".into(),
            ));
        }
    };
    let inspect = match part.web_addr {
        None | Some(Value::Null) => None,
        Some(Value::Bool(false)) => Some(Inspect::Off),
        Some(Value::String(text)) if text == "false" => Some(Inspect::Off),
        Some(Value::String(text)) => Some(inspect_at(&text).map_err(Failure::Usage)?),
        Some(_) => {
            return Err(Failure::Usage(
                "`web_addr` must be an address or `false`".into(),
            ));
        }
    };
    let log = match &part.log {
        None | Some(Value::Null) => None,
        Some(Value::Bool(false)) => Some("false".to_owned()),
        Some(Value::String(text)) => Some(match &text[..] {
            "stdout" | "stderr" | "false" => text.clone(),
            path => folder.join(path).to_string_lossy().into_owned(),
        }),
        Some(_) => {
            return Err(Failure::Usage(
                "`log` must be stdout, stderr, false or a file".into(),
            ));
        }
    };
    let has_screen = match &part.console_ui {
        None | Some(Value::Null) => None,
        Some(Value::Bool(shown)) => Some(*shown),
        Some(Value::String(text)) if text == "iftty" || text == "true" => Some(true),
        Some(Value::String(text)) if text == "false" => Some(false),
        Some(_) => {
            return Err(Failure::Usage(
                "`console_ui` must be true, false or iftty".into(),
            ));
        }
    };
    Ok(Identity {
        log: LogPlan::read(
            log.as_deref(),
            part.log_format.as_deref(),
            part.log_level.as_deref(),
        )?,
        has_screen,
        region: part.region,
        proxy: part.proxy_url,
        server: part.connect_url,
        ca: part.connect_cas.map(|path| folder.join(path)),
        token,
        metadata: part.metadata,
        inspect,
    })
}

fn endpoint(part: EndpointPart, folder: &Path) -> Result<Endpoint, Failure> {
    let upstream = match &part.upstream.url {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => {
            return Err(Failure::Usage(
                "`upstream.url` must be a URL or a port".into(),
            ));
        }
    };
    let kind = kind(&part.url, &upstream);
    let mut wanted = Wanted::default();
    let mut set = |name: &str, value: &str| match FLAGS.iter().find(|flag| flag.name == name) {
        Some(flag) if flag.scope.has(kind) => {
            (flag.apply)(&mut wanted, value).map_err(Failure::Usage)
        }
        _ => Err(Failure::Usage(format!(
            "a {} endpoint does not support `{name}`",
            kind.command()
        ))),
    };
    set("name", &part.name)?;
    set("url", &part.url)?;
    set("description", &part.description)?;
    set("metadata", &part.metadata)?;
    for binding in &part.bindings {
        set("binding", binding)?;
    }
    if part.pooling_enabled {
        set("pooling-enabled", "true")?;
    }
    match (&part.traffic_policy, &part.traffic_policy_file) {
        (Value::Null, None) => {}
        (Value::Null, Some(path)) => {
            set("traffic-policy-file", &plan::read_text(&folder.join(path))?)?;
        }
        (Value::String(text), None) => set("traffic-policy-file", text)?,
        (policy @ Value::Object(_), None) => set("traffic-policy-file", &policy.to_string())?,
        _ => {
            return Err(Failure::Usage(
                "the traffic policy must be an object, a string or a file".into(),
            ));
        }
    }
    if let Some(protocol) = &part.upstream.protocol {
        set("upstream-protocol", protocol)?;
    }
    match &part.upstream.proxy_protocol {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => set("proxy-proto", text)?,
        Some(Value::Number(number)) => set("proxy-proto", &number.to_string())?,
        Some(_) => {
            return Err(Failure::Usage(
                "`upstream.proxy_protocol` must be 1 or 2".into(),
            ));
        }
    }
    let trust = match &part.upstream.ca_file {
        Some(path) => UpstreamTrust::Only(plan::read(&folder.join(path))?),
        None => UpstreamTrust::System,
    };
    let upstream =
        Upstream::parse(&upstream, kind, wanted.http2, &trust).map_err(Failure::Usage)?;
    let mut endpoint = Endpoint::new(kind, wanted, upstream).map_err(Failure::Usage)?;
    endpoint.is_inspected = part.inspect;
    Ok(endpoint)
}

/// The endpoint that a JSON object with the fields of an endpoint in the file describes. The error is a sentence
/// without a full stop.
pub fn endpoint_of(body: Value) -> Result<Endpoint, String> {
    let part: EndpointPart = serde_path_to_error::deserialize(body)
        .map_err(|error| format!("`{}`: {}", error.path(), error.inner()))?;
    endpoint(part, Path::new(".")).map_err(sentence)
}

/// The protocol of an endpoint, from the scheme of its URL or its service.
fn kind(url: &str, upstream: &str) -> Protocol {
    let scheme = |text: &str| {
        text.split_once("://")
            .and_then(|(scheme, _)| Protocol::parse(scheme))
    };
    scheme(url)
        .or_else(|| scheme(upstream))
        .unwrap_or(Protocol::Https)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, names: &[&str]) -> Result<Vec<String>, String> {
        let read = read(text, Path::new("agent.yml"), Some(names)).map_err(sentence)?;
        let shown = |endpoint: &Endpoint| {
            format!(
                "{} {} {}",
                endpoint.name,
                endpoint.protocol.as_str(),
                endpoint.upstream.as_str()
            )
        };
        Ok(read.endpoints.iter().map(shown).collect())
    }

    const FILE: &str = r#"
version: 3
agent:
  authtoken: secret
  connect_url: tunnel.example.test:8441
  web_addr: 127.0.0.1:4050
endpoints:
  - name: web
    url: https://app.example.test
    pooling_enabled: true
    traffic_policy:
      on_http_request: []
    upstream:
      url: 8080
      proxy_protocol: 2
  - name: plain
    url: http://plain.example.test
    upstream: {url: "http://localhost:8081", protocol: http2}
  - name: db
    upstream: {url: "tcp://localhost:5432"}
"#;

    #[test]
    fn all_endpoints_of_a_file_or_some() {
        assert_eq!(
            check(FILE, &[]).unwrap(),
            [
                "web https http://localhost:8080",
                "plain http http://localhost:8081",
                "db tcp tcp://localhost:5432"
            ]
        );
        assert_eq!(
            check(FILE, &["db"]).unwrap(),
            ["db tcp tcp://localhost:5432"]
        );
        let identity = read(FILE, Path::new("agent.yml"), None).unwrap().identity;
        assert_eq!(identity.server.as_deref(), Some("tunnel.example.test:8441"));
        assert_eq!(identity.token.unwrap().reveal(), "secret");
        assert_eq!(
            identity.inspect,
            Some(Inspect::At("127.0.0.1:4050".parse().unwrap()))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |from: &str, to: &str| check(&FILE.replacen(from, to, 1), &[]).unwrap_err();
        assert_eq!(
            check(FILE, &["nope"]).unwrap_err(),
            "`agent.yml`: the endpoint `nope` does not exist"
        );
        assert!(wrong("version: 3", "version: 2").ends_with("must be 3"));
        assert!(wrong("pooling_enabled", "pooling").contains("unknown field `pooling`"));
        assert!(wrong("url: 8080", "url: 80800").contains("the port must be 1 to 65535"));
        assert!(wrong("127.0.0.1:4050", "0.0.0.0:4050").contains("loopback address"));
        assert!(
            wrong(
                "tcp://localhost:5432\"",
                "tcp://localhost:5432\", protocol: http2"
            )
            .contains("does not support `upstream-protocol`")
        );
    }
}
