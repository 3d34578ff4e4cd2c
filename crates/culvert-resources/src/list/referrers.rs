//! What refers to an object: the reason for which it cannot be deleted, and what its deletion takes along.
//!
//! It names only objects that the caller may list. That there are others is said, but not how many and which.

use culvert_base::{Fault, Refusal, id};
use culvert_store::{Document, OnDelete, PageQuery};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::access;
use crate::cx::Cx;
use crate::list::search::NAMES;
use crate::resource::ResourceType;

/// Objects of one resource that are named.
const OF_RESOURCE_MAX: usize = 20;
/// Objects of one resource that are read: the caller may not see some of them.
const LOOKED_AT_MAX: u32 = 200;

/// What refers to an object.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Referrers")]
pub struct Referrers {
    /// The objects that the caller may list, by collection, newest first, at most 20 of each.
    pub referrers: Vec<ReferrerView>,
    /// Whether there are others: more of a collection, or objects that the caller may not see.
    pub has_others: bool,
    /// Whether one of all these keeps the object from being deleted.
    pub blocks: bool,
    /// URI of this list, without its query.
    pub uri: String,
}

/// An object that refers to another.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Referrer")]
pub struct ReferrerView {
    /// Kind of the object, such as `endpoint`.
    kind: &'static str,
    /// Its collection, as in paths: `endpoints`.
    collection: &'static str,
    /// ID of the object.
    id: String,
    /// Its name, or its domain, address or e-mail address if it has none; empty if it has none of these.
    name: String,
    /// `block`: the other object cannot be deleted before. `cascade`: this object is deleted with it. `detach`: this object
    /// stays, without the reference.
    #[schemars(extend("enum" = ["block", "cascade", "detach"]))]
    on_delete: &'static str,
}

/// What refers to the object with this ID. `listed` are the resources whose objects the caller may list.
///
/// # Errors
///
/// The caller does not see the object (404) or may not change it (403), or the store fails.
pub async fn referrers(
    cx: &Cx<'_>,
    object_id: &str,
    listed: impl Fn(&ResourceType) -> bool,
    uri: String,
) -> Result<Referrers, Error> {
    let prefix = id::split(object_id).map_or("", |(prefix, _)| prefix);
    let mut types = cx.resources.iter().copied();
    let ty = types.find(|ty| ty.id_prefix == prefix);
    let ty = ty.ok_or_else(Refusal::not_found)?;
    let document = cx.own(ty.kind, object_id).await?;
    let document = document.ok_or_else(Refusal::not_found)?;
    if !ty.is_seen_by(cx.caller, &document)? {
        return Err(Refusal::not_found().into());
    }
    // Who may not delete it learns nothing of its use.
    access::may_change(cx, ty, &document).await?;
    let mut found = Referrers {
        uri,
        ..Referrers::default()
    };
    let mut kinds: Vec<&str> = Vec::new();
    for ty in cx.resources.iter().copied() {
        // Two resources may show one kind.
        if kinds.contains(&ty.kind) {
            continue;
        }
        kinds.push(ty.kind);
        let query = PageQuery {
            kind: ty.kind.to_owned(),
            account: document.head.account.clone(),
            before: None,
            limit: LOOKED_AT_MAX,
            refs_to: Some(object_id.to_owned()),
        };
        let is_listed = listed(ty);
        let mut named = 0;
        for referrer in cx.store.page(&query).await? {
            let on_delete = strongest(&referrer, object_id);
            found.blocks |= on_delete == OnDelete::Block;
            if !is_listed || named >= OF_RESOURCE_MAX || !ty.is_seen_by(cx.caller, &referrer)? {
                found.has_others = true;
                continue;
            }
            named += 1;
            found.referrers.push(view(cx, ty, &referrer, on_delete)?);
        }
    }
    Ok(found)
}

/// The effect of an object's references to another on the removal of that one.
fn strongest(referrer: &Document, to: &str) -> OnDelete {
    let effects = || referrer.refs.iter().filter(|one| one.to == to);
    let has = |effect| effects().any(|one| one.on_delete == effect);
    [OnDelete::Block, OnDelete::Cascade]
        .into_iter()
        .find(|effect| has(*effect))
        .unwrap_or(OnDelete::Detach)
}

fn view(
    cx: &Cx<'_>,
    ty: &'static ResourceType,
    document: &Document,
    on_delete: OnDelete,
) -> Result<ReferrerView, Fault> {
    let shown = ty.view_text(document, cx.base)?;
    let shown: Value = serde_json::from_str(&shown)
        .map_err(|error| Fault::new(format!("reading {}", document.head.id), error))?;
    let texts = NAMES.iter().chain(&["url"]);
    let mut texts = texts.filter_map(|field| shown.get(field)?.as_str());
    Ok(ReferrerView {
        kind: ty.name,
        collection: ty.collection,
        id: document.head.id.clone(),
        name: texts
            .find(|text| !text.is_empty())
            .unwrap_or_default()
            .to_owned(),
        on_delete: match on_delete {
            OnDelete::Block => "block",
            OnDelete::Cascade => "cascade",
            OnDelete::Detach => "detach",
        },
    })
}
