//! Whole tables, for tests that replace everything.

use std::collections::BTreeSet;

use super::super::*;
use crate::plane::delivery::Delivery as Plane;

/// Everything that a table has.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) sources: Vec<Arc<Source>>,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) replays: Vec<Replay>,
    pub(crate) private_kinds: HashSet<String>,
    /// IDs of the subscriptions and replays that get those kinds.
    pub(crate) entitled: HashSet<String>,
}

impl Table {
    /// The change from `before` to this table.
    fn change(self, before: &Compiled, compiler: &TableCompiler) -> TableChange {
        let mut change = TableChange {
            private_kinds: Some(self.private_kinds),
            ..TableChange::default()
        };
        for id in before.destinations.keys() {
            change.destinations.insert(id.to_string(), None);
        }
        for one in self.destinations {
            change.destinations.insert(one.id.clone(), Some(one));
        }
        let known: BTreeSet<&String> = compiler
            .sources
            .keys()
            .chain(before.entitled.keys())
            .collect();
        for id in known {
            change.subscriptions.insert(id.clone(), None);
        }
        let mut subscriptions: BTreeMap<String, Subscription> = BTreeMap::new();
        for id in &self.entitled {
            subscriptions.entry(id.clone()).or_default().is_entitled = true;
        }
        for source in self.sources {
            let id = source.subscription.clone();
            subscriptions.entry(id).or_default().sources.push(source);
        }
        for (id, one) in subscriptions {
            change.subscriptions.insert(id, Some(one));
        }
        let entitled = |replay: &Replay| self.entitled.contains(&replay.id);
        let replays = self.replays.into_iter();
        change.replays = Some(replays.map(|one| (one.clone(), entitled(&one))).collect());
        change
    }
}

impl Plane {
    /// Replaces the whole table.
    pub(crate) fn publish(&self, table: Table) {
        let compiler = culvert_base::sync::lock(&self.plane.compiler);
        let change = table.change(&self.plane.table.load(), &compiler);
        drop(compiler);
        self.apply(change);
    }
}
