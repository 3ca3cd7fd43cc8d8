//! N17 and N20.

use super::super::figure::Figure;
use super::super::figure::Unit::{Milliseconds, Ratio};

/// A copy of a disk.
pub const DISK: Figure = Figure::at_most(
    "N17.copy.disk",
    "copy of a disk of 1 TiB: Disk written → its file is there and reported",
    Milliseconds,
    100.0,
);
/// A copy of a snapshot.
pub const SNAPSHOT: Figure = Figure::at_most(
    "N17.copy.snapshot",
    "copy of a snapshot of 1 TiB: Disk written → its file is there and reported",
    Milliseconds,
    100.0,
);
/// The guest's longest write while a snapshot is taken.
pub const PAUSE: Figure = Figure::at_most(
    "N17.pause",
    "snapshot of a disk of a running guest: the guest's longest write of 4 KiB meanwhile",
    Milliseconds,
    100.0,
);
/// The same without a snapshot.
pub const QUIET: Figure = Figure::anchor(
    "N17.pause.without",
    "the guest's longest write of 4 KiB in as long a time without",
    Milliseconds,
);
/// What an incremental backup reads.
pub const BACKUP: Figure = Figure::at_most(
    "N17.backup",
    "incremental backup: bytes read ÷ bytes that the guest wrote since the backup before",
    Ratio,
    1.2,
)
.enforced();
/// The serial console.
pub const CONSOLE: Figure = Figure::at_most(
    "N20.console",
    "`berth console` started → first byte of the guest's output",
    Milliseconds,
    50.0,
);
/// Without a ticket and a connection to the host.
pub const GET: Figure = Figure::anchor(
    "N20.kubectl",
    "`kubectl get vm` started → first byte of its output, beside it",
    Milliseconds,
);

const ALL: &[Figure] = &[DISK, SNAPSHOT, PAUSE, QUIET, BACKUP, CONSOLE, GET];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Figure> {
    ALL.iter()
}
