//! HTTP/1 responses of upstreams.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::response(bytes));
