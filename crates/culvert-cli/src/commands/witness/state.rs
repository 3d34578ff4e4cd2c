//! The state of a witness: one file with its logs, their keys, and the latest head of each that it signed.
//!
//! A change is written and synced before its caller continues. A lock beside the file makes the whole step, from reading to
//! writing, one at a time for all threads and processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use culvert_installation::keys::write_private;
use culvert_tlog::{
    AddCheckpoint, Declined, KnownTree, SignatureLine, SignedCheckpoint, SigningKey, VerifierKey,
    judge,
};
use serde::{Deserialize, Serialize};

/// Limit of the file, in bytes.
const STATE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Default, Deserialize, Serialize)]
struct Logs {
    /// The key of the witness that signs by this file; empty before its first start.
    #[serde(default)]
    witness: String,
    /// By origin.
    logs: BTreeMap<String, Log>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Log {
    /// Keys of which one has to have signed, the successor after its predecessor. None if the log was removed.
    keys: Vec<String>,
    /// The latest head that this witness signed, with its signature; empty before the first one. It is kept when the log is
    /// removed, so that adding it again does not let another history be signed.
    latest: String,
}

impl Log {
    fn origin_keys(&self) -> io::Result<Vec<VerifierKey>> {
        self.keys
            .iter()
            .map(|key| key.parse().map_err(|_| damaged()))
            .collect()
    }

    fn latest(&self) -> io::Result<Option<SignedCheckpoint>> {
        if self.latest.is_empty() {
            return Ok(None);
        }
        SignedCheckpoint::parse(self.latest.as_bytes())
            .map(Some)
            .map_err(|_| damaged())
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is damaged")
}

/// The lines of a head that are signatures of these keys, one for each, and the number of the last key that signed.
fn verified(signed: &SignedCheckpoint, keys: &[VerifierKey]) -> (Vec<SignatureLine>, usize) {
    let (mut lines, mut last) = (Vec::new(), 0);
    for (n, key) in keys.iter().enumerate() {
        let is_by_key = |line: &&SignatureLine| {
            let alone = SignedCheckpoint::new(signed.checkpoint().clone(), vec![(*line).clone()]);
            alone.is_some_and(|it| matches!(it.note().signed_by(key), Ok(Some(_))))
        };
        if let Some(line) = signed.note().signatures().iter().find(is_by_key) {
            lines.push(line.clone());
            last = n;
        }
    }
    (lines, last)
}

/// The response of a witness to `add-checkpoint`.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its signature line, with its end.
    Signed(String),
    /// It does not sign.
    Declined(Declined),
    /// It does not sign: the log signed two trees of the same size. The head that the witness signed, and the other one,
    /// with no signatures but those.
    Forked(Box<[SignedCheckpoint; 2]>),
    /// It does not know the log.
    UnknownLog,
}

/// The file.
#[derive(Clone, Debug)]
pub(super) struct WitnessState {
    path: PathBuf,
}

impl WitnessState {
    pub(super) fn at(path: PathBuf) -> Self {
        // The lock is beside the file itself, whatever link it is named by.
        let path = path.canonicalize().unwrap_or(path);
        Self { path }
    }

    fn lock(&self) -> io::Result<File> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(self.path.with_extension("lock"))?;
        file.lock()?;
        Ok(file)
    }

    fn read(&self) -> io::Result<Logs> {
        match std::fs::metadata(&self.path) {
            Ok(found) if found.len() > STATE_BYTES_MAX => return Err(damaged()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Logs::default()),
            Err(error) => return Err(error),
        }
        let text = std::fs::read_to_string(&self.path)?;
        serde_json::from_str(&text).map_err(|_| damaged())
    }

    fn write(&self, logs: &Logs) -> io::Result<()> {
        let text = serde_json::to_string_pretty(logs)?;
        write_private(&self.path, &format!("{text}\n")).map_err(io::Error::other)
    }

    /// Makes the file that of the witness with this key, with the logs that it has. Returns whether it is that now: it
    /// changes only if `is_new` says that nothing was signed with this key by another file.
    pub(super) fn claim(&self, key: &VerifierKey, is_new: bool) -> io::Result<bool> {
        let _locked = self.lock()?;
        let mut logs = self.read()?;
        if logs.witness == key.to_string() {
            return Ok(true);
        }
        if is_new {
            logs.witness = key.to_string();
            self.write(&logs)?;
        }
        Ok(is_new)
    }

    /// Adds a key of the log with this origin: in place of its others immediately, or as their successor when it first signs
    /// a head.
    pub(super) fn add(&self, origin: &str, key: &VerifierKey, in_place: bool) -> io::Result<()> {
        let _locked = self.lock()?;
        let mut logs = self.read()?;
        let log = logs.logs.entry(origin.to_owned()).or_default();
        let text = key.to_string();
        if in_place {
            log.keys.clear();
        }
        if !log.keys.contains(&text) {
            log.keys.push(text);
        }
        self.write(&logs)
    }

    /// Removes the keys of a log. Returns whether there were any.
    pub(super) fn remove(&self, origin: &str) -> io::Result<bool> {
        let _locked = self.lock()?;
        let mut logs = self.read()?;
        let log = logs.logs.get_mut(origin);
        let Some(log) = log.filter(|it| !it.keys.is_empty()) else {
            return Ok(false);
        };
        log.keys.clear();
        if log.latest.is_empty() {
            logs.logs.remove(origin);
        }
        self.write(&logs)?;
        Ok(true)
    }

    /// Decides about a head, and remembers it before it returns the signature.
    pub(super) fn answer(
        &self,
        request: &AddCheckpoint,
        key: &SigningKey,
        now: u64,
    ) -> io::Result<Answer> {
        let _locked = self.lock()?;
        let mut logs = self.read()?;
        // The file was lost or exchanged meanwhile.
        if logs.witness != key.verifier().to_string() {
            return Err(io::Error::other("the file is not that of this witness"));
        }
        let new = &request.signed;
        let log = logs.logs.get_mut(&new.checkpoint().origin);
        let Some(log) = log.filter(|it| !it.keys.is_empty()) else {
            return Ok(Answer::UnknownLog);
        };
        let (keys, latest) = (log.origin_keys()?, log.latest()?);
        let known = latest
            .as_ref()
            .map_or_else(KnownTree::none, |it| KnownTree {
                size: it.checkpoint().size,
                root: it.checkpoint().root,
            });
        let judged = judge(request, &keys, known);
        if judged == Err(Declined::Unsigned) {
            return Ok(Answer::Declined(Declined::Unsigned));
        }
        let (mut lines, last) = verified(new, &keys);
        let with = |lines| SignedCheckpoint::new(new.checkpoint().clone(), lines);
        let is_fork = |signed: &SignedCheckpoint| {
            let (old, new) = (signed.checkpoint(), new.checkpoint());
            old.size == new.size && old.root != new.root
        };
        if let Some(latest) = latest.filter(is_fork) {
            let other = with(lines).ok_or_else(damaged)?;
            return Ok(Answer::Forked(Box::new([latest, other])));
        }
        if let Err(declined) = judged {
            return Ok(Answer::Declined(declined));
        }
        let line = key.sign(new.note().text(), now);
        lines.push(line.clone());
        log.latest = with(lines).ok_or_else(damaged)?.to_string();
        // A key that signs is the successor of those before it.
        log.keys.drain(..last);
        self.write(&logs)?;
        Ok(Answer::Signed(format!("{line}\n")))
    }

    /// The latest signed head of the log whose origin has this digest, in hexadecimal digits.
    pub(super) fn latest(&self, is_asked: impl Fn(&str) -> bool) -> io::Result<Option<String>> {
        let logs = self.read()?.logs;
        let found = logs.into_iter().find(|(origin, _)| is_asked(origin));
        Ok(found.map(|(_, log)| log.latest).filter(|it| !it.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use culvert_tlog::{Checkpoint, Edge, KeyType, Tiles, TreeHash, consistency_ranges};

    use super::*;

    fn tree(size: u64, salt: u64) -> Tiles {
        let (mut edge, mut tiles) = (Edge::default(), Tiles::default());
        (0..size).for_each(|n| {
            edge.push(TreeHash::leaf(
                &[n.to_be_bytes(), salt.to_be_bytes()].concat(),
            ))
        });
        for (id, bytes) in edge.take_changed() {
            tiles.insert(id, &bytes).unwrap();
        }
        tiles
    }

    fn request(tiles: &Tiles, old: u64, new: u64, log: &SigningKey) -> AddCheckpoint {
        let checkpoint = Checkpoint {
            origin: log.verifier().name().to_owned(),
            size: new,
            root: tiles.root(new).unwrap(),
            extensions: Vec::new(),
        };
        let line = log.sign(&checkpoint.to_string(), 0);
        AddCheckpoint {
            old,
            proof: tiles
                .hashes(&consistency_ranges(old, new).unwrap())
                .unwrap(),
            signed: SignedCheckpoint::new(checkpoint, vec![line]).unwrap(),
        }
    }

    #[test]
    fn of_many_requests_at_once_one_history_is_signed() {
        let folder = tempfile::tempdir().unwrap();
        let state = WitnessState::at(folder.path().join("witness.json"));
        let log = SigningKey::new("log.example", KeyType::Note, [1; 32]).unwrap();
        let key = SigningKey::new("witness.example", KeyType::Cosignature, [2; 32]).unwrap();
        let honest = tree(64, 0);
        let first = request(&honest, 0, 8, &log);
        assert!(state.claim(key.verifier(), true).unwrap());
        assert!(matches!(
            state.answer(&first, &key, 1).unwrap(),
            Answer::UnknownLog
        ));
        state
            .add(log.verifier().name(), log.verifier(), false)
            .unwrap();
        assert!(matches!(
            state.answer(&first, &key, 1).unwrap(),
            Answer::Signed(_)
        ));
        let is_asked = |origin: &str| origin == "log.example";
        let mut last = 8;
        for round in 0..18 {
            // Two histories, from the tree that the witness knows: the first to come is the only one.
            let new = last + 2;
            let answers = std::thread::scope(|scope| {
                let started: Vec<_> = (0..8_u64)
                    .map(|n| {
                        let (state, key) = (state.clone(), &key);
                        let tiles = if n % 2 == 0 {
                            honest.clone()
                        } else {
                            tree(64, n)
                        };
                        let request = request(&tiles, last, new + n / 4, &log);
                        scope.spawn(move || state.answer(&request, key, round).unwrap())
                    })
                    .collect();
                let answers = started.into_iter().map(|thread| thread.join().unwrap());
                answers.collect::<Vec<_>>()
            });
            let n_signed = answers
                .iter()
                .filter(|it| matches!(it, Answer::Signed(_)))
                .count();
            let latest = state.latest(is_asked).unwrap().unwrap();
            let latest = SignedCheckpoint::parse(latest.as_bytes()).unwrap();
            let head = latest.checkpoint();
            assert_eq!(n_signed, 1);
            assert_eq!(honest.root(head.size), Some(head.root));
            assert!(latest.note().signed_by(key.verifier()).unwrap().is_some());
            last = head.size;
        }
        // Smaller trees and a damaged file are refused.
        let smaller = request(&honest, 2, 4, &log);
        assert!(matches!(
            state.answer(&smaller, &key, 1).unwrap(),
            Answer::Declined(Declined::Conflict(_))
        ));
        std::fs::write(folder.path().join("witness.json"), "{").unwrap();
        assert!(state.answer(&first, &key, 1).is_err());
    }

    /// A witness of the log `log.example`.
    struct Fixture {
        folder: tempfile::TempDir,
        state: WitnessState,
        log: SigningKey,
        key: SigningKey,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let state = WitnessState::at(folder.path().join("witness.json"));
            let key = SigningKey::new("witness.example", KeyType::Cosignature, [2; 32]).unwrap();
            assert!(state.claim(key.verifier(), true).unwrap());
            let log = log(1);
            state
                .add(log.verifier().name(), log.verifier(), false)
                .unwrap();
            Self {
                folder,
                state,
                log,
                key,
            }
        }

        fn answer(&self, request: &AddCheckpoint) -> Answer {
            self.state.answer(request, &self.key, 1).unwrap()
        }
    }

    /// A key of the log.
    fn log(seed: u8) -> SigningKey {
        SigningKey::new("log.example", KeyType::Note, [seed; 32]).unwrap()
    }

    #[test]
    fn the_old_key_of_a_log_is_not_trusted_after_its_successor() {
        let fixture = Fixture::new();
        let tiles = tree(64, 0);
        let (old, new) = (&fixture.log, log(3));
        fixture
            .state
            .add(new.verifier().name(), new.verifier(), false)
            .unwrap();
        // Both are known until the new one signs, here a head with both signatures.
        assert!(matches!(
            fixture.answer(&request(&tiles, 0, 8, old)),
            Answer::Signed(_)
        ));
        let mut both = request(&tiles, 8, 8, old);
        let line = new.sign(both.signed.note().text(), 0);
        both.signed = both.signed.with(&[line]).unwrap();
        assert!(matches!(fixture.answer(&both), Answer::Signed(_)));
        let by_old = request(&tiles, 8, 16, old);
        assert!(matches!(
            fixture.answer(&by_old),
            Answer::Declined(Declined::Unsigned)
        ));
        assert!(matches!(
            fixture.answer(&request(&tiles, 8, 16, &new)),
            Answer::Signed(_)
        ));

        // A key in place of all others.
        let next = log(4);
        fixture
            .state
            .add(next.verifier().name(), next.verifier(), true)
            .unwrap();
        assert!(matches!(
            fixture.answer(&request(&tiles, 16, 24, &new)),
            Answer::Declined(Declined::Unsigned)
        ));
        assert!(matches!(
            fixture.answer(&request(&tiles, 16, 24, &next)),
            Answer::Signed(_)
        ));
    }

    #[test]
    fn a_removed_log_is_unknown_and_its_head_is_not_forgotten() {
        let fixture = Fixture::new();
        let tiles = tree(64, 0);
        let log = &fixture.log;
        assert!(matches!(
            fixture.answer(&request(&tiles, 0, 8, log)),
            Answer::Signed(_)
        ));
        assert!(fixture.state.remove("log.example").unwrap());
        assert!(!fixture.state.remove("log.example").unwrap());
        assert!(matches!(
            fixture.answer(&request(&tiles, 8, 16, log)),
            Answer::UnknownLog
        ));
        fixture
            .state
            .add(log.verifier().name(), log.verifier(), false)
            .unwrap();
        assert!(matches!(
            fixture.answer(&request(&tree(64, 1), 0, 16, log)),
            Answer::Declined(Declined::Conflict(8))
        ));
        assert!(matches!(
            fixture.answer(&request(&tiles, 8, 16, log)),
            Answer::Signed(_)
        ));
    }

    #[test]
    fn only_two_heads_of_one_size_are_a_fork() {
        let fixture = Fixture::new();
        let (tiles, other) = (tree(64, 0), tree(64, 1));
        let log = &fixture.log;
        assert!(matches!(
            fixture.answer(&request(&tiles, 0, 8, log)),
            Answer::Signed(_)
        ));
        let mut junk = request(&tiles, 8, 16, log);
        junk.proof = vec![TreeHash::leaf(b"junk"); 3];
        for refused in [junk, request(&other, 8, 16, log)] {
            assert!(matches!(
                fixture.answer(&refused),
                Answer::Declined(Declined::Inconsistent)
            ));
        }
        // Whatever the request says about the older tree; but not if another one signed it.
        for old in [0, 8] {
            let Answer::Forked(heads) = fixture.answer(&request(&other, old, 8, log)) else {
                panic!("a fork from {old} is not found");
            };
            let [known, new] = heads.map(|it| it.checkpoint().root);
            assert_eq!(Some(known), tiles.root(8));
            assert_eq!(Some(new), other.root(8));
        }
        assert!(matches!(
            fixture.answer(&request(&other, 8, 8, &self::log(9))),
            Answer::Declined(Declined::Unsigned)
        ));
    }

    #[test]
    fn only_verified_signatures_are_kept() {
        let fixture = Fixture::new();
        let tiles = tree(64, 0);
        let mut first = request(&tiles, 0, 8, &fixture.log);
        let text = first.signed.note().text().to_owned();
        let stranger = SigningKey::new("witness.stranger", KeyType::Cosignature, [7; 32]).unwrap();
        let strange = [stranger.sign(&text, 5), log(8).sign(&text, 0)];
        let mut forged = fixture.key.sign(&text, 5);
        forged.key_id ^= 1;
        first.signed = first
            .signed
            .with(&strange)
            .unwrap()
            .with(&[forged])
            .unwrap();
        assert_eq!(first.signed.note().signatures().len(), 4);
        assert!(matches!(fixture.answer(&first), Answer::Signed(_)));
        let latest = fixture.state.latest(|_| true).unwrap().unwrap();
        let latest = SignedCheckpoint::parse(latest.as_bytes()).unwrap();
        assert_eq!(latest.note().signatures().len(), 2);
        for key in [fixture.log.verifier(), fixture.key.verifier()] {
            assert!(latest.note().signed_by(key).unwrap().is_some());
        }
    }

    #[test]
    fn a_lost_or_exchanged_state_signs_nothing() {
        let fixture = Fixture::new();
        let tiles = tree(64, 0);
        assert!(matches!(
            fixture.answer(&request(&tiles, 0, 8, &fixture.log)),
            Answer::Signed(_)
        ));
        let file = fixture.folder.path().join("witness.json");
        std::fs::remove_file(&file).unwrap();
        let fork = request(&tree(64, 1), 0, 8, &fixture.log);
        let (state, key) = (&fixture.state, &fixture.key);
        assert!(state.answer(&fork, key, 1).is_err());
        // Also with the log in a new file.
        state
            .add(fixture.log.verifier().name(), fixture.log.verifier(), false)
            .unwrap();
        assert!(state.answer(&fork, key, 1).is_err());
        assert!(!state.claim(key.verifier(), false).unwrap());
        assert!(state.answer(&fork, key, 1).is_err());
        assert!(state.claim(key.verifier(), true).unwrap());
        assert!(matches!(fixture.answer(&fork), Answer::Signed(_)));
    }
}
