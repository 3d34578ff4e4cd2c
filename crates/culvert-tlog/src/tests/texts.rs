//! Notes, checkpoints, proofs and requests: published examples, one spelling each, and changed bits.

use proptest::prelude::*;

use crate::*;

/// From the documents of C2SP.
const EXAMPLE_KEY: &str = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
const EXAMPLE: &str = "This is an example message.\n\n\u{2014} example.com/foo \
    Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n";
const EXAMPLE_REQUEST: &str = "old 20852014\n\
    PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=\n\
    jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=\n\
    5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=\n\
    /6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=\n\
    \n\
    example.com/behind-the-sofa\n\
    20852163\n\
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\
    \n\
    \u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n\
    \u{2014} example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n";

const ORIGIN: &str = "culvert.example/audit/ac_1";

fn log_key() -> SigningKey {
    SigningKey::new(ORIGIN, KeyType::Note, [7; 32]).unwrap()
}

fn witness_key(n: u8) -> SigningKey {
    SigningKey::new(
        &format!("witness.example/{n}"),
        KeyType::Cosignature,
        [n; 32],
    )
    .unwrap()
}

fn leaf(n: u64) -> TreeHash {
    TreeHash::leaf(&n.to_be_bytes())
}

fn tree(size: u64) -> Tiles {
    let (mut edge, mut tiles) = (Edge::default(), Tiles::default());
    (0..size).for_each(|n| edge.push(leaf(n)));
    for (id, bytes) in edge.take_changed() {
        tiles.insert(id, &bytes).unwrap();
    }
    tiles
}

fn checkpoint(tiles: &Tiles, size: u64) -> SignedCheckpoint {
    let checkpoint = Checkpoint {
        origin: ORIGIN.to_owned(),
        size,
        root: tiles.root(size).unwrap(),
        extensions: Vec::new(),
    };
    let line = log_key().sign(&checkpoint.to_string(), 0);
    SignedCheckpoint::new(checkpoint, vec![line]).unwrap()
}

fn request(tiles: &Tiles, old: u64, new: u64) -> AddCheckpoint {
    AddCheckpoint {
        old,
        proof: tiles
            .hashes(&consistency_ranges(old, new).unwrap())
            .unwrap(),
        signed: checkpoint(tiles, new),
    }
}

fn policy(n_witnesses: u8) -> Policy {
    Policy {
        origin_keys: vec![log_key().verifier().clone()],
        origin: None,
        witness_keys: (1..=n_witnesses)
            .map(|n| witness_key(n).verifier().clone())
            .collect(),
        quorum: usize::from(n_witnesses),
    }
}

fn proof(index: u64, size: u64) -> InclusionProof {
    let tiles = tree(size);
    let signed = checkpoint(&tiles, size);
    let text = signed.note().text().to_owned();
    let lines = [1, 2].map(|n| witness_key(n).sign(&text, 1_679_315_147));
    InclusionProof {
        extra: Some(index.to_be_bytes().to_vec()),
        index,
        hashes: tiles
            .hashes(&inclusion_ranges(index, size).unwrap())
            .unwrap(),
        signed: signed.with(&lines).unwrap(),
    }
}

#[test]
fn the_published_example_is_verified() {
    let key: VerifierKey = EXAMPLE_KEY.parse().unwrap();
    assert_eq!(key.to_string(), EXAMPLE_KEY);
    let note = Note::parse(EXAMPLE.as_bytes()).unwrap();
    assert_eq!(
        (note.signed_by(&key), note.to_string().as_str()),
        (Ok(Some(0)), EXAMPLE)
    );
    let changed = Note::parse(EXAMPLE.replace("message", "massage").as_bytes()).unwrap();
    assert!(changed.signed_by(&key).is_err());
    assert_eq!(note.signed_by(log_key().verifier()), Ok(None));
}

#[test]
fn the_published_request_is_read() {
    let request = AddCheckpoint::parse(EXAMPLE_REQUEST.as_bytes()).unwrap();
    assert_eq!((request.old, request.proof.len()), (20_852_014, 4));
    assert_eq!(request.signed.checkpoint().size, 20_852_163);
    assert_eq!(request.to_string(), EXAMPLE_REQUEST);
}

#[test]
fn keys_have_one_text() {
    for key in [log_key(), witness_key(3)] {
        let text = key.secret_text();
        let again = SigningKey::parse(&text).unwrap();
        assert_eq!(again.verifier(), key.verifier());
        assert_eq!(
            again.verifier().to_string().parse(),
            Ok(key.verifier().clone())
        );
        assert!(!format!("{key:?}").contains("PRIVATE"));
        assert!(SigningKey::parse(&text.replace("example", "axample")).is_err());
    }
    for text in [
        "",
        "a",
        "a+b",
        "a+00000000+AA==",
        "example.com/foo+530d903b+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        "example.com/foo+530D903A+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        " +530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
        "PRIVATE+KEY+x",
    ] {
        assert!(text.parse::<VerifierKey>().is_err(), "{text}");
        assert!(SigningKey::parse(text).is_err(), "{text}");
    }
    for name in ["", "a b", "a+b", "a\nb", "a\u{2003}b", &"n".repeat(256)] {
        assert!(
            SigningKey::new(name, KeyType::Note, [1; 32]).is_err(),
            "{name}"
        );
    }
}

#[test]
fn a_wrong_note_is_refused() {
    let line = log_key().sign("text\n", 0).to_string();
    for text in [
        String::new(),
        "\n".to_owned(),
        "text\n".to_owned(),
        "text\n\n".to_owned(),
        format!("\n\n{line}\n"),
        format!("text\n{line}\n"),
        format!("text\n\n{line}"),
        format!("text\n\n{line}\n\n"),
        format!("text\n\n{line}\nx\n"),
        format!("te\txt\n\n{line}\n"),
        format!("text\r\n\r\n{line}\r\n"),
        format!("text\n\n{}\n", line.replace('\u{2014}', "-")),
        format!("text\n\n{}\n", line.trim_end_matches('=')),
        "text\n\n\u{2014} a AAAAAA==\n".to_owned(),
        format!("text\n\n{}", format!("{line}\n").repeat(SIGNATURES_MAX + 1)),
        format!("{}\n\n{line}\n", "x".repeat(NOTE_BYTES_MAX)),
    ] {
        assert!(Note::parse(text.as_bytes()).is_err(), "{text:.80}");
    }
    assert!(Note::parse(b"\xff\n\n").is_err());
    let many = format!("text\n\n\n{}", format!("{line}\n").repeat(SIGNATURES_MAX));
    assert_eq!(Note::parse(many.as_bytes()).unwrap().text(), "text\n\n");
}

#[test]
fn a_proof_needs_the_log_and_the_witnesses() {
    let proof = proof(3, 700);
    let again = InclusionProof::parse(proof.to_string().as_bytes()).unwrap();
    assert_eq!(again, proof);
    let named = [1, 2].map(|n| (format!("witness.example/{n}"), 1_679_315_147));
    assert_eq!(again.verify(leaf(3), &policy(2)).unwrap(), named);
    assert!(again.verify(leaf(4), &policy(2)).is_err());
    let too_few = again.verify(leaf(3), &policy(3)).unwrap_err();
    assert_eq!(
        too_few.to_string(),
        "2 of the known witnesses signed the checkpoint, and 3 have to"
    );
    let mut unknown = policy(2);
    unknown.origin_keys = vec![EXAMPLE_KEY.parse().unwrap()];
    assert!(again.verify(leaf(3), &unknown).is_err());
    // One witness that is named twice is one.
    let mut twice = policy(1);
    twice.witness_keys = vec![witness_key(1).verifier().clone(); 2];
    twice.quorum = 2;
    assert!(again.verify(leaf(3), &twice).is_err());
    // A cosignature is no signature of the log, and the other way round.
    let mut crossed = policy(2);
    std::mem::swap(&mut crossed.origin_keys, &mut crossed.witness_keys);
    assert!(again.verify(leaf(3), &crossed).is_err());
}

#[test]
fn every_changed_bit_of_a_proof_is_noticed() {
    let text = proof(299, 700).to_string();
    let leaf_of =
        |proof: &InclusionProof| TreeHash::leaf(proof.extra.as_deref().unwrap_or_default());
    let is_good = |bytes: &[u8]| {
        InclusionProof::parse(bytes)
            .is_ok_and(|proof| proof.verify(leaf_of(&proof), &policy(2)).is_ok())
    };
    assert!(is_good(text.as_bytes()));
    for at in 0..text.len() {
        for bit in 0..8 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            assert!(!is_good(&bytes), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn a_witness_signs_one_history() {
    let (tiles, fork) = (tree(600), {
        let (mut edge, mut tiles) = (Edge::default(), Tiles::default());
        (0..600).for_each(|n| edge.push(leaf(if n == 99 { 1_000 } else { n })));
        for (id, bytes) in edge.take_changed() {
            tiles.insert(id, &bytes).unwrap();
        }
        tiles
    });
    let keys = [log_key().verifier().clone()];
    let judge = |request: &AddCheckpoint, known| {
        let read = AddCheckpoint::parse(request.to_string().as_bytes()).unwrap();
        judge(&read, &keys, known)
    };
    let known = judge(&request(&tiles, 0, 300), KnownTree::none()).unwrap();
    assert_eq!(known.size, 300);
    assert_eq!(judge(&request(&tiles, 300, 300), known), Ok(known));
    assert_eq!(judge(&request(&tiles, 300, 600), known).unwrap().size, 600);
    for (request, expected) in [
        (request(&tiles, 0, 600), Declined::Conflict(300)),
        (request(&tiles, 200, 250), Declined::Conflict(300)),
        (request(&fork, 300, 600), Declined::Inconsistent),
        (request(&fork, 300, 300), Declined::Inconsistent),
        (
            AddCheckpoint {
                old: 300,
                ..request(&tiles, 0, 200)
            },
            Declined::Smaller,
        ),
        (
            AddCheckpoint {
                proof: Vec::new(),
                ..request(&tiles, 300, 600)
            },
            Declined::Inconsistent,
        ),
        (
            AddCheckpoint {
                proof: vec![leaf(1)],
                ..request(&tiles, 300, 300)
            },
            Declined::Inconsistent,
        ),
    ] {
        assert_eq!(judge(&request, known), Err(expected), "{request}");
    }
    assert_eq!(
        crate::judge(&request(&tiles, 300, 600), &[], known),
        Err(Declined::Unsigned)
    );
    let mut wrong = request(&tiles, 300, 600).to_string();
    wrong = wrong.replace("\n600\n", "\n601\n");
    let wrong = AddCheckpoint::parse(wrong.as_bytes()).unwrap();
    assert_eq!(judge(&wrong, known), Err(Declined::Unsigned));
    let filled = AddCheckpoint {
        proof: vec![leaf(1)],
        ..request(&tiles, 0, 300)
    };
    assert_eq!(
        judge(&filled, KnownTree::none()),
        Err(Declined::Inconsistent)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz::text(&bytes);
    }

    #[test]
    fn what_almost_is_a_text_is_read_or_refused(
        text in "(old [0-9]{1,3}\n)?(c2sp.org/tlog-proof@v1\n)?(extra AA==\n)?(index [0-9]{1,20}\n)?([A-Za-z0-9+/]{43}=\n){0,2}\n?[a-z\n+ ]{0,9}\n[0-9]{0,20}\n[A-Za-z0-9+/]{43}=\n\n(\u{2014} [a-z]{1,3} [A-Za-z0-9+/]{8}\n){0,3}",
    ) {
        fuzz::text(text.as_bytes());
    }
}

#[test]
fn a_witness_with_the_name_of_the_log_is_not_the_log() {
    let signed = checkpoint(&tree(3), 3);
    let witness = SigningKey::new(ORIGIN, KeyType::Cosignature, [9; 32]).unwrap();
    let both = signed
        .with(&[witness.sign(signed.note().text(), 1)])
        .unwrap();
    assert!(both.is_signed_last_by(log_key().verifier()));
    assert!(!both.is_signed_last_by(witness.verifier()));
    assert!(both.has_key_of(&signed));
}

#[test]
fn a_continuation_is_accepted_by_its_name_only() {
    for (origin, expected) in [
        ("a/1", ("a/1", 0)),
        ("a/1+1", ("a/1", 1)),
        ("a/1+12", ("a/1", 12)),
        ("a/1+0", ("a/1+0", 0)),
        ("a/1+01", ("a/1+01", 0)),
        ("a/1+x", ("a/1+x", 0)),
    ] {
        assert_eq!(continuation(origin), expected);
        assert_eq!(continued(expected.0, expected.1), origin);
    }
    let mut head = checkpoint(&tree(3), 3).checkpoint().clone();
    head.origin = continued(ORIGIN, 2);
    let line = log_key().sign(&head.to_string(), 0);
    let signed = SignedCheckpoint::new(head, vec![line]).unwrap();
    assert!(signed.is_signed_last_by(log_key().verifier()));
    let verify = |origin: Option<String>| {
        Policy {
            origin,
            ..policy(0)
        }
        .verify(&signed)
    };
    let is_continued = |found| matches!(found, Err(Untrusted::Continued { .. }));
    assert!(is_continued(verify(None)));
    assert!(is_continued(verify(Some(continued(ORIGIN, 1)))));
    assert!(verify(Some(continued(ORIGIN, 2))).is_ok());
    let other = verify(Some(continued(ORIGIN, 3)));
    assert!(matches!(other, Err(Untrusted::Origin { .. })));
}
