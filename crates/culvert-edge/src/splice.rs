//! Pipes, through which the kernel moves bytes between two sockets without copying them to this process.
//!
//! A pipe belongs to a relay only while bytes flow fast. Their number is limited, because each takes two open files and
//! memory of the kernel. Where there is none, as on systems other than Linux, bytes are copied.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

/// A pipe. Bytes that were put in must be taken out before more are put in.
#[derive(Debug)]
pub(crate) struct Pipe {
    #[cfg(target_os = "linux")]
    ends: linux::Ends,
    /// Bytes in it.
    bytes: usize,
}

impl Pipe {
    /// Whether all bytes were taken out.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}
