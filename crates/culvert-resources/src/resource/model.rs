//! Stored forms and views of the resources: the bodies of documents, and the output of the API and of events.
//!
//! This module uses neither the store nor the caller. The behaviour of a resource stands beside
//! its `model`.

use std::fmt;

use culvert_store::{Head, Key, Ref, Topic};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use crate::access::rights::Rights;
use crate::cx::base::Base;

/// A resource as it is stored and shown; `Self` is its stored form.
pub trait Model: Serialize + DeserializeOwned + Send + Sync + 'static {
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
    /// Whether every member of the account may read the events about the objects, which show them as their owner sees
    /// them.
    const HAS_PUBLIC_EVENTS: bool = Self::RIGHTS.see.has_public_events();
    /// The view, which the API and events show.
    type View<'a>: Serialize + JsonSchema;

    /// The view of a document.
    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> Self::View<'a>;

    /// ID of the object that contains it, whose grants hold for it too.
    fn container(&self) -> Option<&str> {
        None
    }

    /// Unique values and references.
    fn links(&self, _head: &Head) -> Links {
        Links::default()
    }
}

/// Collections of later subjects that the views of earlier ones link to.
pub const ENDPOINTS: &str = "endpoints";
/// The collection of agents' endpoints.
pub const TUNNELS: &str = "tunnels";
/// The collection of agents' sessions.
pub const TUNNEL_SESSIONS: &str = "tunnel_sessions";
/// Prefix of the IDs of agents' sessions, which have events about credentials.
pub const TUNNEL_SESSION_PREFIX: &str = "ts";

/// The field of references whose resource reports a missing object itself: if such an object is removed before the
/// commit, the write is decided again.
pub const CHECKED_REFERENCE: &str = "traffic_policy";

/// The constraints that the store enforces for a document.
#[derive(Debug, Default)]
pub struct Links {
    /// Values that no other document of the kind may have.
    pub keys: Vec<Key>,
    /// Objects that must exist while the document does.
    pub refs: Vec<Ref>,
    /// The kinds of events that a subscription wants, each with a destination.
    pub topics: Vec<Topic>,
}

/// `<base>/<collection>/<id>`, built when it is serialised.
#[derive(Clone, Copy, Debug)]
pub struct Uri<'a> {
    /// The base of the API.
    pub base: Base<'a>,
    /// The path segment of the resource.
    pub collection: &'static str,
    /// Shown ID of the object.
    pub id: &'a str,
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
pub struct Reference<'a> {
    pub(crate) id: &'a str,
    /// Always `""` for users and bot users.
    pub(crate) uri: String,
}

impl<'a> Reference<'a> {
    /// A reference to an object with a URI.
    pub fn to(base: Base<'_>, collection: &'static str, id: &'a str) -> Self {
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
    pub fn to_owner(id: &'a str) -> Self {
        Self {
            id,
            uri: String::new(),
        }
    }
}
