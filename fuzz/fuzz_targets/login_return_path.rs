//! The path to return to after a sign-in, which must stay on the host.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_login::fuzz::return_path(bytes));
