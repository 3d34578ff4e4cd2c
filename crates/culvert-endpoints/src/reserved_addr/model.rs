//! Stored form and view of the reserved TCP address.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the key for looking up an address.
pub const KEY: &str = "addr";

/// The one region of an installation.
pub(crate) const REGION: &str = "us";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct ReservedAddr {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the address is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// As `host:port`.
    pub addr: String,
    /// Region that the caller asked for.
    pub region: String,
}

/// A reserved address as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReservedAddr")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Address as `host:port`, assigned at the reservation.
    pub(crate) addr: &'a str,
    #[schemars(extend("enum" = [REGION]))]
    pub(crate) region: &'a str,
}

impl Model for ReservedAddr {
    const NAME: &'static str = "tcp_address";
    const COLLECTION: &'static str = "reserved_addrs";
    const LIST_FIELD: &'static str = "reserved_addrs";
    const ID_PREFIX: &'static str = "ra";
    const RIGHTS: Rights = Rights {
        see: See::All,
        use_by: Use::Setting,
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
            addr: &self.addr,
            region: &self.region,
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new(KEY, &*self.addr)],
            ..Links::default()
        }
    }
}
