//! Stored form and view of the reserved domain.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_certificates::management;
use culvert_certificates::management::model::{Management, PolicyView, StatusView};
use culvert_certificates::tls_certificate::model::TlsCertificate;
use culvert_resources::access::rights::{Change, Rights, See, Use};
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the key for looking up a domain.
pub const KEY: &str = "domain";

pub(crate) const REGIONS: [&str; 8] = ["us", "eu", "ap", "au", "sa", "jp", "in", "us-cal-1"];

/// Stands for all regions.
pub(crate) const GLOBAL: &str = "global";

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct ReservedDomain {
    /// Version of the stored form.
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// What the domain is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The domain name, which may be a wildcard.
    pub domain: String,
    /// Region that the caller asked for.
    pub region: Option<String>,
    pub(crate) resolves_to: Option<Vec<ResolvesTo>>,
    /// The certificate in use: uploaded, or the latest issued one.
    pub certificate_id: Option<String>,
    /// The policy and the state of its managed certificate.
    #[serde(default)]
    pub management: Option<Management>,
    /// `None` for a name below the platform domain.
    pub(crate) cname_target: Option<String>,
    pub(crate) acme_challenge_cname_target: Option<String>,
}

/// The values of the regions that a domain resolves to.
pub fn places() -> Vec<&'static str> {
    REGIONS.into_iter().chain([GLOBAL]).collect()
}

/// Target of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ResolvesTo {
    /// A region, or `global`.
    #[schemars(extend("enum" = places()))]
    pub(crate) value: String,
}

/// A reserved domain as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReservedDomain")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    /// Domain in lower case and Punycode.
    pub(crate) domain: &'a str,
    pub(crate) region: Option<&'a str>,
    /// Target of the DNS record of a custom domain.
    pub(crate) cname_target: Option<&'a str>,
    /// The current certificate: the uploaded or the latest issued one. Without it, the platform
    /// certificate is presented.
    pub(crate) certificate: Option<Reference<'a>>,
    /// Certificate management policy; `null` if the certificate is not managed.
    pub(crate) certificate_management_policy: Option<PolicyView>,
    /// Status of the certificate management; `null` without a policy.
    pub(crate) certificate_management_status: Option<StatusView<'a>>,
    /// For custom wildcards only.
    pub(crate) acme_challenge_cname_target: Option<&'a str>,
    pub(crate) resolves_to: Option<&'a [ResolvesTo]>,
}

impl Model for ReservedDomain {
    const NAME: &'static str = management::DOMAIN;
    const COLLECTION: &'static str = "reserved_domains";
    const LIST_FIELD: &'static str = "reserved_domains";
    const ID_PREFIX: &'static str = "rd";
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
            domain: &self.domain,
            region: self.region.as_deref(),
            cname_target: self.cname_target.as_deref(),
            certificate: self
                .certificate_id
                .as_deref()
                .map(|id| Reference::to(base, TlsCertificate::COLLECTION, id)),
            certificate_management_policy: self.management.as_ref().map(Management::policy_view),
            certificate_management_status: self.management.as_ref().map(Management::status_view),
            acme_challenge_cname_target: self.acme_challenge_cname_target.as_deref(),
            resolves_to: self.resolves_to.as_deref(),
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new(KEY, &*self.domain)],
            refs: self.refs(),
            ..Links::default()
        }
    }
}

impl ReservedDomain {
    /// What its document refers to.
    pub fn refs(&self) -> Vec<Ref> {
        let certificate = self.certificate_id.iter();
        certificate
            .map(|id| Ref::new("certificate_id", id, OnDelete::Block))
            .collect()
    }
}
