//! Simulates two connections over a network, driven by a seed. Bytes are delayed and split anywhere, wake-ups come
//! late, twice and in any order, readers are slow, users abort streams, and the network may fail. For every seed,
//! every received byte is correct, a stream that ends regularly has all its bytes, and neither side sends more than
//! its credit.
//!
//! The message of a failure contains the seed. Add it to `KEPT` with the fix.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use culvert_base::{Entropy, SeededEntropy};
use culvert_mux::{
    Broken, Connection, Decoder, Ending, ErrorCode, Event, Limits, OpenRefused, Outbox, Piece,
    Read, Side, StreamId, WINDOW_BYTES,
};

/// Number of seeds, unless the variable `CULVERT_TEST_SEEDS` is set. After a change of the protocol, run
/// `CULVERT_TEST_SEEDS=100000 cargo test --release -p culvert-mux --test simulation`.
const SEEDS: u64 = 200;
/// Seeds that failed before.
const KEPT: &[u64] = &[];

#[test]
fn every_byte_arrives_in_order_under_every_seed() {
    let named = std::env::var_os("CULVERT_TEST_SEEDS");
    let seeds = named.map_or(SEEDS, |seeds| seeds.to_str().unwrap().parse().unwrap());
    let totals = run_seeds(KEPT.iter().copied().chain(0..seeds));
    eprintln!("{seeds} seeds: {totals:?}");
}

fn run_seeds(seeds: impl Iterator<Item = u64>) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(|| Simulation::new(seed).run());
        match run {
            Ok(of_one) => totals.add(of_one),
            Err(cause) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    // The simulation must reach all of these situations.
    assert!(totals.clean_ends > 1000, "{totals:?}");
    assert!(totals.resets > 100, "{totals:?}");
    assert!(totals.refused > 10, "{totals:?}");
    assert!(totals.waits > 1000, "{totals:?}");
    assert!(totals.cuts > 10, "{totals:?}");
    assert!(totals.taken_back > 100, "{totals:?}");
    assert!(totals.bytes > 10 << 20, "{totals:?}");
    totals
}

#[derive(Debug, Default)]
struct Totals {
    bytes: u64,
    clean_ends: u64,
    resets: u64,
    refused: u64,
    waits: u64,
    cuts: u64,
    taken_back: u64,
}

impl Totals {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.clean_ends += other.clean_ends;
        self.resets += other.resets;
        self.refused += other.refused;
        self.waits += other.waits;
        self.cuts += other.cuts;
        self.taken_back += other.taken_back;
    }
}

struct Random(SeededEntropy);

impl Random {
    fn below(&self, bound: usize) -> usize {
        let source: &dyn Entropy = &self.0;
        usize::try_from(u64::from_le_bytes(source.bytes()) % bound.max(1) as u64).unwrap()
    }

    fn one_in(&self, chance: usize) -> bool {
        self.below(chance) == 0
    }
}

/// Length of the sequence from which the data of all streams is taken. It is a prime number, so it is not a multiple
/// of any frame or buffer size.
const PERIOD: usize = 65_521;

/// Data of a stream in the direction of `side`: `length` bytes from an offset.
fn pattern(side: Side, id: StreamId, at: u64, length: usize) -> Bytes {
    static TWICE: LazyLock<Bytes> = LazyLock::new(|| {
        let mut once = vec![0; PERIOD];
        SeededEntropy::new(0).fill(&mut once);
        once.repeat(2).into()
    });
    let salt = if side == Side::Client { 7 } else { 10_001 };
    let start = (at + u64::from(id.get()) * 311 + salt) % PERIOD as u64;
    let start = usize::try_from(start).unwrap();
    TWICE.slice(start..start + length.min(PERIOD))
}

/// The view of one end on one stream.
#[derive(Debug, Default)]
struct Talk {
    sent: u64,
    read: u64,
    finished: bool,
    /// Whether the reader saw the end.
    ended: bool,
    broken: bool,
    /// The number of bytes that this end will send.
    length: u64,
}

struct End {
    side: Side,
    mux: Connection,
    out: Outbox,
    /// Bytes in transit to this end.
    wire: BytesMut,
    /// Bytes that arrived and are not processed.
    input: BytesMut,
    talks: BTreeMap<StreamId, Talk>,
    /// Released streams, for the comparison at the end.
    gone: BTreeMap<StreamId, Talk>,
    /// Pending wake-ups.
    woken: VecDeque<StreamId>,
    meter: Meter,
}

/// Independently measures the data that an end sends, and its credit.
#[derive(Default)]
struct Meter {
    decoder: Decoder,
    input: BytesMut,
    used: BTreeMap<StreamId, u64>,
    /// Credit in addition to the initial window.
    granted: BTreeMap<StreamId, u64>,
}

impl Meter {
    /// Processes output of this end. `other` records the credit that the output grants.
    fn sent(&mut self, bytes: &[u8], other: &mut Meter) {
        self.input.extend_from_slice(bytes);
        while let Some(piece) = self.decoder.next(&mut self.input).unwrap() {
            match piece {
                Piece::Data { id, length, .. } => {
                    let used = self.used.entry(id).or_default();
                    *used += length as u64;
                    let credit =
                        u64::from(WINDOW_BYTES) + self.granted.get(&id).copied().unwrap_or(0);
                    assert!(*used <= credit, "{id:?}: {used} sent of {credit}");
                }
                Piece::WndInc { id, increment } => {
                    *other.granted.entry(id).or_default() += u64::from(increment);
                }
                _ => {}
            }
        }
    }
}

struct Simulation {
    random: Random,
    now: Instant,
    ends: [End; 2],
    totals: Totals,
    limits: Limits,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let random = Random(SeededEntropy::new(seed));
        let mut limits = Limits {
            streams_max: 4 + random.below(40),
            accept_max: 1 + random.below(20),
            frame_bytes_max: 64 + random.below(40_000),
            stream_queue_bytes_max: 1000 + random.below(80_000),
            queue_bytes_max: 1000 + random.below(200_000),
            ..Limits::default()
        };
        if random.one_in(3) {
            limits.held_bytes_max = 20_000 + random.below(500_000);
            limits.burst_bytes_max = limits.held_bytes_max * (1 + random.below(3));
        }
        if random.one_in(4) {
            limits.window_bytes_max = 1 << 20;
        }
        limits.fin_before_rst = random.one_in(2);
        let end = |side| End {
            side,
            mux: Connection::new(side, limits),
            out: Outbox::default(),
            wire: BytesMut::new(),
            input: BytesMut::new(),
            talks: BTreeMap::new(),
            gone: BTreeMap::new(),
            woken: VecDeque::new(),
            meter: Meter::default(),
        };
        Self {
            now: Instant::now(),
            ends: [end(Side::Client), end(Side::Server)],
            totals: Totals::default(),
            random,
            limits,
        }
    }

    fn run(mut self) -> Totals {
        let cut_at = self.random.one_in(4).then(|| self.random.below(3000));
        for step in 0..3000 {
            if Some(step) == cut_at {
                self.totals.cuts += 1;
                return self.cut();
            }
            self.step();
        }
        self.settle();
        self.compare();
        self.totals
    }

    fn step(&mut self) {
        let at = self.random.below(2);
        match self.random.below(16) {
            0 => self.open(at),
            1..=3 => self.transmit(at),
            4..=7 => self.deliver(at),
            8..=9 => self.act_on_any(at),
            10..=13 => self.act_on_woken(at),
            14 => {
                self.now += Duration::from_millis(self.random.below(400) as u64);
                let now = self.now;
                self.ends[at].mux.expire(now);
            }
            _ => self.accept(at),
        }
        self.collect(at);
        self.ends[at].mux.check();
    }

    /// Collects wake-ups, duplicates some of them, and changes their order.
    fn collect(&mut self, at: usize) {
        let end = &mut self.ends[at];
        while let Some(event) = end.mux.next_event() {
            let (Event::Readable(id) | Event::Writable(id)) = event else {
                continue;
            };
            self.totals.waits += 1;
            if self.random.one_in(3) {
                end.woken.push_front(id);
            } else {
                end.woken.push_back(id);
            }
            if self.random.one_in(5) {
                end.woken.push_back(id);
            }
        }
    }

    fn open(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let first = self.random.below(self.limits.frame_bytes_max.min(200));
        let length = first + self.random.below(1 << (4 + self.random.below(15)));
        // The stream's data depends on its id, so it is written after opening.
        match end.mux.open(Bytes::new(), self.now) {
            Ok(id) => {
                let talk = Talk {
                    length: length as u64,
                    ..Talk::default()
                };
                assert!(end.talks.insert(id, talk).is_none(), "{id:?} twice");
            }
            Err(OpenRefused::Full) => self.totals.refused += 1,
            Err(other) => panic!("{other}"),
        }
    }

    fn accept(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if let Some(id) = end.mux.accept() {
            let length = self.random.below(1 << (4 + self.random.below(15))) as u64;
            let talk = Talk {
                length,
                ..Talk::default()
            };
            assert!(end.talks.insert(id, talk).is_none(), "{id:?} twice");
        }
    }

    /// Moves bytes from one end to the network.
    fn transmit(&mut self, at: usize) {
        let [client, server] = &mut self.ends;
        let (from, to) = if at == 0 {
            (client, server)
        } else {
            (server, client)
        };
        let enough = self.random.below(100_000);
        from.mux.transmit(&mut from.out, enough, self.now);
        // The socket accepts a part.
        let length = self.random.below(from.out.remaining() + 1);
        let bytes = from.out.copy_to_bytes(length);
        from.meter.sent(&bytes, &mut to.meter);
        to.wire.extend_from_slice(&bytes);
    }

    /// Delivers some bytes from the network.
    fn deliver(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if !end.mux.wants_input() {
            return;
        }
        let length = match self.random.below(3) {
            0 => self.random.below(20),
            _ => self.random.below(16 << 10),
        };
        let arrived = end.wire.split_to(length.min(end.wire.len()));
        end.input.extend_from_slice(&arrived);
        end.mux.receive(&mut end.input, self.now);
        assert_eq!(end.mux.ending(), None);
    }

    fn act_on_any(&mut self, at: usize) {
        let count = self.ends[at].talks.len();
        if count > 0 {
            let nth = self.random.below(count);
            let id = *self.ends[at].talks.keys().nth(nth).unwrap();
            self.act(at, id);
        }
    }

    fn act_on_woken(&mut self, at: usize) {
        if let Some(id) = self.ends[at].woken.pop_front()
            && self.ends[at].talks.contains_key(&id)
        {
            self.act(at, id);
        }
    }

    /// Reads and writes; sometimes releases a stream early.
    fn act(&mut self, at: usize, id: StreamId) {
        let give_up = self.random.one_in(150);
        let lazy = self.random.one_in(3);
        let max = 1 + self.random.below(40_000);
        let much = self.random.below(30_000);
        let copy = self.random.one_in(2);
        let (rests, resumes) = (self.random.one_in(30), self.random.one_in(2));
        let in_order = self.random.one_in(2);
        let now = self.now;
        let end = &mut self.ends[at];
        let talk = end.talks.get_mut(&id).unwrap();
        if give_up {
            talk.broken = true;
            self.totals.resets += 1;
            end.mux.reset(id, ErrorCode::STREAM_CANCELLED, now);
        } else if rests && !talk.finished && end.mux.set_idle(id) {
            if resumes {
                assert!(end.mux.resume(id), "{id:?} rested and is gone");
                return;
            }
            // The other end sees a regular end of the data. This end receives nothing more.
            assert!(end.mux.take_back(now));
            assert!(!end.mux.resume(id));
            self.totals.taken_back += 1;
            (talk.finished, talk.broken) = (true, true);
        } else {
            if !lazy {
                read(end.side, &mut end.mux, talk, id, max, copy, now);
            }
            write(end.side, &mut end.mux, talk, id, much, copy);
        }
        if talk.broken || (talk.ended && talk.finished) {
            if in_order && !talk.broken {
                end.mux.end_in_order(id, now);
            } else {
                end.mux.release(id, now);
            }
            let talk = end.talks.remove(&id).unwrap();
            end.gone.insert(id, talk);
        }
    }

    /// Runs both ends until nothing changes. No stream may be stuck.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "it does not come to rest");
            let mut idle = true;
            for at in 0..2 {
                while let Some(id) = self.ends[at].mux.accept() {
                    self.ends[at].talks.insert(id, Talk::default());
                    idle = false;
                }
                let ids: Vec<StreamId> = self.ends[at].talks.keys().copied().collect();
                for id in ids {
                    let now = self.now;
                    let end = &mut self.ends[at];
                    let talk = end.talks.get_mut(&id).unwrap();
                    let before = (talk.read, talk.sent, talk.ended, talk.finished);
                    read(end.side, &mut end.mux, talk, id, 1 << 20, false, now);
                    write(end.side, &mut end.mux, talk, id, 1 << 20, false);
                    idle &= before == (talk.read, talk.sent, talk.ended, talk.finished);
                    if talk.broken || (talk.ended && talk.finished) {
                        end.mux.release(id, now);
                        let talk = end.talks.remove(&id).unwrap();
                        end.gone.insert(id, talk);
                        idle = false;
                    }
                }
                let [client, server] = &mut self.ends;
                let (from, to) = if at == 0 {
                    (client, server)
                } else {
                    (server, client)
                };
                from.mux.transmit(&mut from.out, 1 << 20, self.now);
                let bytes = from.out.copy_to_bytes(from.out.remaining());
                from.meter.sent(&bytes, &mut to.meter);
                to.wire.extend_from_slice(&bytes);
                idle &= to.wire.is_empty();
                if to.mux.wants_input() {
                    let arrived = to.wire.split_to(to.wire.len().min(16 << 10));
                    to.input.extend_from_slice(&arrived);
                    to.mux.receive(&mut to.input, self.now);
                }
                from.mux.check();
                while from.mux.next_event().is_some() {}
            }
            if idle {
                break;
            }
        }
        for end in &self.ends {
            assert_eq!(end.mux.ending(), None);
            assert!(
                end.talks.is_empty(),
                "{:?} is stuck with {:?}",
                end.side,
                end.talks
            );
            assert_eq!(end.mux.stream_count(), 0);
            assert_eq!(end.mux.held_bytes(), 0);
        }
    }

    /// Compares the views of both ends on each stream.
    fn compare(&mut self) {
        let [client, server] = &self.ends;
        for (here, there) in [(client, server), (server, client)] {
            for (id, talk) in &here.gone {
                self.totals.bytes += talk.read;
                let Some(other) = there.gone.get(id) else {
                    // The other end rejected it, or it was aborted before the other end saw it.
                    assert!(talk.broken, "{id:?} was never seen by the other end");
                    continue;
                };
                assert!(talk.read <= other.sent);
                if talk.ended && !talk.broken {
                    if other.broken && self.limits.fin_before_rst {
                        // The reader observed the state between the two frames.
                        continue;
                    }
                    self.totals.clean_ends += 1;
                    assert!(other.finished, "{id:?} ended and was not finished");
                    assert_eq!(talk.read, other.sent, "{id:?} ended short");
                }
            }
        }
    }

    /// The network fails, at a different time for each side.
    fn cut(mut self) -> Totals {
        for at in 0..2 {
            let now = self.now;
            let end = &mut self.ends[at];
            end.mux.lost();
            assert_eq!(end.mux.ending(), Some(&Ending::Lost));
            for (id, talk) in &mut end.talks {
                while !talk.ended && !talk.broken {
                    // Received data can still be read, then the stream ends.
                    read(end.side, &mut end.mux, talk, *id, 1 << 14, true, now);
                }
                end.mux.release(*id, now);
            }
            end.mux.check();
            assert_eq!(end.mux.stream_count(), 0);
            assert!(!end.mux.has_output());
            assert_eq!(end.mux.open(Bytes::new(), now), Err(OpenRefused::Ended));
        }
        self.totals
    }
}

fn read(
    side: Side,
    mux: &mut Connection,
    talk: &mut Talk,
    id: StreamId,
    max: usize,
    copy: bool,
    now: Instant,
) {
    if talk.ended || talk.broken {
        return;
    }
    let other = match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    };
    let read = if copy {
        let mut to = vec![0; max];
        mux.read_into(id, &mut to, now).map(|copied| match copied {
            None => Read::Wait,
            Some(0) => Read::End,
            Some(length) => {
                to.truncate(length);
                Read::Data(to.into())
            }
        })
    } else {
        mux.read(id, max, now)
    };
    match read {
        Ok(Read::Data(bytes)) => {
            assert!(!bytes.is_empty() && bytes.len() <= max);
            for part in bytes.chunks(PERIOD) {
                let at = talk.read;
                assert!(
                    part == pattern(other, id, at, part.len()),
                    "{id:?} has other bytes from {at} on"
                );
                talk.read += part.len() as u64;
            }
        }
        Ok(Read::Wait) => {}
        Ok(Read::End) => talk.ended = true,
        Err(Broken::Finished) => panic!("a reader is not reported about its own writer"),
        Err(_) => talk.broken = true,
    }
}

fn write(side: Side, mux: &mut Connection, talk: &mut Talk, id: StreamId, much: usize, copy: bool) {
    if talk.finished || talk.broken {
        return;
    }
    let left = usize::try_from(talk.length - talk.sent).unwrap();
    if left == 0 {
        match mux.finish(id) {
            Ok(()) => talk.finished = true,
            Err(_) => talk.broken = true,
        }
        return;
    }
    let mut bytes = pattern(side, id, talk.sent, left.min(much));
    let written = if copy {
        mux.write_copy(id, &bytes)
    } else {
        mux.write(id, &mut bytes)
    };
    match written {
        Ok(length) => talk.sent += length as u64,
        Err(_) => talk.broken = true,
    }
}
