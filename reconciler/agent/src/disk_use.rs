//! The space that the files of disks take on this host, measured at intervals: a disk that grows costs few writes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::Quantity;
use berth_api::storage_pool::{rounded_up, rounding_unit, space};
use tokio::time::Instant;

/// Interval of the measurements.
const EVERY: Duration = Duration::from_secs(600);

/// The last measurement.
#[derive(Debug, Default)]
pub(crate) struct DiskUse(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    at: Option<Instant>,
    /// Bytes by the identity of the volume.
    used: BTreeMap<String, u64>,
}

impl DiskUse {
    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_due(&self) -> bool {
        self.measured().at.is_none_or(|at| at.elapsed() >= EVERY)
    }

    pub(crate) fn record(&self, used: BTreeMap<String, u64>) {
        *self.measured() = Measured { at: Some(Instant::now()), used };
    }

    /// Returns the bytes that a volume took at the last measurement. None: there was none of it.
    pub(crate) fn of(&self, volume: &str) -> Option<u64> {
        self.measured().used.get(volume).copied()
    }
}

/// Returns the bytes that a disk of this size takes, as statuses have it: rounded up, with the amount that is reported.
pub(crate) fn amount(used: u64, size: u64, reported: Option<&str>) -> String {
    Quantity::from_bytes(rounded_up(used, rounding_unit(size), reported.map(space))).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn disks_are_measured_at_intervals_and_rounded() {
        let usage = DiskUse::default();
        assert!(usage.is_due() && usage.of("v-1").is_none());
        usage.record([("v-1".to_owned(), 5)].into());
        assert!(!usage.is_due());
        assert_eq!(usage.of("v-1"), Some(5));
        tokio::time::advance(EVERY).await;
        assert!(usage.is_due());
        let of = |mib: u64, reported| amount(mib << 20, 100 << 30, reported);
        assert_eq!(of(5, None), "512Mi");
        assert_eq!(of(0, None), "0");
        assert_eq!(of(513, Some("512Mi")), "1Gi");
        assert_eq!(of(500, Some("1Gi")), "1Gi", "it may be about to take more again");
        assert_eq!(of(0, Some("1Gi")), "0");
        assert_eq!(of(0, Some("0")), "0");
    }
}
