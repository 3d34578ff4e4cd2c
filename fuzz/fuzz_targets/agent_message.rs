//! Messages of agents: JSON objects without a length prefix.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_tunnel::fuzz::message(bytes));
