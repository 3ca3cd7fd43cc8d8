//! The terminal in raw mode: each key is sent as it is, Ctrl-C included, and the guest echoes it.

use std::io;

use anyhow::Context;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// The standard input in raw mode; dropped, it is as before.
pub(super) struct RawTerminal(Termios);

impl RawTerminal {
    pub(super) fn enter() -> anyhow::Result<Self> {
        const WHAT: &str = "setting the terminal to raw mode";
        let before = tcgetattr(io::stdin()).context(WHAT)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).context(WHAT)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
