//! Searches of events in plain words.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_events::words::parse_any(bytes));
