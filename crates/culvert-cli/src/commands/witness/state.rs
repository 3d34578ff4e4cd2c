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
    AddCheckpoint, Declined, KnownTree, SignedCheckpoint, SigningKey, VerifierKey, judge,
};
use serde::{Deserialize, Serialize};

/// Limit of the file, in bytes.
const STATE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Default, Deserialize, Serialize)]
struct Logs {
    /// By origin.
    logs: BTreeMap<String, Log>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Log {
    /// Keys of which one has to have signed.
    keys: Vec<String>,
    /// The latest head that this witness signed, with its signature; empty before the first one.
    latest: String,
}

impl Log {
    fn origin_keys(&self) -> io::Result<Vec<VerifierKey>> {
        self.keys
            .iter()
            .map(|key| key.parse().map_err(|_| damaged()))
            .collect()
    }

    fn known(&self) -> io::Result<KnownTree> {
        if self.latest.is_empty() {
            return Ok(KnownTree::none());
        }
        let latest = SignedCheckpoint::parse(self.latest.as_bytes()).map_err(|_| damaged())?;
        let head = latest.checkpoint();
        Ok(KnownTree {
            size: head.size,
            root: head.root,
        })
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file is damaged")
}

/// The response of a witness to `add-checkpoint`.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its signature line, with its end.
    Signed(String),
    /// It does not sign.
    Declined(Declined),
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

    /// Adds a key of a log.
    pub(super) fn add(&self, key: &VerifierKey) -> io::Result<()> {
        let _locked = self.lock()?;
        let mut logs = self.read()?;
        let log = logs.logs.entry(key.name().to_owned()).or_default();
        let text = key.to_string();
        if !log.keys.contains(&text) {
            log.keys.push(text);
        }
        self.write(&logs)
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
        let Some(log) = logs.logs.get_mut(&request.signed.checkpoint().origin) else {
            return Ok(Answer::UnknownLog);
        };
        if let Err(declined) = judge(request, &log.origin_keys()?, log.known()?) {
            return Ok(Answer::Declined(declined));
        }
        let line = key.sign(request.signed.note().text(), now);
        let latest = request.signed.with(std::slice::from_ref(&line));
        log.latest = latest.ok_or_else(damaged)?.to_string();
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
        assert!(matches!(
            state.answer(&first, &key, 1).unwrap(),
            Answer::UnknownLog
        ));
        state.add(log.verifier()).unwrap();
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
}
