//! The marks in a file of a foreign format, which are checked before `qemu-img` opens it: that it is of this format, and has all the data. A VMDK may
//! be a text that names other files. A disk may have only what differs from its parent: `qemu-img` reads such a VHD or VHDX as if the rest
//! were zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use berth_qemu::machine::ForeignFormat;

use super::super::files::failed;
use super::Result;
use crate::{Compression, ImageSource, SystemError};

/// The footer of a VHD.
const VHD: &[u8] = b"conectix";
const SECTOR: usize = 512;
/// The length of each table of a VHDX, the places of the two that list its regions, and the identities of the entries that lead to its flags
/// (MS-VHDX 2.2.3, 2.6.1 and 2.6.2.1).
const TABLE: usize = 64 << 10;
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const METADATA: [u8; 16] =
    [0x06, 0xa2, 0x7c, 0x8b, 0x90, 0x47, 0x9a, 0x4b, 0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e];
const FILE_PARAMETERS: [u8; 16] =
    [0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b];

/// Whether a file is of a format, and has a parent.
struct Found {
    is_it: bool,
    has_parent: bool,
}

/// Checks a file. Blocking.
///
/// *Errors*: [`SystemError::ImageRefused`] if it is something else, or has a part of the data only.
pub(super) fn check(source: &ImageSource, format: ForeignFormat, path: &Path) -> Result<()> {
    let file = File::open(path).map_err(failed("read", path))?;
    let start = bytes(&file, 0, SECTOR).map_err(failed("read", path))?;
    let found = look(&file, format, &start).map_err(failed("read", path))?;
    let name = format.name();
    let detail = if start.starts_with(b"# Disk DescriptorFile") {
        "it is a VMDK descriptor, which names other files: export the disk as one file (stream-optimized)"
            .to_owned()
    } else if !found.is_it {
        format!("the image is declared as {name} and is something else{}", hint(source))
    } else if found.has_parent {
        format!(
            "it is a differencing disk ({name}), whose other data is in another file: merge both into one file first"
        )
    } else {
        return Ok(());
    };
    Err(SystemError::ImageRefused { url: source.shown.clone(), detail })
}

/// Returns advice about a source whose name ends like that of a compressed file, and that is not declared as one; otherwise nothing.
pub(super) fn hint(source: &ImageSource) -> String {
    let endings = [
        (".gz", Compression::Gzip),
        (".xz", Compression::Xz),
        (".zst", Compression::Zstd),
        (".bz2", Compression::Bzip2),
    ];
    let name = source.shown.to_ascii_lowercase();
    let found = endings.iter().find(|(ending, _)| name.ends_with(ending));
    match found.filter(|_| source.encoding.compression.is_none()) {
        Some((ending, compression)) => format!(
            ". Its name ends in {ending}: if it is compressed, declare another image with the compression {}",
            compression.name()
        ),
        None => String::new(),
    }
}

fn look(file: &File, format: ForeignFormat, start: &[u8]) -> io::Result<Found> {
    let found = match format {
        ForeignFormat::Vmdk => Found { is_it: start.starts_with(b"KDMV"), has_parent: false },
        // The identities of the disks that it continues.
        ForeignFormat::Vdi => Found {
            is_it: start[64..68] == [0x7f, 0x10, 0xda, 0xbe],
            has_parent: start[0x1a8..0x1c8].iter().any(|byte| *byte != 0),
        },
        ForeignFormat::Vhdx => {
            let is_it = start.starts_with(b"vhdxfile");
            Found { is_it, has_parent: is_it && has_parent_of_vhdx(file)? }
        }
        // Its kind is in the last sector. One that grows has a copy of that sector at the start.
        ForeignFormat::Vhd => {
            let last = file.metadata()?.len().saturating_sub(SECTOR as u64);
            let end = bytes(file, last, SECTOR)?;
            let is_footer = |sector: &[u8]| sector.starts_with(VHD);
            let is_of_parent = |sector: &[u8]| is_footer(sector) && sector[60..64] == [0, 0, 0, 4];
            Found {
                is_it: is_footer(start) || is_footer(&end),
                has_parent: is_of_parent(start) || is_of_parent(&end),
            }
        }
    };
    Ok(found)
}

/// Whether the flags of a VHDX say that it has a parent. Without a place for them it is broken, which `qemu-img` finds.
fn has_parent_of_vhdx(file: &File) -> io::Result<bool> {
    for place in REGIONS {
        let regions = bytes(file, place, TABLE)?;
        let Some(region) = entry(&regions[16..], &METADATA).map(|entry| number(&entry[16..24])) else {
            continue;
        };
        let metadata = bytes(file, region, TABLE)?;
        let Some(offset) = entry(&metadata[32..], &FILE_PARAMETERS).map(|entry| number(&entry[16..20]))
        else {
            continue;
        };
        // The size of the blocks, then the flags.
        if bytes(file, region.saturating_add(offset), 8)?[4] & 2 != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds an entry of a table by its identity.
fn entry<'a>(table: &'a [u8], id: &[u8; 16]) -> Option<&'a [u8]> {
    table.chunks_exact(32).find(|entry| entry.starts_with(id))
}

/// Reads a number in little-endian order.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

/// Reads bytes of a file, with zeros after its end.
fn bytes(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let end = file.metadata()?.len();
    let mut read = 0;
    while read < length && at.saturating_add(read as u64) < end {
        match file.read_at(&mut bytes[read..], at + read as u64)? {
            0 => break,
            n => read += n,
        }
    }
    Ok(bytes)
}
