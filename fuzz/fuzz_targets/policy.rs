//! Text of traffic policies: YAML or JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_edge_config::fuzz::policy(bytes));
