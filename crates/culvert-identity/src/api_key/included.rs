//! The fields of an API key that clients get only if they ask for them: its restrictions, and its last use.

use std::collections::HashMap;

use culvert_base::Fault;
use culvert_resources::access::owner::Owner;
use culvert_resources::cx::Cx;
use culvert_resources::list::page::{Fields, Part};
use culvert_resources::{Role, stored};
use culvert_store::Document;
use serde_json::{Value, json};

use crate::api_key::key_use::last_uses;
use crate::api_key::model::ApiKey;

/// The groups of `include`.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "restrictions",
        fields: &[
            "owner_name",
            "role",
            "scopes",
            "networks",
            "expires_at",
            "previous_token_expires_at",
            "leaked_at",
        ],
    },
    Part {
        name: "usage",
        fields: &["last_used_at", "last_used_from"],
    },
];

/// All of these fields of each key.
pub(crate) async fn read(cx: &Cx<'_>, documents: &[Document]) -> Result<Vec<Fields>, Fault> {
    let keys = documents.iter().map(stored::read::<ApiKey>);
    let keys: Vec<ApiKey> = keys.collect::<Result<_, _>>()?;
    let names = owner_names(cx, &keys).await?;
    let ids: Vec<&str> = documents.iter().map(|one| one.head.id.as_str()).collect();
    let uses = last_uses(cx, &ids).await?;
    let now = cx.clock.now();
    let fields = |(key, last_use): (&ApiKey, _)| {
        let restrictions = &key.restrictions;
        let (at, from) = Option::unzip(last_use);
        let previous = key.previous.as_ref().map(|previous| previous.until);
        let values = json!({
            "owner_name": names.get(&key.owner_id).cloned().unwrap_or_default(),
            "role": restrictions.role.map_or("", Role::name),
            "scopes": restrictions.scopes,
            "networks": restrictions.networks,
            "expires_at": restrictions.expires_at,
            "previous_token_expires_at": previous.filter(|until| now < *until),
            "leaked_at": key.leak.as_ref().map(|leak| leak.at),
            "last_used_at": at.map(culvert_base::Timestamp::whole_seconds),
            "last_used_from": from.map_or(String::new(), |from: std::net::IpAddr| from.to_string()),
        });
        match values {
            Value::Object(fields) => fields,
            _ => Fields::new(),
        }
    };
    Ok(keys.iter().zip(uses).map(fields).collect())
}

/// The e-mail addresses and names of the owners of these keys, by ID.
async fn owner_names(cx: &Cx<'_>, keys: &[ApiKey]) -> Result<HashMap<String, String>, Fault> {
    let mut ids: Vec<String> = keys.iter().map(|key| key.owner_id.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut names = HashMap::new();
    for document in cx.store.get_many(&ids).await? {
        let owner = Owner::read(&document)?;
        names.insert(document.head.id, owner.subject);
    }
    Ok(names)
}
