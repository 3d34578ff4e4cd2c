//! The changes of a policy to a message before it is forwarded.

use std::sync::Arc;

use culvert_http::coding::Coding;
use culvert_http::fields::strip_spellings;
use culvert_http::own_cookies;
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
}

#[derive(Debug)]
enum Edit {
    Add(HeaderName, HeaderValue),
    Remove(HeaderName),
}

impl Edits {
    /// Adds a field.
    pub fn add(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.push(Edit::Add(name, value));
    }

    /// Removes all fields of a name.
    pub fn remove(&mut self, name: HeaderName) {
        self.headers.push(Edit::Remove(name));
    }

    /// The names of the fields that change.
    pub fn field_names(&self) -> impl Iterator<Item = &HeaderName> + Clone {
        self.headers.iter().map(|edit| match edit {
            Edit::Add(name, _) | Edit::Remove(name) => name,
        })
    }

    /// Applies the changes to the fields of a request, and removes other spellings of the changed fields.
    pub fn apply_to_request(&mut self, headers: &mut HeaderMap) {
        strip_spellings(headers, self.field_names());
        self.apply(headers);
        // A policy cannot make up cookies of the edge, which another endpoint may accept.
        own_cookies::take(headers);
    }

    /// Applies the changes to the fields in order. A message has one host.
    pub fn apply(&mut self, headers: &mut HeaderMap) {
        for edit in self.headers.drain(..) {
            match edit {
                Edit::Add(name, value) if name == HOST => {
                    headers.insert(name, value);
                }
                Edit::Add(name, value) => {
                    headers.append(name, value);
                }
                Edit::Remove(name) => {
                    headers.remove(name);
                }
            }
        }
    }
}

/// A pattern and the text for its matches.
#[derive(Clone, Debug)]
pub struct Replacement {
    pub(crate) from: Regex,
    pub(crate) to: String,
}
