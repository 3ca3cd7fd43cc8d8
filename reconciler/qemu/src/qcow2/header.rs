//! The qcow2 header: bytes ⇄ numbers. Checks the numbers for consistency, decides nothing.

use std::io::{Read, Seek, SeekFrom};

use super::InspectError;

pub(super) const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Header bytes of version 3 without optional fields.
pub(super) const V3_LENGTH: u32 = 104;
pub(super) const EXTENSION_BACKING_FORMAT: u32 = 0xE279_2ACA;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;
const EXTENSION_LUKS: u32 = 0x0537_be77;
/// The encryption by LUKS, with its header in clusters of the file.
pub(super) const LUKS: u32 = 2;
const V2_LENGTH: u32 = 72;
/// The default cluster size, in bytes.
const USUAL_CLUSTER: u64 = 64 << 10;
const MAX_CLUSTER_BITS: u32 = 21;
/// QEMU's own limits on tables (32 MiB of L1, 8 MiB of refcount table).
const MAX_L1_BYTES: u64 = 32 << 20;
const MAX_REFTABLE_BYTES: u64 = 8 << 20;
const MAX_BACKING_NAME: u32 = 1023;
const MAX_SNAPSHOTS: u32 = 65536;

pub(super) mod incompatible {
    pub(crate) const DIRTY: u64 = 1;
    pub(crate) const CORRUPT: u64 = 1 << 1;
    pub(crate) const EXTERNAL_DATA: u64 = 1 << 2;
    pub(crate) const COMPRESSION: u64 = 1 << 3;
    pub(crate) const EXTENDED_L2: u64 = 1 << 4;
    pub(crate) const KNOWN: u64 = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION | EXTENDED_L2;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) cluster_bits: u32,
    pub(super) size: u64,
    pub(super) encrypted: bool,
    /// QEMU's number of the encryption: 0 for none, [`LUKS`].
    pub(super) encryption: u32,
    pub(super) l1_size: u32,
    pub(super) l1_offset: u64,
    pub(super) refcount_offset: u64,
    pub(super) refcount_clusters: u32,
    pub(super) refcount_order: u32,
    pub(super) snapshots: u32,
    pub(super) snapshots_offset: u64,
    pub(super) incompatible: u64,
    pub(super) backing: Option<String>,
    pub(super) external_data: bool,
}

impl Header {
    /// Reads the header and the names in it. Reads 64 KiB, and only if the first cluster is larger up to its maximum
    /// size; nothing behind the first cluster is used.
    pub(super) fn read(reader: &mut (impl Read + Seek)) -> Result<Self, InspectError> {
        let mut bytes = Vec::new();
        reader.seek(SeekFrom::Start(0))?;
        reader.by_ref().take(USUAL_CLUSTER).read_to_end(&mut bytes)?;
        if Fields(&bytes).u32(20).is_ok_and(|bits| bits > USUAL_CLUSTER.ilog2()) {
            reader.by_ref().take((1 << MAX_CLUSTER_BITS) - USUAL_CLUSTER).read_to_end(&mut bytes)?;
        }
        Self::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, InspectError> {
        let field = Fields(bytes);
        let version = field.u32(4)?;
        if bytes.get(..4) != Some(&MAGIC[..]) || !(2..=3).contains(&version) {
            return malformed("no qcow2 of version 2 or 3");
        }
        let cluster_bits = field.u32(20)?;
        if !(9..=MAX_CLUSTER_BITS).contains(&cluster_bits) {
            return malformed("cluster size");
        }
        let first_cluster = Fields(&bytes[..bytes.len().min(1 << cluster_bits)]);
        let (length, incompatible, refcount_order) = match version {
            2 => (V2_LENGTH, 0, 4),
            _ => (field.u32(100)?, field.u64(72)?, field.u32(96)?),
        };
        if version == 3 && (length < V3_LENGTH || !length.is_multiple_of(8) || length >= 1 << cluster_bits) {
            return malformed("header length");
        }
        if refcount_order > 6 {
            return malformed("refcount width");
        }
        let mut header = Self {
            cluster_bits,
            size: field.u64(24)?,
            encrypted: field.u32(32)? != 0,
            encryption: field.u32(32)?,
            l1_size: field.u32(36)?,
            l1_offset: field.u64(40)?,
            refcount_offset: field.u64(48)?,
            refcount_clusters: field.u32(56)?,
            refcount_order,
            snapshots: field.u32(60)?,
            snapshots_offset: field.u64(64)?,
            incompatible,
            backing: None,
            external_data: incompatible & incompatible::EXTERNAL_DATA != 0,
        };
        header.extensions(&first_cluster, length)?;
        header.backing = backing_name(&first_cluster, field.u64(8)?, field.u32(16)?)?;
        Ok(header)
    }

    fn extensions(&mut self, cluster: &Fields<'_>, header_length: u32) -> Result<(), InspectError> {
        let mut at = header_length as usize;
        // A cluster contains at most this many extensions of minimum size; the loop ends early at the terminator.
        for _ in 0..cluster.0.len() / 8 {
            let kind = cluster.u32(at)?;
            let length = cluster.u32(at + 4)? as usize;
            match kind {
                0 => return Ok(()),
                EXTENSION_DATA_FILE => self.external_data = true,
                EXTENSION_LUKS => self.encrypted = true,
                _ => {}
            }
            at = at + 8 + length.next_multiple_of(8);
            // Without a terminator they end with the first cluster, or where the backing file's name begins.
            if at + 8 > cluster.0.len() {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Returns the number of L1 entries that this virtual size needs.
    pub(super) fn l1_entries_for(&self, size: u64) -> u64 {
        let entry = if self.incompatible & incompatible::EXTENDED_L2 != 0 { 16 } else { 8 };
        size.div_ceil(self.cluster() * (self.cluster() / entry))
    }

    /// Checks that the tables have a sane size and are inside the file.
    pub(super) fn check_tables(&self, file_size: u64) -> Result<(), InspectError> {
        let l1_bytes = u64::from(self.l1_size) * 8;
        if l1_bytes > MAX_L1_BYTES || u64::from(self.l1_size) < self.l1_entries_for(self.size) {
            return malformed("L1 table size");
        }
        let reftable_bytes = u64::from(self.refcount_clusters) << self.cluster_bits;
        if reftable_bytes == 0 || reftable_bytes > MAX_REFTABLE_BYTES {
            return malformed("refcount table size");
        }
        if self.snapshots > MAX_SNAPSHOTS {
            return malformed("number of snapshots");
        }
        self.check_inside(self.l1_offset, l1_bytes, file_size, "the L1 table")?;
        self.check_inside(self.refcount_offset, reftable_bytes, file_size, "the refcount table")?;
        // A snapshot entry has at least 40 bytes.
        self.check_inside(
            self.snapshots_offset,
            u64::from(self.snapshots) * 40,
            file_size,
            "the snapshot table",
        )
    }

    fn check_inside(
        &self,
        offset: u64,
        length: u64,
        file: u64,
        what: &'static str,
    ) -> Result<(), InspectError> {
        if length == 0 {
            return Ok(());
        }
        if !offset.is_multiple_of(self.cluster()) || offset == 0 {
            return malformed("a table's offset");
        }
        match offset.checked_add(length) {
            Some(end) if end <= file => Ok(()),
            _ => Err(InspectError::Truncated { what }),
        }
    }
}

fn backing_name(cluster: &Fields<'_>, offset: u64, length: u32) -> Result<Option<String>, InspectError> {
    if offset == 0 {
        return Ok(None);
    }
    if length > MAX_BACKING_NAME {
        return malformed("backing file name");
    }
    let start =
        usize::try_from(offset).map_err(|_| InspectError::Malformed { detail: "backing file name" })?;
    let name = start.checked_add(length as usize).and_then(|end| cluster.0.get(start..end));
    let name = name.ok_or(InspectError::Malformed { detail: "backing file name" })?;
    Ok(Some(String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect()))
}

fn malformed<T>(detail: &'static str) -> Result<T, InspectError> {
    Err(InspectError::Malformed { detail })
}

/// Big-endian numbers at offsets of untrusted bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&self, at: usize) -> Result<u32, InspectError> {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk::<4>);
        bytes.map(|b| u32::from_be_bytes(*b)).ok_or(InspectError::Truncated { what: "the header" })
    }

    fn u64(&self, at: usize) -> Result<u64, InspectError> {
        let bytes = self.0.get(at..).and_then(<[u8]>::first_chunk::<8>);
        bytes.map(|b| u64::from_be_bytes(*b)).ok_or(InspectError::Truncated { what: "the header" })
    }
}
