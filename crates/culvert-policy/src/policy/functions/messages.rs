//! Functions about the current message, addresses and random numbers.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{IpSet, Verdict};
use culvert_cel::{EvalErrorKind, Meter, Value, ValueRef};

use super::row::{INVALID, NO_OVERLOAD, Row, about, global, member, new_text};
use crate::policy::phase::Phase;
use crate::policy::variables::{RANDOM, SECRETS};
use culvert_ip_data::address::prefix;

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    const HAS: &[&str] = &["(map(string, list(dyn)), string) -> bool"];
    const GET: &[&str] = &["(map(string, list(string)), string) -> list(string)"];
    const COOKIE: &[&str] = &["(map(string, list(dyn)), string) -> dyn"];
    const RANGE: &[&str] = &["(string, string) -> bool"];
    use Phase::{Request, Response};
    vec![
        about(Request, "req.headers", "hasReqHeader", HAS, "Whether the request has a header, in any case.", has_header),
        about(Request, "req.headers", "getReqHeader", GET, "Values of a request header; none if it is absent.", get_header),
        about(Response, "res.headers", "hasResHeader", HAS, "Whether the response has a header, in any case.", has_header),
        about(Response, "res.headers", "getResHeader", GET, "Values of a response header; none if it is absent.", get_header),
        about(Request, "req.cookies", "hasReqCookie", HAS, "Whether the request has a cookie.", has),
        about(Request, "req.cookies", "getReqCookie", COOKIE, "The first cookie of that name; an error if it is absent.", first),
        about(Response, "res.cookies", "hasResCookie", HAS, "Whether the response sets a cookie.", has),
        about(Response, "res.cookies", "getResCookie", COOKIE, "The cookie of that name with the longest path; an error if it is absent.", first),
        about(Request, "req.url.query_params", "hasQueryParam", HAS, "Whether the query has a parameter.", has),
        about(Request, "req.url.query_params", "getQueryParam", GET, "Decoded values of a query parameter; none if it is absent.", get),
        about(Phase::Connect, SECRETS, "secrets.get", &["(map(string, dyn), string, string) -> string"], "The value of a secret of the account, by the names of its vault and the secret; an error if it does not exist. Changes take effect immediately.", secret),
        global("inCidrRange", RANGE, "Whether an address is in a prefix; false if either is invalid.", in_range),
        global("inCidrRanges", &["(string, list(string)) -> bool"], "Whether an address is in one of some prefixes.", in_ranges),
        member("isPrivateIp", &["(string) -> bool"], "Whether it is a private IPv4 address (RFC 1918).", is_private),
        global("basic_auth.encode", &["(string, string) -> string"], "The Authorization header value for a user and a password.", basic),
        about(Phase::Connect, RANDOM, "rand.double", &["(int) -> double"], "A random number from 0 to 1.", random_double),
        about(Phase::Connect, RANDOM, "rand.int", &["(int) -> int", "(int, int, int) -> int"], "A random whole number: 0 or 1, or from the first argument to the second, both included.", random_int),
    ]
}

fn secret(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::Map(vaults), vault, name @ ValueRef::String(_)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let found = match vaults.get(*vault) {
        Some(Value::Map(secrets)) => secrets.get(*name),
        _ => None,
    };
    match found {
        Some(Value::String(value)) => {
            meter.make_string(value.len())?;
            Ok(Value::String(value.clone()))
        }
        // Unlike a missing key of a map, a missing secret makes the rule undecidable.
        _ => Err(EvalErrorKind::Missing),
    }
}

fn entry<'v>(arguments: &[ValueRef<'v>]) -> Result<Option<&'v Value>, EvalErrorKind> {
    match arguments {
        [ValueRef::Map(map), key @ ValueRef::String(_)] => Ok(map.get(*key)),
        _ => Err(NO_OVERLOAD),
    }
}

fn header<'v>(arguments: &[ValueRef<'v>]) -> Result<Option<&'v Value>, EvalErrorKind> {
    match arguments {
        [ValueRef::Map(map), ValueRef::String(name)] => {
            if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Ok(map.get(ValueRef::String(&name.to_ascii_lowercase())));
            }
            Ok(map.get(ValueRef::String(name)))
        }
        _ => Err(NO_OVERLOAD),
    }
}

fn has_header(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    Ok(Value::Bool(header(arguments)?.is_some()))
}

fn get_header(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let nothing = || Value::List([].into());
    Ok(header(arguments)?.cloned().unwrap_or_else(nothing))
}

fn has(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    Ok(Value::Bool(entry(arguments)?.is_some()))
}

fn get(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let nothing = || Value::List([].into());
    Ok(entry(arguments)?.cloned().unwrap_or_else(nothing))
}

fn first(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    match entry(arguments)? {
        Some(Value::List(items)) => items.first().cloned(),
        _ => None,
    }
    .ok_or(EvalErrorKind::NoSuchKey)
}

fn contains(range: &str, address: &str) -> bool {
    let (Some(range), Ok(address)) = (prefix(range), address.parse::<IpAddr>()) else {
        return false;
    };
    IpSet::of([(Verdict::Allow, range)]).contains(address)
}

fn in_range(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(address), ValueRef::String(range)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    Ok(Value::Bool(contains(range, address)))
}

fn in_ranges(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(address), ValueRef::List(ranges)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    for range in *ranges {
        meter.spend(4)?;
        if let ValueRef::String(range) = range.borrow()
            && contains(range, address)
        {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn is_private(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(address)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    let address = address.parse::<std::net::Ipv4Addr>();
    Ok(Value::Bool(
        address.is_ok_and(|address| address.is_private()),
    ))
}

fn basic(arguments: &[ValueRef<'_>], meter: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::String(user), ValueRef::String(password)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    new_text(
        format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))),
        meter,
    )
}

fn random_double(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let [ValueRef::Int(bits)] = arguments else {
        return Err(NO_OVERLOAD);
    };
    // 63 bits, of which a double holds the upper 53.
    Ok(Value::Double(*bits as f64 / i64::MAX as f64))
}

fn random_int(arguments: &[ValueRef<'_>], _: &mut Meter<'_>) -> Result<Value, EvalErrorKind> {
    let (bits, least, most) = match arguments {
        [ValueRef::Int(bits)] => (*bits, 0, 1),
        [
            ValueRef::Int(bits),
            ValueRef::Int(least),
            ValueRef::Int(most),
        ] => (*bits, *least, *most),
        _ => return Err(NO_OVERLOAD),
    };
    if least > most {
        return Err(INVALID);
    }
    let span = i128::from(most) - i128::from(least) + 1;
    let number = i128::from(least) + i128::from(bits) % span;
    Ok(Value::Int(i64::try_from(number).unwrap_or(most)))
}
