//! Cookies in expressions.

use std::borrow::Cow;

use culvert_cel::{Duration, Value};
use http::HeaderMap;
use http::header::COOKIE;

use crate::policy::values::{decoded, grouped, map, moment};

/// The cookies of a request by name, in the order of the header.
pub(crate) fn of_request(headers: &HeaderMap) -> Value {
    let mut pairs = Vec::new();
    for line in headers.get_all(COOKIE).iter().map(decoded) {
        for pair in line.split(';') {
            let Some((name, value)) = pair.split_once('=') else {
                continue;
            };
            let (name, value) = (name.trim(), unquoted(value.trim()));
            let cookie = map(vec![
                ("name", Value::from(name)),
                ("value", Value::from(value)),
            ]);
            pairs.push((name.to_owned(), cookie));
        }
    }
    grouped(pairs)
}

/// The cookies that a response sets, by name, the longest path first.
pub(crate) fn of_response<'h>(lines: impl Iterator<Item = Cow<'h, str>>) -> Value {
    let mut cookies: Vec<(usize, String, Value)> = Vec::new();
    for line in lines {
        let mut parts = line.split(';');
        let Some((name, value)) = parts.next().and_then(|first| first.split_once('=')) else {
            continue;
        };
        let (name, value) = (name.trim(), unquoted(value.trim()));
        let mut path = "";
        let mut fields = vec![
            ("name", Value::from(name)),
            ("value", Value::from(value)),
            ("path", Value::from("")),
            ("domain", Value::from("")),
            ("same_site", Value::from("")),
            ("http_only", Value::Bool(false)),
            ("secure", Value::Bool(false)),
        ];
        let mut unparsed = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            match key.to_ascii_lowercase().as_str() {
                "path" => {
                    path = value;
                    fields.push(("path", Value::from(value)));
                }
                "domain" => fields.push(("domain", Value::from(value))),
                "samesite" => fields.push(("same_site", Value::from(value))),
                "httponly" => fields.push(("http_only", Value::Bool(true))),
                "secure" => fields.push(("secure", Value::Bool(true))),
                "max-age" => match value
                    .parse::<i64>()
                    .ok()
                    .and_then(|s| s.checked_mul(1_000_000_000))
                {
                    Some(nanos) => {
                        fields.push(("max_age", Value::Duration(Duration::from_nanos(nanos))))
                    }
                    None => unparsed.push((key, Value::from(value))),
                },
                "expires" => match imf_date(value) {
                    Some(at) => fields.push(("expires", at)),
                    None => unparsed.push((key, Value::from(value))),
                },
                _ => unparsed.push((key, Value::from(value))),
            }
        }
        fields.push(("unparsed_attributes", map(unparsed)));
        cookies.push((path.len(), name.to_owned(), map(fields)));
    }
    cookies.sort_by_key(|(length, ..)| std::cmp::Reverse(*length));
    let pairs = cookies.into_iter().map(|(_, name, cookie)| (name, cookie));
    grouped(pairs.collect())
}

fn unquoted(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(value)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, also with dashes.
fn imf_date(text: &str) -> Option<Value> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, date) = text.split_once(", ")?;
    let mut parts = date.split([' ', '-']);
    let (day, month, year, time) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let text = format!("{year}-{month:02}-{day:0>2}T{time}Z");
    culvert_base::Timestamp::parse(&text).map(moment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::values::text;

    #[test]
    fn cookies_of_a_request_are_parsed() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; b=\"2\"; a=3; broken".parse().unwrap());
        let value = of_request(&headers);
        assert_eq!(
            text(value.borrow()),
            r#"{"a":[{"name":"a","value":"1"},{"name":"a","value":"3"}],"b":[{"name":"b","value":"2"}]}"#
        );
    }

    #[test]
    fn cookies_of_a_response_are_parsed() {
        let lines = [
            "s=1; Path=/; HttpOnly",
            "s=2; Path=/deep; Secure; SameSite=Lax; Max-Age=60; Expires=Sun, 06-Nov-1994 08:49:37 GMT; Odd=x",
        ];
        let value = of_response(lines.into_iter().map(Cow::from));
        assert_eq!(
            text(value.borrow()),
            concat!(
                r#"{"s":[{"domain":"","expires":"1994-11-06T08:49:37Z","http_only":false,"max_age":"60s","name":"s","path":"/deep","#,
                r#""same_site":"Lax","secure":true,"unparsed_attributes":{"Odd":"x"},"value":"2"},"#,
                r#"{"domain":"","http_only":true,"name":"s","path":"/","same_site":"","secure":false,"unparsed_attributes":{},"value":"1"}]}"#
            )
        );
    }
}
