//! Compares the fields of a file with an object as the API shows it. Fields that the file omits, defaults of the server
//! and other spellings of a value do not count as differences.

use std::collections::BTreeSet;

use culvert_base::Timestamp;
use culvert_resources::input::period::Period;
use serde_json::Value;
use url::Url;

/// Stands for a value that is known only after the run.
pub(super) const UNKNOWN: &str = "(known after apply)";
/// Stands for the value of a hidden field.
pub(super) const HIDDEN: &str = "(hidden)";
const REDACTED: &str = "[redacted]";

/// A difference.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    /// `target.webhook.url`.
    pub(super) path: String,
    pub(super) before: Value,
    pub(super) after: Value,
}

/// The differences of one field.
pub(super) fn differences(field: &str, wanted: &Value, shown: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(field, wanted, shown, &mut found);
    found
}

fn compare(path: &str, wanted: &Value, shown: &Value, found: &mut Vec<Difference>) {
    match (wanted, shown) {
        (Value::Array(wanted), Value::Array(shown))
            if path == "scopes" && scopes(wanted) == scopes(shown) => {}
        // Null leaves a field as it is.
        (Value::Null, _) => {}
        (Value::Object(wanted), Value::Object(shown)) => {
            for (key, wanted) in wanted {
                let shown = shown.get(key).unwrap_or(&Value::Null);
                compare(&format!("{path}.{key}"), wanted, shown, found);
            }
            // The list replaces the one before, so an entry loses what the file does not give it.
            if path.starts_with("upstreams[") {
                let is_left_out = |key: &str| wanted.get(key).is_none_or(Value::is_null);
                for (key, shown) in shown.iter().filter(|(key, _)| is_left_out(key)) {
                    if !is_empty(shown) {
                        found.push(Difference {
                            path: format!("{path}.{key}"),
                            before: shown.clone(),
                            after: Value::Null,
                        });
                    }
                }
            }
        }
        (Value::Array(wanted), Value::Array(shown)) if wanted.len() == shown.len() => {
            for (index, (wanted, shown)) in wanted.iter().zip(shown).enumerate() {
                compare(&format!("{path}[{index}]"), wanted, shown, found);
            }
        }
        (wanted, shown) if is_same(path, wanted, shown) => {}
        (wanted, shown) => found.push(Difference {
            path: path.to_owned(),
            before: shown.clone(),
            after: wanted.clone(),
        }),
    }
}

/// Scopes with those that they include.
fn scopes(names: &[Value]) -> BTreeSet<String> {
    let names = names.iter().filter_map(Value::as_str);
    let both = |name: &str| {
        let read = name.strip_suffix(".write");
        [
            Some(name.to_owned()),
            read.map(|stem| format!("{stem}.read")),
        ]
    };
    names.flat_map(both).flatten().collect()
}

fn is_same(path: &str, wanted: &Value, shown: &Value) -> bool {
    if path == "traffic_policy" {
        return is_same_policy(wanted, shown);
    }
    // The secrets of a destination are not shown.
    if let Some(field) = path.strip_prefix("target.")
        && is_hidden(shown)
    {
        // The API shows only the target that the destination has, so a missing one is another type.
        return field.contains('.') || !matches!((wanted, shown), (Value::Object(_), Value::Null));
    }
    match (wanted, shown) {
        // A length of time counts from when it was sent.
        (Value::String(a), Value::String(b))
            if path == "expires_at" && Period::parse(a).is_some() =>
        {
            !b.is_empty()
        }
        (Value::String(a), Value::String(b)) => a == b || spelled(path, a) == spelled(path, b),
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (wanted, Value::Null) => is_empty(wanted),
        (Value::Object(_), _) => false,
        (wanted, shown) => wanted == shown,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.values().all(is_empty),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn is_hidden(shown: &Value) -> bool {
    match shown {
        Value::Null => true,
        Value::String(text) => text.is_empty() || text == REDACTED,
        Value::Array(items) => !items.is_empty() && items.iter().all(is_hidden),
        _ => false,
    }
}

/// A policy in a file is text, which must be the same, or a mapping, which is stored as JSON text.
fn is_same_policy(wanted: &Value, shown: &Value) -> bool {
    let Value::String(shown) = shown else {
        return false;
    };
    match wanted {
        Value::String(wanted) => wanted == shown,
        wanted => culvert_yaml::read_yaml(shown).is_ok_and(|shown| shown == *wanted),
    }
}

/// Normalises the spelling of a value that the server normalises too.
fn spelled(path: &str, text: &str) -> String {
    let text = text.trim();
    let field = path.rsplit('.').next().unwrap_or(path);
    let field = field.split('[').next().unwrap_or(field);
    match field {
        "ca" if text.contains("-----BEGIN") => sections(text),
        _ if text.starts_with("-----BEGIN") => text.split_whitespace().collect(),
        "domain" => text.trim_end_matches('.').to_ascii_lowercase(),
        "url" | "upstream_url" => address(text),
        "expires_at" => {
            let time = match text.len() == "2027-01-31".len() {
                true => Timestamp::parse(&format!("{text}T00:00:00Z")),
                false => Timestamp::parse(text),
            };
            time.map_or_else(|| text.to_owned(), |it| it.whole_seconds().to_string())
        }
        "cidr" | "networks" => {
            culvert_base::Prefix::parse(text).map_or_else(|_| text.to_owned(), |it| it.to_string())
        }
        // `90s` and `1m30s` are one length.
        "for" | "over" | "repeat_every" | "within" => {
            Period::parse(text).map_or_else(|| text.to_owned(), |it| it.seconds().to_string())
        }
        // Without the comment behind the key.
        "public_key" => text
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" "),
        _ => text.to_owned(),
    }
}

/// The sections of a PEM text without the text around them.
fn sections(text: &str) -> String {
    let (mut all, mut is_within) = (String::new(), false);
    for line in text.lines().map(str::trim) {
        is_within |= line.starts_with("-----BEGIN");
        if is_within {
            all.extend(line.split_whitespace());
        }
        is_within &= !line.starts_with("-----END");
    }
    all
}

/// A URL in lower case without its default port. A bare host means `https`.
fn address(text: &str) -> String {
    let text = match text.contains("://") {
        true => text.to_owned(),
        false => format!("https://{text}"),
    };
    match Url::parse(&text) {
        // Only these have ports that parsing removes.
        Ok(url) if matches!(url.scheme(), "http" | "https") => {
            url.as_str().trim_end_matches('/').to_owned()
        }
        _ => {
            let text = text.to_ascii_lowercase();
            match text.strip_prefix("tls://") {
                Some(rest) => format!("tls://{}", rest.strip_suffix(":443").unwrap_or(rest)),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The secrets of a target are not shown; a type of target that is not shown is another.
    #[test]
    fn another_type_of_target_is_a_difference() {
        for (path, wanted, shown, expected) in [
            ("target.webhook", json!({"url": "x"}), Value::Null, false),
            (
                "target.webhook.headers",
                json!({"a": "b"}),
                json!("[redacted]"),
                true,
            ),
            (
                "target.datadog.api_key",
                json!("hush"),
                json!("[redacted]"),
                true,
            ),
        ] {
            assert_eq!(is_same(path, &wanted, &shown), expected, "{path}");
        }
    }

    #[test]
    fn equivalent_spellings_are_no_difference() {
        for (field, wanted, shown) in [
            (
                "url",
                json!("HTTPS://A.example:443"),
                json!("https://a.example"),
            ),
            ("url", json!("a.example"), json!("https://a.example")),
            (
                "url",
                json!("tls://a.example"),
                json!("tls://a.example:443"),
            ),
            ("domain", json!("A.example."), json!("a.example")),
            (
                "upstream_tls.ca[0]",
                json!("Issuer: x\r\n-----BEGIN C-----\r\nAA\r\nB=\r\n-----END C-----\r\nnote"),
                json!("-----BEGIN C-----\nAAB=\n-----END C-----\n"),
            ),
            ("description", Value::Null, json!("x")),
            ("description", json!(""), Value::Null),
            (
                "timeouts",
                json!({"idle": "90s"}),
                json!({"idle": "90s", "connect": null}),
            ),
            ("timeouts", json!({}), json!({"idle": null})),
            (
                "ca_pem",
                json!("-----BEGIN X-----\na\n-----END X-----"),
                json!("-----BEGIN X-----\r\na\r\n-----END X-----\n"),
            ),
            (
                "public_key",
                json!("ssh-ed25519 AAAA me@here"),
                json!("ssh-ed25519 AAAA"),
            ),
            ("repeat_every", json!("60m"), json!("1h")),
            (
                "scopes",
                json!(["secrets.read", "endpoints.write"]),
                json!(["endpoints.read", "endpoints.write", "secrets.read"]),
            ),
            (
                "networks",
                json!(["2001:DB8::/32"]),
                json!(["2001:db8::/32"]),
            ),
            ("expires_at", json!("90d"), json!("2027-01-31T00:00:00Z")),
            (
                "expires_at",
                json!("2027-01-31"),
                json!("2027-01-31T00:00:00Z"),
            ),
            (
                "condition",
                json!({"type": "error_rate", "over": "90s"}),
                json!({"type": "error_rate", "over": "1m30s", "min_requests": 100}),
            ),
            (
                "sources",
                json!([{"type": "a.v0"}]),
                json!([{"type": "a.v0", "filter": "", "fields": []}]),
            ),
            (
                "target",
                json!({"datadog": {"api_key": "hush", "ddsite": "x"}}),
                json!({"datadog": {"api_key": null, "ddsite": "x", "service": ""}}),
            ),
            (
                "target",
                json!({"webhook": {"headers": {"x": "hush"}}}),
                json!({"webhook": {"headers": {"x": "[redacted]"}}}),
            ),
            (
                "traffic_policy",
                json!({"on_http_request": []}),
                json!("on_http_request: []\n"),
            ),
            ("limit", json!(1), json!(1.0)),
        ] {
            assert_eq!(differences(field, &wanted, &shown), [], "{field} {wanted}");
        }
    }

    #[test]
    fn an_upstream_loses_what_a_file_does_not_give_it() {
        let shown = json!([{"url": "http://a", "weight": 0, "priority": null}]);
        for wanted in [
            json!({"url": "http://a"}),
            json!({"url": "http://a", "weight": null}),
        ] {
            let found = differences("upstreams", &json!([wanted]), &shown);
            let [one] = &found[..] else {
                panic!("{} differences", found.len());
            };
            assert_eq!(
                (one.path.as_str(), &one.after),
                ("upstreams[0].weight", &Value::Null)
            );
        }
        let same = json!([{"url": "http://a", "weight": 0}]);
        assert!(differences("upstreams", &same, &shown).is_empty());
    }

    #[test]
    fn differences_have_their_paths() {
        let found = differences(
            "target",
            &json!({"debug": {"log": true}}),
            &json!({"debug": {"log": false}}),
        );
        assert_eq!(found[0].path, "target.debug.log");
        assert_eq!(found[0].before, false);
        for (field, wanted, shown) in [
            (
                "url",
                json!("https://a.example/x"),
                json!("https://a.example"),
            ),
            ("acl", json!(["a"]), json!(["a", "b"])),
            ("acl", json!(["b", "a"]), json!(["a", "b"])),
            ("traffic_policy", json!("a: 1"), json!("a:  1")),
            ("traffic_policy", json!({"a": 1}), json!("")),
            ("enforced", json!(true), json!(false)),
            (
                "certificate_management_policy",
                json!({"authority": "letsencrypt"}),
                Value::Null,
            ),
        ] {
            let found = differences(field, &wanted, &shown);
            assert!(!found.is_empty(), "{field} {wanted}");
        }
    }
}
