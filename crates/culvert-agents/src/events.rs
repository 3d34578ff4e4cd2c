//! Audit events of agent sessions (contract: events 5.1).

use culvert_base::{Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId, Principal, Reference, Source};
use culvert_resources::audit;
use culvert_resources::audit::{AGENT_SESSION_START, AGENT_SESSION_STOP};
use culvert_resources::cx::Cx;
use culvert_resources::resource::model;
use culvert_resources::resource::model::{Model, Uri};
use culvert_store::{AuditEvent, Head};
use schemars::JsonSchema;
use serde::Serialize;

use crate::session::model::{TunnelSession, collection_of};

/// The object of both events.
#[derive(Serialize, JsonSchema)]
struct Object<'a> {
    /// The agent session.
    session: model::Reference<'a>,
    /// The tunnel credential or SSH public key that authenticated the agent.
    credential: model::Reference<'a>,
    /// IP address of the agent.
    agent_ip: &'a str,
    /// IP address at which the agent connected.
    ingress_server_ip: &'a str,
    /// Region of the node; empty if none is configured.
    region: &'a str,
    /// Host name that the agent connected to; if unknown, the first one of the agent ingress.
    ingress_hostname: &'a str,
    /// User agent, as the agent sends it; at most 1024 bytes.
    user_agent: &'a str,
    /// Metadata of the agent, at most 4096 bytes.
    metadata: &'a str,
    /// Operating system, as the agent sends it.
    os: &'a str,
    /// CPU architecture, as the agent sends it.
    arch: &'a str,
    /// `muxado` or `ssh`.
    transport: &'a str,
    /// When the agent was accepted or refused.
    #[schemars(with = "String", extend("format" = "date-time"))]
    started_at: Timestamp,
    /// When the session ends at the latest; null without a limit.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    expires_at: Option<Timestamp>,
    /// When the session ended; null in start events.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    stopped_at: Option<Timestamp>,
    /// Null if the version of the agent is current; see the setting `agents.minimum_version`.
    deprecated: Option<Deprecated>,
    /// Why the session ended or was refused; empty in start events of accepted agents.
    error: &'a str,
}

/// The announced minimum version of agents, which this agent does not have.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct Deprecated {
    /// The lowest version that will be accepted.
    upcoming_minimum_version: String,
    /// When older versions will be refused.
    upcoming_enforcement_date: String,
    /// Text for the users of the agent.
    message: String,
}

fn deprecated(cx: &Cx<'_>, session: &TunnelSession) -> Option<Deprecated> {
    let upcoming = cx.settings.agent_minimum.as_ref()?;
    // SSH clients have version numbers of their own.
    let is_old = session.transport == "muxado" && upcoming.is_above(&session.agent_version);
    is_old.then(|| Deprecated {
        upcoming_minimum_version: upcoming.version.clone(),
        upcoming_enforcement_date: upcoming.date.clone(),
        message: upcoming.message.clone(),
    })
}

/// The two kinds of events.
pub fn kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Object<'static>>();
    let kind = |name: &str, doc: &str| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    };
    [
        kind(
            AGENT_SESSION_START,
            "An agent started a session, or a known agent was rejected; see `error`.",
        ),
        kind(
            AGENT_SESSION_STOP,
            "An agent session ended; `error` contains the reason.",
        ),
    ]
}

/// The event of a started session.
pub(crate) fn started(
    cx: &Cx<'_>,
    head: &Head,
    session: &TunnelSession,
) -> Result<AuditEvent, Fault> {
    event(cx, AGENT_SESSION_START, head, session, None, "")
}

/// The event of a known agent that was refused.
pub fn refused(
    cx: &Cx<'_>,
    head: &Head,
    session: &TunnelSession,
    error: &str,
) -> Result<AuditEvent, Fault> {
    event(cx, AGENT_SESSION_START, head, session, None, error)
}

/// The event of a session that ended at that time.
pub(crate) fn stopped(
    cx: &Cx<'_>,
    head: &Head,
    session: &TunnelSession,
    error: &str,
    at: Timestamp,
) -> Result<AuditEvent, Fault> {
    // The clocks of two nodes may differ, so make sure that no session ends before its start.
    let at = at.max(head.created_at).whole_seconds();
    event(cx, AGENT_SESSION_STOP, head, session, Some(at), error)
}

fn event(
    cx: &Cx<'_>,
    kind: &str,
    head: &Head,
    session: &TunnelSession,
    stopped_at: Option<Timestamp>,
    error: &str,
) -> Result<AuditEvent, Fault> {
    let credentials = collection_of(&session.credential_id);
    let credential = Uri {
        base: cx.base,
        collection: credentials,
        id: &session.credential_id,
    };
    let principal = Principal {
        id: session.principal_id.clone(),
        subject: session.principal_subject.clone(),
        source: Source::Agent,
        credential: Some(Reference {
            id: session.credential_id.clone(),
            uri: credential.to_string(),
        }),
        context: cx.caller.context.as_deref().cloned(),
    };
    let object = Object {
        session: model::Reference::to(cx.base, TunnelSession::COLLECTION, &head.id),
        credential: model::Reference::to(cx.base, credentials, &session.credential_id),
        agent_ip: &session.ip,
        ingress_server_ip: &session.ingress_server_ip,
        region: &session.region,
        ingress_hostname: &session.ingress_hostname,
        user_agent: &session.user_agent,
        metadata: &session.metadata,
        os: &session.os,
        arch: &session.arch,
        transport: &session.transport,
        started_at: head.created_at,
        expires_at: session.expires_at,
        stopped_at,
        deprecated: deprecated(cx, session),
        error,
    };
    let at = cx.clock.now();
    let id = EventId::new(at, cx.entropy.bytes());
    let audit = Audit {
        principal: Some(&principal),
        ..Audit::by_server(kind, at, &id, &head.account)
    };
    let event = audit.about(&object)?;
    Ok(AuditEvent::Emit(event))
}
