//! The steps of a program by which the kernel chooses the frames that a packet socket gets (classic BPF).

/// A step with the number of steps that it skips, if it compares something and that holds or not.
pub(super) fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("codes are small"), jt, jf, k }
}

/// Loads a number of this size that is at an offset of the frame.
pub(super) fn load(size: u32, at: u32) -> libc::sock_filter {
    step(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at)
}

/// Loads a fact of the kernel about the frame, beside its bytes.
pub(super) fn known(fact: libc::c_int) -> libc::sock_filter {
    load(libc::BPF_B, (libc::SKF_AD_OFF + fact).cast_unsigned())
}

/// Compares the loaded number with this one.
pub(super) fn is(value: u32, jt: u8, jf: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value)
}

/// Takes so many bytes of the frame: of none, the socket does not get it.
pub(super) fn take(bytes: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, bytes)
}
