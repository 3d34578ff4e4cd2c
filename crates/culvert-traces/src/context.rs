//! Reads and writes the fields `traceparent` and `tracestate` (W3C Trace Context, levels 1 and 2).

use http::HeaderValue;

/// The field that names the trace and the span of the caller.
pub const TRACEPARENT: &str = "traceparent";
/// The field with what systems on the way add to it.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 00.
pub(crate) const TRACEPARENT_BYTES: usize = 55;
/// Bytes of a `tracestate` that are passed on (W3C Trace Context 3.3.1.5).
const STATE_BYTES_MAX: usize = 512;
/// Members of a `tracestate`; one with more is discarded (3.3.1.1).
const STATE_MEMBERS_MAX: usize = 32;
/// Longer members are dropped first if a `tracestate` is too long (3.3.1.5).
const STATE_LONG_MEMBER_BYTES: usize = 128;
/// Longest key of a member (3.3.1.3.1), and longest value (3.3.1.3.2).
const STATE_PART_BYTES_MAX: usize = 256;

/// The ID of a trace; never zero.
pub type TraceId = [u8; 16];
/// The ID of a span; never zero.
pub type SpanId = [u8; 8];

/// What a valid `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: TraceId,
    /// The span of the caller.
    pub span_id: SpanId,
    /// Bit 0: the caller may have recorded it. Bit 1: the trace ID is random (level 2).
    pub flags: u8,
}

impl TraceContext {
    /// The flag of traces that are recorded.
    pub const SAMPLED: u8 = 1;
    /// The flags that version 00 knows. Others are not passed on (3.2.2.5).
    const KNOWN: u8 = 3;

    /// The context of the only `traceparent` of a request; `None` if there are none, several, or it is malformed (3.2.2).
    pub fn of<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Option<Self> {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value),
            _ => None,
        }
    }

    /// Reads a value. Versions above 00 are read as if they were 00, and may have more after it (4.3).
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(TRACEPARENT_BYTES)?;
        let [version] = unhex(head.get(..2)?)?;
        let is_whole = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.first() == Some(&b'-'),
        };
        let has_dashes = [2, 35, 52].iter().all(|at| head.get(*at) == Some(&b'-'));
        if !is_whole || !has_dashes {
            return None;
        }
        let [flags] = unhex(head.get(53..)?)?;
        let context = Self {
            trace_id: unhex(head.get(3..35)?)?,
            span_id: unhex(head.get(36..52)?)?,
            flags: flags & Self::KNOWN,
        };
        let is_valid = context.trace_id != [0; 16] && context.span_id != [0; 8];
        is_valid.then_some(context)
    }

    /// Whether the caller may have recorded it.
    pub fn is_sampled(&self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    /// The value of the field, of version 00.
    pub fn value(&self) -> [u8; TRACEPARENT_BYTES] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        put_hex(&mut value[3..35], &self.trace_id);
        put_hex(&mut value[36..52], &self.span_id);
        put_hex(&mut value[53..], &[self.flags]);
        value
    }
}

/// Bytes of digits in lower case.
fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn put_hex(out: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// An ID in hexadecimal digits.
pub fn hex(id: &[u8]) -> String {
    let mut digits = vec![b'0'; 2 * id.len()];
    put_hex(&mut digits, id);
    String::from_utf8(digits).unwrap_or_default()
}

/// The fields `tracestate` of a request as one, in their order. `None` if there is none, or one that must be discarded
/// because it is malformed or has too many members. One that is too long loses whole members: first the long ones,
/// then those at its end (3.3.1.5).
pub fn tracestate<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Option<HeaderValue> {
    let mut members: Vec<&[u8]> = Vec::new();
    for member in values
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
    {
        let member = member.trim_ascii();
        // Empty members are allowed, and mean nothing (3.3.1.2).
        if member.is_empty() {
            continue;
        }
        if members.len() == STATE_MEMBERS_MAX || !is_member(member) {
            return None;
        }
        members.push(member);
    }
    let length = |members: &[&[u8]]| members.iter().map(|it| it.len() + 1).sum::<usize>();
    while length(&members) > STATE_BYTES_MAX + 1 {
        let is_long = |member: &&[u8]| member.len() > STATE_LONG_MEMBER_BYTES;
        match members.iter().rposition(is_long) {
            Some(long) => drop(members.remove(long)),
            None => drop(members.pop()),
        }
    }
    if members.is_empty() {
        return None;
    }
    HeaderValue::from_bytes(&members.join(&b","[..])).ok()
}

/// Whether it is `key=value` as in 3.3.1.3. The first character of a key may be a digit, as in level 2.
fn is_member(member: &[u8]) -> bool {
    let Some(at) = member.iter().position(|byte| *byte == b'=') else {
        return false;
    };
    let (key, value) = (&member[..at], &member[at + 1..]);
    let is_key =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    let is_value = |byte: &u8| matches!(byte, b' '..=b'~') && !b",=".contains(byte);
    let starts_well = key
        .first()
        .is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    starts_well
        && key.len() <= STATE_PART_BYTES_MAX
        && key.iter().all(is_key)
        && !value.is_empty()
        && value.len() <= STATE_PART_BYTES_MAX
        && value.iter().all(is_value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_context_is_written_as_it_was_read() {
        let context = TraceContext::parse(VALUE.as_bytes()).unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.value(), VALUE.as_bytes());
        assert_eq!(hex(&context.span_id), "00f067aa0ba902b7");
    }

    #[test]
    fn malformed_contexts_are_as_if_absent() {
        for malformed in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(
                TraceContext::parse(malformed.as_bytes()),
                None,
                "{malformed}"
            );
        }
        assert_eq!(TraceContext::of([VALUE.as_bytes(), VALUE.as_bytes()]), None);
        assert_eq!(TraceContext::of([]), None);
    }

    #[test]
    fn later_versions_are_read_as_the_first() {
        for rest in ["", "-", "-what-ever"] {
            let later = format!("cc{}{rest}", &VALUE[2..]);
            let read = TraceContext::parse(later.as_bytes());
            assert_eq!(read, TraceContext::parse(VALUE.as_bytes()), "{later}");
        }
        // Flags that no version we know defines are not passed on.
        let flags = VALUE.replace("-01", "-fe");
        assert_eq!(TraceContext::parse(flags.as_bytes()).unwrap().flags, 2);
    }

    fn state(values: &[&str]) -> Option<String> {
        let values = values.iter().map(|value| value.as_bytes());
        tracestate(values).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn states_are_joined_bounded_or_discarded() {
        assert_eq!(state(&[]), None);
        assert_eq!(state(&["a=1"]).as_deref(), Some("a=1"));
        assert_eq!(
            state(&["a=1, b@c=2", ",", "d=3"]).as_deref(),
            Some("a=1,b@c=2,d=3")
        );
        for malformed in ["a", "=1", "a=", "A=1", "a=1=2", "a b=1", "a=\u{e9}", "_a=1"] {
            assert_eq!(state(&["b=2", malformed]), None, "{malformed}");
        }
        let most: Vec<String> = (0..32).map(|n| format!("k{n}=1")).collect();
        assert_eq!(state(&[&most.join(",")]), Some(most.join(",")));
        assert_eq!(state(&[&most.join(","), "more=1"]), None);
        // 512 bytes are kept; with one more, the long member goes.
        let (long, short) = (
            format!("l={}", "x".repeat(198)),
            format!("s={}", "y".repeat(98)),
        );
        let fits = format!("{long},{short},t={},u={}", "z".repeat(98), "w".repeat(107));
        assert_eq!(fits.len(), 512);
        assert_eq!(state(&[&fits]).as_deref(), Some(&*fits));
        let over = format!("{fits}v");
        assert_eq!(state(&[&over]), Some(over[long.len() + 1..].to_owned()));
        let many: Vec<String> = (0..8).map(|n| format!("k{n}={}", "x".repeat(90))).collect();
        assert_eq!(state(&[&many.join(",")]), Some(many[..5].join(",")));
    }

    proptest! {
        #[test]
        fn nothing_that_clients_send_panics(value: Vec<u8>) {
            if let Some(context) = TraceContext::parse(&value) {
                prop_assert_eq!(TraceContext::parse(&context.value()), Some(context));
            }
            if let Some(state) = tracestate([&value[..]]) {
                prop_assert!(state.len() <= STATE_BYTES_MAX);
            }
        }
    }
}
