//! cloudflared: ingress rules become endpoints of the agent. A host with several services gets an internal endpoint
//! for each, and a public endpoint whose policy chooses by path.

use serde_json::{Map, Value, json};

use super::tree::Table;
use crate::imported::{Imported, action, label_of, literal, name_of, quoted, rule};

const REASONS: &[(&str, &str)] = &[
    (
        "tunnel",
        "use a credential: `culvert api credentials create` on the server prints its token",
    ),
    (
        "credentials-file",
        "use a credential: set `authtoken` or `authtoken_file`",
    ),
    (
        "warp-routing",
        "culvert publishes services and routes no networks",
    ),
    ("metrics", "the agent has an inspection page at `web_addr`"),
    (
        "no-autoupdate",
        "not needed: the agent does not update itself",
    ),
    ("autoupdate", "not needed: the agent does not update itself"),
    ("protocol", "agents connect over TCP with TLS"),
    (
        "edge-ip-version",
        "agents take the addresses of `connect_url`",
    ),
    ("retries", "the agent retries until the server refuses it"),
];

const RULE_REASONS: &[(&str, &str)] = &[
    (
        "originRequest.noTLSVerify",
        "the agent always verifies; name the service's CA with `ca_file`",
    ),
    (
        "originRequest.originServerName",
        "the agent verifies the name in the upstream's URL",
    ),
    (
        "originRequest.connectTimeout",
        "has no equivalent for agents",
    ),
    (
        "originRequest.access",
        "use the actions `oauth`, `openid-connect` or `jwt-validation`",
    ),
    ("originRequest.disableChunkedEncoding", "has no equivalent"),
    ("originRequest.keepAlive", "has no equivalent for agents"),
    ("originRequest.proxy", "has no equivalent"),
];

/// One ingress rule.
struct Route {
    line: usize,
    path: Option<String>,
    service: Service,
}

enum Service {
    Http {
        url: String,
        host: Option<String>,
        more: Map<String, Value>,
    },
    Status(u16),
}

/// The file.
pub(super) fn convert(mut file: Table, imported: &mut Imported) {
    imported
        .agent
        .insert("connect_url".to_owned(), json!("localhost:8441"));
    for (from, to) in [("loglevel", "log_level"), ("logfile", "log")] {
        if let Some((_, text)) = file.text(from) {
            imported.agent.insert(to.to_owned(), json!(text));
        }
    }
    let defaults = file
        .table("originRequest")
        .map(|(_, table)| table)
        .unwrap_or_default();
    // Rules are tried in order, and those of one host stay together.
    let mut hosts: Vec<(String, Vec<Route>)> = Vec::new();
    let mut is_used = false;
    for (index, (line, mut table)) in file.tables("ingress").into_iter().enumerate() {
        let place = format!("ingress[{index}].");
        let host = table
            .text("hostname")
            .map(|(_, host)| host)
            .unwrap_or_default();
        let path = table
            .text("path")
            .map(|(_, path)| path)
            .filter(|path| !path.is_empty());
        let (at, service) = table.text("service").unwrap_or((line, String::new()));
        let mut origin = table
            .table("originRequest")
            .map(|(_, table)| table)
            .unwrap_or_default();
        let mut common = defaults.clone();
        let mut option = |name: &str| {
            let own = origin.text(name);
            let common = common.text(name);
            own.or(common).map(|(_, text)| text)
        };
        let mut upstream = Map::new();
        if let Some(pool) = option("caPool") {
            upstream.insert("ca_file".to_owned(), json!(pool));
        }
        if option("http2Origin").is_some_and(|it| it == "true") {
            upstream.insert("protocol".to_owned(), json!("http2"));
        }
        let rewritten = option("httpHostHeader");
        is_used = true;
        origin.note_rest(&format!("{place}originRequest."), RULE_REASONS, imported);
        table.note_rest(&place, &[], imported);
        let service = match service.split_once(':') {
            Some(("http" | "https", _)) => Service::Http {
                url: service,
                host: rewritten,
                more: upstream,
            },
            Some(("http_status", status)) => match status.trim().parse() {
                Ok(status) => Service::Status(status),
                Err(_) => {
                    imported.note(at, format!("{place}service"), "the status is no number");
                    continue;
                }
            },
            Some(("tcp" | "ssh" | "rdp" | "smb", _)) => {
                let why = "cloudflared carries it inside of HTTP for its own client; publish it with a `tcp` endpoint";
                imported.note(at, format!("{place}service `{service}`"), why);
                continue;
            }
            Some(("unix" | "unix+tls", _)) => {
                imported.note(
                    at,
                    format!("{place}service `{service}`"),
                    "agents forward to ports, not to sockets of files",
                );
                continue;
            }
            _ => {
                imported.note(
                    at,
                    format!("{place}service `{service}`"),
                    "has no equivalent",
                );
                continue;
            }
        };
        let route = Route {
            line,
            path,
            service,
        };
        if host.is_empty() {
            match route.service {
                Service::Status(404) => {}
                Service::Status(status) => {
                    let why = format!("hosts without an endpoint get 404, not {status}");
                    imported.note(line, format!("{place}service"), why);
                }
                Service::Http { .. } => {
                    let why = "a rule for all hosts has no equivalent; publish the service at a host, such as `*.example.com`";
                    imported.note(line, format!("{place}service"), why);
                }
            }
            continue;
        }
        match hosts.iter_mut().find(|(known, _)| *known == host) {
            Some((_, routes)) => routes.push(route),
            None => hosts.push((host, vec![route])),
        }
    }
    let mut rest = defaults;
    if is_used {
        for name in ["caPool", "http2Origin", "httpHostHeader"] {
            rest.text(name);
        }
    }
    rest.note_rest("originRequest.", RULE_REASONS, imported);
    for (host, routes) in hosts {
        publish(&host, routes, imported);
    }
    file.note_rest("", REASONS, imported);
}

fn publish(host: &str, mut routes: Vec<Route>, imported: &mut Imported) {
    let url = format!("https://{host}");
    if let [
        Route {
            path: None,
            service: Service::Http { .. },
            ..
        },
    ] = routes.as_slice()
        && let Some(Route {
            service:
                Service::Http {
                    url: upstream,
                    host: rewritten,
                    more,
                },
            ..
        }) = routes.pop()
    {
        imported
            .endpoints
            .push(endpoint(&name_of(host), &url, upstream, rewritten, more));
        return;
    }
    let mut rules = Vec::new();
    let mut is_open = true;
    for (n, route) in routes.into_iter().enumerate() {
        if !is_open {
            imported.note(
                route.line,
                format!("a rule of {host}"),
                "an earlier rule takes all its requests",
            );
            continue;
        }
        is_open = route.path.is_some();
        let matching: Vec<String> = route
            .path
            .iter()
            .map(|path| format!("req.url.path.matches({})", quoted(path)))
            .collect();
        let last = match route.service {
            Service::Status(status) => action("custom-response", json!({"status_code": status})),
            Service::Http {
                url: upstream,
                host: rewritten,
                more,
            } => {
                let scheme = if upstream.starts_with("https") {
                    "https"
                } else {
                    "http"
                };
                let inner = format!("{scheme}://{}-{}.internal", label_of(host), n + 1);
                let name = format!("{}-{}", name_of(host), n + 1);
                let mut made = endpoint(&name, &inner, upstream, rewritten, more);
                made["bindings"] = json!(["internal"]);
                imported.endpoints.push(made);
                action("forward-internal", json!({"url": inner}))
            }
        };
        rules.push(rule(matching, vec![last]));
    }
    if is_open {
        rules.push(rule(
            Vec::new(),
            vec![action("custom-response", json!({"status_code": 404}))],
        ));
    }
    let policy = json!({"on_http_request": rules});
    imported.object(
        "endpoints",
        &name_of(host),
        json!({"url": url, "traffic_policy": policy}),
    );
}

fn endpoint(
    name: &str,
    url: &str,
    upstream: String,
    rewritten: Option<String>,
    more: Map<String, Value>,
) -> Value {
    let mut inner = more;
    inner.insert("url".to_owned(), json!(upstream));
    let mut made = json!({"name": name, "url": url, "upstream": inner});
    if let Some(host) = rewritten {
        let add = action("add-headers", json!({"headers": {"host": literal(&host)}}));
        made["traffic_policy"] = json!({"on_http_request": [rule(Vec::new(), vec![add])]});
    }
    made
}

#[cfg(test)]
mod tests {
    use super::super::{Format, import};

    #[test]
    fn ingress_rules_become_endpoints() {
        let text = "tunnel: abc\ncredentials-file: /x.json\noriginRequest:\n  connectTimeout: 30s\ningress:\n  - hostname: a.example\n    service: http://localhost:8000\n    originRequest:\n      httpHostHeader: inner\n      noTLSVerify: true\n  - hostname: b.example\n    path: ^/api\n    service: https://localhost:1\n  - hostname: b.example\n    service: http://localhost:2\n  - hostname: ssh.example\n    service: ssh://localhost:22\n  - service: http_status:404\n";
        let imported = import(Format::Cloudflared, text, None).unwrap();
        let urls: Vec<_> = imported
            .endpoints
            .iter()
            .map(|it| it["url"].as_str().unwrap())
            .collect();
        assert_eq!(
            urls,
            [
                "https://a.example",
                "https://b-example-1.internal",
                "http://b-example-2.internal"
            ]
        );
        let rules = &imported.objects[0]["spec"]["traffic_policy"]["on_http_request"];
        assert_eq!(rules[0]["expressions"][0], "req.url.path.matches('^/api')");
        assert_eq!(
            rules[1]["actions"][0]["config"]["url"],
            "http://b-example-2.internal"
        );
        let notes: Vec<_> = imported
            .notes
            .iter()
            .map(|note| (note.line, note.what.as_str()))
            .collect();
        assert_eq!(
            notes,
            [
                (1, "tunnel"),
                (2, "credentials-file"),
                (4, "originRequest.connectTimeout"),
                (10, "ingress[0].originRequest.noTLSVerify"),
                (17, "ingress[3].service `ssh://localhost:22`")
            ]
        );
    }
}
