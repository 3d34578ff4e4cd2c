//! Tunnel session: the connection of an agent (contract: management API 2.17).
//!
//! `agents` starts and ends sessions, and sends commands to agents.

use crate::resource::resource_type::value_refusal;
use culvert_base::{Ksuid, Refusal};
use culvert_store::Head;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use crate::agents::command::SessionCommand;
use crate::control::Control;
use crate::cx::Cx;
use crate::listfilter::{self, Field, Shape, field};
use crate::operation::{BodySpec, Call, Handler, Method, Reply, ResponseSpec, Status};
use crate::resource::model::tunnel_session::TunnelSession;
use crate::resource::resource_type::{Draft, Extra, Life, Never, Resource, ResourceType, Running};
use crate::rights::Access;
use crate::{Error, input, service, stored};

pub(crate) static TYPE: ResourceType = ResourceType::of::<TunnelSession>();

/// An empty request body.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "TunnelSessionOperation", extend("properties" = {}), transform = input::update_schema)]
struct Nothing {}

impl Resource for TunnelSession {
    const DOC: &'static str = "Tunnel sessions: connected agents.";
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
    run: Handler,
) -> Extra {
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
        run,
    }
}

fn restart(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, SessionCommand::Restart))
}

fn stop(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, SessionCommand::Stop))
}

fn update(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, SessionCommand::Update))
}

async fn ask(control: &Control, call: Call, request: SessionCommand) -> Result<Reply, Error> {
    input::update::<Nothing>(call.body.clone()).map_err(value_refusal::<TunnelSession>)?;
    let cx = control.cx(&call.caller, &call.base);
    let document = service::named(&cx, &TYPE, &call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    let session: TunnelSession = stored::read(&document)?;
    control
        .send_command(&document.head.id, &session, request)
        .await?;
    Ok(Reply::NoContent)
}
