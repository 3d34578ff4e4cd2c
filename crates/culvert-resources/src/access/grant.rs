//! Stored form and view of the grant.

use std::fmt;

use culvert_base::{Description, Fault, Metadata, Timestamp};
use culvert_store::{Head, OnDelete, Ref, StoreUrl};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::access::rights::{Change, Rights, See, Use};
use crate::cx::base::Base;
use crate::resource::model::{Links, Model, Uri};
use crate::stored::{self, Format};

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Grant {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What the grant is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Stored ID of the object that others may use.
    pub object_id: String,
    /// The owner of the object, and so of the grant. Empty for an object without one.
    pub owner_id: String,
    /// The internal name of an agent's endpoint, which has another ID whenever the agent starts again: the grant holds
    /// for the endpoints that agents of the owner serve there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who may use it.
    pub grantee: Grantee,
    /// The owner of the endpoint that is the grantee.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grantee_owner_id: Option<String>,
    /// What they may do with it.
    pub right: GrantedRight,
    /// When it ends; `None` for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Whether the server made it when it was upgraded, for a reference that existed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_upgrade: bool,
}

/// Whom a grant names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grantee {
    /// Every active owner with the role `member`.
    Members,
    /// A user or bot: `usr_…` or `bot_…`.
    Owner(String),
    /// An endpoint, `ep_…`: only its own policy.
    Endpoint(String),
}

impl Grantee {
    /// As in the API and in the stored form.
    pub const MEMBERS: &'static str = "role:member";

    /// A stored or shown grantee; any other text matches no grantee.
    fn parse(text: String) -> Self {
        match text.as_str() {
            Self::MEMBERS => Self::Members,
            id if id.starts_with("ep_") => Self::Endpoint(text),
            _ => Self::Owner(text),
        }
    }

    /// As in the API: `role:member`, or an ID.
    pub fn name(&self) -> &str {
        match self {
            Self::Members => Self::MEMBERS,
            Self::Owner(id) | Self::Endpoint(id) => id,
        }
    }
}

impl fmt::Display for Grantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Grantee {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Grantee {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::parse)
    }
}

/// The right that a grant gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum GrantedRight {
    /// To refer to the object.
    Use,
}

/// A grant as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Grant")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// ID of the object that the grantee may use.
    pub(crate) object_id: &'a str,
    /// ID of a user, bot or endpoint, or `role:member` for all owners with that role.
    pub(crate) grantee: &'a str,
    /// `use`: to refer to the object.
    pub(crate) right: GrantedRight,
    /// When the grant ends; `null` for never.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(crate) expires_at: Option<Timestamp>,
}

impl Grant {
    /// Whether it is in force at that time.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }

    /// Whether an owner without the role admin may see it.
    pub(crate) fn is_seen_by(&self, owner_id: &str, is_member: bool) -> bool {
        self.owner_id == owner_id
            || self.grantee_owner_id.as_deref() == Some(owner_id)
            || match &self.grantee {
                Grantee::Members => is_member,
                Grantee::Owner(id) => id == owner_id,
                Grantee::Endpoint(_) => false,
            }
    }
}

impl Model for Grant {
    const NAME: &'static str = "grant";
    const COLLECTION: &'static str = "grants";
    const LIST_FIELD: &'static str = "grants";
    const ID_PREFIX: &'static str = "grant";
    const RIGHTS: Rights = Rights {
        see: See::Parties,
        use_by: Use::Nothing,
        change: Change::Owner,
    };
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            created_at: head.created_at,
            description: &self.description,
            metadata: &self.metadata,
            object_id: &self.object_id,
            grantee: self.grantee.name(),
            right: self.right,
            expires_at: self.expires_at,
        }
    }

    /// The removal of the object or of the grantee removes the grant. Endpoints of agents come and go without it.
    fn links(&self, _head: &Head) -> Links {
        let object = self.name.is_none().then(|| self.object_id.clone());
        let grantee = match &self.grantee {
            Grantee::Members => None,
            Grantee::Owner(id) | Grantee::Endpoint(id) => Some(id.clone()),
        };
        let refs = [("object_id", object), ("grantee", grantee)];
        let refs = refs.into_iter();
        Links {
            refs: refs
                .filter_map(|(field, to)| Some(Ref::new(field, to?, OnDelete::Cascade)))
                .collect(),
            ..Links::default()
        }
    }
}

/// The grants that an upgrade made and that are still there: the ID of each, of its object, and its grantee. Only reads,
/// without a running server.
///
/// # Errors
/// If the database cannot be read.
pub async fn grants_of_upgrade(url: &StoreUrl) -> Result<Vec<(String, String, String)>, Fault> {
    let mut found = Vec::new();
    for document in culvert_store::inspect_documents(url, Grant::KIND).await? {
        let grant: Grant = stored::read(&document)?;
        if grant.is_of_upgrade {
            let id = document.head.id;
            found.push((id, grant.object_id, grant.grantee.to_string()));
        }
    }
    Ok(found)
}
