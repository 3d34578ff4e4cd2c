//! The table of delivery: subscriptions, destinations and replays.

use std::sync::Arc;

use culvert_base::Fault;
use culvert_delivery::{Destination, DestinationIds, Source, Table, Target};
use culvert_events::{Filter, Selection};
use culvert_store::Document;
use tracing::error;

use super::state::{CompileState, Subscribed};
use crate::caller::Role;
use crate::control::Control;
use crate::resource::model::event_destination::EventDestination;
use crate::resource::model::event_subscription::EventSubscription;
use crate::resource::model::user::User;
use crate::{event_kinds, replay, stored};

impl Control {
    pub(super) async fn compile_delivery(&self, state: &mut CompileState) -> Result<(), Fault> {
        // All that is read below includes at least this revision.
        let revision = *self.store.watch().borrow();
        // Changes that were read stay due while passes fail.
        let read = |document: Document| {
            subscribed(&document).unwrap_or_else(|fault| {
                error!(cause = %fault.chain(), "subscription skipped");
                Subscribed::default()
            })
        };
        let changes = state.subscriptions.refresh(&self.store, read).await?;
        state.has_delivery &= changes.is_empty();
        let may_have_all = |document: Document| {
            let user = stored::read::<User>(&document);
            user.is_ok_and(|user| user.active && user.role == Role::Admin)
        };
        let changes = state.users.refresh(&self.store, may_have_all).await?;
        state.has_delivery &= changes.is_empty();
        let changes = state.destinations.refresh(&self.store, |document| document);
        state.has_delivery &= changes.await?.is_empty();
        let read = |document: Document| {
            let compiled = replay::compile(&document);
            let report = |fault: &Fault| error!(cause = %fault.chain(), "replay skipped");
            compiled.inspect_err(report).ok()
        };
        let changes = state.replays.refresh(&self.store, read).await?;
        state.has_delivery &= changes.is_empty();
        if state.has_delivery {
            self.delivery.has_rights_of(revision);
            return Ok(());
        }
        // A bot is never an admin. Documents stored without an owner wait for an admin.
        let is_entitled = |owner_id: &str| state.users.get(owner_id).is_some_and(|may| *may);
        let subscriptions = state.subscriptions.made();
        let subscriptions = subscriptions.map(|one| (&one.id, &one.owner_id));
        let replays = state.replays.made().flatten();
        let replays = replays.map(|(replay, owner_id)| (&replay.id, owner_id));
        let entitled = subscriptions
            .chain(replays)
            .filter(|(_, owner_id)| is_entitled(owner_id));
        let mut table = Table {
            private_kinds: event_kinds::names()
                .filter(|kind| event_kinds::is_private(kind))
                .collect(),
            entitled: entitled.map(|(id, _)| id.clone()).collect(),
            sources: state
                .subscriptions
                .made()
                .flat_map(|one| one.sources.iter().cloned())
                .collect(),
            replays: (state.replays.made().flatten())
                .map(|(replay, _)| replay.clone())
                .collect(),
            ..Table::default()
        };
        // Drop the targets of removed destinations.
        let known = std::mem::take(&mut state.targets);
        for document in state.destinations.made() {
            let head = &document.head;
            let target = match known.get(&head.id) {
                // The target of an unchanged destination stays open.
                Some((revision, target)) if *revision == head.revision => Ok(target.clone()),
                _ => self.open_target(document),
            };
            match target {
                Ok(target) => {
                    let open = (head.revision, target.clone());
                    state.targets.insert(head.id.clone(), open);
                    table.destinations.push(Destination {
                        id: head.id.clone(),
                        account: head.account.clone(),
                        revision: head.revision,
                        target,
                    });
                }
                Err(fault) => error!(cause = %fault.chain(), "destination skipped"),
            }
        }
        self.delivery.publish(table);
        self.delivery.has_rights_of(revision);
        state.has_delivery = true;
        Ok(())
    }

    fn open_target(&self, document: &Document) -> Result<Arc<dyn Target>, Fault> {
        let head = &document.head;
        let destination: EventDestination = stored::read(document)?;
        let (ty, configuration) = destination.target(&self.seal, head)?;
        let ids = DestinationIds {
            destination: &head.id,
            account: &head.account,
        };
        (ty.open)(&configuration, self.delivery.targets(), ids)
            .map_err(|refusal| Fault::new(format!("opening destination {}", head.id), refusal))
    }
}

fn subscribed(document: &Document) -> Result<Subscribed, Fault> {
    let subscription: EventSubscription = stored::read(document)?;
    Ok(Subscribed {
        sources: sources(document, &subscription),
        id: document.head.id.clone(),
        owner_id: subscription.owner_id,
    })
}

/// The traffic sources of a subscription. A source that no longer compiles after an upgrade is logged and
/// captures nothing.
fn sources(document: &Document, subscription: &EventSubscription) -> Vec<Arc<Source>> {
    let head = &document.head;
    let account: Arc<str> = head.account.as_str().into();
    let mut compiled = Vec::new();
    for source in &subscription.sources {
        let Some(kind) = source.traffic() else {
            continue;
        };
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
