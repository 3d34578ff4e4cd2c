//! The compiled subscriptions: who receives which traffic events, in the shape the recorder runs on.
//!
//! Control hands in a [`Table`]; here it is turned round so that a record finds its readers without
//! a search: kind, then account, then one group for each distinct selection, so that an event is
//! written once for all who want the same fields of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use culvert_events::{Capture, Filter, Kind, Selection};

use crate::batch::BatchLimits;
use crate::health::{AllCounters, DeliveryCounters};
use crate::replay::Replay;
use crate::settings::Settings;
use crate::target::target_type::Target;

/// What delivery runs on. Swapped whole.
#[derive(Debug, Default)]
pub struct Table {
    /// Sources of traffic kinds. Audit kinds are matched by the store. Shared with the tables before and after.
    pub sources: Vec<Arc<Source>>,
    /// Every destination.
    pub destinations: Vec<Destination>,
    /// Replays, those that are done too.
    pub replays: Vec<Replay>,
    /// Subscriptions and audit kinds that they no longer get, whatever the store matches.
    pub withheld: HashSet<(String, String)>,
}

/// One source of one subscription.
#[derive(Debug)]
pub struct Source {
    /// `esb_…` of the subscription.
    pub subscription: String,
    /// Only events of this account match.
    pub account: Arc<str>,
    /// The kind of traffic event.
    pub kind: &'static Kind,
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
    /// Grows with every edit: failures of an older revision say nothing about this one.
    pub revision: i64,
    /// Its target.
    pub target: Arc<dyn Target>,
}

/// A [`Table`] turned round.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) replays: Vec<Replay>,
    /// Audit kinds withheld from each subscription.
    withheld: HashMap<String, HashSet<String>>,
    kinds: Vec<KindPlan>,
    destinations: HashMap<Arc<str>, Arc<CompiledDestination>>,
}

#[derive(Debug)]
struct KindPlan {
    kind: &'static Kind,
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

/// A destination as recorder and worker see it.
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
    /// Whether so many traffic events and bytes are as much as may wait for it, beside its audit events. What it gathers into objects
    /// does not count: one that is on its way, and one that comes together.
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
                // Nobody would receive it, so nobody captures for it.
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
            // What is written depends on the set of fields alone, not on the order they were named.
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
        let mut withheld: HashMap<String, HashSet<String>> = HashMap::new();
        for (subscription, kind) in table.withheld {
            withheld.entry(subscription).or_default().insert(kind);
        }
        Self {
            replays: table.replays,
            withheld,
            kinds,
            destinations,
        }
    }

    /// Whether a subscription no longer gets an audit kind.
    pub(crate) fn is_withheld(&self, subscription: &str, kind: &str) -> bool {
        let withheld = self.withheld.get(subscription);
        withheld.is_some_and(|kinds| kinds.contains(kind))
    }

    /// What anybody wants of each kind.
    pub(crate) fn captures(&self) -> impl Iterator<Item = (&'static Kind, Capture)> + '_ {
        self.kinds.iter().map(|plan| (plan.kind, plan.capture))
    }

    /// Who reads events of that kind and account.
    pub(crate) fn groups(&self, kind: &'static Kind, account: &str) -> &[Group] {
        self.kinds
            .iter()
            .find(|plan| std::ptr::eq(plan.kind, kind) || plan.kind.name == kind.name)
            .and_then(|plan| plan.accounts.get(account))
            .map_or(&[], Vec::as_slice)
    }

    pub(crate) fn n_destinations(&self) -> u64 {
        u64::try_from(self.destinations.len()).unwrap_or(u64::MAX)
    }

    /// Destinations that are not in `other` as they are here.
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
