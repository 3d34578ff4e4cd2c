//! Placeholders as templates of policies.

use crate::imported::literal;

/// A text with placeholders as a template of a policy; `None` if one has no equivalent.
pub(super) fn template(text: &str) -> Option<String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        whole.push_str(&literal(before));
        let Some((name, after)) = behind
            .split_once('}')
            .filter(|(name, _)| is_placeholder(name))
        else {
            // `${` would begin an expression.
            whole.push_str(if whole.ends_with('$') { "${" } else { "{" });
            rest = behind;
            continue;
        };
        rest = after;
        if whole.ends_with('$') {
            return None;
        }
        let expression = match name.strip_prefix("http.request.").unwrap_or(name) {
            "host" => "req.host".to_owned(),
            "path" | "uri.path" => "req.url.path".to_owned(),
            "query" | "uri.query" => "req.url.query".to_owned(),
            "uri" => "req.url.path + (req.url.query == '' ? '' : '?' + req.url.query)".to_owned(),
            "scheme" => "req.url.scheme".to_owned(),
            "method" => "req.method".to_owned(),
            "remote_host" | "remote.host" | "client_ip" => "conn.client_ip".to_owned(),
            name => match name.strip_prefix('$').or_else(|| name.strip_prefix("env.")) {
                Some(variable) if !variable.contains(':') => format!("env:{variable}"),
                _ => return None,
            },
        };
        whole.push_str(&format!("${{{expression}}}"));
    }
    whole.push_str(&literal(rest));
    Some(whole)
}

fn is_placeholder(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '-' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_become_expressions() {
        for (text, wanted) in [
            ("plain", Some("plain")),
            (
                "https://{host}/x{uri}",
                Some(
                    "https://${req.host}/x${req.url.path + (req.url.query == '' ? '' : '?' + req.url.query)}",
                ),
            ),
            ("{$KEY}", Some("${env:KEY}")),
            ("{\"a\": 1}", Some("{\"a\": 1}")),
            ("${x y}", Some("$${x y}")),
            ("{http.vars.x}", None),
            ("{$KEY:default}", None),
        ] {
            assert_eq!(template(text).as_deref(), wanted, "{text}");
        }
    }
}
