//! The Huffman code for strings in field sections (RFC 7541 5.2 and appendix B).
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, so the table of lengths
//! determines them.

use bytes::{Bytes, BytesMut};

/// Length of the code of each byte and of EOS, in bits.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const SYMBOLS: usize = 257;
const EOS: u16 = 256;
/// The longest code.
const BITS_MAX: usize = 30;
/// Memory that short decoded strings share. It is used again when they are gone.
const ROOM_BYTES: usize = 512;
/// Symbols that are decoded before they are appended.
const SYMBOLS_AT_ONCE: usize = 64;
/// Codes up to this many bits are decoded with one look-up.
const FAST_BITS: usize = 8;

/// The code in the forms that encoding and decoding need.
struct Code {
    /// The code of each symbol, above the eight bits of its length.
    codes: [u64; SYMBOLS],
    /// Symbols ordered by the length of their code, then by value.
    order: [u16; SYMBOLS],
    /// For each length: its first code, the index of its first symbol in `order`, and the number of its symbols.
    first: [u32; BITS_MAX + 1],
    place: [u16; BITS_MAX + 1],
    count: [u16; BITS_MAX + 1],
    /// For each value of [`FAST_BITS`] bits: the symbol whose code they start with, and its length; 0 if it is longer.
    fast: [(u8, u8); 1 << FAST_BITS],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut it = Code {
        codes: [0; SYMBOLS],
        order: [0; SYMBOLS],
        first: [0; BITS_MAX + 1],
        place: [0; BITS_MAX + 1],
        count: [0; BITS_MAX + 1],
        fast: [(0, 0); 1 << FAST_BITS],
    };
    let (mut next, mut place, mut length) = (0u32, 0usize, 1usize);
    while length <= BITS_MAX {
        next <<= 1;
        it.first[length] = next;
        it.place[length] = place as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                it.codes[symbol] = (next as u64) << 8 | length as u64;
                it.order[place] = symbol as u16;
                if length <= FAST_BITS {
                    let shift = FAST_BITS - length;
                    let mut tail = 0;
                    while tail < 1 << shift {
                        it.fast[((next as usize) << shift) + tail] = (symbol as u8, length as u8);
                        tail += 1;
                    }
                }
                next += 1;
                place += 1;
                it.count[length] += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    it
}

/// The symbol whose code `bits` starts with at the most significant bit, and the length of the code.
fn symbol(bits: u64) -> Option<(u8, usize)> {
    let (symbol, length) = CODE.fast[(bits >> (64 - FAST_BITS)) as usize];
    if length > 0 {
        return Some((symbol, usize::from(length)));
    }
    for length in FAST_BITS + 1..=BITS_MAX {
        let code = (bits >> (64 - length)) as u32;
        let nth = code.wrapping_sub(CODE.first[length]);
        if nth < u32::from(CODE.count[length]) {
            let symbol = CODE.order[usize::from(CODE.place[length]) + nth as usize];
            return (symbol != EOS).then_some((symbol as u8, length));
        }
    }
    None
}

/// Decodes a string; `None` if it is invalid. A short string takes its memory from `room`. A long one has its own, so that
/// `room` never holds more than [`ROOM_BYTES`] between requests.
pub(super) fn decode(from: &[u8], room: &mut BytesMut) -> Option<Bytes> {
    // The shortest code has 5 bits.
    let most = from.len() * 8 / 5;
    if most > ROOM_BYTES {
        let mut own = BytesMut::with_capacity(most);
        append(from, &mut own)?;
        return Some(own.freeze());
    }
    if room.capacity() < most {
        room.reserve(ROOM_BYTES);
    }
    append(from, room)?;
    Some(room.split().freeze())
}

fn append(from: &[u8], to: &mut BytesMut) -> Option<()> {
    let mut some = [0; SYMBOLS_AT_ONCE];
    let mut count = 0;
    let (mut bits, mut have, mut rest) = (0u64, 0usize, from);
    loop {
        // The longest code has 30 bits.
        if have <= 32 {
            if let Some((four, behind)) = rest.split_first_chunk() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - have);
                have += 32;
                rest = behind;
            } else {
                for byte in std::mem::take(&mut rest) {
                    bits |= u64::from(*byte) << (56 - have);
                    have += 8;
                }
            }
        }
        if have == 0 {
            break;
        }
        let (symbol, length) = symbol(bits)?;
        if length > have {
            // The rest is padding: less than a byte of the most significant bits of EOS, which are ones.
            let is_filling = have < 8 && bits.leading_ones() as usize >= have;
            if !is_filling {
                return None;
            }
            break;
        }
        if count == some.len() {
            to.extend_from_slice(&some);
            count = 0;
        }
        some[count] = symbol;
        count += 1;
        bits <<= length;
        have -= length;
    }
    to.extend_from_slice(some.get(..count).unwrap_or_default());
    Some(())
}

/// Encodes a string and appends it to `to`, if that is shorter than the string. If not, `to` is as before.
pub(super) fn encode_shorter(from: &[u8], to: &mut Vec<u8>) -> bool {
    let before = to.len();
    to.reserve(from.len());
    // Fewer than 32 bits wait, and no code has more than 30.
    let (mut bits, mut have) = (0u64, 0u32);
    for byte in from {
        let code = CODE.codes[usize::from(*byte)];
        let length = code as u32 & 0xFF;
        bits = bits.wrapping_shl(length) | (code >> 8);
        have += length;
        if have >= 32 {
            have -= 32;
            to.extend_from_slice(&((bits >> have) as u32).to_be_bytes());
            if to.len() - before >= from.len() {
                break;
            }
        }
    }
    while have >= 8 {
        have -= 8;
        to.push((bits >> have) as u8);
    }
    if have > 0 {
        let filling = 0xFF >> have;
        to.push(((bits << (8 - have)) as u8) | filling);
    }
    let is_shorter = to.len() - before < from.len();
    if !is_shorter {
        to.truncate(before);
    }
    is_shorter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The length of a string once it is encoded, in bytes.
    fn length(from: &[u8]) -> usize {
        let bits = from
            .iter()
            .map(|byte| usize::from(LENGTHS[usize::from(*byte)]));
        bits.sum::<usize>().div_ceil(8)
    }

    fn decoded(from: &[u8]) -> Option<Vec<u8>> {
        decode(from, &mut BytesMut::new()).map(|text| text.to_vec())
    }

    #[test]
    fn a_long_string_leaves_no_memory_behind() {
        let mut room = BytesMut::new();
        for length in [10, 300, 600, 60_000, 20] {
            let mut coded = Vec::new();
            assert!(encode_shorter(&vec![b'a'; length], &mut coded));
            let text = decode(&coded, &mut room).unwrap();
            assert_eq!(text, vec![b'a'; length]);
            drop(text);
            assert!(room.capacity() <= ROOM_BYTES, "{length}");
        }
    }

    #[test]
    fn strings_of_the_standard() {
        // RFC 7541 C.4 and C.6.
        for (text, bytes) in [
            ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
            ("no-cache", "a8eb10649cbf"),
            ("custom-key", "25a849e95ba97d7f"),
            ("custom-value", "25a849e95bb8e8b4bf"),
            ("302", "6402"),
            ("private", "aec3771a4b"),
            (
                "Mon, 21 Oct 2013 20:13:21 GMT",
                "d07abe941054d444a8200595040b8166e082a62d1bff",
            ),
            (
                "https://www.example.com",
                "9d29ad171863c78f0b97c8e9ae82ae43d3",
            ),
        ] {
            let bytes = hex(bytes);
            let mut encoded = Vec::new();
            assert!(encode_shorter(text.as_bytes(), &mut encoded));
            assert_eq!(encoded, bytes, "{text}");
            assert_eq!(decoded(&bytes).unwrap(), text.as_bytes());
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().map(|it| it.to_digit(16).unwrap()).collect();
        digits
            .chunks(2)
            .map(|it| (it[0] * 16 + it[1]) as u8)
            .collect()
    }

    /// Codes of appendix B: short and long ones, and the first and last of a length.
    #[test]
    fn codes_of_the_standard() {
        for (symbol, code, length) in [
            (0, 0x1ff8, 13),
            (10, 0x3fff_fffc, 30),
            (32, 0x14, 6),
            (48, 0x0, 5),
            (92, 0x7_fff0, 19),
            (97, 0x3, 5),
            (126, 0x1ffd, 13),
            (127, 0xfff_fffc, 28),
            (128, 0xf_ffe6, 20),
            (249, 0xfff_fffe, 28),
            (255, 0x3ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!(CODE.codes[symbol] >> 8, code, "{symbol}");
            assert_eq!(CODE.codes[symbol] & 0xFF, u64::from(length), "{symbol}");
            assert_eq!(LENGTHS[symbol], length, "{symbol}");
        }
        // The code is complete: no bits are without a meaning.
        let share = |length: &u8| 1_u64 << (BITS_MAX - usize::from(*length));
        assert_eq!(LENGTHS.iter().map(share).sum::<u64>(), 1 << BITS_MAX);
    }

    #[test]
    fn padding_is_less_than_a_byte_of_ones() {
        // `0` is 00000.
        assert_eq!(decoded(&[0b0000_0111]).unwrap(), b"0");
        assert_eq!(decoded(&[0b0000_0110]), None);
        assert_eq!(decoded(&[0b0000_0111, 0xFF]), None);
        assert_eq!(decoded(&[0xFF, 0xFF, 0xFF, 0xFF]), None, "the end itself");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    proptest! {
        #[test]
        fn encoded_strings_are_decoded(text in proptest::collection::vec(any::<u8>(), 0..80), letters in "[ -~]{0,80}") {
            for text in [&text[..], letters.as_bytes()] {
                let mut encoded = b"before".to_vec();
                let is_shorter = encode_shorter(text, &mut encoded);
                let encoded = encoded.strip_prefix(b"before").unwrap();
                prop_assert_eq!(is_shorter, length(text) < text.len());
                prop_assert_eq!(encoded.len(), if is_shorter { length(text) } else { 0 });
                if is_shorter {
                    prop_assert_eq!(&decoded(encoded).unwrap()[..], text);
                }
            }
        }

        #[test]
        fn only_the_encoding_of_a_string_is_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decoded(&bytes) {
                let mut encoded = Vec::new();
                match encode_shorter(&text, &mut encoded) {
                    true => prop_assert_eq!(encoded, bytes),
                    false => prop_assert_eq!(length(&text), bytes.len()),
                }
            }
        }
    }
}
