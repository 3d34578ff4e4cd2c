//! One stream of NATS JetStream, over one connection that reconnects automatically.
//!
//! Every call ends soon: immediately while there is no connection, and for a pause after the server
//! missed a deadline. Nothing is buffered for an unreachable server except for what the client
//! library was sending when the connection broke.
//!
//! Subjects are `<stream>.<destination>.<events>.<bytes>`, so the backlog is known from a list of
//! subjects, without reading messages.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::context::{ConsumerInfoErrorKind, PublishErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{
    self, ConsumerErrorKind, DeleteMessageErrorKind, DiscardPolicy, RawMessageErrorKind,
    RetentionPolicy, StorageType,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ClientError, ConnectOptions, Event, HeaderMap, Request};
use bytes::Bytes;
use culvert_base::{Fault, Timestamp};
use culvert_store::Body;
use culvert_target::{NatsLogin, NatsServers, Net};
use futures_util::TryStreamExt;
use tokio::time::Instant;

use super::JetStreamSettings;
use super::held::HeldFile;
use super::lease::NAK;
use super::lock;
use super::outstanding::StreamState;

/// Time limit of a response; after it, the server counts as unreachable.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
/// After a missed deadline, calls fail immediately for this long.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a pull waits on the server.
const PULL_FOR: Duration = Duration::from_millis(200);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// The delay before each attempt to connect grows by this,
const RECONNECT_STEP: Duration = Duration::from_millis(250);
/// up to this maximum.
const RECONNECT_EVERY: Duration = Duration::from_secs(3);
/// Interval of pings. After two without a response, the connection counts as broken.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How long the server recognises repeated appends.
const DUPLICATES_FOR: Duration = Duration::from_secs(120);
/// Maximum age of a batch in the stream.
const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Space reserved for a message's headers.
const HEADER_BYTES: usize = 2 << 10;

/// Why a request to the stream failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// There is no connection, or no response.
    #[error("NATS does not respond: {0}")]
    Unreachable(String),
    #[error("NATS refuses: {0}")]
    Refused(String),
    /// The consumer does not exist, so all of its leases have ended.
    #[error("the consumer does not exist")]
    Gone,
}

impl From<StreamError> for Fault {
    fn from(trouble: StreamError) -> Self {
        Self::new("querying the event log", trouble)
    }
}

/// The backlog of one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) batches: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

/// Where the stream has a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    /// Whether it had the message before.
    pub(super) is_repeated: bool,
}

/// A message to be stored.
#[derive(Clone, Debug)]
pub(super) struct NewMessage {
    pub(super) destination: String,
    pub(super) events: u32,
    /// Bytes of its lines before compression.
    pub(super) bytes: u64,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A message that the consumer delivered to this node.
#[derive(Debug)]
pub(super) struct Pulled {
    /// The subject for acknowledgements.
    pub(super) reply: String,
    pub(super) sequence: u64,
    /// Storage time in nanoseconds. It identifies the message together with the sequence number.
    pub(super) stored_at: i128,
    /// How often it was delivered to any node.
    pub(super) delivered: u32,
    /// Whether more messages wait behind it.
    pub(super) has_more: bool,
    pub(super) events: u32,
    pub(super) bytes: u64,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

#[derive(Debug)]
pub(super) struct Stream {
    servers: NatsServers,
    name: String,
    replicas: usize,
    /// Acknowledgement deadline. After it, the server delivers the message to another node.
    pub(super) lease: Duration,
    client: OnceLock<Client>,
    /// Why the last attempts to connect failed, if known.
    unconnected: Arc<Mutex<Option<String>>>,
    /// Whether the stream is known to exist.
    is_made: AtomicBool,
    failing_until: Mutex<Option<Instant>>,
    held: OnceLock<HeldFile>,
}

impl Stream {
    pub(super) fn new(settings: &JetStreamSettings) -> Self {
        Self {
            servers: settings.servers.clone(),
            name: settings.stream.clone(),
            replicas: usize::from(settings.replicas),
            lease: settings.lease,
            client: OnceLock::new(),
            unconnected: Arc::default(),
            is_made: AtomicBool::new(false),
            failing_until: Mutex::new(None),
            held: OnceLock::new(),
        }
    }

    /// Returns the messages that the previous run of this node held, as the file lists them, and
    /// opens the file for those of this run. Without a connection, their leases expire instead.
    pub(super) async fn give_back_held(&self, path: &Path, now: Timestamp) -> std::io::Result<()> {
        let (held, replies) = HeldFile::open(path, now)?;
        self.held.set(held).ok();
        for reply in replies {
            if let Err(trouble) = self.acknowledge(&reply, NAK).await {
                tracing::debug!(%trouble, "a batch of the previous run waits for its lease to expire");
            }
        }
        Ok(())
    }

    pub(super) fn held(&self) -> Option<&HeldFile> {
        self.held.get()
    }

    /// Starts the connection, which is then kept open. Returns immediately, even if no server is
    /// reachable.
    pub(super) async fn connect(&self, net: &Net) -> Result<(), Fault> {
        let doing = "connecting to the event log";
        let options = match &self.servers.login {
            NatsLogin::None => ConnectOptions::new(),
            NatsLogin::Token(token) => ConnectOptions::with_token(token.reveal().to_owned()),
            NatsLogin::User(user, password) => {
                let password = password.reveal().to_owned();
                ConnectOptions::with_user_and_password(user.clone(), password)
            }
        };
        let shown = self.servers.shown();
        let unconnected = self.unconnected.clone();
        let learned = self.unconnected.clone();
        let mut options = options
            .name("culvert event log")
            .connection_timeout(CONNECT_DEADLINE)
            .request_timeout(Some(ANSWER_DEADLINE))
            .ping_interval(PING_EVERY)
            .reconnect_delay_callback(|attempts| {
                let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
                let steps = attempts.saturating_sub(1);
                RECONNECT_STEP.saturating_mul(steps).min(RECONNECT_EVERY)
            })
            .retry_on_initial_connect()
            // The library calls this before every attempt. Only here are the errors of earlier
            // attempts available.
            .reconnect_to_server_callback(move |servers, _| {
                let why = servers.into_iter().find_map(|server| server.last_error);
                if why.is_some() {
                    *lock(&learned) = why;
                }
                std::future::ready(None)
            })
            .event_callback(move |event| {
                let (shown, unconnected) = (shown.clone(), unconnected.clone());
                async move {
                    match event {
                        Event::Connected => {
                            *lock(&unconnected) = None;
                            tracing::info!(servers = shown, "event log connected");
                        }
                        // The callback before the next attempt gets a more precise error.
                        Event::ClientError(ClientError::Other(why)) => {
                            lock(&unconnected).get_or_insert(why);
                        }
                        Event::Disconnected | Event::Closed => {
                            tracing::error!(servers = shown, "event log connection lost");
                        }
                        other => {
                            tracing::debug!(servers = shown, event = %other, "the event log's connection");
                        }
                    }
                }
            });
        // Also needed if the URL does not ask for TLS but the server does.
        let tls = net.tls_without_alpn().await;
        let tls = tls.map_err(|failure| Fault::new(doing, failure.to_string()))?;
        options = options.tls_client_config((*tls).clone());
        let connected = options.connect(&self.servers.addresses[..]).await;
        let client = connected.map_err(|error| Fault::new(doing, error))?;
        self.client.set(client).ok();
        Ok(())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client().is_ok()
    }

    /// Largest body of a message, in bytes.
    pub(super) fn body_bytes_max(&self) -> usize {
        let max = self.client.get().map_or(1 << 20, Client::max_payload);
        max.saturating_sub(HEADER_BYTES)
    }

    /// Stores messages. Returns where each is, or its error. Messages that are stored already are
    /// unchanged.
    pub(super) async fn publish(&self, entries: &[NewMessage]) -> Vec<Result<Stored, StreamError>> {
        let first = self.publish_once(entries).await;
        // If the server lost the stream, it is created again.
        if self.is_made.load(Ordering::Relaxed) || first.iter().all(Result::is_ok) {
            return first;
        }
        self.publish_once(entries).await
    }

    async fn publish_once(&self, entries: &[NewMessage]) -> Vec<Result<Stored, StreamError>> {
        let all = |why: &StreamError| entries.iter().map(|_| Err(why.again())).collect();
        let context = match self.context().await {
            Ok(context) => context,
            Err(trouble) => return all(&trouble),
        };
        let until = Instant::now() + ANSWER_DEADLINE;
        let mut started = Vec::with_capacity(entries.len());
        for message in entries {
            let subject = format!(
                "{}.{}.{}.{}",
                self.name, message.destination, message.events, message.bytes
            );
            let publishing = context.publish_with_headers(
                subject,
                message.headers.clone(),
                message.body.clone(),
            );
            started.push(tokio::time::timeout_at(until, publishing).await);
        }
        let mut outcomes = Vec::with_capacity(entries.len());
        for publishing in started {
            let stored = match publishing {
                Ok(Ok(answer)) => tokio::time::timeout_at(until, answer.into_future()).await,
                Ok(Err(error)) => Ok(Err(error)),
                Err(late) => Err(late),
            };
            outcomes.push(match stored {
                Ok(Ok(stored)) => Ok(Stored {
                    sequence: stored.sequence,
                    is_repeated: stored.duplicate,
                }),
                Ok(Err(error)) if error.kind() == PublishErrorKind::StreamNotFound => {
                    self.is_made.store(false, Ordering::Relaxed);
                    Err(StreamError::Unreachable(error.to_string()))
                }
                Ok(Err(error)) => Err(match error.kind() {
                    PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => {
                        self.fails(error.to_string())
                    }
                    _ => StreamError::Refused(culvert_target::failure::chain(&error)),
                }),
                Err(_) => Err(self.fails("a message was not acknowledged in time".to_owned())),
            });
        }
        outcomes
    }

    /// Creates the consumer that delivers a destination's messages, one at a time.
    pub(super) async fn make_consumer(&self, destination: &str) -> Result<(), StreamError> {
        let config = pull::Config {
            durable_name: Some(destination.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.lease,
            // So only one node has a message, and a message that failed delays those behind it.
            max_ack_pending: 1,
            max_deliver: -1,
            filter_subject: self.subject(destination),
            ..pull::Config::default()
        };
        let made = self.stream().await?.create_consumer(config).await;
        made.map(drop).map_err(|error| match error.kind() {
            ConsumerErrorKind::JetStream(why) => self.refused(&why),
            _ => self.fails(error.to_string()),
        })
    }

    /// The destination's next message; `None` after a short wait if there is none.
    pub(super) async fn pull(&self, destination: &str) -> Result<Option<Pulled>, StreamError> {
        let client = self.client()?;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{destination}", self.name);
        let expires = PULL_FOR.as_nanos();
        let payload = format!(r#"{{"batch":1,"no_wait":true,"expires":{expires}}}"#);
        let request = Request::new()
            .payload(payload.into())
            .inbox(client.new_inbox())
            // Later than the time limit on the server. Otherwise a message could arrive after this
            // call has ended, and would be blocked until its deadline.
            .timeout(Some(PULL_FOR + ANSWER_DEADLINE));
        let message = match client.send_request(subject, request).await {
            Ok(message) => message,
            Err(error) => return Err(self.fails(error.to_string())),
        };
        if message.status.is_some() {
            return Ok(None);
        }
        let (events, bytes) = self.counts_of(&message.subject);
        let message = jetstream::Message {
            context: jetstream::new(client),
            message,
        };
        let unreadable = |why: String| StreamError::Refused(format!("invalid message: {why}"));
        let info = message
            .info()
            .map_err(|error| unreadable(error.to_string()))?;
        let (sequence, has_more) = (info.stream_sequence, info.pending > 0);
        let stored_at = info.published.unix_timestamp_nanos();
        let delivered = u32::try_from(info.delivered).unwrap_or(u32::MAX);
        let reply = message
            .reply
            .as_ref()
            .ok_or_else(|| unreadable("no reply".to_owned()))?;
        Ok(Some(Pulled {
            reply: reply.to_string(),
            sequence,
            stored_at,
            delivered,
            has_more,
            events,
            bytes,
            headers: message.headers.clone().unwrap_or_default(),
            body: message.payload.clone(),
        }))
    }

    /// Acknowledges or returns a pulled message, or extends its deadline.
    pub(super) async fn acknowledge(
        &self,
        reply: &str,
        how: &'static [u8],
    ) -> Result<(), StreamError> {
        let client = self.client()?;
        let response = client.request(reply.to_owned(), Bytes::from_static(how));
        response
            .await
            .map(drop)
            .map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => StreamError::Gone,
                _ => self.fails(error.to_string()),
            })
    }

    /// A message by its sequence number; `None` if it was removed.
    pub(super) async fn get(&self, sequence: u64) -> Result<Option<StreamMessage>, StreamError> {
        let stream = self.stream().await?;
        self.found(stream.get_raw_message(sequence).await)
    }

    /// The destination's first message from `sequence` on.
    pub(super) async fn next(
        &self,
        destination: &str,
        sequence: u64,
    ) -> Result<Option<StreamMessage>, StreamError> {
        let stream = self.stream().await?;
        let wanted = stream.raw_message_builder().sequence(sequence);
        self.found(
            wanted
                .next_by_subject(self.subject(destination))
                .send()
                .await,
        )
    }

    fn found(
        &self,
        found: Result<StreamMessage, stream::RawMessageError>,
    ) -> Result<Option<StreamMessage>, StreamError> {
        match found {
            Ok(message) => Ok(Some(message)),
            Err(error) => match error.kind() {
                RawMessageErrorKind::NoMessageFound => Ok(None),
                RawMessageErrorKind::JetStream(why) => Err(self.refused(&why)),
                _ => Err(self.fails(error.to_string())),
            },
        }
    }

    /// The destination's first message, if its consumer counts it as settled and so will never deliver it.
    pub(super) async fn passed_over(&self, destination: &str) -> Result<Option<u64>, StreamError> {
        let stream = self.stream().await?;
        let settled = match stream.consumer_info(destination).await {
            Ok(info) => info.ack_floor.stream_sequence,
            Err(error) => {
                return match error.kind() {
                    ConsumerInfoErrorKind::NotFound => Ok(None),
                    ConsumerInfoErrorKind::JetStream(why) => Err(self.refused(&why)),
                    _ => Err(StreamError::Unreachable(error.to_string())),
                };
            }
        };
        // Read after the floor, which only rises: a message that is settled in between is not there any more.
        let first = self.next(destination, 1).await?;
        let first = first.map(|message| message.sequence);
        Ok(first.filter(|first| *first <= settled))
    }

    /// Removes a consumer. The next pull makes it again, and it then delivers all messages that are there.
    pub(super) async fn drop_consumer(&self, destination: &str) -> Result<(), StreamError> {
        let stream = self.stream().await?;
        match stream.delete_consumer(destination).await {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ConsumerErrorKind::JetStream(why)
                    if why.error_code() == ErrorCode::CONSUMER_NOT_FOUND =>
                {
                    Ok(())
                }
                ConsumerErrorKind::JetStream(why) => Err(self.refused(&why)),
                _ => Err(self.fails(error.to_string())),
            },
        }
    }

    /// Removes a message. Succeeds if it is already removed.
    pub(super) async fn delete(&self, sequence: u64) -> Result<(), StreamError> {
        let stream = self.stream().await?;
        match stream.delete_message(sequence).await {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                DeleteMessageErrorKind::JetStream(why)
                    if why.error_code() == ErrorCode::SEQUENCE_NOT_FOUND =>
                {
                    Ok(())
                }
                DeleteMessageErrorKind::JetStream(why) => Err(self.refused(&why)),
                _ => Err(self.fails(error.to_string())),
            },
        }
    }

    /// Removes a destination's messages and its consumer.
    pub(super) async fn drop_line(&self, destination: &str) -> Result<(), StreamError> {
        let stream = self.stream().await?;
        let purged = stream.purge().filter(self.subject(destination)).await;
        purged.map_err(|error| self.fails(error.to_string()))?;
        self.drop_consumer(destination).await
    }

    /// The backlog of all destinations, or of one.
    pub(super) async fn waiting(
        &self,
        destination: Option<&str>,
    ) -> Result<BTreeMap<String, Waiting>, StreamError> {
        let stream = self.stream().await?;
        let filter = destination.map_or_else(|| format!("{}.>", self.name), |id| self.subject(id));
        let info = stream.info_builder().subjects(filter).fetch().await;
        let mut subjects = info.map_err(|error| self.fails(error.to_string()))?;
        let mut waiting: BTreeMap<String, Waiting> = BTreeMap::new();
        loop {
            let next = subjects.try_next().await;
            let Some((subject, count)) = next.map_err(|error| self.fails(error.to_string()))?
            else {
                return Ok(waiting);
            };
            let Some((destination, events, bytes)) = self.parts_of(&subject) else {
                continue;
            };
            let count = u64::try_from(count).unwrap_or(u64::MAX);
            let total = waiting.entry(destination.to_owned()).or_default();
            total.batches = total.batches.saturating_add(count);
            total.events = total.events.saturating_add(count.saturating_mul(events));
            total.bytes = total.bytes.saturating_add(count.saturating_mul(bytes));
        }
    }

    /// Whether the stream can be used.
    pub(super) async fn usable(&self) -> Result<(), StreamError> {
        self.state().await.map(drop)
    }

    /// The sequence of the last message.
    pub(super) async fn last(&self) -> Result<u64, StreamError> {
        Ok(self.state().await?.last)
    }

    /// The state of the stream. Creates it again if it was deleted.
    pub(super) async fn state(&self) -> Result<StreamState, StreamError> {
        match self.state_once().await {
            Err(StreamError::Unreachable(_)) if self.is_connected() => self.state_once().await,
            state => state,
        }
    }

    async fn state_once(&self) -> Result<StreamState, StreamError> {
        let asked_at = Instant::now();
        let stream = self.stream().await?;
        match stream.get_info().await {
            Ok(info) => Ok(StreamState {
                created: i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(i64::MAX),
                last: info.state.last_sequence,
                asked_at,
            }),
            Err(error) => {
                self.is_made.store(false, Ordering::Relaxed);
                Err(StreamError::Unreachable(error.to_string()))
            }
        }
    }

    /// The name of the stream.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Number of events and bytes in a message, read from its subject.
    pub(super) fn counts_of(&self, subject: &str) -> (u32, u64) {
        let counts = self.parts_of(subject);
        let (_, events, bytes) = counts.unwrap_or(("", 0, 0));
        (u32::try_from(events).unwrap_or(u32::MAX), bytes)
    }

    /// Whether a message is for this destination and has this number of events.
    pub(super) fn is_of(&self, message: &StreamMessage, destination: &str, events: u32) -> bool {
        let parts = self.parts_of(&message.subject);
        parts.is_some_and(|(of, count, _)| of == destination && count == u64::from(events))
    }

    /// The batch in a stored message.
    pub(super) fn body_of(&self, message: StreamMessage) -> Body {
        Body {
            bytes: self.counts_of(&message.subject).1,
            stored: message.payload.into(),
        }
    }

    fn parts_of<'a>(&self, subject: &'a str) -> Option<(&'a str, u64, u64)> {
        let rest = subject.strip_prefix(&self.name)?.strip_prefix('.')?;
        let mut parts = rest.split('.');
        let destination = parts.next()?;
        Some((
            destination,
            parts.next()?.parse().ok()?,
            parts.next()?.parse().ok()?,
        ))
    }

    fn subject(&self, destination: &str) -> String {
        format!("{}.{destination}.>", self.name)
    }

    /// Why there is no connection, if that is known.
    pub(super) fn why_unconnected(&self) -> Option<String> {
        lock(&self.unconnected).clone()
    }

    fn client(&self) -> Result<Client, StreamError> {
        let unreachable = |why: &str| Err(StreamError::Unreachable(why.to_owned()));
        let Some(client) = self.client.get() else {
            return unreachable("not connected yet");
        };
        if client.connection_state() != State::Connected {
            return match self.why_unconnected() {
                Some(why) => unreachable(&format!("not connected: {why}")),
                None => unreachable("not connected"),
            };
        }
        let failing_until = *lock(&self.failing_until);
        if failing_until.is_some_and(|until| Instant::now() < until) {
            return unreachable("the last request timed out");
        }
        Ok(client.clone())
    }

    async fn stream(&self) -> Result<stream::Stream<()>, StreamError> {
        let context = self.context().await?;
        let stream = context.get_stream_no_info(&self.name).await;
        stream.map_err(|error| self.fails(error.to_string()))
    }

    /// The stream's context. Creates the stream if it is not known to exist.
    async fn context(&self) -> Result<jetstream::Context, StreamError> {
        let mut context = jetstream::new(self.client()?);
        context.set_timeout(ANSWER_DEADLINE);
        if self.is_made.load(Ordering::Relaxed) {
            return Ok(context);
        }
        let config = stream::Config {
            name: self.name.clone(),
            subjects: vec![format!("{}.>", self.name)],
            description: Some("Queued traffic events of culvert".to_owned()),
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            max_bytes: -1,
            max_messages: -1,
            max_messages_per_subject: -1,
            max_consumers: -1,
            max_age: AGE_MAX,
            duplicate_window: DUPLICATES_FOR,
            num_replicas: self.replicas,
            ..stream::Config::default()
        };
        let subjects = config.subjects.clone();
        let made = context.get_or_create_stream(config).await;
        let made = made.map_err(|error| {
            // The usual causes: missing permission, or JetStream is disabled.
            let why = culvert_target::failure::chain(&error);
            tracing::debug!(stream = self.name, why, "cannot create the stream");
            self.fails(format!("the stream `{}` is unusable: {why}", self.name))
        })?;
        let config = &made.cached_info().config;
        if config.retention != RetentionPolicy::WorkQueue || config.subjects != subjects {
            return Err(StreamError::Refused(format!(
                "a different stream has the name `{}`; set another name with `events.log_stream`",
                self.name
            )));
        }
        self.is_made.store(true, Ordering::Relaxed);
        Ok(context)
    }

    fn refused(&self, why: &jetstream::Error) -> StreamError {
        if why.error_code() == ErrorCode::STREAM_NOT_FOUND {
            self.is_made.store(false, Ordering::Relaxed);
            return StreamError::Unreachable(why.to_string());
        }
        StreamError::Refused(why.to_string())
    }

    /// Notes that the stream is unreachable. For a pause, other calls then fail immediately and do
    /// not wait for the same server.
    fn fails(&self, why: String) -> StreamError {
        *lock(&self.failing_until) = Some(Instant::now() + PAUSE);
        StreamError::Unreachable(why)
    }
}

impl StreamError {
    fn again(&self) -> Self {
        match self {
            Self::Unreachable(why) => Self::Unreachable(why.clone()),
            Self::Refused(why) => Self::Refused(why.clone()),
            Self::Gone => Self::Gone,
        }
    }
}
