//! Variable-length integers, of which stored statistics consist.

use std::fmt;

/// Stored statistics that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stored statistics are malformed")
    }
}

impl std::error::Error for Malformed {}

/// Appends a number, seven bits a byte, the lowest first.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends bytes behind their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Removes a number from the front of `input`.
pub(crate) fn take(input: &mut &[u8]) -> Result<u64, Malformed> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first().ok_or(Malformed)?;
        *input = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

/// Removes bytes with their length from the front of `input`.
pub(crate) fn take_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = usize::try_from(take(input)?).map_err(|_| Malformed)?;
    let (bytes, rest) = input.split_at_checked(length).ok_or(Malformed)?;
    *input = rest;
    Ok(bytes)
}
