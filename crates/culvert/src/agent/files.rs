//! How many files the agent may open, and how many streams fit into that.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that are not for streams, at least: connections to the server, the page, logs, look-ups of names.
const RESERVE: u64 = 32;
/// Streams, however few files there are.
const STREAMS_MIN: u64 = 8;

/// Raises the limit of open files to what the process may raise it to, and says what it is then. `None` if
/// there is no limit.
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

/// How many streams fit into a limit of files: each has a connection to its service, and one that ends may
/// keep its a moment longer. At least a fifth of the files stays free.
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
    fn streams_leave_files_for_everything_else() {
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
