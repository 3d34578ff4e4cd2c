//! Stored form and view of the certificate authority.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::certificate::Summary;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct CertificateAuthority {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the authority is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Value as sent.
    pub ca_pem: String,
    pub(crate) summary: Summary,
}

/// A certificate authority as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CertificateAuthority")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Value as sent.
    pub(crate) ca_pem: &'a str,
    pub(crate) subject_common_name: &'a str,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_before: &'a str,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_after: &'a str,
    /// Such as `cert_sign`.
    pub(crate) key_usages: &'a [String],
    /// Such as `server_auth`; unnamed ones as dotted numbers.
    pub(crate) extended_key_usages: &'a [String],
}

impl Model for CertificateAuthority {
    const NAME: &'static str = "certificate_authority";
    const COLLECTION: &'static str = "certificate_authorities";
    const LIST_FIELD: &'static str = "certificate_authorities";
    const ID_PREFIX: &'static str = "ca";
    const RIGHTS: Rights = Rights::SHARED;
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
            ca_pem: &self.ca_pem,
            subject_common_name: &self.summary.subject_common_name,
            not_before: &self.summary.not_before,
            not_after: &self.summary.not_after,
            key_usages: &self.summary.key_usages,
            extended_key_usages: &self.summary.extended_key_usages,
        }
    }
}
