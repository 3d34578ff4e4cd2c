//! HTTP/2 frames, with what they cost.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::http2_frames(bytes));
