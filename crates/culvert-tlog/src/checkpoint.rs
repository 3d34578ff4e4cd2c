//! Checkpoints (C2SP `tlog-checkpoint`): signed heads of a tree, and who has to have signed them.

use std::fmt;

use crate::hash::{TreeHash, decimal};
use crate::key::{KeyType, VerifierKey};
use crate::note::{BadNote, Note, SignatureLine, WrongSignature};

/// Why a text is no checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheckpoint {
    /// It is no signed note.
    #[error(transparent)]
    Note(#[from] BadNote),
    /// Its text is not that of a checkpoint.
    #[error("a checkpoint must have lines with the origin, the size and the hash of a tree")]
    Form,
}

/// The log of an origin, and which continuation of it the origin is. A log that ended at a restore goes on as `<name>+1`,
/// then as `<name>+2`; the log itself is continuation 0. Names of keys have no `+`, so keys keep the name of the log.
pub fn continuation(origin: &str) -> (&str, u64) {
    let parts = origin.rsplit_once('+');
    let parts = parts.and_then(|(log, n)| Some((log, decimal(n).filter(|n| *n > 0)?)));
    parts.unwrap_or((origin, 0))
}

/// The origin of the `n`th continuation of a log.
pub fn continued(log: &str, n: u64) -> String {
    match n {
        0 => log.to_owned(),
        n => format!("{log}+{n}"),
    }
}

/// The head of a tree. Displayed as the text that is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The identity of the log.
    pub origin: String,
    /// The number of leaves.
    pub size: u64,
    /// The root of the tree.
    pub root: TreeHash,
    /// Further lines, without meaning here.
    pub extensions: Vec<String>,
}

impl Checkpoint {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let checkpoint = Self {
            origin: lines.next()?.to_owned(),
            size: decimal(lines.next()?)?,
            root: lines.next()?.parse().ok()?,
            extensions: lines.map(str::to_owned).collect(),
        };
        let is_whole = !checkpoint.origin.is_empty()
            && checkpoint.extensions.iter().all(|line| !line.is_empty());
        is_whole.then_some(checkpoint)
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin, size, root, ..
        } = self;
        write!(f, "{origin}\n{size}\n{root}\n")?;
        self.extensions
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// A checkpoint with its signatures, none of them verified. Displayed as the note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedCheckpoint {
    note: Note,
    checkpoint: Checkpoint,
}

impl SignedCheckpoint {
    /// The checkpoint with these signatures. `None` if it would be no checkpoint.
    pub fn new(checkpoint: Checkpoint, signatures: Vec<SignatureLine>) -> Option<Self> {
        let note = Note::new(checkpoint.to_string(), signatures)?;
        (Checkpoint::parse(note.text()).as_ref() == Some(&checkpoint))
            .then_some(Self { note, checkpoint })
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadCheckpoint> {
        let note = Note::parse(bytes)?;
        let checkpoint = Checkpoint::parse(note.text()).ok_or(BadCheckpoint::Form)?;
        Ok(Self { note, checkpoint })
    }

    /// The note.
    pub fn note(&self) -> &Note {
        &self.note
    }

    /// The head of the tree.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Whether this key's signature is the last one in the name of the log, which is that of its current key.
    pub fn is_signed_last_by(&self, key: &VerifierKey) -> bool {
        self.last_of_log().is_some_and(|line| key.is_of(line))
            && self.note.signed_by(key).is_ok_and(|it| it.is_some())
    }

    /// Whether the last signatures in the names of the logs are of the same key, none of them verified.
    pub fn has_key_of(&self, other: &Self) -> bool {
        let key = |it: &Self| {
            it.last_of_log()
                .map(|line| (line.name.clone(), line.key_id))
        };
        key(self) == key(other)
    }

    /// The last signature in the name of the log. One of a witness with that name is none of the log.
    fn last_of_log(&self) -> Option<&SignatureLine> {
        let (log, _) = continuation(&self.checkpoint.origin);
        let of_log = |line: &&SignatureLine| line.name == log && !line.is_cosignature();
        self.note.signatures().iter().rfind(of_log)
    }

    /// The same checkpoint with these signature lines too; a line of the same key is replaced. `None` if there would be
    /// too many.
    pub fn with(&self, added: &[SignatureLine]) -> Option<Self> {
        let is_replaced = |line: &&SignatureLine| {
            let is_same = |new: &SignatureLine| new.name == line.name && new.key_id == line.key_id;
            !added.iter().any(is_same)
        };
        let kept = self.note.signatures().iter().filter(is_replaced);
        let signatures = kept.chain(added).cloned().collect();
        Self::new(self.checkpoint.clone(), signatures)
    }
}

impl fmt::Display for SignedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.note, f)
    }
}

/// Who has to have signed a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Keys of logs. The name of a key is the origin that it signs for.
    pub origin_keys: Vec<VerifierKey>,
    /// The origin that the checkpoint must have. Without it, the name of the key: a continuation has to be named.
    pub origin: Option<String>,
    /// Keys of witnesses.
    pub witness_keys: Vec<VerifierKey>,
    /// How many of the witnesses have to have signed.
    pub quorum: usize,
}

/// Why a checkpoint is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// A line names a known key and is not its signature.
    #[error(transparent)]
    Wrong(#[from] WrongSignature),
    /// No key of the log signed.
    #[error("the checkpoint of `{0}` is not signed by a known key of that log")]
    Unsigned(String),
    /// The log ended at a restore.
    #[error(
        "the log `{ended}` ended: its server was restored, and continues it as `{origin}`; to accept that, name it with `--origin {origin}`"
    )]
    Continued {
        /// The origin that is asked for.
        ended: String,
        /// The origin of the checkpoint.
        origin: String,
    },
    /// The checkpoint is of another continuation of the log.
    #[error("the checkpoint is of `{origin}` and not of `{asked}`")]
    Origin {
        /// The origin that is asked for.
        asked: String,
        /// The origin of the checkpoint.
        origin: String,
    },
    /// Too few witnesses signed.
    #[error("{found} of the known witnesses signed the checkpoint, and {needed} have to")]
    Quorum {
        /// How many signed.
        found: usize,
        /// How many have to.
        needed: usize,
    },
}

impl Policy {
    /// Verifies all signatures of known keys. Returns the names of the witnesses that signed, with the time in seconds since
    /// 1970.
    ///
    /// # Errors
    /// If the checkpoint is not to be trusted.
    pub fn verify(&self, signed: &SignedCheckpoint) -> Result<Vec<(String, u64)>, Untrusted> {
        let origin = &signed.checkpoint().origin;
        let (log, _) = continuation(origin);
        let mut is_signed = false;
        for key in &self.origin_keys {
            let is_of_log = key.key_type() == KeyType::Note && key.name() == log;
            is_signed |= is_of_log && signed.note().signed_by(key)?.is_some();
        }
        if !is_signed {
            return Err(Untrusted::Unsigned(origin.clone()));
        }
        self.refuse_other_origin(origin)?;
        let mut witnesses: Vec<(&VerifierKey, u64)> = Vec::new();
        for key in &self.witness_keys {
            // A key that is given twice, under whatever names, is one witness; one of the log is none.
            let is_same = |other: &VerifierKey| other.public() == key.public();
            let is_known = witnesses.iter().any(|(other, _)| is_same(other));
            if key.key_type() != KeyType::Cosignature
                || is_known
                || self.origin_keys.iter().any(is_same)
            {
                continue;
            }
            if let Some(at) = signed.note().signed_by(key)? {
                witnesses.push((key, at));
            }
        }
        if witnesses.len() < self.quorum {
            return Err(Untrusted::Quorum {
                found: witnesses.len(),
                needed: self.quorum,
            });
        }
        let named = |(key, at): (&VerifierKey, u64)| (key.name().to_owned(), at);
        Ok(witnesses.into_iter().map(named).collect())
    }

    fn refuse_other_origin(&self, origin: &str) -> Result<(), Untrusted> {
        let (log, n) = continuation(origin);
        let asked = self.origin.as_deref().unwrap_or(log);
        if asked == origin {
            return Ok(());
        }
        let (asked_log, asked_n) = continuation(asked);
        let is_continued = asked_log == log && asked_n < n;
        let (asked, origin) = (asked.to_owned(), origin.to_owned());
        Err(match is_continued {
            true => Untrusted::Continued {
                ended: asked,
                origin,
            },
            false => Untrusted::Origin { asked, origin },
        })
    }
}
