//! Detects a ClientHello in the first bytes of a connection, and parses the server name in it.
//!
//! The function only reads bytes, so the edge can decide between terminating TLS and passing it through before either
//! begins. The caller keeps the bytes and replays them.

/// Maximum length of a ClientHello.
pub const HELLO_BYTES_MAX: usize = 32 << 10;

/// The result for the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peeked {
    /// The bytes may be the beginning of a ClientHello.
    Partial,
    /// A complete ClientHello, with its server name in lower case and without a trailing dot.
    Hello(Option<String>),
    /// The bytes are not a ClientHello.
    Other,
}

/// Parses the beginning of a connection.
pub fn client_hello(bytes: &[u8]) -> Peeked {
    // Ignores further bytes, so that the result does not depend on how they arrive.
    let bytes = bytes.get(..HELLO_BYTES_MAX).unwrap_or(bytes);
    match handshake(bytes) {
        Ok(Some(hello)) => match server_name(&hello) {
            Some(name) => Peeked::Hello(name),
            None => Peeked::Other,
        },
        Ok(None) if bytes.len() < HELLO_BYTES_MAX => Peeked::Partial,
        Ok(None) | Err(NotAHello) => Peeked::Other,
    }
}

struct NotAHello;

/// Joins the records of the first handshake message. `None` while it is incomplete.
fn handshake(bytes: &[u8]) -> Result<Option<Vec<u8>>, NotAHello> {
    let mut reader = Reader(bytes);
    let mut message = Vec::new();
    loop {
        // A record: type 22, version 3.x, length, fragment. Checks each byte as it arrives, so that another protocol
        // is detected at its first differing byte.
        match reader.0 {
            [kind, ..] if *kind != 22 => return Err(NotAHello),
            [_, major, ..] if *major != 3 => return Err(NotAHello),
            _ => {}
        }
        let Some(header) = reader.take(5) else {
            return Ok(None);
        };
        let length = match header {
            [_, _, _, high, low] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return Err(NotAHello),
        };
        if length == 0 || length > 16 << 10 {
            return Err(NotAHello);
        }
        let available = reader.0.len().min(length);
        message.extend_from_slice(reader.take(available).unwrap_or_default());
        // A handshake message: type 1, length in 24 bits.
        if message.first().is_some_and(|kind| *kind != 1) {
            return Err(NotAHello);
        }
        if let [_, a, b, c, ..] = message.as_slice() {
            let whole = 4 + usize::from(*a) * 65536 + usize::from(*b) * 256 + usize::from(*c);
            if whole > HELLO_BYTES_MAX {
                return Err(NotAHello);
            }
            if message.len() >= whole {
                message.truncate(whole);
                return Ok(Some(message));
            }
        }
        if available < length {
            return Ok(None);
        }
    }
}

/// The server name of a complete ClientHello. The outer `None` means that the message is malformed.
fn server_name(hello: &[u8]) -> Option<Option<String>> {
    let mut reader = Reader(hello);
    // Message type and length, version, random.
    reader.take(4 + 2 + 32)?;
    let session = usize::from(*reader.take(1)?.first()?);
    reader.take(session)?;
    let suites = reader.u16()?;
    reader.take(suites)?;
    let compressions = usize::from(*reader.take(1)?.first()?);
    reader.take(compressions)?;
    if reader.0.is_empty() {
        return Some(None);
    }
    let length = reader.u16()?;
    let mut extensions = Reader(reader.take(length)?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let length = extensions.u16()?;
        let mut body = Reader(extensions.take(length)?);
        if kind != 0 {
            continue;
        }
        let length = body.u16()?;
        let mut names = Reader(body.take(length)?);
        let [name_type] = names.take(1)? else {
            return None;
        };
        let length = names.u16()?;
        let name = names.take(length)?;
        if *name_type != 0 {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?;
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_name = (1..=253).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        return is_name.then(|| Some(name.to_ascii_lowercase()));
    }
    Some(None)
}

/// The unread bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<usize> {
        match self.take(2)? {
            [high, low] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// The ClientHello of rustls.
    fn hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_name_is_found_once_the_hello_is_whole() {
        let bytes = hello("App.Example.com");
        for end in 0..bytes.len() {
            assert_eq!(client_hello(&bytes[..end]), Peeked::Partial, "{end}");
        }
        assert_eq!(
            client_hello(&bytes),
            Peeked::Hello(Some("app.example.com".into()))
        );
        assert_eq!(client_hello(&hello("192.0.2.1")), Peeked::Hello(None));
    }

    #[test]
    fn a_hello_may_be_cut_into_records() {
        let bytes = hello("a.example");
        let mut cut = Vec::new();
        for fragment in bytes[5..].chunks(7) {
            cut.extend_from_slice(&[22, 3, 1, 0, u8::try_from(fragment.len()).unwrap()]);
            cut.extend_from_slice(fragment);
        }
        assert_eq!(client_hello(&cut), Peeked::Hello(Some("a.example".into())));
    }

    #[test]
    fn other_protocols_are_distinguished_at_once() {
        for other in [
            &b"GET / HTTP/1.1"[..],
            b"SSH-2.0",
            b"\x16\x02",
            b"\x16\x03\x01\x00\x00",
        ] {
            assert_eq!(client_hello(other), Peeked::Other);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzz::client_hello(&bytes);
        }

        #[test]
        fn a_damaged_hello_is_read(at in 0usize..200, byte: u8) {
            let mut bytes = hello("a.example");
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            crate::fuzz::client_hello(&bytes);
        }
    }
}
