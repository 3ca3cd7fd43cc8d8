//! The boot sector: the geometry of a file system.

use super::damaged;
use crate::content::Piece;
use crate::disk::number;
use crate::error::Result;

/// The length of the boot sector.
pub(super) const LENGTH: usize = 512;
/// The sizes of a record, and of a cluster.
const RECORDS: std::ops::RangeInclusive<u64> = 512..=4096;
const CLUSTERS: std::ops::RangeInclusive<u64> = 512..=2 << 20;

/// The numbers of a boot sector, which are verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    /// In bytes.
    pub(super) cluster: u64,
    /// The clusters of the file system.
    pub(super) clusters: u64,
    pub(super) record_size: u64,
    /// The first cluster of the master file table.
    pub(super) table: u64,
}

impl Boot {
    /// Verifies a boot sector. `there` is the size of its place in bytes.
    pub(super) fn new(bytes: &[u8], there: u64) -> Result<Self> {
        if bytes.len() < LENGTH || number(bytes, 3, 8) != u64::from_le_bytes(*b"NTFS    ") {
            return Err(damaged("it has no boot sector"));
        }
        let (sector, factor) = (number(bytes, 11, 2), number(bytes, 13, 1));
        // Above 128, it is a negative power of two.
        let factor = if factor > 128 { 1_u64.checked_shl(exponent(factor)).unwrap_or(0) } else { factor };
        let is_sector = (256..=4096).contains(&sector) && sector.is_power_of_two();
        let cluster = factor.checked_mul(sector).filter(|cluster| CLUSTERS.contains(cluster));
        let cluster = cluster.filter(|cluster| is_sector && cluster.is_power_of_two());
        let cluster =
            cluster.ok_or_else(|| damaged(format!("a cluster has {factor} sectors of {sector} bytes")))?;
        let clusters = number(bytes, 40, 8) / (cluster / sector).max(1);
        if clusters.checked_mul(cluster).is_none_or(|size| size > there) {
            return Err(damaged(format!(
                "it has {clusters} clusters of {cluster} bytes, and its place has {there} bytes"
            )));
        }
        let size = number(bytes, 64, 1);
        let record_size =
            if size > 128 { 1_u64.checked_shl(exponent(size)).unwrap_or(0) } else { size * cluster };
        if !RECORDS.contains(&record_size) || !record_size.is_power_of_two() {
            return Err(damaged(format!("a record has {record_size} bytes")));
        }
        let found = Self { cluster, clusters, record_size, table: number(bytes, 48, 8) };
        match found.has(found.table, record_size.div_ceil(cluster)) {
            true => Ok(found),
            false => Err(damaged("its master file table is beyond its end")),
        }
    }

    /// Whether so many clusters from this one on are there.
    pub(super) fn has(&self, first: u64, count: u64) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.clusters)
    }

    /// Returns the piece of a file at an offset, in bytes, from this cluster on.
    pub(super) fn piece(&self, at: u64, cluster: u64, length: u64) -> Piece {
        Piece { at, length, place: cluster * self.cluster }
    }
}

/// Returns the power of two that a number of a byte above 128 stands for.
fn exponent(byte: u64) -> u32 {
    u32::try_from(256_u64.saturating_sub(byte)).unwrap_or(u32::MAX)
}
