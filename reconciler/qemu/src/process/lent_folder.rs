//! Limits of a program that serves a folder of the host to a guest, and that the guest may take over.
//!
//! It runs as root, because the files of a folder have many owners. Three things hold it back from the start on:
//!
//! - A mount of the folder in a mount namespace of its own, `nosuid`, `nodev` and, if the guest only reads it, read-only; with
//!   everything that is mounted in the folder.
//! - A filter of system calls (seccomp) which refuses to create files with the set-user-ID or the set-group-ID bit, to give a file one of
//!   them, and to create device files: such a file would be as dangerous on the host, where the folder is mounted without these flags.
//! - The program's own sandbox, which follows.
#![allow(unsafe_code, reason = "what happens between fork and exec")]

use std::ffi::CString;
use std::io;
use std::path::Path;

use libc::{c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// System calls of the other ABI with 32-bit pointers (x32) have this bit.
const X32: u32 = 1 << 30;
/// The offsets in the structure that a filter reads: number, architecture, arguments.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;
/// `fchmodat2`, which libc does not name everywhere.
const FCHMODAT2: c_long = 452;

const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// Without these flags `open` ignores the mode, which is whatever the register had.
const CREATES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A folder as its server has it. All data is prepared: after fork only system calls are allowed.
#[derive(Clone, Debug)]
pub(super) struct LentFolder {
    path: CString,
    attributes: u64,
    filter: Vec<sock_filter>,
}

impl LentFolder {
    pub(super) fn new(path: &Path, read_only: bool) -> io::Result<Self> {
        let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        if read_only {
            attributes |= libc::MOUNT_ATTR_RDONLY;
        }
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        Ok(Self { path, attributes, filter: filter() })
    }

    /// Mounts the folder over itself in a mount namespace of the calling process. Later unmounts of the host
    /// elsewhere are followed there; later mounts in the folder are not.
    ///
    /// # Safety
    ///
    /// Makes system calls only.
    pub(super) unsafe fn mount(&self) -> io::Result<()> {
        let (none, path) = (std::ptr::null(), self.path.as_ptr());
        let attributes = libc::mount_attr {
            attr_set: self.attributes,
            attr_clr: 0,
            propagation: libc::MS_PRIVATE,
            userns_fd: 0,
        };
        // SAFETY: all strings are NUL-terminated and outlive the calls; the kernel reads one such structure.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS).into())?;
            check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, none.cast()).into())?;
            check(libc::mount(path, path, none, libc::MS_BIND | libc::MS_REC, none.cast()).into())?;
            check(libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                path,
                libc::AT_RECURSIVE,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            ))
        }
    }

    /// Applies the filter of system calls to the calling process, permanently. It must have given up new privileges.
    ///
    /// # Safety
    ///
    /// Makes system calls only.
    pub(super) unsafe fn restrict(&self) -> io::Result<()> {
        let len = u16::try_from(self.filter.len()).unwrap_or(u16::MAX);
        let program = libc::sock_fprog { len, filter: self.filter.as_ptr().cast_mut() };
        // SAFETY: the kernel copies as many instructions as there are.
        check(
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }
                .into(),
        )
    }
}

fn check(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn filter() -> Vec<sock_filter> {
    let mut all = vec![
        instruction(LOAD, ARCH),
        jump(IF_EQUAL, ARCHITECTURE, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER),
        jump(IF_AT_LEAST, X32, 0, 1),
        refuse(libc::ENOSYS),
    ];
    // A filter does not see their flags and modes, which are in memory. Programs that use them have another way on older kernels.
    for call in [libc::SYS_openat2, libc::SYS_io_uring_setup] {
        all.extend(on(call, vec![refuse(libc::ENOSYS)]));
    }
    #[cfg(target_arch = "x86_64")]
    {
        for call in [libc::SYS_chmod, libc::SYS_mkdir, libc::SYS_creat] {
            all.extend(on(call, with_mode(1)));
        }
        all.extend(on(libc::SYS_open, opening(1, 2)));
        all.extend(on(libc::SYS_mknod, with_node(1)));
    }
    all.extend(on(libc::SYS_fchmod, with_mode(1)));
    for call in [libc::SYS_fchmodat, FCHMODAT2, libc::SYS_mkdirat] {
        all.extend(on(call, with_mode(2)));
    }
    all.extend(on(libc::SYS_openat, opening(2, 3)));
    all.extend(on(libc::SYS_mknodat, with_node(2)));
    all.push(allow());
    all
}

/// The instructions for one system call, after which nothing else follows.
fn on(call: c_long, body: Vec<sock_filter>) -> Vec<sock_filter> {
    let number = u32::try_from(call).expect("numbers of system calls are small");
    let past = u8::try_from(body.len()).expect("bodies are short");
    let mut all = vec![jump(IF_EQUAL, number, 0, past)];
    all.extend(body);
    all
}

/// Refuses a mode with one of the bits, in this argument.
fn with_mode(mode: u32) -> Vec<sock_filter> {
    vec![load(mode), jump(IF_ANY_BIT, SET_ID, 0, 1), refuse(libc::EPERM), allow()]
}

/// The same for a call that creates a file with some flags only.
fn opening(flags: u32, mode: u32) -> Vec<sock_filter> {
    let mut all = vec![load(flags), jump(IF_ANY_BIT, CREATES, 1, 0), allow()];
    all.extend(with_mode(mode));
    all
}

/// The same, and refuses device files.
fn with_node(mode: u32) -> Vec<sock_filter> {
    vec![
        load(mode),
        jump(IF_ANY_BIT, SET_ID, 3, 0),
        instruction(AND, libc::S_IFMT),
        jump(IF_EQUAL, libc::S_IFCHR, 1, 0),
        jump(IF_EQUAL, libc::S_IFBLK, 0, 1),
        refuse(libc::EPERM),
        allow(),
    ]
}

/// Loads the lower half of an argument, which is all of a flag word or a mode.
fn load(argument: u32) -> sock_filter {
    let low = if cfg!(target_endian = "big") { 4 } else { 0 };
    instruction(LOAD, ARGUMENTS + 8 * argument + low)
}

fn allow() -> sock_filter {
    instruction(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn refuse(error: i32) -> sock_filter {
    instruction(RETURN, libc::SECCOMP_RET_ERRNO | u32::try_from(error).expect("error numbers are positive"))
}

fn instruction(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).expect("codes have 16 bits"), jt, jf, k }
}
