//! Frames of an agent's connection, and what its user does meanwhile.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_mux::fuzz::any_peer(bytes));
