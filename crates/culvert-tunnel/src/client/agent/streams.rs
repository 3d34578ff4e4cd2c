//! Serves the streams that the server opens: commands, heartbeats and connections of clients.

use std::sync::Arc;
use std::time::Duration;

use culvert_mux::ErrorCode;
use tokio_util::sync::CancellationToken;

use super::{Agent, Done, Slot};
use crate::client::endpoint::Endpoint;
use crate::client::forward::{self, Unreached};
use crate::client::session;
use crate::client::status::Event;
use crate::client::tap::{About, Tap};
use crate::driver::Stream;
use crate::server::call::{self, ReadDeadline};
use crate::wire::{self, Outcome, ProxyHeader, StreamType};

/// For a stream that arrives while its endpoint is still being asked for.
const BINDING_TIME: Duration = Duration::from_secs(10);
/// Errors of the system about open files, the same on Linux and macOS: the process, or the whole machine,
/// has reached its limit.
const NO_FILES: [i32; 2] = [24, 23];

impl Agent {
    /// Takes one stream of the server to its end.
    pub(in crate::client) async fn take(
        self: Arc<Self>,
        mut stream: Stream,
        draining: CancellationToken,
    ) -> Done {
        match call::kind(&mut stream).await {
            Some(StreamType::PROXY) => {
                self.proxy(stream, draining).await;
                Done::Nothing
            }
            // In a box, so that connections of clients keep no room for it.
            kind => Box::pin(self.obey(kind, stream, draining)).await,
        }
    }

    /// Takes a stream that is no connection of a client to its end.
    async fn obey(
        &self,
        kind: Option<StreamType>,
        mut stream: Stream,
        draining: CancellationToken,
    ) -> Done {
        match kind {
            Some(StreamType::HEARTBEAT) => {
                tokio::select! {
                    () = session::echo(stream) => {}
                    () = draining.cancelled() => {}
                }
                Done::Nothing
            }
            Some(StreamType::STOP | StreamType::RESTART) if !self.settings.is_managed => {
                let text =
                    "the agent's configuration does not allow the server to stop or restart it";
                decline(stream, text).await;
                Done::Nothing
            }
            Some(kind @ (StreamType::STOP | StreamType::RESTART)) => {
                if call::request(&mut stream, ReadDeadline::AGENT)
                    .await
                    .is_err()
                {
                    return Done::Nothing;
                }
                call::answer(stream, &wire::reply(&Outcome::default())).await;
                if kind == StreamType::STOP {
                    self.notify(Event::Asked { command: "stop" });
                    Done::Stop
                } else {
                    self.notify(Event::Asked { command: "restart" });
                    Done::Restart
                }
            }
            Some(StreamType::UPDATE) => {
                let text = "this agent cannot update itself; update the installed package";
                decline(stream, text).await;
                Done::Nothing
            }
            Some(StreamType::STOP_ENDPOINT) => {
                let request = call::request(&mut stream, ReadDeadline::AGENT).await;
                call::answer(stream, b"").await;
                match request.map(wire::parse) {
                    Ok(Ok(request)) => Done::Taken(request),
                    _ => Done::Nothing,
                }
            }
            Some(_) | None => Done::Nothing,
        }
    }

    pub(super) async fn proxy(&self, mut stream: Stream, draining: CancellationToken) {
        let read = tokio::time::timeout(BINDING_TIME, forward::header(&mut stream)).await;
        let Ok(Some(header)) = read else {
            return;
        };
        let Some((endpoint, url)) = self.find(&header).await else {
            // The server may ask another agent.
            stream.reset(ErrorCode::STREAM_REFUSED);
            return;
        };
        let Ok(_place) = self.places.try_acquire() else {
            stream.reset(ErrorCode::STREAM_REFUSED);
            return;
        };
        let _counted = endpoint.meters.connections.count();
        let tap = match &self.exchanges {
            Some(all)
                if endpoint.is_inspected && endpoint.protocol.is_http() && !endpoint.http2 =>
            {
                let about = About {
                    endpoint: Arc::clone(&endpoint),
                    url,
                    client: match header.client_addr.as_str() {
                        wire::MANY_CLIENTS => String::new(),
                        _ => header.client_addr,
                    },
                    replay_of: None,
                };
                Some(Tap::new(Arc::clone(all), about))
            }
            _ => None,
        };
        let forwarded = forward::forward(stream, &endpoint, tap, draining, &self.held).await;
        if let Err(Unreached(error, stream)) = forwarded {
            let is_busy = error
                .raw_os_error()
                .is_some_and(|it| NO_FILES.contains(&it));
            self.notify(Event::Unreached {
                upstream: endpoint.upstream.as_str().to_owned(),
                why: error.to_string(),
            });
            if let Some(mut stream) = stream {
                if is_busy {
                    stream.reset(ErrorCode::STREAM_REFUSED);
                    return;
                }
                // It ends without a byte; the server tells the client what that means.
                call::answer(stream, b"").await;
            }
        }
    }

    /// Which endpoint a stream is for. A stream can be faster than the reply to the Bind that
    /// brought it about.
    pub(super) async fn find(&self, header: &ProxyHeader) -> Option<(Arc<Endpoint>, String)> {
        let look = |slots: &Vec<Slot>| {
            slots.iter().find_map(|slot| {
                let bound = slot.bound.as_ref().filter(|bound| bound.id == header.id)?;
                Some((Arc::clone(&slot.endpoint), bound.url.clone()))
            })
        };
        if let Some(found) = look(&self.slots.borrow()) {
            return Some(found);
        }
        let mut slots = self.slots.subscribe();
        let mut known = None;
        let waiting = slots.wait_for(|slots| {
            known = look(slots);
            known.is_some()
                || slots
                    .iter()
                    .all(|slot| slot.bound.is_some() || slot.is_gone)
        });
        match tokio::time::timeout(BINDING_TIME, waiting).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
        known
    }
}

/// Replies to a command that the agent does not obey.
async fn decline(mut stream: Stream, why: &str) {
    if call::request(&mut stream, ReadDeadline::AGENT)
        .await
        .is_ok()
    {
        let outcome = Outcome { error: why.into() };
        call::answer(stream, &wire::reply(&outcome)).await;
    }
}
