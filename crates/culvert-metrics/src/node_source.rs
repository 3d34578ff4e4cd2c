//! What this node counts, from all its parts.

use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use culvert_control::{Control, StatisticsSource};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_statistics::{Field, Frame, Key, Point, REFUSED, SubjectKind};
use culvert_store::{Queue, Store};

/// The parts of a node that count.
pub struct NodeSource {
    /// The name of this node.
    pub node: String,
    /// The edge, if this process has the role.
    pub edge: Option<Edge>,
    /// The plane of events.
    pub delivery: Arc<Delivery>,
    /// Control, with the sessions of agents.
    pub control: Arc<Control>,
    /// The database.
    pub store: Store,
    /// The queue of events.
    pub queue: Queue,
    /// Processor time at the last reading, in milliseconds.
    pub cpu: Mutex<u64>,
    /// Refused traffic without an endpoint at the last reading, by reason.
    pub refused: Mutex<[u64; REFUSED]>,
}

impl std::fmt::Debug for NodeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSource")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl NodeSource {
    /// The counts of the process itself.
    fn process(&self) -> Point {
        let mut point = Point::default();
        if let Some(usage) = Usage::now() {
            let mut before = lock(&self.cpu);
            point.add(Field::CpuMillis, usage.cpu_millis.saturating_sub(*before));
            *before = usage.cpu_millis;
            point.add(Field::MemoryBytes, usage.memory_bytes);
        }
        if let Some(edge) = &self.edge {
            let meters = edge.meters();
            point.add(Field::OpenConnections, meters.connections.get());
            point.add(Field::OverloadLevel, meters.overload_level.get());
            let mut before = lock(&self.refused);
            let refused = Field::REFUSED.iter().zip(&meters.refused_elsewhere);
            for ((field, meter), before) in refused.zip(before.iter_mut()) {
                let now = meter.get();
                point.add(*field, now.saturating_sub(*before));
                *before = now;
            }
        }
        let sessions = u64::try_from(self.control.agents.agent_sessions()).unwrap_or(u64::MAX);
        point.add(Field::AgentSessions, sessions);
        let delay = self.store.write_delay().max(self.queue.write_delay());
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        point.add(Field::StoreWriteMicros, micros);
        point
    }
}

impl NodeSource {
    /// The calls of the API by key and operation.
    fn read_key_calls(&self, frame: &mut Frame) {
        for calls in self.control.identity.take_key_calls() {
            let (collection, name) = calls.called;
            // Some collections have two segments.
            let operation = match collection {
                "" => name.to_owned(),
                collection => format!("{}_{name}", collection.replace('/', "_")),
            };
            let id = format!("{}/{operation}", calls.key_id);
            let mut point = Point::default();
            point.add(Field::Calls, calls.count);
            frame.add(Key::new(SubjectKind::Key, &calls.account, &id), &point);
        }
    }
}

impl StatisticsSource for NodeSource {
    fn read(&self, frame: &mut Frame) {
        self.read_key_calls(frame);
        frame.add(Key::new(SubjectKind::Node, "", &self.node), &self.process());
        if let Some(edge) = &self.edge {
            edge.traffic().read(frame);
        }
        self.delivery.read_statistics(frame);
        self.control.agents.read_agent_statistics(frame);
    }
}

/// Processor time and memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
}

impl Usage {
    /// The current usage, where the system provides it.
    pub(crate) fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat)
    }

    /// Reads `/proc/self/stat`. Its clock ticks are hundredths of a second, and its pages have 4 KiB, on every system that
    /// publishes them this way.
    fn parse(stat: &str) -> Option<Self> {
        // The name of the process may contain spaces and parentheses.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let user: u64 = fields.nth(11)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let pages: u64 = fields.nth(8)?.parse().ok()?;
        Some(Self {
            cpu_millis: (user + system) * 10,
            memory_bytes: pages * 4096,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_parsed_behind_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12345 99999999 300 18446744073709551615 1";
        let usage = Usage {
            cpu_millis: 3_000,
            memory_bytes: 300 * 4096,
        };
        assert_eq!(Usage::parse(stat), Some(usage));
        assert_eq!(Usage::parse("7 (a"), None);
        if std::path::Path::new("/proc/self/stat").exists() {
            assert!(Usage::now().unwrap().memory_bytes > 0);
        }
    }
}
