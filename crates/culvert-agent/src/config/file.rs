//! The configuration file of `culvert start`: ngrok's agent configuration, versions 2 and 3, as it is. A key that
//! cannot be used is named with its line. A key without effect is a notice, which the agent logs.

use std::path::{Path, PathBuf};

use culvert_tunnel::client::Endpoint;
use serde_json::{Map, Value};

use super::definition::{self, Files, Finding};
use super::identity::{Identity, read_text};
use super::keys::{AgentPart, KEYS, NO_REVOCATION};
use super::lines::Lines;
use super::policy_url::PolicyUrl;
use culvert_command::Failure;
use culvert_command::Invalid;

/// Maximum number of endpoints per agent.
const ENDPOINTS_MAX: usize = 100;

/// The parsed files.
#[derive(Debug)]
pub struct Read {
    /// The settings for the server and the agent.
    pub identity: Identity,
    /// The selected endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Policies of the endpoints that are at a URL.
    pub policies: Vec<PolicyUrl>,
}

/// The endpoints to start.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All endpoints; at least one.
    All,
    /// All endpoints, also if there are none.
    Check,
    /// Those with these names.
    Named(&'a [&'a str]),
    /// None.
    None,
}

/// Reads files, of which later ones take precedence.
pub fn read(paths: &[PathBuf], selection: Selection<'_>) -> Result<Read, Failure> {
    let mut texts = Vec::new();
    for path in paths {
        texts.push((path.as_path(), read_text(path)?));
    }
    parse(&texts, selection)
}

/// Parses the texts of files. Relative paths in a file are relative to its directory.
fn parse(texts: &[(&Path, String)], selection: Selection<'_>) -> Result<Read, Failure> {
    let mut identity = Identity::default();
    let (mut known, mut endpoints) = (Vec::<String>::new(), Vec::new());
    let mut policies = Vec::new();
    let mut records_nothing = false;
    let last = texts.last().map_or(Path::new(""), |(path, _)| path);
    for (path, text) in texts {
        let file = File {
            path,
            folder: path.parent().unwrap_or(Path::new(".")),
            lines: Lines::of(text),
        };
        let value = culvert_yaml::read_yaml(text).map_err(|why| file.wrong("", &why))?;
        let Value::Object(body) = value else {
            return Err(file.wrong("", "the file contains no configuration"));
        };
        let part = file.agent(&body)?;
        records_nothing |= part.records_nothing;
        identity = part.identity.or(identity);
        for Definition { path, name, body } in file.definitions(&body)? {
            if known.contains(&name) {
                return Err(file.wrong(&path, "the name is used twice"));
            }
            known.push(name.clone());
            if match selection {
                Selection::All | Selection::Check => true,
                Selection::Named(names) => names.contains(&&name[..]),
                Selection::None => false,
            } {
                let defined = definition::read(&body, Files::In(file.folder));
                let defined = defined.map_err(|found| file.refuse(&path, &found))?;
                for notice in &defined.notices {
                    identity.notices.push(file.shown(&path, notice));
                }
                if let Some(url) = &defined.policy_url {
                    let key = Finding::new(definition::POLICY_URL, "");
                    let place = file.shown(&path, &key).trim_end_matches(": ").to_owned();
                    policies.extend((0..defined.endpoints.len()).map(|nth| PolicyUrl {
                        endpoint: endpoints.len() + nth,
                        place: place.clone(),
                        url: url.clone(),
                    }));
                }
                endpoints.extend(defined.endpoints);
            }
        }
    }
    let wrong =
        |why: String| Failure::Configuration(Invalid(format!("`{}`: {why}", last.display())));
    if let Selection::Named(names) = selection
        && let Some(name) = names
            .iter()
            .find(|name| !known.iter().any(|it| it == *name))
    {
        return Err(wrong(format!("the endpoint `{name}` does not exist")));
    }
    if endpoints.is_empty() && !matches!(selection, Selection::None | Selection::Check) {
        return Err(wrong("it contains no endpoint".into()));
    }
    if endpoints.len() > ENDPOINTS_MAX {
        let why = format!("an agent may have at most {ENDPOINTS_MAX} endpoints");
        return Err(wrong(why));
    }
    if records_nothing {
        endpoints
            .iter_mut()
            .for_each(|endpoint: &mut Endpoint| endpoint.is_inspected = false);
    }
    Ok(Read {
        identity,
        endpoints,
        policies,
    })
}

/// The endpoint that a JSON object with the fields of a tunnel or an endpoint in the file describes. Values that name
/// files in a file are contents here. The error is a sentence without a full stop.
pub(crate) fn endpoint_of(body: &Value) -> Result<Endpoint, String> {
    let defined = definition::read(body, Files::Inline).map_err(|found| match &found.path[..] {
        "" => found.why,
        path => format!("`{path}`: {}", found.why),
    })?;
    // A tunnel with both schemes has https first.
    let first = defined.endpoints.into_iter().next();
    let first = first.ok_or("the definition has no endpoint")?;
    if first.upstream.is_unverified() {
        let upstream = first.upstream.as_str();
        tracing::warn!(
            upstream,
            "the certificate of a service is not verified, as its definition wants"
        );
    }
    Ok(first)
}

/// A definition in a file.
struct Definition {
    /// Its path in the file.
    path: String,
    name: String,
    body: Value,
}

/// A file that is being read.
struct File<'a> {
    path: &'a Path,
    folder: &'a Path,
    lines: Lines,
}

impl File<'_> {
    /// The settings of the agent.
    fn agent(&self, body: &Map<String, Value>) -> Result<AgentPart, Failure> {
        let mut part = AgentPart::default();
        let is_two = match body.get("version") {
            Some(version) if *version == 2 || *version == "2" => true,
            Some(version) if *version == 3 || *version == "3" => false,
            Some(_) => return Err(self.wrong("version", "the value must be 2 or 3")),
            None => return Err(self.wrong("version", "the key is missing; add `version: 3`")),
        };
        for (name, value) in body {
            match (&name[..], is_two) {
                ("version" | "tunnels", _) | ("endpoints", false) => {}
                ("agent", false) => match value {
                    Value::Null => {}
                    Value::Object(keys) => {
                        for (name, value) in keys {
                            self.key(&mut part, &format!("agent.{name}"), name, value)?;
                        }
                    }
                    _ => return Err(self.wrong("agent", "the value must be an object")),
                },
                ("agent" | "endpoints", true) => {
                    return Err(self.wrong(name, "the key needs `version: 3`"));
                }
                (_, true) => self.key(&mut part, name, name, value)?,
                (_, false) if KEYS.iter().any(|key| key.name == name) => {
                    let why = "in version 3 the key belongs below `agent`";
                    return Err(self.wrong(name, why));
                }
                (_, false) => return Err(self.wrong(name, "unknown key")),
            }
        }
        if part.has_revocation_list && !part.ignores_revocation {
            let path = if is_two { "crl_url" } else { "agent.crl_url" };
            return Err(self.wrong(path, NO_REVOCATION));
        }
        Ok(part)
    }

    fn key(
        &self,
        part: &mut AgentPart,
        path: &str,
        name: &str,
        value: &Value,
    ) -> Result<(), Failure> {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(self.wrong(path, "unknown key"));
        };
        let read = key.read(part, value, self.folder);
        if let Some(why) = read.map_err(|why| self.wrong(path, &why))? {
            let notice = Finding::new(path, format!("the key has no effect: {why}"));
            part.identity.notices.push(self.shown("", &notice));
        }
        Ok(())
    }

    /// The endpoints, and then the tunnels.
    fn definitions(&self, body: &Map<String, Value>) -> Result<Vec<Definition>, Failure> {
        let mut all = Vec::new();
        match body.get("endpoints") {
            None | Some(Value::Null) => {}
            Some(Value::Array(endpoints)) => {
                for (index, body) in endpoints.iter().enumerate() {
                    let path = format!("endpoints[{index}]");
                    let Some(name) = body["name"].as_str() else {
                        return Err(self.wrong(&path, "`name` is missing"));
                    };
                    let name = name.to_owned();
                    let body = body.clone();
                    all.push(Definition { path, name, body });
                }
            }
            Some(_) => return Err(self.wrong("endpoints", "the value must be a list")),
        }
        match body.get("tunnels") {
            None | Some(Value::Null) => {}
            Some(Value::Object(tunnels)) => {
                for (name, body) in tunnels {
                    let path = format!("tunnels.{name}");
                    let Value::Object(mut body) = body.clone() else {
                        return Err(self.wrong(&path, "the value must be an object"));
                    };
                    if body.insert("name".into(), name.clone().into()).is_some() {
                        let why = "the name of a tunnel is its key";
                        return Err(self.wrong(&format!("{path}.name"), why));
                    }
                    all.push(Definition {
                        path,
                        name: name.clone(),
                        body: Value::Object(body),
                    });
                }
            }
            Some(_) => return Err(self.wrong("tunnels", "the value must be an object")),
        }
        Ok(all)
    }

    fn wrong(&self, path: &str, why: &str) -> Failure {
        self.refuse("", &Finding::new(path, why))
    }

    fn refuse(&self, within: &str, found: &Finding) -> Failure {
        Failure::Configuration(Invalid(self.shown(within, found)))
    }

    /// `` `ngrok.yml`: line 3: `tunnels.web.labels`: … ``.
    fn shown(&self, within: &str, found: &Finding) -> String {
        let path = match (within, &found.path[..]) {
            ("", path) => path.to_owned(),
            (within, "") => within.to_owned(),
            (within, path) => format!("{within}.{path}"),
        };
        let line = self.lines.prefix(&path);
        let key = match &path[..] {
            "" => String::new(),
            path => format!("`{path}`: "),
        };
        format!("`{}`: {line}{key}{}", self.path.display(), found.why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Inspect;
    use super::*;

    fn parsed(text: &str, selection: Selection<'_>) -> Result<Read, String> {
        let texts = [(Path::new("agent.yml"), text.to_owned())];
        parse(&texts, selection).map_err(|failure| match failure {
            Failure::Configuration(invalid) => invalid.to_string(),
            other => format!("{other:?}"),
        })
    }

    fn check(text: &str, names: &[&str]) -> Result<Vec<String>, String> {
        let selection = match names {
            [] => Selection::All,
            names => Selection::Named(names),
        };
        let shown = |endpoint: &Endpoint| {
            format!(
                "{} {} {}",
                endpoint.name,
                endpoint.protocol.as_str(),
                endpoint.upstream.as_str()
            )
        };
        Ok(parsed(text, selection)?
            .endpoints
            .iter()
            .map(shown)
            .collect())
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
    fn all_or_selected_endpoints_of_a_file_are_started() {
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
        let identity = parsed(FILE, Selection::None).unwrap().identity;
        assert_eq!(identity.server.as_deref(), Some("tunnel.example.test:8441"));
        assert_eq!(identity.token.unwrap().reveal(), "secret");
        assert_eq!(
            identity.inspect,
            Some(Inspect::At("127.0.0.1:4050".parse().unwrap()))
        );
    }

    #[test]
    fn version_2_files_have_equal_settings_and_tunnels() {
        let text = "
version: \"2\"
authtoken: secret
region: eu
server_addr: tunnel.example.test:8441
connect_timeout: 1m30s
remote_management: false
web_addr: localhost:4050
inspect_db_size: -1
tunnels:
  web: {proto: http, addr: 8080, domain: app.example.test, bind_tls: true}
  db: {proto: tcp, addr: 5432, remote_addr: \"tcp.example.test:7001\"}
";
        let read = parsed(text, Selection::All).unwrap();
        assert_eq!(
            check(text, &[]).unwrap(),
            [
                "db tcp tcp://localhost:5432",
                "web https http://localhost:8080"
            ]
        );
        assert!(read.endpoints.iter().all(|endpoint| !endpoint.is_inspected));
        let identity = read.identity;
        assert_eq!(identity.server.as_deref(), Some("tunnel.example.test:8441"));
        assert_eq!(identity.connect_timeout.unwrap().as_secs(), 90);
        assert_eq!(identity.is_managed, Some(false));
        assert_eq!(
            identity.notices,
            ["`agent.yml`: line 4: `region`: the key has no effect: the server decides the region"]
        );
    }

    #[test]
    fn a_required_revocation_list_is_refused() {
        let check = |text: &str| parsed(text, Selection::Check).map(|read| read.identity.notices);
        for text in [
            "version: 2\ncrl_url: http://a.test\n",
            "version: 2\ncrl_url: http://a.test\ncrl_noverify: false\n",
            "version: 2\ncrl_noverify: false\ncrl_url: http://a.test\n",
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains("`crl_url`: the agent reads no"), "{error}");
        }
        let error = check("version: 3\nagent:\n  crl_url: http://a.test\n").unwrap_err();
        assert!(error.contains("line 3: `agent.crl_url`: "), "{error}");
        for text in [
            "version: 2\ncrl_url: http://a.test\ncrl_noverify: true\n",
            "version: 3\nagent:\n  crl_noverify: true\n  crl_url: http://a.test\n",
        ] {
            let notices = check(text).unwrap();
            assert!(
                notices.len() == 1 && notices[0].contains("has no effect"),
                "{notices:?}"
            );
        }
    }

    #[test]
    fn a_policy_has_one_source() {
        let file = |more: &str| {
            let text = format!(
                "version: 2\ntunnels:\n  a: {{addr: 80, proto: http, domain: a.test, {more}}}\n"
            );
            parsed(&text, Selection::All)
        };
        let read = file("schemes: [http, https], traffic_policy_url: 'https://b.test/p'").unwrap();
        let shown: Vec<_> = read
            .policies
            .iter()
            .map(|it| (it.endpoint, &it.place[..], it.url.to_string()))
            .collect();
        let place = "`agent.yml`: line 3: `tunnels.a.traffic_policy_url`";
        let url = || "https://b.test/p".to_owned();
        assert_eq!(shown, [(0, place, url()), (1, place, url())]);
        let error = file("traffic_policy_url: 'https://b.test/p', traffic_policy: '{}'");
        let error = error.map(|_| ()).unwrap_err();
        assert!(error.contains("mutually exclusive"), "{error}");
    }

    #[test]
    fn later_files_take_precedence_and_add_endpoints() {
        let more = "version: 3\nagent: {authtoken: other}\nendpoints: [{name: more, upstream: {url: 1}}]\n";
        let texts = [
            (Path::new("a.yml"), FILE.to_owned()),
            (Path::new("b.yml"), more.to_owned()),
        ];
        let read = parse(&texts, Selection::All).unwrap();
        assert_eq!(read.endpoints.len(), 4);
        assert_eq!(read.identity.token.unwrap().reveal(), "other");
        assert!(read.identity.server.is_some());
        let twice = [texts[0].clone(), texts[0].clone()];
        assert!(parse(&twice, Selection::All).is_err());
    }

    #[test]
    fn errors_name_the_field_and_its_line() {
        let wrong = |from: &str, to: &str| check(&FILE.replacen(from, to, 1), &[]).unwrap_err();
        assert_eq!(
            check(FILE, &["nope"]).unwrap_err(),
            "`agent.yml`: the endpoint `nope` does not exist"
        );
        for (from, to, found) in [
            (
                "version: 3",
                "version: 1",
                "line 2: `version`: the value must be 2 or 3",
            ),
            (
                "version: 3\n",
                "version: 3\napi_key: x\n",
                "line 3: `api_key`: in version 3 the key belongs below `agent`",
            ),
            (
                "web_addr",
                "web_address",
                "line 6: `agent.web_address`: unknown key",
            ),
            (
                "pooling_enabled",
                "pool",
                "line 10: `endpoints[0].pool`: unknown key",
            ),
            (
                "url: 8080",
                "url: 80800",
                "line 14: `endpoints[0].upstream.url`: invalid upstream `80800`: the port must be 1 to 65535",
            ),
            (
                "127.0.0.1:4050",
                "0.0.0.0:4050",
                "line 6: `agent.web_addr`: `0.0.0.0:4050`: the inspection page requires a loopback address",
            ),
            (
                "tcp://localhost:5432\"",
                "tcp://localhost:5432\", protocol: http2",
                "line 20: `endpoints[2].upstream.protocol`: a tcp endpoint has no such key",
            ),
            (
                "name: plain",
                "name: web",
                "line 16: `endpoints[1]`: the name is used twice",
            ),
        ] {
            assert_eq!(wrong(from, to), format!("`agent.yml`: {found}"), "{to}");
        }
    }
}
