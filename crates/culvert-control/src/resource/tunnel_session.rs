//! Tunnel session: the connection of an agent (contract: management API 2.17).
//!
//! Not here: how sessions come and go, and how an agent is asked for something (`gate`).

use culvert_base::{Ksuid, Refusal, Timestamp, code};
use culvert_store::Head;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{
    Draft, Extra, Life, Never, Reference, Resource, ResourceType, Running, Uri, ssh_public_key,
    tunnel_credential,
};
use crate::base::Base;
use crate::cx::Cx;
use crate::gate::Request;
use crate::listfilter::{self, Field, Shape, field};
use crate::operation::{Answer, BodySpec, Call, Method, Reply, Run, Status};
use crate::stored::{self, Format};
use crate::{Control, Error, Role, input, service};

pub(crate) static TYPE: ResourceType = ResourceType::of::<TunnelSession>();

/// The stored form.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TunnelSession {
    pub(crate) format: Format<1>,
    pub(crate) agent_version: String,
    /// A tunnel credential, or the public key of an SSH client.
    pub(crate) credential_id: String,
    /// Owner of the credential, which may be gone before the session is.
    pub(crate) principal_id: String,
    /// E-mail address or name of the owner.
    pub(crate) principal_subject: String,
    pub(crate) ip: String,
    pub(crate) ingress_server_ip: String,
    pub(crate) ingress_hostname: String,
    pub(crate) user_agent: String,
    pub(crate) metadata: String,
    pub(crate) os: String,
    pub(crate) arch: String,
    pub(crate) region: String,
    /// As events name it: `muxado` or `ssh`.
    pub(crate) transport: String,
    /// When it ends at the latest, where its credential has an end.
    #[serde(default)]
    pub(crate) expires_at: Option<Timestamp>,
    /// The run of a server that the agent is connected to.
    pub(crate) run: String,
}

/// A tunnel session as the API shows it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TunnelSession")]
pub(crate) struct View<'a> {
    id: &'a str,
    #[schemars(with = "String")]
    uri: Uri<'a>,
    agent_version: &'a str,
    /// `null` if the credential belongs to another owner and the caller is not an admin.
    credential: Option<Reference<'a>>,
    /// Source address without the port.
    ip: &'a str,
    metadata: &'a str,
    os: &'a str,
    region: &'a str,
    /// Time of the first connection.
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// `ngrok/2`, or `ssh`.
    transport: &'a str,
}

/// An empty request body.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "TunnelSessionOperation", extend("properties" = {}), transform = input::update_schema)]
struct Nothing {}

impl Resource for TunnelSession {
    const NAME: &'static str = "tunnel_session";
    const COLLECTION: &'static str = "tunnel_sessions";
    const LIST_FIELD: &'static str = "tunnel_sessions";
    const ID_PREFIX: &'static str = "ts";
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
    type View<'a> = View<'a>;

    async fn create(_cx: &Cx<'_>, _id: Ksuid, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    async fn update(self, _cx: &Cx<'_>, _: &Head, input: Never) -> Result<Draft<Self>, Error> {
        match input {}
    }

    fn view<'a>(&'a self, head: &'a Head, base: Base<'a>) -> View<'a> {
        let credentials = collection_of(&self.credential_id);
        View {
            id: &head.id,
            uri: Uri {
                base,
                collection: Self::COLLECTION,
                id: &head.id,
            },
            agent_version: &self.agent_version,
            credential: base
                .shows_fields_of(&self.principal_id)
                .then(|| Reference::to(base, credentials, &self.credential_id)),
            ip: &self.ip,
            metadata: &self.metadata,
            os: &self.os,
            region: &self.region,
            started_at: head.created_at,
            transport: match self.transport.as_str() {
                "muxado" => "ngrok/2",
                other => other,
            },
        }
    }
}

/// Where the API has a credential of agents.
pub(crate) fn collection_of(credential_id: &str) -> &'static str {
    if credential_id.starts_with("sshcr_") {
        ssh_public_key::TYPE.collection
    } else {
        tunnel_credential::TYPE.collection
    }
}

const fn operation(name: &'static str, suffix: &'static str, doc: &'static str, run: Run) -> Extra {
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
        run,
    }
}

fn restart(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, Request::Restart))
}

fn stop(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, Request::Stop))
}

fn update(control: &Control, call: Call) -> Running<'_> {
    Box::pin(ask(control, call, Request::Update))
}

async fn ask(control: &Control, call: Call, request: Request) -> Result<Reply, Error> {
    input::update::<Nothing>(call.body.clone()).map_err(super::value_refusal::<TunnelSession>)?;
    call.caller.may_write()?;
    let cx = control.cx(&call.caller, &call.base);
    let document = service::named(&cx, &TYPE, &call)
        .await?
        .ok_or_else(Refusal::not_found)?;
    let session: TunnelSession = stored::read(&document)?;
    if call.caller.role != Role::Admin && call.caller.owner_id != session.principal_id {
        let why = "Only the owner of the session's credential and admins may do this.";
        return Err(Refusal::new(code::NOT_ADMIN, why).into());
    }
    control
        .ask_agent(&document.head.id, &session, request)
        .await?;
    Ok(Reply::NoContent)
}
