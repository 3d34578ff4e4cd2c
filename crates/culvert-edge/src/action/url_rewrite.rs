//! url-rewrite: the upstream is asked for something else.

use culvert_cel::Value;
use http::Uri;
use http::header::{HOST, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ActionType;
use crate::policy::rewrite::{Matches, Rewrite};
use crate::policy::template::texts;
use crate::policy::{Action, Exchange, Flow, Phase, Run};

pub(crate) static TYPE: ActionType = ActionType {
    name: "url-rewrite",
    doc: "Changes the URL that the upstream is asked for: every match of `from` in the whole URL is replaced by `to`, or all of it where there is no `from`. Another host becomes the Host header; where the request goes stays. Rules behind it, and events, see the URL as it arrived.",
    phases: &[Phase::Request],
    schema: Some(|generator| generator.subschema_for::<Config>()),
    compile: |site| {
        let config: Config = site.config()?;
        Ok(Box::new(UrlRewrite {
            rewrite: Rewrite::compile(site, config.from.as_deref(), &config.to)?,
        }))
    },
    ..ActionType::PLAIN
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "UrlRewrite")]
struct Config {
    /// What is replaced in the whole URL: a regular expression (RE2). Takes `${…}`.
    #[serde(default)]
    from: Option<String>,
    /// What stands in its place; `$1` is the first group. A URL, or a path. Takes `${…}`.
    to: String,
}

#[derive(Debug)]
struct UrlRewrite {
    rewrite: Rewrite,
}

impl Action for UrlRewrite {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a> {
        // A rewrite sees what the one before it made.
        let before = match &x.edits.url {
            Some(url) => url.clone(),
            None => x.raw_url().unwrap_or_default(),
        };
        let made = match self.rewrite.of(&before, Matches::All, x) {
            Ok(Some(made)) => made,
            Ok(None) => return Flow::Continue.into(),
            Err(_) => return x.fault().into(),
        };
        let Some((target, host)) = target(&made.url, &before) else {
            return x.fault().into();
        };
        let error = x.error();
        x.result(
            "url_rewrite",
            vec![
                ("matches", texts(made.matches.iter().map(String::as_str))),
                ("url", Value::from(made.url.as_str())),
                error,
            ],
        );
        x.edits.target = Some(target);
        x.edits.url = Some(made.url);
        if let Some(host) = host {
            x.edits.add(HOST, host);
        }
        Flow::Continue.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.rewrite.slots()
    }
}

/// The target to ask for, and the host if it is another; `None` if the URL is none.
fn target(url: &str, before: &str) -> Option<(Uri, Option<HeaderValue>)> {
    let parsed: Uri = url.parse().ok()?;
    let was: Uri = before.parse().ok()?;
    let path = parsed.path_and_query()?;
    if !path.as_str().starts_with('/') {
        return None;
    }
    let host = match parsed.authority() {
        Some(authority) if Some(authority) != was.authority() => {
            // Credentials of a URL are no part of a host.
            let host = authority.as_str().rsplit('@').next()?;
            Some(HeaderValue::from_str(host).ok()?)
        }
        _ => None,
    };
    Some((Uri::from(path.clone()), host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let before = "https://app.example/a?b=c";
        for (url, expected) in [
            ("https://app.example/x?y", Some(("/x?y", None))),
            ("/x", Some(("/x", None))),
            ("https://u:p@other:81", Some(("/", Some("other:81")))),
            ("x/y", None),
            ("/a b", None),
        ] {
            let made = target(url, before);
            let made = made.map(|(uri, host)| (uri.to_string(), host));
            let made = made.as_ref().map(|(uri, host)| {
                (
                    uri.as_str(),
                    host.as_ref().map(|host| host.to_str().unwrap()),
                )
            });
            assert_eq!(made, expected, "{url}");
        }
    }
}
