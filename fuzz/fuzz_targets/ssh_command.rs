//! The command of an SSH client, which is a shell-like line with flags.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| culvert_ssh::fuzz::command(bytes));
