//! Encodes record batches (format version 2) and computes partitions.

use std::io::Write;

use crc::{CRC_32_ISCSI, Crc, Table};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::ProducerId;
use super::wire::Out;

static CASTAGNOLI: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// Unix time in milliseconds.
    pub(crate) at: i64,
    pub(crate) key: Option<&'a str>,
    pub(crate) value: &'a [u8],
    pub(crate) headers: [(&'static str, String); 3],
}

/// A batch without producer ID and sequence number.
#[derive(Debug)]
pub(crate) struct Batch {
    count: i32,
    from: i64,
    to: i64,
    is_packed: bool,
    records: Vec<u8>,
}

impl Batch {
    /// Encodes records, at least one, compressed with gzip if `packs`.
    pub(crate) fn of(records: &[Record<'_>], packs: bool) -> Self {
        let from = records.first().map_or(0, |record| record.at);
        let mut out = Out::default();
        for (offset, record) in (0i64..).zip(records) {
            let mut one = Out::default();
            one.i8(0)
                .varint(record.at.wrapping_sub(from))
                .varint(offset);
            one.var_bytes(record.key.map(str::as_bytes));
            one.var_bytes(Some(record.value));
            one.varint(i64::try_from(record.headers.len()).unwrap_or(0));
            for (name, value) in &record.headers {
                one.var_bytes(Some(name.as_bytes()));
                one.var_bytes(Some(value.as_bytes()));
            }
            out.var_bytes(Some(&one.into_bytes()));
        }
        let mut bytes = out.into_bytes();
        if packs {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer
                .write_all(&bytes)
                .and_then(|()| packer.finish())
                .map(|packed| bytes = packed)
                .expect("memory takes every write");
        }
        Self {
            count: i32::try_from(records.len()).unwrap_or(i32::MAX),
            from,
            to: records.iter().map(|record| record.at).max().unwrap_or(from),
            is_packed: packs,
            records: bytes,
        }
    }

    pub(crate) fn count(&self) -> i32 {
        self.count
    }

    /// A hash of the records, to compare batches.
    pub(crate) fn digest(&self) -> [u8; 32] {
        use sha2::{Digest, Sha256};
        Sha256::digest(&self.records).into()
    }

    /// The encoded batch. `sequence` is the number of its first record in its partition.
    pub(crate) fn finish(&self, producer: ProducerId, sequence: i32) -> Vec<u8> {
        const NO_EPOCH: i32 = -1;
        const FORMAT: i8 = 2;
        let mut rest = Out::default();
        rest.i16(i16::from(self.is_packed))
            .i32(self.count - 1)
            .i64(self.from)
            .i64(self.to)
            .i64(producer.id)
            .i16(producer.epoch)
            .i32(sequence)
            .i32(self.count)
            .raw(&self.records);
        let rest = rest.into_bytes();
        let checksum = CASTAGNOLI.checksum(&rest);
        let mut all = Out::default();
        all.i64(0)
            .count(rest.len() + 9)
            .i32(NO_EPOCH)
            .i8(FORMAT)
            .raw(&checksum.to_be_bytes())
            .raw(&rest);
        all.into_bytes()
    }
}

/// The index of a key's partition, computed as Kafka's own clients do: murmur2 with the sign bit
/// cleared.
pub(crate) fn partition_index(key: &[u8], n_partitions: usize) -> usize {
    let hash = usize::try_from(murmur2(key) & 0x7fff_ffff).unwrap_or(0);
    hash.checked_rem(n_partitions).unwrap_or(0)
}

fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, tail) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        for (at, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the test of Kafka's own hash.
    #[test]
    fn keys_are_hashed_like_kafka_clients_do() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
        assert_eq!(partition_index(b"abc", 0), 0);
    }

    #[test]
    fn a_record_batch_has_its_length_and_checksum() {
        let record = Record {
            at: 1_000,
            key: Some("k"),
            value: b"v",
            headers: [("a", "1".into()), ("b", String::new()), ("c", "3".into())],
        };
        let producer = ProducerId { id: 7, epoch: 1 };
        let batch = Batch::of(&[record.clone(), record], false);
        let bytes = batch.finish(producer, 5);
        let length = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
        assert_eq!(length as usize, bytes.len() - 12);
        let checksum = u32::from_be_bytes(bytes[17..21].try_into().unwrap());
        assert_eq!(checksum, CASTAGNOLI.checksum(&bytes[21..]));
        assert_eq!(CASTAGNOLI.checksum(b"123456789"), 0xe306_9283);
        assert_eq!(&bytes[23..27], &[0, 0, 0, 1], "offset of the last");
    }
}
