//! The limit of open files, and the number of streams that it allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Minimum number of files for other purposes: connections to the server, the inspection page, logs, DNS.
const RESERVE: u64 = 32;
/// Minimum number of streams, however low the limit is.
const STREAMS_MIN: u64 = 8;

/// Raises the soft limit of open files to the hard limit and returns it. `None` if there is no limit.
pub(super) fn raise_limit() -> Option<u64> {
    let given = getrlimit(Resource::Nofile);
    if given.current == given.maximum {
        return given.current;
    }
    let raised = Rlimit {
        current: given.maximum,
        maximum: given.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            given.current
        }
    }
}

/// The number of streams that a file limit allows. Each stream needs a connection to its service, which may stay open
/// slightly longer than the stream. At least a fifth of the files stays free.
pub(super) fn streams_that_fit(limit: Option<u64>) -> usize {
    let Some(limit) = limit else {
        return usize::MAX;
    };
    let fit = limit.saturating_sub(RESERVE.max(limit / 5));
    usize::try_from(fit.max(STREAMS_MIN)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_limit_reserves_file_descriptors() {
        for (limit, streams) in [
            (Some(0), 8),
            (Some(64), 32),
            (Some(100), 68),
            (Some(1_024), 820),
            (Some(1_048_576), 838_861),
            (None, usize::MAX),
        ] {
            assert_eq!(streams_that_fit(limit), streams, "{limit:?}");
        }
    }
}
