//! The health of an endpoint: whether its traffic policy may use its secrets, and forward to the internal endpoints that it
//! names.

use std::sync::Arc;

use culvert_access::use_table::{UseTable, Uses};
use culvert_base::{Code, Fault, Refusal, Timestamp, code};
use culvert_login::{LoginKeys, LoginSettings, Logins};
use culvert_policy::Policy;
use culvert_policy::problem::Problem;
use culvert_resources::access::Referrer;
use culvert_resources::access::bot_user::BotUser;
use culvert_resources::access::grant::Grant;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::policy_misuse::PolicyMisuse;
use culvert_resources::access::rights::Access;
use culvert_resources::access::user::User;
use culvert_resources::audit::trace::Trace;
use culvert_resources::cx::Cx;
use culvert_resources::operation::{Call, Handler, Method, Reply, ResponseSpec, Status};
use culvert_resources::resource::model::Model;
use culvert_resources::resource::{Extra, ResourceType};
use culvert_resources::stored::seal::Seal;
use culvert_resources::{Error, Role, service, stored};
use culvert_store::{Document, StoreUrl, inspect_documents};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;

use crate::endpoint::model::Endpoint;
use crate::secret_rights::Misuse;
use crate::traffic_policy::Compiled;
use crate::vault::secret_model::VaultSecret;
use crate::{EndpointConfig, host, secret_rights};

/// The operation of an endpoint, which calls [`health`].
pub const fn operation(run: Handler<EndpointConfig>) -> Extra<EndpointConfig> {
    Extra {
        name: "get_health",
        method: Method::Get,
        suffix: "/health",
        doc: "Gets the health of an endpoint: the problems of its traffic policy with secrets and with the internal endpoints that it forwards to. Requires an admin key or a key of the endpoint's owner (630).",
        access: Access::Whole,
        trace: Trace::Nothing,
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
    /// `warning`: the endpoint works, but refuses some requests, or will refuse all later. `refused`: it refuses all of them.
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
pub async fn health(
    endpoints: &EndpointConfig,
    ty: &ResourceType,
    call: &Call,
) -> Result<Reply, Error> {
    let cx = endpoints.kernel.cx(&call.caller, &call.base);
    let document = service::named(&cx, ty, call).await?;
    let document = document.ok_or_else(Refusal::not_found)?;
    let endpoint: Endpoint = stored::read(&document)?;
    let (mut misuses, mut problems) = (Vec::new(), Vec::new());
    if let Some(policy) = &endpoint.policy {
        let mut uses = Uses::empty();
        uses.refresh(cx.store, cx.clock.now()).await?;
        let compiled = compiled(
            Arc::clone(&endpoints.policies.logins),
            cx.seal,
            &document,
            &endpoint,
        )?;
        if let Some(policy) = compiled.filter(|policy| policy.secret_right().is_some()) {
            let all = cx.store.all(VaultSecret::KIND).await?;
            misuses = misuses_of(&policy, &document, &endpoint, &all, &uses.table);
        }
        for host in policy.forward_hosts(cx.seal, &document.head.id)? {
            let referrer = Referrer {
                owner_id: endpoint.principal_id.as_str(),
                id: &document.head.id,
            };
            let meant = policy.forwards_to.get(&host).map(String::as_str);
            let message = forward_problem(&cx, referrer, &uses.table, (&host, meant)).await?;
            problems.extend(message.map(|message| ProblemView {
                code: Problem::InternalForbidden.code(),
                message,
            }));
        }
    }
    let in_grace = cx.clock.now() < endpoints.secret_echo_until;
    let state = match misuses.is_empty() {
        true if problems.is_empty() => "ok",
        true => "warning",
        false if Misuse::refuse(&misuses, in_grace) => "refused",
        false => "warning",
    };
    let problem = |misuse: &Misuse| ProblemView {
        code: text(code::POLICY_SECRET_REFUSED),
        message: misuse.sentence(),
    };
    problems.extend(misuses.iter().map(problem));
    Ok(Reply::Ok(stored::write(&View { state, problems })?))
}

/// The compiled policy of an endpoint; `None` if it has none.
fn compiled(
    logins: Arc<Logins>,
    seal: &Seal,
    document: &Document,
    endpoint: &Endpoint,
) -> Result<Option<Arc<Policy>>, Fault> {
    let Some(policy) = &endpoint.policy else {
        return Ok(None);
    };
    let has_upstream = endpoint.upstream.is_some() || endpoint.served.is_some();
    let owner = endpoint.principal_id.as_str();
    let place = endpoint.address.policy_target(owner, has_upstream);
    let head = (&document.head, owner);
    let compiled = Compiled::new(logins).policy(seal, head, policy, place.scheme, has_upstream)?;
    Ok(Some(compiled))
}

/// What the policy of an endpoint may not do with secrets. `secrets` are those of all accounts.
fn misuses_of(
    policy: &Policy,
    document: &Document,
    endpoint: &Endpoint,
    secrets: &[Document],
    table: &UseTable,
) -> Vec<Misuse> {
    let account = &document.head.account;
    let own = secrets.iter().filter(|one| one.head.account == *account);
    let referrer = Referrer {
        owner_id: endpoint.principal_id.as_str(),
        id: &document.head.id,
    };
    secret_rights::misuses(policy, referrer, &secret_rights::owned(own), table)
}

/// Why the policy of an endpoint may not forward to an internal host now, and what to do; `None` if it may, or if nothing
/// is there. `meant` is the owner that the host had when the policy was written. The same rule as at the edge
/// ([`culvert_edge_config::ForwardRights`]).
async fn forward_problem(
    cx: &Cx<'_>,
    referrer: Referrer<'_>,
    table: &UseTable,
    (host, meant): (&str, Option<&str>),
) -> Result<Option<String>, Error> {
    let account = &cx.caller.account;
    let Some(held) = host::internal(cx.store, account, host).await? else {
        return Ok(None);
    };
    let owner_id = held.owner_id.as_str();
    let is_admins = table.role(owner_id) == Some(Role::Admin);
    if let Some(meant) = meant.filter(|meant| *meant != owner_id && !is_admins) {
        let (meant, now) = (
            shown_owner(cx, meant).await?,
            shown_owner(cx, owner_id).await?,
        );
        return Ok(Some(format!(
            "The policy forwards to `{host}`, which was an endpoint of {meant} when the policy was written and is one of {now} now. Write the policy again if it shall forward there, or remove the action; requests to it get 502 until then."
        )));
    }
    let owner = (!owner_id.is_empty()).then_some(owner_id);
    let is_user = |id: &String| table.is_user(referrer, owner, &[id]);
    let may = held.endpoint_ids.iter().all(is_user)
        || owner.is_some_and(|owner| table.is_user_of_name(referrer, owner, &held.name));
    if may {
        return Ok(None);
    }
    let now = shown_owner(cx, owner_id).await?;
    Ok(Some(format!(
        "The policy forwards to `{host}`, an endpoint of {now} that the owner of this endpoint may not use. Ask for a grant on it; requests to it get 502 until then."
    )))
}

/// An owner as everyone in the account may see it.
async fn shown_owner(cx: &Cx<'_>, owner_id: &str) -> Result<String, Fault> {
    if owner_id.is_empty() {
        return Ok("the admins".to_owned());
    }
    let owner = Owner::load(cx.store, owner_id).await?;
    let owner = owner.filter(|(_, account)| *account == cx.caller.account);
    Ok(match owner {
        Some((owner, _)) => format!("`{}`", owner.subject),
        None => format!("`{owner_id}`, who was deleted"),
    })
}

/// Lists the policies of a stopped or running installation that may not use their secrets, or may echo them. Changes
/// nothing.
///
/// # Errors
///
/// If the database or a policy cannot be read.
pub async fn policy_misuses(
    url: &StoreUrl,
    seal: &Seal,
    now: Timestamp,
) -> Result<Vec<PolicyMisuse>, Fault> {
    let secrets = inspect_documents(url, VaultSecret::KIND).await?;
    let table = UseTable::of_documents(
        &inspect_documents(url, Grant::KIND).await?,
        &inspect_documents(url, User::KIND).await?,
        &inspect_documents(url, BotUser::KIND).await?,
        now,
    );
    // Sign-ins do not run here.
    let (logins, _) = Logins::new(LoginKeys::new([]), LoginSettings::default());
    let mut found = Vec::new();
    for document in inspect_documents(url, Endpoint::KIND).await? {
        let endpoint: Endpoint = stored::read(&document)?;
        let policy = compiled(Arc::clone(&logins), seal, &document, &endpoint)?;
        let Some(policy) = policy.filter(|policy| policy.secret_right().is_some()) else {
            continue;
        };
        for misuse in misuses_of(&policy, &document, &endpoint, &secrets, &table) {
            found.push(PolicyMisuse {
                endpoint_id: document.head.id.clone(),
                url: endpoint.address.url.clone(),
                message: misuse.sentence(),
                is_echo: matches!(misuse, Misuse::Echo { .. }),
            });
        }
    }
    Ok(found)
}

fn text(code: Code) -> String {
    format!("ERR_NGROK_{}", code.number())
}
