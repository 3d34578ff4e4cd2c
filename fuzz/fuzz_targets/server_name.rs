//! The first bytes of a TLS connection, read for the server name.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_tls::fuzz::client_hello(bytes));
