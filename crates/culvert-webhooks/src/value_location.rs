//! Locations of values in a request.

use std::borrow::Cow;

use http::HeaderValue;

use crate::json;
use crate::request::{Request, SIGNATURES_MAX, Unverified};

/// A location in a request. It may have several values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueLocation {
    /// The value of a header field.
    Header(&'static str),
    /// The part of a header field after this prefix.
    After(&'static str, &'static str),
    /// The value of a name in a header field such as `t=1,v1=abc`. A name that ends in `*` matches all names with a
    /// number in place of the `*`.
    Field(&'static str, &'static str),
    /// The entries of this version in a header field such as `v1,abc v1,def`.
    Listed(&'static str, &'static str),
    /// The values of all header fields whose names are this text and a number.
    Each(&'static str),
    /// A text or a number in a JSON body, at this path.
    Json(&'static [&'static str]),
}

impl ValueLocation {
    /// All values at this location; at least one.
    pub(crate) fn values<'r>(self, request: &Request<'r>) -> Result<Vec<Cow<'r, str>>, Unverified> {
        let found: Vec<Cow<'r, str>> = match self {
            Self::Json(path) => return Ok(vec![json::text(request.body, path)?.into()]),
            Self::Each(start) => {
                let fields = request.headers.iter().filter(|(name, _)| {
                    let number = name.as_str().strip_prefix(start);
                    number.is_some_and(is_number)
                });
                let values: Vec<_> = fields.filter_map(|(_, value)| text(value)).collect();
                if values.is_empty() {
                    return Err(Unverified::Missing(self.name()));
                }
                values.into_iter().map(Cow::from).collect()
            }
            Self::Header(name)
            | Self::After(name, _)
            | Self::Field(name, _)
            | Self::Listed(name, _) => {
                let mut fields = request.headers.get_all(name).iter().peekable();
                if fields.peek().is_none() {
                    return Err(Unverified::Missing(self.name()));
                }
                fields
                    .filter_map(text)
                    .flat_map(|value| self.pick(value))
                    .map(Cow::from)
                    .collect()
            }
        };
        if found.is_empty() || found.len() > SIGNATURES_MAX {
            return Err(Unverified::Malformed);
        }
        Ok(found)
    }

    /// The only value at this location. Two values are rejected, because the upstream might use the other one.
    pub(crate) fn one<'r>(self, request: &Request<'r>) -> Result<Cow<'r, str>, Unverified> {
        let mut values = self.values(request)?.into_iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value),
            _ => Err(Unverified::Malformed),
        }
    }

    /// The name for errors if the value is missing.
    fn name(self) -> &'static str {
        match self {
            Self::Header(name)
            | Self::After(name, _)
            | Self::Field(name, _)
            | Self::Listed(name, _)
            | Self::Each(name) => name,
            Self::Json(path) => path.last().copied().unwrap_or_default(),
        }
    }

    /// The parts of a header field's value that this location selects.
    fn pick(self, value: &str) -> Vec<&str> {
        match self {
            Self::After(_, start) => value
                .get(..start.len())
                .filter(|given| given.eq_ignore_ascii_case(start))
                .and_then(|_| value.get(start.len()..))
                .map(str::trim)
                .into_iter()
                .collect(),
            Self::Field(_, wanted) => value
                .split([',', ';', '&'])
                .filter_map(|pair| pair.split_once('='))
                .filter(|(name, _)| is_name(name.trim(), wanted))
                .map(|(_, value)| value.trim())
                .take(SIGNATURES_MAX + 1)
                .collect(),
            Self::Listed(_, version) => value
                .split(' ')
                .filter_map(|entry| entry.split_once(','))
                .filter(|(given, _)| *given == version)
                .map(|(_, value)| value.trim())
                .take(SIGNATURES_MAX + 1)
                .collect(),
            Self::Header(_) | Self::Each(_) | Self::Json(_) => vec![value],
        }
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(str::trim)
}

fn is_name(given: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => given.strip_prefix(start).is_some_and(is_number),
        None => given == wanted,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
