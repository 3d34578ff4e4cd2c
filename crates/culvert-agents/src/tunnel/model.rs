//! Stored form and view of the tunnel.

use std::borrow::Cow;
use std::collections::BTreeMap;

use culvert_base::Timestamp;
use culvert_endpoints::endpoint::model::Endpoint;
use culvert_resources::access::rights::Rights;
use culvert_resources::cx::base::Base;
use culvert_resources::resource::model::{Links, Model, Reference, TUNNELS};
use culvert_resources::stored::Format;
use culvert_store::{Head, OnDelete, Ref};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::session::model::TunnelSession;

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Tunnel {
    pub format: Format<1>,
    /// The owner of the key that created it. Empty if it was stored before this was recorded: then it belongs to the
    /// admins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    pub public_url: String,
    pub metadata: String,
    pub proto: String,
    pub region: String,
    pub session_id: String,
    pub endpoint_id: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub forwards_to: String,
}

/// A tunnel as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tunnel")]
pub struct View<'a> {
    pub(crate) id: &'a str,
    /// Empty for a labelled tunnel.
    pub(crate) public_url: Cow<'a, str>,
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub(crate) started_at: Timestamp,
    pub(crate) metadata: &'a str,
    /// `http`, `https`, `tcp` or `tls`; empty for a labelled tunnel.
    pub(crate) proto: &'a str,
    pub(crate) region: &'a str,
    pub(crate) tunnel_session: Reference<'a>,
    pub(crate) endpoint: Option<Reference<'a>>,
    pub(crate) labels: &'a BTreeMap<String, String>,
    /// Always empty; backends are no longer supported.
    pub(crate) backends: [Reference<'a>; 0],
    /// Forwarding address reported by the agent.
    pub(crate) forwards_to: &'a str,
}

impl Model for Tunnel {
    const NAME: &'static str = "tunnel";
    const COLLECTION: &'static str = TUNNELS;
    const LIST_FIELD: &'static str = "tunnels";
    const ID_PREFIX: &'static str = "tn";
    const RIGHTS: Rights = Rights::PRIVATE;
    const OWNED_BY: Option<&'static str> = Some("owner_id");
    type View<'a> = View<'a>;

    fn links(&self, _head: &Head) -> Links {
        let session = Ref::new("tunnel_session", &self.session_id, OnDelete::Cascade);
        Links {
            refs: vec![session],
            ..Links::default()
        }
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let to_endpoint = |id: &'a String| Reference::to(base, Endpoint::COLLECTION, id);
        View {
            id: &head.id,
            public_url: base.ports.shown(&self.public_url),
            started_at: head.created_at,
            metadata: &self.metadata,
            proto: &self.proto,
            region: &self.region,
            tunnel_session: Reference::to(base, TunnelSession::COLLECTION, &self.session_id),
            endpoint: self.endpoint_id.as_ref().map(to_endpoint),
            labels: &self.labels,
            backends: [],
            forwards_to: &self.forwards_to,
        }
    }
}
