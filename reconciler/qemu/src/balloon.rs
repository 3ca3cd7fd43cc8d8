//! The balloon of a machine: the memory that it leaves to the guest, and the memory that the guest reports.
//!
//! A guest with the driver (virtio-balloon: Linux, BSD, and Windows with the virtio drivers) puts pages into the balloon, or takes
//! them out, until it has as much memory as it is asked to have. QEMU gives the pages in the balloon back to the host. A guest without
//! the driver keeps what it has and reports nothing. All that a guest reports is its own word, and any number may be wrong.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::machine::BALLOON;
use crate::qmp::{Qmp, QmpError, shorten};

/// How often a guest reports its memory, in seconds.
pub const REPORT_EVERY: u64 = 10;

/// The state of the balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balloon {
    /// The memory of the start that the balloon leaves to the guest, in bytes.
    pub left: u64,
    /// None: the guest has not reported any.
    pub report: Option<Report>,
}

/// A guest's last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// In seconds since the epoch, by the clock of the host.
    pub at: i64,
    pub memory: GuestMemory,
}

/// The memory of a guest as its kernel counts it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestMemory {
    /// All that the kernel manages: a little less than the guest has.
    pub total: u64,
    /// Memory that programs can still get without swapping: free memory and most of the caches.
    pub available: u64,
    /// Read back from the guest's swap space since its boot. None: not reported.
    pub swapped_in: Option<u64>,
    /// Written to it.
    pub swapped_out: Option<u64>,
}

impl GuestMemory {
    /// Returns the same, with no more than this many bytes in total and no more available than there is.
    #[must_use]
    pub fn within(self, most: u64) -> Self {
        let total = self.total.min(most);
        Self { total, available: self.available.min(total), ..self }
    }

    /// Returns the bytes that programs and the kernel use, without caches.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total.saturating_sub(self.available)
    }
}

fn path() -> String {
    format!("/machine/peripheral/{BALLOON}")
}

/// Has the guest report its memory every [`REPORT_EVERY`] seconds, at once for the first time.
pub async fn report_regularly(qmp: &Qmp) -> Result<(), QmpError> {
    let property = "guest-stats-polling-interval";
    let arguments = json!({"path": path(), "property": property, "value": REPORT_EVERY});
    qmp.execute("qom-set", arguments).await.map(|_| ())
}

/// Reads how much of the guest's memory is in the balloon, in bytes.
pub async fn ballooned(qmp: &Qmp) -> Result<u64, QmpError> {
    let base = number(qmp, "query-memory-size-summary", "base-memory").await?;
    Ok(base.saturating_sub(number(qmp, "query-balloon", "actual").await?))
}

async fn number(qmp: &Qmp, command: &str, field: &str) -> Result<u64, QmpError> {
    let answer = qmp.execute(command, Value::Null).await?;
    let unexpected = || QmpError::Unexpected { command: command.to_owned(), detail: shorten(&answer) };
    answer[field].as_u64().ok_or_else(unexpected)
}

/// Reads the balloon and the guest's last report.
pub async fn observe(qmp: &Qmp) -> Result<Balloon, QmpError> {
    let left = number(qmp, "query-balloon", "actual").await?;
    let report = match qmp.execute("qom-get", json!({"path": path(), "property": "guest-stats"})).await {
        Ok(stats) => report(&stats),
        // Some versions refuse until the guest has reported something.
        Err(QmpError::Refused { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(Balloon { left, report })
}

/// Asks the guest to have this many bytes of the memory of its start, and to put the rest into the balloon. Does not wait for it.
pub async fn request(qmp: &Qmp, bytes: u64) -> Result<(), QmpError> {
    qmp.execute("balloon", json!({"value": bytes})).await.map(|_| ())
}

/// Returns what the guest has reported. None: nothing, or not how much is available.
fn report(stats: &Value) -> Option<Report> {
    let at = stats["last-update"].as_i64().filter(|at| *at > 0)?;
    // The largest number stands for one that the guest does not report.
    let number = |name: &str| stats["stats"][name].as_u64().filter(|number| *number != u64::MAX);
    let total = number("stat-total-memory").filter(|total| *total > 0)?;
    // Kernels before 4.6 do not report what is available.
    let available = number("stat-available-memory").or_else(|| number("stat-free-memory"))?;
    let (swapped_in, swapped_out) = (number("stat-swap-in"), number("stat-swap-out"));
    Some(Report { at, memory: GuestMemory { total, available, swapped_in, swapped_out } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(total: Value, available: Value) -> Value {
        json!({"last-update": 7, "stats": {"stat-total-memory": total, "stat-available-memory": available,
            "stat-free-memory": 5, "stat-swap-in": u64::MAX, "stat-swap-out": 4096}})
    }

    #[test]
    fn a_report_has_what_the_guest_uses() {
        let found = report(&stats(json!(100), json!(60))).expect("a report");
        assert_eq!((found.at, found.memory.used()), (7, 40));
        assert_eq!((found.memory.swapped_in, found.memory.swapped_out), (None, Some(4096)));
        let old_kernel = report(&stats(json!(100), json!(u64::MAX))).expect("a report");
        assert_eq!(old_kernel.memory.available, 5, "what is free");
    }

    #[test]
    fn a_guest_that_has_not_reported_is_not_known() {
        let never =
            json!({"last-update": 0, "stats": {"stat-total-memory": 100, "stat-available-memory": 60}});
        assert_eq!(report(&never), None);
        assert_eq!(report(&stats(json!(u64::MAX), json!(60))), None);
        assert_eq!(report(&stats(json!(0), json!(60))), None);
        for wrong in [json!({}), json!([1]), json!("x"), json!(null), json!({"last-update": -5, "stats": []})]
        {
            assert_eq!(report(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_that_no_guest_of_this_size_can_have_are_cut() {
        let hostile = report(&stats(json!(u64::MAX - 1), json!(u64::MAX - 2))).expect("a report").memory;
        let cut = hostile.within(1 << 30);
        assert_eq!((cut.total, cut.available, cut.used()), (1 << 30, 1 << 30, 0));
        let more = GuestMemory { total: 10, available: 90, ..GuestMemory::default() };
        assert_eq!((more.used(), more.within(100).available), (0, 10));
    }
}
