//! Pipes, through which the kernel moves bytes between two sockets without copying them to this process.
//!
//! A pipe belongs to a relay only while bytes flow fast: if its other side takes nothing for a moment, the bytes move to
//! memory of this process and the pipe to the next relay. The number of pipes is limited, of each source too, because each
//! takes two open files and memory of the kernel. Where there is none, as on systems other than Linux, bytes are copied.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use tokio::time::Instant;

#[cfg(target_os = "linux")]
pub use self::linux::used_by;
#[cfg(not(target_os = "linux"))]
pub use self::other::used_by;
use crate::alarm::Alarm;

/// How long the other side of a pipe may take nothing.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Bytes in all pipes.
static HELD_BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of the kernel that bytes in pipes take.
pub fn held_bytes() -> u64 {
    HELD_BYTES.load(Ordering::Relaxed)
}

/// A pipe.
#[derive(Debug)]
pub struct Pipe {
    #[cfg(target_os = "linux")]
    ends: linux::PipeEnds,
    #[cfg(target_os = "linux")]
    _share: linux::SourceShare,
    held: HeldBytes,
    /// Since when the other side takes nothing.
    stalled_since: Option<Instant>,
    alarm: Alarm,
}

/// Number of bytes in a pipe, which counts among those of all.
#[derive(Debug, Default)]
struct HeldBytes(usize);

impl HeldBytes {
    #[cfg(target_os = "linux")]
    fn set(&mut self, bytes: usize) {
        HELD_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        HELD_BYTES.fetch_sub(self.0 as u64, Ordering::Relaxed);
        self.0 = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        HELD_BYTES.fetch_sub(self.0 as u64, Ordering::Relaxed);
    }
}

impl Pipe {
    /// Whether all bytes were taken out.
    pub fn is_empty(&self) -> bool {
        self.held.0 == 0
    }

    /// Whether the other side has taken nothing for so long that the bytes are to be [drained](Self::drain). If not, the
    /// task is woken when they are.
    pub fn is_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let since = *self.stalled_since.get_or_insert_with(Instant::now);
        self.alarm.is_due(cx, since + STALLED_AFTER)
    }
}
