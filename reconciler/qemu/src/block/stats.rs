//! The operations of a machine's disks, and how long they took.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::BlockError;
use crate::devices::list;
use crate::machine::{SCRATCH_ID, SEED_ID};
use crate::qmp::Qmp;

/// The upper limits of the classes of duration, in nanoseconds; the last class has none. From 100 µs to 1 s.
pub const DURATION_LIMITS: [u64; 12] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

/// More than any counter of a disk reaches. Sums of counters, which QEMU answers and a guest may have taken over, are numbers still.
const MOST: u64 = u64::MAX >> 8;

/// The operations of one disk since its machine was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// The id of its device.
    pub id: String,
    pub read: OperationUse,
    pub write: OperationUse,
    pub flush: OperationUse,
}

/// The operations of one sort.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationUse {
    pub operations: u64,
    /// 0 for flushes.
    pub bytes: u64,
    /// The sum of their durations.
    pub nanoseconds: u64,
    /// The number of operations in each class of duration, see [`DURATION_LIMITS`], since QEMU was asked to count them. Empty
    /// before.
    pub durations: Vec<u64>,
}

/// Reads the operations of each disk. Has QEMU count durations from the first call on.
pub async fn disk_use(qmp: &Qmp) -> Result<Vec<DiskUse>, BlockError> {
    let mut found = Vec::new();
    for item in list(qmp, "query-blockstats", json!({})).await? {
        let Some(device) =
            item["qdev"].as_str().filter(|id| !id.is_empty() && ![SEED_ID, SCRATCH_ID].contains(id))
        else {
            continue;
        };
        let stats = &item["stats"];
        if stats.get("rd_latency_histogram").is_none() {
            let limits = json!({"id": device, "boundaries": DURATION_LIMITS});
            // A device that has just been unplugged, or a QEMU without these counters.
            if let Err(error) = qmp.execute("block-latency-histogram-set", limits).await {
                tracing::debug!(%error, device, "durations are not counted");
            }
        }
        found.push(DiskUse {
            id: id_of(device).to_owned(),
            read: operations(stats, "rd"),
            write: operations(stats, "wr"),
            flush: operations(stats, "flush"),
        });
    }
    Ok(found)
}

/// Returns the id of a disk: its device, or the device below that has the block node.
fn id_of(device: &str) -> &str {
    let path = device.strip_prefix("/machine/peripheral/");
    path.and_then(|path| path.strip_suffix("/virtio-backend")).unwrap_or(device)
}

fn operations(stats: &Value, prefix: &str) -> OperationUse {
    let number = |name: &str| stats[format!("{prefix}_{name}")].as_u64().unwrap_or_default().min(MOST);
    let bins = &stats[format!("{prefix}_latency_histogram")]["bins"];
    let durations: Vec<u64> =
        bins.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n.min(MOST)).collect();
    OperationUse {
        operations: number("operations"),
        bytes: number("bytes"),
        nanoseconds: number("total_time_ns"),
        durations: if durations.len() == DURATION_LIMITS.len() + 1 { durations } else { Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_with_their_classes_of_duration() {
        let stats = json!({"rd_operations": 3, "rd_bytes": 12_288, "rd_total_time_ns": 900_000,
            "rd_latency_histogram": {"boundaries": DURATION_LIMITS, "bins": [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]},
            "wr_operations": "x", "flush_operations": 2});
        let read = operations(&stats, "rd");
        assert_eq!((read.operations, read.bytes, read.nanoseconds), (3, 12_288, 900_000));
        assert_eq!(read.durations[1], 3);
        assert_eq!(operations(&stats, "wr"), OperationUse::default(), "whatever it answers");
        assert_eq!(operations(&stats, "flush").operations, 2);
        let hostile =
            json!({"rd_operations": u64::MAX, "rd_latency_histogram": {"bins": vec![u64::MAX; 13]}});
        let read = operations(&hostile, "rd");
        assert!(read.durations.iter().try_fold(read.operations, |sum, n| sum.checked_add(*n)).is_some());
        let foreign = json!({"rd_latency_histogram": {"bins": [1, 2]}});
        assert!(operations(&foreign, "rd").durations.is_empty(), "other classes than ours");
    }
}
