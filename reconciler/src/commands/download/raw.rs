//! A raw file of a qcow2 file that a host has made: without a backing file, compression and encryption.
//!
//! ```text
//!  header ─▶ L1 table ─▶ L2 table ─▶ data cluster ──▶ the same offset as in the guest
//!                   0 ─▶        0 ─▶ a hole
//! ```
//!
//! The file is untrusted: sizes are checked before memory is used for them. Source: QEMU's `docs/interop/qcow2.txt`.

use std::{fs::File, io, os::unix::fs::FileExt};

const MAGIC: u32 = 0x5146_49fb;
/// The fields that are read, of version 3.
const HEADER: usize = 80;
/// From 512 bytes to 2 MiB, as QEMU allows.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The largest disk of berth.
const MAX_SIZE: u64 = 64 << 40;
/// The most L2 tables, as QEMU allows.
const MAX_TABLES: u64 = 4 << 20;
/// The bits of an entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
/// In an entry of an L2 table: the cluster reads as zeros, whatever its offset.
const ZEROS: u64 = 1;

/// Why there is no raw file.
#[derive(Debug, thiserror::Error)]
pub(super) enum RawError {
    #[error("cannot read the qcow2 file")]
    Read(#[source] io::Error),
    #[error("cannot write the raw file")]
    Write(#[source] io::Error),
    #[error("the qcow2 file cannot be made raw here ({0}): download it as qcow2, and use qemu-img convert")]
    Unknown(&'static str),
}

/// Where the data of a disk is in a qcow2 file.
#[derive(Debug)]
struct Layout {
    size: u64,
    cluster: u64,
    l1_offset: u64,
}

/// Writes the raw file of a disk, which has this size if it is known. Parts without data are holes. Blocking.
pub(super) fn convert(source: &File, target: &File, size: Option<u64>) -> Result<(), RawError> {
    let layout = Layout::read(source)?;
    if size.is_some_and(|size| size != layout.size) {
        return Err(RawError::Unknown("its disk has another size than the Image"));
    }
    layout.copy(source, target)
}

impl Layout {
    fn read(source: &File) -> Result<Self, RawError> {
        let mut header = [0; HEADER];
        source.read_exact_at(&mut header, 0).map_err(RawError::Read)?;
        let (word, long) = (|at| word(&header, at), |at| long(&header, at));
        let (version, bits, size) = (word(4), word(20), long(24));
        let known = [
            (word(0) == MAGIC && (2..=3).contains(&version), "it is no qcow2 file of version 2 or 3"),
            (long(8) == 0, "it has a backing file"),
            (word(32) == 0, "it is encrypted"),
            (version == 2 || long(72) == 0, "it has features that are not known"),
            (CLUSTER_BITS.contains(&bits), "its clusters have no valid size"),
            (size > 0 && size <= MAX_SIZE, "it has no valid size"),
        ];
        if let Some((_, why)) = known.into_iter().find(|(is_so, _)| !is_so) {
            return Err(RawError::Unknown(why));
        }
        let layout = Self { size, cluster: 1 << bits, l1_offset: long(40) };
        match layout.tables() {
            tables if tables > MAX_TABLES => Err(RawError::Unknown("its clusters are too small")),
            tables if tables > u64::from(word(36)) => Err(RawError::Unknown("its first table is too short")),
            _ => Ok(layout),
        }
    }

    /// The bytes of the disk that an L2 table has the clusters of.
    fn reach(&self) -> u64 {
        self.cluster / 8 * self.cluster
    }

    /// The number of L2 tables.
    fn tables(&self) -> u64 {
        self.size.div_ceil(self.reach())
    }

    fn copy(&self, source: &File, target: &File) -> Result<(), RawError> {
        target.set_len(self.size).map_err(RawError::Write)?;
        let length =
            usize::try_from(self.cluster).map_err(|_| RawError::Unknown("its clusters are too large"))?;
        let (mut table, mut data) = (vec![0; length], vec![0; length]);
        for index in 0..self.tables() {
            let mut entry = [0; 8];
            let at = self.l1_offset.saturating_add(index * 8);
            source.read_exact_at(&mut entry, at).map_err(RawError::Read)?;
            let place = u64::from_be_bytes(entry) & OFFSET;
            if place == 0 {
                continue;
            }
            source.read_exact_at(&mut table, place).map_err(RawError::Read)?;
            for (number, at) in (0..length / 8).zip((index * self.reach()..self.size).step_by(length)) {
                let entry = long(&table, number * 8);
                if entry & COMPRESSED != 0 {
                    return Err(RawError::Unknown("it is compressed"));
                }
                if entry & ZEROS != 0 || entry & OFFSET == 0 {
                    continue;
                }
                // The last cluster may reach beyond the end of the disk.
                let count = usize::try_from(self.size - at).unwrap_or(length).min(length);
                read_data(source, &mut data[..count], entry & OFFSET).map_err(RawError::Read)?;
                if data[..count].iter().any(|byte| *byte != 0) {
                    target.write_all_at(&data[..count], at).map_err(RawError::Write)?;
                }
            }
        }
        target.sync_all().map_err(RawError::Write)
    }
}

/// Reads data of the disk. The file may end in its last cluster, the rest of which is zeros.
fn read_data(source: &File, data: &mut [u8], place: u64) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match source.read_at(&mut data[done..], place.saturating_add(done as u64)) {
            Ok(0) if done == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data[done..].fill(0);
    Ok(())
}

/// The big-endian number at this place, which is within the bytes.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

/// As [`word`], of eight bytes.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    const CLUSTER: usize = 512;
    /// 65 clusters, the last one cut off: an L2 table has 64.
    const SIZE: usize = 64 * CLUSTER + 100;

    /// A file of eight clusters: header, L1, two L2 tables, and data of the guest's clusters 1 and 64, and of 2, which reads as zeros.
    fn qcow2() -> Vec<u8> {
        let mut file = vec![0; 8 * CLUSTER];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_be_bytes());
        put(4, &3_u32.to_be_bytes());
        put(20, &9_u32.to_be_bytes());
        put(24, &(SIZE as u64).to_be_bytes());
        put(36, &2_u32.to_be_bytes());
        put(40, &(CLUSTER as u64).to_be_bytes());
        let copied = |cluster: usize| ((cluster * CLUSTER) as u64 | (1 << 63)).to_be_bytes();
        put(CLUSTER, &copied(2));
        put(CLUSTER + 8, &copied(3));
        put(2 * CLUSTER + 8, &copied(4));
        put(2 * CLUSTER + 16, &((5 * CLUSTER) as u64 | ZEROS).to_be_bytes());
        put(3 * CLUSTER, &copied(6));
        put(4 * CLUSTER, &[7; CLUSTER]);
        put(5 * CLUSTER, &[8; CLUSTER]);
        put(6 * CLUSTER, &[9; CLUSTER]);
        file
    }

    fn converted(qcow2: &[u8]) -> Result<Vec<u8>, RawError> {
        converted_of(qcow2, None)
    }

    fn converted_of(qcow2: &[u8], size: Option<u64>) -> Result<Vec<u8>, RawError> {
        let mut source = tempfile::tempfile().expect("a file");
        source.write_all(qcow2).expect("written");
        let mut target = tempfile::tempfile().expect("a file");
        convert(&source, &target, size)?;
        target.rewind().expect("at its start");
        let mut raw = Vec::new();
        target.read_to_end(&mut raw).expect("read");
        Ok(raw)
    }

    #[test]
    fn data_is_where_the_guest_has_it_and_the_rest_is_zeros() {
        let mut expected = vec![0; SIZE];
        expected[CLUSTER..2 * CLUSTER].fill(7);
        expected[64 * CLUSTER..].fill(9);
        assert!(converted(&qcow2()).expect("converted") == expected);
        assert!(converted_of(&qcow2(), Some(SIZE as u64)).expect("converted") == expected);
        let other = converted_of(&qcow2(), Some(SIZE as u64 + 1)).expect_err("another size").to_string();
        assert!(other.contains("another size than the Image"), "{other}");
    }

    #[test]
    fn a_file_that_ends_within_its_last_cluster_has_zeros_behind_its_end() {
        let mut expected = vec![0; SIZE];
        expected[CLUSTER..2 * CLUSTER].fill(7);
        expected[64 * CLUSTER..64 * CLUSTER + 10].fill(9);
        assert!(converted(&qcow2()[..6 * CLUSTER + 10]).expect("converted") == expected);
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused_and_one_that_is_cut_off_cannot_be_read() {
        let with = |at: usize, byte: u8| {
            let mut file = qcow2();
            file[at] = byte;
            converted(&file)
        };
        for (at, byte, why) in [
            (0, 0, "no qcow2"),
            (7, 9, "version 2 or 3"),
            (15, 1, "backing file"),
            (23, 40, "clusters"),
            (24, 1, "no valid size"),
            (35, 1, "encrypted"),
            (39, 1, "too short"),
            (79, 1, "not known"),
            (2 * CLUSTER + 8, 0x40, "compressed"),
        ] {
            let refused = with(at, byte).expect_err(why).to_string();
            assert!(refused.contains(why), "{refused}");
        }
        for end in [0, HEADER - 1, CLUSTER + 4, 3 * CLUSTER, 6 * CLUSTER] {
            assert!(matches!(converted(&qcow2()[..end]), Err(RawError::Read(_))), "{end}");
        }
        assert!(matches!(with(CLUSTER + 1, 0xff), Err(RawError::Read(_))), "an offset beyond the end");
    }
}
