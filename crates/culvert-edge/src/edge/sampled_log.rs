//! A log line about something that clients can repeat at will.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use tokio::time::Instant;

/// The shortest time between two lines.
const EVERY: Duration = Duration::from_secs(60);

/// When such a line was last written, and how often it was due since.
#[derive(Debug, Default)]
pub(crate) struct SampledLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written_at: Option<Instant>,
    more: u64,
}

impl SampledLog {
    /// Whether the line is to be written now: then the number of times that it was not since the last.
    pub(crate) fn due(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let is_recent = |at| now.saturating_duration_since(at) < EVERY;
        if state.written_at.is_some_and(is_recent) {
            state.more = state.more.saturating_add(1);
            return None;
        }
        state.written_at = Some(now);
        Some(std::mem::take(&mut state.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_counts_the_others() {
        let (log, begin) = (SampledLog::default(), Instant::now());
        let due = |seconds| log.due(begin + Duration::from_secs(seconds));
        assert_eq!(due(0), Some(0));
        assert_eq!((due(1), due(59)), (None, None));
        assert_eq!(due(60), Some(2));
        assert_eq!((due(61), due(120)), (None, Some(1)));
    }
}
