//! Caddy: sites become endpoints, their directives rules of traffic policies in the order in which Caddy runs them.
//!
//! A directive that protects a site and has no equivalent becomes a rule that denies its requests, so an import opens
//! nothing that was closed.

mod directives;
mod matchers;
mod placeholders;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use self::matchers::{conditions, path_matches};
use super::caddyfile::{Caddyfile, Directive, Site};
use crate::imported::{Imported, action, name_of, rule};

/// The order of directives in Caddy, as far as they are known here.
const ORDER: [&str; 18] = [
    "header",
    "redir",
    "rewrite",
    "uri",
    "basic_auth",
    "basicauth",
    "forward_auth",
    "request_header",
    "encode",
    "handle",
    "handle_path",
    "route",
    "abort",
    "error",
    "respond",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
];

/// Directives without an equal, with reasons.
const REASONS: &[(&str, &str)] = &[
    (
        "log",
        "the server records every request; see events and captures",
    ),
    (
        "file_server",
        "make an endpoint with the `upstream_url` `file:///…` of the folder; the setting `edge.allow_file_upstreams` allows it",
    ),
    (
        "root",
        "make an endpoint with the `upstream_url` `file:///…` of the folder; the setting `edge.allow_file_upstreams` allows it",
    ),
    (
        "php_fastcgi",
        "culvert speaks HTTP to upstreams; run a server that speaks FastCGI",
    ),
    ("templates", "culvert serves files as they are"),
    ("try_files", "culvert serves a file only at its own path"),
    (
        "handle_errors",
        "error pages are files in the folder `edge.error_pages`",
    ),
    ("metrics", "metrics are always at `metrics.addr`"),
    ("tracing", "has no equivalent"),
    ("push", "has no equivalent"),
    ("vars", "has no equivalent; use `set-vars`"),
    ("map", "has no equivalent; use `set-vars`"),
    ("log_skip", "the server records every request"),
    ("log_append", "use the action `log`"),
    (
        "request_body",
        "the limit of bodies is a setting of the server",
    ),
];

/// One host of a site.
struct Target {
    scheme: &'static str,
    host: String,
}

/// A site that is being converted.
struct Context<'a> {
    imported: &'a mut Imported,
    matchers: HashMap<String, Directive>,
    host: String,
    requests: Vec<Value>,
    responses: Vec<Value>,
    connects: Vec<Value>,
    /// Upstreams: the URLs of one `reverse_proxy` are a pool.
    n_upstreams: usize,
    /// The upstream of the endpoint itself.
    direct: Option<(String, bool)>,
    certificate: Option<(String, String)>,
}

/// Where a directive stands.
#[derive(Clone, Default)]
struct Scope {
    conditions: Vec<String>,
    /// Conditions that hold anyway when a request gets here, and that only rules for responses need.
    others: Vec<String>,
    /// The part of the path that a `handle_path` around it removes.
    prefix: String,
    is_top: bool,
}

impl Scope {
    /// The conditions of a rule for responses.
    fn of_responses(&self) -> Vec<String> {
        [self.conditions.as_slice(), &self.others].concat()
    }
}

/// The file.
pub(super) fn convert(file: Caddyfile, domain: Option<&str>, imported: &mut Imported) {
    for option in file.options {
        let why = match option.name.as_str() {
            "email" | "acme_ca" | "cert_issuer" => {
                "managed certificates are settings of the server: section `acme`"
            }
            "http_port" | "https_port" => {
                "listeners are settings of the server: `edge.http_addr` and `edge.https_addr`"
            }
            "admin" => "the API is at `api.addr`",
            _ => "global options have no equivalent",
        };
        imported.note(option.line, option.name, why);
    }
    for site in file.sites {
        for address in &site.addresses {
            match target(address) {
                Ok(target) => {
                    imported.note_reserved(site.line, &target.host, domain);
                    convert_site(&site, target, domain, imported);
                }
                Err(why) => imported.note(site.line, format!("the site `{address}`"), why),
            }
        }
    }
}

fn target(address: &str) -> Result<Target, &'static str> {
    let (scheme, rest) = match address.split_once("://") {
        Some(("http", rest)) => ("http", rest),
        Some(("https", rest)) => ("https", rest),
        Some(_) => return Err("the scheme is unknown"),
        None => ("", address),
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err("addresses with paths are not imported; use `handle`");
    }
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
    if host.is_empty()
        || host == "localhost"
        || authority.starts_with('[')
        || host.parse::<std::net::IpAddr>().is_ok()
    {
        return Err("an endpoint has a host name, not an address or a port");
    }
    if host.contains('{') {
        return Err("placeholders in addresses have no equivalent");
    }
    let scheme = match (scheme, port) {
        ("", "80") | ("http", "" | "80") => "http",
        ("" | "https", "" | "443") => "https",
        _ => {
            return Err(
                "endpoints have the ports of the server: `edge.http_addr` and `edge.https_addr`",
            );
        }
    };
    Ok(Target {
        scheme,
        host: host.to_ascii_lowercase(),
    })
}

fn convert_site(site: &Site, target: Target, domain: Option<&str>, imported: &mut Imported) {
    let Target { scheme, host } = target;
    let mut context = Context {
        imported,
        matchers: HashMap::new(),
        host: host.clone(),
        requests: Vec::new(),
        responses: Vec::new(),
        connects: Vec::new(),
        n_upstreams: 0,
        direct: None,
        certificate: None,
    };
    let scope = Scope {
        is_top: true,
        ..Scope::default()
    };
    let is_open = context.directives(&site.directives, &scope, true);
    if is_open && context.direct.is_none() {
        // Caddy's response when nothing else responds.
        context.requests.push(rule(
            Vec::new(),
            vec![action("custom-response", json!({"status_code": 200}))],
        ));
    }
    let Context {
        requests,
        responses,
        connects,
        direct,
        certificate,
        ..
    } = context;
    let mut policy = Map::new();
    for (phase, rules) in [
        ("on_tcp_connect", connects),
        ("on_http_request", requests),
        ("on_http_response", responses),
    ] {
        if !rules.is_empty() {
            policy.insert(phase.to_owned(), Value::Array(rules));
        }
    }
    let name = name_of(&host);
    let is_own =
        domain.is_none_or(|domain| host != domain && !host.ends_with(&format!(".{domain}")));
    if is_own && scheme == "https" {
        let mut spec = json!({"domain": host});
        match certificate {
            Some((certificate, key)) => {
                let paths = json!({"certificate_pem": format!("@{certificate}"), "private_key_pem": format!("@{key}")});
                imported.object("tls_certificates", &name, paths);
                spec["certificate_id"] = json!(format!("${{tls_certificates/{name}}}"));
            }
            None => {
                spec["certificate_management_policy"] =
                    json!({"authority": "letsencrypt", "private_key_type": "ecdsa"});
            }
        }
        imported.object("reserved_domains", &name, spec);
    } else if is_own {
        imported.object("reserved_domains", &name, json!({"domain": host}));
    }
    let mut spec = json!({"url": format!("{scheme}://{host}")});
    if let Some((url, is_h2)) = direct {
        spec["upstream_url"] = json!(url);
        if is_h2 {
            spec["upstream_protocol"] = json!("http2");
        }
    }
    if !policy.is_empty() {
        spec["traffic_policy"] = Value::Object(policy);
    }
    imported.object("endpoints", &name, spec);
    if scheme == "https" {
        let to =
            "https://${req.host}${req.url.path}${req.url.query == '' ? '' : '?' + req.url.query}";
        let redirect = action("redirect", json!({"to": to, "status_code": 308}));
        let policy = json!({"on_http_request": [rule(Vec::new(), vec![redirect])]});
        imported.object(
            "endpoints",
            &format!("{name}-http"),
            json!({"url": format!("http://{host}"), "traffic_policy": policy}),
        );
    }
}

impl Context<'_> {
    /// Converts directives; returns whether requests may pass all of them.
    fn directives(&mut self, directives: &[Directive], scope: &Scope, is_sorted: bool) -> bool {
        for directive in directives.iter().filter(|it| it.name.starts_with('@')) {
            self.matchers
                .insert(directive.name.clone(), directive.clone());
        }
        let mut ordered: Vec<&Directive> = directives
            .iter()
            .filter(|it| !it.name.starts_with('@'))
            .collect();
        if is_sorted {
            let rank = |name: &str| match name {
                // These are alternatives to each other.
                "handle_path" => ORDER.iter().position(|it| *it == "handle"),
                name => ORDER.iter().position(|it| *it == name),
            };
            let path = |it: &Directive| match it.args.first() {
                Some(path) if path.starts_with('/') => path.trim_end_matches('*').len() + 1,
                Some(name) if name.starts_with('@') => 1,
                _ => 0,
            };
            // Longer paths go first, and directives for all requests last. Directives without a rank, such as `tls`,
            // protect or configure the whole site.
            ordered.sort_by_key(|it| (rank(&it.name), std::cmp::Reverse(path(it))));
        }
        let mut is_open = true;
        let mut handled: Vec<String> = Vec::new();
        for directive in ordered {
            let is_known = REASONS.iter().any(|(known, _)| *known == directive.name);
            if !is_open && !is_known {
                self.imported.note(
                    directive.line,
                    directive.name.clone(),
                    "an earlier directive takes all its requests",
                );
                continue;
            }
            if directive.name == "handle" || directive.name == "handle_path" {
                is_open &= self.handle(directive, scope, &mut handled);
            } else {
                is_open &= self.directive(directive, scope);
            }
        }
        is_open
    }

    /// `handle` and `handle_path`: only the first that matches runs.
    fn handle(&mut self, directive: &Directive, scope: &Scope, handled: &mut Vec<String>) -> bool {
        let Some((condition, args)) = self.matcher(directive, scope) else {
            self.deny(directive, scope, "its matcher has no equivalent");
            return true;
        };
        if !args.is_empty() {
            self.imported.note(
                directive.line,
                directive.name.clone(),
                "it has more arguments than one matcher",
            );
        }
        let mut inner = scope.clone();
        inner.is_top = false;
        inner
            .others
            .extend(handled.iter().map(|it| format!("!({it})")));
        inner.conditions.extend(condition.clone());
        let path = directive.args.first().filter(|path| path.starts_with('/'));
        if let Some(path) = path.filter(|_| directive.name == "handle_path") {
            let prefix = path.trim_end_matches('*').trim_end_matches('/');
            inner.prefix = format!("{}{prefix}", scope.prefix);
            self.strip(&inner.prefix.clone(), &inner);
        }
        let is_open = self.directives(&directive.block, &inner, true);
        if is_open {
            // Nothing else runs for these requests.
            let reply = action("custom-response", json!({"status_code": 200}));
            self.requests
                .push(rule(inner.conditions.clone(), vec![reply]));
        }
        match condition {
            Some(condition) => {
                handled.push(condition);
                true
            }
            None => false,
        }
    }

    /// Converts one directive; returns whether requests may pass it.
    fn directive(&mut self, directive: &Directive, scope: &Scope) -> bool {
        let name = directive.name.as_str();
        if let Some((_, why)) = REASONS.iter().find(|(known, _)| *known == name) {
            self.imported.note(directive.line, name, *why);
            return true;
        }
        if name == "tls" {
            self.tls(directive, scope);
            return true;
        }
        if name == "forward_auth" {
            self.deny(
                directive,
                scope,
                "use `oauth`, `openid-connect` or `http-request`",
            );
            return true;
        }
        if !ORDER.contains(&name) {
            // It may protect the site: directives of plug-ins and imported files are not known.
            self.deny(directive, scope, "has no equivalent");
            return true;
        }
        let Some((condition, args)) = self.matcher(directive, scope) else {
            self.deny(directive, scope, "its matcher has no equivalent");
            return true;
        };
        let is_all = condition.is_none();
        let mut here = scope.clone();
        here.conditions.extend(condition);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let is_ending = match name {
            "header" => {
                self.headers(directive, &args, &here, true);
                false
            }
            "request_header" => {
                self.headers(directive, &args, &here, false);
                false
            }
            "encode" => {
                self.encode(directive, &args, &here);
                false
            }
            "basic_auth" | "basicauth" => {
                self.basic_auth(directive, &here);
                false
            }
            "uri" | "rewrite" => {
                self.rewrite(directive, &args, &here);
                false
            }
            "redir" => self.redirect(directive, &args, &here),
            "respond" | "error" => self.respond(directive, &args, &here),
            "abort" => {
                self.requests.push(rule(
                    here.conditions.clone(),
                    vec![action("close-connection", json!({}))],
                ));
                true
            }
            "reverse_proxy" => self.reverse_proxy(directive, &args, &here, is_all),
            // `route` keeps the order of its directives.
            _ => {
                here.is_top = false;
                !self.directives(&directive.block, &here, false)
            }
        };
        !(is_ending && is_all)
    }

    /// Denies the requests of a directive that cannot be converted.
    fn deny(&mut self, directive: &Directive, scope: &Scope, why: &str) {
        let why = format!("{why}; the endpoint denies these requests until you replace the rule");
        self.imported
            .note(directive.line, directive.name.clone(), why);
        self.requests.push(rule(
            scope.conditions.clone(),
            vec![action("deny", json!({}))],
        ));
    }

    /// The condition of a directive, and its other arguments; `None` if the matcher has no equivalent.
    fn matcher(
        &mut self,
        directive: &Directive,
        scope: &Scope,
    ) -> Option<(Option<String>, Vec<String>)> {
        let rest = || directive.args.iter().skip(1).cloned().collect();
        match directive.args.first() {
            Some(all) if all == "*" => Some((None, rest())),
            Some(path) if path.starts_with('/') && directive.name != "redir" => {
                Some((Some(path_matches(path, &scope.prefix)), rest()))
            }
            // The only argument of a redirection is its destination.
            Some(path)
                if path.starts_with('/')
                    && directive.args.get(1).is_some_and(|to| {
                        to.parse::<u16>().is_err()
                            && !matches!(to.as_str(), "permanent" | "temporary" | "html")
                    }) =>
            {
                Some((Some(path_matches(path, &scope.prefix)), rest()))
            }
            Some(name) if name.starts_with('@') => {
                let matcher = self.matchers.get(name)?.clone();
                let condition = conditions(&matcher, scope)?;
                Some((Some(condition), rest()))
            }
            _ => Some((None, directive.args.clone())),
        }
    }

    fn tls(&mut self, directive: &Directive, scope: &Scope) {
        match directive.args.as_slice() {
            [certificate, key] => self.certificate = Some((certificate.clone(), key.clone())),
            [word] if word == "internal" => {
                self.imported.note(
                    directive.line,
                    "tls internal",
                    "certificates come from ACME or from files",
                );
            }
            [] => {}
            _ => self.imported.note(
                directive.line,
                "tls",
                "managed certificates are settings of the server: section `acme`",
            ),
        }
        for option in &directive.block {
            match (option.name.as_str(), option.args.as_slice()) {
                ("protocols", [least, ..]) if least == "tls1.2" || least == "tls1.3" => {
                    let most = option.args.get(1).unwrap_or(least);
                    let config = json!({"min_version": least.trim_start_matches("tls"), "max_version": if option.args.len() > 1 { most.trim_start_matches("tls") } else { "1.3" }});
                    self.connects
                        .push(rule(Vec::new(), vec![action("terminate-tls", config)]));
                }
                ("client_auth", _) => self.deny(
                    option,
                    scope,
                    "use the action `terminate-tls` with certificate authorities",
                ),
                _ => self.imported.note(
                    option.line,
                    format!("tls {}", option.name),
                    "has no equivalent; see the settings `acme` and the action `terminate-tls`",
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, import};

    #[test]
    fn unsupported_access_rules_deny_the_site() {
        for directive in [
            "forward_auth localhost:1",
            "authorize with users",
            "import auth.conf",
            "bind 127.0.0.1",
            "respond @x 403\n@x vars a b",
            "tls {\nclient_auth\n}",
            "redir {http.vars.x}",
            "basic_auth",
        ] {
            let imported = import(
                Format::Caddy,
                &format!("a.example {{\n{directive}\nreverse_proxy localhost:1\n}}"),
                None,
            )
            .unwrap();
            let site = imported
                .objects
                .iter()
                .find(|it| it["name"] == "a.example" && it["kind"] == "endpoints")
                .unwrap();
            assert!(
                site["spec"]["traffic_policy"]
                    .to_string()
                    .contains("\"deny\""),
                "{directive}: {site}"
            );
            assert!(
                imported.notes.iter().any(|it| it.why.contains("denies")),
                "{directive}"
            );
        }
    }

    #[test]
    fn alternative_handlers_are_mutually_exclusive() {
        let text = "a.example {\n handle /api/* {\n  reverse_proxy localhost:1\n }\n handle_path /static/* {\n  header x y\n }\n handle {\n  respond \"hello\" 201\n }\n log\n}";
        let imported = import(Format::Caddy, text, Some("example")).unwrap();
        let site = imported
            .objects
            .iter()
            .find(|it| it["name"] == "a.example")
            .unwrap();
        let rules = site["spec"]["traffic_policy"]["on_http_request"]
            .as_array()
            .unwrap();
        let types: Vec<_> = rules
            .iter()
            .map(|it| it["actions"][0]["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            types,
            [
                "url-rewrite",
                "custom-response",
                "forward-internal",
                "custom-response"
            ]
        );
        assert!(rules[3]["expressions"].is_null());
        let responses = site["spec"]["traffic_policy"]["on_http_response"]
            .as_array()
            .unwrap();
        assert_eq!(responses[0]["expressions"].as_array().unwrap().len(), 1);
        assert_eq!(
            imported.notes.iter().map(|it| it.line).collect::<Vec<_>>(),
            [11]
        );
        assert!(
            imported
                .objects
                .iter()
                .all(|it| it["kind"] != "reserved_domains")
        );
    }
}
