//! Tunnel: an agent's endpoint as older clients know it (contract: management API 2.18).
//!
//! It is made and removed together with its endpoint (`gate`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use culvert_base::{Ksuid, Timestamp};
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Draft, Life, Links, Never, Reference, Resource, ResourceType, endpoint, tunnel_session,
};
use crate::base::Base;
use crate::cx::Cx;
use crate::listfilter::Field;
use crate::page;
use crate::stored::Format;
use crate::{Error, Parameter};

pub(crate) static TYPE: ResourceType = ResourceType::of::<Tunnel>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Tunnel {
    pub(crate) format: Format<1>,
    pub(crate) public_url: String,
    pub(crate) metadata: String,
    pub(crate) proto: String,
    pub(crate) region: String,
    pub(crate) session_id: String,
    pub(crate) endpoint_id: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) forwards_to: String,
}

/// A tunnel as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tunnel")]
pub(crate) struct View<'a> {
    id: &'a str,
    /// Empty for a labelled tunnel.
    public_url: Cow<'a, str>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    metadata: &'a str,
    /// `http`, `https`, `tcp` or `tls`; empty for a labelled tunnel.
    proto: &'a str,
    region: &'a str,
    tunnel_session: Reference<'a>,
    endpoint: Option<Reference<'a>>,
    labels: &'a BTreeMap<String, String>,
    /// Always empty; backends are no longer supported.
    backends: [Reference<'a>; 0],
    /// Forwarding address reported by the agent.
    forwards_to: &'a str,
}

impl Resource for Tunnel {
    const NAME: &'static str = "tunnel";
    const COLLECTION: &'static str = "tunnels";
    const LIST_FIELD: &'static str = "tunnels";
    const ID_PREFIX: &'static str = "tn";
    const DOC: &'static str = "Tunnels: online endpoints of agents.";
    const LIFE: Life = Life::Observed;
    const SILENT: Option<&'static str> = Some("the catalogue has no events for tunnels");
    const FILTER: Option<&'static [Field]> = None;
    const PARAMETERS: &'static [Parameter] = page::PLAIN;
    const CREATE_NEEDS_BODY: bool = false;

    type Create = Never;
    type Update = Never;
    type View<'a> = View<'a>;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    fn links(&self, _head: &Head) -> Links {
        let session = Ref::new("tunnel_session", &self.session_id, OnDelete::Cascade);
        Links {
            refs: vec![session],
            ..Links::default()
        }
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let to_endpoint = |id: &'a String| Reference::to(base, endpoint::TYPE.collection, id);
        View {
            id: &head.id,
            public_url: base.ports.shown(&self.public_url),
            started_at: head.created_at,
            metadata: &self.metadata,
            proto: &self.proto,
            region: &self.region,
            tunnel_session: Reference::to(base, tunnel_session::TYPE.collection, &self.session_id),
            endpoint: self.endpoint_id.as_ref().map(to_endpoint),
            labels: &self.labels,
            backends: [],
            forwards_to: &self.forwards_to,
        }
    }
}
