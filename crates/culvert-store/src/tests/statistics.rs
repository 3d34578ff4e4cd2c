//! Statistics: existing rows stay, ranges are read by index, and old rows go in small steps.

use culvert_base::Timestamp;

use super::on_both_engines;
use super::test_database::TestDatabase;
use crate::{FrameRange, NodeNote, Queue, StatisticChunk, StatisticFrame};

on_both_engines!(
    frames_become_chunks_in_one_transaction,
    chunks_are_found_by_subject_and_by_time,
    old_statistics_are_deleted_by_time_and_by_bytes,
    a_node_has_one_note,
);

const STEP: i64 = 10;

fn frame(at: i64, node: &str, body: u8) -> StatisticFrame {
    StatisticFrame {
        step: STEP,
        at,
        node: node.to_owned(),
        body: vec![body],
    }
}

fn chunk(subject: &str, at: i64, node: &str, length: usize) -> StatisticChunk {
    StatisticChunk {
        step: STEP,
        subject: subject.to_owned(),
        at,
        node: node.to_owned(),
        body: vec![7; length],
    }
}

async fn frames(queue: &Queue, range: (i64, i64)) -> Vec<(i64, String, Vec<u8>)> {
    let frames = queue
        .statistic_frames(STEP, range, None, 100)
        .await
        .unwrap();
    let part = |frame: StatisticFrame| (frame.at, frame.node, frame.body);
    frames.into_iter().map(part).collect()
}

async fn frames_become_chunks_in_one_transaction(db: &TestDatabase) {
    let queue = db.queue().await;
    let written = [frame(10, "a", 1), frame(20, "a", 2), frame(10, "b", 3)];
    queue
        .put_statistics(written.to_vec(), Vec::new(), None)
        .await
        .unwrap();
    // A second frame of the same place is not taken.
    queue
        .put_statistics(vec![frame(20, "a", 9)], Vec::new(), None)
        .await
        .unwrap();
    let all = vec![
        (10, "a".to_owned(), vec![1]),
        (10, "b".to_owned(), vec![3]),
        (20, "a".to_owned(), vec![2]),
    ];
    assert_eq!(frames(&queue, (10, 30)).await, all);
    assert_eq!(frames(&queue, (20, 30)).await, all[2..]);
    assert_eq!(frames(&queue, (0, 10)).await, []);
    let of_b = queue.statistic_frames(STEP, (0, 30), Some("b"), 100).await;
    assert_eq!(of_b.unwrap(), [frame(10, "b", 3)]);

    let longer = StatisticFrame {
        step: 300,
        ..frame(0, "a", 4)
    };
    let folded = FrameRange {
        step: STEP,
        node: "a".to_owned(),
        from: 0,
        to: 20,
    };
    queue
        .put_statistics(
            vec![longer.clone()],
            vec![chunk("e/1", 0, "a", 5)],
            Some(folded),
        )
        .await
        .unwrap();
    assert_eq!(frames(&queue, (0, 30)).await, all[1..]);
    let longer_frames = queue
        .statistic_frames(300, (0, 300), None, 9)
        .await
        .unwrap();
    assert_eq!(longer_frames, [longer]);
    let chunks = queue
        .statistic_chunks(STEP, "e/1", (0, 1), 9)
        .await
        .unwrap();
    assert_eq!(chunks, [chunk("e/1", 0, "a", 5)]);
    queue.close().await;
}

async fn chunks_are_found_by_subject_and_by_time(db: &TestDatabase) {
    let queue = db.queue().await;
    let mut chunks = Vec::new();
    for at in [0, 300, 600] {
        for subject in ["d/1/x", "e/1/x", "e/1/é", "e/10/x", "f/1/x"] {
            chunks.push(chunk(subject, at, "a", 1));
        }
        chunks.push(chunk("e/1/x", at, "b", 1));
    }
    queue
        .put_statistics(Vec::new(), chunks, None)
        .await
        .unwrap();
    let of_one = queue
        .statistic_chunks(STEP, "e/1/x", (0, 600), 9)
        .await
        .unwrap();
    let places: Vec<_> = of_one.iter().map(|one| (one.at, &*one.node)).collect();
    assert_eq!(places, [(0, "a"), (0, "b"), (300, "a"), (300, "b")]);
    let of_kind = queue
        .statistic_chunks_with(STEP, "e/1/", (300, 900), 9)
        .await
        .unwrap();
    let mut places: Vec<_> = of_kind.iter().map(|one| (one.at, &*one.subject)).collect();
    places.sort_unstable();
    let expected = [300, 600].map(|at| [(at, "e/1/x"), (at, "e/1/x"), (at, "e/1/é")]);
    assert_eq!(places, expected.concat());
    let limited = queue.statistic_chunks_with(STEP, "", (0, 900), 4).await;
    assert_eq!(limited.unwrap().len(), 4);
    queue.close().await;
}

async fn old_statistics_are_deleted_by_time_and_by_bytes(db: &TestDatabase) {
    let queue = db.queue().await;
    let chunks: Vec<_> = (0..1_500)
        .map(|n| chunk(&format!("e/{}", n % 3), n / 3, "a", 10))
        .collect();
    // A write may take five seconds at most.
    for chunks in chunks.chunks(100) {
        let frames = vec![frame(3, "gone", 1)];
        queue
            .put_statistics(frames, chunks.to_vec(), None)
            .await
            .unwrap();
    }
    assert_eq!(queue.statistic_bytes().await.unwrap(), 15_000);
    // The frame and 200 moments of three subjects.
    assert_eq!(queue.prune_statistics(STEP, 200).await.unwrap(), 601);
    assert_eq!(queue.statistic_bytes().await.unwrap(), 9_000);
    // A moment is deleted as a whole.
    let freed = queue.free_statistics(STEP, 25).await.unwrap();
    assert_eq!(freed, 30);
    assert_eq!(queue.statistic_bytes().await.unwrap(), 8_970);
    let oldest = queue.statistic_chunks(STEP, "e/0", (0, 500), 1).await;
    assert_eq!(oldest.unwrap()[0].at, 201);
    assert!(queue.free_statistics(STEP, u64::MAX).await.unwrap() > 8_900);
    assert_eq!(queue.statistic_bytes().await.unwrap(), 0);
    assert_eq!(queue.free_statistics(300, 1).await.unwrap(), 0);
    queue.close().await;
}

async fn a_node_has_one_note(db: &TestDatabase) {
    let queue = db.queue().await;
    let note = |node: &str, at, body: &str| NodeNote {
        node: node.to_owned(),
        at: Timestamp::from_unix_seconds(at),
        body: body.to_owned(),
    };
    for (node, at, body) in [("b", 5, "1"), ("a", 6, "2"), ("b", 7, "3"), ("c", 1, "4")] {
        queue.note_node(note(node, at, body)).await.unwrap();
    }
    let all = [note("a", 6, "2"), note("b", 7, "3"), note("c", 1, "4")];
    assert_eq!(queue.node_notes().await.unwrap(), all);
    let before = Timestamp::from_unix_seconds(2);
    queue.drop_node_notes("a", before).await.unwrap();
    assert_eq!(queue.node_notes().await.unwrap(), all[1..2]);
    queue.close().await;
}
