//! The fields of a kind that any subscription wants: one bit for each field, tested before a value
//! is computed.

use std::fmt::Debug;
use std::sync::Arc;

use crate::bodies::BodyBudget;
use crate::catalogue::field::Slot;
use crate::catalogue::kind::EventKind;
use crate::record::Record;

/// A set of fields of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture(u64);

impl Capture {
    /// No field, because there are no subscriptions.
    pub const NONE: Self = Self(0);

    /// One field: for a recorder that only counts the records.
    pub const ONE: Self = Self(1);

    /// Every field of `kind`.
    pub const fn all(kind: &EventKind) -> Self {
        Self(u64::MAX >> (64 - kind.fields.len()))
    }

    /// The fields that a subscription gets which names none.
    pub const fn usual(kind: &EventKind) -> Self {
        let (mut usual, mut index) = (Self::NONE, 0);
        while index < kind.fields.len() {
            if !kind.fields[index].by_name {
                usual = usual.with_index(index);
            }
            index += 1;
        }
        usual
    }

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains the field of `slot`.
    pub const fn has<T>(self, slot: Slot<T>) -> bool {
        self.has_index(slot.index)
    }

    pub(crate) const fn has_index(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    /// The set with the field at `index` added. A kind has at most 64 fields.
    pub(crate) const fn with_index(self, index: usize) -> Self {
        Self(self.0 | 1 << index)
    }
}

/// Receives traffic events. Delivery implements it; the planes call it.
pub trait Recorder: Debug + Send + Sync {
    /// The fields of `kind` that subscriptions want now. For most kinds this is usually empty: then no
    /// record is made.
    fn capture(&self, kind: &'static EventKind) -> Capture;

    /// Accepts a completed record. Never waits: if the queue is full, the record is dropped and
    /// counted.
    fn offer(&self, record: Record);

    /// The memory for captured messages; `None` if they are not stored.
    fn bodies(&self) -> Option<Arc<BodyBudget>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HTTP_REQUEST_COMPLETE, Int32, TCP_CONNECTION_CLOSED};

    #[test]
    fn sets_of_fields() {
        const PORT: Slot<Int32> = TCP_CONNECTION_CLOSED.slot("conn.server_port");
        assert!(Capture::NONE.is_none() && !Capture::NONE.has(PORT));
        let all = Capture::all(&TCP_CONNECTION_CLOSED);
        assert!(all.has(PORT) && all.has_index(14) && !all.has_index(15));
        assert!(Capture::all(&HTTP_REQUEST_COMPLETE).has_index(41));
        let one = Capture::NONE.with_index(PORT.index);
        assert!(one.has(PORT) && !one.has_index(0));
        assert_eq!(one.union(all), all);
        for (kind, count) in [(&HTTP_REQUEST_COMPLETE, 34), (&TCP_CONNECTION_CLOSED, 10)] {
            let usual = Capture::usual(kind);
            assert_eq!(usual.0.count_ones(), count);
            assert_eq!(usual.union(Capture::all(kind)), Capture::all(kind));
        }
    }

    #[test]
    fn what_is_shared_between_threads_can_be() {
        fn shared<T: Send + Sync + 'static>() {}
        shared::<Record>();
        shared::<crate::Selection>();
        shared::<crate::Filter>();
        shared::<Box<dyn Recorder>>();
    }
}
