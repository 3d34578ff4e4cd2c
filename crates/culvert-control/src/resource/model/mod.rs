//! Stored forms and views of the resources: the bodies of documents, and the output of the API and of events.
//!
//! This module uses neither the store nor the caller. The behaviour of a resource is in the file with its name beside
//! this folder.

pub(crate) mod agent_ingress;
pub(crate) mod api_key;
pub(crate) mod application_session;
pub(crate) mod application_user;
pub(crate) mod bot_user;
pub(crate) mod certificate_authority;
pub(crate) mod endpoint;
pub(crate) mod event_destination;
pub(crate) mod event_subscription;
pub(crate) mod grant;
pub(crate) mod ip_policy;
pub(crate) mod ip_policy_rule;
pub(crate) mod ip_restriction;
pub(crate) mod kubernetes_operator;
pub(crate) mod management;
pub(crate) mod reserved_addr;
pub(crate) mod reserved_domain;
pub(crate) mod service_user;
pub(crate) mod ssh_certificate_authority;
pub(crate) mod ssh_host_certificate;
pub(crate) mod ssh_public_key;
pub(crate) mod ssh_user_certificate;
pub(crate) mod timeouts;
pub(crate) mod tls_certificate;
pub(crate) mod traffic_policy;
pub(crate) mod tunnel;
pub(crate) mod tunnel_credential;
pub(crate) mod tunnel_session;
pub(crate) mod user;
pub(crate) mod vault;
pub(crate) mod vault_secret;

use std::fmt;

use culvert_store::{Head, Key, Ref, Topic};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use crate::base::Base;
use crate::rights::Rights;

/// A resource as it is stored and shown; `Self` is its stored form.
pub(crate) trait Model: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Singular, with underscores; the stem of its events.
    const NAME: &'static str;
    /// The path segment.
    const COLLECTION: &'static str;
    /// The key of a list's items.
    const LIST_FIELD: &'static str;
    /// Prefix of the IDs that it shows, without the underscore.
    const ID_PREFIX: &'static str;

    /// Kind of its documents. Two resources may show one kind.
    const KIND: &'static str = Self::NAME;
    /// ID prefixes that its paths accept; the first one is stored.
    const PREFIXES: &'static [&'static str] = &[Self::ID_PREFIX];
    /// Who may see, use and change an object.
    const RIGHTS: Rights;
    /// The field of the stored form with the ID of the owner. `None` if all objects belong to the admins, or if they
    /// do not name their owners.
    const OWNED_BY: Option<&'static str>;
    /// Whether the stored form has a reference to its owner, so that a list reads only the caller's own objects.
    const REFERS_TO_OWNER: bool = false;
    /// The view, which the API and events show.
    type View<'a>: Serialize + JsonSchema;

    /// The view of a document.
    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> Self::View<'a>;

    /// Unique values and references.
    fn links(&self, _head: &Head) -> Links {
        Links::default()
    }
}

/// The constraints that the store enforces for a document.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) keys: Vec<Key>,
    pub(crate) refs: Vec<Ref>,
    pub(crate) topics: Vec<Topic>,
}

/// `<base>/<collection>/<id>`, built when it is serialised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uri<'a> {
    pub(crate) base: Base<'a>,
    pub(crate) collection: &'static str,
    pub(crate) id: &'a str,
}

impl fmt::Display for Uri<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.base, self.collection, self.id)
    }
}

impl Serialize for Uri<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A reference to another object.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Reference<'a> {
    pub(crate) id: &'a str,
    /// Always `""` for users and bot users.
    pub(crate) uri: String,
}

impl<'a> Reference<'a> {
    /// A reference to an object with a URI.
    pub(crate) fn to(base: Base<'_>, collection: &'static str, id: &'a str) -> Self {
        let uri = Uri {
            base,
            collection,
            id,
        };
        Self {
            id,
            uri: uri.to_string(),
        }
    }

    /// A reference to a user or bot, without a URI.
    pub(crate) fn to_owner(id: &'a str) -> Self {
        Self {
            id,
            uri: String::new(),
        }
    }
}
