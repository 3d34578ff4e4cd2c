//! Tunnel: an agent's endpoint as older clients see it (contract: management API 2.18).
//!
//! It is created and removed together with its endpoint (`agents`).

use culvert_base::Ksuid;
use culvert_store::Head;

use crate::cx::Cx;
use crate::listfilter::Field;
use crate::resource::model::tunnel::Tunnel;
use crate::resource::resource_type::{Draft, Life, Never, Resource, ResourceType};
use crate::{Error, Parameter, page};

pub(crate) static TYPE: ResourceType = ResourceType::of::<Tunnel>();

impl Resource for Tunnel {
    const DOC: &'static str = "Tunnels: online endpoints of agents.";
    const LIFE: Life = Life::Observed;
    const SILENT: Option<&'static str> = Some("the catalogue has no events for tunnels");
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
