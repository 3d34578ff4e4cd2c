//! Carries a plan out: kind by kind, several objects in parallel, with one request for each. A failed object stops those
//! that refer to it, and nothing is deleted after a failure; another run continues.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream;
use http::Method;
use serde_json::{Map, Value};

use super::PARALLEL;
use super::compare::differences;
use super::manifest::Manifest;
use super::plan::{Action, Change, Plan, named_value};
use super::reference::resolve;
use crate::client::Client;

/// The result of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With a note, if the server stored something else than the file says.
    Done(Option<String>),
    Failed(String),
    /// Not tried.
    Skipped(String),
}

/// The results of a run.
#[derive(Debug)]
pub struct Results {
    /// By position of the change.
    pub(super) outcomes: Vec<Outcome>,
}

impl Results {
    /// Number of changes that failed or were not tried.
    pub fn failures(&self) -> usize {
        let is_done = |it: &&Outcome| !matches!(it, Outcome::Done(_));
        self.outcomes.iter().filter(is_done).count()
    }
}

/// The state of a run.
struct Execution<'a> {
    client: &'a Client,
    plan: &'a Plan,
    known: Mutex<HashMap<(&'static str, String), Value>>,
    failed: Mutex<BTreeSet<(&'static str, String)>>,
    /// Old objects that their replacements outlive: position of the change and ID.
    replaced: Mutex<Vec<(usize, String)>>,
}

/// Carries the plan out. `each` is called with each change that has finished.
pub async fn execute(client: &Client, plan: &Plan, mut each: impl FnMut(&str)) -> Results {
    let run = Execution {
        client,
        plan,
        known: Mutex::new(plan.known.clone()),
        failed: Mutex::default(),
        replaced: Mutex::default(),
    };
    let mut outcomes = vec![Outcome::Done(None); plan.changes.len()];
    let is_write = |change: &Change| {
        matches!(
            change.action,
            Action::Create | Action::Update | Action::Replace
        )
    };
    for group in plan.groups() {
        let writes = group.into_iter().filter(|(_, change)| is_write(change));
        let writes: Vec<usize> = writes.map(|(index, _)| index).collect();
        let mut running = stream::iter(writes)
            .map(|index| run.write(index))
            .buffer_unordered(PARALLEL);
        while let Some((index, outcome)) = running.next().await {
            if let Some(change) = plan.changes.get(index) {
                each(&change.said(&outcome));
            }
            if let Some(place) = outcomes.get_mut(index) {
                *place = outcome;
            }
        }
    }
    let is_whole = outcomes.iter().all(|it| matches!(it, Outcome::Done(_)));
    let replaced =
        std::mem::take(&mut *run.replaced.lock().unwrap_or_else(PoisonError::into_inner));
    let deletions = plan
        .changes
        .iter()
        .enumerate()
        .filter(|(_, change)| change.action == Action::Delete);
    let deletions = deletions.filter_map(|(index, change)| Some((index, change.id.clone()?)));
    let mut deletions: VecDeque<(usize, String)> = replaced.into_iter().chain(deletions).collect();
    let mut is_deleting = is_whole;
    let kind_of = |index: &usize| plan.changes.get(*index).map(|it| it.kind.collection);
    // Objects of one kind in parallel; the next kind after them, because objects refer to others of earlier kinds.
    while let Some((first, _)) = deletions.front() {
        let kind = kind_of(first);
        let others = deletions
            .iter()
            .position(|(index, _)| kind_of(index) != kind);
        let group = deletions.drain(..others.unwrap_or(deletions.len()));
        let group: Vec<(usize, String)> = group.collect();
        let run = &run;
        let mut running = stream::iter(group)
            .map(|(index, id)| async move {
                let outcome = match plan.changes.get(index) {
                    Some(change) if is_deleting => run.delete(change, &id).await,
                    _ => Outcome::Skipped("nothing is deleted after a failure".to_owned()),
                };
                (index, outcome)
            })
            .buffer_unordered(PARALLEL);
        let mut is_deleted = true;
        while let Some((index, outcome)) = running.next().await {
            is_deleted &= matches!(outcome, Outcome::Done(_));
            let Some(change) = plan.changes.get(index) else {
                continue;
            };
            if change.action == Action::Delete || outcome != Outcome::Done(None) {
                each(&change.said(&outcome));
                if let Some(place) = outcomes.get_mut(index) {
                    *place = outcome;
                }
            }
        }
        drop(running);
        is_deleting &= is_deleted;
    }
    Results { outcomes }
}

impl Plan {
    /// Changes that may run in parallel: of one kind, and none refers to another.
    fn groups(&self) -> Vec<Vec<(usize, &Change)>> {
        let mut groups: Vec<Vec<(usize, &Change)>> = Vec::new();
        for (index, change) in self.changes.iter().enumerate() {
            let Some(manifest) = change.manifest.and_then(|at| self.manifests.get(at)) else {
                continue;
            };
            let refers = |other: &Change| {
                manifest
                    .references
                    .iter()
                    .any(|it| it.kind == other.kind.collection && it.name == other.name)
            };
            let is_beside = |group: &Vec<(usize, &Change)>| {
                let is_same = group
                    .first()
                    .is_some_and(|(_, other)| other.kind.collection == change.kind.collection);
                let refers_within = manifest
                    .references
                    .iter()
                    .any(|it| it.kind == change.kind.collection);
                is_same && !(refers_within && group.iter().any(|(_, other)| refers(other)))
            };
            match groups.last_mut().filter(|group| is_beside(group)) {
                Some(group) => group.push((index, change)),
                None => groups.push(vec![(index, change)]),
            }
        }
        groups
    }
}

impl Execution<'_> {
    async fn write(&self, index: usize) -> (usize, Outcome) {
        let change = self.plan.changes.get(index);
        let manifest = change.and_then(|change| self.plan.manifests.get(change.manifest?));
        let (Some(change), Some(manifest)) = (change, manifest) else {
            return (index, Outcome::Done(None));
        };
        let key = (change.kind.collection, change.name.clone());
        let outcome = match self.blocked(manifest) {
            Some(why) => Outcome::Skipped(why),
            None => self
                .written(index, change, manifest)
                .await
                .unwrap_or_else(Outcome::Failed),
        };
        if !matches!(outcome, Outcome::Done(_)) {
            lock(&self.failed).insert(key);
        }
        (index, outcome)
    }

    fn blocked(&self, manifest: &Manifest) -> Option<String> {
        let failed = lock(&self.failed);
        let mut references = manifest.references.iter();
        let blocking = references.find(|it| failed.contains(&(it.kind, it.name.clone())))?;
        Some(format!("{}/{} failed", blocking.kind, blocking.name))
    }

    async fn written(
        &self,
        index: usize,
        change: &Change,
        manifest: &Manifest,
    ) -> Result<Outcome, String> {
        let spec = Value::Object(manifest.spec.clone());
        let spec = resolve(&spec, &|it| named_value(&lock(&self.known), it));
        let Some(Value::Object(mut spec)) = spec else {
            return Err("an object that it refers to has no such field".to_owned());
        };
        if let Some(metadata) = &change.metadata {
            spec.insert("metadata".to_owned(), metadata.as_str().into());
        }
        let collection = change.kind.collection;
        let view = match (change.action, &change.id) {
            (Action::Update, Some(id)) => self.update(change, id, &spec).await?,
            (Action::Replace, Some(id)) if change.kind.replaces_first => {
                let view = self.create(manifest, spec.clone()).await?;
                lock(&self.replaced).push((index, id.clone()));
                view
            }
            (Action::Replace, Some(id)) => {
                self.call(Method::DELETE, &format!("/{collection}/{id}"), None)
                    .await?;
                self.create(manifest, spec.clone()).await?
            }
            _ => self.create(manifest, spec.clone()).await?,
        };
        let other = spec
            .iter()
            .filter(|(field, _)| view.get(*field).is_some() && *field != "metadata");
        let other: Vec<String> = other
            .flat_map(|(field, wanted)| differences(field, wanted, &view[field]))
            .map(|difference| format!("`{}`", difference.path))
            .collect();
        lock(&self.known).insert((collection, change.name.clone()), view);
        let note = format!(
            "the server stores another value of {}; the next run will change it again",
            other.join(", ")
        );
        Ok(Outcome::Done((!other.is_empty()).then_some(note)))
    }

    /// Returns the view of the object.
    async fn update(
        &self,
        change: &Change,
        id: &str,
        spec: &Map<String, Value>,
    ) -> Result<Value, String> {
        let path = format!("/{}/{id}", change.kind.collection);
        let changed = spec
            .iter()
            .filter(|(field, _)| change.fields.contains(*field))
            .map(|(field, value)| (field.clone(), value.clone()));
        let (apart, body): (Map<_, _>, Map<_, _>) =
            changed.partition(|(field, _)| change.kind.is_apart(field));
        // Restrictions first: if they are refused, nothing has changed.
        if let Some(kind) = &change.kind.apart
            && !apart.is_empty()
        {
            let path = format!("{path}/{}", kind.name);
            self.call(Method::PATCH, &path, Some(apart)).await?;
        }
        match body.is_empty() {
            true => self.call(Method::GET, &path, None).await,
            false => self.call(Method::PATCH, &path, Some(body)).await,
        }
    }

    async fn create(&self, manifest: &Manifest, spec: Map<String, Value>) -> Result<Value, String> {
        let path = format!("/{}", manifest.kind.collection);
        let token_file = match &manifest.token_file {
            // Before the create: a token that cannot be written is lost.
            Some(path) => Some((path, open_token_file(path)?)),
            None => None,
        };
        let made = self.call(Method::POST, &path, Some(spec)).await;
        if let (Err(_), Some((path, _))) = (&made, &token_file) {
            // The file is empty: if it stays, the next run says that it exists.
            drop(std::fs::remove_file(path));
        }
        let mut view = made?;
        if let Some((path, mut file)) = token_file {
            let token = view["token"].take();
            let token = token.as_str().unwrap_or_default();
            writeln!(file, "{token}")
                .map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        }
        Ok(view)
    }

    async fn delete(&self, change: &Change, id: &str) -> Outcome {
        let path = format!("/{}/{id}", change.kind.collection);
        match self.client.call(Method::DELETE, &path, None).await {
            Ok(answer) if answer.status < 300 || answer.status == 404 => Outcome::Done(None),
            Ok(answer) => Outcome::Failed(answer.refusal()),
            Err(error) => Outcome::Failed(culvert_base::chain(error.as_ref())),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Map<String, Value>>,
    ) -> Result<Value, String> {
        let body = body.map(Value::Object);
        let answer = self.client.call(method, path, body.as_ref()).await;
        let answer = answer.map_err(|error| culvert_base::chain(error.as_ref()))?;
        match answer.status < 300 {
            true => Ok(answer.body),
            false => Err(answer.refusal()),
        }
    }
}

/// A file that only its owner reads.
fn open_token_file(path: &Path) -> Result<std::fs::File, String> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    options
        .open(path)
        .map_err(|error| format!("cannot write the token to `{}`: {error}", path.display()))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
