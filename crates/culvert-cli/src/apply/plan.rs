//! Finds the changes that make the server match the files. Only reads.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result, anyhow, bail};
use futures_util::future::try_join_all;
use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use http::Method;
use serde_json::{Map, Value, json};

use super::IDENTITY;
use super::PARALLEL;
use super::compare::{Difference, HIDDEN, UNKNOWN, differences};
use super::kinds::{Identity, KINDS, ManifestKind, kind, shown_reference};
use super::manifest::{Manifest, Selector};
use super::reference::{Reference, resolve};
use crate::client::Client;

/// The changes, in the order of execution.
#[derive(Debug)]
pub struct Plan {
    pub(super) manifests: Vec<Manifest>,
    pub(super) changes: Vec<Change>,
    /// Objects that references name: their views. Those that are created or replaced are added by the run.
    pub(super) known: HashMap<(&'static str, String), Value>,
}

/// One object's change.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) kind: &'static ManifestKind,
    pub(super) name: String,
    pub(super) action: Action,
    /// Differences as shown: without secrets.
    pub(super) differences: Vec<Difference>,
    /// Position of its manifest; `None` for a deletion.
    pub(super) manifest: Option<usize>,
    /// ID of the existing object.
    pub(super) id: Option<String>,
    /// Why, where the differences do not say it.
    pub(super) why: String,
    /// Fields that an update sends.
    pub(super) fields: BTreeSet<String>,
    /// The merged metadata.
    pub(super) metadata: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Keep,
    Create,
    Update,
    /// Delete and create: a field changed that no update can change.
    Replace,
    Delete,
}

/// An existing object.
struct ExistingObject {
    id: String,
    view: Value,
    labels: BTreeMap<String, String>,
    revision: u64,
}

/// Objects by kind and name, newest first.
type Existing = HashMap<(&'static str, String), Vec<ExistingObject>>;

/// Plans the changes. `prune` also deletes objects that an earlier run made, that have these labels, and that the
/// files no longer have.
///
/// # Errors
/// If the key may not read a kind that the files need, or if an object cannot be found. Nothing was changed.
pub async fn plan(
    client: &Client,
    manifests: Vec<Manifest>,
    prune: Option<&Selector>,
) -> Result<Plan> {
    let mut kinds: BTreeSet<&'static str> = BTreeSet::new();
    for manifest in &manifests {
        kinds.insert(manifest.kind.collection);
        kinds.extend(manifest.references.iter().map(|it| it.kind));
    }
    if prune.is_some() {
        let labelled = KINDS
            .iter()
            .filter(|kind| kind.identity == Identity::Metadata);
        kinds.extend(labelled.map(|kind| kind.collection));
    }
    let listed = kinds
        .iter()
        .filter_map(|name| kind(name))
        .map(|kind| list(client, kind));
    let mut existing = Existing::new();
    for found in try_join_all(listed).await? {
        existing.extend(found);
    }
    adopt(client, &manifests, &mut existing).await?;
    read_policies(client, &manifests, &mut existing).await?;

    let mut known: HashMap<(&'static str, String), Value> = HashMap::new();
    for (key, found) in &existing {
        if let Some(live) = found.first() {
            known.insert(key.clone(), live.view.clone());
        }
    }
    let mut plan = Plan {
        manifests,
        changes: Vec::new(),
        known,
    };
    let mut wanted: HashSet<(&'static str, String)> = HashSet::new();
    for index in order(&plan.manifests)? {
        let Some(manifest) = plan.manifests.get(index) else {
            continue;
        };
        let key = (manifest.kind.collection, manifest.name.clone());
        let mut found = existing.remove(&key).unwrap_or_default().into_iter();
        let change = plan.change(index, manifest, found.next())?;
        if matches!(change.action, Action::Create | Action::Replace) {
            plan.known.remove(&key);
        }
        plan.changes.push(change);
        // An interrupted replacement left them.
        let left = found.map(|live| {
            Change::delete(key.0, &key.1, live.id, "an interrupted replacement left it")
        });
        plan.changes.extend(left.flatten());
        wanted.insert(key);
    }
    if let Some(selector) = prune {
        let mut gone = Vec::new();
        for ((kind, name), found) in existing {
            for live in found
                .into_iter()
                .filter(|live| selector.selects(&live.labels))
            {
                gone.extend(Change::delete(kind, &name, live.id, "no file has it"));
            }
        }
        // Newest kinds first: objects that refer to others go before them.
        gone.sort_by(|a, b| (b.kind.rank(), &a.name).cmp(&(a.kind.rank(), &b.name)));
        plan.changes.extend(gone);
    }
    Ok(plan)
}

/// All objects of a kind that have a name.
async fn list(client: &Client, kind: &'static ManifestKind) -> Result<Existing> {
    let mut found = Existing::new();
    let mut next = Some(format!("/{}?limit=100&{}", kind.collection, kind.include()));
    while let Some(path) = next {
        let page = client.expect(Method::GET, &path, None).await;
        let mut page = page.with_context(|| format!("reading {}", kind.collection))?;
        next = page["next_page_uri"].as_str().map(str::to_owned);
        let Some(Value::Array(items)) = page.get_mut(&kind.list_field).map(Value::take) else {
            bail!(
                "the list of {} has no `{}`",
                kind.collection,
                kind.list_field
            );
        };
        for view in items {
            if let Some((name, live)) = ExistingObject::read(kind, view) {
                found.entry((kind.collection, name)).or_default().push(live);
            }
        }
    }
    Ok(found)
}

impl ExistingObject {
    /// The name of an object, if it has one, with the object.
    fn read(kind: &ManifestKind, view: Value) -> Option<(String, Self)> {
        let id = view["id"].as_str()?.to_owned();
        if let Identity::Field(field) = kind.identity {
            let name = view[field].as_str()?.to_owned();
            return Some((
                name,
                Self {
                    id,
                    view,
                    labels: BTreeMap::new(),
                    revision: 0,
                },
            ));
        }
        let metadata: Value = serde_json::from_str(view["metadata"].as_str()?).ok()?;
        let identity = &metadata[IDENTITY];
        let name = identity["name"].as_str()?.to_owned();
        let labels = identity["labels"].as_object().into_iter().flatten();
        let labels =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let (labels, revision) = (labels.collect(), identity["revision"].as_u64().unwrap_or(0));
        Some((
            name,
            Self {
                id,
                view,
                labels,
                revision,
            },
        ))
    }
}

/// Finds the objects that manifests name by ID and that have no name yet.
async fn adopt(client: &Client, manifests: &[Manifest], existing: &mut Existing) -> Result<()> {
    let mut missing = Vec::new();
    for manifest in manifests {
        let key = (manifest.kind.collection, manifest.name.clone());
        if let Some(id) = &manifest.id
            && !existing.contains_key(&key)
        {
            let encoded: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
            let path = format!("/{}/{encoded}?{}", key.0, manifest.kind.include());
            let doing = format!("{}: reading `{id}`", manifest.place);
            let id = id.clone();
            missing.push(async move {
                let view = client.expect(Method::GET, &path, None).await;
                let live = ExistingObject {
                    id,
                    view: view.context(doing)?,
                    labels: BTreeMap::new(),
                    revision: 0,
                };
                anyhow::Ok((key, live))
            });
        }
    }
    let mut reading = stream::iter(missing).buffer_unordered(PARALLEL);
    while let Some((key, live)) = reading.try_next().await? {
        existing.insert(key, vec![live]);
    }
    Ok(())
}

/// Reads the policies whose secrets lists do not show.
async fn read_policies(
    client: &Client,
    manifests: &[Manifest],
    existing: &mut Existing,
) -> Result<()> {
    let mut hidden = Vec::new();
    for manifest in manifests
        .iter()
        .filter(|it| it.spec.contains_key("traffic_policy"))
    {
        let key = (manifest.kind.collection, manifest.name.clone());
        let live = existing.get(&key).and_then(|found| found.first());
        if let Some(live) = live
            && live.view["traffic_policy"]
                .as_str()
                .is_some_and(|text| text.contains("[redacted]"))
        {
            let path = format!("/{}/{}", key.0, live.id);
            hidden.push(async move {
                let view = client.expect(Method::GET, &path, None).await?;
                anyhow::Ok((key, view))
            });
        }
    }
    let mut reading = stream::iter(hidden).buffer_unordered(PARALLEL);
    while let Some((key, view)) = reading.try_next().await? {
        if let Some(live) = existing.get_mut(&key).and_then(|found| found.first_mut()) {
            live.view = view;
        }
    }
    Ok(())
}

/// The manifests in the order of creation.
fn order(manifests: &[Manifest]) -> Result<Vec<usize>> {
    let at: HashMap<(&str, &str), usize> = manifests
        .iter()
        .enumerate()
        .map(|(index, it)| ((it.kind.collection, it.name.as_str()), index))
        .collect();
    /// Length of the longest chain of references; `None` while it is being found.
    fn depth(
        index: usize,
        manifests: &[Manifest],
        at: &HashMap<(&str, &str), usize>,
        depths: &mut HashMap<usize, Option<usize>>,
    ) -> Result<usize> {
        let Some(manifest) = manifests.get(index) else {
            return Ok(0);
        };
        match depths.get(&index) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => bail!("{}: objects refer to each other in a cycle", manifest.place),
            None => depths.insert(index, None),
        };
        let mut deepest = 0;
        for reference in manifest
            .references
            .iter()
            .filter(|it| it.kind == manifest.kind.collection)
        {
            if let Some(other) = at.get(&(reference.kind, reference.name.as_str())) {
                deepest = deepest.max(1 + depth(*other, manifests, at, depths)?);
            }
        }
        depths.insert(index, Some(deepest));
        Ok(deepest)
    }
    let mut depths = HashMap::new();
    let mut keyed = Vec::new();
    for (index, manifest) in manifests.iter().enumerate() {
        keyed.push((
            manifest.kind.rank(),
            depth(index, manifests, &at, &mut depths)?,
            index,
        ));
    }
    keyed.sort_unstable();
    Ok(keyed.into_iter().map(|(.., index)| index).collect())
}

impl Plan {
    /// Whether the server matches the files.
    pub fn is_empty(&self) -> bool {
        self.changes
            .iter()
            .all(|change| change.action == Action::Keep)
    }

    /// What a reference names, if it exists already.
    pub(super) fn named_value(&self, reference: &Reference) -> Option<String> {
        named_value(&self.known, reference)
    }

    fn change(
        &self,
        index: usize,
        manifest: &Manifest,
        live: Option<ExistingObject>,
    ) -> Result<Change> {
        for reference in &manifest.references {
            let is_same =
                |it: &Manifest| it.kind.collection == reference.kind && it.name == reference.name;
            let is_known = self
                .known
                .contains_key(&(reference.kind, reference.name.clone()));
            if !is_known && !self.manifests.iter().any(is_same) {
                bail!(
                    "{}: {}/{} is in no file and not on the server",
                    manifest.place,
                    reference.kind,
                    reference.name
                );
            }
        }
        let kind = manifest.kind;
        let mut change = Change {
            kind,
            name: manifest.name.clone(),
            action: Action::Keep,
            differences: Vec::new(),
            manifest: Some(index),
            id: live.as_ref().map(|live| live.id.clone()),
            why: String::new(),
            fields: BTreeSet::new(),
            metadata: None,
        };
        let metadata = manifest
            .metadata()
            .map_err(|why| anyhow!("{}: {why}", manifest.place))?;
        let Some(live) = live else {
            change.action = Action::Create;
            change.metadata = manifest.identity(metadata, None)?;
            for (field, wanted) in &manifest.spec {
                let after =
                    resolve(wanted, &|it| self.named_value(it)).unwrap_or_else(|| UNKNOWN.into());
                change.differ(
                    manifest,
                    field,
                    vec![Difference {
                        path: field.clone(),
                        before: Value::Null,
                        after,
                    }],
                );
            }
            return Ok(change);
        };
        let is_raised = manifest.revision != live.revision;
        for (field, wanted) in &manifest.spec {
            if field == "metadata" {
                continue;
            }
            let is_hidden = kind.hides(field) || field == "target";
            if is_hidden && is_raised {
                change.fields.insert(field.clone());
            }
            if kind.hides(field) {
                continue;
            }
            let found = match resolve(wanted, &|it| self.named_value(it)) {
                Some(wanted) => differences(field, &wanted, &shown(kind, field, &live.view)),
                None => vec![Difference {
                    path: field.clone(),
                    before: shown(kind, field, &live.view),
                    after: UNKNOWN.into(),
                }],
            };
            if !found.is_empty() {
                change.fields.insert(field.clone());
                change.differ(manifest, field, found);
            }
        }
        let before = live.view["metadata"].as_str().unwrap_or_default();
        let merged = manifest.identity(metadata, Some(before))?;
        if merged
            .as_deref()
            .is_some_and(|merged| !is_same_json(merged, before))
        {
            change.fields.insert("metadata".to_owned());
            let (before, after) = (json!(before), json!(merged));
            change.differ(
                manifest,
                "metadata",
                vec![Difference {
                    path: "metadata".to_owned(),
                    before,
                    after,
                }],
            );
        }
        change.metadata = merged;
        let fixed: Vec<&str> = change
            .fields
            .iter()
            .filter(|it| !kind.may_update(it))
            .map(String::as_str)
            .collect();
        change.action = match (change.fields.is_empty(), fixed.is_empty()) {
            (true, _) => Action::Keep,
            (false, true) => Action::Update,
            (false, false) => Action::Replace,
        };
        if !fixed.is_empty() {
            change.why = format!("`{}` cannot be changed", fixed.join("`, `"));
        } else if is_raised {
            change.why = format!("revision {} → {}", live.revision, manifest.revision);
        }
        Ok(change)
    }
}

/// The field of a known object that a reference names.
pub(super) fn named_value(
    known: &HashMap<(&'static str, String), Value>,
    reference: &Reference,
) -> Option<String> {
    // Policies have secrets, which must not reach a field that others read.
    if reference.field == "traffic_policy" {
        return None;
    }
    let view = known.get(&(reference.kind, reference.name.clone()))?;
    match view.get(&reference.field)? {
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

/// The value of a create field in a view.
fn shown(kind: &ManifestKind, field: &str, view: &Value) -> Value {
    let Some(name) = shown_reference(kind, field).filter(|_| !kind.view.contains(field)) else {
        return view[field].clone();
    };
    match &view[&name] {
        Value::Array(items) => items.iter().map(|item| item["id"].clone()).collect(),
        Value::Object(item) => item.get("id").cloned().unwrap_or_default(),
        _ => Value::Null,
    }
}

fn is_same_json(a: &str, b: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    a == b || (read(a).is_some() && read(a) == read(b))
}

impl Manifest {
    /// The metadata with the name of the object: that of the file, or else that which the object has. `None` for an
    /// object without metadata.
    fn identity(&self, own: Map<String, Value>, before: Option<&str>) -> Result<Option<String>> {
        if self.kind.identity != Identity::Metadata {
            return Ok(None);
        }
        let mut metadata = own;
        if let Some(before) =
            before.filter(|text| !self.spec.contains_key("metadata") && !text.is_empty())
        {
            metadata = serde_json::from_str(before).map_err(|_| {
                anyhow!("{}: the metadata of the object is not a JSON object; set `metadata` to replace it", self.place)
            })?;
        }
        let mut identity = Map::new();
        identity.insert("name".to_owned(), self.name.as_str().into());
        if !self.labels.is_empty() {
            identity.insert("labels".to_owned(), json!(self.labels));
        }
        if self.revision != 0 {
            identity.insert("revision".to_owned(), self.revision.into());
        }
        metadata.insert(IDENTITY.to_owned(), Value::Object(identity));
        Ok(Some(Value::Object(metadata).to_string()))
    }
}

impl Change {
    fn delete(kind: &'static str, name: &str, id: String, why: &str) -> Option<Self> {
        Some(Self {
            kind: super::kinds::kind(kind)?,
            name: name.to_owned(),
            action: Action::Delete,
            differences: Vec::new(),
            manifest: None,
            id: Some(id),
            why: why.to_owned(),
            fields: BTreeSet::new(),
            metadata: None,
        })
    }

    /// Adds differences of a field in a form that shows no secret.
    fn differ(&mut self, manifest: &Manifest, field: &str, found: Vec<Difference>) {
        let is_hidden = self.kind.hides(field) || manifest.from_files.contains(field);
        for mut difference in found {
            if is_hidden {
                (difference.before, difference.after) = (hidden(&difference.before), HIDDEN.into());
            } else if field == "target" {
                let is_new = matches!(difference.before, Value::Null | Value::Object(_));
                if is_new && difference.after != UNKNOWN {
                    difference.after = HIDDEN.into();
                }
            } else if field == "traffic_policy" {
                difference.before = policy_text(&difference.before);
                difference.after = policy_text(&difference.after);
            }
            let mut has_secret = false;
            for secret in &manifest.secrets {
                // In JSON text, the secret is escaped.
                let escaped = Value::String(secret.clone()).to_string();
                for form in [secret.as_str(), escaped.trim_matches('"')] {
                    mask(&mut difference.before, form);
                    has_secret |= mask(&mut difference.after, form);
                }
            }
            if has_secret {
                // The value before may have an older secret.
                difference.before = hidden(&difference.before);
            }
            self.differences.push(difference);
        }
    }
}

fn hidden(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        _ => HIDDEN.into(),
    }
}

/// A policy without its secrets.
fn policy_text(policy: &Value) -> Value {
    let text = match policy {
        Value::String(text) => text.clone(),
        Value::Null => return Value::Null,
        other => other.to_string(),
    };
    if text == UNKNOWN || text.is_empty() {
        return text.into();
    }
    match culvert_policy::Source::read(&text, culvert_edge_config::ACTIONS) {
        // The server reports the error, if it is one.
        Ok(source) if !source.has_known_secrets() => HIDDEN.into(),
        Ok(source) => {
            let text = source.redacted().unwrap_or(text);
            // Policies from mappings are JSON on one line.
            let json = serde_json::from_str::<Value>(&text);
            json.map_or(text, |value| format!("{value:#}")).into()
        }
        // The server reports the error.
        Err(_) => HIDDEN.into(),
    }
}

/// Hides a secret in all texts. Returns whether it was in one.
fn mask(value: &mut Value, secret: &str) -> bool {
    let any = |found: bool, value: &mut Value| mask(value, secret) || found;
    match value {
        Value::String(text) if text.contains(secret) => {
            *text = text.replace(secret, HIDDEN);
            true
        }
        Value::Array(items) => items.iter_mut().fold(false, any),
        Value::Object(entries) => entries.values_mut().fold(false, any),
        _ => false,
    }
}
