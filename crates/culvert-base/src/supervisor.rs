//! Supervision of long-lived tasks. A task that ends unexpectedly counts as a failure of the process.
//!
//! When a task returns early, panics or is aborted, the process looks healthy but no longer does that work. The
//! supervisor records the name of the task, so that the process can report itself unready and stop. It needs no async
//! runtime: a supervised future reports its end when it is dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::sync::lock;

/// Records the ends of long-lived tasks. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    next: u64,
    running: BTreeMap<u64, Arc<RunningTask>>,
    ended: Vec<Ended>,
    waiting: Vec<Waker>,
}

/// A running task.
struct RunningTask {
    name: &'static str,
    is_aborted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A task that ended unexpectedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The name of the task, such as `delivery.dispatcher`.
    pub name: &'static str,
    /// Whether it panicked. Otherwise it returned or was aborted.
    pub has_panicked: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running: Vec<&str> = self.running.values().map(|entry| entry.name).collect();
        f.debug_struct("State")
            .field("running", &running)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Supervisor {
    /// Wraps `task` for supervision. Its end is expected once `is_stopping` returns true.
    ///
    /// The task counts as running from this call on.
    pub fn supervise<F>(
        &self,
        name: &'static str,
        is_stopping: impl Fn() -> bool + Send + 'static,
        task: F,
    ) -> Supervised<F>
    where
        F: Future<Output = ()>,
    {
        let entry = Arc::new(RunningTask {
            name,
            is_aborted: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.running.insert(id, Arc::clone(&entry));
        drop(state);
        Supervised {
            report: Report {
                supervisor: self.clone(),
                id,
                entry,
                is_stopping: Box::new(is_stopping),
                is_open: true,
            },
            task: Some(Box::pin(task)),
        }
    }

    /// The names of the running tasks, in the order of their start.
    pub fn running(&self) -> Vec<&'static str> {
        let state = self.lock();
        state.running.values().map(|entry| entry.name).collect()
    }

    /// The tasks that ended unexpectedly, in the order of their ends.
    pub fn failed(&self) -> Vec<Ended> {
        self.lock().ended.clone()
    }

    /// Completes when the first task ends unexpectedly.
    pub async fn failure(&self) -> Ended {
        std::future::poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(ended) = state.ended.first() {
                return Poll::Ready(ended.clone());
            }
            if !state.waiting.iter().any(|one| one.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the running tasks with this name like an abort, and returns whether there were any. For tests.
    pub fn abort(&self, name: &str) -> bool {
        let found: Vec<Arc<RunningTask>> = {
            let state = self.lock();
            let of_name = state.running.values().filter(|entry| entry.name == name);
            of_name.cloned().collect()
        };
        for entry in &found {
            entry.is_aborted.store(true, Ordering::Release);
            if let Some(waker) = lock(&entry.waker).take() {
                waker.wake();
            }
        }
        !found.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A supervised task.
pub struct Supervised<F> {
    // Before the task: if dropping the task ends others, the report names the cause and not one of them.
    report: Report,
    task: Option<Pin<Box<F>>>,
}

/// Reports the end of a task, at the latest when it is dropped.
struct Report {
    supervisor: Supervisor,
    id: u64,
    entry: Arc<RunningTask>,
    is_stopping: Box<dyn Fn() -> bool + Send>,
    is_open: bool,
}

impl<F: Future<Output = ()>> Future for Supervised<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        {
            let mut waker = lock(&this.report.entry.waker);
            match &mut *waker {
                Some(known) => known.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
        }
        if this.report.entry.is_aborted.load(Ordering::Acquire) {
            this.report.end();
            this.task = None;
        }
        match &mut this.task {
            Some(task) => task.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

impl<F> fmt::Debug for Supervised<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised")
            .field("name", &self.report.entry.name)
            .finish_non_exhaustive()
    }
}

impl Report {
    /// Reports the end once.
    fn end(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let is_expected = (self.is_stopping)();
        let mut state = self.supervisor.lock();
        state.running.remove(&self.id);
        if is_expected {
            return;
        }
        state.ended.push(Ended {
            name: self.entry.name,
            has_panicked: std::thread::panicking(),
        });
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting {
            waker.wake();
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        let mut future = Box::pin(future);
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn every_end_that_nothing_asked_for_is_a_failure() {
        let supervisor = Supervisor::default();
        let ended = |name, has_panicked| Ended { name, has_panicked };

        let returns = supervisor.supervise("returns", || false, ready(()));
        let dropped = supervisor.supervise("dropped", || false, pending());
        let panics = supervisor.supervise("panics", || false, async { panic!("it is a test") });
        let stops = supervisor.supervise("stops", || true, ready(()));
        assert_eq!(
            supervisor.running(),
            ["returns", "dropped", "panics", "stops"]
        );
        assert_eq!(poll(supervisor.failure()), Poll::Pending);

        assert_eq!(poll(stops), Poll::Ready(()));
        assert_eq!(supervisor.failed(), []);
        assert_eq!(poll(returns), Poll::Ready(()));
        drop(dropped);
        assert!(catch_unwind(AssertUnwindSafe(|| poll(panics))).is_err());
        assert_eq!(
            supervisor.failed(),
            [
                ended("returns", false),
                ended("dropped", false),
                ended("panics", true)
            ]
        );
        assert_eq!(
            poll(supervisor.failure()),
            Poll::Ready(ended("returns", false))
        );
        assert!(supervisor.running().is_empty());
    }

    #[test]
    fn the_first_failure_is_the_cause_of_the_others() {
        for is_aborted in [true, false] {
            let supervisor = Supervisor::default();
            let child = supervisor.supervise("child", || false, pending());
            let parent = async move {
                let _child = child;
                pending().await
            };
            let mut parent = Box::pin(supervisor.supervise("parent", || false, parent));
            let cx = &mut Context::from_waker(Waker::noop());
            assert_eq!(parent.as_mut().poll(cx), Poll::Pending);
            if is_aborted {
                assert!(supervisor.abort("parent"));
                assert_eq!(parent.as_mut().poll(cx), Poll::Ready(()));
            }
            drop(parent);
            let failed = supervisor.failed();
            let names: Vec<&str> = failed.iter().map(|one| one.name).collect();
            assert_eq!(names, ["parent", "child"]);
        }
    }

    #[test]
    fn an_abort_ends_the_task_of_its_name() {
        let supervisor = Supervisor::default();
        let mut task = Box::pin(supervisor.supervise("one", || false, pending()));
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(task.as_mut().poll(cx), Poll::Pending);
        assert!(!supervisor.abort("other"));
        assert!(supervisor.abort("one"));
        assert_eq!(task.as_mut().poll(cx), Poll::Ready(()));
        drop(task);
        assert_eq!(supervisor.failed().len(), 1);
        assert!(!supervisor.abort("one"));
    }
}
