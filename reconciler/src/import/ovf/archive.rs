//! The members of a tar archive, by its headers alone: their data is not read.
//!
//! The headers and records are parsed by the crate `tar`. Its iterator is not used: it reads a long name into memory whatever its
//! size, and does not refuse what an appliance has no reason to have.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};

use tar::{EntryType, Header, PaxExtensions};

const BLOCK: u64 = 512;
/// The most files of an archive. An appliance has a handful.
const MAX_MEMBERS: usize = 256;
/// The most headers: a member may have two more for its name, and there are folders.
const MAX_HEADERS: usize = 4 * MAX_MEMBERS;
/// The most bytes of a long name, and of the records that precede a member.
const MAX_RECORDS: u64 = 64 << 10;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, without `./` before it.
    pub name: String,
    /// Where its data begins.
    pub offset: u64,
    /// The size of its data.
    pub size: u64,
}

/// Why an archive is not read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Another file, or a damaged one.
    #[error("it is no tar archive, or a damaged one: there is no header at byte {0}")]
    Header(u64),
    /// A member is larger than the rest of the file.
    #[error("it is truncated: the member at byte {0} is longer than the rest of the file")]
    CutOff(u64),
    /// More than any appliance has.
    #[error("it has more than {MAX_MEMBERS} files, which is the most that berth imports of an appliance")]
    TooManyMembers,
    /// Names and attributes that fill memory.
    #[error("it has a name or attributes of more than {MAX_RECORDS} bytes")]
    TooLong,
    /// A name that leads out of the archive.
    #[error("it has a member {0:?}: a name in an appliance is relative, in UTF-8 and without \"..\"")]
    Name(String),
    /// A link, a device, or a file with holes.
    #[error("its member {0:?} is no plain file: links, devices and sparse files are refused")]
    Kind(String),
    /// Which of both is meant cannot be known.
    #[error("it has two members {0:?}")]
    Duplicate(String),
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[from] io::Error),
}

/// The records that precede a member.
#[derive(Debug, Default)]
struct Preceding {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

/// The files of an archive, in their order.
///
/// # Errors
/// When it is damaged, or has what no appliance has.
pub fn members(file: &mut (impl Read + Seek)) -> Result<Vec<Member>, ArchiveError> {
    let end = file.seek(SeekFrom::End(0))?;
    let (mut found, mut names) = (Vec::new(), BTreeSet::new());
    let mut preceding = Preceding::default();
    let mut at = 0;
    for count in 0.. {
        let Some(header) = header_at(file, at, end)? else { break };
        if count == MAX_HEADERS {
            return Err(ArchiveError::TooManyMembers);
        }
        let (kind, offset) = (header.entry_type(), at + BLOCK);
        let is_record = is_record(kind);
        let own = header.entry_size().map_err(|_| ArchiveError::Header(at))?;
        let size = if is_record { own } else { preceding.size.unwrap_or(own) };
        let data_end = offset.checked_add(size).filter(|data_end| *data_end <= end);
        let next = data_end.and_then(|data_end| data_end.checked_next_multiple_of(BLOCK));
        at = next.ok_or(ArchiveError::CutOff(at))?;
        if is_record {
            read_record(file, (kind, offset, size), &mut preceding)?;
            continue;
        }
        let before = std::mem::take(&mut preceding);
        let Some(name) = file_name(&header, &before)? else { continue };
        if !names.insert(name.clone()) {
            return Err(ArchiveError::Duplicate(name));
        }
        if found.len() == MAX_MEMBERS {
            return Err(ArchiveError::TooManyMembers);
        }
        found.push(Member { name, offset, size });
    }
    Ok(found)
}

/// The header there. None at the end of the archive: that of the file, or zeros.
fn header_at(file: &mut (impl Read + Seek), at: u64, end: u64) -> Result<Option<Header>, ArchiveError> {
    if at >= end {
        return if at == 0 { Err(ArchiveError::Header(0)) } else { Ok(None) };
    }
    if end - at < BLOCK {
        return Err(ArchiveError::CutOff(at));
    }
    file.seek(SeekFrom::Start(at))?;
    let mut header = Header::new_old();
    file.read_exact(header.as_mut_bytes())?;
    let bytes = header.as_bytes();
    if bytes.iter().all(|byte| *byte == 0) {
        return if at == 0 { Err(ArchiveError::Header(0)) } else { Ok(None) };
    }
    // The field of the checksum itself counts as spaces.
    let counted =
        |(index, byte): (usize, &u8)| if (148..156).contains(&index) { 32 } else { u32::from(*byte) };
    let sum: u32 = bytes.iter().enumerate().map(counted).sum();
    let is_header = header.cksum().is_ok_and(|declared| declared == sum);
    if is_header { Ok(Some(header)) } else { Err(ArchiveError::Header(at)) }
}

/// Whether it is about other members, and none itself.
fn is_record(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
}

fn read_record(
    file: &mut (impl Read + Seek),
    (kind, offset, size): (EntryType, u64, u64),
    preceding: &mut Preceding,
) -> Result<(), ArchiveError> {
    if size > MAX_RECORDS {
        return Err(ArchiveError::TooLong);
    }
    // The target of a link, which is refused itself, and what holds for the whole archive, such as a comment.
    if kind.is_gnu_longlink() || kind.is_pax_global_extensions() {
        return Ok(());
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut data = Vec::new();
    file.by_ref().take(size).read_to_end(&mut data)?;
    if kind.is_gnu_longname() {
        // It ends with NUL.
        let length = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
        data.truncate(length);
        preceding.name = Some(data);
        return Ok(());
    }
    for record in PaxExtensions::new(&data) {
        let record = record.map_err(|_| ArchiveError::Header(offset))?;
        let (key, value) = (record.key_bytes(), record.value_bytes());
        match key {
            b"path" => preceding.name = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                preceding.size = Some(size.ok_or(ArchiveError::Header(offset))?);
            }
            _ => preceding.is_sparse |= key.starts_with(b"GNU.sparse."),
        }
    }
    Ok(())
}

/// The name of the file that this header is of. None for a folder.
fn file_name(header: &Header, preceding: &Preceding) -> Result<Option<String>, ArchiveError> {
    let bytes = preceding.name.clone().unwrap_or_else(|| header.path_bytes().into_owned());
    let shown: String = String::from_utf8_lossy(&bytes).chars().take(100).collect();
    let Ok(name) = String::from_utf8(bytes) else { return Err(ArchiveError::Name(shown)) };
    let mut plain = name.as_str();
    while let Some(rest) = plain.strip_prefix("./") {
        plain = rest;
    }
    let kind = header.entry_type();
    let is_folder = kind.is_dir() || name.ends_with('/');
    let plain = plain.trim_end_matches('/');
    if is_folder && matches!(plain, "" | ".") {
        return Ok(None);
    }
    let is_unsafe =
        name.starts_with('/') || plain.contains('\0') || plain.split('/').any(|part| part == "..");
    if is_unsafe || plain.is_empty() {
        return Err(ArchiveError::Name(shown));
    }
    if is_folder {
        return Ok(None);
    }
    if preceding.is_sparse || !(kind.is_file() || kind.is_contiguous()) {
        return Err(ArchiveError::Kind(shown));
    }
    Ok(Some(plain.to_owned()))
}
