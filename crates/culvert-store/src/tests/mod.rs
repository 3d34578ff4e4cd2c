//! One suite that runs against both engines, which must behave alike.
//!
//! The PostgreSQL server is at `CULVERT_TEST_POSTGRES_URL`, or on this machine. Every test creates
//! its own database and drops it. Without a server, these tests are reported as ignored.

mod answers;
mod audit;
mod event_index;
mod fail_over;
mod full;
mod history;
mod kill;
mod lost_answers;
mod migration;
mod node;
mod proxy;
mod queue;
mod statements;
mod statistics;
mod store;
mod test_database;
mod texts;
mod tree;

/// Nothing decides which rows are removed.
const UNDECIDED: crate::Deciding = crate::Deciding {
    kind: "hold",
    as_of: crate::Revision::START,
};

/// Runs each test on both engines.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use crate::tests::test_database::TestDatabase;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name(&TestDatabase::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if let Some(db) = TestDatabase::postgres().await {
                    super::$name(&db).await;
                }
            }
        }
    )*};
}
use on_both_engines;
