//! NTFS, read by code of this crate.
//!
//! ```text
//!  Ntfs         nodes by their records, links
//!    │
//!    ├── folder       entries: in the record, and in the blocks of an index
//!    ├── links        targets of symbolic links and junctions
//!    ├── attribute    the parts of a record, also of one in several records; their content
//!    ├── record       a record of the master file table, or a block of an index, with its fixups
//!    ▼
//!  boot         geometry
//! ```
//!
//! *Guarantees*: content in a form that is not read (compressed, encrypted, stored elsewhere) is an error. The blocks of an index are read one
//! after the other: its tree is not followed.
//!
//! *Assumptions*: the journal is not applied.

mod attribute;
mod boot;
mod folder;
mod links;
mod record;

use std::io::{self, Cursor, Read};
use std::time::SystemTime;

use crate::content::Content;
use crate::disk::{Window, number};
use crate::error::{FsError, Result};
use crate::lookup::{self, Lookup, Numbered};
use crate::volume::{Node, NodeKind, Volume, shown, time};
use attribute::{Attribute, Stored, Type};
use boot::Boot;
use record::Record;

/// The records of the master file table, and of the root.
const TABLE: u64 = 0;
const ROOT: u64 = 5;
/// The numbers of records have so many bits in references; the others count the uses of a record.
const NUMBER: u64 = (1 << 48) - 1;
/// The limit of records that one file has.
const MOST_RECORDS: usize = 1024;
/// The limit of the list of the attributes of a file, which Windows has too.
const LONGEST_LIST: u64 = 256 << 10;
/// The limit of a reparse point, which Windows has too.
const LONGEST_REPARSE: u64 = 16 << 10;
/// The name of the attributes with the index of a folder.
const INDEX: &[u8] = b"$\0I\x003\x000\0";

pub(crate) struct Ntfs {
    part: Window,
    boot: Boot,
    /// The master file table.
    table: Content,
    lookup: Lookup,
}

fn damaged(detail: impl Into<String>) -> FsError {
    FsError::Damaged { what: "NTFS file system", detail: detail.into() }
}

impl Ntfs {
    pub(crate) fn open(part: &Window) -> Result<Self> {
        let bytes = part.look(0, boot::LENGTH).map_err(|source| FsError::Read { source })?;
        let boot = Boot::new(&bytes, part.length())?;
        // The first record describes the table. Parts of it can be described by other records, which its first part has.
        let (first, size) = (boot.table, boot.record_size);
        let first = Content::new(part, vec![boot.piece(0, first, size)], size, size);
        let mut found = Self { part: part.clone(), boot, table: first, lookup: Lookup::default() };
        let record = found.record(TABLE)?;
        found.table = found.table_of(&record.attributes()?)?;
        found.table = found.table_of(&found.attributes_of(&record)?)?;
        part.found();
        Ok(found)
    }

    fn table_of(&self, all: &[Attribute]) -> Result<Content> {
        let content = self.content(all, Type::Data, b"")?;
        content.ok_or_else(|| damaged("its master file table has no content"))
    }

    /// Reads a record of the table.
    fn record(&self, number: u64) -> Result<Record> {
        let size = self.boot.record_size;
        let offset = number
            .checked_mul(size)
            .filter(|offset| offset.checked_add(size).is_some_and(|end| end <= self.table.size()));
        let offset = offset.ok_or_else(|| damaged(format!("there is no record {number}")))?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        self.read(&self.table, offset, &mut bytes)?;
        Record::new(bytes, number)
    }

    fn read(&self, content: &Content, offset: u64, into: &mut [u8]) -> Result<()> {
        content.read_exact_at(offset, into).map_err(|source| match self.part.is_endless() {
            true => FsError::Endless,
            false => FsError::Read { source },
        })
    }

    /// Returns the attributes of a file, also those in other records.
    fn attributes_of(&self, record: &Record) -> Result<Vec<Attribute>> {
        let mut all = record.attributes()?;
        if all.iter().all(|attribute| attribute.kind != Type::List) {
            return Ok(all);
        }
        let list = self.whole(&all, Type::List, b"", LONGEST_LIST)?;
        let list = list.ok_or_else(|| damaged(format!("record {} has no list", record.number)))?;
        let mut others = attribute::listed(&list)?;
        others.retain(|number| *number != record.number);
        others.sort_unstable();
        others.dedup();
        if others.len() > MOST_RECORDS {
            return Err(damaged(format!("record {} has more than {MOST_RECORDS} others", record.number)));
        }
        for number in others {
            let other = self.record(number)?;
            if other.base() != record.number {
                return Err(damaged(format!("record {number} is not of file {}", record.number)));
            }
            all.extend(other.attributes()?);
        }
        Ok(all)
    }

    /// Returns the content of an attribute; `None`: there is none.
    fn content(&self, all: &[Attribute], kind: Type, name: &[u8]) -> Result<Option<Content>> {
        attribute::content(all, kind, name, &self.boot, &self.part)
    }

    /// Returns an attribute of a limited length as a whole; `None`: there is none.
    fn whole(&self, all: &[Attribute], kind: Type, name: &[u8], most: u64) -> Result<Option<Vec<u8>>> {
        if let Some(value) = attribute::value(all, kind, name) {
            return Ok(Some(value.to_vec()));
        }
        let Some(content) = self.content(all, kind, name)? else { return Ok(None) };
        if content.size() > most {
            return Err(damaged(format!("an attribute has {} bytes", content.size())));
        }
        let mut bytes = vec![0; usize::try_from(content.size()).unwrap_or_default()];
        self.read(&content, 0, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn file(&self, path: &[u8]) -> Result<File> {
        self.file_of(self.lookup.number(self, path)?)
    }

    fn file_of(&self, number: u64) -> Result<File> {
        let record = self.record(number)?;
        if !record.is_in_use() || record.base() != 0 {
            return Err(damaged(format!("record {number} is not that of a file")));
        }
        let all = self.attributes_of(&record)?;
        let reparse = self.whole(&all, Type::Reparse, b"", LONGEST_REPARSE)?;
        let target = reparse.as_deref().and_then(links::target);
        let kind = match (record.is_folder(), &target) {
            (_, Some(_)) => NodeKind::Link,
            (true, None) => NodeKind::Folder,
            (false, None) => NodeKind::File,
        };
        Ok(File { kind, all, target, reparse: reparse.map(|bytes| number_of_tag(&bytes)) })
    }
}

/// The file of a record.
struct File {
    kind: NodeKind,
    all: Vec<Attribute>,
    target: Option<Vec<u8>>,
    /// The tag of its reparse point.
    reparse: Option<u64>,
}

fn number_of_tag(reparse: &[u8]) -> u64 {
    number(reparse, 0, 4)
}

impl File {
    fn size(&self) -> u64 {
        let data = self.all.iter().find(|attribute| attribute.is(Type::Data, b""));
        data.map_or(0, Attribute::size)
    }

    /// Returns the time of the last change of its content: in units of 100 ns since 1601.
    fn modified(&self) -> Option<SystemTime> {
        let stored = number(attribute::value(&self.all, Type::Information, b"")?.get(8..16)?, 0, 8);
        let seconds = i64::try_from(stored / 10_000_000).ok()? - 11_644_473_600;
        time(seconds, u32::try_from(stored % 10_000_000 * 100).ok()?)
    }
}

impl Numbered for Ntfs {
    fn root(&self) -> u64 {
        ROOT
    }

    fn entries(
        &self,
        folder: u64,
        path: &[u8],
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let file = self.file_of(folder)?;
        if file.kind != NodeKind::Folder {
            return Err(FsError::NotAFolder { path: shown(path) });
        }
        folder::entries(self, &file.all, folder, visit)
    }

    fn found(&self) {
        self.part.found();
    }

    /// Names are compared without regard to case.
    fn folded(&self, name: &[u8]) -> Vec<u8> {
        String::from_utf8_lossy(name).to_uppercase().into_bytes()
    }
}

impl Volume for Ntfs {
    fn node(&self, path: &[u8]) -> Result<Node> {
        let file = self.file(path)?;
        let size = if file.kind == NodeKind::File { file.size() } else { 0 };
        Ok(Node { kind: file.kind, size, mode: None, owner: None, modified: file.modified() })
    }

    fn names(&self, path: &[u8], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let folder = self.lookup.number(self, path)?;
        lookup::entries(self, folder, path, &mut |name: &[u8], _| visit(name))
    }

    fn link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.file(path)?.target.ok_or_else(|| FsError::NotALink { path: shown(path) })
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>> {
        let file = self.file(path)?;
        if file.kind != NodeKind::File {
            return Err(FsError::NotAFile { path: shown(path) });
        }
        if let Some(detail) = file.reparse.and_then(links::elsewhere) {
            return Err(FsError::Content { path: shown(path), detail });
        }
        let data = file.all.iter().find(|attribute| attribute.is(Type::Data, b""));
        let Some(data) = data else { return Ok(Box::new(io::empty())) };
        if data.is_encrypted() {
            return Err(FsError::Encrypted { path: shown(path) });
        }
        match &data.stored {
            Stored::Value(value) => Ok(Box::new(Cursor::new(value.clone()))),
            Stored::Runs { .. } if data.is_compressed() => {
                let detail = "its guest compresses it, by the attribute of NTFS";
                Err(FsError::Content { path: shown(path), detail })
            }
            Stored::Runs { .. } => {
                let content = self.content(&file.all, Type::Data, b"")?;
                Ok(Box::new(content.ok_or_else(|| FsError::NotAFile { path: shown(path) })?))
            }
        }
    }
}
