//! Things that may happen many times a second: refused calls, and reads of secrets.
//!
//! It is counted by caller and operation, and reported when it begins and once in a period while it goes on. So a flood
//! costs a bounded number of events. Nothing here reads or writes the store: the request path only counts.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use culvert_base::Timestamp;
use culvert_base::sync::lock;

/// Limit of things that are counted one by one.
const OPEN_MAX: usize = 1_000;
const MINUTE: Duration = Duration::from_secs(60);

/// A sample of calls that are counted together.
pub trait Sample: Clone {
    /// Adds what came later.
    fn add(&mut self, later: Self);

    /// What the next report begins with, after one.
    fn emptied(&self) -> Self;

    /// Whether a later one has to be reported itself, although it is one of many. Then it counts as reported.
    fn take_news(&mut self, _later: &Self) -> bool {
        false
    }

    /// The last report failed.
    fn unreported(&mut self) {}

    /// Whether it may be counted with others of its owner while the table is full. If not, each one is reported.
    fn may_be_folded(&self) -> bool {
        true
    }
}

/// Counts by key. `S` is a sample of each key.
#[derive(Debug)]
pub struct Repeated<K, S> {
    open: Mutex<HashMap<K, RepeatCount<S>>>,
    /// Time between two reports about a key.
    period: Duration,
    /// The key that counts for another one while the table is full.
    folded: fn(&K) -> K,
    limits: ReportLimits,
    /// What an owner of keys may take of the table; `None` if they have no owners.
    shared: Option<OwnerShare<K>>,
    /// When the minute of [`ReportLimits::per_minute_max`] began, and the reports since then.
    minute: Mutex<(Instant, usize)>,
}

/// Limits of the reports about things that strangers can repeat as long as they like.
#[derive(Clone, Copy, Debug)]
pub struct ReportLimits {
    /// A key that has been counted for this long has longer pauses between its reports. Those that count for others have
    /// not: they would be the only report about all that begins later.
    pub slow_after: Duration,
    /// These pauses.
    pub slow_period: Duration,
    /// Reports in a minute; more keys are reported together, by the key that counts for others.
    pub per_minute_max: usize,
}

impl ReportLimits {
    const NONE: Self = Self {
        slow_after: Duration::MAX,
        slow_period: Duration::MAX,
        per_minute_max: usize::MAX,
    };
}

/// What one owner of keys may take of the table, so that it cannot fill it.
#[derive(Clone, Copy, Debug)]
pub struct OwnerShare<K> {
    /// Keys of an owner that are counted one by one.
    pub max: usize,
    /// Whether two keys have the same owner.
    pub is_of_same: fn(&K, &K) -> bool,
    /// The key that counts for the rest of the owner's.
    pub rest: fn(&K) -> K,
}

#[derive(Debug)]
struct RepeatCount<S> {
    sample: S,
    /// When it began.
    since: Instant,
    first_at: Timestamp,
    last_at: Timestamp,
    /// Since the last report.
    count: u64,
    /// When the next report is due.
    due: Instant,
}

/// A due report about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report<K, S> {
    /// Occurrences with this key are counted together.
    pub key: K,
    /// The latest one.
    pub sample: S,
    /// How often it happened since the last report.
    pub count: u64,
    /// When it happened first since then.
    pub first_at: Timestamp,
    /// When it happened last.
    pub last_at: Timestamp,
}

impl<K: Clone + Eq + Hash, S: Sample> Repeated<K, S> {
    /// Counts that are reported once in a period. `folded` is the key that counts for another one while the table is full.
    pub fn new(period: Duration, folded: fn(&K) -> K) -> Self {
        Self {
            open: Mutex::default(),
            period,
            folded,
            limits: ReportLimits::NONE,
            shared: None,
            minute: Mutex::new((Instant::now(), 0)),
        }
    }

    /// With limits of reports.
    pub fn limited(self, limits: ReportLimits) -> Self {
        Self { limits, ..self }
    }

    /// With a limit for each owner of keys.
    pub fn shared(self, shared: OwnerShare<K>) -> Self {
        Self {
            shared: Some(shared),
            ..self
        }
    }

    /// Counts one.
    pub fn note(&self, key: K, sample: S, at: Timestamp) {
        self.note_many(key, sample, 1, at);
    }

    /// Counts several, the last of which happened at this time.
    pub fn note_many(&self, key: K, sample: S, count: u64, at: Timestamp) {
        let mut open = lock(&self.open);
        let key = self.counting(&open, &key);
        add(&mut open, key, sample, count, (at, at), Instant::now());
    }

    /// Whether this key was reported within the period. If so, counts one; if not, begins to count, as after a report.
    pub(crate) fn is_repeated(&self, key: &K, sample: &S, at: Timestamp) -> bool {
        let now = Instant::now();
        let mut open = lock(&self.open);
        let counting = &self.counting(&open, key);
        if counting != key && !sample.may_be_folded() {
            return false;
        }
        let key = counting;
        if let Some(counted) = open.get_mut(key)
            && (now < counted.due || counted.count > 0)
        {
            if counted.sample.take_news(sample) {
                return false;
            }
            if counted.count == 0 {
                counted.first_at = at;
            }
            counted.count += 1;
            counted.last_at = counted.last_at.max(at);
            counted.sample.add(sample.clone());
            return true;
        }
        // Beyond that, each one is reported.
        if open.len() < 2 * OPEN_MAX || open.contains_key(key) {
            let counted = RepeatCount {
                // This one has its own report.
                sample: sample.emptied(),
                since: now,
                first_at: at,
                last_at: at,
                count: 0,
                due: now + self.period,
            };
            open.insert(key.clone(), counted);
        }
        false
    }

    /// Notes that the first report about a key failed. What was counted since is due.
    pub(crate) fn forget(&self, key: &K) {
        let mut open = lock(&self.open);
        let key = self.counting(&open, key);
        if let Some(counted) = open.get_mut(&key) {
            counted.due = Instant::now();
            counted.sample.unreported();
            if counted.count == 0 {
                open.remove(&key);
            }
        }
    }

    /// The key itself, or the one that counts for it: while its owner has too many, or while the table is full.
    fn counting(&self, open: &HashMap<K, RepeatCount<S>>, key: &K) -> K {
        if open.contains_key(key) {
            return key.clone();
        }
        let shared = self.shared.as_ref();
        let shared = shared.filter(|shared| {
            let of_owner = open.keys().filter(|one| (shared.is_of_same)(one, key));
            of_owner.take(shared.max).count() >= shared.max
        });
        let key = shared.map_or_else(|| key.clone(), |shared| (shared.rest)(key));
        match open.len() >= OPEN_MAX && !open.contains_key(&key) {
            true => (self.folded)(&key),
            false => key,
        }
    }

    /// The due reports; with `all`, also those that are due later. Forgets keys that were not noted for a period.
    pub fn due(&self, all: bool) -> Vec<Report<K, S>> {
        let now = Instant::now();
        let mut open = lock(&self.open);
        open.retain(|_, counted| counted.count > 0 || now < counted.due);
        self.fold_surplus(&mut open, all, now);
        let due = open.iter().filter(|(_, counted)| counted.is_due(all, now));
        due.map(|(key, counted)| Report {
            key: key.clone(),
            sample: counted.sample.clone(),
            count: counted.count,
            first_at: counted.first_at,
            last_at: counted.last_at,
        })
        .collect()
    }

    /// Counts the due ones beyond the limit of a minute for the keys that count for others.
    fn fold_surplus(&self, open: &mut HashMap<K, RepeatCount<S>>, all: bool, now: Instant) {
        let mut minute = lock(&self.minute);
        if now.duration_since(minute.0) >= MINUTE {
            *minute = (now, 0);
        }
        let left = self.limits.per_minute_max.saturating_sub(minute.1);
        let due = open
            .iter()
            .filter(|(key, counted)| counted.is_due(all, now) && !self.is_folded(key));
        let surplus: Vec<K> = due.skip(left).map(|(key, _)| key.clone()).collect();
        for key in surplus {
            let Some(counted) = open.get_mut(&key) else {
                continue;
            };
            let range = (counted.first_at, counted.last_at);
            let (sample, count) = (counted.sample.clone(), counted.count);
            counted.count = 0;
            counted.sample = sample.emptied();
            // No report was about this key, so that it has no long pause.
            counted.due = now + self.period;
            // Due in this round, not in the next one.
            add(open, (self.folded)(&key), sample, count, range, now);
        }
    }

    /// When the next report is due, after one.
    fn next_due(&self, key: &K, counted: &RepeatCount<S>, now: Instant) -> Instant {
        let is_slow =
            !self.is_folded(key) && now.duration_since(counted.since) >= self.limits.slow_after;
        now + if is_slow {
            self.limits.slow_period
        } else {
            self.period
        }
    }

    /// Whether a key counts for others.
    fn is_folded(&self, key: &K) -> bool {
        (self.folded)(key) == *key
    }

    /// Notes that these were reported. What has been counted since stays for the next report.
    pub fn reported(&self, reports: &[Report<K, S>]) {
        let now = Instant::now();
        let mut open = lock(&self.open);
        let mut minute = lock(&self.minute);
        for report in reports {
            minute.1 += usize::from(!self.is_folded(&report.key));
            if let Some(counted) = open.get_mut(&report.key) {
                counted.count = counted.count.saturating_sub(report.count);
                counted.first_at = report.last_at;
                counted.sample = counted.sample.emptied();
                counted.due = self.next_due(&report.key, counted, now);
            }
        }
    }
}

impl<S> RepeatCount<S> {
    fn is_due(&self, all: bool, now: Instant) -> bool {
        self.count > 0 && (all || self.due <= now)
    }
}

/// Counts several of a key, from the first to the last one of a range. A new key is due now.
fn add<K: Eq + Hash, S: Sample>(
    open: &mut HashMap<K, RepeatCount<S>>,
    key: K,
    sample: S,
    count: u64,
    (first_at, last_at): (Timestamp, Timestamp),
    now: Instant,
) {
    let counted = open.entry(key).or_insert_with(|| RepeatCount {
        sample: sample.emptied(),
        since: now,
        first_at,
        last_at,
        count: 0,
        due: now,
    });
    counted.first_at = match counted.count {
        0 => first_at,
        _ => counted.first_at.min(first_at),
    };
    counted.count = counted.count.saturating_add(count);
    counted.last_at = counted.last_at.max(last_at);
    counted.sample.add(sample);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(3_600);

    impl Sample for i32 {
        fn add(&mut self, later: Self) {
            *self = later;
        }

        fn emptied(&self) -> Self {
            *self
        }
    }

    impl Sample for () {
        fn add(&mut self, (): Self) {}

        fn emptied(&self) {}
    }

    /// One that is always reported itself, unless it has its own count.
    #[derive(Clone)]
    struct Secret;

    impl Sample for Secret {
        fn add(&mut self, _: Self) {}

        fn emptied(&self) -> Self {
            Self
        }

        fn may_be_folded(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_may_not_be_folded_is_reported_also_while_the_table_is_full() {
        let repeated = Repeated::new(PERIOD, |_| usize::MAX);
        for key in 0..2 * OPEN_MAX {
            assert!(!repeated.is_repeated(&key, &Secret, at(1)), "{key}");
        }
        // Those that have no count of their own are reported each time.
        let last = 2 * OPEN_MAX;
        for _ in 0..3 {
            assert!(!repeated.is_repeated(&last, &Secret, at(2)));
        }
        assert!(repeated.is_repeated(&0, &Secret, at(2)));
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn the_first_is_reported_and_the_others_once_in_a_period() {
        let repeated = Repeated::new(PERIOD, |_| "others");
        repeated.note("a", 1, at(1));
        repeated.note("a", 2, at(2));
        let reports = repeated.due(false);
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].count, reports[0].sample), (2, 2));
        assert_eq!((reports[0].first_at, reports[0].last_at), (at(1), at(2)));
        // One that comes before the report is committed is not lost.
        repeated.note("a", 3, at(3));
        repeated.reported(&reports);
        assert_eq!(repeated.due(false), []);
        let rest = repeated.due(true);
        assert_eq!((rest[0].count, rest[0].last_at), (1, at(3)));
        repeated.reported(&rest);
        assert_eq!(repeated.due(true), []);
    }

    #[test]
    fn a_flood_has_a_bounded_number_of_reports() {
        let repeated = Repeated::new(PERIOD, |_| usize::MAX);
        for n in 0..100_000 {
            repeated.note(n, (), at(1));
        }
        let reports = repeated.due(false);
        assert_eq!(reports.len(), OPEN_MAX + 1);
        assert_eq!(
            reports.iter().map(|report| report.count).sum::<u64>(),
            100_000
        );
        repeated.reported(&reports);
        assert_eq!(repeated.due(true), []);
    }

    #[test]
    fn strangers_cause_a_bounded_number_of_reports() {
        const PER_MINUTE_MAX: usize = 30;
        let limits = ReportLimits {
            slow_after: Duration::ZERO,
            slow_period: PERIOD,
            per_minute_max: PER_MINUTE_MAX,
        };
        // Reports are due immediately, until a key is slow.
        let repeated = Repeated::new(Duration::ZERO, |_| usize::MAX).limited(limits);
        let mut n_reports = 0;
        let mut n_counted = 0;
        for round in 0..10 {
            for n in 0..5_000 {
                repeated.note(round * 5_000 + n, (), at(1));
            }
            let reports = repeated.due(false);
            n_reports += reports.len();
            n_counted += reports.iter().map(|report| report.count).sum::<u64>();
            repeated.reported(&reports);
        }
        // Those of this minute, and one for all others in each period.
        assert_eq!(n_reports, PER_MINUTE_MAX + 10);
        assert_eq!(n_counted, 50_000);
        assert_eq!(repeated.due(true), []);
    }

    #[test]
    fn the_report_about_others_is_not_late_after_a_long_flood() {
        let limits = ReportLimits {
            slow_after: Duration::ZERO,
            slow_period: PERIOD,
            per_minute_max: 1,
        };
        let repeated = Repeated::new(Duration::ZERO, |_| "others").limited(limits);
        for at_second in 1..4 {
            for key in ["a", "b", "c"] {
                repeated.note(key, 1, at(at_second));
            }
            let reports = repeated.due(false);
            let others = reports.iter().find(|report| report.key == "others");
            assert_eq!(others.map(|others| others.last_at), Some(at(at_second)));
            repeated.reported(&reports);
        }
    }

    #[test]
    fn a_read_is_reported_once_and_repetitions_are_counted() {
        let repeated = Repeated::new(PERIOD, |_| "others");
        assert!(!repeated.is_repeated(&"a", &(), at(1)));
        assert!(repeated.is_repeated(&"a", &(), at(2)));
        assert!(repeated.is_repeated(&"a", &(), at(3)));
        assert_eq!(repeated.due(false), []);
        assert_eq!(repeated.due(true)[0].count, 2);
        // It is over after a period.
        let short = Repeated::new(Duration::ZERO, |_| "others");
        assert!(!short.is_repeated(&"a", &(), at(1)));
        assert!(!short.is_repeated(&"a", &(), at(2)));
    }

    #[test]
    fn reads_of_many_objects_are_counted_together_when_the_table_is_full() {
        let repeated = Repeated::new(PERIOD, |_| usize::MAX);
        let reported = (0..100_000).filter(|n| !repeated.is_repeated(n, &(), at(1)));
        assert_eq!(reported.count(), OPEN_MAX + 1);
        assert_eq!(repeated.due(true)[0].count, 100_000 - 1_001);
    }

    #[test]
    fn a_read_at_the_end_of_the_period_does_not_erase_the_count() {
        let repeated = Repeated::new(Duration::ZERO, |_| "others");
        assert!(!repeated.is_repeated(&"a", &(), at(1)));
        repeated.note("a", (), at(2));
        assert!(repeated.is_repeated(&"a", &(), at(3)));
        assert_eq!(repeated.due(false)[0].count, 2);
    }
}
