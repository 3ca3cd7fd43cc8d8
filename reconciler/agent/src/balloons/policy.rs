//! How much memory the guests of a host give back to it by their balloons, and get again. Pure.
//!
//! ```text
//!   available on the host:  0 ─────────────── 20 % ─────────── 25 % ──────────────── all
//!                            guests give back │ nothing changes │ guests get it again
//! ```
//!
//! The threshold is that of Proxmox VE and of oVirt (MOM); the band above it keeps memory from going back and forth. Each step changes a
//! guest by a twentieth of its memory at most, so that it can empty its caches, and is decided from what the balloons are at that
//! moment: a guest that does not follow is asked for the same once more, and never for more than one step.
//!
//! *Guarantees:* a guest never gives back what is kept for it; one that has less gets it at once. Nothing is taken from a guest that
//! has not reported its memory a moment ago: it may have no driver, or not follow. No more is taken than it has available.

#[cfg(test)]
mod tests;

use berth_qemu::balloon::GuestMemory;

const MIB: u64 = 1 << 20;
/// The part of the host's memory that is to be available.
const AVAILABLE: u64 = 5;
/// The further part that is available before guests get memory again.
const BAND: u64 = 20;
/// The part of a guest's memory by which a step changes it.
const STEP: u64 = 20;
/// The least that a step may change: a twentieth of a small guest would take long.
const LEAST_STEP: u64 = 16 * MIB;
/// A change of less is not worth the guest's work, unless it empties the balloon.
const LEAST_CHANGE: u64 = 4 * MIB;
/// The part of its memory that stays available to a guest while others have more to spare.
const SPARED: u64 = 5;

/// The memory of a host, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostMemory {
    /// In ordinary pages.
    pub(super) total: u64,
    pub(super) available: u64,
    /// Kept for the host itself and not for VMs.
    pub(super) reserved: u64,
}

/// The memory of a guest, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guest {
    /// That of its start: the balloon changes only this.
    pub(super) base: u64,
    /// Plugged in beside it.
    pub(super) plugged: u64,
    /// The part of both that the host keeps for it.
    pub(super) reserved: u64,
    /// The part of `base` that the balloon leaves.
    pub(super) left: u64,
    /// Its report, if that is not old.
    pub(super) reported: Option<GuestMemory>,
}

impl HostMemory {
    /// The memory that is to be available: for other programs, and for what the guests use next.
    fn wanted(&self) -> u64 {
        (self.total / AVAILABLE).max(self.reserved)
    }

    /// Returns the bytes that are lacking.
    pub(super) fn lacks(&self) -> u64 {
        self.wanted().saturating_sub(self.available)
    }

    /// Returns the bytes that guests can have again.
    fn room(&self) -> u64 {
        self.available.saturating_sub(self.wanted().saturating_add(self.total / BAND))
    }
}

impl Guest {
    /// The least that the balloon leaves.
    fn least(&self) -> u64 {
        self.reserved.saturating_sub(self.plugged).min(self.base)
    }

    /// In whole MiB, so that steps end exactly at the least.
    fn step(&self) -> u64 {
        (self.base / STEP).next_multiple_of(MIB).max(LEAST_STEP)
    }

    /// The most that one step takes. A guest that has nothing available would have to swap, or end programs.
    fn gives(&self) -> u64 {
        let most = self.left.saturating_sub(self.least()).min(self.step());
        self.reported.map_or(0, |memory| memory.available.min(most))
    }

    /// The part of that which it does not use.
    fn spares(&self) -> u64 {
        let spare = |memory: GuestMemory| memory.available.saturating_sub(memory.total / SPARED);
        self.reported.map_or(0, spare).min(self.gives())
    }

    /// The most that one step gives.
    fn takes(&self) -> u64 {
        self.base.saturating_sub(self.left).min(self.step())
    }
}

/// Returns what each balloon is to leave to its guest. None: it stays as it is.
pub(super) fn targets(host: &HostMemory, guests: &[Guest]) -> Vec<Option<u64>> {
    let changes = match (host.lacks(), host.room()) {
        (0, 0) => vec![Change::None; guests.len()],
        (0, room) => divide(room, &amounts(guests, Guest::takes)).into_iter().map(Change::Give).collect(),
        (lacking, _) => taken(lacking, guests),
    };
    guests.iter().zip(changes).map(|(guest, change)| target(guest, change)).collect()
}

/// Returns how much the kernel's OOM killer is to prefer the QEMU of a guest for which this many bytes are kept (none: all of them), in
/// thousandths of the host's memory. As among the pods of Kubernetes, a QEMU that uses more than is kept for it comes before any of
/// which all is kept.
pub(super) fn oom_preference(reserved: Option<u64>, total: u64) -> u16 {
    let Some(reserved) = reserved else { return 0 };
    let kept = u128::from(reserved.min(total)) * 1000 / u128::from(total.max(1));
    u16::try_from(1000 - kept).unwrap_or_default()
}

#[derive(Clone, Copy)]
enum Change {
    None,
    Give(u64),
    Take(u64),
}

fn target(guest: &Guest, change: Change) -> Option<u64> {
    let wanted = match change {
        Change::None => guest.left,
        Change::Give(bytes) => guest.left.saturating_add(bytes).min(guest.base),
        Change::Take(bytes) => guest.left.saturating_sub(bytes),
    };
    // The memory that is kept for it does not depend on the host.
    let wanted = wanted.max(guest.least());
    let change = wanted.abs_diff(guest.left);
    let is_worth_it = change >= LEAST_CHANGE || wanted == guest.base || guest.left < guest.least();
    (change > 0 && is_worth_it).then_some(wanted)
}

/// Divides what is lacking: first among the guests that do not use all of their memory, then among all that can give some.
fn taken(lacking: u64, guests: &[Guest]) -> Vec<Change> {
    let spared = divide(lacking, &amounts(guests, Guest::spares));
    let rest = lacking.saturating_sub(spared.iter().sum());
    let left: Vec<u64> = guests.iter().zip(&spared).map(|(guest, spared)| guest.gives() - spared).collect();
    let more = divide(rest, &left);
    spared.into_iter().zip(more).map(|(spared, more)| Change::Take(spared + more)).collect()
}

fn amounts(guests: &[Guest], of: fn(&Guest) -> u64) -> Vec<u64> {
    guests.iter().map(of).collect()
}

/// Divides an amount in proportion to these limits, none of which is exceeded.
fn divide(amount: u64, limits: &[u64]) -> Vec<u64> {
    let all: u128 = limits.iter().copied().map(u128::from).sum();
    let part = |limit: u64| match all {
        0 => 0,
        _ if u128::from(amount) >= all => limit,
        // At most `limit`, since `amount` is less than all of them.
        _ => u64::try_from(u128::from(limit) * u128::from(amount) / all).unwrap_or(limit),
    };
    limits.iter().copied().map(part).collect()
}
