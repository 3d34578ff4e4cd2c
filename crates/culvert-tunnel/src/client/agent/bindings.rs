//! Authenticates the agent, and binds its endpoints.

use std::time::Duration;

use culvert_mux::OURS_STREAMS_MAX;
use serde_json::Value;

use super::{Agent, Bound, Trouble};
use crate::client::session;
use crate::client::status::Event;
use crate::driver::Session;
use crate::wire::{
    self, AuthExtra, AuthReply, AuthRequest, BindReply, BindRequest, DeprecationWarning,
    StopEndpointRequest, StreamType,
};

/// The server does not bind the endpoint under its previous id.
const BINDING_CODES: [u16; 2] = [333, 335];

impl Agent {
    /// Authenticates the agent on the connection with this index, and binds its endpoints.
    pub(in crate::client) async fn introduce(
        &self,
        session: &Session,
        number: u32,
        is_further: bool,
    ) -> Result<(), Trouble> {
        let former = self.resumption().clone();
        let former_id = former.client_id.clone();
        let request = AuthRequest {
            versions: vec![wire::VERSION.into()],
            client_id: former.client_id,
            extra: AuthExtra {
                os: std::env::consts::OS.into(),
                arch: std::env::consts::ARCH.into(),
                token: self.settings.token.reveal().to_owned(),
                version: self.settings.version.clone(),
                user_agent: format!("{}{}", wire::OWN_AGENT, self.settings.version),
                client_type: "culvert".into(),
                metadata: self.settings.metadata.clone(),
                cookie: former.cookie,
                heartbeat_interval: nanos(self.settings.heartbeat.interval),
                heartbeat_tolerance: nanos(self.settings.heartbeat.tolerance),
                stop_unsupported: Some(String::new()),
                restart_unsupported: Some(String::new()),
                update_unsupported: Some(
                    "the agent cannot update itself; update the installed package".into(),
                ),
                streams_max: u32::try_from(self.settings.streams_max.min(OURS_STREAMS_MAX))
                    .unwrap_or(u32::MAX),
                leg: number,
                ..AuthExtra::default()
            },
        };
        let reply: AuthReply = session::call(session, StreamType::AUTH, &request).await?;
        refused(&reply.error)?;
        if is_further && reply.client_id != former_id {
            return Err(Trouble::Lost("the server started another session".into()));
        }
        {
            let mut resumption = self.resumption();
            resumption.client_id.clone_from(&reply.client_id);
            resumption.cookie = reply.extra.cookie;
        }
        self.status.send_modify(|status| {
            status.session_id = reply.client_id;
            status.account = reply.extra.account_name;
            status.region = reply.extra.region;
            status.server_version = reply.extra.version;
            status.notices = notices(&reply.extra.banner, reply.extra.deprecation.as_ref());
        });
        self.bind_all(session, is_further).await
    }

    pub(in crate::client) async fn bind_all(
        &self,
        session: &Session,
        is_further: bool,
    ) -> Result<(), Trouble> {
        let endpoints = self.slots.borrow().len();
        for nth in 0..endpoints {
            self.bind(session, nth, is_further).await?;
        }
        Ok(())
    }

    /// Binds an endpoint. One that was bound before keeps its id, token and options.
    pub(super) async fn bind(
        &self,
        session: &Session,
        nth: usize,
        is_further: bool,
    ) -> Result<(), Trouble> {
        let Some(slot) = self.slots.borrow().get(nth).cloned() else {
            return Ok(());
        };
        if slot.is_gone {
            return Ok(());
        }
        let endpoint = &slot.endpoint;
        let mut request: BindRequest = endpoint.request.clone();
        if let Some(bound) = slot.bound {
            request.id = bound.id;
            request.extra.token = bound.token;
            request.opts = bound.opts;
        } else if is_further {
            // The first connection of the session binds it first.
            return Err(Trouble::Lost("an endpoint is not bound yet".into()));
        }
        let reply: BindReply = {
            // `parse` would change the case of the options' names.
            let reply: Value = session::call_plain(session, StreamType::BIND, &request).await?;
            let opts = reply.get("Opts").cloned().unwrap_or(Value::Null);
            let mut reply: BindReply = wire::parse(reply)
                .map_err(|_| Trouble::Lost("the server's response is invalid".into()))?;
            reply.opts = opts;
            reply
        };
        if let Err(trouble) = refused(&reply.error) {
            if is_further {
                return Err(trouble);
            }
            if matches!(trouble, Trouble::Refused(_, Some(code)) if BINDING_CODES.contains(&code)) {
                self.slots.send_modify(|slots| slots[nth].bound = None);
            }
            return Err(trouble);
        }
        if is_further {
            return Ok(());
        }
        let bound = Bound {
            id: reply.id,
            url: reply.url,
            token: reply.extra.token,
            opts: if reply.opts.is_object() {
                reply.opts
            } else {
                request.opts
            },
        };
        let mut again = false;
        self.status.send_modify(|status| {
            again = status.endpoints[nth].url == bound.url;
            status.endpoints[nth].id = bound.id.clone();
            status.endpoints[nth].url = bound.url.clone();
        });
        self.notify(Event::Bound {
            endpoint: nth,
            url: bound.url.clone(),
            upstream: endpoint.upstream.as_str().to_owned(),
            again,
        });
        self.slots
            .send_modify(|slots| slots[nth].bound = Some(bound));
        Ok(())
    }

    /// Marks an endpoint that the server stopped. Returns its message if no endpoint is left.
    pub(super) fn taken(&self, request: &StopEndpointRequest) -> Option<String> {
        let mut url = None;
        self.slots.send_modify(|slots| {
            for slot in slots {
                if let Some(bound) = slot.bound.as_ref().filter(|bound| bound.id == request.id) {
                    url = Some(bound.url.clone());
                    slot.is_gone = true;
                }
            }
        });
        let url = url?;
        self.status.send_modify(|status| {
            for endpoint in status.endpoints.iter_mut().filter(|it| it.id == request.id) {
                endpoint.is_gone = true;
            }
        });
        let message = request.message.clone();
        self.notify(Event::Taken {
            url: url.clone(),
            message: message.clone(),
        });
        let none_left = self.slots.borrow().iter().all(|slot| slot.is_gone);
        none_left.then(|| format!("the server closed the endpoint {url}: {message}"))
    }
}

/// The server's messages for the user.
fn notices(banner: &str, deprecation: Option<&DeprecationWarning>) -> Vec<String> {
    let mut notices = Vec::new();
    if !banner.is_empty() {
        notices.push(banner.to_owned());
    }
    if let Some(warning) = deprecation {
        let DeprecationWarning {
            next_min,
            next_date,
            message,
        } = warning;
        let mut notice = format!("The server will refuse agents older than {next_min}");
        if let Some((day, _)) = next_date.split_once('T') {
            notice.push_str(&format!(" from {day}"));
        }
        notice.push('.');
        if !message.is_empty() {
            notice.push_str(&format!(" {message}"));
        }
        notices.push(notice);
    }
    notices
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The sentence without the line of the code, and the code.
fn refused(error: &str) -> Result<(), Trouble> {
    if error.is_empty() {
        return Ok(());
    }
    let text: Vec<&str> = error
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("ERR_NGROK_"))
        .collect();
    Err(Trouble::Refused(text.join(" "), wire::code_of(error)))
}
