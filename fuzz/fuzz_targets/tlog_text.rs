//! Texts of transparency logs: notes, checkpoints, proofs, requests to witnesses, keys, and addresses of tiles.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_tlog::fuzz::text(bytes));
