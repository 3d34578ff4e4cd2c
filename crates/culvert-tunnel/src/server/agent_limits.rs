//! How many streams each kind of agent can carry.

use culvert_mux::{Limits, OURS_STREAMS_MAX};

use crate::wire::AuthRequest;

/// Maximum number of streams that wait to be accepted. An agent opens one for each endpoint that it binds.
const ACCEPT_MAX: usize = 1024;
/// The limit of streams for the published Go agent, which needs a file for each.
const GO_STREAMS_MAX: usize = 10_000;
/// The minimum limit of streams for an agent that sends a limit, however low.
const STREAMS_MIN: usize = 8;
/// The stream limits for an agent. Published agents send no limit. The Rust-based ones crash at their 512th stream,
/// and free a stream a little after its end; the Go agent has no such table.
pub(super) fn limits_of(auth: &AuthRequest) -> Limits {
    match usize::try_from(auth.extra.streams_max) {
        Ok(most) if most > 0 => Limits {
            // Leaves capacity beside heartbeats for a request and for commands to the agent.
            streams_max: most.clamp(STREAMS_MIN, OURS_STREAMS_MAX),
            accept_max: ACCEPT_MAX,
            ..Limits::for_ours()
        },
        Ok(_) | Err(_) if is_go(&auth.extra.user_agent) => Limits {
            streams_max: GO_STREAMS_MAX,
            ..Limits::default()
        },
        Ok(_) | Err(_) => Limits::default(),
    }
}

/// Whether an agent is Go all the way down: the last product is the library that speaks the protocol.
fn is_go(user_agent: &str) -> bool {
    let last = user_agent.split_ascii_whitespace().next_back();
    last.is_some_and(|product| product.starts_with("ngrok-go/"))
}

#[cfg(test)]
mod tests {
    use culvert_mux::WINDOW_BYTES;

    use super::*;
    use crate::wire::AuthExtra;

    #[test]
    fn only_agents_with_a_small_table_get_few_streams() {
        for (user_agent, streams_max, expected) in [
            ("ngrok-rust/0.19.0", 0, 480),
            ("ngrok-python/1.4.0 ngrok-rust/0.14.0-pre.14", 0, 480),
            ("ngrok-go/2.1.1", 0, GO_STREAMS_MAX),
            ("shop/1.0 ngrok-go/2.1.1", 0, GO_STREAMS_MAX),
            ("ngrok-go/9.9 ngrok-rust/0.19.0", 0, 480),
            ("", 0, 480),
            ("culvert/0.2.0", 1, STREAMS_MIN),
            ("culvert/0.2.0", 5_000, 5_000),
        ] {
            let extra = AuthExtra {
                user_agent: user_agent.into(),
                streams_max,
                ..AuthExtra::default()
            };
            let auth = AuthRequest {
                extra,
                ..AuthRequest::default()
            };
            let limits = limits_of(&auth);
            assert_eq!(limits.streams_max, expected, "{user_agent}");
            // Published agents drop credit beyond it, and would wait for it.
            let keeps_window = limits.window_grows_to == WINDOW_BYTES;
            assert_eq!(keeps_window, !user_agent.starts_with("culvert/"));
        }
    }
}
