//! The first message of old TLS clients, and how a server reacts. rustls speaks none of these versions.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::wire::Target;

/// Versions as on the wire (RFC 2246, RFC 4346, RFC 5246).
pub(super) const TLS10: [u8; 2] = [3, 1];
pub(super) const TLS11: [u8; 2] = [3, 2];
pub(super) const TLS12: [u8; 2] = [3, 3];

/// How a server reacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// With its own part of the handshake.
    Accepted,
    /// With this alert.
    Refused(u8),
}

/// Begins a handshake of this version at most, without extended master secret.
pub(super) async fn ask(target: &Target, version: [u8; 2]) -> Result<Reaction, String> {
    let mut stream = target.dial_tcp().await?;
    let asked = stream.write_all(&hello(&target.host, version)).await;
    asked.map_err(|error| error.to_string())?;
    let mut record = [0; 7];
    let read = stream.read_exact(&mut record).await;
    read.map_err(|error| error.to_string())?;
    match record {
        [22, _, _, _, _, 2, _] => Ok(Reaction::Accepted),
        [21, _, _, _, _, _, alert] => Ok(Reaction::Refused(alert)),
        _ => Err("the answer is not one of TLS".into()),
    }
}

/// A ClientHello in its record (RFC 5246 7.4.1.2).
fn hello(host: &str, version: [u8; 2]) -> Vec<u8> {
    let mut extensions = Vec::new();
    // An address is no server name (RFC 6066 3).
    if host.parse::<std::net::IpAddr>().is_err() {
        let name = [&[0][..], &vector(host.as_bytes())].concat();
        extensions.extend(extension(0, &vector(&name)));
    }
    // secp256r1, secp384r1 and X25519; uncompressed points; ECDSA and RSA with SHA-256.
    extensions.extend(extension(10, &vector(&[0, 23, 0, 24, 0, 29])));
    extensions.extend(extension(11, &[1, 0]));
    extensions.extend(extension(13, &vector(&[4, 3, 4, 1, 8, 4])));
    // ECDHE with AES-GCM for TLS 1.2, with AES-CBC for older versions, and RSA with AES-CBC.
    let suites = [
        0xC0, 0x2B, 0xC0, 0x2F, 0xC0, 0x09, 0xC0, 0x13, 0x00, 0x2F, 0x00, 0x35,
    ];
    let body = [
        &version[..],
        // What would be random; nothing is kept secret here.
        &[7; 32],
        &[0],
        &vector(&suites),
        &[1, 0],
        &vector(&extensions),
    ]
    .concat();
    let message = [&[1, 0][..], &vector(&body)].concat();
    [&[22, 3, 1][..], &vector(&message)].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(body)].concat()
}

/// Bytes behind their length.
fn vector(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}
