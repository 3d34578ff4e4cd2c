//! Stored form and view of the agent ingress.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_certificates::management;
use culvert_certificates::management::model::{Management, PolicyView, StatusView};
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Uri};
use culvert_resources::stored::Format;
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub struct AgentIngress {
    /// Version of the stored form.
    pub format: Format<1>,
    /// What the ingress is for.
    pub description: Description,
    /// Text that the caller keeps with it.
    pub metadata: Metadata,
    /// The host name that agents connect to.
    pub domain: String,
    /// The latest certificate that was issued.
    #[serde(default)]
    pub certificate_id: Option<String>,
    /// The state of its managed certificate, if it has a policy.
    #[serde(default)]
    pub management: Option<Management>,
}

/// An agent ingress as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentIngress")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    #[schemars(with = "String")]
    pub(crate) uri: Uri<'a>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) created_at: Timestamp,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) domain: &'a str,
    /// Name servers for the delegation of the zone; always empty.
    pub(crate) ns_targets: [&'static str; 0],
    /// Regional names; always empty.
    pub(crate) region_domains: [&'static str; 0],
    /// Certificate management policy; `null` if the certificate is not managed.
    pub(crate) certificate_management_policy: Option<PolicyView>,
    /// Status of the certificate management; `null` without a policy.
    pub(crate) certificate_management_status: Option<StatusView<'a>>,
}

impl Model for AgentIngress {
    const NAME: &'static str = management::AGENT_INGRESS;
    const COLLECTION: &'static str = "agent_ingresses";
    const LIST_FIELD: &'static str = "ingresses";
    const ID_PREFIX: &'static str = "agin";
    const RIGHTS: Rights = Rights::ADMINS;
    const OWNED_BY: Option<&'static str> = None;
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
            ns_targets: [],
            region_domains: [],
            certificate_management_policy: self.management.as_ref().map(Management::policy_view),
            certificate_management_status: self.management.as_ref().map(Management::status_view),
        }
    }

    fn links(&self, _head: &Head) -> Links {
        Links {
            keys: vec![Key::new("domain", self.domain.clone())],
            refs: self.refs(),
            ..Links::default()
        }
    }
}

impl AgentIngress {
    /// What its document refers to.
    pub fn refs(&self) -> Vec<Ref> {
        let certificate = self.certificate_id.iter();
        certificate
            .map(|id| Ref::new("certificate_id", id, OnDelete::Block))
            .collect()
    }
}
