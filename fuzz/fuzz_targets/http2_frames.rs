//! HTTP/2 frames of clients, with their costs.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::frames(bytes));
