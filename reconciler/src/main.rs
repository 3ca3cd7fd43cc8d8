//! The one binary, `berth`.

use std::process::ExitCode;

use berth::{cli::Cli, commands};
use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// mimalloc's `mi_option_purge_delay`, which its crate has no name for: how long freed memory is kept, ms.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    give_memory_back();
    let cli = Cli::parse();
    berth::log::start(&cli.log);
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the allocator return freed memory to the host at once: otherwise the memory of a burst of requests or
/// watchers would stay allocated for good, because mimalloc returns memory only on later allocations.
fn give_memory_back() {
    // SAFETY: sets a number in a table of the allocator, before there is a second thread.
    #[expect(unsafe_code, reason = "the allocator has no safe interface for its options")]
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
    }
}
