//! Settings of the delivery plane.

use std::path::PathBuf;
use std::time::Duration;

use culvert_base::Supervisor;
use culvert_target::TargetSettings;

use crate::queue::event_log::JetStreamSettings;
use crate::retry;

/// The kind of the documents that hold destinations. A destination without a document is deleted.
pub const DESTINATION_KIND: &str = "event_destination";

/// Limits and names. The defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this node. Leases carry it; at start, those of the node's previous run are released.
    pub node: String,
    /// A file in which this node records how many records it was offered, so that the next run can count those that a
    /// crash lost. Without a file, records offered since the last commit are not counted.
    pub counts: Option<PathBuf>,
    /// Identifies this boot of the machine. After another boot, the file may be outdated. If `None`, boots are not
    /// distinguished.
    pub boot: Option<String>,
    /// Whether other nodes use the same database. Nodes then share destination health and the traffic of live tails.
    pub is_shared: bool,
    /// Whether this node sends. A node that does not send still records events, and copies them for nodes that do.
    pub sends: bool,
    /// The log where traffic batches wait. Default: the queue in the database.
    pub event_log: Option<JetStreamSettings>,
    /// Settings of targets.
    pub targets: TargetSettings,
    /// Maximum number of records that wait to be written. Further records are dropped and counted.
    pub offer_records_max: usize,
    /// Maximum number of bytes of these records.
    pub offer_bytes_max: usize,
    /// Maximum number of events between two flushes.
    pub flush_events: usize,
    /// Maximum number of bytes between two flushes.
    pub flush_bytes: usize,
    /// Maximum time from the first event to a flush.
    pub flush_after: Duration,
    /// A batch that is not accepted within this time is written to the queue. Zero: every batch is written to the
    /// queue immediately.
    pub direct_for: Duration,
    /// Maximum number of traffic events that wait for one destination. Further events are dropped and counted. Audit
    /// events do not count.
    pub destination_events_max: u64,
    /// Maximum number of bytes of traffic events that wait for one destination.
    pub destination_bytes_max: u64,
    /// Maximum number of bytes of traffic events that wait for all destinations.
    pub disk_bytes_max: u64,
    /// Maximum bytes of events in memory for all destinations. Above it, a destination that exceeds its share gets no
    /// more events.
    pub held_bytes_max: u64,
    /// Maximum number of open live tails. Each owner has a quarter of them at most.
    pub tails_max: usize,
    /// Time limit of a send.
    pub send_deadline: Duration,
    /// Duration of a lease; longer than a send.
    pub lease: Duration,
    /// How long the audit log retains events.
    pub audit_retention: Duration,
    /// How long traffic events are retained for searches and replays. Zero: they are not retained.
    pub traffic_retention: Duration,
    /// Delay after which retained traffic events are written together.
    pub keep_after: Duration,
    /// Maximum number of bytes of retained traffic events.
    pub traffic_retention_bytes: u64,
    /// Maximum number of bytes of captured messages in memory until they are stored. Further bodies are omitted.
    pub capture_bytes_max: usize,
    /// Time limit of a clean stop.
    pub drain: Duration,
    /// Retry schedule and give-up ages.
    pub schedule: retry::Schedule,
    /// Restarts long-lived tasks and reports their ends.
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
            keep_after: Duration::from_millis(750),
            traffic_retention_bytes: 1 << 30,
            capture_bytes_max: 32 << 20,
            drain: Duration::from_secs(10),
            schedule: retry::Schedule::default(),
            supervisor: Supervisor::default(),
        }
    }
}

/// Time limit for writing one object of gathered events. The leases of its batches last twice as long.
pub const PUT_DEADLINE: Duration = Duration::from_secs(300);
