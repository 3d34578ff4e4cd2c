//! frp: `frps.toml` becomes settings of the server, `frpc.toml` a configuration of the agent.

use serde_json::{Map, Value, json};

use super::tree::Table;
use crate::imported::{Imported, action, literal, quoted, rule};

const SERVER_REASONS: &[(&str, &str)] = &[
    (
        "auth",
        "agents have credentials of their own; make one with `culvert api credentials create`",
    ),
    ("kcp", "agents connect over TCP with TLS"),
    ("quic", "agents connect over TCP with TLS"),
    (
        "webServer",
        "the console and the API are at `api.addr`, with API keys",
    ),
    ("enablePrometheus", "metrics are always at `metrics.addr`"),
    (
        "custom404Page",
        "error pages are files in the folder `edge.error_pages`",
    ),
    ("httpPlugins", "use traffic policies and events"),
    (
        "maxPortsPerClient",
        "limit agents with the ACL of their credentials",
    ),
    (
        "tcpmux",
        "has no equivalent; publish the service with a `tls` or `tcp` endpoint",
    ),
];

const PROXY_REASONS: &[(&str, &str)] = &[
    (
        "proxies.transport.useEncryption",
        "not needed: agents always use TLS",
    ),
    (
        "proxies.transport.useCompression",
        "use the action `compress-response`",
    ),
    (
        "proxies.transport.bandwidthLimit",
        "has no equivalent; the action `rate-limit` counts requests",
    ),
    (
        "proxies.healthCheck",
        "has no equivalent; the action `circuit-breaker` watches responses",
    ),
    (
        "proxies.plugin",
        "agents have no plugins; forward to a local server that does this",
    ),
    (
        "proxies.loadBalancer.groupKey",
        "not needed: only credentials of one owner share a URL",
    ),
    (
        "proxies.routeByHTTPUser",
        "has no equivalent; write a rule with an expression",
    ),
    ("proxies.annotations", "has no equivalent"),
    (
        "proxies.multiplexer",
        "has no equivalent; publish the service with a `tls` or `tcp` endpoint",
    ),
];

const CLIENT_REASONS: &[(&str, &str)] = &[
    (
        "auth",
        "use a credential: `culvert api credentials create` on the server prints its token",
    ),
    (
        "visitors",
        "culvert has no visitors; publish the service with a policy that restricts it",
    ),
    ("webServer", "the inspection page is at `web_addr`"),
    ("transport.protocol", "agents connect over TCP with TLS"),
    (
        "transport.tls",
        "agents always use TLS; `connect_cas` names the server's CA",
    ),
    (
        "transport.poolCount",
        "not needed: streams share a connection",
    ),
    ("transport.tcpMux", "not needed: streams share a connection"),
    (
        "start",
        "name the endpoints on the command line: `culvert start NAME…`",
    ),
    ("includes", "import each file separately"),
    (
        "user",
        "has no equivalent: names of endpoints have no prefix",
    ),
    (
        "loginFailExit",
        "the agent retries until the server refuses it",
    ),
    ("udp", "culvert has no UDP endpoints"),
    (
        "natHoleStunServer",
        "culvert has no peer-to-peer connections",
    ),
];

/// `frps.toml`.
pub(super) fn server(mut frps: Table, imported: &mut Imported) {
    let address = frps
        .text("bindAddr")
        .map_or_else(|| "0.0.0.0".to_owned(), |(_, text)| text);
    let proxy_address = frps
        .text("proxyBindAddr")
        .map_or_else(|| address.clone(), |(_, text)| text);
    let joined = |host: &str, port: &str| match host.contains(':') {
        true => json!(format!("[{host}]:{port}")),
        false => json!(format!("{host}:{port}")),
    };
    for (path, host, section, name) in [
        ("bindPort", &address, "agents", "addr"),
        ("vhostHTTPPort", &proxy_address, "edge", "http_addr"),
        ("vhostHTTPSPort", &proxy_address, "edge", "https_addr"),
        ("sshTunnelGateway.bindPort", &address, "agents", "ssh_addr"),
    ] {
        if let Some((_, port)) = frps.text(path).filter(|(_, port)| port != "0") {
            imported
                .settings
                .entry(section)
                .or_default()
                .insert(name, joined(host, &port));
        }
    }
    for (path, section, name) in [
        ("subDomainHost", "edge", "domain"),
        ("transport.tls.certFile", "agents", "cert_file"),
        ("transport.tls.keyFile", "agents", "key_file"),
    ] {
        if let Some((_, text)) = frps.text(path) {
            imported
                .settings
                .entry(section)
                .or_default()
                .insert(name, json!(text));
        }
    }
    if let Some((line, level)) = frps.text("log.level") {
        match level.as_str() {
            "trace" | "debug" | "info" | "warn" | "error" => {
                imported
                    .settings
                    .entry("log")
                    .or_default()
                    .insert("level", json!(level));
            }
            _ => imported.note(line, "log.level", "the level is unknown"),
        }
    }
    for (index, (line, mut range)) in frps.tables("allowPorts").into_iter().enumerate() {
        let single = range.text("single").map(|(_, port)| (port.clone(), port));
        let start = range.text("start").map(|(_, port)| port);
        let wide = start.zip(range.text("end").map(|(_, port)| port));
        match single.or(wide) {
            Some((first, last)) if index == 0 => {
                let ports = json!(format!("{first}-{last}"));
                imported
                    .settings
                    .entry("edge")
                    .or_default()
                    .insert("tcp_ports", ports);
            }
            _ => imported.note(
                line,
                format!("allowPorts[{index}]"),
                "`edge.tcp_ports` is one range",
            ),
        }
    }
    frps.note_rest("", SERVER_REASONS, imported);
}

/// `frpc.toml`.
pub(super) fn client(mut frpc: Table, domain: Option<&str>, imported: &mut Imported) {
    let server = frpc
        .text("serverAddr")
        .map_or_else(|| "localhost".to_owned(), |(_, text)| text);
    if let Some((line, _)) = frpc.text("serverPort") {
        imported.note(
            line,
            "serverPort",
            "the agent connects to port 8441, the default of `agents.addr`",
        );
    }
    imported
        .agent
        .insert("connect_url".to_owned(), json!(format!("{server}:8441")));
    if let Some((_, proxy)) = frpc.text("transport.proxyURL") {
        imported.agent.insert("proxy_url".to_owned(), json!(proxy));
    }
    if let Some((_, to)) = frpc.text("log.to") {
        let to = if to == "console" {
            "stderr".to_owned()
        } else {
            to
        };
        imported.agent.insert("log".to_owned(), json!(to));
    }
    if let Some((line, level)) = frpc.text("log.level") {
        match level.as_str() {
            "debug" | "info" | "warn" | "error" => {
                imported.agent.insert("log_level".to_owned(), json!(level));
            }
            _ => imported.note(
                line,
                "log.level",
                "the agent has the levels debug, info, warn and error",
            ),
        }
    }
    for (index, (line, table)) in frpc.tables("proxies").into_iter().enumerate() {
        proxy(index, line, table, domain, imported);
    }
    frpc.note_rest("", CLIENT_REASONS, imported);
}

/// One of the client's proxies, as an endpoint for each of its URLs.
fn proxy(
    index: usize,
    line: usize,
    mut proxy: Table,
    domain: Option<&str>,
    imported: &mut Imported,
) {
    let place = format!("proxies[{index}].");
    let name = proxy
        .text("name")
        .map_or_else(|| format!("proxy-{index}"), |(_, name)| name);
    let kind = proxy.text("type").map(|(_, kind)| kind).unwrap_or_default();
    let urls = match kind.as_str() {
        "tcp" => tcp(&mut proxy, &place, imported),
        "http" => hosts(&mut proxy, "http", domain, &place, imported),
        "https" => hosts(&mut proxy, "tls", domain, &place, imported),
        _ => {
            let why = match kind.as_str() {
                "udp" | "sudp" => "culvert has no UDP endpoints",
                "stcp" | "xtcp" => {
                    "culvert has no visitors; publish the service with a policy that restricts it"
                }
                "tcpmux" => "publish the service with a `tls` or `tcp` endpoint",
                _ => "the type is unknown",
            };
            imported.note(
                line,
                format!("proxies[{index}] `{name}`, type `{kind}`"),
                why,
            );
            return;
        }
    };
    let has_plugin = proxy.table("plugin").map(|(line, _)| {
        imported.note(
            line,
            format!("{place}plugin"),
            "agents have no plugins; forward to a local server that does this",
        );
    });
    if has_plugin.is_some() || urls.is_empty() {
        imported.note(
            line,
            format!("proxies[{index}] `{name}`"),
            "it is not imported, for want of a service or a host name",
        );
        return;
    }
    let host = proxy
        .text("localIP")
        .map_or_else(|| "127.0.0.1".to_owned(), |(_, host)| host);
    let port = proxy
        .text("localPort")
        .map(|(_, port)| port)
        .unwrap_or_default();
    let scheme = if kind == "http" { "http" } else { "tcp" };
    let mut upstream = json!({"url": format!("{scheme}://{host}:{port}")});
    if let Some((_, version)) = proxy
        .text("transport.proxyProtocolVersion")
        .filter(|(_, it)| !it.is_empty())
    {
        upstream["proxy_protocol"] =
            json!(version.trim_start_matches('v').parse::<u8>().unwrap_or(2));
    }
    let mut endpoint = Map::new();
    endpoint.insert("upstream".to_owned(), upstream);
    if proxy.text("loadBalancer.group").is_some() {
        endpoint.insert("pooling_enabled".to_owned(), json!(true));
    }
    if let Some((_, metadata)) = proxy.table("metadatas") {
        let metadata: Map<String, Value> = metadata
            .into_texts()
            .into_iter()
            .map(|(_, key, value)| (key, json!(value)))
            .collect();
        endpoint.insert(
            "metadata".to_owned(),
            json!(Value::Object(metadata).to_string()),
        );
    }
    if kind == "http" {
        let policy = policy(&mut proxy, &place, imported);
        if !policy.is_empty() {
            endpoint.insert("traffic_policy".to_owned(), Value::Object(policy));
        }
    }
    proxy.note_rest(&place, PROXY_REASONS, imported);
    for (n, url) in urls.iter().enumerate() {
        let mut endpoint = endpoint.clone();
        let name = if n == 0 {
            name.clone()
        } else {
            format!("{name}-{}", n + 1)
        };
        endpoint.insert("name".to_owned(), json!(name));
        endpoint.insert("url".to_owned(), json!(url));
        imported.endpoints.push(Value::Object(endpoint));
    }
}

/// The server assigns the port.
fn tcp(proxy: &mut Table, place: &str, imported: &mut Imported) -> Vec<String> {
    if let Some((line, port)) = proxy.text("remotePort").filter(|(_, port)| port != "0") {
        let why = "the server assigns a port; for a fixed one, reserve an address and write it into `url`";
        imported.note(line, format!("{place}remotePort {port}"), why);
    }
    vec!["tcp://".to_owned()]
}

fn hosts(
    proxy: &mut Table,
    scheme: &str,
    domain: Option<&str>,
    place: &str,
    imported: &mut Imported,
) -> Vec<String> {
    let mut urls: Vec<String> = proxy
        .texts("customDomains")
        .into_iter()
        .map(|(_, host)| format!("{scheme}://{host}"))
        .collect();
    if let Some((line, label)) = proxy.text("subdomain") {
        match domain {
            Some(domain) => {
                let host = format!("{label}.{domain}");
                imported.note_reserved(line, &host, Some(domain));
                urls.push(format!("{scheme}://{host}"));
            }
            None => imported.note(
                line,
                format!("{place}subdomain"),
                "give the base domain of the server with `--domain`",
            ),
        }
    }
    urls
}

/// The policy of an `http` proxy.
fn policy(proxy: &mut Table, place: &str, imported: &mut Imported) -> Map<String, Value> {
    let mut requests = Vec::new();
    let mut responses = Vec::new();
    let locations: Vec<String> = proxy
        .texts("locations")
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    if !locations.is_empty() && !locations.iter().any(|path| path == "/") {
        let paths: Vec<String> = locations
            .iter()
            .map(|path| format!("req.url.path.startsWith({})", quoted(path)))
            .collect();
        let other = format!("!({})", paths.join(" || "));
        requests.push(rule(
            vec![other],
            vec![action("deny", json!({"status_code": 404}))],
        ));
    }
    let user = proxy.text("httpUser");
    let password = proxy.text("httpPassword");
    if let (Some((line, user)), Some((_, password))) = (user, password) {
        if !(8..=128).contains(&password.len()) {
            let why = "passwords have 8 to 128 characters: the endpoint denies all requests until you set one";
            imported.note(line, format!("{place}httpPassword"), why);
            requests.push(rule(Vec::new(), vec![action("deny", json!({}))]));
        } else {
            let credentials = literal(&format!("{user}:{password}"));
            requests.push(rule(
                Vec::new(),
                vec![action("basic-auth", json!({"credentials": [credentials]}))],
            ));
        }
    }
    let mut set = Vec::new();
    if let Some((_, host)) = proxy.text("hostHeaderRewrite") {
        set.push(("host".to_owned(), host));
    }
    let mut headers = |path: &str| -> Vec<(String, String)> {
        let table = proxy
            .table(path)
            .map(|(_, table)| table.into_texts())
            .unwrap_or_default();
        table
            .into_iter()
            .map(|(_, name, value)| (name, value))
            .collect()
    };
    set.extend(headers("requestHeaders.set"));
    set_headers(&set, &mut requests);
    set_headers(&headers("responseHeaders.set"), &mut responses);
    let mut policy = Map::new();
    if !requests.is_empty() {
        policy.insert("on_http_request".to_owned(), json!(requests));
    }
    if !responses.is_empty() {
        policy.insert("on_http_response".to_owned(), json!(responses));
    }
    policy
}

/// Rules that set header fields: remove and add.
pub(super) fn set_headers(set: &[(String, String)], rules: &mut Vec<Value>) {
    for chunk in set.chunks(10) {
        let names: Vec<&String> = chunk
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !name.eq_ignore_ascii_case("host"))
            .collect();
        let added: Map<String, Value> = chunk
            .iter()
            .map(|(name, value)| (name.clone(), json!(literal(value))))
            .collect();
        let mut actions = Vec::new();
        if !names.is_empty() {
            actions.push(action("remove-headers", json!({"headers": names})));
        }
        actions.push(action("add-headers", json!({"headers": added})));
        rules.push(rule(Vec::new(), actions));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, import};

    #[test]
    fn a_server_file_becomes_settings() {
        let text = "bindPort = 7000\nvhostHTTPPort = 80\nsubDomainHost = \"a.example\"\nauth.token = \"x\"\nallowPorts = [{start = 2000, end = 3000}, {single = 4000}]\nkcpBindPort = 7000\n[webServer]\nport = 7500\n";
        let imported = import(Format::Frps, text, None).unwrap();
        let files = imported.files();
        assert_eq!(files, [("culvert.toml", "[agents]\naddr = \"0.0.0.0:7000\"\n\n[edge]\ndomain = \"a.example\"\nhttp_addr = \"0.0.0.0:80\"\ntcp_ports = \"2000-3000\"\n\n".to_owned())]);
        let notes: Vec<_> = imported
            .notes
            .iter()
            .map(|note| (note.line, note.what.as_str()))
            .collect();
        assert_eq!(
            notes,
            [
                (4, "auth"),
                (5, "allowPorts[1]"),
                (6, "kcpBindPort"),
                (7, "webServer")
            ]
        );
    }

    #[test]
    fn every_line_of_a_client_file_is_imported_or_reported() {
        let text = "serverAddr = \"a.example\"\nserverPort = 7000\nauth.token = \"x\"\n[[proxies]]\nname = \"ssh\"\ntype = \"tcp\"\nlocalPort = 22\nremotePort = 6000\ntransport.bandwidthLimit = \"1MB\"\n[[proxies]]\nname = \"web\"\ntype = \"http\"\nlocalPort = 80\nsubdomain = \"web\"\ncustomDomains = [\"w.example\"]\nhttpUser = \"me\"\nhttpPassword = \"correct horse\"\nrequestHeaders.set.x-from = \"frp\"\n[[proxies]]\nname = \"dns\"\ntype = \"udp\"\n";
        let imported = import(Format::Frpc, text, Some("a.example")).unwrap();
        let names: Vec<_> = imported
            .endpoints
            .iter()
            .map(|it| format!("{} {}", it["name"], it["url"]))
            .collect();
        assert_eq!(
            names,
            [
                "\"ssh\" \"tcp://\"",
                "\"web\" \"http://w.example\"",
                "\"web-2\" \"http://web.a.example\""
            ]
        );
        let notes: Vec<_> = imported
            .notes
            .iter()
            .map(|note| (note.line, note.what.as_str()))
            .collect();
        assert_eq!(
            notes,
            [
                (2, "serverPort"),
                (3, "auth"),
                (8, "proxies[0].remotePort 6000"),
                (9, "proxies[0].transport.bandwidthLimit"),
                (19, "proxies[2] `dns`, type `udp`")
            ]
        );
        let policy = &imported.endpoints[1]["traffic_policy"]["on_http_request"];
        assert_eq!(
            policy[0]["actions"][0]["config"]["credentials"][0],
            "me:correct horse"
        );
        assert_eq!(
            policy[1]["actions"][1]["config"]["headers"]["x-from"],
            "frp"
        );
        let without = import(Format::Frpc, text, None).unwrap();
        assert!(
            without
                .notes
                .iter()
                .any(|note| note.line == 14 && note.why.contains("--domain"))
        );
    }
}
