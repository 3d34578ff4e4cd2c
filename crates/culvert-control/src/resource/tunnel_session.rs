//! Tunnel session: the connection of an agent (contract: management API 2.17).
//!
//! No agent can connect to this version, so there is none: the collection is empty, and what would be
//! asked of a session finds none.

use culvert_base::{Ksuid, Refusal, Timestamp};
use culvert_store::Head;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{Draft, Extra, Life, Never, Reference, Resource, ResourceType, Running, Uri};
use crate::cx::Cx;
use crate::input;
use crate::listfilter::{self, Field, Shape, field};
use crate::operation::{Answer, BodySpec, Call, Method, Status};
use crate::stored::Format;
use crate::{Control, Error};

pub(crate) static TYPE: ResourceType = ResourceType::of::<TunnelSession>();

/// The stored form.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct TunnelSession {
    format: Format<1>,
    agent_version: String,
    /// A tunnel credential, or the public key of an SSH client.
    credential_id: String,
    ip: String,
    metadata: String,
    os: String,
    region: String,
    transport: String,
}

/// A tunnel session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TunnelSession")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    agent_version: &'a str,
    credential: Reference<'a>,
    /// Where it comes from, without the port.
    ip: &'a str,
    metadata: &'a str,
    os: &'a str,
    region: &'a str,
    /// When it first connected.
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// `ngrok/2`, or `ssh`.
    transport: &'a str,
}

/// What is sent to a session's operations: nothing.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "TunnelSessionOperation", extend("properties" = {}), transform = input::update_schema)]
struct Nothing {}

impl Resource for TunnelSession {
    const NAME: &'static str = "tunnel_session";
    const COLLECTION: &'static str = "tunnel_sessions";
    const LIST_FIELD: &'static str = "tunnel_sessions";
    const ID_PREFIX: &'static str = "ts";
    const DOC: &'static str = "Tunnel sessions: connections of agents, while they last.";
    const LIFE: Life = Life::Observed;
    const SILENT: Option<&'static str> = Some("sessions have events of their own, not of writes");
    const FILTER: Option<&'static [Field]> = Some(&[
        listfilter::ID,
        listfilter::METADATA,
        field("agent_version", Shape::Text),
        field("ip", Shape::Text),
        field("os", Shape::Text),
        field("region", Shape::Text),
        field("started_at", Shape::Time),
        field("credential", Shape::Reference),
    ]);
    const CREATE_NEEDS_BODY: bool = false;
    const OPERATIONS: &'static [Extra] = &[
        operation(
            "restart",
            "/restart",
            "Makes the agent of a tunnel session restart.",
        ),
        operation("stop", "/stop", "Makes the agent of a tunnel session exit."),
        operation(
            "update_agent",
            "/update",
            "Makes the agent of a tunnel session update itself and restart.",
        ),
    ];

    type Create = Never;
    type Update = Never;
    type View<'a> = View<'a>;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    fn view<'a>(&'a self, head: &'a Head, base: &'a str) -> View<'a> {
        let credentials = if self.credential_id.starts_with("sshcr_") {
            "ssh_credentials"
        } else {
            "credentials"
        };
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            agent_version: &self.agent_version,
            credential: Reference::to(base, credentials, &self.credential_id),
            ip: &self.ip,
            metadata: &self.metadata,
            os: &self.os,
            region: &self.region,
            started_at: head.created_at,
            transport: &self.transport,
        }
    }
}

const fn operation(name: &'static str, suffix: &'static str, doc: &'static str) -> Extra {
    Extra {
        name,
        method: Method::Post,
        suffix,
        doc,
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Nothing>,
            required: false,
        }),
        answer: Answer {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        run: run_operation,
    }
}

/// No session is online, so no id names one.
fn run_operation(_control: &Control, call: Call) -> Running<'_> {
    Box::pin(async move {
        input::update::<Nothing>(call.body).map_err(super::value_refusal::<TunnelSession>)?;
        Err(Refusal::not_found().into())
    })
}
