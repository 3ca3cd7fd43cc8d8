//! The terminal in raw mode: each key is sent as it is, Ctrl-C included, and the guest echoes it.

use std::io;

use anyhow::Context;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The standard input in raw mode; dropped, it is as before.
pub(super) struct RawTerminal {
    before: Termios,
    signals: Signals,
}

impl RawTerminal {
    pub(super) fn enter() -> anyhow::Result<Self> {
        const WHAT: &str = "setting the terminal to raw mode";
        let signals = Signals::listen().context(WHAT)?;
        let before = tcgetattr(io::stdin()).context(WHAT)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).context(WHAT)?;
        Ok(Self { before, signals })
    }

    /// Returns the name of the next signal that is to end this process. Without a handler the terminal would stay in raw mode.
    pub(super) async fn signal(&mut self) -> &'static str {
        self.signals.next().await
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

/// The signals that end a process.
struct Signals {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_does_not_end_a_process_before_it_gives_the_terminal_back() {
        let mut signals = Signals::listen().expect("handlers");
        // The only one that no other test of this process waits for.
        nix::sys::signal::raise(nix::sys::signal::SIGHUP).expect("sent");
        assert_eq!(signals.next().await, "SIGHUP");
    }
}
