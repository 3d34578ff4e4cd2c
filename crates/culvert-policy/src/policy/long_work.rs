//! Work that takes so long that other tasks must not wait for it.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that may take many milliseconds. Other tasks of the thread go on with another thread meanwhile; those that
/// the same task polls wait.
pub(crate) fn run<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // There are no other threads, or no tasks.
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// One thread serves all tasks, and a task waits for what another one does meanwhile.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_meanwhile() {
        let (begun, waits) = tokio::sync::oneshot::channel();
        let (ends, end) = mpsc::channel();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            waits.await.unwrap();
            ends.send(()).unwrap();
        });
        tasks.spawn(async move {
            run(move || {
                begun.send(()).unwrap();
                end.recv_timeout(Duration::from_secs(60)).unwrap();
            });
        });
        tasks.join_all().await;
    }

    #[test]
    fn work_needs_no_runtime() {
        assert_eq!(run(|| 7), 7);
        let alone = tokio::runtime::Builder::new_current_thread().build();
        assert_eq!(alone.unwrap().block_on(async { run(|| 7) }), 7);
    }
}
