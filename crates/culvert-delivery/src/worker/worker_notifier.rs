//! Wakes the workers of destinations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Wakes workers, and requests those that do not run yet.
#[derive(Debug, Default)]
pub(crate) struct WorkerNotifier {
    asleep: Mutex<HashMap<Arc<str>, Arc<Notify>>>,
    pub(crate) wanted: Notify,
}

impl WorkerNotifier {
    /// Wakes the worker of a destination, or requests one.
    pub(crate) fn wake(&self, destination: &str) {
        let mut asleep = self
            .asleep
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        match asleep.get(destination) {
            Some(worker) => worker.notify_one(),
            None => {
                asleep.insert(destination.into(), Arc::new(Notify::new()));
                self.wanted.notify_one();
            }
        }
    }

    /// Wakes the running workers of these destinations after an edit.
    pub(crate) fn wake_each<'a>(&self, destinations: impl Iterator<Item = &'a str>) {
        let asleep = self
            .asleep
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for worker in destinations.filter_map(|id| asleep.get(id)) {
            worker.notify_one();
        }
    }

    pub(crate) fn each(&self) -> Vec<(Arc<str>, Arc<Notify>)> {
        let asleep = self
            .asleep
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        asleep
            .iter()
            .map(|(destination, notify)| (destination.clone(), notify.clone()))
            .collect()
    }

    pub(crate) fn forget(&self, destination: &str) {
        self.asleep
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .remove(destination);
    }
}
