//! An edge without room: it says so, serves nobody new, and comes back.

use super::harness::*;
use crate::{Limits, Settings};

const GET: &str = "GET / HTTP/1.1\r\nHost: app.example\r\n\r\n";

fn with(memory_bytes: u64) -> Settings {
    Settings {
        limits: Limits {
            memory_bytes,
            ..settings().limits
        },
        ..settings()
    }
}

async fn level(rig: &Rig, level: u64) {
    soon("the level", async {
        while rig.edge.meters().overload_level.get() != level {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The course of an overload: before, within and after.
pub(super) async fn sheds() {
    let mut rig = Rig::with(with(u64::MAX)).await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut open = rig.connect().await;
    open.send(GET).await;
    assert_eq!(open.answer("GET").await.status, 200);
    let mut begun = rig.connect().await;
    begun.send("GET / HTTP/1.1\r\n").await;
    soon("both connections", async {
        while rig.edge.meters().connections.get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    // A budget of one byte is used up by any process.
    rig.edge.reload(&with(1)).unwrap();
    level(&rig, 3).await;
    begun.send("Host: app.example\r\n\r\n").await;
    let answer = begun.answer("GET").await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(open.rest().await, b"", "idle connections are closed");
    assert_eq!(rig.connect().await.rest().await, b"");
    let meters = rig.edge.meters();
    assert_eq!(meters.shed_requests.get(), 1);
    assert!(meters.shed_connections.get() >= 1);
    assert!(meters.shed_idle.get() >= 1);

    rig.edge.reload(&with(u64::MAX)).unwrap();
    level(&rig, 0).await;
    assert_eq!(rig.ask(GET).await.status, 200);
}
