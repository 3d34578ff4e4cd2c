//! The publisher's side of AMQP 0-9-1 with confirms: one channel, no consumer.
//!
//! It follows the specification (0-9-1, part 4) and RabbitMQ's extensions: publisher confirms,
//! `basic.nack`, `connection.blocked`, `authentication_failure_close`. Users choose the broker, so
//! it is not trusted: a frame is at most [`FRAME_BYTES_MAX`] long, every field is read within its
//! frame, and an unexpected frame ends the connection.
//!
//! Not here: which failure means what to a destination (`target::rabbitmq`).

mod codec;

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use codec::{Cut, Fields, Out, method};

use crate::client::kept::CLOSE_DEADLINE;
use crate::client::tls_client::Duplex;

/// Maximum frame size in bytes: RabbitMQ's default.
const FRAME_BYTES_MAX: u32 = 128 << 10;
/// Bytes of a frame besides its payload.
const FRAME_OVERHEAD: usize = 8;
/// Heartbeat interval. A broker closes a connection that is silent for twice as long.
const HEARTBEAT_SECONDS: u16 = 60;
const CHANNEL: u16 = 1;

/// Host and credentials of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Login<'a> {
    pub(crate) virtual_host: &'a str,
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
}

/// One message to be published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Name of the exchange. Empty for the default exchange, which uses the routing key as the
    /// queue name.
    pub(crate) exchange: &'a str,
    /// At most 255 bytes.
    pub(crate) routing_key: &'a str,
    /// Identifies the message when the broker returns it. Unique for each message, at most 255
    /// bytes.
    pub(crate) id: &'a str,
    /// At most 255 bytes.
    pub(crate) kind: &'a str,
    /// Unix time in seconds.
    pub(crate) at: u64,
    pub(crate) body: &'a [u8],
}

/// The broker's response to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// Confirmed. Its durability depends on the queue.
    Taken,
    /// Refused with `basic.nack`.
    Refused,
    /// Returned because no queue is bound for it; reply code and text of the broker.
    Returned(u16, String),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The broker closed the connection or the channel; reply code and text.
    Reported(u16, String),
    /// The broker violated the protocol.
    Nonsense(&'static str),
    /// The socket closed or failed.
    Socket,
    /// A deadline passed. `is_blocked`: the broker had announced that it accepts no messages for
    /// now.
    Late { is_blocked: bool },
}

impl From<Cut> for Broken {
    fn from(_: Cut) -> Self {
        Self::Nonsense("a frame is truncated")
    }
}

/// An open connection with one channel in confirm mode.
pub(crate) struct Publisher {
    reader: BufReader<ReadHalf<Box<dyn Duplex>>>,
    writer: WriteHalf<Box<dyn Duplex>>,
    /// Delivery tag of the last message published.
    last: u64,
    /// Maximum payload of a frame that we send.
    payload_max: usize,
    is_blocked: bool,
}

struct Frame {
    kind: u8,
    channel: u16,
    payload: Vec<u8>,
}

impl Publisher {
    /// Signs in, opens a channel and enables confirms. The caller sets the deadline.
    pub(crate) async fn open(stream: Box<dyn Duplex>, login: Login<'_>) -> Result<Self, Broken> {
        let (reader, writer) = tokio::io::split(stream);
        let mut publisher = Self {
            reader: BufReader::new(reader),
            writer,
            last: 0,
            payload_max: 4096 - FRAME_OVERHEAD,
            is_blocked: false,
        };
        publisher.send(b"AMQP\0\0\x09\x01".to_vec()).await?;
        let start = publisher.wait_for(method::CONNECTION_START).await?;
        let mut fields = Fields::new(&start);
        let _version = (fields.u8()?, fields.u8()?);
        fields.long()?;
        let mechanisms = String::from_utf8_lossy(fields.long()?).into_owned();
        if !mechanisms.split(' ').any(|mechanism| mechanism == "PLAIN") {
            return Err(Broken::Reported(
                403,
                "the broker does not support user name and password".to_owned(),
            ));
        }
        let response = format!("\0{}\0{}", login.user, login.password);
        let mut out = Out::method(0, method::CONNECTION_START_OK);
        out.table(|table| {
            table.text("product", "culvert");
            table.nested("capabilities", |table| {
                table.flag("authentication_failure_close");
                table.flag("basic.nack");
                table.flag("connection.blocked");
                table.flag("publisher_confirms");
            });
        });
        out.short("PLAIN").long(response.as_bytes()).short("en_US");
        publisher.send(out.frame()).await?;

        let tune = publisher.wait_for(method::CONNECTION_TUNE).await?;
        let mut fields = Fields::new(&tune);
        let (_channels, frame_max) = (fields.u16()?, fields.u32()?);
        // Zero means no preference. The specification's minimum is 4096.
        let frame_max = match frame_max {
            0 => FRAME_BYTES_MAX,
            given => given.clamp(4096, FRAME_BYTES_MAX),
        };
        publisher.payload_max = usize::try_from(frame_max)
            .unwrap_or(4096)
            .saturating_sub(FRAME_OVERHEAD);
        let mut out = Out::method(0, method::CONNECTION_TUNE_OK);
        out.u16(CHANNEL).u32(frame_max).u16(HEARTBEAT_SECONDS);
        publisher.send(out.frame()).await?;
        let mut out = Out::method(0, method::CONNECTION_OPEN);
        out.short(login.virtual_host).short("").u8(0);
        publisher.ask(out, method::CONNECTION_OPEN_OK).await?;
        let mut out = Out::method(CHANNEL, method::CHANNEL_OPEN);
        out.short("");
        publisher.ask(out, method::CHANNEL_OPEN_OK).await?;
        let mut out = Out::method(CHANNEL, method::CONFIRM_SELECT);
        out.u8(0);
        publisher.ask(out, method::CONFIRM_SELECT_OK).await?;
        Ok(publisher)
    }

    /// Fails with 404 if no exchange has this name.
    pub(crate) async fn look_for_exchange(&mut self, name: &str) -> Result<(), Broken> {
        const PASSIVE: u8 = 1;
        let mut out = Out::method(CHANNEL, method::EXCHANGE_DECLARE);
        out.u16(0).short(name).short("").u8(PASSIVE).table(|_| {});
        self.ask(out, method::EXCHANGE_DECLARE_OK).await
    }

    /// Publishes messages and waits until each is confirmed. Returns an outcome for each message,
    /// in order; `None` if the wait ended before the broker confirmed it. The second value is
    /// the error or missed deadline that ended the wait.
    pub(crate) async fn publish(
        &mut self,
        messages: &[Message<'_>],
        deadline: Duration,
    ) -> (Vec<Option<Confirmed>>, Option<Broken>) {
        const MANDATORY: u8 = 1;
        let mut bytes = Vec::new();
        for message in messages {
            let mut out = Out::method(CHANNEL, method::BASIC_PUBLISH);
            out.u16(0)
                .short(message.exchange)
                .short(message.routing_key)
                .u8(MANDATORY);
            bytes.extend(out.frame());
            bytes.extend(codec::content_header(CHANNEL, message));
            for part in message.body.chunks(self.payload_max) {
                bytes.extend(codec::frame(codec::BODY, CHANNEL, part));
            }
        }
        let first = self.last + 1;
        self.last += u64::try_from(messages.len()).unwrap_or(0);
        let mut window = Window {
            first,
            ids: messages
                .iter()
                .enumerate()
                .map(|(index, message)| (message.id, index))
                .collect(),
            outcomes: vec![None; messages.len()],
            returned: HashMap::new(),
            coming_back: None,
        };
        let Self {
            reader,
            writer,
            is_blocked,
            ..
        } = self;
        // Reads while it writes, because a broker may wait until we read before it reads on.
        let writing = async {
            writer.write_all(&bytes).await.map_err(|_| Broken::Socket)?;
            writer.flush().await.map_err(|_| Broken::Socket)
        };
        let reading = async {
            while !window.is_done() {
                let frame = read_frame(reader).await?;
                window.take(&frame, is_blocked)?;
            }
            Ok(())
        };
        let exchange = async {
            let mut writing = std::pin::pin!(writing);
            let mut reading = std::pin::pin!(reading);
            let mut has_written = false;
            loop {
                tokio::select! {
                    written = &mut writing, if !has_written => match written {
                        Ok(()) => has_written = true,
                        // An error that the broker reported before it closed the connection is more
                        // precise.
                        Err(broken) => return reading.await.and(Err(broken)),
                    },
                    read = &mut reading => return read,
                }
            }
        };
        let ended = tokio::time::timeout(deadline, exchange).await;
        let broken = match ended {
            Ok(Ok(())) => None,
            Ok(Err(broken)) => Some(broken),
            Err(_) => Some(Broken::Late {
                is_blocked: *is_blocked,
            }),
        };
        (window.outcomes, broken)
    }

    /// Closes the connection in the way that the broker does not log as an error. Nothing waits for a confirm.
    pub(crate) async fn close(mut self) {
        const SUCCESS: u16 = 200;
        let mut out = Out::method(0, method::CONNECTION_CLOSE);
        out.u16(SUCCESS).short("").u16(0).u16(0);
        let closing = self.ask(out, method::CONNECTION_CLOSE_OK);
        drop(tokio::time::timeout(CLOSE_DEADLINE, closing).await);
    }

    async fn ask(&mut self, out: Out, answer: method::Id) -> Result<(), Broken> {
        self.send(out.frame()).await?;
        self.wait_for(answer).await.map(drop)
    }

    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), Broken> {
        let sent = async {
            self.writer.write_all(&bytes).await?;
            self.writer.flush().await
        };
        sent.await.map_err(|_| Broken::Socket)
    }

    /// Returns the fields of the next method, which must be `wanted`.
    async fn wait_for(&mut self, wanted: method::Id) -> Result<Vec<u8>, Broken> {
        loop {
            let frame = read_frame(&mut self.reader).await?;
            if frame.kind == codec::HEARTBEAT {
                continue;
            }
            let (id, fields) = method_of(&frame, &mut self.is_blocked)?;
            if id == wanted {
                return Ok(fields.to_vec());
            }
            if id != method::CONNECTION_BLOCKED && id != method::CONNECTION_UNBLOCKED {
                return Err(Broken::Nonsense("the broker sent an unexpected response"));
            }
        }
    }
}

/// Messages that wait for their confirms.
struct Window<'a> {
    /// Delivery tag of the first.
    first: u64,
    ids: HashMap<&'a str, usize>,
    outcomes: Vec<Option<Confirmed>>,
    /// Messages that the broker returned. A confirm follows each of them.
    returned: HashMap<usize, (u16, String)>,
    coming_back: Option<Return>,
}

/// A returned message that is being received.
enum Return {
    /// The header comes next; reply code and text of the broker.
    Header(u16, String),
    /// Bytes of the body that are still to come.
    Body(u64),
}

impl Window<'_> {
    fn is_done(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    fn take(&mut self, frame: &Frame, is_blocked: &mut bool) -> Result<(), Broken> {
        match frame.kind {
            codec::HEARTBEAT => Ok(()),
            codec::METHOD => {
                let (id, fields) = method_of(frame, is_blocked)?;
                self.method(id, Fields::new(fields))
            }
            codec::HEADER | codec::BODY => self.content(frame),
            _ => Err(Broken::Nonsense("unknown frame type")),
        }
    }

    fn method(&mut self, id: method::Id, mut fields: Fields<'_>) -> Result<(), Broken> {
        match id {
            method::CONNECTION_BLOCKED | method::CONNECTION_UNBLOCKED => Ok(()),
            method::BASIC_ACK => {
                let (number, is_multiple) = (fields.u64()?, fields.u8()? & 1 == 1);
                self.confirm(number, is_multiple, &Confirmed::Taken)
            }
            method::BASIC_NACK => {
                let (number, is_multiple) = (fields.u64()?, fields.u8()? & 1 == 1);
                self.confirm(number, is_multiple, &Confirmed::Refused)
            }
            method::BASIC_RETURN if self.coming_back.is_none() => {
                let (code, text) = (fields.u16()?, fields.short()?.to_owned());
                self.coming_back = Some(Return::Header(code, text));
                Ok(())
            }
            _ => Err(Broken::Nonsense("the broker sent an unexpected method")),
        }
    }

    fn content(&mut self, frame: &Frame) -> Result<(), Broken> {
        let nonsense = Broken::Nonsense("the broker sent content out of order");
        let left = match (self.coming_back.take(), frame.kind) {
            (Some(Return::Header(code, text)), codec::HEADER) => {
                let (id, length) = codec::message_id(&frame.payload)?;
                if let Some(index) = self.ids.get(id) {
                    self.returned.insert(*index, (code, text));
                }
                length
            }
            (Some(Return::Body(left)), codec::BODY) => {
                let length = u64::try_from(frame.payload.len()).unwrap_or(u64::MAX);
                left.checked_sub(length).ok_or(nonsense)?
            }
            _ => return Err(nonsense),
        };
        self.coming_back = (left > 0).then_some(Return::Body(left));
        Ok(())
    }

    fn confirm(&mut self, number: u64, is_multiple: bool, what: &Confirmed) -> Result<(), Broken> {
        let last = number.checked_sub(self.first);
        let last = last.and_then(|last| usize::try_from(last).ok());
        // Tag zero with `multiple` means all messages so far.
        let (from, to) = match (last, is_multiple) {
            (Some(last), true) => (0, last),
            (Some(last), false) => (last, last),
            (None, true) if number == 0 => (0, self.outcomes.len().saturating_sub(1)),
            (None, _) => return Err(Broken::Nonsense("a confirm does not match a message")),
        };
        let confirmed = self
            .outcomes
            .get_mut(from..=to)
            .ok_or(Broken::Nonsense("a confirm does not match a message"))?;
        for (index, outcome) in (from..).zip(confirmed) {
            if outcome.is_none() {
                *outcome = Some(match self.returned.remove(&index) {
                    Some((code, text)) => Confirmed::Returned(code, text),
                    None => what.clone(),
                });
            }
        }
        Ok(())
    }
}

async fn read_frame(reader: &mut BufReader<ReadHalf<Box<dyn Duplex>>>) -> Result<Frame, Broken> {
    let mut head = [0; 7];
    let gone = |_| Broken::Socket;
    reader.read_exact(&mut head).await.map_err(gone)?;
    let [kind, c1, c2, l1, l2, l3, l4] = head;
    if head.starts_with(b"AMQP") {
        return Err(Broken::Nonsense("the broker has an unsupported version"));
    }
    let length = u32::from_be_bytes([l1, l2, l3, l4]);
    if length > FRAME_BYTES_MAX {
        return Err(Broken::Nonsense("a frame exceeds the negotiated size"));
    }
    let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
    reader.read_exact(&mut payload).await.map_err(gone)?;
    let end = reader.read_u8().await.map_err(gone)?;
    if end != codec::FRAME_END {
        return Err(Broken::Nonsense("a frame has no end marker"));
    }
    Ok(Frame {
        kind,
        channel: u16::from_be_bytes([c1, c2]),
        payload,
    })
}

/// The method in a frame and its fields. A method that closes the connection or our channel is an
/// error. One that blocks or unblocks publishers is noted.
fn method_of<'a>(
    frame: &'a Frame,
    is_blocked: &mut bool,
) -> Result<(method::Id, &'a [u8]), Broken> {
    if frame.kind != codec::METHOD || frame.channel > CHANNEL {
        return Err(Broken::Nonsense("a method frame was expected"));
    }
    let mut fields = Fields::new(&frame.payload);
    let id = (fields.u16()?, fields.u16()?);
    match id {
        method::CONNECTION_CLOSE | method::CHANNEL_CLOSE => {
            Err(Broken::Reported(fields.u16()?, fields.short()?.to_owned()))
        }
        method::CONNECTION_BLOCKED | method::CONNECTION_UNBLOCKED => {
            *is_blocked = id == method::CONNECTION_BLOCKED;
            Ok((id, fields.remaining()))
        }
        _ => Ok((id, fields.remaining())),
    }
}

#[cfg(test)]
pub(crate) mod tests;
