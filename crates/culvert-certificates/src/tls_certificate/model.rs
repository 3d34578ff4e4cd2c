//! Stored form and view of the TLS certificate.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::Head;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::certificate::{Names, Summary};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct TlsCertificate {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the certificate is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// Value as sent.
    pub(crate) certificate_pem: String,
    /// The private key as sent, encrypted.
    pub(crate) sealed_key: String,
    /// As in the API: `rsa`, `ecdsa` or `ed25519`.
    pub private_key_type: String,
    pub(crate) summary: Summary,
    /// The names it is valid for.
    pub names: Names,
    /// `None` for an uploaded certificate.
    #[serde(default)]
    pub issued_at: Option<Timestamp>,
}

/// A TLS certificate as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TlsCertificate")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Value as sent.
    pub(crate) certificate_pem: &'a str,
    pub(crate) subject_common_name: &'a str,
    pub(crate) subject_alternative_names: AlternativeNames<'a>,
    /// Time when the CA issued the certificate; `null` for an uploaded certificate.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub(crate) issued_at: Option<Timestamp>,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_before: &'a str,
    #[schemars(extend("format" = "date-time"))]
    pub(crate) not_after: &'a str,
    /// Such as `digital_signature`.
    pub(crate) key_usages: &'a [String],
    /// Such as `server_auth`; unnamed ones as dotted numbers.
    pub(crate) extended_key_usages: &'a [String],
    /// `rsa`, `ecdsa` or `ed25519`.
    #[schemars(extend("enum" = ["rsa", "ecdsa", "ed25519"]))]
    pub(crate) private_key_type: &'a str,
    pub(crate) issuer_common_name: &'a str,
    /// Lower-case hexadecimal, two digits per byte.
    pub(crate) serial_number: &'a str,
    pub(crate) subject_organization: &'a str,
    pub(crate) subject_organizational_unit: &'a str,
    pub(crate) subject_locality: &'a str,
    pub(crate) subject_province: &'a str,
    pub(crate) subject_country: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct AlternativeNames<'a> {
    pub(crate) dns_names: &'a [String],
    pub(crate) ips: &'a [String],
}

impl Model for TlsCertificate {
    const NAME: &'static str = "tls_certificate";
    const COLLECTION: &'static str = "tls_certificates";
    const LIST_FIELD: &'static str = "tls_certificates";
    const ID_PREFIX: &'static str = "cert";
    const RIGHTS: Rights = Rights::SHARED;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let (summary, names) = (&self.summary, &self.names);
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
            certificate_pem: &self.certificate_pem,
            subject_common_name: &summary.subject_common_name,
            subject_alternative_names: AlternativeNames {
                dns_names: &names.dns_names,
                ips: &names.ips,
            },
            issued_at: self.issued_at,
            not_before: &summary.not_before,
            not_after: &summary.not_after,
            key_usages: &summary.key_usages,
            extended_key_usages: &summary.extended_key_usages,
            private_key_type: &self.private_key_type,
            issuer_common_name: &names.issuer_common_name,
            serial_number: &names.serial_number,
            subject_organization: &names.subject_organization,
            subject_organizational_unit: &names.subject_organizational_unit,
            subject_locality: &names.subject_locality,
            subject_province: &names.subject_province,
            subject_country: &names.subject_country,
        }
    }
}
