//! Whether a foreign file may be used as a disk.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::header::{Header, MAGIC, incompatible};
use super::{ImageInfo, InspectError, MAX_VIRTUAL_SIZE, SECTOR};
use crate::machine::Format;

/// Where the volume descriptors of ISO 9660 start, after the system area.
const ISO_DESCRIPTOR: u64 = 16 * ISO_SECTOR;
const ISO_SECTOR: u64 = 2048;
/// The offset bits of an L1 entry.
const L1_OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Inspects a file that claims to be an image of the declared format.
///
/// *Guarantees*: Ok means that the image refers to no other file, and that its size and tables are sane. The L2 tables
/// and the data are not read: QEMU reports errors there when it reads them.
pub fn inspect<R: Read + Seek>(reader: &mut R, declared: Format) -> Result<ImageInfo, InspectError> {
    let file_size = reader.seek(SeekFrom::End(0))?;
    if file_size == 0 {
        return Err(InspectError::Empty);
    }
    let found = recognise(reader, file_size)?;
    let virtual_size = match (declared, found) {
        (Format::Qcow2, Some("a qcow2 image")) => inspect_qcow2(reader, file_size)?,
        (Format::Raw, None) if file_size.is_multiple_of(SECTOR) => file_size,
        (Format::Raw, None) => return Err(InspectError::NotSectors { size: file_size }),
        (Format::Iso, None) => inspect_iso(reader, file_size)?,
        (Format::Qcow2 | Format::EncryptedQcow2, None) => {
            return Err(InspectError::WrongFormat { declared: "qcow2", found: "something else (raw?)" });
        }
        (Format::Luks, None) => return Err(InspectError::Encrypted),
        (_, Some(found)) => return Err(InspectError::WrongFormat { declared: declared.name(), found }),
    };
    if virtual_size > MAX_VIRTUAL_SIZE {
        return Err(InspectError::TooLarge { size: virtual_size });
    }
    Ok(ImageInfo { format: declared, virtual_size, file_size })
}

/// Checks for the first volume descriptor of ISO 9660. Returns the size in whole sectors of a CD.
fn inspect_iso<R: Read + Seek>(reader: &mut R, file_size: u64) -> Result<u64, InspectError> {
    let mut descriptor = [0; 6];
    if file_size < ISO_DESCRIPTOR + ISO_SECTOR {
        return Err(InspectError::WrongFormat { declared: "iso", found: "something shorter" });
    }
    reader.seek(SeekFrom::Start(ISO_DESCRIPTOR))?;
    reader.read_exact(&mut descriptor)?;
    if &descriptor[1..] != b"CD001" {
        return Err(InspectError::WrongFormat { declared: "iso", found: "something else (raw?)" });
    }
    if !file_size.is_multiple_of(SECTOR) {
        return Err(InspectError::NotSectors { size: file_size });
    }
    Ok(file_size.next_multiple_of(ISO_SECTOR))
}

/// Returns the virtual size of a qcow2 file of berth's, which may have a backing file.
pub fn virtual_size<R: Read + Seek>(reader: &mut R) -> Result<u64, InspectError> {
    Ok(Header::read(reader)?.size)
}

/// Returns the size of a qcow2 file's clusters, in bytes.
pub fn cluster_size<R: Read + Seek>(reader: &mut R) -> Result<u64, InspectError> {
    Ok(Header::read(reader)?.cluster())
}

/// Whether a qcow2 file has snapshots within itself (`qemu-img snapshot`).
pub fn has_internal_snapshots<R: Read + Seek>(reader: &mut R) -> Result<bool, InspectError> {
    Ok(Header::read(reader)?.snapshots > 0)
}

/// Whether nothing was ever written to a qcow2 file of berth's, whatever its backing file has.
pub fn is_unwritten<R: Read + Seek>(reader: &mut R) -> Result<bool, InspectError> {
    let header = Header::read(reader)?;
    reader.seek(SeekFrom::Start(header.l1_offset))?;
    let mut table = BufReader::with_capacity(64 << 10, reader.take(u64::from(header.l1_size) * 8));
    let mut entry = [0; 8];
    for _ in 0..header.l1_size {
        table.read_exact(&mut entry)?;
        if entry != [0; 8] {
            return Ok(false);
        }
    }
    Ok(true)
}

fn inspect_qcow2<R: Read + Seek>(reader: &mut R, file_size: u64) -> Result<u64, InspectError> {
    let header = Header::read(reader)?;
    if let Some(name) = header.backing {
        return Err(InspectError::BackingFile { name });
    }
    check(reader, &header, file_size, incompatible::DIRTY | incompatible::CORRUPT)
}

/// Inspects a qcow2 file that another host has sent as the one of a volume: it refers to this file below it, or to none, by this very name.
/// Returns the virtual size.
///
/// *Guarantees*: Ok means that it refers to no other file, has no snapshots within itself, and that its size and tables are sane.
pub fn inspect_volume<R: Read + Seek>(reader: &mut R, backing: Option<&str>) -> Result<u64, InspectError> {
    let file_size = reader.seek(SeekFrom::End(0))?;
    let header = Header::read(reader)?;
    if header.backing.as_deref() != backing {
        let name = header.backing.unwrap_or_default();
        return Err(InspectError::BackingFile { name });
    }
    if header.snapshots > 0 {
        return Err(InspectError::Malformed { detail: "snapshots within the file" });
    }
    // A file with lazy counts of its references has the bit of one that was not closed when its QEMU was killed: the next QEMU counts anew.
    check(reader, &header, file_size, incompatible::CORRUPT)
}

/// Checks everything of a header but the file below. `unclean`: the bits of a file that is not used as it is.
fn check<R: Read + Seek>(
    reader: &mut R,
    header: &Header,
    file_size: u64,
    unclean: u64,
) -> Result<u64, InspectError> {
    if header.external_data {
        return Err(InspectError::ExternalData);
    }
    if header.encrypted {
        return Err(InspectError::Encrypted);
    }
    if header.incompatible & unclean != 0 {
        return Err(InspectError::Unclean);
    }
    let unknown = header.incompatible & !incompatible::KNOWN;
    if unknown != 0 {
        return Err(InspectError::UnknownFeatures { bits: unknown });
    }
    if header.size > MAX_VIRTUAL_SIZE {
        return Err(InspectError::TooLarge { size: header.size });
    }
    if header.size == 0 || !header.size.is_multiple_of(SECTOR) {
        return Err(InspectError::Malformed { detail: "virtual size" });
    }
    header.check_tables(file_size)?;
    check_l1(reader, header, file_size)?;
    Ok(header.size)
}

/// Checks that every L2 table in the L1 table is inside the file: detects truncated downloads.
fn check_l1<R: Read + Seek>(reader: &mut R, header: &Header, file_size: u64) -> Result<(), InspectError> {
    reader.seek(SeekFrom::Start(header.l1_offset))?;
    let mut table = BufReader::with_capacity(64 << 10, reader.take(u64::from(header.l1_size) * 8));
    let mut entry = [0; 8];
    for _ in 0..header.l1_size {
        table.read_exact(&mut entry)?;
        let offset = u64::from_be_bytes(entry) & L1_OFFSET;
        if !offset.is_multiple_of(header.cluster()) {
            return Err(InspectError::Malformed { detail: "an L1 entry" });
        }
        if offset != 0
            && offset.saturating_add(header.cluster()) > file_size.next_multiple_of(header.cluster())
        {
            return Err(InspectError::Truncated { what: "an L2 table" });
        }
    }
    Ok(())
}

const SIGNATURES: [(&[u8], &str); 17] = [
    (&MAGIC, "a qcow2 image"),
    (b"KDMV", "a VMDK image: declare the format vmdk"),
    (b"COWD", "a VMDK image: declare the format vmdk"),
    (
        b"# Disk DescriptorFile",
        "a VMDK descriptor, which names other files: export the disk as one file (stream-optimized)",
    ),
    (b"vhdxfile", "a VHDX image: declare the format vhdx"),
    (b"conectix", "a VHD image: declare the format vhd"),
    (b"<<< ", "a VDI image: declare the format vdi"),
    (b"QED\0", "a QED image: convert it with qemu-img convert -O qcow2"),
    (b"WithoutFreeSpace", "a Parallels image: convert it with qemu-img convert -O qcow2"),
    (b"WithouFreSpacExt", "a Parallels image: convert it with qemu-img convert -O qcow2"),
    (b"\x1f\x8b", "compressed with gzip: declare the compression gzip"),
    (b"\xfd7zXZ\0", "compressed with xz: declare the compression xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: declare the compression zstd"),
    (b"BZh", "compressed with bzip2: declare the compression bzip2"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (b"%PDF-", "a PDF document"),
];

/// Recognises the file by its first (or last) bytes; None if it may be a raw disk.
fn recognise<R: Read + Seek>(reader: &mut R, file_size: u64) -> Result<Option<&'static str>, InspectError> {
    let mut start = Vec::new();
    reader.seek(SeekFrom::Start(0))?;
    reader.take(512).read_to_end(&mut start)?;
    if let Some((_, name)) = SIGNATURES.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Ok(Some(name));
    }
    let words = String::from_utf8_lossy(start.trim_ascii_start()).to_ascii_lowercase();
    if words.starts_with("<!doctype") || words.starts_with("<html") {
        return Ok(Some("a web page: the address answers with a page instead of the image"));
    }
    if words.starts_with("<?xml") {
        return Ok(Some("an XML document: the address answers with an error, likely, instead of the image"));
    }
    if start.get(257..262) == Some(b"ustar") {
        return Ok(Some("a tar archive: unpack it first"));
    }
    if file_size >= 1024 {
        let mut end = [0; 8];
        reader.seek(SeekFrom::Start(file_size - 512))?;
        reader.read_exact(&mut end)?;
        if &end == b"conectix" {
            return Ok(Some("a VHD image: declare the format vhd"));
        }
    }
    Ok(None)
}
