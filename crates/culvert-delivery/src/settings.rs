//! Settings of the delivery plane.

use std::path::PathBuf;
use std::time::Duration;

use culvert_base::Supervisor;

use crate::event_log::JetStreamSettings;
use crate::retry;
use crate::target::settings::TargetSettings;

/// The kind of document that destinations are stored as. A destination without one is deleted.
pub const DESTINATION_KIND: &str = "event_destination";

/// Limits and names. The defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name; leases carry it, and those of its former life are released at start.
    pub node: String,
    /// File of this node in which it notes how many records it was offered, for the life after it to
    /// tell what a crash took; without one, what was offered since the last commit goes uncounted.
    pub counts: Option<PathBuf>,
    /// Names this start of the machine, which outlives the process: after another one what the file says may
    /// be too little. Without a name that is not told apart.
    pub boot: Option<String>,
    /// Whether other nodes use the same database: they tell each other how destinations are doing, and
    /// live tails see the traffic of all.
    pub is_shared: bool,
    /// Whether this node sends; one that does not still records and copies, for nodes that do.
    pub sends: bool,
    /// Where traffic batches wait; in the queue where there is none.
    pub event_log: Option<JetStreamSettings>,
    /// What targets may use and reach.
    pub targets: TargetSettings,
    /// Records waiting to be written, at most; more are dropped and counted.
    pub offer_records_max: usize,
    /// Bytes of records waiting to be written, at most.
    pub offer_bytes_max: usize,
    /// A flush happens after that many events,
    pub flush_events: usize,
    /// or that many bytes of them,
    pub flush_bytes: usize,
    /// or that long after the first, whichever comes first.
    pub flush_after: Duration,
    /// A batch that was not taken for so long is put into the queue, if it did not go there at once;
    /// zero: all go there.
    pub direct_for: Duration,
    /// Traffic events waiting for one destination, at most; further ones are dropped and counted. Audit
    /// events have room of their own.
    pub destination_events_max: u64,
    /// Bytes of traffic events waiting for one destination, at most.
    pub destination_bytes_max: u64,
    /// Bytes waiting for all destinations, at most, for traffic events.
    pub disk_bytes_max: u64,
    /// Bytes of events in memory, of all destinations; above that one that has more than its share of
    /// them gets no more.
    pub held_bytes_max: u64,
    /// Live tails open at once.
    pub tails_max: usize,
    /// A send takes no longer.
    pub send_deadline: Duration,
    /// A lease holds for this long; longer than a send.
    pub lease: Duration,
    /// The audit log keeps events for this long.
    pub audit_retention: Duration,
    /// Traffic events are kept for replays for this long; zero: not at all.
    pub traffic_retention: Duration,
    /// Bytes of them that are kept at most.
    pub traffic_retention_bytes: u64,
    /// Stopping takes no longer.
    pub drain: Duration,
    /// When to try again and when to stop.
    pub schedule: retry::Schedule,
    /// Where long-lived tasks report their end.
    pub supervisor: Supervisor,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: "culvert".to_owned(),
            counts: None,
            boot: None,
            is_shared: false,
            sends: true,
            event_log: None,
            targets: TargetSettings::default(),
            offer_records_max: 65_536,
            offer_bytes_max: 32 << 20,
            flush_events: 500,
            flush_bytes: 512 << 10,
            flush_after: Duration::from_millis(200),
            direct_for: Duration::from_millis(500),
            destination_events_max: 10_000,
            destination_bytes_max: 32 << 20,
            disk_bytes_max: 4 << 30,
            held_bytes_max: 64 << 20,
            tails_max: 64,
            send_deadline: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            audit_retention: Duration::from_secs(365 * 24 * 60 * 60),
            traffic_retention: Duration::ZERO,
            traffic_retention_bytes: 1 << 30,
            drain: Duration::from_secs(10),
            schedule: retry::Schedule::default(),
            supervisor: Supervisor::default(),
        }
    }
}

/// An object of gathered events is put in no longer time. The leases of its batches hold for twice as
/// long.
pub const PUT_DEADLINE: Duration = Duration::from_secs(300);
