//! Which stream ends for another one when all are in use.

use super::*;
use crate::limits::Limits;
use crate::stream::Source;

const OTHER: Source = Source(1);
const GREEDY: Source = Source(2);
const NEW: Source = Source(3);

fn of(pair: &mut Pair, source: Source) -> Result<StreamId, OpenRefused> {
    let first = Bytes::from_static(b"x");
    let opened = pair.here.open_for(source, first, pair.now);
    pair.bytes();
    opened
}

fn full(sources: &[Source]) -> (Pair, Vec<StreamId>) {
    let mut pair = Pair::with(Limits {
        streams_max: sources.len(),
        cooling: Duration::ZERO,
        ..Limits::default()
    });
    let ids = sources.iter().map(|it| of(&mut pair, *it).unwrap());
    let ids = ids.collect();
    (pair, ids)
}

fn is_cut(pair: &mut Pair, id: StreamId) -> bool {
    let mut one = [0];
    let now = pair.now;
    let read = pair.here.read_into(id, &mut one, now);
    read == Err(Broken::Here(ErrorCode::ENHANCE_YOUR_CALM))
}

#[test]
fn a_reader_that_does_not_read_makes_room_and_one_that_reads_does_not() {
    let (mut pair, ids) = full(&[OTHER, Source::default(), Source::default()]);
    for id in &ids {
        pair.send(&[data(id.get(), &[1; 1_000])]);
    }
    assert_eq!(of(&mut pair, NEW), Err(OpenRefused::Full));
    pair.now += Duration::from_secs(1);
    let now = pair.now;
    assert!(pair.here.read_into(ids[0], &mut [0; 1_000], now).is_ok());
    assert!(pair.here.read_into(ids[1], &mut [0; 10], now).is_ok());
    assert_eq!(of(&mut pair, NEW), Err(OpenRefused::Full));
    assert!(is_cut(&mut pair, ids[2]));
    assert_eq!(pair.here.cut_streams(), 1);
    // Its user may be busy with a client that takes nothing, and notices later.
    assert!(of(&mut pair, NEW).is_ok());
    pair.here.release(ids[2], now);
    pair.here.check();
    // A reader that takes a byte now and then goes as well, after a while.
    for _ in 0..20 {
        pair.now += Duration::from_millis(500);
        let now = pair.now;
        assert!(pair.here.read_into(ids[1], &mut [0], now).is_ok());
    }
    assert_eq!(of(&mut pair, Source(4)), Err(OpenRefused::Full));
    assert!(is_cut(&mut pair, ids[1]));
}

#[test]
fn a_source_with_more_than_its_share_makes_room_and_takes_none() {
    let mut sources = vec![GREEDY; 6];
    sources.extend([OTHER, OTHER]);
    let (mut pair, ids) = full(&sources);
    pair.send(&[data(ids[6].get(), &[1; 1_000])]);
    pair.now += Duration::from_secs(20);
    // The other source has fewer, so its stalled stream stays.
    assert_eq!(of(&mut pair, GREEDY), Err(OpenRefused::Full));
    assert_eq!(pair.here.cut_streams(), 0);
    for nth in 0..3 {
        assert_eq!(of(&mut pair, NEW), Err(OpenRefused::Full));
        let cut: Vec<StreamId> = ids
            .iter()
            .copied()
            .filter(|id| is_cut(&mut pair, *id))
            .collect();
        assert_eq!(cut.len(), 1);
        assert!(ids[..6].contains(&cut[0]), "round {nth}");
        pair.here.release(cut[0], pair.now);
        assert!(of(&mut pair, NEW).is_ok());
    }
    // Both have the same number now.
    assert_eq!(of(&mut pair, NEW), Err(OpenRefused::Full));
    assert_eq!(pair.here.cut_streams(), 3);
}

#[test]
fn what_waits_for_a_peer_that_does_not_respond_can_be_reset_at_once() {
    let (mut pair, ids) = full(&[OTHER, OTHER, OTHER]);
    let now = pair.now;
    let beats = pair.here.open_background(Bytes::from_static(b"x"), now);
    let beats = beats.unwrap();
    pair.send(&[data(ids[0].get(), &[1; 10])]);
    let code = ErrorCode(0x101);
    assert!(pair.here.busy().eq(ids.clone()));
    pair.here.reset_unanswered(code, now);
    let broken: Vec<bool> = ids
        .iter()
        .chain([&beats])
        .map(|id| pair.here.watch(*id) == Err(Broken::Here(code)))
        .collect();
    assert_eq!(broken, [false, true, true, false]);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a second background stream")]
fn there_is_one_background_stream() {
    let mut pair = Pair::server();
    for _ in 0..2 {
        let opened = pair
            .here
            .open_background(Bytes::from_static(b"x"), pair.now);
        assert!(opened.is_ok());
    }
}
