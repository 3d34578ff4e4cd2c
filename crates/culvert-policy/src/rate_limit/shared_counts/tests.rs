use culvert_base::{Entropy, ManualClock, SeededEntropy, Timestamp};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Several nodes, and the messages in transit between them.
struct Nodes {
    clock: Arc<ManualClock>,
    nodes: Vec<SharedCounts>,
    tables: Vec<Arc<SharedTable>>,
    /// When each arrives, its receiver, and its content.
    under_way: Vec<(Duration, usize, Vec<u8>)>,
    at: Duration,
}

impl Nodes {
    fn new(count: usize) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_seconds(0)));
        let made = |index| SharedCounts::new(clock.clone(), &SeededEntropy::new(index as u64));
        let nodes: Vec<SharedCounts> = (0..count).map(made).collect();
        let tables = nodes.iter().map(|node| node.table(7, MINUTE)).collect();
        nodes.iter().for_each(|node| drop(node.join()));
        Self {
            clock,
            nodes,
            tables,
            under_way: Vec::new(),
            at: Duration::ZERO,
        }
    }

    fn go_to(&mut self, at: Duration) {
        self.clock.advance(at - self.at);
        self.at = at;
        self.under_way.retain(|(there_at, who, message)| {
            let is_there = *there_at <= at;
            if is_there {
                self.nodes[*who].receive(message);
            }
            !is_there
        });
    }

    fn tell(&mut self, who: usize, mut delay: impl FnMut() -> Duration) {
        for message in self.nodes[who].outgoing() {
            assert!(message.len() <= MESSAGE_BYTES_MAX);
            for other in 0..self.nodes.len() {
                let there_at = self.at + delay();
                self.under_way.push((there_at, other, message.clone()));
            }
        }
    }

    fn take(&self, who: usize, key: u128, source: u64, capacity: u64) -> bool {
        let taken = self.nodes[who].take(&self.tables[who], key, source, capacity);
        taken.is_ok()
    }

    /// Delivers all messages to all nodes.
    fn settle(&mut self) {
        for _ in 0..2 {
            for who in 0..self.nodes.len() {
                self.tell(who, || Duration::ZERO);
            }
            self.go_to(self.at);
        }
    }
}

/// A bucket exceeds its limit at most by the requests that other nodes admit within a turn and the transit time of a
/// message. Requests within the limit are not rejected.
#[test]
fn nodes_exceed_a_shared_limit_only_by_messages_in_flight() {
    const DELAY_MS: u64 = 300;
    let mut was_over = 0;
    for seed in 0..60 {
        let entropy = SeededEntropy::new(seed);
        let entropy: &dyn Entropy = &entropy;
        let random = |below: u64| u64::from_le_bytes(entropy.bytes()) % below;
        let count = 2 + random(3) as usize;
        let capacity = 5 + random(60);
        let pause = 1 + random(400);
        let mut nodes = Nodes::new(count);
        // The counts of one node that sees every request.
        let mut truth = Bucket::default();
        let mut passed: Vec<(Duration, usize)> = Vec::new();
        let mut reported_at = vec![Duration::ZERO; count];
        let mut at = millis(random(60_000));
        for _ in 0..600 {
            at += millis(random(pause));
            for (who, reported_at) in reported_at.iter_mut().enumerate() {
                // Turns between two requests.
                while *reported_at + TELL_EVERY <= at {
                    let next = (*reported_at + TELL_EVERY).max(nodes.at);
                    *reported_at += TELL_EVERY;
                    nodes.go_to(next);
                    nodes.tell(who, || millis(random(DELAY_MS)));
                }
            }
            nodes.go_to(at);
            let who = random(count as u64) as usize;
            let fits = truth.clone().take(at, MINUTE, capacity).is_ok();
            if nodes.take(who, 1, who as u64, capacity) {
                let since = at.saturating_sub(TELL_EVERY + millis(DELAY_MS));
                let unheard = passed
                    .iter()
                    .filter(|(when, by)| *when >= since && *by != who)
                    .count();
                was_over += u32::from(!fits);
                let with_error = capacity + unheard as u64;
                let taken = truth.take(at, MINUTE, with_error);
                assert_eq!(taken, Ok(()), "{seed}: more than {capacity} and {unheard}");
                passed.push((at, who));
            } else {
                assert!(!fits, "{seed}: refused what fits");
            }
        }
    }
    assert!(was_over > 0, "no schedule showed the error");
}

#[test]
fn an_isolated_node_counts_alone_and_catches_up() {
    let mut nodes = Nodes::new(2);
    let pass = |nodes: &Nodes, who| (0..20).filter(|_| nodes.take(who, 1, 1, 10)).count();
    assert_eq!(pass(&nodes, 0), 10);
    // Messages sent while the other node was disconnected are lost.
    nodes.nodes[0].outgoing();
    assert_eq!(pass(&nodes, 1), 10, "it has only its own counts");
    // It rejoins, and announces that.
    let hello = nodes.nodes[1].join();
    nodes.nodes[0].receive(&hello);
    nodes.settle();
    nodes.go_to(millis(90_000));
    // Half of both windows' requests still count, so each alone would let five pass.
    assert_eq!(pass(&nodes, 0) + pass(&nodes, 1), 0);
    nodes.go_to(millis(180_000));
    assert_eq!(pass(&nodes, 0), 10, "all is over");
}

#[test]
fn counts_of_other_keys_and_actions_are_unchanged() {
    let mut nodes = Nodes::new(2);
    assert!((0..10).all(|_| nodes.take(0, 1, 1, 10)));
    nodes.settle();
    assert!(!nodes.take(1, 1, 1, 10));
    assert!((0..10).all(|_| nodes.take(1, 2, 1, 10)));
    let other = nodes.nodes[1].table(8, MINUTE);
    assert!(nodes.nodes[1].take(&other, 1, 1, 10).is_ok());
}

#[test]
fn an_action_starts_with_counts_received_before_its_first_request() {
    let mut nodes = Nodes::new(2);
    let first = nodes.nodes[0].table(9, MINUTE);
    for _ in 0..10 {
        assert!(nodes.nodes[0].take(&first, 1, 1, 10).is_ok());
    }
    nodes.settle();
    let second = nodes.nodes[1].table(9, MINUTE);
    assert!(nodes.nodes[1].take(&second, 1, 1, 10).is_err());
    // An unused bucket is removed after its window.
    drop((first, second));
    nodes.go_to(millis(200_000));
    nodes.settle();
    assert_eq!(lock(&nodes.nodes[0].0.tables).len(), 1);
    assert_eq!(lock(&nodes.nodes[1].0.tables).len(), 1);
}

/// A flood of keys at one node: the messages stay bounded, the other node's table too, and an ordinary key counts.
#[test]
fn a_flood_of_keys_is_bounded_on_every_node() {
    let nodes = Nodes::new(2);
    for _ in 0..5 {
        assert!(nodes.take(0, 1, 2, 5));
    }
    for key in 0..100_000 {
        nodes.take(0, 1_000 + key, 1, 5);
    }
    assert!(lock(&nodes.tables[0].state).moved.len() <= BUCKETS_MAX);
    let mut turns = 0;
    loop {
        let messages = nodes.nodes[0].outgoing();
        assert!(messages.len() <= MESSAGES_MAX);
        if messages.is_empty() {
            break;
        }
        messages
            .iter()
            .for_each(|message| nodes.nodes[1].receive(message));
        turns += 1;
        assert!(turns < 100);
    }
    assert!(lock(&nodes.tables[1].state).buckets.n_keys() <= BUCKETS_MAX);
    assert!(!nodes.take(1, 1, 2, 5), "the honest key is known");
    assert!(nodes.take(1, 2, 3, 5));
}

#[test]
fn malformed_messages_are_ignored() {
    let mut nodes = Nodes::new(2);
    assert!(nodes.take(0, 1, 1, 10));
    let message = nodes.nodes[0].outgoing().remove(0);
    let node = &nodes.nodes[1];
    for end in 0..message.len() {
        node.receive(&message[..end]);
    }
    for at in 0..message.len() {
        for bit in 0..8 {
            let mut other = message.clone();
            other[at] ^= 1 << bit;
            node.receive(&other);
        }
    }
    node.receive(&[1; MESSAGE_BYTES_MAX + 1]);
    let refused = node.meters().refused.get();
    assert!(refused > 0);
    // A window far in the future would never end, so it is ignored.
    nodes.go_to(millis(600_000));
    assert!((0..10).all(|_| nodes.take(1, 1, 1, 10)));
}

#[test]
fn counts_of_too_many_nodes_are_dropped_and_counted() {
    let nodes = Nodes::new(2 + RUNS_MAX);
    for who in 1..nodes.nodes.len() {
        assert!(nodes.take(who, 1, 1, 1_000));
        for message in nodes.nodes[who].outgoing() {
            nodes.nodes[0].receive(&message);
        }
    }
    assert_eq!(nodes.nodes[0].meters().heard.get(), RUNS_MAX as u64);
    assert_eq!(nodes.nodes[0].meters().refused.get(), 1);
}

#[test]
fn small_clock_differences_are_tolerated() {
    let length = MINUTE;
    let mut bucket = Bucket::default();
    let ahead = WindowCounts {
        window: 2,
        now: 3,
        before: 4,
    };
    bucket.merge(1, ahead);
    // In our window 1, the other node's counts of windows 1 and 2 are included in full.
    assert!(bucket.take(millis(119_000), length, 8).is_ok());
    assert!(bucket.take(millis(119_000), length, 8).is_err());
    // A clock that is set back briefly does not reopen a window.
    let mut bucket = Bucket::default();
    assert!(bucket.take(millis(60_001), length, 1).is_ok());
    assert!(bucket.take(millis(59_999), length, 1).is_err());
}
