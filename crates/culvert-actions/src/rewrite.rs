//! Replaces a pattern in a URL, for redirect and url-rewrite.

use culvert_base::{Refusal, code};
use culvert_cel::Slot;
use culvert_http::target;
use culvert_policy::policy::context::PolicyContext;
use culvert_policy::policy::exchange::Exchange;
use culvert_policy::policy::replace::{
    COMPUTED_BYTES_MAX, PROGRAM_BYTES_MAX, ReplacementPart, is_cheap, parts,
};
use culvert_policy::policy::template::Template;
use regex::{Regex, RegexBuilder};

/// Maximum length of the resulting URL.
const URL_BYTES_MAX: usize = 16 << 10;

/// A pattern and the replacement of its matches.
#[derive(Debug)]
pub(crate) struct Rewrite {
    from: Option<From>,
    to: Template,
}

#[derive(Debug)]
enum From {
    Pattern(Regex),
    /// A pattern computed by an expression.
    Computed(Template),
}

/// How many matches are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matches {
    First,
    All,
}

/// A URL, and the matches that were replaced in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    pub(crate) url: String,
    pub(crate) matches: Vec<String>,
}

impl Rewrite {
    pub(crate) fn compile(
        context: &PolicyContext<'_>,
        from: Option<&str>,
        to: &str,
    ) -> Result<Self, Refusal> {
        if to.is_empty() {
            return Err(context.refuse(code::POLICY_VALUE_EMPTY, "`to` must not be empty"));
        }
        let from = match from.filter(|from| !from.is_empty()) {
            None => None,
            Some(text) => {
                let template = context.template("from", text)?;
                Some(match template.constant() {
                    None => From::Computed(template),
                    Some(text) => From::Pattern(context.pattern(
                        "from",
                        text,
                        "a regular expression (RE2), at most 1 KiB",
                        PROGRAM_BYTES_MAX,
                        |limit| RegexBuilder::new(text).size_limit(limit).build(),
                    )?),
                })
            }
        };
        Ok(Self {
            from,
            to: context.template("to", to)?,
        })
    }

    /// Whether the URL comes from a secret.
    pub(crate) fn is_secret(&self) -> bool {
        let from = match &self.from {
            Some(From::Computed(template)) => template.is_secret(),
            Some(From::Pattern(_)) | None => false,
        };
        from || self.to.is_secret()
    }

    /// Whether it applies to every URL.
    pub(crate) fn is_total(&self) -> bool {
        self.from.is_none()
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        let from = match &self.from {
            Some(From::Computed(template)) => Some(template.slots()),
            _ => None,
        };
        self.to.slots().chain(from.into_iter().flatten()).collect()
    }

    /// Rewrites `url`. `Ok(None)` if nothing matches; an error if an expression fails or yields an
    /// invalid pattern.
    pub(crate) fn of(
        &self,
        url: &str,
        matches: Matches,
        x: &mut Exchange<'_>,
    ) -> Result<Option<Rewritten>, Failed> {
        let to = self.to.strict(x).map_err(|_| Failed)?;
        let computed;
        let pattern = match &self.from {
            None => {
                return Ok(Some(Rewritten {
                    url: to.into_owned(),
                    matches: vec![url.to_owned()],
                }));
            }
            Some(From::Pattern(pattern)) => pattern,
            Some(From::Computed(template)) => {
                let text = template.strict(x).map_err(|_| Failed)?;
                computed = computed_pattern(&text).ok_or(Failed)?;
                &computed
            }
        };
        let made = replaced(pattern, url, &to, matches);
        // The URL is too long.
        made.inspect_err(|Failed| x.limit_reached())
    }
}

/// An expression failed, or its result is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed;

/// Splits a URL into the part before the path (empty for a path alone), path and query, and the fragment with its `#`.
/// `None` if the scheme is neither http nor https.
pub(crate) fn split(url: &str) -> Option<(&str, &str, &str)> {
    let (rest, fragment) = url.split_at(url.find('#').unwrap_or(url.len()));
    if rest.starts_with('/') {
        return Some(("", rest, fragment));
    }
    let (scheme, behind) = rest.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let authority = behind.find(['/', '?', '\\']).unwrap_or(behind.len());
    let (origin, local) = rest.split_at(scheme.len() + 3 + authority);
    Some((origin, local, fragment))
}

/// Normalises the path of a URL for a client. Empty segments stay, because they may have a meaning for another server.
/// URLs of other schemes are unchanged.
///
/// # Errors
///
/// If the path cannot be normalised unambiguously.
pub(crate) fn normalised(url: &str) -> Result<String, Failed> {
    let Some((origin, local, fragment)) = split(url) else {
        return Ok(url.to_owned());
    };
    // Two leading slashes begin an authority (RFC 3986 section 4.2).
    if origin.is_empty() && local.starts_with("//") {
        let url = format!("http:{url}");
        return Ok(normalised(&url)?.split_off("http:".len()));
    }
    let local = target::settle(local, false).map_err(|_| Failed)?;
    Ok(format!("{origin}{local}{fragment}"))
}

/// The pattern that an expression computed; `None` if it is none or exceeds a limit.
fn computed_pattern(text: &str) -> Option<Regex> {
    if !is_cheap(text) {
        return None;
    }
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(COMPUTED_BYTES_MAX).build().ok()
}

fn replaced(
    pattern: &Regex,
    url: &str,
    to: &str,
    matches: Matches,
) -> Result<Option<Rewritten>, Failed> {
    let most = match matches {
        Matches::First => 1,
        Matches::All => usize::MAX,
    };
    let (mut out, mut found, mut end) = (String::new(), Vec::new(), 0);
    for captures in pattern.captures_iter(url).take(most) {
        let Some(whole) = captures.get(0) else {
            continue;
        };
        out.push_str(url.get(end..whole.start()).unwrap_or_default());
        for part in parts(to) {
            out.push_str(match part {
                ReplacementPart::Text(text) => text,
                ReplacementPart::Group(group) => {
                    captures.get(group).map_or("", |group| group.as_str())
                }
            });
        }
        end = whole.end();
        found.push(whole.as_str().to_owned());
        if out.len() > URL_BYTES_MAX {
            return Err(Failed);
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    out.push_str(url.get(end..).unwrap_or_default());
    Ok(Some(Rewritten {
        url: out,
        matches: found,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_in_urls_are_replaced() {
        for (from, to, matches, expected) in [
            (
                "/a/(\\d+)",
                "/b?id=$1",
                Matches::First,
                Some("https://x/b?id=1/a/2"),
            ),
            (
                "/a/(\\d+)",
                "/b-$1-$$",
                Matches::All,
                Some("https://x/b-1-$/b-2-$"),
            ),
            ("^http:", "https:", Matches::First, None),
            ("x/(a)?", "$2$1y", Matches::First, Some("https://ay/1/a/2")),
        ] {
            let pattern = computed_pattern(from).unwrap();
            let made = replaced(&pattern, "https://x/a/1/a/2", to, matches).unwrap();
            assert_eq!(made.map(|made| made.url).as_deref(), expected, "{from}");
        }
        let growing = replaced(
            &computed_pattern("").unwrap(),
            &"x".repeat(1000),
            &"y".repeat(100),
            Matches::All,
        );
        assert_eq!(growing, Err(Failed));
        assert!(computed_pattern("(").is_none());
        assert!(computed_pattern("(\\w{100}){100}{100}").is_none());
    }
}
