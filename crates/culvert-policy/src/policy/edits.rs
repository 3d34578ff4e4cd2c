//! The changes of a policy to a message before it is forwarded.

use std::sync::Arc;

use crate::headers::own_cookies;
use culvert_http::coding::Coding;
use culvert_http::fields::strip_spellings;
use culvert_tls::tls_policy::TlsPolicy;
use http::Uri;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use regex::bytes::Regex;

/// Changes to the head of a message.
#[derive(Debug, Default)]
pub struct Edits {
    headers: Vec<Edit>,
    /// Another target for the upstream.
    pub target: Option<Uri>,
    /// The whole URL of the target.
    pub url: Option<String>,
    /// The TLS policy of the handshake, in the connection phase.
    pub tls_policy: Option<Arc<TlsPolicy>>,
    /// Replacements in the body.
    pub replacements: Vec<Replacement>,
    /// The content coding of the response.
    pub coding: Option<Coding>,
    /// Whether the coding depends on the request, also if there is none.
    pub negotiates_coding: bool,
}

#[derive(Debug)]
enum Edit {
    Add(HeaderName, HeaderValue),
    Set(HeaderName, HeaderValue),
    Remove(HeaderName),
}

impl Edit {
    fn name(&self) -> &HeaderName {
        match self {
            Self::Add(name, _) | Self::Set(name, _) | Self::Remove(name) => name,
        }
    }

    fn apply(self, headers: &mut HeaderMap) {
        match self {
            Self::Add(name, value) if name != HOST => {
                headers.append(name, value);
            }
            Self::Add(name, value) | Self::Set(name, value) => {
                headers.insert(name, value);
            }
            Self::Remove(name) => {
                headers.remove(name);
            }
        }
    }
}

impl Edits {
    /// Adds a field.
    pub fn add(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.push(Edit::Add(name, value));
    }

    /// Replaces all fields of a name by this one. Without a value, they are removed: none that someone else wrote is left.
    pub fn set(&mut self, name: HeaderName, value: Option<HeaderValue>) {
        self.headers.push(match value {
            Some(value) => Edit::Set(name, value),
            None => Edit::Remove(name),
        });
    }

    /// Removes all fields of a name.
    pub fn remove(&mut self, name: HeaderName) {
        self.headers.push(Edit::Remove(name));
    }

    /// The names of the fields that change.
    pub fn field_names(&self) -> impl Iterator<Item = &HeaderName> + Clone {
        self.headers.iter().map(Edit::name)
    }

    /// Applies the changes to the fields of a request, and removes other spellings of the changed fields.
    pub fn apply_to_request(&mut self, headers: &mut HeaderMap) {
        strip_spellings(headers, self.field_names());
        for edit in self.headers.drain(..) {
            // Also those that the policy has added before.
            if !matches!(edit, Edit::Add(..)) {
                strip_spellings(headers, std::iter::once(edit.name()));
            }
            edit.apply(headers);
        }
        // A policy cannot make up cookies of the edge, which another endpoint may accept.
        own_cookies::take(headers);
    }

    /// Applies the changes to the fields in order. A message has one host.
    pub fn apply(&mut self, headers: &mut HeaderMap) {
        for edit in self.headers.drain(..) {
            edit.apply(headers);
        }
    }
}

/// A pattern and the text for its matches.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The pattern.
    pub from: Regex,
    /// The text, in which `$1` is the first group.
    pub to: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        headers
    }

    #[test]
    fn a_field_that_is_set_is_the_only_one() {
        let given = fields(&[
            ("x-user", "mallory"),
            ("x-user", "mallory2"),
            ("x_user", "mallory"),
            ("x.user", "mallory"),
            ("x-other", "1"),
            ("host", "client.example"),
        ]);
        let anna = || Some(HeaderValue::from_static("anna"));
        for (name, value, expected) in [
            (
                "x-user",
                anna(),
                &[
                    ("x-other", "1"),
                    ("host", "client.example"),
                    ("x-user", "anna"),
                ][..],
            ),
            (
                "x-user",
                None,
                &[("x-other", "1"), ("host", "client.example")],
            ),
            (
                "x_user",
                anna(),
                &[
                    ("x-other", "1"),
                    ("host", "client.example"),
                    ("x_user", "anna"),
                ],
            ),
            (
                "x_user",
                None,
                &[("x-other", "1"), ("host", "client.example")],
            ),
        ] {
            let mut edits = Edits::default();
            edits.set(HeaderName::from_static(name), value);
            let mut headers = given.clone();
            edits.apply_to_request(&mut headers);
            assert_eq!(headers, fields(expected), "{name}");
        }
        // Rules before may have added what the client sent, in another spelling.
        for value in [anna(), None] {
            let mut edits = Edits::default();
            let mallory = HeaderValue::from_static("mallory");
            edits.add(HeaderName::from_static("x_user"), mallory.clone());
            edits.add(HeaderName::from_static("x-user"), mallory);
            edits.set(HeaderName::from_static("x-user"), value.clone());
            let mut headers = given.clone();
            edits.apply_to_request(&mut headers);
            let left: Vec<_> = headers
                .values()
                .filter(|value| *value == "mallory")
                .collect();
            assert!(left.is_empty(), "{headers:?}");
            assert_eq!(headers.get("x-user"), value.as_ref());
        }
        let mut edits = Edits::default();
        edits.add(HOST, HeaderValue::from_static("other.example"));
        let mut headers = given.clone();
        edits.apply_to_request(&mut headers);
        assert_eq!(
            headers.get_all(HOST).iter().collect::<Vec<_>>(),
            ["other.example"]
        );
    }
}
