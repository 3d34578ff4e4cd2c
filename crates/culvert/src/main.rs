//! The command `culvert`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    culvert_metrics::count_panics();
    culvert::cli::run(std::env::args_os())
}
