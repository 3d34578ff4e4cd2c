//! Connections on threads of their own.

use super::harness::*;
use crate::Settings;

#[tokio::test]
async fn every_thread_serves_pools_and_drains_its_own_connections() {
    let mut rig = Rig::with(Settings {
        threads: 3,
        ..settings()
    })
    .await;
    let origin = hello(&mut rig.tasks).await;
    rig.edge.publish(http("app.example", origin).build()).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(rig.connect().await);
    }
    for _ in 0..5 {
        for client in &mut clients {
            client
                .send("GET / HTTP/1.1\r\nHost: app.example\r\n\r\n")
                .await;
            assert_eq!(client.answer("GET").await.status, 200);
        }
    }
    let meters = rig.edge.meters();
    // One client asks at a time: a thread needs one connection, and never takes another thread's.
    assert_eq!(meters.upstream_connects.get(), 3);
    assert_eq!(meters.upstream_reused.get(), 30 - 3);

    rig.cancel.cancel();
    for client in &mut clients {
        assert_eq!(client.rest().await, b"");
    }
    // Of every request, and of every connection.
    assert_eq!(rig.recorder.events(30 + 6).await.len(), 36);
}
