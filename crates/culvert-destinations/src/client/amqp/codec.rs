//! Encodes and decodes frames, methods and their fields.

use super::{Broken, Message};

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;
pub(super) const FRAME_END: u8 = 0xce;

/// Class and method IDs of the supported methods.
pub(super) mod method {
    pub(in crate::client::amqp) type Id = (u16, u16);

    pub(in crate::client::amqp) const CONNECTION_START: Id = (10, 10);
    pub(in crate::client::amqp) const CONNECTION_START_OK: Id = (10, 11);
    pub(in crate::client::amqp) const CONNECTION_TUNE: Id = (10, 30);
    pub(in crate::client::amqp) const CONNECTION_TUNE_OK: Id = (10, 31);
    pub(in crate::client::amqp) const CONNECTION_OPEN: Id = (10, 40);
    pub(in crate::client::amqp) const CONNECTION_OPEN_OK: Id = (10, 41);
    pub(in crate::client::amqp) const CONNECTION_CLOSE: Id = (10, 50);
    pub(in crate::client::amqp) const CONNECTION_CLOSE_OK: Id = (10, 51);
    pub(in crate::client::amqp) const CONNECTION_BLOCKED: Id = (10, 60);
    pub(in crate::client::amqp) const CONNECTION_UNBLOCKED: Id = (10, 61);
    pub(in crate::client::amqp) const CHANNEL_OPEN: Id = (20, 10);
    pub(in crate::client::amqp) const CHANNEL_OPEN_OK: Id = (20, 11);
    pub(in crate::client::amqp) const CHANNEL_CLOSE: Id = (20, 40);
    pub(in crate::client::amqp) const EXCHANGE_DECLARE: Id = (40, 10);
    pub(in crate::client::amqp) const EXCHANGE_DECLARE_OK: Id = (40, 11);
    pub(in crate::client::amqp) const BASIC_PUBLISH: Id = (60, 40);
    pub(in crate::client::amqp) const BASIC_RETURN: Id = (60, 50);
    pub(in crate::client::amqp) const BASIC_ACK: Id = (60, 80);
    pub(in crate::client::amqp) const BASIC_NACK: Id = (60, 120);
    pub(in crate::client::amqp) const CONFIRM_SELECT: Id = (85, 10);
    pub(in crate::client::amqp) const CONFIRM_SELECT_OK: Id = (85, 11);
}

/// Encodes a frame.
pub(super) fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 8);
    frame.push(kind);
    frame.extend(channel.to_be_bytes());
    frame.extend(length(payload));
    frame.extend(payload);
    frame.push(FRAME_END);
    frame
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// A buffer to which a method is written.
pub(super) struct Out {
    channel: u16,
    bytes: Vec<u8>,
}

impl Out {
    pub(super) fn method(channel: u16, (class, number): method::Id) -> Self {
        let mut out = Self {
            channel,
            bytes: Vec::new(),
        };
        out.u16(class).u16(number);
        out
    }

    pub(super) fn frame(self) -> Vec<u8> {
        frame(METHOD, self.channel, &self.bytes)
    }

    pub(super) fn u8(&mut self, number: u8) -> &mut Self {
        self.bytes.push(number);
        self
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes.extend(number.to_be_bytes());
        self
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes.extend(number.to_be_bytes());
        self
    }

    /// A short string. It is cut after 255 bytes, which the settings of a target do not allow.
    pub(super) fn short(&mut self, text: &str) -> &mut Self {
        put_short(&mut self.bytes, text);
        self
    }

    pub(super) fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend(length(bytes));
        self.bytes.extend(bytes);
        self
    }

    pub(super) fn table(&mut self, fill: impl FnOnce(&mut Table)) -> &mut Self {
        let mut table = Table(Vec::new());
        fill(&mut table);
        self.long(&table.0)
    }
}

fn put_short(bytes: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= 255, "a short text has one byte of length");
    let text = &text.as_bytes()[..text.len().min(255)];
    bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.extend(text);
}

/// A buffer to which a field table is written.
pub(super) struct Table(Vec<u8>);

impl Table {
    pub(super) fn text(&mut self, name: &str, value: &str) {
        put_short(&mut self.0, name);
        self.0.push(b'S');
        self.0.extend(length(value.as_bytes()));
        self.0.extend(value.as_bytes());
    }

    /// A boolean field with the value true.
    pub(super) fn flag(&mut self, name: &str) {
        put_short(&mut self.0, name);
        self.0.extend([b't', 1]);
    }

    pub(super) fn nested(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        fill(&mut inner);
        put_short(&mut self.0, name);
        self.0.push(b'F');
        self.0.extend(length(&inner.0));
        self.0.extend(inner.0);
    }
}

/// Bits of the property flags, in the order of the properties in a header.
mod property {
    pub(super) const CONTENT_TYPE: u16 = 1 << 15;
    pub(super) const CONTENT_ENCODING: u16 = 1 << 14;
    pub(super) const HEADERS: u16 = 1 << 13;
    pub(super) const DELIVERY_MODE: u16 = 1 << 12;
    pub(super) const PRIORITY: u16 = 1 << 11;
    pub(super) const CORRELATION_ID: u16 = 1 << 10;
    pub(super) const REPLY_TO: u16 = 1 << 9;
    pub(super) const EXPIRATION: u16 = 1 << 8;
    pub(super) const MESSAGE_ID: u16 = 1 << 7;
    pub(super) const TIMESTAMP: u16 = 1 << 6;
    pub(super) const TYPE: u16 = 1 << 5;
    pub(super) const APP_ID: u16 = 1 << 3;
}

const CLASS_BASIC: u16 = 60;
const PERSISTENT: u8 = 2;

/// The header frame, which stands between the method and the body of a message.
pub(super) fn content_header(channel: u16, message: &Message<'_>) -> Vec<u8> {
    use property::*;
    let mut bytes = Vec::new();
    bytes.extend(CLASS_BASIC.to_be_bytes());
    bytes.extend(0u16.to_be_bytes());
    let length = u64::try_from(message.body.len()).unwrap_or(u64::MAX);
    bytes.extend(length.to_be_bytes());
    let flags = CONTENT_TYPE | DELIVERY_MODE | MESSAGE_ID | TIMESTAMP | TYPE | APP_ID;
    bytes.extend(flags.to_be_bytes());
    put_short(&mut bytes, "application/json");
    bytes.push(PERSISTENT);
    put_short(&mut bytes, message.id);
    bytes.extend(message.at.to_be_bytes());
    put_short(&mut bytes, message.kind);
    put_short(&mut bytes, "culvert");
    frame(HEADER, channel, &bytes)
}

/// The message ID in a header, empty if there is none, and the length of the body.
pub(super) fn message_id(header: &[u8]) -> Result<(&str, u64), Broken> {
    use property::*;
    let mut fields = Fields::new(header);
    let _class_and_weight = fields.u32()?;
    let (length, flags) = (fields.u64()?, fields.u16()?);
    let has = |property: u16| flags & property != 0;
    for skipped in [CONTENT_TYPE, CONTENT_ENCODING] {
        if has(skipped) {
            fields.short()?;
        }
    }
    if has(HEADERS) {
        fields.long()?;
    }
    for skipped in [DELIVERY_MODE, PRIORITY] {
        if has(skipped) {
            fields.u8()?;
        }
    }
    for skipped in [CORRELATION_ID, REPLY_TO, EXPIRATION] {
        if has(skipped) {
            fields.short()?;
        }
    }
    let id = match has(MESSAGE_ID) {
        true => fields.short()?,
        false => "",
    };
    Ok((id, length))
}

/// A frame ended before its fields did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut;

/// The unread fields of a frame.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn remaining(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Cut> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Cut> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Cut)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Cut> {
        self.number().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Cut> {
        self.number().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Cut> {
        self.number().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Cut> {
        self.number().map(u64::from_be_bytes)
    }

    /// A short string; empty if it is not UTF-8.
    pub(super) fn short(&mut self) -> Result<&'a str, Cut> {
        let length = self.u8()?;
        let bytes = self.take(usize::from(length))?;
        Ok(std::str::from_utf8(bytes).unwrap_or_default())
    }

    pub(super) fn long(&mut self) -> Result<&'a [u8], Cut> {
        let length = usize::try_from(self.u32()?).map_err(|_| Cut)?;
        self.take(length)
    }
}
