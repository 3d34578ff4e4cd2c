//! Hash functions, to compare with values that other systems compute. Not for storing secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc::{CRC_32_ISO_HDLC, CRC_64_GO_ISO, Crc};
use culvert_base::text::hex;
use culvert_cel::{EvalErrorKind, Meter, Value, ValueRef};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::row::{FunctionBody, INVALID, NO_OVERLOAD, Row, global, member, new_text};

pub(super) fn rows() -> Vec<Row> {
    const SIGNATURES: &[&str] = &["(string) -> string", "(string, string) -> string"];
    const DOC: &str = "The hash of a string, as `\"hex\"` (default) or `\"base64\"`.";
    let algorithms: [(&str, &str, FunctionBody); 7] = [
        ("hash.crc32", "crc32", |a, m| {
            hashed(a, m, |text| CRC32.checksum(text).to_be_bytes().to_vec())
        }),
        ("hash.crc64", "crc64", |a, m| {
            hashed(a, m, |text| CRC64.checksum(text).to_be_bytes().to_vec())
        }),
        ("hash.md5", "md5", |a, m| {
            hashed(a, m, |text| Md5::digest(text).to_vec())
        }),
        ("hash.sha1", "sha1", |a, m| {
            hashed(a, m, |text| Sha1::digest(text).to_vec())
        }),
        ("hash.sha256", "sha256", |a, m| {
            hashed(a, m, |text| Sha256::digest(text).to_vec())
        }),
        ("hash.sha512", "sha512", |a, m| {
            hashed(a, m, |text| Sha512::digest(text).to_vec())
        }),
        ("hash.xxhash64", "xxhash64", |a, m| {
            hashed(a, m, |text| {
                xxhash_rust::xxh64::xxh64(text, 0).to_be_bytes().to_vec()
            })
        }),
    ];
    let both = algorithms.into_iter().flat_map(|(qualified, name, run)| {
        [
            global(qualified, SIGNATURES, DOC, run),
            member(name, SIGNATURES, DOC, run),
        ]
    });
    both.collect()
}

static CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
static CRC64: Crc<u64> = Crc::<u64>::new(&CRC_64_GO_ISO);

fn hashed(
    arguments: &[ValueRef<'_>],
    meter: &mut Meter<'_>,
    hash: impl Fn(&[u8]) -> Vec<u8>,
) -> Result<Value, EvalErrorKind> {
    let (text, format) = match arguments {
        [ValueRef::String(text)] => (text, "hex"),
        [ValueRef::String(text), ValueRef::String(format)] => (text, *format),
        _ => return Err(NO_OVERLOAD),
    };
    // Hashing costs more than reading.
    meter.spend(text.len() as u64 / 16)?;
    let bytes = hash(text.as_bytes());
    match format {
        "hex" => new_text(hex(&bytes), meter),
        "base64" => new_text(STANDARD.encode(&bytes), meter),
        _ => Err(INVALID),
    }
}
