//! An exhausted disk quota, simulated at the system calls of SQLite.
#![allow(unsafe_code, reason = "SQLite is handed a system call that fails; there is no safe way to")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use nix::errno::Errno;
use nix::libc::{off64_t, pwrite64, size_t, ssize_t, write};
use rusqlite::ffi;

use super::*;

thread_local! {
    static USED_UP: Cell<bool> = const { Cell::new(false) };
}

/// `pwrite64` on a file system on which this thread has exhausted its quota.
unsafe extern "C" fn write_at(file: c_int, from: *const c_void, count: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the caller upholds the requirements of the replaced function.
    if has_room() { unsafe { pwrite64(file, from, count, at) } } else { -1 }
}

/// `write` on such a file system.
unsafe extern "C" fn write_on(file: c_int, from: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller upholds the requirements of the replaced function.
    if has_room() { unsafe { write(file, from, count) } } else { -1 }
}

fn has_room() -> bool {
    if USED_UP.get() {
        Errno::EDQUOT.set();
    }
    !USED_UP.get()
}

fn install() {
    // SAFETY: the VFS is SQLite's own and is never removed; each function has the type of the one that it
    // replaces, and does the same for all other threads.
    unsafe {
        let system = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let set = (*system).xSetSystemCall.expect("that of Unix has it");
        type Call = unsafe extern "C" fn();
        let write_at = std::mem::transmute::<*const (), Call>(write_at as *const ());
        let write_on = std::mem::transmute::<*const (), Call>(write_on as *const ());
        // Which of them exist depends on how SQLite was built.
        for (name, call) in [(c"pwrite64", write_at), (c"pwrite", write_at), (c"write", write_on)] {
            set(system, name.as_ptr(), Some(call));
        }
    }
}

#[test]
fn a_quota_that_is_used_up_is_told_as_one_and_nothing_is_lost() {
    install();
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let key = Key::new(&resource("toys.example/boats"), "", "one");
    let at = block_on(store.submit(put(&key, Expect::Absent, 1))).unwrap().revision;
    USED_UP.set(true);
    let refused = block_on(store.submit(put(&key, Expect::Revision(at), 2)));
    assert!(matches!(refused, Err(WriteError::OverQuota)), "{refused:?}");
    USED_UP.set(false);
    assert_eq!(store.get(&key).unwrap().value()["value"], 1);
    block_on(store.submit(put(&key, Expect::Revision(at), 3))).unwrap();
}
