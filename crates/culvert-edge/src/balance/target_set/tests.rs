use culvert_base::Timestamp;
use culvert_edge_config::upstream_tls::UpstreamTls;
use culvert_edge_config::{ActiveHealth, ListedUpstream, Retries, TlsOptions, TlsWithheld};

use super::*;
use crate::balance::attempt::Attempt;
use crate::http::request_body::RequestBody;

type TargetSet = super::TargetSet<RequestBody>;

fn list(weights: &[u16], balancing: Balancing) -> Arc<UpstreamList> {
    let listed = |(port, weight): (usize, &u16)| ListedUpstream {
        upstream: Upstream::parse(&format!("http://127.0.0.1:{}", port + 1), "").unwrap(),
        weight: *weight,
        priority: 0,
        in_flight_max: None,
    };
    Arc::new(UpstreamList {
        upstreams: weights.iter().enumerate().map(listed).collect(),
        balancing,
        sticky: None,
        health: PassiveHealth::default(),
        slow_start: Duration::ZERO,
        checks: None,
        retries: Retries::default(),
    })
}

fn set_of(list: Arc<UpstreamList>, before: Option<&TargetSet>) -> TargetSet {
    let pools: Vec<_> = list
        .upstreams
        .iter()
        .map(|listed| Arc::new(Pool::new(listed.upstream.clone())))
        .collect();
    let of = ("ep_1", &Arc::from("ac_1"), &Arc::from("usr_1"));
    let gate = before.map_or_else(Arc::default, |before| Arc::clone(&before.gate));
    TargetSet::new(of, list, pools.into_iter(), before, &gate)
}

fn set(weights: &[u16]) -> TargetSet {
    set_of(list(weights, Balancing::RoundRobin), None)
}

fn counts(set: &TargetSet, requests: usize) -> Vec<usize> {
    let mut counts = vec![0; set.targets.len()];
    for _ in 0..requests {
        counts[set
            .choose(None, Tried::default(), &Meters::default())
            .unwrap()] += 1;
    }
    counts
}

fn fail(set: &TargetSet, index: usize, times: u32) {
    for _ in 0..times {
        set.report(index, Outcome::Bad("503"), &Meters::default());
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_left_out_after_failures_in_a_row() {
    let set = set(&[1, 1, 1]);
    fail(&set, 1, 2);
    set.report(1, Outcome::Good, &Meters::default());
    fail(&set, 1, 2);
    assert_eq!(counts(&set, 30), [10, 10, 10]);
    fail(&set, 1, 1);
    assert_eq!(counts(&set, 30), [15, 0, 15]);
}

#[tokio::test(start_paused = true)]
async fn it_returns_after_a_time_that_doubles() {
    let set = set(&[1, 1, 1]);
    let mut failures = 3;
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        fail(&set, 0, failures);
        assert_eq!(counts(&set, 20)[0], 0, "{seconds}");
        tokio::time::advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
        assert_eq!(counts(&set, 20)[0], 0, "{seconds}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_ne!(counts(&set, 20)[0], 0, "{seconds}");
        // One failure is enough then.
        failures = 1;
    }
    // After a good time as long as the last one, it begins again.
    set.report(0, Outcome::Good, &Meters::default());
    tokio::time::advance(Duration::from_secs(300)).await;
    fail(&set, 0, 3);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_ne!(counts(&set, 20)[0], 0);
}

#[tokio::test(start_paused = true)]
async fn idle_upstreams_have_their_turns_with_least_requests() {
    let set = set_of(list(&[2, 1], Balancing::LeastRequests), None);
    assert_eq!(counts(&set, 60), [40, 20]);
}

/// One that had no traffic is as cold as a new one, and one that fails its checks does not grow.
#[tokio::test(start_paused = true)]
async fn only_upstreams_with_traffic_are_warm() {
    let slow = |weights: &[u16]| {
        let mut list = list(weights, Balancing::RoundRobin);
        Arc::make_mut(&mut list).slow_start = Duration::from_secs(20);
        list
    };
    let before = set_of(slow(&[1, 0]), None);
    let set = set_of(slow(&[1, 1]), Some(&before));
    assert_eq!(counts(&set, 11), [10, 1]);
    for index in 0..2 {
        fail(&set, index, 3);
    }
    assert!(!set.is_reachable());
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(!set.is_reachable(), "no ejection is over");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(set.is_reachable());
}

/// With a slow start, it gets a tenth of its share first, and the whole after the time.
#[tokio::test(start_paused = true)]
async fn the_share_of_one_that_returns_grows() {
    let slow = |weights: &[u16]| {
        let mut list = list(weights, Balancing::RoundRobin);
        Arc::make_mut(&mut list).slow_start = Duration::from_secs(20);
        list
    };
    let set = set_of(slow(&[1, 1, 1]), None);
    assert_eq!(counts(&set, 30), [10, 10, 10], "all began together");
    fail(&set, 0, 3);
    assert_eq!(counts(&set, 30), [0, 15, 15]);
    tokio::time::advance(Duration::from_secs(10)).await;
    for tenths in 1..=10 {
        assert_eq!(counts(&set, 20 + tenths), [tenths, 10, 10]);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    // One that fails while its share grows begins again.
    fail(&set, 1, 3);
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(counts(&set, 21)[1], 1);
    fail(&set, 1, 1);
    assert_eq!(counts(&set, 20)[1], 0);
    // So does one that is new in a list.
    let more = set_of(slow(&[1, 1, 1, 1]), Some(&set));
    assert_eq!(counts(&more, 21)[3], 1);
    let none = set_of(list(&[1, 1, 1, 1, 1], Balancing::RoundRobin), Some(&more));
    assert_eq!(counts(&none, 40)[4], 10);
}

#[tokio::test(start_paused = true)]
async fn one_that_responds_is_used_again_at_once() {
    let set = set(&[1, 1]);
    fail(&set, 0, 3);
    fail(&set, 1, 3);
    assert!(set.view.load().is_panic && !set.is_reachable());
    assert_eq!(counts(&set, 10), [5, 5]);
    set.report(0, Outcome::Good, &Meters::default());
    assert!(!set.view.load().is_panic && set.is_reachable());
    assert_eq!(counts(&set, 10), [10, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_to_each_upstream_once_and_first_to_good_ones() {
    let set = set(&[1, 1, 1, 0]);
    let meters = Meters::default();
    for one in [0, 1] {
        fail(&set, one, 3);
    }
    // All are used, but a request that is sent again goes to the one that responds.
    assert!(set.view.load().is_panic);
    let mut tried = Tried::default();
    tried.add(0);
    assert_eq!(set.choose(None, tried, &meters), Some(2));
    tried.add(2);
    assert_eq!(set.choose(None, tried, &meters), Some(1));
    tried.add(1);
    assert_eq!(set.choose(None, tried, &meters), None);
    assert!(!set.has_more(tried));
}

#[tokio::test(start_paused = true)]
async fn a_share_of_the_upstreams_may_be_left_out() {
    let mut changed = (*list(&[1, 1, 1, 1], Balancing::RoundRobin)).clone();
    changed.health.ejected_percent_max = 50;
    let set = set_of(Arc::new(changed.clone()), None);
    for one in 0..4 {
        fail(&set, one, 3);
    }
    assert_eq!(counts(&set, 10), [0, 0, 5, 5]);
    changed.health.ejected_percent_max = 0;
    let never = set_of(Arc::new(changed), None);
    fail(&never, 0, 9);
    assert_eq!(counts(&never, 8), [2, 2, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_list_keeps_what_is_known_of_its_upstreams() {
    let before = set(&[1, 1]);
    fail(&before, 0, 3);
    let open = before.open(1);
    let after = set_of(list(&[1, 1, 1], Balancing::LeastRequests), Some(&before));
    assert_eq!(counts(&after, 20)[0], 0);
    assert_eq!(after.targets[1].state.places.open(), 1);
    // A request that began before reports to the list that it began with.
    before.report(0, Outcome::Good, &Meters::default());
    drop(open);
    assert_eq!(after.targets[1].state.places.open(), 0);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_ne!(counts(&after, 20)[0], 0);
}

#[tokio::test]
async fn a_slow_upstream_gets_fewer_requests() {
    let set = set_of(list(&[1, 1, 1], Balancing::LeastRequests), None);
    let _slow: Vec<_> = (0..50).map(|_| set.open(1)).collect();
    assert_eq!(counts(&set, 300)[1], 0);
    // One with twice the weight may have twice as many.
    let weighted = set_of(list(&[2, 1], Balancing::LeastRequests), None);
    let mut open = Vec::new();
    for _ in 0..300 {
        let chosen = weighted.choose(None, Tried::default(), &Meters::default());
        open.push(weighted.open(chosen.unwrap()));
    }
    let counted = weighted.targets[0].state.places.open();
    assert!((190..=210).contains(&counted), "{counted}");
}

const CHECKS: ActiveHealth = ActiveHealth {
    probe: culvert_edge_config::Probe::Tcp,
    interval: Duration::from_secs(10),
    timeout: Duration::from_secs(1),
    healthy_threshold: 2,
    unhealthy_threshold: 2,
};

fn checked(set: &TargetSet, index: usize, failures: &[&str]) {
    for failure in failures {
        let report = CheckReport {
            at: Timestamp::default(),
            duration: Duration::ZERO,
            failure: (*failure).to_owned(),
        };
        set.checked(index, report, &Meters::default());
    }
}

fn set_with_checks() -> TargetSet {
    let mut list = list(&[1, 1, 1], Balancing::RoundRobin);
    Arc::get_mut(&mut list).unwrap().checks = Some(CHECKS);
    set_of(list, None)
}

/// The URLs of those that are unhealthy.
fn unhealthy(set: &TargetSet) -> Vec<String> {
    let mut found = Vec::new();
    set.add_unhealthy(&mut found);
    found.into_iter().map(|one| one.url).collect()
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_fails_its_checks_is_left_out_until_it_passes_them() {
    let set = set_with_checks();
    checked(&set, 1, &["refused"]);
    assert_eq!(counts(&set, 30), [10, 10, 10]);
    checked(&set, 1, &["refused"]);
    assert_eq!(counts(&set, 30), [15, 0, 15]);
    let url = "http://127.0.0.1:2".to_owned();
    assert_eq!(unhealthy(&set), [url]);
    assert_eq!(set.statuses()[1].reason, "health check: refused");
    // Further failures say nothing new, and a response to a request does not bring it back.
    checked(&set, 1, &["refused"]);
    set.report(1, Outcome::Good, &Meters::default());
    checked(&set, 1, &[""]);
    assert_eq!(counts(&set, 30), [15, 0, 15]);
    assert_eq!(unhealthy(&set).len(), 1);
    checked(&set, 1, &[""]);
    assert_eq!(counts(&set, 30), [10, 10, 10]);
    assert!(unhealthy(&set).is_empty());
    assert_eq!(set.statuses()[1].reason, "");
}

/// Whichever of the two brings it back, it was unhealthy once.
#[tokio::test(start_paused = true)]
async fn an_ejected_upstream_is_healthy_once_it_responds_or_passes_its_checks() {
    for by_check in [false, true] {
        let set = set_with_checks();
        fail(&set, 0, 3);
        let url = "http://127.0.0.1:1".to_owned();
        assert_eq!(unhealthy(&set), [url]);
        assert_eq!(set.statuses()[0].reason, "3 failures in a row: 503");
        assert!(set.statuses()[0].ejected_for.is_some());
        if by_check {
            checked(&set, 0, &["", ""]);
        } else {
            tokio::time::advance(Duration::from_secs(11)).await;
            assert_eq!(counts(&set, 30), [10, 10, 10], "its time is over");
            assert_eq!(unhealthy(&set).len(), 1, "and nothing is proven");
            set.report(0, Outcome::Good, &Meters::default());
        }
        assert_eq!(counts(&set, 30), [10, 10, 10]);
        assert!(unhealthy(&set).is_empty(), "by check: {by_check}");
        assert!(
            set.statuses()
                .iter()
                .all(|one| one.is_healthy && one.is_used)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn all_are_used_if_all_fail_their_checks() {
    let set = set_with_checks();
    for index in 0..3 {
        checked(&set, index, &["refused", "refused"]);
    }
    assert_eq!(counts(&set, 30), [10, 10, 10]);
    checked(&set, 2, &["", ""]);
    assert_eq!(counts(&set, 30), [10, 10, 10], "a third is too few");
    checked(&set, 0, &["", ""]);
    assert_eq!(counts(&set, 30), [15, 0, 15]);
}

#[tokio::test(start_paused = true)]
async fn without_checks_their_results_hold_no_longer() {
    let before = set_with_checks();
    checked(&before, 1, &["refused", "refused"]);
    let mut longer = UpstreamList::clone(before.list());
    longer.checks = Some(ActiveHealth {
        interval: Duration::from_secs(60),
        ..CHECKS
    });
    let longer = set_of(Arc::new(longer), Some(&before));
    assert_eq!(counts(&longer, 30), [15, 0, 15]);
    let without = set_of(list(&[1, 1, 1], Balancing::RoundRobin), Some(&longer));
    assert_eq!(counts(&without, 30), [10, 10, 10]);
    assert!(
        without
            .statuses()
            .iter()
            .all(|one| one.last_check.is_none())
    );
}

#[tokio::test(start_paused = true)]
async fn other_options_of_tls_keep_what_is_known_of_an_upstream() {
    let with = |options| {
        let mut changed = (*list(&[1, 1], Balancing::RoundRobin)).clone();
        let options = Arc::new(TlsOptions::new(options));
        for (port, one) in changed.upstreams.iter_mut().enumerate() {
            let url = format!("https://127.0.0.1:{}", port + 1);
            let upstream = Upstream::parse(&url, "").unwrap();
            one.upstream = upstream.with_tls(Arc::clone(&options));
        }
        Arc::new(changed)
    };
    let before = set_of(with(Ok(UpstreamTls::default())), None);
    fail(&before, 0, 3);
    let after = set_of(with(Err(TlsWithheld::Unread)), Some(&before));
    assert_ne!(
        after.pool(0).unwrap().upstream(),
        before.pool(0).unwrap().upstream()
    );
    assert_eq!(counts(&after, 20), [0, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_list_does_not_fill_the_budget() {
    let before = set(&[1, 1]);
    while before.budget.spend() {}
    let after = set_of(list(&[1, 1, 1], Balancing::RoundRobin), Some(&before));
    assert!(!after.budget.spend());
    for _ in 0..5 {
        after.budget.earn();
    }
    assert!(after.budget.spend() && !after.budget.spend());
}

#[tokio::test(start_paused = true)]
async fn a_response_while_it_is_ejected_ends_the_growth_of_its_ejections() {
    let set = set(&[1, 1]);
    let is_out = |set: &TargetSet| counts(set, 20)[0] == 0;
    fail(&set, 0, 3);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(!is_out(&set));
    fail(&set, 0, 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(is_out(&set), "the second one is longer");
    set.report(0, Outcome::Good, &Meters::default());
    assert!(!is_out(&set));
    fail(&set, 0, 3);
    assert!(is_out(&set));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(!is_out(&set), "the next one is a first one");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_wait_for_a_connection_counts_once_the_limit_is_nearly_over() {
    let (set, meters) = (set(&[1, 1]), Meters::default());
    let limit = Duration::from_secs(10);
    let leave = |limit, after: Duration| {
        let (set, meters) = (&set, &meters);
        async move {
            let attempt = Attempt::new(set, 0, limit, meters);
            attempt.set_connecting(true);
            tokio::time::advance(after).await;
        }
    };
    let failures = || set.targets[0].state.failures.load(Ordering::Relaxed);
    for _ in 0..9 {
        leave(limit, Duration::from_millis(8_999)).await;
    }
    assert_eq!(failures(), 0);
    leave(limit, Duration::from_secs(9)).await;
    assert_eq!(failures(), 1);
    let short = Duration::from_millis(700);
    leave(short, Duration::from_millis(650)).await;
    assert_eq!(failures(), 1, "the whole of a short limit");
    leave(short, short).await;
    assert_eq!(failures(), 2);
    // After the connection exists, or with an outcome, leaving says nothing more.
    let attempt = Attempt::new(&set, 0, limit, &meters);
    attempt.set_connecting(true);
    tokio::time::advance(limit).await;
    attempt.set_connecting(false);
    drop(attempt);
    assert_eq!(failures(), 2);
    let attempt = Attempt::new(&set, 0, limit, &meters);
    attempt.set_connecting(true);
    tokio::time::advance(limit).await;
    attempt.settle(Outcome::Good);
    drop(attempt);
    assert_eq!(failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_log_has_one_line_a_second_about_an_upstream_that_flaps() {
    let set = set(&[1, 1, 1]);
    let may_log = || lock(&set.targets[0].state.ejection).may_log(Instant::now());
    for _ in 0..5 {
        for _ in 0..100 {
            fail(&set, 0, 3);
            set.report(0, Outcome::Good, &Meters::default());
            assert!(!may_log(), "the first ejection of the second had the line");
        }
        tokio::time::advance(LOG_EVERY).await;
    }
    assert!(may_log());
}

#[tokio::test(start_paused = true)]
async fn a_key_stays_at_its_upstream_while_that_serves() {
    let by_client = Balancing::Hash(culvert_edge_config::HashKey::ClientAddress);
    let set = set_of(list(&[1, 1, 1], by_client), None);
    let meters = Meters::default();
    let at = |key: u64| set.choose(Some(key), Tried::default(), &meters).unwrap();
    let before: Vec<_> = (0..300).map(|key| at(hash_of(&[key as u8, 1]))).collect();
    let again: Vec<_> = (0..300).map(|key| at(hash_of(&[key as u8, 1]))).collect();
    assert_eq!(before, again);
    fail(&set, 1, 3);
    for (key, before) in (0..300).zip(before) {
        let now = at(hash_of(&[key as u8, 1]));
        assert!(now != 1 && (now == before || before == 1));
    }
    // A request that failed goes to another one, and one without a key has its turn.
    let mut tried = Tried::default();
    let key = hash_of(b"x");
    for _ in 0..3 {
        tried.add(set.choose(Some(key), tried, &meters).unwrap());
    }
    assert_eq!(set.choose(Some(key), tried, &meters), None);
    assert_eq!(counts(&set, 30), [15, 0, 15]);
}

/// It gets no requests, but passes its checks.
#[tokio::test(start_paused = true)]
async fn one_whose_ejection_is_over_is_healthy_once_it_passes_its_checks() {
    let set = set_with_checks();
    fail(&set, 0, 3);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(counts(&set, 30), [10, 10, 10]);
    assert!(!set.statuses()[0].is_healthy);
    checked(&set, 0, &["", ""]);
    assert!(set.statuses()[0].is_healthy);
}
