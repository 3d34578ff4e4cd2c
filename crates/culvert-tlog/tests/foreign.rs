//! The checksum database of Go verifies our proofs and checkpoints: `tests/clients/tlog`, built by `scripts/go-clients`.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use culvert_tlog::{
    AddCheckpoint, Checkpoint, Edge, InclusionProof, KeyType, SignedCheckpoint, SigningKey, Tiles,
    TreeHash, consistency_ranges, inclusion_ranges,
};

/// Proofs of entries, and as many requests to witnesses.
const TEXTS_OF_EACH: u64 = 5_000;
const LEAVES: u64 = 70_000;
const ORIGIN: &str = "culvert.example/audit/ac_1";

/// A text of JSON.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\n', "\\n"))
}

fn entry(index: u64) -> Vec<u8> {
    format!("entry {index}").into_bytes()
}

fn tree() -> Tiles {
    let (mut edge, mut tiles) = (Edge::default(), Tiles::default());
    (0..LEAVES).for_each(|n| edge.push(TreeHash::leaf(&entry(n))));
    for (id, bytes) in edge.take_changed() {
        tiles.insert(id, &bytes).expect("a whole tile");
    }
    tiles
}

#[test]
fn go_accepts_our_proofs_and_none_with_a_changed_bit() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/go-clients/tlog");
    if !program.exists() {
        culvert_testing::ignore("no Go client for transparency logs; scripts/go-clients makes it");
        return;
    }
    let log = SigningKey::new(ORIGIN, KeyType::Note, [7; 32]).unwrap();
    let witness = SigningKey::new("witness.example", KeyType::Cosignature, [8; 32]).unwrap();
    let tiles = tree();
    let sign = |size: u64| {
        let root = tiles.root(size).unwrap();
        let checkpoint = Checkpoint {
            origin: ORIGIN.to_owned(),
            size,
            root,
            extensions: Vec::new(),
        };
        let line = log.sign(&checkpoint.to_string(), 0);
        SignedCheckpoint::new(checkpoint, vec![line]).unwrap()
    };
    let mut texts = format!(
        "{{\"origin\":{},\"witness\":{},\"texts\":{}}}\n",
        quoted(&log.verifier().to_string()),
        quoted(&witness.verifier().to_string()),
        2 * TEXTS_OF_EACH,
    );
    for n in 0..TEXTS_OF_EACH {
        // Every small tree, and larger ones of all shapes.
        let size = if n < 300 {
            n + 1
        } else {
            1 + n * 7_919 % LEAVES
        };
        let index = n * 104_729 % size;
        let signed = sign(size);
        let cosignature = witness.sign(signed.note().text(), 1_700_000_000 + n);
        let proof = InclusionProof {
            extra: Some(entry(index)),
            index,
            hashes: tiles
                .hashes(&inclusion_ranges(index, size).unwrap())
                .unwrap(),
            signed: signed.with(&[cosignature]).unwrap(),
        };
        writeln!(texts, "{{\"proof\":{}}}", quoted(&proof.to_string())).unwrap();
        // Go has no proof from an empty tree.
        let old = 1 + n * 15_485_863 % size;
        let request = AddCheckpoint {
            old,
            proof: tiles
                .hashes(&consistency_ranges(old, size).unwrap())
                .unwrap(),
            signed,
        };
        let (request, root) = (request.to_string(), tiles.root(old).unwrap().to_string());
        let (request, root) = (quoted(&request), quoted(&root));
        writeln!(texts, "{{\"request\":{request},\"old_root\":{root}}}").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.jsonl");
    std::fs::write(&file, texts).unwrap();
    let output = Command::new(program).arg(file).output().unwrap();
    let (out, error) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert_eq!(
        String::from_utf8_lossy(&out),
        "10000 texts were accepted, and refused with one bit changed\n"
    );
}
