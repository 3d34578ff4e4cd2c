//! Alerts: what the rules of an account found to be wrong, until it is right again.
//!
//! A [`rule`] has a [`condition`] on agents, certificates, destinations, traffic, keys or sign-ins. An `alert` is about one
//! object for which the condition of a rule is true. Whether it is true, and what follows, is decided in
//! `crates/culvert-control/src/alerting`, which sees all subjects.

pub mod condition;
pub mod model;
pub mod rule;
pub mod rule_model;

use culvert_base::Ksuid;
use culvert_resources::Error;
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter::{self, Field, Shape, field};
use culvert_resources::resource::{Audited, Draft, Life, Never, Resource, ResourceType};
use culvert_store::Head;

use crate::alert::model::Alert;
use crate::event_kinds::{ALERT_FIRED, ALERT_RESOLVED};

/// The row of alerts in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<Alert>();

impl Resource for Alert {
    const DOC: &'static str = "Alerts: objects for which the condition of an alert rule is true, and those of the last seven \
        days. The owner of the object and admins see them.";
    const LIFE: Life = Life::Observed;
    const AUDITED: Audited = Audited::By(&[ALERT_FIRED, ALERT_RESOLVED]);
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::CREATED_AT,
        field("rule_id", Shape::Id),
        field("condition", Shape::Text),
        field("severity", Shape::Text),
        field("state", Shape::Text),
    ]);
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
