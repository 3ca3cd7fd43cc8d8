//! N10.

use super::super::figure::Figure;
use super::super::figure::Unit::Seconds;

/// The longest time, in seconds.
const LIMIT: f64 = 30.0;

/// The part after the administrator's declaration.
pub const RESTART: Figure =
    Figure::at_most("N10.restart", "host declared lost → its VM Running on another host", Seconds, LIMIT);
/// With the boot of the guest.
pub const GUEST: Figure = Figure::anchor(
    "N10.guest",
    "host declared lost → the guest's first process runs on another host",
    Seconds,
);
/// The part before the declaration.
pub const SILENT: Figure =
    Figure::anchor("N10.silent", "host loses its power → Host reported as not Ready", Seconds);
/// Both parts.
pub const TOTAL: Figure = Figure::at_most(
    "N10.total",
    "host loses its power → its VM Running on another host, declared lost when it is reported",
    Seconds,
    LIMIT,
);

const ALL: &[Figure] = &[RESTART, GUEST, SILENT, TOTAL];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Figure> {
    ALL.iter()
}
