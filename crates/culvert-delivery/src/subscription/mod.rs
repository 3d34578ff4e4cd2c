//! The compiled subscriptions, in the form for the recorder.
//!
//! Control describes changes ([`TableChange`]). [`TableCompiler`] applies them to the table in use, whose copies share
//! unchanged parts, so a change costs the same with few destinations and with many. The table is indexed by kind, then
//! account, then one group for each distinct selection, so a record finds its subscriptions without a search and is
//! encoded once for each selection.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use culvert_base::PersistentMap;
use culvert_events::{Capture, EventKind, Filter, Selection};
use culvert_store::BatchClass;
use culvert_target::Target;
use culvert_target::batch::{Batch, BatchLimits, Delivery};
use serde::Deserialize;

use crate::dispatch::replay::Replay;
use crate::health::{AllCounters, DeliveryCounters};
use crate::plane::settings::Settings;

/// Input of the delivery plane: what changed since the last input. The first one has everything.
#[derive(Debug, Default)]
pub struct TableChange {
    /// Destinations by ID; `None` removes one.
    pub destinations: BTreeMap<String, Option<Destination>>,
    /// Subscriptions by ID; `None` removes one.
    pub subscriptions: BTreeMap<String, Option<Subscription>>,
    /// Replaces all replays, including completed ones. Each has whether it is entitled, as in a [`Subscription`].
    pub replays: Option<Vec<(Replay, bool)>>,
    /// Replaces the audit kinds that only entitled subscriptions and replays get, although the store matches them for
    /// others too.
    pub private_kinds: Option<HashSet<String>>,
}

/// A subscription.
#[derive(Debug, Default)]
pub struct Subscription {
    /// Its sources of traffic kinds; the store matches audit kinds.
    pub sources: Vec<Arc<Source>>,
    /// Whether it gets private audit kinds.
    pub is_entitled: bool,
    /// IDs of those of its destinations that its owner may not use: they get nothing from it. Its sources do not name
    /// them.
    pub barred: BTreeSet<String>,
}

/// One source of one subscription.
#[derive(Debug)]
pub struct Source {
    /// `esb_…` of the subscription.
    pub subscription: String,
    /// Only events of this account match.
    pub account: Arc<str>,
    /// The kind of traffic event.
    pub kind: &'static EventKind,
    /// The fields it receives.
    pub selection: Selection,
    /// Which events it receives; all if there is none.
    pub filter: Option<Arc<Filter>>,
    /// Ids of the subscription's destinations. Those that are not in the table receive nothing.
    pub destinations: Vec<String>,
}

/// One destination, ready to send.
#[derive(Clone, Debug)]
pub struct Destination {
    /// `ed_…`.
    pub id: String,
    /// `ac_…`.
    pub account: String,
    /// Incremented by every edit. Failures of an older revision do not count.
    pub revision: i64,
    /// Its target.
    pub target: Arc<dyn Target>,
}

/// The table in use. A clone is cheap and shares what it has in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) replays: Arc<[Replay]>,
    private_kinds: Arc<HashSet<String>>,
    /// IDs of the subscriptions and replays that get those kinds.
    entitled: PersistentMap<String, ()>,
    /// The destinations that subscriptions may not use.
    barred: PersistentMap<String, Arc<BTreeSet<String>>>,
    kinds: Vec<KindPlan>,
    destinations: PersistentMap<Arc<str>, Arc<CompiledDestination>>,
}

#[derive(Clone, Debug)]
struct KindPlan {
    kind: &'static EventKind,
    capture: Capture,
    accounts: PersistentMap<Arc<str>, Arc<Vec<Group>>>,
}

/// Sources that select the same fields.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) selection: Arc<Selection>,
    /// Ordered by subscription.
    pub(crate) readers: Arc<Vec<Arc<Reader>>>,
}

/// One source within a group.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) subscription: Arc<str>,
    pub(crate) filter: Option<Arc<Filter>>,
    pub(crate) destinations: Vec<Arc<CompiledDestination>>,
}

/// A destination as the recorder and its worker use it.
#[derive(Debug)]
pub(crate) struct CompiledDestination {
    pub(crate) id: Arc<str>,
    pub(crate) account: Arc<str>,
    pub(crate) revision: i64,
    pub(crate) target: Arc<dyn Target>,
    pub(crate) limits: BatchLimits,
    pub(crate) counters: Arc<DeliveryCounters>,
}

impl CompiledDestination {
    /// Whether this many traffic events and bytes exceed the limit of the destination. For a target that gathers
    /// events, the limit has space for two objects more: one being written and one being gathered.
    pub(crate) fn is_full(&self, settings: &Settings, events: u64, bytes: u64) -> bool {
        match self.target.gathers() {
            None => {
                events > settings.destination_events_max || bytes > settings.destination_bytes_max
            }
            Some(gathers) => {
                let gathered = gathers.gathering().bytes_max.saturating_mul(2);
                bytes > settings.destination_bytes_max.saturating_add(gathered)
            }
        }
    }
}

/// What a finished envelope says of its event.
#[derive(Deserialize)]
struct EventFacts {
    event_type: String,
    object: Option<Object>,
}

#[derive(Deserialize)]
struct Object {
    id: Option<String>,
}

impl EventFacts {
    fn read(envelope: &[u8]) -> Option<Self> {
        serde_json::from_slice(envelope).ok()
    }

    /// Whether the event is about the subscription that reads it.
    fn is_about(&self, reader: &str) -> bool {
        let object = self.object.as_ref();
        object.and_then(|object| object.id.as_deref()) == Some(reader)
    }
}

/// Applies changes to the table in use. It has what the table itself does not need.
#[derive(Debug, Default)]
pub(crate) struct TableCompiler {
    /// The sources of each subscription.
    sources: HashMap<String, Vec<Arc<Source>>>,
    /// The subscriptions that name each destination, also destinations that do not exist.
    naming: HashMap<String, BTreeSet<String>>,
    /// The sets of fields that sources in the table capture, with the number of those sources, for each kind.
    captures: HashMap<&'static str, Vec<(Capture, usize)>>,
}

impl TableCompiler {
    /// The table with a change. The time depends on the change and on the subscriptions that it concerns.
    pub(crate) fn apply(
        &mut self,
        table: &Compiled,
        change: TableChange,
        all_counters: &AllCounters,
    ) -> Compiled {
        let mut table = table.clone();
        if let Some(kinds) = change.private_kinds {
            table.private_kinds = Arc::new(kinds);
        }
        if let Some(replays) = change.replays {
            for before in &*table.replays {
                table.entitled.remove(&before.id);
            }
            for (replay, _) in replays.iter().filter(|(_, is_entitled)| *is_entitled) {
                table.entitled.insert(replay.id.clone(), ());
            }
            table.replays = replays.into_iter().map(|(replay, _)| replay).collect();
        }
        // Subscriptions whose readers change, because they or their destinations do.
        let mut touched: BTreeSet<String> = change.subscriptions.keys().cloned().collect();
        for id in change.destinations.keys() {
            touched.extend(self.naming.get(id).into_iter().flatten().cloned());
        }
        for subscription in &touched {
            self.remove_readers(&mut table, subscription);
        }
        for (id, destination) in change.destinations {
            let Some(destination) = destination else {
                table.destinations.remove(&*id);
                continue;
            };
            let id: Arc<str> = id.into();
            let compiled = CompiledDestination {
                counters: all_counters.of(&id),
                id: id.clone(),
                account: destination.account.into(),
                revision: destination.revision,
                limits: destination.target.limits(),
                target: destination.target,
            };
            table.destinations.insert(id, Arc::new(compiled));
        }
        for (id, subscription) in change.subscriptions {
            self.set_sources(&mut table, id, subscription);
        }
        for subscription in &touched {
            self.add_readers(&mut table, subscription);
        }
        table
    }

    /// Replaces the sources and the right of a subscription, whose readers were removed.
    fn set_sources(
        &mut self,
        table: &mut Compiled,
        id: String,
        subscription: Option<Subscription>,
    ) {
        let named = |sources: &[Arc<Source>]| -> BTreeSet<String> {
            let named = sources.iter().flat_map(|source| &source.destinations);
            named.cloned().collect()
        };
        for destination in named(&self.sources.remove(&id).unwrap_or_default()) {
            if let Some(naming) = self.naming.get_mut(&destination) {
                naming.remove(&id);
                if naming.is_empty() {
                    self.naming.remove(&destination);
                }
            }
        }
        table.entitled.remove(&id);
        let Some(subscription) = subscription else {
            // What it may not use stays, for the event that says so.
            return;
        };
        table.barred.remove(&id);
        for destination in named(&subscription.sources) {
            self.naming
                .entry(destination)
                .or_default()
                .insert(id.clone());
        }
        if subscription.is_entitled {
            table.entitled.insert(id.clone(), ());
        }
        if !subscription.barred.is_empty() {
            table
                .barred
                .insert(id.clone(), Arc::new(subscription.barred));
        }
        if !subscription.sources.is_empty() {
            self.sources.insert(id, subscription.sources);
        }
    }

    /// Adds the readers of a subscription to the table.
    fn add_readers(&mut self, table: &mut Compiled, subscription: &str) {
        for source in self.sources.get(subscription).into_iter().flatten() {
            let destinations: Vec<Arc<CompiledDestination>> = source
                .destinations
                .iter()
                .filter_map(|id| table.destinations.get(id.as_str()).cloned())
                .collect();
            if destinations.is_empty() {
                // No destination receives it, so it is not captured.
                continue;
            }
            let reader = Arc::new(Reader {
                subscription: source.subscription.as_str().into(),
                filter: source.filter.clone(),
                destinations,
            });
            let known = table.kinds.iter().position(|plan| plan.is_of(source.kind));
            let at = known.unwrap_or_else(|| {
                table.kinds.push(KindPlan {
                    kind: source.kind,
                    capture: Capture::NONE,
                    accounts: PersistentMap::default(),
                });
                table.kinds.len() - 1
            });
            let plan = &mut table.kinds[at];
            let capture = source.capture();
            plan.capture = plan.capture.union(capture);
            let captures = self.captures.entry(source.kind.name).or_default();
            match captures.iter_mut().find(|(known, _)| *known == capture) {
                Some((_, count)) => *count += 1,
                None => captures.push((capture, 1)),
            }
            // Taken out of the map, the list has one owner and is not copied.
            let groups = plan.accounts.get(&source.account).cloned();
            plan.accounts.remove(&source.account);
            let mut groups = groups.unwrap_or_default();
            Group::add(Arc::make_mut(&mut groups), source, reader);
            plan.accounts.insert(Arc::clone(&source.account), groups);
        }
    }

    /// Removes the readers of a subscription from the table.
    fn remove_readers(&mut self, table: &mut Compiled, subscription: &str) {
        for source in self.sources.get(subscription).into_iter().flatten() {
            let mut named = source.destinations.iter();
            if !named.any(|id| table.destinations.get(id.as_str()).is_some()) {
                // It has no reader.
                continue;
            }
            let Some(at) = table.kinds.iter().position(|plan| plan.is_of(source.kind)) else {
                continue;
            };
            let plan = &mut table.kinds[at];
            plan.remove_reader(source);
            let Some(captures) = self.captures.get_mut(source.kind.name) else {
                continue;
            };
            let capture = source.capture();
            for (_, count) in captures.iter_mut().filter(|(known, _)| *known == capture) {
                *count -= 1;
            }
            captures.retain(|(_, count)| *count > 0);
            let remaining = captures.iter().map(|(capture, _)| *capture);
            plan.capture = remaining.fold(Capture::NONE, Capture::union);
            if captures.is_empty() {
                self.captures.remove(source.kind.name);
                table.kinds.remove(at);
            }
        }
    }
}

impl KindPlan {
    fn is_of(&self, kind: &'static EventKind) -> bool {
        std::ptr::eq(self.kind, kind) || self.kind.name == kind.name
    }

    /// Removes a reader of this source's subscription from the group of the source.
    fn remove_reader(&mut self, source: &Source) {
        let Some(mut groups) = self.accounts.get(&source.account).cloned() else {
            return;
        };
        // Taken out of the map, the list has one owner and is not copied.
        self.accounts.remove(&source.account);
        let remaining = Arc::make_mut(&mut groups);
        for group in remaining.iter_mut().filter(|group| group.is_of(source)) {
            let readers = Arc::make_mut(&mut group.readers);
            let at = readers.partition_point(|one| *one.subscription < *source.subscription);
            let reader = readers.get(at);
            if reader.is_some_and(|one| *one.subscription == *source.subscription) {
                readers.remove(at);
            }
        }
        remaining.retain(|group| !group.readers.is_empty());
        if !remaining.is_empty() {
            self.accounts.insert(Arc::clone(&source.account), groups);
        }
    }
}

impl Group {
    /// Adds the reader of a source to its group.
    fn add(groups: &mut Vec<Self>, source: &Source, reader: Arc<Reader>) {
        match groups.iter_mut().find(|group| group.is_of(source)) {
            Some(group) => {
                let readers = Arc::make_mut(&mut group.readers);
                let at = readers.partition_point(|one| one.subscription <= reader.subscription);
                readers.insert(at, reader);
            }
            None => groups.push(Self {
                selection: Arc::new(source.selection.clone()),
                readers: Arc::new(vec![reader]),
            }),
        }
    }

    /// Whether a source belongs to it. The encoded event depends on the set of fields, not on their order.
    fn is_of(&self, source: &Source) -> bool {
        self.selection.capture() == source.selection.capture()
    }
}

impl Source {
    /// The fields that it and its filter need.
    fn capture(&self) -> Capture {
        let filter = self.filter.as_ref().map(|filter| filter.capture());
        let filter = filter.unwrap_or(Capture::NONE);
        self.selection.capture().union(filter)
    }
}

impl Compiled {
    /// Whether not every subscription may get an audit kind.
    pub(crate) fn is_private(&self, kind: &str) -> bool {
        self.private_kinds.contains(kind)
    }

    fn is_entitled(&self, reader: &str) -> bool {
        self.entitled.get(reader).is_some()
    }

    /// Whether a subscription may not use a destination.
    fn is_barred(&self, reader: &str, destination: &str) -> bool {
        let barred = self.barred.get(reader);
        barred.is_some_and(|barred| barred.contains(destination))
    }

    /// Whether a subscription or replay may not send an audit event to a destination. A subscription reports its own
    /// deletion too, when it has no rights any more (contract: events 4.1).
    pub(crate) fn is_withheld(
        &self,
        reader: &str,
        destination: &str,
        kind: &str,
        envelope: &[u8],
    ) -> bool {
        self.is_barred(reader, destination)
            || self.is_private(kind)
                && !self.is_entitled(reader)
                && !EventFacts::read(envelope).is_some_and(|told| told.is_about(reader))
    }

    /// Whether each event of a batch must be withheld from its reader now; `None` if none must. If all readers are
    /// entitled to private kinds and may use the destination, this costs two checks per reader.
    pub(crate) fn withheld_of(&self, batch: &Batch) -> Option<Vec<bool>> {
        let destination = &**batch.destination();
        let has_private = batch.class() == BatchClass::Audit && !self.private_kinds.is_empty();
        let may_get_all = |reader: &str| {
            !self.is_barred(reader, destination) && (!has_private || self.is_entitled(reader))
        };
        if batch
            .subscriptions()
            .iter()
            .all(|reader| may_get_all(reader))
        {
            return None;
        }
        let is_withheld = |delivery: Delivery<'_>| {
            let reader = &**delivery.subscription;
            !may_get_all(reader)
                && (self.is_barred(reader, destination)
                    || EventFacts::read(delivery.envelope).is_none_or(|told| {
                        self.is_private(&told.event_type) && !told.is_about(reader)
                    }))
        };
        let withheld: Vec<bool> = batch.deliveries().map(is_withheld).collect();
        withheld.contains(&true).then_some(withheld)
    }

    /// The captured fields of each kind.
    pub(crate) fn captures(&self) -> impl Iterator<Item = (&'static EventKind, Capture)> + '_ {
        self.kinds.iter().map(|plan| (plan.kind, plan.capture))
    }

    /// The groups for events of that kind and account.
    pub(crate) fn groups(&self, kind: &'static EventKind, account: &str) -> &[Group] {
        self.kinds
            .iter()
            .find(|plan| plan.is_of(kind))
            .and_then(|plan| plan.accounts.get(account))
            .map_or(&[], |groups| groups.as_slice())
    }

    pub(crate) fn n_destinations(&self) -> u64 {
        u64::try_from(self.destinations.len()).unwrap_or(u64::MAX)
    }

    pub(crate) fn destination(&self, id: &str) -> Option<&Arc<CompiledDestination>> {
        self.destinations.get(id)
    }
}

#[cfg(test)]
pub(crate) mod tests;
