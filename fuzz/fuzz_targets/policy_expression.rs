//! Expressions of traffic policies, with all variables and functions, and what they may cost.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_policy::fuzz::policy_expression(bytes));
