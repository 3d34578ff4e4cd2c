//! Matchers as expressions of policies.

use super::Scope;
use crate::caddyfile::Directive;
use crate::imported::quoted;

/// A text of a regular expression.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c.is_ascii() && c != '/' && c != '-' && c != '_' {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The condition of a path with `*`.
pub(super) fn path_matches(path: &str, prefix: &str) -> String {
    let inner: Vec<String> = path.split('*').map(escaped).collect();
    let whole = format!("(?i)^{}{}$", escaped(prefix), inner.join(".*"));
    format!("req.url.path.matches({})", quoted(&whole))
}

/// The condition of a named matcher; `None` if a part has no equivalent.
pub(super) fn conditions(matcher: &Directive, scope: &Scope) -> Option<String> {
    let rows: Vec<Directive> = match matcher.args.split_first() {
        Some((name, args)) => vec![Directive {
            line: matcher.line,
            name: name.clone(),
            args: args.to_vec(),
            block: matcher.block.clone(),
        }],
        None => matcher.block.clone(),
    };
    let all: Option<Vec<String>> = rows.iter().map(|row| condition(row, scope)).collect();
    let all = all?;
    match all.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(
            many.iter()
                .map(|it| format!("({it})"))
                .collect::<Vec<_>>()
                .join(" && "),
        ),
    }
}

fn condition(row: &Directive, scope: &Scope) -> Option<String> {
    let any = |found: Vec<String>| (!found.is_empty()).then(|| format!("({})", found.join(" || ")));
    let list = |texts: &[String]| {
        texts
            .iter()
            .map(|it| quoted(it))
            .collect::<Vec<_>>()
            .join(", ")
    };
    if row.args.iter().any(|it| it.contains('{')) {
        return None;
    }
    match (row.name.as_str(), row.args.as_slice()) {
        ("path", paths) => any(paths
            .iter()
            .map(|path| path_matches(path, &scope.prefix))
            .collect()),
        ("path_regexp", [.., pattern]) if scope.prefix.is_empty() => {
            Some(format!("req.url.path.matches({})", quoted(pattern)))
        }
        ("method", methods) => Some(format!("req.method in [{}]", list(methods))),
        ("host", hosts) if hosts.iter().all(|host| !host.contains('*')) => {
            Some(format!("endpoint.host in [{}]", list(hosts)))
        }
        ("header", [field]) if field.starts_with('!') => Some(format!(
            "!hasReqHeader({})",
            quoted(field.trim_start_matches('!'))
        )),
        ("header", [field, value]) if value == "*" => {
            Some(format!("hasReqHeader({})", quoted(field)))
        }
        ("header", [field, value]) if !value.contains('*') => Some(format!(
            "{} in getReqHeader({})",
            quoted(value),
            quoted(field)
        )),
        ("protocol", [scheme]) if scheme == "http" || scheme == "https" => {
            Some(format!("req.url.scheme == {}", quoted(scheme)))
        }
        ("remote_ip" | "client_ip", ranges) => {
            let mut found = Vec::new();
            for range in ranges {
                match range.as_str() {
                    "private_ranges" => found.extend(
                        [
                            "192.168.0.0/16",
                            "172.16.0.0/12",
                            "10.0.0.0/8",
                            "127.0.0.1/8",
                            "fd00::/8",
                            "::1/128",
                        ]
                        .map(str::to_owned),
                    ),
                    "forwarded" => return None,
                    range if range.contains('/') => found.push(range.to_owned()),
                    address if address.contains(':') => found.push(format!("{address}/128")),
                    address => found.push(format!("{address}/32")),
                }
            }
            Some(format!("inCidrRanges(conn.client_ip, [{}])", list(&found)))
        }
        ("not", []) => {
            let inner = Directive {
                args: Vec::new(),
                ..row.clone()
            };
            conditions(&inner, scope).map(|it| format!("!({it})"))
        }
        ("not", _) => conditions(row, scope).map(|it| format!("!({it})")),
        _ => None,
    }
}
