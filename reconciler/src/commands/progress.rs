//! The progress of a transfer, on the standard error.

use std::{
    io::{IsTerminal, Write},
    sync::atomic::{AtomicU64, Ordering},
};

use berth_api::Quantity;

/// Without a terminal, the progress is printed each time that this many hundredths were added.
const STEP: u64 = 10;

/// The part of a file that was transferred.
pub(super) struct Progress {
    size: u64,
    /// The participle of the transfer: `uploaded`.
    done: &'static str,
    /// The hundredths that were shown last.
    shown: AtomicU64,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(size: u64, done: &'static str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { size, done, shown: AtomicU64::new(u64::MAX), is_terminal }
    }

    pub(super) fn show(&self, bytes: u64) {
        let hundredths = u64::try_from(u128::from(bytes) * 100 / u128::from(self.size.max(1))).unwrap_or(100);
        let shown = self.shown.load(Ordering::Relaxed);
        let is_due = shown == u64::MAX
            || (self.is_terminal && hundredths != shown)
            || hundredths < shown
            || hundredths >= shown + STEP;
        if is_due {
            self.shown.store(hundredths, Ordering::Relaxed);
            let (start, end) = if self.is_terminal { ("\r", "") } else { ("", "\n") };
            let (size, done) = (Quantity::from_bytes(self.size).0, self.done);
            // Its reader may be gone, which does not end the transfer.
            let _ = write!(std::io::stderr(), "{start}{hundredths:3} % of {size} {done}{end}");
        }
    }

    /// Ends the line, before other text.
    pub(super) fn end(&self) {
        if self.shown.swap(u64::MAX, Ordering::Relaxed) != u64::MAX && self.is_terminal {
            let _ = writeln!(std::io::stderr());
        }
    }
}
