//! Trees of random sizes against the recursive definition of RFC 6962.

use std::ops::Range;

use proptest::prelude::*;

use crate::*;

fn leaf(n: u64) -> TreeHash {
    TreeHash::leaf(&n.to_be_bytes())
}

/// The recursive definition.
fn root(range: Range<u64>) -> TreeHash {
    let n = range.end - range.start;
    match n {
        0 => TreeHash::empty(),
        1 => leaf(range.start),
        _ => {
            let middle = range.start + n.next_power_of_two() / 2;
            TreeHash::node(root(range.start..middle), root(middle..range.end))
        }
    }
}

/// A tree of this number of leaves, grown in steps of this size.
fn grown(size: u64, step: u64) -> Tiles {
    let mut edge = Edge::default();
    let mut tiles = Tiles::default();
    while edge.size() < size {
        for _ in 0..step.min(size - edge.size()) {
            edge.push(leaf(edge.size()));
        }
        let before = edge.root();
        for (id, bytes) in edge.take_changed() {
            assert_eq!(bytes.len() / HASH_BYTES, id.width_in(edge.size()));
            tiles.insert(id, &bytes).unwrap();
        }
        // As after a restart.
        edge = Edge::at(edge.size(), &tiles).unwrap();
        assert_eq!(edge.root(), before);
    }
    tiles
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

#[test]
fn the_roots_are_those_of_certificate_transparency() {
    // The test values of the reference implementation of RFC 6962.
    let leaves = [
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    ];
    let roots = [
        (
            0,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            1,
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        ),
        (
            2,
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        ),
        (
            8,
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ),
    ];
    for (size, expected) in roots {
        let mut edge = Edge::default();
        for leaf in &leaves[..size] {
            edge.push(TreeHash::leaf(&hex(leaf)));
        }
        assert_eq!(edge.root().0.to_vec(), hex(expected), "{size}");
    }
}

#[test]
fn a_tree_of_70_000_has_the_tiles_of_the_specification() {
    let mut edge = Edge::default();
    let mut widths = std::collections::BTreeMap::new();
    for n in 0..70_000 {
        edge.push(leaf(n));
    }
    for (id, bytes) in edge.take_changed() {
        *widths.entry((id.level, bytes.len() / 32)).or_insert(0) += 1;
    }
    let expected = [
        ((0, 112), 1),
        ((0, 256), 273),
        ((1, 17), 1),
        ((1, 256), 1),
        ((2, 1), 1),
    ];
    assert_eq!(widths.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_tile_has_one_address() {
    for (text, level, n, width) in [
        ("0/000", 0, 0, 256),
        ("1/x001/x234/067", 1, 1_234_067, 256),
        ("0/x001/000.p/1", 0, 1_000, 1),
        ("63/999.p/255", 63, 999, 255),
        ("0/x018/x446/x744/x073/x709/x551/615", 0, u64::MAX, 256),
    ] {
        let path: TilePath = text.parse().unwrap();
        let id = TileId { level, n };
        assert_eq!(
            (path, path.to_string().as_str()),
            (TilePath { id, width }, text)
        );
    }
    for text in [
        "",
        "0",
        "0/",
        "0/0",
        "0/0000",
        "00/000",
        "64/000",
        "0/x000/001",
        "0/001/002",
        "0/x001",
        "0/000.p/0",
        "0/000.p/256",
        "0/000.p/01",
        "0/000.p/",
        "0/000.p/1.p/1",
        "-1/000",
        "0/+00",
        "0/x018/x446/x744/x073/x709/x551/616",
        "entries/000",
        "0/000/",
        "/0/000",
        "0/x0a1/000",
    ] {
        assert_eq!(text.parse::<TilePath>(), Err(NotATile), "{text}");
    }
}

/// Every way to damage a proof a little.
fn damaged(proof: &[TreeHash]) -> Vec<Vec<TreeHash>> {
    let mut all = vec![[proof, &[TreeHash::empty()]].concat()];
    for at in 0..proof.len() {
        let mut changed = proof.to_vec();
        changed[at].0[at % 32] ^= 1 << (at % 8);
        all.push(changed);
        let mut shorter = proof.to_vec();
        shorter.remove(at);
        all.push(shorter);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_root_is_that_of_the_definition(size in 0_u64..1_500, step in 1_u64..600) {
        prop_assert_eq!(grown(size, step).root(size).unwrap(), root(0..size));
    }

    #[test]
    fn every_proof_holds_and_no_other(size in 1_u64..1_100, step in 1_u64..300, seed: u64) {
        let tiles = grown(size, step);
        let index = seed % size;
        let ranges = inclusion_ranges(index, size).unwrap();
        for id in tiles_of(&ranges) {
            prop_assert!(id.width_in(size) > 0);
        }
        let proof = tiles.hashes(&ranges).unwrap();
        let top = tiles.root(size).unwrap();
        prop_assert_eq!(verify_inclusion(leaf(index), index, size, &proof, top), Ok(()));
        prop_assert!(verify_inclusion(leaf(index + 1), index, size, &proof, top).is_err());
        prop_assert!(verify_inclusion(leaf(index), index, size, &proof, leaf(0)).is_err() || size == 1);
        prop_assert!(verify_inclusion(leaf(index), index ^ 1, size, &proof, top).is_err() || size == 1);
        prop_assert!(verify_inclusion(leaf(size), size, size, &proof, top).is_err());
        for wrong in damaged(&proof) {
            prop_assert!(verify_inclusion(leaf(index), index, size, &wrong, top).is_err());
        }

        let old = (seed / 7) % (size + 1);
        let before = tiles.root(old).unwrap();
        let proof = tiles.hashes(&consistency_ranges(old, size).unwrap()).unwrap();
        prop_assert_eq!(verify_consistency((old, before), (size, top), &proof), Ok(()));
        prop_assert!(verify_consistency((old, leaf(size)), (size, top), &proof).is_err());
        prop_assert!(verify_consistency((size + 1, top), (size, top), &proof).is_err());
        if old > 0 {
            prop_assert!(verify_consistency((old, before), (size, leaf(size)), &proof).is_err());
        }
        for wrong in damaged(&proof) {
            prop_assert!(verify_consistency((old, before), (size, top), &wrong).is_err());
        }
    }

    #[test]
    fn any_sizes_and_hashes_are_decided(
        index: u64, size: u64, old: u64, hashes in proptest::collection::vec(any::<[u8; 32]>(), 0..70),
    ) {
        // The sizes of checkpoints.
        let (index, size, old) = (index >> 1, size >> 1, old >> 1);
        let proof: Vec<TreeHash> = hashes.into_iter().map(TreeHash).collect();
        let some = TreeHash::empty();
        prop_assert!(verify_inclusion(some, index, size, &proof, some).is_err());
        prop_assert!(old == size || verify_consistency((old, some), (size, leaf(1)), &proof).is_err() || old == 0);
        for ranges in [inclusion_ranges(index, size), consistency_ranges(old, size)].into_iter().flatten() {
            prop_assert!(ranges.len() <= 64);
            prop_assert!(Tiles::default().hashes(&ranges).is_none_or(|found| found.is_empty()));
        }
        prop_assert!(Edge::at(size, &Tiles::default()).is_none() || size == 0);
    }
}
