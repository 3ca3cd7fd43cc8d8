//! FAT12, FAT16 and FAT32, by the crate `fatfs`. Names are compared without regard to case, as the file system has it.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::SystemTime;

use fatfs::{DateTime, Dir, DirEntry, FileSystem, FsOptions};

use crate::disk::Window;
use crate::error::{FsError, Result};
use crate::volume::{Node, NodeKind, Volume, shown, time};

const WHAT: &str = "FAT file system";
const DAY: i64 = 86_400;

pub(crate) struct Fat {
    fs: FileSystem<Reader>,
    part: Window,
}

/// The file system as the crate reads it. It never writes.
struct Reader {
    part: Window,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.part.length().saturating_sub(self.at);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.part.read_at(self.at, &mut buf[..count])?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Reader {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(distance) => self.part.length().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.at.checked_add_signed(distance),
        };
        let at = at.filter(|at| *at <= self.part.length());
        self.at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "beyond the file system"))?;
        Ok(self.at)
    }
}

type Entry<'a> = DirEntry<'a, Reader>;

impl Fat {
    pub(crate) fn open(part: &Window) -> Result<Self> {
        let reader = Reader { part: part.clone(), at: 0 };
        let fs = FileSystem::new(reader, FsOptions::new().update_accessed_date(false));
        let fs = fs.map_err(|error| explained(part, &error))?;
        part.found();
        Ok(Self { fs, part: part.clone() })
    }

    fn failed(&self, error: &io::Error) -> FsError {
        explained(&self.part, error)
    }

    /// Returns the entry of a path; `None`: the root.
    fn entry(&self, path: &[u8]) -> Result<Option<Entry<'_>>> {
        let mut found = None;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let folder = self.folder(found.as_ref(), path)?;
            found = Some(self.child(&folder, name, path)?);
        }
        Ok(found)
    }

    fn folder<'a>(&'a self, entry: Option<&Entry<'a>>, path: &[u8]) -> Result<Dir<'a, Reader>> {
        match entry {
            None => Ok(self.fs.root_dir()),
            // The crate panics if it is another kind of entry.
            Some(entry) if entry.is_dir() => Ok(entry.to_dir()),
            Some(_) => Err(FsError::NotAFolder { path: shown(path) }),
        }
    }

    fn child<'a>(&'a self, folder: &Dir<'a, Reader>, name: &[u8], path: &[u8]) -> Result<Entry<'a>> {
        let wanted = String::from_utf8_lossy(name).to_uppercase();
        for entry in folder.iter() {
            let entry = entry.map_err(|error| self.failed(&error))?;
            if entry.file_name().to_uppercase() == wanted {
                return Ok(entry);
            }
        }
        Err(FsError::NotFound { path: shown(path) })
    }
}

fn explained(part: &Window, error: &io::Error) -> FsError {
    match part.is_endless() {
        true => FsError::Endless,
        false => FsError::Damaged { what: WHAT, detail: error.to_string() },
    }
}

/// Returns the time of an entry; `None` for one that is in no calendar.
fn modified(entry: &Entry<'_>) -> Option<SystemTime> {
    let DateTime { date, time: clock } = entry.modified();
    let is_date = (1..=12).contains(&date.month) && (1..=31).contains(&date.day);
    let is_time = clock.hour < 24 && clock.min < 60 && clock.sec < 62;
    if !is_date || !is_time {
        return None;
    }
    let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let seconds = i64::from(clock.hour) * 3600 + i64::from(clock.min) * 60 + i64::from(clock.sec);
    time(days * DAY + seconds, 0)
}

/// Counts the days of the Gregorian calendar: a year begins in March, so that its last day is the one that comes in leap years only.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let in_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + in_year - 719_468
}

impl Volume for Fat {
    fn node(&self, path: &[u8]) -> Result<Node> {
        let entry = self.entry(path)?;
        let is_file = entry.as_ref().is_some_and(DirEntry::is_file);
        Ok(Node {
            kind: if is_file { NodeKind::File } else { NodeKind::Folder },
            size: entry.as_ref().map_or(0, DirEntry::len),
            mode: None,
            owner: None,
            modified: entry.as_ref().and_then(modified),
        })
    }

    fn names(&self, path: &[u8], visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let entry = self.entry(path)?;
        for entry in self.folder(entry.as_ref(), path)?.iter() {
            let entry = entry.map_err(|error| self.failed(&error))?;
            self.part.found();
            visit(entry.file_name().as_bytes())?;
        }
        Ok(())
    }

    fn link(&self, path: &[u8]) -> Result<Vec<u8>> {
        // There are none.
        Err(FsError::NotFound { path: shown(path) })
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Read + '_>> {
        match self.entry(path)? {
            Some(entry) if entry.is_file() => Ok(Box::new(entry.to_file())),
            _ => Err(FsError::NotAFile { path: shown(path) }),
        }
    }
}

#[test]
fn days_are_counted_as_by_the_calendar() {
    for (date, days) in
        [((1970, 1, 1), 0), ((1980, 1, 1), 3652), ((2000, 3, 1), 11_017), ((2026, 11, 27), 20_784)]
    {
        assert_eq!(days_since_1970(date.0, date.1, date.2), days, "{date:?}");
    }
}
