//! Points in the layout in which they are stored.

use std::collections::BTreeMap;
use std::fmt;

use crate::codec::{Malformed, put, put_bytes, take, take_bytes};
use crate::point::Point;

/// What a point is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectKind {
    /// All endpoints of an account together.
    Account,
    /// An endpoint.
    Endpoint,
    /// A destination of events.
    Destination,
    /// A session of an agent.
    Agent,
    /// A server process.
    Node,
    /// An operation of the API, called with an API key: `ak_…/api_keys_list`.
    Key,
}

impl SubjectKind {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Account, "a"),
        (Self::Endpoint, "e"),
        (Self::Destination, "d"),
        (Self::Agent, "s"),
        (Self::Node, "n"),
        (Self::Key, "k"),
    ];

    fn letter(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(kind, _)| *kind == self)
            .map_or("", |(_, letter)| letter)
    }
}

/// Identifies a subject: its kind, the account that may read it (empty for nodes), and its id.
///
/// As text, subjects of one kind and account share a prefix: `e/ac_…/ep_…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// The key of a subject.
    pub fn new(kind: SubjectKind, account: &str, id: &str) -> Self {
        Self(format!("{}/{account}/{id}", kind.letter()).into())
    }

    /// Reads a key back.
    pub fn parse(text: &str) -> Option<Self> {
        let key = Self(text.into());
        key.parts().is_some().then_some(key)
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The start of the keys of all subjects of a kind in an account.
    pub fn prefix(kind: SubjectKind, account: &str) -> String {
        format!("{}/{account}/", kind.letter())
    }

    /// Of an operation that an API key called, the key of the API key itself.
    pub fn of_key(&self) -> Option<Self> {
        match self.parts()? {
            (SubjectKind::Key, account, id) => {
                let (key, _) = id.split_once('/')?;
                Some(Self::new(SubjectKind::Key, account, key))
            }
            _ => None,
        }
    }

    fn parts(&self) -> Option<(SubjectKind, &str, &str)> {
        let (letter, rest) = self.0.split_once('/')?;
        let (account, id) = rest.split_once('/')?;
        let mut all = SubjectKind::ALL.iter();
        let (kind, _) = all.find(|(_, known)| *known == letter)?;
        Some((*kind, account, id))
    }

    /// The id.
    pub fn id(&self) -> &str {
        self.parts().map_or("", |(_, _, id)| id)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first byte of everything stored.
const FORMAT: u8 = 1;

/// Points of several subjects in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    points: BTreeMap<Key, Point>,
}

impl Frame {
    /// Adds a point to a subject.
    pub fn add(&mut self, key: Key, point: &Point) {
        if !point.is_empty() {
            self.points.entry(key).or_default().merge_step(point);
        }
    }

    /// Adds a frame of another step of the same node.
    pub fn merge_step(&mut self, other: Self) {
        for (key, point) in other.points {
            self.points.entry(key).or_default().merge_step(&point);
        }
    }

    /// Whether it has no points.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// All points, by key.
    pub fn points(&self) -> impl Iterator<Item = (&Key, &Point)> {
        self.points.iter()
    }

    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        let mut one = Vec::new();
        for (key, point) in &self.points {
            put_bytes(&mut out, key.as_str().as_bytes());
            one.clear();
            point.encode(&mut one);
            put_bytes(&mut out, &one);
        }
        out
    }

    /// Reads the subjects that `wants` selects by their text.
    ///
    /// # Errors
    ///
    /// If the bytes are not those of a frame.
    pub fn decode(bytes: &[u8], wants: impl Fn(&str) -> bool) -> Result<Self, Malformed> {
        let mut input = format_of(bytes)?;
        let mut frame = Self::default();
        while !input.is_empty() {
            let key = take_bytes(&mut input)?;
            let mut point = take_bytes(&mut input)?;
            let text = std::str::from_utf8(key).map_err(|_| Malformed)?;
            if wants(text) {
                let key = Key::parse(text).ok_or(Malformed)?;
                frame.points.insert(key, Point::decode(&mut point)?);
            }
        }
        Ok(frame)
    }
}

/// Points of one subject in several steps, numbered from the start of the chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    points: BTreeMap<u32, Point>,
}

impl Chunk {
    /// Adds a point to a step.
    pub fn add(&mut self, step: u32, point: &Point) {
        self.points.entry(step).or_default().merge_step(point);
    }

    /// The points with their steps, ascending.
    pub fn points(&self) -> impl Iterator<Item = (u32, &Point)> {
        self.points.iter().map(|(step, point)| (*step, point))
    }

    /// As stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        for (step, point) in &self.points {
            put(&mut out, u64::from(*step));
            point.encode(&mut out);
        }
        out
    }

    /// Reads it back.
    ///
    /// # Errors
    ///
    /// If the bytes are not those of a chunk.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = format_of(bytes)?;
        let mut chunk = Self::default();
        while !input.is_empty() {
            let step = u32::try_from(take(&mut input)?).map_err(|_| Malformed)?;
            chunk.points.insert(step, Point::decode(&mut input)?);
        }
        Ok(chunk)
    }
}

fn format_of(bytes: &[u8]) -> Result<&[u8], Malformed> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::point::Field;

    fn point(requests: u64) -> Point {
        let mut point = Point::default();
        point.add(Field::Status2xx, requests);
        point
    }

    #[test]
    fn a_frame_is_read_back_in_part() {
        let mut frame = Frame::default();
        let one = Key::new(SubjectKind::Endpoint, "ac_1", "ep_1");
        frame.add(one.clone(), &point(3));
        frame.add(one, &point(4));
        frame.add(Key::new(SubjectKind::Node, "", "a/b"), &point(5));
        frame.add(Key::new(SubjectKind::Node, "", "idle"), &Point::default());
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes, |_| true), Ok(frame));
        let prefix = Key::prefix(SubjectKind::Endpoint, "ac_1");
        let part = Frame::decode(&bytes, |key| key.starts_with(&prefix)).unwrap();
        let points: Vec<_> = part
            .points()
            .map(|(key, point)| (key.id(), point.requests()))
            .collect();
        assert_eq!(points, [("ep_1", 7)]);
        assert_eq!(Key::parse("n//a/b").unwrap().id(), "a/b");
        assert_eq!(Key::parse("x/1/2"), None);
        assert_eq!(Frame::decode(&[2], |_| true), Err(Malformed));
    }

    #[test]
    fn a_chunk_is_read_back() {
        let mut chunk = Chunk::default();
        chunk.add(29, &point(1));
        chunk.add(0, &point(2));
        chunk.add(0, &point(2));
        let read = Chunk::decode(&chunk.encode()).unwrap();
        assert_eq!(read, chunk);
        let points: Vec<_> = read
            .points()
            .map(|(at, point)| (at, point.requests()))
            .collect();
        assert_eq!(points, [(0, 4), (29, 1)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            bytes.insert(0, FORMAT);
            drop(Frame::decode(&bytes, |_| true));
            drop(Chunk::decode(&bytes));
        }
    }
}
