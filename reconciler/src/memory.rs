//! Memory that is returned to the host after a burst of requests. By itself the allocator does so only on later allocations, so that the memory
//! of the burst would stay allocated for as long as the process is idle.

use std::{
    cell::Cell,
    ffi::c_long,
    thread,
    time::{Duration, Instant},
};

/// mimalloc's `mi_option_purge_delay`, which its crate has no name for.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// How long freed memory is kept, ms. Memory that is returned at once has to be mapped and cleared again for the next request.
const KEEP_FREED: c_long = 500;
const COLLECT_EVERY: Duration = Duration::from_secs(1);

thread_local! {
    static COLLECTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns freed memory to the host every second, as long as the process lives.
pub fn give_back() {
    // SAFETY: sets a number in a table of the allocator, before there is a second thread.
    #[expect(unsafe_code, reason = "the allocator has no safe interface for its options")]
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, KEEP_FREED);
    }
    let collect = || {
        loop {
            thread::sleep(COLLECT_EVERY);
            collect();
        }
    };
    // Without the thread, memory is returned on later allocations.
    let _ = thread::Builder::new().name("memory".to_owned()).spawn(collect);
}

/// Gives back what other threads have freed of the memory of this one, which is about to wait: the allocator leaves that to this thread.
pub(crate) fn before_a_wait() {
    let now = Instant::now();
    if COLLECTED.get().is_none_or(|last| now.duration_since(last) >= COLLECT_EVERY) {
        COLLECTED.set(Some(now));
        collect();
    }
}

fn collect() {
    // SAFETY: takes no pointer; any thread may call it at any time.
    #[expect(unsafe_code, reason = "the allocator has no safe interface for it")]
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
}
