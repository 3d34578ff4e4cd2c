//! Text of the expression language.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_cel::compile_and_run_any(bytes));
