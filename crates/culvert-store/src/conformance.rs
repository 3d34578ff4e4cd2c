//! One suite, run against both engines: whatever holds on one holds on the other.
//!
//! PostgreSQL is taken from `CULVERT_TEST_POSTGRES_URL`, or from this machine; every test makes a
//! database of its own and drops it. Where there is none, that half is reported as ignored.

mod audit;
mod event_index;
mod full;
mod kill;
mod migration;
mod node;
mod place;
mod queue;
mod statements;
mod store;
mod texts;

/// Runs each test on both engines.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use crate::conformance::place::Place;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name(&Place::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(place) = Place::postgres().await {
                    super::$name(&place).await;
                }
            }
        }
    )*};
}
use on_both_engines;
