//! Every figure of `docs/SPECIFICATION.md` that `cargo measure` measures, with its target.

use super::figure::Figure;
use super::figure::Unit::{Mebibytes, Megabytes, Milliseconds, Percent, Ratio};

/// N4.
pub mod idle {
    use super::{Figure, Mebibytes, Milliseconds, Percent};

    /// The target's memory.
    pub const RSS: Figure =
        Figure::at_most("N4.rss", "`berth up`, idle: resident memory (RSS)", Mebibytes, 40.0);
    /// Without what other processes would need anyway.
    pub const PSS: Figure =
        Figure::anchor("N4.pss", "the same, shared pages counted in part (PSS)", Mebibytes);
    /// Of one core.
    pub const CPU: Figure =
        Figure::at_most("N4.cpu", "`berth up`, idle: processor time, of one core", Percent, 0.5);
    /// The first start ever.
    pub const READY: Figure =
        Figure::at_most("N4.ready", "first start: process started → Host is Ready", Milliseconds, 300.0);
    /// A part of it.
    pub const API: Figure =
        Figure::anchor("N4.api", "first start: process started → API answers", Milliseconds);
    /// A later start.
    pub const RESTART: Figure =
        Figure::anchor("N4.restart", "later start: process started → API answers", Milliseconds);
    pub(super) const ALL: &[Figure] = &[RSS, PSS, CPU, READY, API, RESTART];
}

/// N5.
pub mod handshake {
    use super::{Figure, Milliseconds, Ratio};

    /// Ours.
    pub const START: Figure =
        Figure::at_most("N5.start", "provider: process started → handshake line", Milliseconds, 5.0);
    /// An anchor.
    pub const KUBERNETES: Figure =
        Figure::anchor("N5.kubernetes", "hashicorp/kubernetes, beside it", Milliseconds);
    /// An anchor.
    pub const LIBVIRT: Figure = Figure::anchor("N5.libvirt", "dmacvicar/libvirt, beside it", Milliseconds);
    /// Against the quicker of the two.
    pub const RATIO: Figure =
        Figure::at_most("N5.ratio", "ours ÷ the quicker of the two", Ratio, 0.5).enforced();
    pub(super) const ALL: &[Figure] = &[START, KUBERNETES, LIBVIRT, RATIO];
}

/// N13.
pub mod sizes {
    use super::{Figure, Megabytes};

    /// The one binary.
    pub const BERTH: Figure = Figure::at_most("N13.berth", "`berth`, stripped", Megabytes, 25.0).enforced();
    /// What Terraform downloads.
    pub const PROVIDER: Figure =
        Figure::at_most("N13.provider", "`terraform-provider-berth`, stripped", Megabytes, 12.0).enforced();
    /// An anchor.
    pub const KUBERNETES: Figure =
        Figure::anchor("N13.kubernetes", "hashicorp/kubernetes, stripped", Megabytes);
    /// An anchor.
    pub const LIBVIRT: Figure = Figure::anchor("N13.libvirt", "dmacvicar/libvirt, stripped", Megabytes);
    pub(super) const ALL: &[Figure] = &[BERTH, PROVIDER, KUBERNETES, LIBVIRT];
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    [idle::ALL, handshake::ALL, sizes::ALL].into_iter().flatten()
}
