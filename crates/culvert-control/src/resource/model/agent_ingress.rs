//! Stored form and view of the agent ingress.

use culvert_base::{Description, Metadata, Timestamp};
use culvert_store::{Head, Key, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::resource::model::management::{Management, PolicyView, StatusView};
use crate::resource::model::{Links, Model, Uri};
use crate::rights::Rights;
use crate::stored::Format;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct AgentIngress {
    pub(crate) format: Format<1>,
    pub(crate) description: Description,
    pub(crate) metadata: Metadata,
    pub(crate) domain: String,
    /// The latest certificate that was issued.
    #[serde(default)]
    pub(crate) certificate_id: Option<String>,
    /// The state of its managed certificate, if it has a policy.
    #[serde(default)]
    pub(crate) management: Option<Management>,
}

/// An agent ingress as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AgentIngress")]
pub(crate) struct View<'a> {
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
    const NAME: &'static str = "agent_ingress";
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
    pub(crate) fn refs(&self) -> Vec<Ref> {
        let certificate = self.certificate_id.iter();
        certificate
            .map(|id| Ref::new("certificate_id", id, OnDelete::Block))
            .collect()
    }
}
