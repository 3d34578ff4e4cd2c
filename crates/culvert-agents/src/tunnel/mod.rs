//! Tunnel: an agent's endpoint as older clients see it (contract: management API 2.18).
//!
//! It is created and removed together with its endpoint (`agents`).

pub mod model;

use culvert_base::Ksuid;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::Field;
use culvert_resources::list::page;
use culvert_resources::resource::{Audited, Draft, Life, Never, Resource, ResourceType};
use culvert_resources::{Error, Parameter};
use culvert_store::{AuditEvent, Head};

use crate::tunnel::model::Tunnel;

/// The row of tunnels in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<Tunnel>();

pub(crate) const REPORTED_AS_ENDPOINT: AuditEvent = AuditEvent::Suppress {
    reason: "a tunnel shows an endpoint, which has the events",
};

impl Resource for Tunnel {
    const DOC: &'static str = "Tunnels: online endpoints of agents.";
    const LIFE: Life = Life::Observed;
    const AUDITED: Audited = Audited::By(&["endpoint_created.v0", "endpoint_deleted.v0"]);
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Never;
    type Update = Never;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }
}
