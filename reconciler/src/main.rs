//! The one binary, `berth`.

use std::{process::ExitCode, time::Duration};

use berth::{cli::Cli, commands, failure};
use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// mimalloc's `mi_option_purge_delay`, which its crate has no name for.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// How long freed memory is kept, ms. Memory that is returned at once has to be mapped and cleared again for the next request.
const KEEP_FREED: std::ffi::c_long = 500;
const COLLECT_EVERY: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    give_memory_back();
    let cli = Cli::parse();
    berth::log::start(&cli.log);
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => failure::report(&error, 1),
    }
}

/// Makes the allocator return freed memory to the host soon. By itself it does so only on later allocations, so that the memory of a
/// burst of requests or watchers would stay allocated for as long as the process is idle.
fn give_memory_back() {
    // SAFETY: sets a number in a table of the allocator, before there is a second thread.
    #[expect(unsafe_code, reason = "the allocator has no safe interface for its options")]
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, KEEP_FREED);
    }
    let collect = || loop {
        std::thread::sleep(COLLECT_EVERY);
        // SAFETY: takes no pointer; any thread may call it at any time.
        #[expect(unsafe_code, reason = "the allocator has no safe interface for it")]
        unsafe {
            libmimalloc_sys::mi_collect(false);
        }
    };
    // Without the thread, memory is returned on later allocations.
    let _ = std::thread::Builder::new().name("memory".to_owned()).spawn(collect);
}
