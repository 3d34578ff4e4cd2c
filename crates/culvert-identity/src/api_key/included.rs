//! The fields of an API key that clients get only if they ask for them: its restrictions, and its last use.

use std::collections::HashMap;

use culvert_base::{Fault, Timestamp};
use culvert_resources::access::key_rules::JudgedKey;
use culvert_resources::access::owner::Owner;
use culvert_resources::cx::Cx;
use culvert_resources::list::page::{Fields, Part};
use culvert_resources::{Role, stored};
use culvert_store::Document;
use serde_json::{Value, json};

use crate::api_key::key_use::{KeyUse, LastUse, last_uses};
use crate::api_key::model::ApiKey;
use crate::api_key::rules::current;

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
            "rotated_at",
            "maximum_age_at",
            "broken_rules",
        ],
    },
    Part {
        name: "usage",
        fields: &[
            "last_used_at",
            "last_used_from",
            "token_last_used_at",
            "token_last_used_from",
            "previous_token_last_used_at",
            "previous_token_last_used_from",
        ],
    },
];

/// All of these fields of each key.
pub(crate) async fn read(cx: &Cx<'_>, documents: &[Document]) -> Result<Vec<Fields>, Fault> {
    let keys = documents.iter().map(stored::read::<ApiKey>);
    let keys: Vec<ApiKey> = keys.collect::<Result<_, _>>()?;
    let owners = owners(cx, &keys).await?;
    let (rules, _) = current(cx).await?;
    let ids: Vec<&str> = documents.iter().map(|one| one.head.id.as_str()).collect();
    let uses = last_uses(cx.store, cx.key_uses, &ids).await?;
    let now = cx.clock.now();
    let fields = |((key, document), used): ((&ApiKey, &Document), KeyUse)| {
        let restrictions = &key.restrictions;
        let owner = owners.get(&key.owner_id);
        let issued_at = key.issued_at(&document.head);
        let judged = JudgedKey {
            restrictions,
            issued_at,
            owner_role: owner.map_or(Role::Member, |owner| owner.role),
        };
        let previous = key.valid_previous(now);
        let (at, from) = shown(used.last);
        let (token_at, token_from) = shown(used.of(&key.digest));
        let of_previous = previous.and_then(|previous| used.of(&previous.digest));
        let (previous_at, previous_from) = shown(of_previous);
        let values = json!({
            "owner_name": owner.map_or("", |owner| owner.subject.as_str()),
            "role": restrictions.role.map_or("", Role::name),
            "scopes": restrictions.scopes,
            "networks": restrictions.networks,
            "expires_at": restrictions.expires_at,
            "previous_token_expires_at": previous.map(|previous| previous.until),
            "leaked_at": key.leak.as_ref().map(|leak| leak.at),
            "rotated_at": key.rotated_at,
            "maximum_age_at": rules.old_at(issued_at),
            "broken_rules": rules.broken(judged, now),
            "last_used_at": at,
            "last_used_from": from,
            "token_last_used_at": token_at,
            "token_last_used_from": token_from,
            "previous_token_last_used_at": previous_at,
            "previous_token_last_used_from": previous_from,
        });
        match values {
            Value::Object(fields) => fields,
            _ => Fields::new(),
        }
    };
    Ok(keys.iter().zip(documents).zip(uses).map(fields).collect())
}

/// A last use as it is shown: the time in whole seconds, and the address.
pub(crate) fn shown(used: Option<LastUse>) -> (Option<Timestamp>, String) {
    match used {
        Some((at, from)) => (Some(at.whole_seconds()), from.to_string()),
        None => (None, String::new()),
    }
}

/// The owners of these keys, by ID.
async fn owners(cx: &Cx<'_>, keys: &[ApiKey]) -> Result<HashMap<String, Owner>, Fault> {
    let mut ids: Vec<String> = keys.iter().map(|key| key.owner_id.clone()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut owners = HashMap::new();
    for document in cx.store.get_many(&ids).await? {
        let owner = Owner::read(&document)?;
        owners.insert(document.head.id, owner);
    }
    Ok(owners)
}
