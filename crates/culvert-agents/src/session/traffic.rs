//! The traffic of agent sessions, for statistics and metrics.

use culvert_base::sync::lock;
use culvert_statistics::Frame;
use culvert_tunnel::driver::SessionTraffic;

use crate::AgentControl;

impl AgentControl {
    /// Adds the streams and bytes of each agent session since the last call to `frame`.
    pub fn read_agent_statistics(&self, frame: &mut Frame) {
        if let Some(agents) = &self.agents {
            agents.read_statistics(frame);
        }
    }

    /// Streams and bytes of all agent sessions since the start, up to the last reading for the statistics.
    pub fn agent_traffic(&self) -> SessionTraffic {
        let agents = self.agents.as_ref();
        agents.map_or_else(SessionTraffic::default, |agents| *lock(&agents.counted))
    }
}
