//! The indexes of an agent's connections. Of two connections with the same index, the server closes the older one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use culvert_base::sync::lock;
use tokio::sync::Notify;

use crate::wire::SESSION_CONNECTIONS_MAX;

/// The indexes in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    all: Arc<Mutex<BTreeMap<u32, Use>>>,
}

#[derive(Debug)]
enum Use {
    Serves,
    /// It takes no new streams, until it is notified that it is needed again.
    Retired(Arc<Notify>),
    /// It takes no new streams any more.
    Leaves,
}

/// An index, which is released with its last copy.
#[derive(Clone, Debug)]
pub(super) struct Number(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    value: u32,
    numbers: Numbers,
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.numbers.all).remove(&self.value);
    }
}

impl Number {
    pub(super) fn value(&self) -> u32 {
        self.0.value
    }

    /// Marks the connection as retired. It does not serve again.
    pub(super) fn leave(&self) {
        lock(&self.0.numbers.all).insert(self.0.value, Use::Leaves);
    }

    /// Marks the connection as retired. The result is notified if it is needed again.
    pub(super) fn retire(&self) -> Arc<Notify> {
        let recalled = Arc::new(Notify::new());
        let retired = Use::Retired(Arc::clone(&recalled));
        lock(&self.0.numbers.all).insert(self.0.value, retired);
        recalled
    }
}

impl Numbers {
    /// The lowest free index, if any.
    pub(super) fn take(&self) -> Option<Number> {
        let mut all = lock(&self.all);
        let value = (0..SESSION_CONNECTIONS_MAX).find(|value| !all.contains_key(value))?;
        all.insert(value, Use::Serves);
        Some(Number(Arc::new(Taken {
            value,
            numbers: self.clone(),
        })))
    }

    /// Number of connections that serve or are being opened.
    pub(super) fn serving(&self) -> usize {
        let all = lock(&self.all);
        all.values().filter(|it| matches!(it, Use::Serves)).count()
    }

    /// Has a retired connection serve again. `false` if there is none.
    pub(super) fn recall(&self) -> bool {
        for of in lock(&self.all).values_mut() {
            if let Use::Retired(recalled) = of {
                recalled.notify_one();
                *of = Use::Serves;
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_used_once_and_a_retired_connection_before_a_new_one() {
        let numbers = Numbers::default();
        let first = numbers.take().unwrap();
        let second = numbers.take().unwrap();
        assert_eq!((first.value(), second.value()), (0, 1));
        assert!(!numbers.recall());
        second.retire();
        assert_eq!(numbers.serving(), 1);
        assert_eq!(numbers.take().unwrap().value(), 2, "1 is still connected");
        assert!(numbers.recall());
        assert!(!numbers.recall());
        assert_eq!(numbers.serving(), 2);
        second.leave();
        assert!(!numbers.recall());
        assert_eq!(numbers.serving(), 1);
        let copy = first.clone();
        drop(first);
        assert_eq!(numbers.take().unwrap().value(), 2);
        drop(copy);
        assert_eq!(numbers.take().unwrap().value(), 0);
        let all: Vec<Number> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(all.len() as u32, SESSION_CONNECTIONS_MAX - 1);
    }
}
