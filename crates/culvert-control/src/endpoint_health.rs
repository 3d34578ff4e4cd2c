//! The health of an endpoint: whether its traffic policy may use its secrets.

use std::sync::Arc;

use culvert_base::{Code, Refusal, code};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;

use crate::access::Referrer;
use crate::control::Control;
use crate::grants::Uses;
use crate::operation::{Call, Handler, Method, Reply, ResponseSpec, Status};
use crate::resource::model::Model;
use crate::resource::model::endpoint::Endpoint;
use crate::resource::model::vault_secret::VaultSecret;
use crate::resource::resource_type::{Extra, ResourceType};
use crate::rights::Access;
use crate::secret_rights::{self, Misuse};
use crate::traffic_policy::Compiled;
use crate::{Error, service, stored};

/// The operation of an endpoint, which calls [`health`].
pub(crate) const fn operation(run: Handler) -> Extra {
    Extra {
        name: "get_health",
        method: Method::Get,
        suffix: "/health",
        doc: "Gets the health of an endpoint: the problems of its traffic policy with secrets. Requires an admin key or a key of the endpoint's owner (630).",
        access: Access::Whole,
        body: None,
        response: ResponseSpec {
            status: Status::Ok,
            schema: Some(SchemaGenerator::subschema_for::<View>),
        },
        query: &[],
        run,
    }
}

/// The health of an endpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointHealth")]
struct View {
    /// `warning`: the endpoint works, but will refuse requests later. `refused`: it refuses all of them.
    #[schemars(extend("enum" = ["ok", "warning", "refused"]))]
    state: &'static str,
    problems: Vec<ProblemView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointProblem")]
struct ProblemView {
    /// Error code, such as `ERR_NGROK_2270`.
    code: String,
    /// The cause, as a sentence.
    message: String,
}

/// The health of the endpoint that the path names. `ty` is the type of endpoints.
pub(crate) async fn health(
    control: &Control,
    ty: &ResourceType,
    call: &Call,
) -> Result<Reply, Error> {
    let cx = control.cx(&call.caller, &call.base);
    let document = service::named(&cx, ty, call).await?;
    let document = document.ok_or_else(Refusal::not_found)?;
    let endpoint: Endpoint = stored::read(&document)?;
    let mut misuses = Vec::new();
    if let Some(policy) = &endpoint.policy {
        let mut compiled = Compiled::new(Arc::clone(&control.logins));
        let has_upstream = endpoint.upstream.is_some() || endpoint.served.is_some();
        let owner = endpoint.principal_id.as_str();
        let place = endpoint.address.policy_target(owner, has_upstream);
        let head = (&document.head, owner);
        let policy = compiled.policy(&control.seal, head, policy, place.scheme, has_upstream)?;
        if policy.secret_right().is_some() {
            let mut uses = Uses::empty();
            uses.refresh(cx.store, cx.clock.now()).await?;
            let all = cx.store.all(VaultSecret::KIND).await?;
            let account = &document.head.account;
            let own = all.iter().filter(|secret| secret.head.account == *account);
            let referrer = Referrer {
                owner_id: owner,
                id: &document.head.id,
            };
            misuses =
                secret_rights::misuses(&policy, referrer, &secret_rights::owned(own), &uses.table);
        }
    }
    let in_grace = cx.clock.now() < control.secret_echo_until;
    let state = match misuses.is_empty() {
        true => "ok",
        false if Misuse::refuse(&misuses, in_grace) => "refused",
        false => "warning",
    };
    let problem = |misuse: &Misuse| ProblemView {
        code: text(code::POLICY_SECRET_REFUSED),
        message: misuse.sentence(),
    };
    let problems = misuses.iter().map(problem).collect();
    Ok(Reply::Ok(stored::write(&View { state, problems })?))
}

fn text(code: Code) -> String {
    format!("ERR_NGROK_{}", code.number())
}
