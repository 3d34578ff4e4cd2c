//! Reports the agent's events: URLs on standard output, everything in the log, and problems on the screen.

use std::io::IsTerminal;
use std::sync::Arc;

use culvert_tunnel::client::Event;

use crate::screen::Problem;
use culvert_command::say;

/// Receives the events of all sessions.
#[derive(Debug)]
pub(crate) struct Reporter {
    /// Whether to print URLs on standard output.
    pub prints_urls: bool,
    /// URL of the agent's page; empty without one.
    pub page_url: String,
    /// The problem on the screen.
    pub problem: Arc<Problem>,
}

impl Reporter {
    /// Reports an event. It does not block, except for a full pipe.
    pub(crate) fn report(&self, event: Event) {
        match event {
            Event::Connecting { address } => {
                tracing::debug!(server = %address, "connecting to the server");
            }
            Event::Bound {
                url,
                upstream,
                again,
                ..
            } => {
                if self.prints_urls && !again {
                    // If standard output is closed, the log contains the URL.
                    if say(&url).is_err() {
                        tracing::warn!(url, "cannot print the URL");
                    }
                    if std::io::stdout().is_terminal() {
                        say(format_args!("  forwarding to {upstream}")).ok();
                    }
                }
                tracing::info!(url, upstream, "endpoint online");
            }
            Event::Connected { address } => {
                tracing::info!(server = %address, "client session established");
            }
            Event::Online { session_id, again } => {
                if again {
                    tracing::info!(session.id = session_id, "session reconnected");
                } else {
                    // The name that wrappers of ngrok's agent wait for.
                    tracing::info!(session.id = session_id, "tunnel session started");
                    tracing::info!(
                        session.id = session_id,
                        inspect = self.page_url,
                        "online; press Ctrl+C to stop"
                    );
                }
            }
            Event::Waiting {
                address,
                why,
                after,
            } => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(server = address, why, after_ms, "disconnected; retrying");
            }
            Event::Unreached { upstream, why } => {
                tracing::warn!(upstream, why, "service unreachable");
                self.problem
                    .set(format!("{upstream} is unreachable: {why}"));
            }
            Event::Taken { url, message } => {
                tracing::warn!(url, message, "the server closed an endpoint");
                self.problem
                    .set(format!("the server closed {url}: {message}"));
            }
            Event::Asked { command } => {
                tracing::info!(command, "command from the server");
            }
        }
    }
}
