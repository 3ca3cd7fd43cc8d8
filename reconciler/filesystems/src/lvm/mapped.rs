//! The data of a logical volume.

use std::io;
use std::rc::Rc;

use crate::disk::Disk;

/// A part of a logical volume, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// In the volume.
    pub(super) start: u64,
    /// Not zero.
    pub(super) length: u64,
    /// The bytes that are in one place before the next place is used. Not zero.
    pub(super) stripe: u64,
    /// On the disk. There is at least one; the ends are on the disk.
    pub(super) places: Vec<u64>,
}

impl Segment {
    /// Returns the place of the byte at this offset of the volume, and how many bytes are there.
    fn place(&self, at: u64) -> Option<(u64, u64)> {
        let within = at.checked_sub(self.start).filter(|within| *within < self.length)?;
        let (chunk, inside) = (within / self.stripe, within % self.stripe);
        let count = self.places.len() as u64;
        let place = self.places.get(usize::try_from(chunk % count).ok()?)?;
        let left = (self.stripe - inside).min(self.length - within);
        Some((place + chunk / count * self.stripe + inside, left))
    }
}

/// A logical volume.
pub(super) struct Mapped {
    disk: Rc<dyn Disk>,
    segments: Vec<Segment>,
    size: u64,
}

impl Mapped {
    /// The segments follow each other, and their lengths add up to the size.
    pub(super) fn new(disk: &Rc<dyn Disk>, segments: Vec<Segment>, size: u64) -> Self {
        Self { disk: disk.clone(), segments, size }
    }

    fn place(&self, at: u64) -> Option<(u64, u64)> {
        let index = self.segments.partition_point(|segment| segment.start + segment.length <= at);
        self.segments.get(index)?.place(at)
    }
}

impl Disk for Mapped {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let (place, left) = self.place(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            let count = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (piece, others) = std::mem::take(&mut rest).split_at_mut(count);
            self.disk.read_at(place, piece)?;
            (at, rest) = (at + count as u64, others);
        }
        Ok(())
    }
}

#[test]
fn stripes_are_used_in_turn() {
    let segment = Segment { start: 100, length: 40, stripe: 10, places: vec![1000, 2000] };
    let places: Vec<_> = [100, 109, 110, 125, 139].map(|at| segment.place(at)).into();
    let expected =
        [(1000, 10), (1009, 1), (2000, 10), (1015, 5), (2019, 1)].map(|(place, left)| Some((place, left)));
    assert_eq!(places, expected);
    assert_eq!((segment.place(99), segment.place(140)), (None, None));
}
