//! Integers, strings and lists of Kafka's requests and responses: big-endian, with lengths before
//! their contents.

/// A response ended before its fields did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut;

/// A buffer to which a request is written.
#[derive(Debug, Default)]
pub(crate) struct Out(Vec<u8>);

impl Out {
    pub(crate) fn i8(&mut self, number: i8) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn i16(&mut self, number: i16) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn i32(&mut self, number: i32) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(crate) fn i64(&mut self, number: i64) -> &mut Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// The number of elements of a list.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.i32(i32::try_from(count).unwrap_or(i32::MAX))
    }

    /// A string. It is cut after 32,767 bytes, which the settings of a target do not allow.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let length = i16::try_from(text.len());
        debug_assert!(length.is_ok(), "a text has two bytes of length");
        let length = length.unwrap_or(i16::MAX);
        self.i16(length);
        self.0
            .extend(text.bytes().take(length.unsigned_abs().into()));
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len());
        self.0.extend(bytes);
        self
    }

    /// A variable-length integer in zigzag encoding, short for small numbers of either sign.
    pub(crate) fn varint(&mut self, number: i64) -> &mut Self {
        let mut rest = ((number << 1) ^ (number >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.0.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
            rest >>= 7;
        }
        self.0.push(u8::try_from(rest).unwrap_or(0));
        self
    }

    /// Bytes after a variable-length length. `None` and empty differ.
    pub(crate) fn var_bytes(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => {
                self.varint(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
                self.0.extend(bytes);
                self
            }
            None => self.varint(-1),
        }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Joins the header in `self` and a body, and puts their length before them.
    pub(crate) fn framed(self, body: Self) -> Vec<u8> {
        let mut all = Self::default();
        all.count(self.0.len() + body.0.len());
        all.raw(&self.0).raw(&body.0);
        all.0
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The unread part of a response.
#[derive(Debug)]
pub(crate) struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
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

    pub(crate) fn i8(&mut self) -> Result<i8, Cut> {
        self.number().map(i8::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, Cut> {
        self.number().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Cut> {
        self.number().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Cut> {
        self.number().map(i64::from_be_bytes)
    }

    /// The number of elements of a list, at most the number of bytes left. A null list has zero.
    pub(crate) fn count(&mut self) -> Result<usize, Cut> {
        let count = self.i32()?;
        if count == -1 {
            return Ok(0);
        }
        let count = usize::try_from(count).map_err(|_| Cut)?;
        if count > self.0.len() {
            Err(Cut)
        } else {
            Ok(count)
        }
    }

    /// A string; empty if it is null or not UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str, Cut> {
        let length = self.i16()?;
        if length == -1 {
            return Ok("");
        }
        let bytes = self.take(usize::try_from(length).map_err(|_| Cut)?)?;
        Ok(std::str::from_utf8(bytes).unwrap_or_default())
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Cut> {
        let length = self.count()?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_encoded_like_protocol_buffers() {
        for (number, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[126]),
            (64, &[0x80, 1]),
            (-300, &[0xd7, 4]),
            (i64::MIN, &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
        ] {
            let mut out = Out::default();
            out.varint(number);
            assert_eq!(out.into_bytes(), bytes, "{number}");
        }
    }

    #[test]
    fn lengths_beyond_the_input_are_refused_without_allocation() {
        assert_eq!(In::new(&[0, 5, b'a']).text(), Err(Cut));
        assert_eq!(In::new(&[0xff, 0xff]).text(), Ok(""));
        assert_eq!(In::new(&[0x80, 0]).text(), Err(Cut));
        assert_eq!(In::new(&[0x7f, 0xff, 0xff, 0xff, 1]).count(), Err(Cut));
        assert_eq!(In::new(&[0, 0, 0, 2, 1]).bytes(), Err(Cut));
        assert_eq!(In::new(&[1, 2, 3]).i32(), Err(Cut));
    }
}
