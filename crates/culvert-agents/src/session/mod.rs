//! Tunnel session: the connection of an agent (contract: management API 2.17).
//!
//! `agents` starts and ends sessions, and sends commands to agents.

pub mod command;
pub(crate) mod commands;
pub(crate) mod ending;
pub mod model;
mod traffic;

use culvert_base::{Ksuid, Refusal};
use culvert_resources::access::rights::Access;
use culvert_resources::audit::trace::{OperationKind, Trace};
use culvert_resources::cx::Cx;
use culvert_resources::list::listfilter;
use culvert_resources::list::listfilter::{Field, Shape, field};
use culvert_resources::operation::{BodySpec, Call, Handler, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::{
    Audited, Draft, Extra, Life, Never, Resource, ResourceType, Running, value_refusal,
};
use culvert_resources::{Error, input, service, stored};
use culvert_store::Head;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::AgentControl;
use crate::session::command::SessionCommand;
use crate::session::model::TunnelSession;
use culvert_resources::audit::{AGENT_SESSION_START, AGENT_SESSION_STOP};

/// The event of a command to an agent.
pub static AGENT_SESSION_COMMANDED: OperationKind = OperationKind {
    name: "agent_session_commanded.v0",
    doc: "An agent was asked to restart, to stop or to update itself; `operation` says which.",
    shows_body: false,
};

/// The row of agents' sessions in the table of resources.
pub static TYPE: ResourceType = ResourceType::of::<TunnelSession>();

/// An empty request body.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "TunnelSessionOperation", extend("properties" = {}), transform = input::update_schema)]
struct Nothing {}

/// The operations beyond the five.
pub const OPERATIONS: &[Extra<AgentControl>] = &[
    operation(
        "restart",
        "/restart",
        "Restarts the agent of a tunnel session.",
        restart,
    ),
    operation(
        "stop",
        "/stop",
        "Stops the agent of a tunnel session.",
        stop,
    ),
    operation(
        "update_agent",
        "/update",
        "Updates and restarts the agent of a tunnel session.",
        update,
    ),
];

impl Resource for TunnelSession {
    const DOC: &'static str = "Tunnel sessions: connected agents.";
    const LIFE: Life = Life::Observed;
    const AUDITED: Audited = Audited::By(&[AGENT_SESSION_START, AGENT_SESSION_STOP]);
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

    type Create = Never;
    type Update = Never;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }
}

const fn operation(
    name: &'static str,
    suffix: &'static str,
    doc: &'static str,
    run: Handler<AgentControl>,
) -> Extra<AgentControl> {
    Extra {
        name,
        method: Method::Post,
        suffix,
        doc,
        body: Some(BodySpec {
            schema: SchemaGenerator::subschema_for::<Nothing>,
            required: false,
        }),
        response: ResponseSpec {
            status: Status::NoContent,
            schema: None,
        },
        query: &[],
        access: Access::Change,
        trace: Trace::Each(&AGENT_SESSION_COMMANDED),
        run,
    }
}

fn restart(agents: &AgentControl, call: Call) -> Running<'_> {
    Box::pin(ask(agents, call, SessionCommand::Restart))
}

fn stop(agents: &AgentControl, call: Call) -> Running<'_> {
    Box::pin(ask(agents, call, SessionCommand::Stop))
}

fn update(agents: &AgentControl, call: Call) -> Running<'_> {
    Box::pin(ask(agents, call, SessionCommand::Update))
}

async fn ask(agents: &AgentControl, call: Call, request: SessionCommand) -> Result<Reply, Error> {
    input::update::<Nothing>(call.body.clone()).map_err(value_refusal::<TunnelSession>)?;
    let cx = agents.kernel.cx(&call.caller, &call.base);
    let document = service::named(&cx, &TYPE, &call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    let session: TunnelSession = stored::read(&document)?;
    agents
        .send_command(&document.head.id, &session, request)
        .await?;
    Ok(Reply::NoContent)
}
