//! `GET /events/{id}/proof`: the proof that the audit log has an event, which is verified without this server.

use culvert_base::{Class, Fault, Refusal};
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::audit::trace::Trace;
use culvert_resources::operation::{
    Call, EVENTS_PATH, Method, Operation, Reply, ResponseSpec, Run, Status,
};
use culvert_resources::{Error, stored};
use culvert_store::{AuditLog, ProveError};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::EventConfig;
use crate::captured;
use crate::event_query::EVENTS_EXPORTED;

pub(crate) fn operations() -> [Operation<EventConfig>; 1] {
    [Operation {
        name: "get_proof",
        collection: "events",
        method: Method::Get,
        path: format!("{EVENTS_PATH}/{{id}}/proof"),
        doc: "Gets the proof that the audit log has an event: its row, the place of the row in the log's tree, and the \
              latest signed head with the signatures of witnesses. `culvert audit check-proof` verifies it without a \
              server. An event of the last seconds has none yet (404)."
            .to_owned(),
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View>),
        },
        query: &[],
        right: Right::read(Scope::EventsRead),
        object: None,
        hides: Some(captured::hides),
        preview: None,
        trace: Trace::HourlyList(&EVENTS_EXPORTED, proven),
        run: Run::new(|events, call| Box::pin(get_proof(events, call))),
    }]
}

/// The proof that the audit log has an event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EventProof")]
struct View {
    event_id: String,
    uri: String,
    /// The identity of the log, which signs with a key of this name.
    origin: String,
    /// The place of the event in the log's tree, from 0.
    index: u64,
    /// Events in the tree of the signed head.
    tree_size: u64,
    /// The text of the proof in the format <https://c2sp.org/tlog-proof>. Its extra data are the bytes of the event's row,
    /// as the hash of the row is made of them.
    proof: String,
}

/// The ID of the event in a proof.
fn proven(body: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Proven {
        event_id: String,
    }
    let proven = serde_json::from_str::<Proven>(body);
    proven.into_iter().map(|proven| proven.event_id).collect()
}

async fn get_proof(events: &EventConfig, call: Call) -> Result<Reply, Error> {
    let id = call.path.first().map_or("", String::as_str);
    let logged = captured::find(events, &call.caller, id).await?;
    if logged.audit.is_none() {
        let why = "Only events of the audit log have proofs.";
        return Err(Refusal::uncoded(Class::NotFound, why).into());
    }
    let log = events.audit_log();
    let proof = log.prove(id, Some(&call.caller.account)).await;
    let proof = proof.map_err(|error| match error {
        ProveError::Fault(fault) => Error::from(fault),
        ProveError::Changed(_) => Fault::new("proving an event", error).into(),
        ProveError::Unknown(_) => Refusal::not_found().into(),
        ProveError::NotSigned => {
            let why =
                "The event is not in a signed head of the audit log yet; try again in ten seconds.";
            Refusal::uncoded(Class::NotFound, why).into()
        }
        ProveError::BeforeTree(_) => {
            let why = "The event is older than the tree of the audit log.";
            Refusal::uncoded(Class::NotFound, why).into()
        }
    })?;
    let head = proof.signed.checkpoint();
    let view = View {
        event_id: id.to_owned(),
        uri: format!("{}{EVENTS_PATH}/{id}/proof", call.base),
        origin: head.origin.clone(),
        index: proof.index,
        tree_size: head.size,
        proof: proof.to_string(),
    };
    Ok(Reply::Ok(stored::write(&view)?))
}

impl EventConfig {
    /// The audit log, for reading.
    pub fn audit_log(&self) -> AuditLog {
        self.kernel.store.audit_log()
    }
}
