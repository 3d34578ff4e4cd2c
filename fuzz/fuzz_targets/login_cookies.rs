//! The cookies of a request, from which those of the edge are removed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_login::fuzz::cookies(bytes));
