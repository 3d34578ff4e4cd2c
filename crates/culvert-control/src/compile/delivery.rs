//! The table of delivery: subscriptions, destinations and replays.

use std::collections::BTreeSet;
use std::sync::Arc;

use culvert_base::Fault;
use culvert_delivery::{Destination, Source, Subscription, TableChange};
use culvert_event_config::destination::model::EventDestination;
use culvert_event_config::subscription::model::EventSubscription;
use culvert_event_config::{destination, event_kinds, replay};
use culvert_events::{Filter, Selection};
use culvert_resources::access::Referrer;
use culvert_resources::stored;
use culvert_store::{Document, Revision};
use culvert_target::{DestinationIds, formatted, unopened};
use tracing::error;

use super::state::{CompileState, Subscribed};
use crate::control::Control;

impl Control {
    pub(super) async fn compile_delivery(&self, state: &mut CompileState) -> Result<(), Fault> {
        // All that is read below includes at least this revision.
        let revision = *self.kernel.store.watch().borrow();
        self.read_delivery(state).await?;
        if let Some(change) = self.delivery_change(state) {
            self.events.delivery.apply(change);
        }
        self.events.delivery.has_rights_of(revision);
        Ok(())
    }

    /// Reads and compiles what has changed. It stays due while passes fail.
    async fn read_delivery(&self, state: &mut CompileState) -> Result<(), Fault> {
        let due = &mut state.due_for_delivery;
        let read = |document: Document| {
            subscribed(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "subscription skipped");
                Subscribed::default()
            })
        };
        let changes = state
            .subscriptions
            .refresh(&self.kernel.store, read)
            .await?;
        due.subscriptions
            .extend(changes.into_iter().map(|(id, _)| id));
        // Few commits change what owners may receive and use.
        let changed = state
            .uses
            .refresh(&self.kernel.store, self.kernel.clock.now())
            .await?;
        if !changed.is_empty() {
            let is_concerned = |one: &Subscribed| {
                let mut named = one.destination_ids.iter();
                changed.owners.contains(&one.owner_id)
                    || named.any(|id| changed.objects.contains(id))
            };
            let concerned = state.subscriptions.iter();
            let concerned = concerned.filter(|(_, one)| is_concerned(one));
            due.subscriptions
                .extend(concerned.map(|(id, _)| id.clone()));
            due.replays |= !changed.owners.is_empty();
        }
        let changes = state
            .destinations
            .refresh(&self.kernel.store, |document| document);
        let changes = changes.await?;
        for (id, before) in changes {
            // The owner of a destination decides who may use it. It never changes, except when it is recovered.
            let owner = |document: &Document| destination::TYPE.owner_of(document).ok();
            let now = state.destinations.get(&id);
            if before.is_some_and(|before| owner(&before) != now.and_then(owner)) {
                let naming = state.subscriptions.iter();
                let naming = naming.filter(|(_, one)| one.destination_ids.contains(&id));
                due.subscriptions.extend(naming.map(|(id, _)| id.clone()));
            }
            due.destinations.insert(id);
        }
        let read = |document: Document| {
            let compiled = replay::compile(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "replay skipped");
            compiled.inspect_err(report).ok()
        };
        let changes = state.replays.refresh(&self.kernel.store, read).await?;
        due.replays |= !changes.is_empty();
        Ok(())
    }

    /// The change that is due, if any.
    fn delivery_change(&self, state: &mut CompileState) -> Option<TableChange> {
        let due = std::mem::take(&mut state.due_for_delivery);
        let is_first = !std::mem::replace(&mut state.has_delivery, true);
        let is_due = is_first
            || due.replays
            || !due.subscriptions.is_empty()
            || !due.destinations.is_empty();
        if !is_due {
            return None;
        }
        let mut change = TableChange::default();
        if is_first {
            let private = event_kinds::names().filter(|kind| event_kinds::is_private(kind));
            change.private_kinds = Some(private.collect());
        }
        // A bot is never an admin. Documents stored without an owner wait for an admin.
        let is_entitled = |owner_id: &str| state.uses.is_active_admin(owner_id);
        for id in due.subscriptions {
            let subscription = state.subscriptions.get(&id).map(|one| {
                let barred = barred(state, &id, one);
                Subscription {
                    sources: one
                        .sources
                        .iter()
                        .map(|source| without(source, &barred))
                        .collect(),
                    is_entitled: is_entitled(&one.owner_id),
                    barred,
                }
            });
            change.subscriptions.insert(id, subscription);
        }
        if due.replays {
            let replays = state.replays.values().flatten();
            let replays = replays.map(|(replay, owner_id)| (replay.clone(), is_entitled(owner_id)));
            change.replays = Some(replays.collect());
        }
        for id in due.destinations {
            let document = state.destinations.get(&id);
            // The target of an unchanged destination stays open.
            let epoch = state.destinations.epoch();
            let revision = document.map(|document| Revision {
                epoch,
                number: document.head.revision,
            });
            if revision.is_some() && state.opened.get(&id) == revision.as_ref() {
                continue;
            }
            state.opened.remove(&id);
            let opened = document.map(|document| self.open_destination(document));
            if let (Some(revision), Some(Ok(_))) = (revision, &opened) {
                state.opened.insert(id.clone(), revision);
            }
            let destination = opened.map(|opened| match opened {
                Ok(destination) => destination,
                Err((destination, fault)) => {
                    error!(destination.id = %id, cause = %fault.chain(), "a destination does not open");
                    *destination
                }
            });
            change.destinations.insert(id, destination);
        }
        Some(change)
    }

    /// Opens the target of a destination. If that fails, also returns the destination with a target that says so.
    fn open_destination(
        &self,
        document: &Document,
    ) -> Result<Destination, (Box<Destination>, Fault)> {
        const UNREADABLE: &str = "this version cannot read the stored settings";
        let head = &document.head;
        let with = |target| Destination {
            id: head.id.clone(),
            account: head.account.clone(),
            revision: head.revision,
            target,
        };
        let unreadable = |fault: Fault| {
            let target = unopened(UNREADABLE, None);
            (Box::new(with(target)), fault)
        };
        let destination: EventDestination = stored::read(document).map_err(unreadable)?;
        let (ty, configuration) = destination
            .target(self.events.target_types, &self.kernel.seal, head)
            .map_err(unreadable)?;
        let format = destination
            .event_format()
            .ok_or_else(|| unreadable(Fault::bare("its format is unknown")))?;
        let ids = DestinationIds {
            destination: &head.id,
            account: &head.account,
        };
        match (ty.open)(&configuration, self.events.delivery.targets(), ids) {
            Ok(target) => Ok(with(formatted(target, format))),
            Err(refusal) => {
                let target = unopened(&refusal.message, Some(ty));
                let fault = Fault::new("opening its target", refusal);
                Err((Box::new(with(target)), fault))
            }
        }
    }
}

/// The destinations of a subscription that its owner may not use.
fn barred(state: &CompileState, id: &str, subscription: &Subscribed) -> BTreeSet<String> {
    let referrer = Referrer {
        owner_id: &subscription.owner_id,
        id,
    };
    let is_barred = |destination: &&String| {
        // One that does not exist gets nothing anyway.
        let document = state.destinations.get(destination);
        document.is_some_and(|document| {
            let owner = destination::TYPE.owner_of(document).unwrap_or_default();
            let ids = [destination.as_str()];
            !state.uses.table.is_user(referrer, owner.as_deref(), &ids)
        })
    };
    let named = subscription.destination_ids.iter();
    named.filter(is_barred).cloned().collect()
}

/// A source without these destinations.
fn without(source: &Arc<Source>, barred: &BTreeSet<String>) -> Arc<Source> {
    if barred.is_empty() {
        return Arc::clone(source);
    }
    let destinations = source.destinations.iter();
    let destinations = destinations.filter(|id| !barred.contains(*id)).cloned();
    Arc::new(Source {
        subscription: source.subscription.clone(),
        account: Arc::clone(&source.account),
        kind: source.kind,
        selection: source.selection.clone(),
        filter: source.filter.clone(),
        destinations: destinations.collect(),
    })
}

fn subscribed(document: &Document) -> Result<Subscribed, Fault> {
    let subscription: EventSubscription = stored::read(document)?;
    Ok(Subscribed {
        sources: sources(document, &subscription),
        owner_id: subscription.owner_id,
        destination_ids: subscription.destination_ids,
    })
}

/// The traffic sources of a subscription. A source that no longer compiles after an upgrade is logged and
/// captures nothing.
fn sources(document: &Document, subscription: &EventSubscription) -> Vec<Arc<Source>> {
    let head = &document.head;
    let account: Arc<str> = head.account.as_str().into();
    let mut compiled = Vec::new();
    let sources = subscription.sources.iter();
    for (source, kind) in
        sources.flat_map(|source| source.traffic().map(move |kind| (source, kind)))
    {
        let selection = Selection::parse(kind, &source.fields);
        let filter = match source.filter.as_str() {
            "" => Ok(None),
            text => Filter::compile(kind, text).map(|filter| Some(Arc::new(filter))),
        };
        match (selection, filter) {
            (Ok(selection), Ok(filter)) => compiled.push(Arc::new(Source {
                subscription: head.id.clone(),
                account: account.clone(),
                kind,
                selection,
                filter,
                destinations: subscription.destination_ids.clone(),
            })),
            (Err(refusal), _) | (_, Err(refusal)) => error!(
                subscription = head.id,
                source = kind.name,
                cause = %refusal,
                "stored event source failed to compile; it captures no events"
            ),
        }
    }
    compiled
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use culvert_resources::access::caller::Role;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::Rig;

    /// What delivery was told so far.
    #[derive(Debug, Default, PartialEq)]
    struct Known {
        /// With their revisions.
        destinations: BTreeMap<String, i64>,
        /// The destinations of each source, and whether the subscription is entitled.
        subscriptions: BTreeMap<String, (Vec<Vec<String>>, bool)>,
        replays: Vec<(String, bool)>,
    }

    impl Known {
        fn learn(&mut self, change: TableChange) {
            for (id, one) in change.destinations {
                self.destinations.remove(&id);
                self.destinations.extend(one.map(|one| (id, one.revision)));
            }
            for (id, one) in change.subscriptions {
                self.subscriptions.remove(&id);
                let of = |source: &Arc<Source>| source.destinations.clone();
                let one = one.map(|one| (one.sources.iter().map(of).collect(), one.is_entitled));
                self.subscriptions.extend(one.map(|one| (id, one)));
            }
            if let Some(replays) = change.replays {
                let named = replays.into_iter();
                self.replays = named
                    .map(|(one, is_entitled)| (one.id, is_entitled))
                    .collect();
            }
        }
    }

    /// Reads the changes and tells delivery. Returns the numbers of destinations and of subscriptions in them.
    async fn read(rig: &Rig, state: &mut CompileState, known: &mut Known) -> (usize, usize) {
        rig.control.read_delivery(state).await.unwrap();
        let Some(change) = rig.control.delivery_change(state) else {
            return (0, 0);
        };
        let len = (change.destinations.len(), change.subscriptions.len());
        known.learn(change);
        len
    }

    fn id(made: &Value) -> String {
        made["id"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn changes_add_up_to_what_a_new_process_reads() {
        let rig = Rig::start().await;
        let empty = || CompileState::empty(Arc::clone(&rig.control.endpoints.policies.logins));
        let (mut state, mut known) = (empty(), Known::default());
        let other = rig.user("ada@x.example", Role::Member, true).await;
        let mut grants: Vec<String> = Vec::new();
        let (mut destinations, mut subscriptions) = (Vec::new(), Vec::new());
        let mut seed: usize = 7;
        let mut next = |below: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let kind = culvert_events::HTTP_REQUEST_COMPLETE.name;
        for round in 0..150 {
            // Some passes read several changes.
            for _ in 0..1 + next(3) {
                match next(9) {
                    0 | 1 => {
                        let body = rig.sample("event_destinations", round).await;
                        let made = rig.post("/event_destinations", body).await.body();
                        destinations.push(id(&made));
                    }
                    2 | 3 if !destinations.is_empty() => {
                        let to = destinations[next(destinations.len())].clone();
                        let body = json!({"destination_ids": [to], "sources": [{"type": kind}]});
                        let caller = [&rig.admin, &other][next(2)];
                        let made = rig.call(caller, "POST", "/event_subscriptions", body);
                        // The other one may need a grant.
                        if let crate::tests::Answered::Created(made) = made.await {
                            subscriptions.push(id(&made));
                        }
                    }
                    4 if !destinations.is_empty() => {
                        let one = destinations[next(destinations.len())].clone();
                        let body = json!({"metadata": format!("changed {round}")});
                        let path = format!("/event_destinations/{one}");
                        rig.patch(&path, body).await.body();
                    }
                    5 if !subscriptions.is_empty() => {
                        let one = subscriptions.swap_remove(next(subscriptions.len()));
                        rig.delete(&format!("/event_subscriptions/{one}")).await;
                    }
                    7 if !destinations.is_empty() => {
                        let to = &destinations[next(destinations.len())];
                        let grantee = [&*other.owner_id, "role:member"][next(2)];
                        let body = json!({"object_id": to, "grantee": grantee});
                        grants.push(id(&rig.post("/grants", body).await.body()));
                    }
                    8 if !grants.is_empty() => {
                        let one = grants.swap_remove(next(grants.len()));
                        rig.delete(&format!("/grants/{one}?force=true")).await;
                    }
                    6 => {
                        let role = ["member", "admin"][next(2)];
                        let path = format!("/users/{}", other.owner_id);
                        rig.patch(&path, json!({ "role": role })).await.body();
                    }
                    _ if destinations.len() > 3 => {
                        let one = destinations.swap_remove(next(destinations.len()));
                        rig.delete(&format!("/event_destinations/{one}")).await;
                    }
                    _ => {}
                }
            }
            read(&rig, &mut state, &mut known).await;
            let (mut new, mut expected) = (empty(), Known::default());
            read(&rig, &mut new, &mut expected).await;
            assert_eq!(known, expected, "{round}");
        }
        assert!(known.destinations.len() > 3 && known.subscriptions.len() > 3);
    }

    /// A destination of another owner gets events while a grant is in force, and the subscription says when it does not.
    #[tokio::test]
    async fn a_subscription_delivers_only_where_its_owner_may() {
        let rig = Rig::start().await;
        let kind = culvert_events::HTTP_REQUEST_COMPLETE.name;
        let body = rig.sample("event_destinations", 1).await;
        let destination = id(&rig.post("/event_destinations", body).await.body());
        let other = rig.user("ada@x.example", Role::Member, true).await;
        let sources = json!([{ "type": kind }, {"type": "vault_created.v0"}]);
        let body = json!({"destination_ids": [destination], "sources": sources});
        let path = "/event_subscriptions";
        let call = async |body: &Value| rig.call(&other, "POST", path, body.clone()).await;
        assert!(matches!(
            call(&body).await,
            crate::tests::Answered::Refused(_, Some(650), _)
        ));
        let mut state = CompileState::empty(Arc::clone(&rig.control.endpoints.policies.logins));
        let mut known = Known::default();
        for grantee in [&*other.owner_id, "role:member"] {
            let grant = json!({"object_id": destination, "grantee": grantee});
            let grant = id(&rig.post("/grants", grant).await.body());
            let made = id(&call(&body).await.body());
            read(&rig, &mut state, &mut known).await;
            assert_eq!(known.subscriptions[&made].0, [[destination.clone()]]);
            let health = format!("{path}/{made}/health");
            let shown = async || {
                let shown = rig.call(&other, "GET", &health, Value::Null).await.body();
                shown["state"].as_str().unwrap().to_owned()
            };
            assert_eq!(shown().await, "ok");
            rig.delete(&format!("/grants/{grant}?force=true")).await;
            read(&rig, &mut state, &mut known).await;
            assert_eq!(known.subscriptions[&made].0, [[""; 0]]);
            let named = state.subscriptions.get(&made).unwrap();
            assert_eq!(
                barred(&state, &made, named),
                BTreeSet::from([destination.clone()])
            );
            assert_eq!(shown().await, "withheld");
            // A role is a right, too.
            let path = format!("/users/{}", other.owner_id);
            rig.patch(&path, json!({"role": "admin"})).await.body();
            read(&rig, &mut state, &mut known).await;
            assert_eq!(known.subscriptions[&made].0, [[destination.clone()]]);
            rig.patch(&path, json!({"role": "member"})).await.body();
            read(&rig, &mut state, &mut known).await;
            assert_eq!(known.subscriptions[&made].0, [[""; 0]]);
        }
    }

    #[tokio::test]
    async fn delivery_is_told_what_changed_however_much_there_is() {
        let rig = Rig::start().await;
        let (mut destinations, mut subscriptions) = (Vec::new(), Vec::new());
        let kind = culvert_events::HTTP_REQUEST_COMPLETE.name;
        for n in 0..20 {
            let body = rig.sample("event_destinations", n).await;
            let made = rig.post("/event_destinations", body).await.body();
            let body = json!({"destination_ids": [made["id"]], "sources": [{"type": kind}]});
            destinations.push(id(&made));
            let made = rig.post("/event_subscriptions", body).await.body();
            subscriptions.push(id(&made));
        }
        let mut state = CompileState::empty(Arc::clone(&rig.control.endpoints.policies.logins));
        let mut known = Known::default();
        let mut told = async || read(&rig, &mut state, &mut known).await;
        assert_eq!(told().await, (20, 20));
        assert_eq!(told().await, (0, 0));
        let path = format!("/event_destinations/{}", destinations[3]);
        rig.patch(&path, json!({"metadata": "changed"}))
            .await
            .body();
        assert_eq!(told().await, (1, 0));
        let path = format!("/event_subscriptions/{}", subscriptions[5]);
        rig.patch(&path, json!({"description": "changed"}))
            .await
            .body();
        assert_eq!(told().await, (0, 1));
        // Its owner's name is no right.
        let other = rig.user("ada@x.example", Role::Member, true).await;
        assert_eq!(told().await, (0, 0));
        let path = format!("/users/{}", other.owner_id);
        rig.patch(&path, json!({"role": "admin"})).await.body();
        assert_eq!(told().await, (0, 0));
    }
}
