//! Names and time of the nodes that share a database.

use std::sync::Arc;

use culvert_base::{Clock, SystemClock};

use super::on_both_engines;
use super::place::Place;

on_both_engines!(a_running_process_has_its_name_alone);

async fn a_running_process_has_its_name_alone(place: &Place) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let one = place.store().await;
    let first = one.join_as("edge", Arc::clone(&clock)).await.unwrap();
    assert_eq!(first.name, "edge");
    // Both clocks are of this machine, however long the test is kept waiting.
    let apart = first.clock.now().unix_seconds() - clock.now().unix_seconds();
    assert!(apart.abs() < 30, "{apart} s");
    if place.is_sqlite() {
        one.close().await;
        return;
    }
    let other = place.store().await;
    let second = other.join_as("edge", Arc::clone(&clock)).await.unwrap();
    assert_eq!(second.name, "edge-2");
    one.close().await;
    let third = place.store().await;
    let heir = third.join_as("edge", clock).await.unwrap();
    assert_eq!(heir.name, "edge", "free again when its process is gone");
    other.close().await;
    third.close().await;
}
