//! Tables from random changes, compared with tables from everything.

pub(crate) mod whole;

use culvert_base::BoxFuture;
use culvert_events::{HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED};
use culvert_target::Verdict;

use super::*;

/// A target that is never used.
#[derive(Debug)]
struct Unused;

impl Target for Unused {
    fn send<'a>(&'a self, _: &'a Batch) -> BoxFuture<'a, Verdict> {
        Box::pin(async { Verdict::Delivered })
    }

    fn limits(&self) -> BatchLimits {
        BatchLimits::DEFAULT
    }
}

/// The objects of a table.
#[derive(Default)]
struct Objects {
    destinations: BTreeMap<String, Destination>,
    subscriptions: BTreeMap<String, Subscription>,
    replays: Vec<(Replay, bool)>,
}

impl Subscription {
    fn again(&self) -> Self {
        Self {
            sources: self.sources.clone(),
            is_entitled: self.is_entitled,
            barred: self.barred.clone(),
        }
    }
}

impl Objects {
    /// A table that is compiled from all of them.
    fn compiled(&self, counters: &AllCounters) -> Compiled {
        let destinations = self.destinations.iter();
        let subscriptions = self.subscriptions.iter();
        let change = TableChange {
            destinations: destinations
                .map(|(id, one)| (id.clone(), Some(one.clone())))
                .collect(),
            subscriptions: subscriptions
                .map(|(id, one)| (id.clone(), Some(one.again())))
                .collect(),
            replays: Some(self.replays.clone()),
            private_kinds: None,
        };
        TableCompiler::default().apply(&Compiled::default(), change, counters)
    }

    /// What [`seen`] returns for their table, without an index.
    fn expected(&self) -> BTreeMap<String, Vec<String>> {
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut captures: BTreeMap<&str, Capture> = BTreeMap::new();
        for (id, one) in &self.destinations {
            expected.insert(id.clone(), vec![one.revision.to_string()]);
        }
        for source in self.subscriptions.values().flat_map(|one| &one.sources) {
            let named = source.destinations.iter();
            let there = named.filter_map(|id| self.destinations.get(id));
            let there: Vec<String> = there
                .map(|one| format!("{} {}", one.id, one.revision))
                .collect();
            if there.is_empty() {
                continue;
            }
            let capture = captures.entry(source.kind.name).or_insert(Capture::NONE);
            *capture = capture.union(source.capture());
            let selected = source.selection.capture();
            let place = format!("{} {} {selected:?}", source.kind.name, source.account);
            let filter = source.filter.as_ref().map(Arc::as_ptr);
            let reader = format!("{} {filter:?} {there:?}", source.subscription);
            expected.entry(place).or_default().push(reader);
        }
        for (kind, capture) in captures {
            expected.insert(kind.to_owned(), vec![format!("{capture:?}")]);
        }
        let subscriptions = self.subscriptions.iter();
        let subscriptions = subscriptions.map(|(id, one)| (id, one.is_entitled));
        let replays = self
            .replays
            .iter()
            .map(|(one, is_entitled)| (&one.id, *is_entitled));
        for (id, _) in subscriptions
            .chain(replays)
            .filter(|(_, is_entitled)| *is_entitled)
        {
            expected.insert(id.clone(), Vec::new());
        }
        expected
    }
}

/// What a table has, whatever the order in which it was made.
fn seen(table: &Compiled) -> BTreeMap<String, Vec<String>> {
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, one) in table.destinations.iter() {
        seen.insert(id.to_string(), vec![one.revision.to_string()]);
    }
    for plan in &table.kinds {
        seen.insert(
            plan.kind.name.to_owned(),
            vec![format!("{:?}", plan.capture)],
        );
        for (account, groups) in plan.accounts.iter() {
            assert!(!groups.is_empty());
            for group in &**groups {
                let selected = group.selection.capture();
                let place = format!("{} {account} {selected:?}", plan.kind.name);
                let readers = group.readers.iter().map(|reader| {
                    let there = reader.destinations.iter();
                    let there: Vec<String> = there
                        .map(|one| format!("{} {}", one.id, one.revision))
                        .collect();
                    let filter = reader.filter.as_ref().map(Arc::as_ptr);
                    format!("{} {filter:?} {there:?}", reader.subscription)
                });
                assert!(seen.insert(place, readers.collect()).is_none());
            }
        }
    }
    for id in table.entitled.keys() {
        seen.insert(id.clone(), Vec::new());
    }
    seen
}

/// Every reader in a table, by subscription.
fn readers(table: &Compiled) -> BTreeMap<String, BTreeSet<*const Reader>> {
    let mut readers: BTreeMap<String, BTreeSet<*const Reader>> = BTreeMap::new();
    let groups = table.kinds.iter().flat_map(|plan| plan.accounts.iter());
    for group in groups.flat_map(|(_, groups)| &**groups) {
        for reader in &*group.readers {
            let of = readers.entry(reader.subscription.to_string()).or_default();
            of.insert(Arc::as_ptr(reader));
        }
    }
    readers
}

fn destination(id: &str, revision: i64) -> Destination {
    Destination {
        id: id.to_owned(),
        account: "ac_1".to_owned(),
        revision,
        target: Arc::new(Unused),
    }
}

fn replay(id: usize) -> Replay {
    Replay {
        id: format!("replay_{id}"),
        destination: "ed_1".to_owned(),
        account: "ac_1".to_owned(),
        range: culvert_store::Range {
            first: 1,
            last: 0,
            since: None,
            until: None,
        },
        traffic: None,
        kinds: Vec::new(),
        subscriptions: Vec::new(),
    }
}

#[test]
fn changes_compile_to_the_table_of_all_objects() {
    let counters = AllCounters::default();
    let mut seed: usize = 7;
    let mut next = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let filters = ["ev.conn.server_port == 443", "ev.conn.client_ip == ''"]
        .map(|text| Arc::new(Filter::compile(&HTTP_REQUEST_COMPLETE, text).unwrap()));
    let (mut objects, mut compiler) = (Objects::default(), TableCompiler::default());
    let mut table = Compiled::default();
    let mut n_readers = 0;
    for round in 0..2_000 {
        let mut change = TableChange::default();
        for _ in 0..next(3) {
            let id = format!("ed_{}", next(6));
            let one = (next(3) > 0).then(|| destination(&id, round));
            objects.destinations.remove(&id);
            objects
                .destinations
                .extend(one.clone().map(|one| (id.clone(), one)));
            change.destinations.insert(id, one);
        }
        for _ in 0..next(3) {
            let id = format!("esb_{}", next(8));
            let sources = (0..next(4)).map(|_| {
                let kind = [&HTTP_REQUEST_COMPLETE, &TCP_CONNECTION_CLOSED][next(2)];
                let fields = [&["conn.server_port"][..], &["conn.client_ip"], &[]][next(3)];
                let is_filtered = kind.name == HTTP_REQUEST_COMPLETE.name && next(2) == 0;
                Arc::new(Source {
                    subscription: id.clone(),
                    account: format!("ac_{}", next(2)).into(),
                    kind,
                    selection: Selection::parse(kind, fields).unwrap(),
                    filter: is_filtered.then(|| Arc::clone(&filters[next(2)])),
                    destinations: (0..next(3)).map(|_| format!("ed_{}", next(6))).collect(),
                })
            });
            let one = Subscription {
                sources: sources.collect(),
                is_entitled: next(2) == 0,
                barred: BTreeSet::new(),
            };
            let one = (next(4) > 0).then_some(one);
            objects.subscriptions.remove(&id);
            let put = one.as_ref().map(|one| (id.clone(), one.again()));
            objects.subscriptions.extend(put);
            change.subscriptions.insert(id, one);
        }
        if next(5) == 0 {
            objects.replays = (0..next(3)).map(|n| (replay(n), next(2) == 0)).collect();
            change.replays = Some(objects.replays.clone());
        }
        let before = readers(&table);
        let is_touched = |id: &String| {
            let named = |one: &String| change.destinations.contains_key(one);
            let sources = objects.subscriptions.get(id).into_iter();
            let mut sources = sources.flat_map(|one| &one.sources);
            change.subscriptions.contains_key(id)
                || sources.any(|source| source.destinations.iter().any(named))
        };
        let untouched: Vec<String> = before
            .keys()
            .filter(|id| !is_touched(id))
            .cloned()
            .collect();
        let kept = table.clone();
        let kept_before = seen(&kept);
        table = compiler.apply(&table, change, &counters);
        let expected = objects.expected();
        assert_eq!(seen(&table), expected, "{round}");
        assert_eq!(seen(&objects.compiled(&counters)), expected, "{round}");
        assert_eq!(seen(&kept), kept_before, "{round}");
        let after = readers(&table);
        for id in untouched {
            assert_eq!(before.get(&id), after.get(&id), "{round}");
        }
        n_readers += after.len();
        let known = table.replays.iter().map(|one| &one.id);
        let replays = objects.replays.iter().map(|(one, _)| &one.id);
        assert!(known.eq(replays), "{round}");
    }
    assert!(n_readers > 2_000, "{n_readers}");
    let change = TableChange {
        destinations: (0..6).map(|n| (format!("ed_{n}"), None)).collect(),
        subscriptions: (0..8).map(|n| (format!("esb_{n}"), None)).collect(),
        replays: Some(Vec::new()),
        private_kinds: None,
    };
    table = compiler.apply(&table, change, &counters);
    assert!(seen(&table).is_empty());
    assert!(compiler.sources.is_empty() && compiler.naming.is_empty());
    assert!(compiler.captures.is_empty());
}
