//! Request targets and their normal form.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_http::fuzz::target(bytes));
