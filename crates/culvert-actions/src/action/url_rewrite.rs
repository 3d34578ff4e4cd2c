//! url-rewrite: changes the URL of the request to the upstream.

use culvert_cel::Value;
use culvert_http::target;
use culvert_policy::action_type::ActionType;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::{Action, ActionResult, Flow};
use culvert_policy::policy::values::texts;
use http::Uri;
use http::header::{HOST, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::rewrite::{self, Matches, Rewrite};

pub(crate) static TYPE: ActionType = ActionType {
    name: "url-rewrite",
    doc: "Rewrites the URL of the request to the upstream: `to` replaces every match of `from` in the full URL, or the whole URL without a `from`. A changed host changes the Host header but not the upstream. Later rules and events see the original URL.",
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
    /// Regular expression (RE2) to replace in the full URL. Supports `${…}`.
    #[serde(default)]
    from: Option<String>,
    /// Replacement, a URL or a path; `$1` is the first group. Supports `${…}`.
    to: String,
}

#[derive(Debug)]
struct UrlRewrite {
    rewrite: Rewrite,
}

impl Action for UrlRewrite {
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a> {
        // A rewrite starts from the result of the previous one.
        let before = match &x.edits.url {
            Some(url) => url.clone(),
            None => x.sent_url().unwrap_or_default(),
        };
        let made = match self.rewrite.of(&before, Matches::All, x) {
            Ok(Some(made)) => made,
            Ok(None) => return Flow::Continue.into(),
            Err(_) => return x.fault().into(),
        };
        let merges = x.endpoint.merge_slashes;
        let Some(Rewritten { target, url, host }) = rewritten(&made.url, &before, merges) else {
            return x.fault().into();
        };
        let error = x.error();
        x.result(
            "url_rewrite",
            vec![
                ("matches", texts(made.matches.iter().map(String::as_str))),
                ("url", Value::from(url.as_str())),
                error,
            ],
        );
        if self.rewrite.is_secret() {
            x.hide(|hidden| hidden.has_target = true);
            x.hide_field(&HOST);
        }
        x.edits.target = Some(target);
        x.edits.url = Some(url);
        if let Some(host) = host {
            x.edits.add(HOST, host);
        }
        Flow::Continue.into()
    }

    fn slots(&self) -> Vec<culvert_cel::Slot> {
        self.rewrite.slots()
    }
}

/// The URL of the request to the upstream.
#[derive(Debug)]
struct Rewritten {
    /// Path and query, normalised.
    target: Uri,
    /// The whole URL with that target, or the target alone if the replacement is a path.
    url: String,
    /// The host, if it changes.
    host: Option<HeaderValue>,
}

/// `None` if the URL is invalid, or its path cannot be normalised unambiguously.
fn rewritten(url: &str, before: &str, merges_slashes: bool) -> Option<Rewritten> {
    let (origin, local, _) = rewrite::split(url)?;
    let local = target::settle(local, merges_slashes).ok()?;
    let authority = |origin: &str| origin.parse::<Uri>().ok()?.into_parts().authority;
    let host = match origin {
        "" => None,
        origin => {
            let named = authority(origin)?;
            let was = rewrite::split(before).and_then(|(origin, ..)| authority(origin));
            // User and password of a URL are not part of the host.
            let host = named.as_str().rsplit('@').next()?;
            let host = HeaderValue::from_str(host).ok()?;
            (Some(&named) != was.as_ref()).then_some(host)
        }
    };
    Some(Rewritten {
        url: format!("{origin}{local}"),
        target: local.into(),
        host,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_targets_are_parsed_or_refused() {
        let before = "https://app.example/a?b=c";
        for (url, expected) in [
            ("https://app.example/x?y", Some(("/x?y", None))),
            ("/x", Some(("/x", None))),
            ("/x#y", Some(("/x", None))),
            ("https://u:p@other:81", Some(("/", Some("other:81")))),
            ("https://other?x", Some(("/?x", Some("other")))),
            ("/public/../admin//x", Some(("/admin/x", None))),
            ("https://app.example/%2e%2e\\a", Some(("/a", None))),
            ("/é", Some(("/%C3%A9", None))),
            ("x/y", None),
            ("/a b", None),
            ("/a/..%2fb", None),
            ("/%zz", None),
            ("ftp://app.example/", None),
        ] {
            let made = rewritten(url, before, true);
            let made = made.map(|made| (made.target.to_string(), made.host));
            let made = made.as_ref().map(|(uri, host)| {
                (
                    uri.as_str(),
                    host.as_ref().map(|host| host.to_str().unwrap()),
                )
            });
            assert_eq!(made, expected, "{url}");
        }
        let kept = rewritten("/a//b", before, false).unwrap();
        assert_eq!(kept.target, "/a//b");
    }
}
