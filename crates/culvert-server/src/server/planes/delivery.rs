//! Delivery, as the settings describe it.

use std::sync::Arc;

use anyhow::Result;
use culvert_control::Pepper;
use culvert_delivery::Delivery;
use culvert_installation::config::Role;

use crate::server::opened::Opened;
use crate::server::plane_settings::event_log;

/// The plane of the settings.
pub(crate) fn plane(opened: &Opened, pepper: &Pepper) -> Result<Arc<Delivery>> {
    let settings = &opened.settings;
    Ok(Delivery::new(
        culvert_delivery::Settings {
            event_log: event_log(settings, pepper)?,
            node: settings.node(),
            counts: Some(settings.data_dir.join("offered")),
            boot: boot(),
            is_shared: opened.is_shared(),
            sends: opened.has(Role::Delivery),
            targets: opened.targets()?,
            audit_retention: settings.audit.retention.0,
            traffic_retention: settings.events.traffic_retention.0,
            traffic_retention_bytes: settings.events.traffic_retention_bytes,
            capture_bytes_max: usize::try_from(settings.events.capture_memory_bytes)
                .unwrap_or(usize::MAX),
            supervisor: opened.supervisor.clone(),
            ..culvert_delivery::Settings::default()
        },
        opened.queue.clone(),
        opened.store.clone(),
        opened.shared_clock.clone(),
        opened.entropy.clone(),
    ))
}

/// The kernel's id of the current boot, where available.
fn boot() -> Option<String> {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.ok().map(|id| id.trim().to_owned())
}
