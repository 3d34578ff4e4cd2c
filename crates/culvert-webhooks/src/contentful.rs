//! Contentful: a hash over the method, the path, the fields that a field names, and the body.

use std::borrow::Cow;
use std::fmt::Write;

use culvert_base::Timestamp;

use crate::request::{Request, Unverified};
use crate::signature::Hash;
use crate::signature::{Digester, check_stamp, from_hex, is_equal};
use crate::value_location::ValueLocation::Header;

const STAMP: &str = "x-contentful-timestamp";
const SIGNED: &str = "x-contentful-signed-headers";
const TOLERANCE: u32 = 30;
/// Maximum number of signed fields.
const NAMES_MAX: usize = 64;

pub(crate) fn verify(
    secret: &str,
    request: &Request<'_>,
    now: Timestamp,
) -> Result<(), Unverified> {
    let given = Header("x-contentful-signature").one(request)?;
    let given = from_hex(&given).ok_or(Unverified::Malformed)?;
    check_stamp(&Header(STAMP).one(request)?, TOLERANCE, now)?;
    let signed = Header(SIGNED).one(request)?.to_ascii_lowercase();
    let mut names: Vec<&str> = signed.split(',').map(str::trim).collect();
    // Always signed, even if the header does not list them.
    names.extend([STAMP, SIGNED]);
    names.sort_unstable();
    names.dedup();
    if names.len() > NAMES_MAX {
        return Err(Unverified::Malformed);
    }
    let mut fields = String::new();
    for name in names {
        // A listed field that the request lacks is not part of the signature.
        let mut values = request.headers.get_all(name).iter();
        let Some(value) = values.next() else { continue };
        let value = value.to_str().map_err(|_| Unverified::Malformed)?;
        if values.next().is_some() {
            return Err(Unverified::Malformed);
        }
        let semicolon = if fields.is_empty() { "" } else { ";" };
        write!(fields, "{semicolon}{name}:{}", value.trim()).map_err(|_| Unverified::Malformed)?;
    }
    let target = request.target();
    for target in [Cow::from(target), escaped(target).into()] {
        let mut digester = Digester::new(Hash::Sha256, secret.as_bytes());
        for part in [request.method.as_str(), &target, &fields] {
            digester.update(part.as_bytes());
            digester.update(b"\n");
        }
        digester.update(request.body);
        if is_equal(&given, &digester.finish()) {
            return Ok(());
        }
    }
    Err(Unverified::Mismatch)
}

/// The target in the form of the vendor's library: the query is escaped as one value, and then the
/// whole target is escaped again as a URL.
fn escaped(target: &str) -> String {
    const OF_VALUE: &[u8] = b"-_.!~*'()";
    const OF_URL: &[u8] = b"-_.!~*'();,/?:@&=+$#";
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let path = escape(path, OF_URL);
    if query.is_empty() {
        return path;
    }
    format!("{path}?{}", escape(&escape(query, OF_VALUE), OF_URL))
}

fn escape(text: &str, plain: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
    }
    out
}

fn hex_digit(digit: u8) -> char {
    char::from_digit(digit.into(), 16).map_or('0', |digit| digit.to_ascii_uppercase())
}
