//! Directives that become rules of a policy, and upstreams.

use serde_json::json;

use super::matchers::escaped;
use super::placeholders::template;
use super::{Context, Scope};
use crate::caddyfile::Directive;
use crate::imported::{action, label_of, literal, name_of, quoted, rule};

impl Context<'_> {
    /// `header` and `request_header`.
    pub(super) fn headers(
        &mut self,
        directive: &Directive,
        args: &[&str],
        scope: &Scope,
        is_response: bool,
    ) {
        let mut rows: Vec<(usize, Vec<String>)> = Vec::new();
        if !args.is_empty() {
            rows.push((
                directive.line,
                args.iter().map(|it| (*it).to_owned()).collect(),
            ));
        }
        for option in &directive.block {
            let row = std::iter::once(option.name.clone()).chain(option.args.iter().cloned());
            rows.push((option.line, row.collect()));
        }
        for (line, row) in rows {
            self.header(line, &row, scope, is_response);
        }
    }

    pub(super) fn header(&mut self, line: usize, row: &[String], scope: &Scope, is_response: bool) {
        let (field, value) = match row {
            [field] => (field.as_str(), None),
            [field, value] => (field.as_str(), Some(value.as_str())),
            _ => {
                self.imported.note(
                    line,
                    // A value may be a secret.
                    row.first().cloned().unwrap_or_default(),
                    "replacing a part of a header has no equivalent",
                );
                return;
            }
        };
        if field == "defer" {
            return;
        }
        let (sign, name) = match field.chars().next() {
            Some(sign @ ('+' | '-' | '?' | '>')) => (sign, field.get(1..).unwrap_or_default()),
            _ => (' ', field),
        };
        let mut conditions = match is_response {
            true => scope.of_responses(),
            false => scope.conditions.clone(),
        };
        let mut actions = Vec::new();
        match (sign, value.map(template)) {
            (_, Some(None)) => {
                self.imported
                    .note(line, field, "its placeholder has no equivalent");
                return;
            }
            ('-', _) => actions.push(action("remove-headers", json!({"headers": [name]}))),
            (_, None) => {
                self.imported.note(line, field, "it has no value");
                return;
            }
            (sign, Some(Some(value))) => {
                match sign {
                    '?' if is_response => {
                        conditions.push(format!("!hasResHeader({})", quoted(name)))
                    }
                    '?' => conditions.push(format!("!hasReqHeader({})", quoted(name))),
                    '+' => {}
                    // `host` is replaced anyway.
                    _ if name.eq_ignore_ascii_case("host") => {}
                    _ => actions.push(action("remove-headers", json!({"headers": [name]}))),
                }
                actions.push(action("add-headers", json!({"headers": {name: value}})));
            }
        }
        let rules = if is_response {
            &mut self.responses
        } else {
            &mut self.requests
        };
        rules.push(rule(conditions, actions));
    }

    pub(super) fn encode(&mut self, directive: &Directive, args: &[&str], scope: &Scope) {
        let mut formats: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
        for option in &directive.block {
            match option.name.as_str() {
                "gzip" | "br" | "zstd" => formats.push(option.name.clone()),
                other => {
                    self.imported
                        .note(option.line, format!("encode {other}"), "has no equivalent")
                }
            }
        }
        if formats.is_empty() {
            formats = vec!["zstd".to_owned(), "gzip".to_owned()];
        }
        let known: Vec<&String> = formats
            .iter()
            .filter(|it| *it == "gzip" || *it == "br")
            .collect();
        for format in formats.iter().filter(|it| !known.contains(it)) {
            self.imported.note(
                directive.line,
                format!("encode {format}"),
                "responses are compressed with gzip, deflate or br",
            );
        }
        if !known.is_empty() {
            let compress = action("compress-response", json!({"algorithms": known}));
            self.responses
                .push(rule(scope.of_responses(), vec![compress]));
        }
    }

    pub(super) fn basic_auth(&mut self, directive: &Directive, scope: &Scope) {
        let mut credentials = Vec::new();
        for option in &directive.block {
            let user = &option.name;
            let variable: String = user
                .chars()
                .map(|c| {
                    if c.is_ascii_alphanumeric() {
                        c.to_ascii_uppercase()
                    } else {
                        '_'
                    }
                })
                .collect();
            let variable = format!("PASSWORD_{variable}");
            let why = format!(
                "a hash cannot be imported: set the variable `{variable}` to the password for `culvert apply`"
            );
            self.imported
                .note(option.line, format!("the password of {user}"), why);
            credentials.push(format!("{}:${{env:{variable}}}", literal(user)));
        }
        match credentials.len() {
            1..=10 => {
                let login = action("basic-auth", json!({"credentials": credentials}));
                self.requests
                    .push(rule(scope.conditions.clone(), vec![login]));
            }
            _ => self.deny(
                directive,
                scope,
                "the action `basic-auth` has 1 to 10 credentials",
            ),
        }
    }

    /// Removes a prefix of the path.
    pub(super) fn strip(&mut self, prefix: &str, scope: &Scope) {
        let from = format!("^([^:/]+://[^/]+){}", escaped(prefix));
        let rewrite = action("url-rewrite", json!({"from": from, "to": "$1"}));
        self.requests
            .push(rule(scope.conditions.clone(), vec![rewrite]));
    }

    pub(super) fn rewrite(&mut self, directive: &Directive, args: &[&str], scope: &Scope) {
        match (directive.name.as_str(), args) {
            ("uri", ["strip_prefix", prefix]) => {
                let whole = format!("{}{}", scope.prefix, prefix.trim_end_matches('/'));
                self.strip(&whole, scope);
            }
            ("rewrite", [to])
                if to.ends_with("{uri}") && !to.trim_end_matches("{uri}").contains('{') =>
            {
                let to = format!("$1{}", to.trim_end_matches("{uri}").trim_end_matches('/'));
                let rewrite = action(
                    "url-rewrite",
                    json!({"from": "^([^:/]+://[^/]+)", "to": to}),
                );
                self.requests
                    .push(rule(scope.conditions.clone(), vec![rewrite]));
            }
            _ => self.imported.note(
                directive.line,
                format!("{} {}", directive.name, args.join(" ")),
                "write a rule with `url-rewrite`",
            ),
        }
    }

    pub(super) fn redirect(&mut self, directive: &Directive, args: &[&str], scope: &Scope) -> bool {
        let (to, code) = match args {
            [to] => (*to, 302),
            [to, "permanent"] => (*to, 301),
            [to, "temporary"] => (*to, 302),
            [to, code] => (*to, code.parse().unwrap_or(0)),
            _ => ("", 0),
        };
        let Some(mut to) = template(to).filter(|_| matches!(code, 301 | 302 | 303 | 307 | 308))
        else {
            self.deny(
                directive,
                scope,
                "its destination or status has no equivalent",
            );
            return true;
        };
        if to.starts_with('/') {
            to = format!("${{req.url.scheme}}://${{req.host}}{to}");
        }
        let redirect = action("redirect", json!({"to": to, "status_code": code}));
        self.requests
            .push(rule(scope.conditions.clone(), vec![redirect]));
        true
    }

    pub(super) fn respond(&mut self, directive: &Directive, args: &[&str], scope: &Scope) -> bool {
        let is_status = |text: &str| text.len() == 3 && text.parse::<u16>().is_ok();
        let usual = if directive.name == "error" { 500 } else { 200 };
        let (body, status) = match args {
            [] => ("", usual),
            [status] if is_status(status) => ("", status.parse().unwrap_or(usual)),
            [body] => (*body, usual),
            [body, status, ..] => (*body, status.parse().unwrap_or(usual)),
        };
        for option in &directive.block {
            let what = format!("{} {}", directive.name, option.name);
            self.imported.note(option.line, what, "has no equivalent");
        }
        let Some(body) = template(body) else {
            self.deny(directive, scope, "its placeholder has no equivalent");
            return true;
        };
        let mut config = json!({"status_code": status});
        if !body.is_empty() {
            config["body"] = json!(body);
        }
        self.requests.push(rule(
            scope.conditions.clone(),
            vec![action("custom-response", config)],
        ));
        true
    }

    pub(super) fn reverse_proxy(
        &mut self,
        directive: &Directive,
        args: &[&str],
        scope: &Scope,
        is_all: bool,
    ) -> bool {
        let mut upstreams: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
        for option in directive.block.iter().filter(|it| it.name == "to") {
            upstreams.extend(option.args.iter().cloned());
        }
        let urls: Option<Vec<(String, bool)>> = upstreams.iter().map(|it| upstream(it)).collect();
        let Some(urls) = urls.filter(|urls| !urls.is_empty()) else {
            self.deny(
                directive,
                scope,
                "upstreams are `host:port` with HTTP, known in advance",
            );
            return true;
        };
        for option in &directive.block {
            let row = |value: Option<&str>| -> Vec<String> {
                let name = option.args.first().cloned();
                let value = value
                    .map(str::to_owned)
                    .or_else(|| option.args.get(1).cloned());
                name.into_iter()
                    .chain(value)
                    .chain(option.args.iter().skip(2).cloned())
                    .collect()
            };
            match option.name.as_str() {
                "to" => {}
                "header_up" => {
                    let first = urls
                        .first()
                        .map(|(url, _)| url.split_once("://").map_or(url.as_str(), |(_, it)| it));
                    let is_own = option.args.get(1).is_some_and(|it| {
                        it == "{upstream_hostport}"
                            || it == "{http.reverse_proxy.upstream.hostport}"
                    });
                    let row = row(first.filter(|_| is_own));
                    self.header(option.line, &row, scope, false);
                }
                "header_down" => self.header(option.line, &row(None), scope, true),
                "transport" if option.block.iter().any(|it| it.name.starts_with("tls")) => {
                    let why = "the upstream's certificate is verified with the system's authorities; write `https://` upstreams";
                    self.imported
                        .note(option.line, "reverse_proxy transport", why);
                }
                name if name.starts_with("health_")
                    || name == "fail_duration"
                    || name == "max_fails" =>
                {
                    self.imported.note(
                        option.line,
                        format!("reverse_proxy {name}"),
                        "has no equivalent; the action `circuit-breaker` watches responses",
                    );
                }
                name => self.imported.note(
                    option.line,
                    format!("reverse_proxy {name}"),
                    "has no equivalent",
                ),
            }
        }
        if let ([(url, is_h2)], true, true) = (urls.as_slice(), is_all, scope.is_top) {
            self.direct = Some((url.clone(), *is_h2));
            return true;
        }
        self.n_upstreams += 1;
        let inner = format!(
            "http://{}-{}.internal",
            label_of(&self.host),
            self.n_upstreams
        );
        let is_pool = urls.len() > 1;
        for (n, (url, is_h2)) in urls.into_iter().enumerate() {
            let mut name = format!("{}-{}", name_of(&self.host), self.n_upstreams);
            let mut spec = json!({"url": inner, "upstream_url": url});
            if is_pool {
                name = format!("{name}-{}", n + 1);
                spec["pooling_enabled"] = json!(true);
            }
            if is_h2 {
                spec["upstream_protocol"] = json!("http2");
            }
            self.imported.object("endpoints", &name, spec);
        }
        self.requests.push(rule(
            scope.conditions.clone(),
            vec![action("forward-internal", json!({"url": inner}))],
        ));
        true
    }
}

/// The URL of an upstream, and whether it speaks HTTP/2 without TLS.
fn upstream(text: &str) -> Option<(String, bool)> {
    if text.contains('{') || text.starts_with("unix") || text.starts_with("srv+") {
        return None;
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let rest = match rest.strip_prefix(':') {
        Some(port) => format!("localhost:{port}"),
        None => rest.trim_end_matches('/').to_owned(),
    };
    match scheme {
        "h2c" => Some((format!("http://{rest}"), true)),
        "http" | "https" if !rest.contains('/') => Some((format!("{scheme}://{rest}"), false)),
        _ => None,
    }
}
