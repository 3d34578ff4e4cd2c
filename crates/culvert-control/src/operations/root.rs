//! `GET /` and `GET /self`: the collections, and the caller (contract: management API 1.16).

use std::collections::BTreeMap;

use culvert_base::{Fault, Refusal, Timestamp};
use culvert_identity::api_key;
use culvert_identity::api_key::model::ApiKey;
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::right::{Right, Scope};
use culvert_resources::access::tenant::Account;
use culvert_resources::audit::trace::Trace;
use culvert_resources::operation::{
    Call, Handler, Method, Operation, Reply, ResponseSpec, Run, SchemaOf, Status,
};
use culvert_resources::resource::model::Model;
use culvert_resources::stored;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Error;
use crate::control::Control;
use crate::operations::resources;

/// The version of the API.
const API_VERSION: u32 = 2;

pub(crate) fn operations() -> [Operation<Control>; 2] {
    let operation =
        |name, path: &str, doc: &str, schema: SchemaOf, run: Handler<Control>| Operation {
            name,
            collection: "",
            method: Method::Get,
            path: path.to_owned(),
            doc: doc.to_owned(),
            body: None,
            response: ResponseSpec {
                status: Status::Ok,
                schema: Some(schema),
            },
            query: &[],
            right: Right::ANY,
            object: None,
            hides: None,
            preview: None,
            trace: Trace::Nothing,
            run: Run::new(run),
        };
    [
        operation(
            "root",
            "/",
            "Lists the collections of the API.",
            SchemaGenerator::subschema_for::<Root>,
            |_, call| Box::pin(async move { root(&call) }),
        ),
        operation(
            "self",
            "/self",
            "Gets the API key, account and owner of the request, and what the caller may do.",
            SchemaGenerator::subschema_for::<Oneself<'static>>,
            |control, call| Box::pin(oneself(control, call)),
        ),
    ]
}

/// The API root.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Root")]
struct Root {
    uri: String,
    /// URL of each collection by name.
    subresource_uris: BTreeMap<&'static str, String>,
}

fn root(call: &Call) -> Result<Reply, Error> {
    let base = &call.base;
    let collections = resources::ALL.iter().map(|ty| ty.collection);
    Ok(Reply::Ok(stored::write(&Root {
        uri: format!("{base}/"),
        subresource_uris: collections
            .map(|collection| (collection, format!("{base}/{collection}")))
            .collect(),
    })?))
}

/// The caller.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Self")]
struct Oneself<'a> {
    /// The API key; null for a person who signed in to the console without one.
    #[schemars(with = "Option<culvert_identity::api_key::model::View<'static>>")]
    api_key: Option<&'a RawValue>,
    account: AccountView<'a>,
    /// The user's e-mail address, or the bot's name.
    user: &'a str,
    /// ID of the user or bot.
    owner_id: &'a str,
    /// The role of the caller: the lower one of its owner and its key.
    #[schemars(extend("enum" = ["read_only", "member", "admin"]))]
    role: &'static str,
    /// The scopes of the caller's key.
    scopes: Vec<Scope>,
    /// When the caller's key stops working; null for never.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    expires_at: Option<Timestamp>,
    /// Operations that the caller may call on its own objects, by their IDs in the OpenAPI document.
    operations: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Account")]
struct AccountView<'a> {
    id: &'a str,
    name: &'a str,
    #[schemars(with = "String", extend("format" = "date-time"))]
    created_at: Timestamp,
    suspended: bool,
    enforce_sso: bool,
    min_api_version: u32,
    /// Always empty; the server rejects no agent version.
    min_agent_version: &'static str,
    user_mfa_required: bool,
    traffic_full_capture: bool,
}

/// The scopes of a key with these restrictions.
fn scopes(restrictions: &KeyRestrictions) -> Vec<Scope> {
    match restrictions.scopes.is_empty() {
        true => Scope::ALL.to_vec(),
        false => restrictions.scopes.iter().collect(),
    }
}

async fn oneself(control: &Control, call: Call) -> Result<Reply, Error> {
    let cx = control.kernel.cx(&call.caller, &call.base);
    let key = match call.caller.key_id.as_str() {
        "" => None,
        // Authentication found the key, but it may have been deleted since.
        id => Some(
            cx.own(ApiKey::KIND, id)
                .await?
                .ok_or_else(Refusal::not_found)?,
        ),
    };
    let account = cx.own(Account::KIND, &call.caller.account).await?;
    let document = account.ok_or_else(Refusal::not_found)?;
    let view = match &key {
        Some(key) => Some(api_key::TYPE.view_text(key, cx.base)?),
        None => None,
    };
    let account: Account = stored::read(&document)?;
    let restrictions = call.caller.restrictions();
    let operations = crate::operations().iter();
    Ok(Reply::Ok(stored::write(&Oneself {
        api_key: view
            .as_deref()
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| Fault::new("reading the view of a key", error))?,
        account: AccountView {
            id: &document.head.id,
            name: &account.name,
            created_at: document.head.created_at,
            suspended: account.suspended,
            enforce_sso: false,
            min_api_version: API_VERSION,
            min_agent_version: "",
            user_mfa_required: false,
            traffic_full_capture: false,
        },
        user: &call.caller.subject,
        owner_id: &call.caller.owner_id,
        role: call.caller.role.name(),
        scopes: scopes(&restrictions),
        expires_at: restrictions.expires_at,
        operations: operations
            .filter(|operation| call.caller.may(operation.right))
            .map(Operation::id)
            .collect(),
    })?))
}
