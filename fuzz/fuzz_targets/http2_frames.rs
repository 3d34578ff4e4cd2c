//! HTTP/2 frames, as the edge counts them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_edge::fuzz::http2_frames(bytes));
