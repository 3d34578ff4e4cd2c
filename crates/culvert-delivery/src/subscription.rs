//! The compiled subscriptions, in the form for the recorder.
//!
//! Control publishes a [`Table`]. It is indexed by kind, then account, then one group for each distinct selection, so a
//! record finds its subscriptions without a search and is encoded once for each selection.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use culvert_events::{Capture, EventKind, Filter, Selection};
use culvert_store::BatchClass;
use serde::Deserialize;

use crate::batch::{Batch, BatchLimits, Delivery};
use crate::health::{AllCounters, DeliveryCounters};
use crate::replay::Replay;
use crate::settings::Settings;
use crate::target::target_type::Target;

/// Input of the delivery plane. Replaced as a whole.
#[derive(Debug, Default)]
pub struct Table {
    /// Sources of traffic kinds; the store matches audit kinds. Unchanged sources are shared with other tables.
    pub sources: Vec<Arc<Source>>,
    /// Every destination.
    pub destinations: Vec<Destination>,
    /// Replays, including completed ones.
    pub replays: Vec<Replay>,
    /// Audit kinds that not every subscription may get, although the store matches them.
    pub private_kinds: HashSet<String>,
    /// IDs of the subscriptions and replays that get those kinds.
    pub entitled: HashSet<String>,
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

/// The index of a [`Table`].
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) replays: Vec<Replay>,
    private_kinds: HashSet<String>,
    entitled: HashSet<String>,
    kinds: Vec<KindPlan>,
    destinations: HashMap<Arc<str>, Arc<CompiledDestination>>,
}

#[derive(Debug)]
struct KindPlan {
    kind: &'static EventKind,
    capture: Capture,
    accounts: HashMap<Arc<str>, Vec<Group>>,
}

/// Sources that select the same fields.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) selection: Selection,
    pub(crate) readers: Vec<Reader>,
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

/// The kind of a finished envelope.
fn kind_of(envelope: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Kind {
        event_type: String,
    }
    let kind = serde_json::from_slice::<Kind>(envelope).ok()?;
    Some(kind.event_type)
}

impl Compiled {
    pub(crate) fn new(table: Table, all_counters: &AllCounters) -> Self {
        let destinations: HashMap<Arc<str>, Arc<CompiledDestination>> = table
            .destinations
            .into_iter()
            .map(|destination| {
                let id: Arc<str> = destination.id.into();
                let compiled = CompiledDestination {
                    counters: all_counters.of(&id),
                    id: id.clone(),
                    account: destination.account.into(),
                    revision: destination.revision,
                    limits: destination.target.limits(),
                    target: destination.target,
                };
                (id, Arc::new(compiled))
            })
            .collect();
        let mut kinds: Vec<KindPlan> = Vec::new();
        for source in table.sources {
            let destinations: Vec<Arc<CompiledDestination>> = source
                .destinations
                .iter()
                .filter_map(|id| destinations.get(id.as_str()).cloned())
                .collect();
            if destinations.is_empty() {
                // No destination receives it, so it is not captured.
                continue;
            }
            let at = kinds
                .iter()
                .position(|plan| plan.kind.name == source.kind.name)
                .unwrap_or_else(|| {
                    kinds.push(KindPlan {
                        kind: source.kind,
                        capture: Capture::NONE,
                        accounts: HashMap::new(),
                    });
                    kinds.len() - 1
                });
            let plan = &mut kinds[at];
            plan.capture = plan.capture.union(source.selection.capture());
            if let Some(filter) = &source.filter {
                plan.capture = plan.capture.union(filter.capture());
            }
            let groups = plan
                .accounts
                .entry(Arc::clone(&source.account))
                .or_default();
            let reader = Reader {
                subscription: source.subscription.as_str().into(),
                filter: source.filter.clone(),
                destinations,
            };
            // The encoded event depends on the set of fields, not on their order.
            match groups
                .iter_mut()
                .find(|group| group.selection.capture() == source.selection.capture())
            {
                Some(group) => group.readers.push(reader),
                None => groups.push(Group {
                    selection: source.selection.clone(),
                    readers: vec![reader],
                }),
            }
        }
        Self {
            replays: table.replays,
            private_kinds: table.private_kinds,
            entitled: table.entitled,
            kinds,
            destinations,
        }
    }

    /// Whether not every subscription may get an audit kind.
    pub(crate) fn is_private(&self, kind: &str) -> bool {
        self.private_kinds.contains(kind)
    }

    /// Whether a subscription or replay may not get an audit kind.
    pub(crate) fn is_withheld(&self, reader: &str, kind: &str) -> bool {
        self.is_private(kind) && !self.entitled.contains(reader)
    }

    /// Whether each event of a batch must be withheld from its reader now; `None` if none must. If all readers are
    /// entitled to private kinds, this costs one check per reader.
    pub(crate) fn withheld_of(&self, batch: &Batch) -> Option<Vec<bool>> {
        let may_get_all = |reader: &Arc<str>| self.entitled.contains(&**reader);
        if batch.class() != BatchClass::Audit
            || self.private_kinds.is_empty()
            || batch.subscriptions().iter().all(may_get_all)
        {
            return None;
        }
        let is_withheld = |delivery: Delivery<'_>| {
            !may_get_all(delivery.subscription)
                && kind_of(delivery.envelope).is_none_or(|kind| self.is_private(&kind))
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
            .find(|plan| std::ptr::eq(plan.kind, kind) || plan.kind.name == kind.name)
            .and_then(|plan| plan.accounts.get(account))
            .map_or(&[], Vec::as_slice)
    }

    pub(crate) fn n_destinations(&self) -> u64 {
        u64::try_from(self.destinations.len()).unwrap_or(u64::MAX)
    }

    /// Destinations that are missing from `other` or differ there.
    pub(crate) fn unlike<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        let is_unlike = move |destination: &&Arc<CompiledDestination>| {
            other.destination(&destination.id).is_none_or(|there| {
                there.revision != destination.revision
                    || !Arc::ptr_eq(&there.target, &destination.target)
            })
        };
        let destinations = self.destinations.values().filter(is_unlike);
        destinations.map(|destination| &*destination.id)
    }

    pub(crate) fn destination(&self, id: &str) -> Option<&Arc<CompiledDestination>> {
        self.destinations.get(id)
    }
}
