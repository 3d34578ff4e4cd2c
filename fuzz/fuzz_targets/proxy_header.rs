//! The PROXY header in front of a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_io::fuzz::proxy_header(bytes));
