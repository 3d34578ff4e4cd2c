//! Field sections of HTTP/2.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::hpack(bytes));
