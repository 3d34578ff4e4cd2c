//! Chunked HTTP/1 bodies.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::chunks(bytes));
