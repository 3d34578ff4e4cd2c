//! What a new API key could do: the response to `POST /api_keys?dry_run=true`.

use std::sync::Arc;

use culvert_base::{Refusal, Timestamp, code};
use culvert_resources::access::caller::Caller;
use culvert_resources::access::key_restrictions::Network;
use culvert_resources::access::key_rules::KeyRule;
use culvert_resources::access::owner::Owner;
use culvert_resources::access::right::Scope;
use culvert_resources::cx::Cx;
use culvert_resources::operation::OperationSpec;
use culvert_resources::{Error, Role, stored};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api_key::model::ApiKey;

/// What a new API key could do.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiKeyDryRun")]
pub(crate) struct Preview<'a> {
    /// Owner of the key.
    owner_id: &'a str,
    /// The user's e-mail address, or the bot's name.
    owner_name: &'a str,
    /// The role of the key: the lower one of its owner and its restrictions.
    #[schemars(extend("enum" = ["read_only", "member", "admin"]))]
    role: &'static str,
    /// The scopes of the key.
    scopes: Vec<Scope>,
    /// Networks that the key may be used from; empty for anywhere.
    #[schemars(with = "Vec<String>")]
    networks: &'a [Network],
    /// When the key stops working; null for never.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    expires_at: Option<Timestamp>,
    /// The rules of the account that the key would break, which are only reported.
    broken_rules: &'a [KeyRule],
    /// Operations that the key may call on objects of its owner, by their IDs in the OpenAPI document.
    operations: Vec<String>,
}

/// The preview of a key with this form.
pub(crate) async fn of(key: &ApiKey, cx: &Cx<'_>) -> Result<String, Error> {
    let owner = Owner::load(cx.store, &key.owner_id).await?;
    let (owner, _) = owner.ok_or_else(|| Refusal::of(code::OWNER_UNKNOWN))?;
    let restrictions = &key.restrictions;
    let caller = Caller {
        owner_id: key.owner_id.clone(),
        owner_kind: owner.kind,
        role: owner.role.min(restrictions.role.unwrap_or(Role::Admin)),
        restrictions: (!restrictions.is_none()).then(|| Arc::new(restrictions.clone())),
        ..cx.caller.clone()
    };
    let may = |operation: &&OperationSpec| caller.may(operation.right);
    let operations = (cx.operations)().iter().filter(may);
    Ok(stored::write(&Preview {
        owner_id: &key.owner_id,
        owner_name: &owner.subject,
        role: caller.role.name(),
        scopes: match restrictions.scopes.is_empty() {
            true => Scope::ALL.to_vec(),
            false => restrictions.scopes.iter().collect(),
        },
        networks: &restrictions.networks,
        expires_at: restrictions.expires_at,
        broken_rules: &key.noticed,
        operations: operations.map(OperationSpec::id).collect(),
    })?)
}
