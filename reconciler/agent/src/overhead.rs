//! Memory that a VM takes above its guest memory, measured on the VMs that run here. Pure except for its own state.
//!
//! One figure applies to every VM of the host, in the scheduler and in admission. It starts with the known overhead of
//! the accelerator, rises as soon as a VM takes more, and falls only after all VMs have taken less for a while. It
//! moves in steps of 5 MiB, so that it is not written with every measurement.

use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

const MIB: u64 = 1 << 20;
const STEP: u64 = 5 * MIB;
/// Lower bound: no QEMU takes less for long.
const LEAST: u64 = 20 * MIB;
/// Interval of measurements: for each, the kernel walks through all memory of the VMs.
const EVERY: SignedDuration = SignedDuration::from_mins(5);
/// How long all VMs must take less before the figure falls.
const LOWER_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// The current overhead figure; see the module.
#[derive(Debug, Default)]
pub(crate) struct Overhead(Mutex<State>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// None before the first measurement.
    figure: Option<u64>,
    /// Since when less has been measured, and the maximum since then.
    less: Option<(Timestamp, u64)>,
    measured_at: Option<Timestamp>,
}

impl Overhead {
    /// Returns the figure in bytes; `known` is the known overhead of the accelerator.
    pub(crate) fn figure(&self, known: u64) -> u64 {
        self.state().figure.unwrap_or(known)
    }

    /// Whether the next measurement is due.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.state().measured_at.is_none_or(|at| now.duration_since(at) >= EVERY)
    }

    /// Records the maximum overhead measured over all running VMs.
    pub(crate) fn measured(&self, most: u64, known: u64, now: Timestamp) {
        let mut state = self.state();
        *state = State { measured_at: Some(now), ..state.with(most, known, now) };
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn with(self, most: u64, known: u64, now: Timestamp) -> Self {
        let wanted = most.next_multiple_of(STEP).max(LEAST);
        let figure = self.figure.unwrap_or(known);
        // A value one step below the figure counts as equal to it (hysteresis).
        if wanted.saturating_add(STEP) >= figure {
            return Self { figure: Some(figure.max(wanted)), less: None, ..self };
        }
        let (since, before) = self.less.unwrap_or((now, 0));
        let most = wanted.max(before);
        if now.duration_since(since) < LOWER_AFTER {
            return Self { figure: Some(figure), less: Some((since, most)), ..self };
        }
        Self { figure: Some(most), less: None, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::prop, prop_assert, proptest};

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).expect("small")
    }

    #[test]
    fn it_rises_at_once_and_falls_after_a_while_and_small_changes_are_none() {
        let overhead = Overhead::default();
        let known = 90 * MIB;
        assert_eq!(overhead.figure(known), known, "before anything was measured");
        assert!(overhead.is_due(at(0)));
        let after = |mib: u64, minute: i64| {
            overhead.measured(mib * MIB, known, at(minute));
            overhead.figure(known) / MIB
        };
        assert_eq!(after(82, 0), 90, "nearly as much");
        assert_eq!(after(96, 1), 100);
        assert_eq!(after(92, 2), 100);
        assert_eq!(after(60, 3), 100, "not yet");
        assert_eq!(after(71, 10), 100);
        assert_eq!(after(50, 18), 75, "the most of that time");
        assert_eq!(after(50, 19), 75);
        assert_eq!(after(73, 40), 75, "between them it was more");
        assert_eq!(after(1, 50), 75);
        assert_eq!(after(1, 70), 20, "never less");
    }

    proptest! {
        #[test]
        fn it_is_never_less_than_what_was_just_measured(looks in prop::collection::vec((1u64..200, 1i64..30), 1..40)) {
            let (overhead, mut minute) = (Overhead::default(), 0);
            for (mib, minutes) in looks {
                minute += minutes;
                overhead.measured(mib * MIB, 50 * MIB, at(minute));
                prop_assert!(overhead.figure(50 * MIB) >= mib * MIB);
            }
        }
    }
}
