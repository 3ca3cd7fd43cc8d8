//! The data of a disk, and parts of it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The reads after which nothing was found is taken for data that leads nowhere. The tables of the largest file system take fewer.
const MOST_READS: u64 = 2 << 20;

/// The data of a disk.
pub trait Disk {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer with the data at this offset, which is on the disk. Small reads near each other are frequent.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A part of a disk.
#[derive(Clone)]
pub(crate) struct Window {
    disk: Rc<dyn Disk>,
    start: u64,
    length: u64,
    reads: Rc<Cell<u64>>,
}

impl Window {
    pub(crate) fn whole(disk: &Rc<dyn Disk>) -> Self {
        Self { disk: disk.clone(), start: 0, length: disk.size(), reads: Rc::default() }
    }

    /// A part of this one, as far as it is within it.
    pub(crate) fn part(&self, start: u64, length: u64) -> Self {
        let start = start.min(self.length);
        let length = length.min(self.length - start);
        Self { start: self.start + start, length, ..self.clone() }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether this many bytes at this offset are in it.
    pub(crate) fn has(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.length)
    }

    /// *Errors*: the bytes are not in the window; those of the disk; there were too many reads since the last [`Window::found`].
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if !self.has(offset, into.len() as u64) {
            let (length, all) = (into.len(), self.length);
            let text =
                format!("{length} bytes at byte {offset} are not in the {all} bytes of the file system");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let reads = self.reads.get() + 1;
        self.reads.set(reads);
        if reads > MOST_READS {
            return Err(io::Error::other(format!("nothing was found in {MOST_READS} reads")));
        }
        self.disk.read_at(self.start + offset, into)
    }

    /// Reads as many bytes as there are, at most these, for a look at what is there.
    pub(crate) fn look(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let there = self.length.saturating_sub(offset).min(length as u64);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(length)];
        if !bytes.is_empty() {
            self.read_at(offset, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Something was found: an entry, or data of a file.
    pub(crate) fn found(&self) {
        self.reads.set(0);
    }

    /// Whether the reads led nowhere.
    pub(crate) fn is_endless(&self) -> bool {
        self.reads.get() > MOST_READS
    }
}

/// Returns the number in these bytes of a buffer, little-endian; 0 beyond its end.
pub(crate) fn number(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let found = bytes.get(offset..offset + length).unwrap_or_default();
    found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the number in these bytes of a buffer, big-endian; 0 beyond its end.
pub(crate) fn big_endian(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let found = bytes.get(offset..offset + length).unwrap_or_default();
    found.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
