//! The content of a file as pieces of its file system.

use std::io::{self, Read};

use crate::disk::Window;

/// Bytes that follow each other, in the file and in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In the file.
    pub(crate) at: u64,
    pub(crate) length: u64,
    /// In the file system.
    pub(crate) place: u64,
}

/// The content of a file, from its beginning. Bytes in no piece are zeros.
#[derive(Clone)]
pub(crate) struct Content {
    part: Window,
    /// In the order of the file, without overlap. The ends are numbers of 64 bits.
    pieces: Vec<Piece>,
    size: u64,
    /// The bytes from here on were never written, and are zeros.
    written: u64,
    at: u64,
}

impl Content {
    pub(crate) fn new(part: &Window, pieces: Vec<Piece>, size: u64, written: u64) -> Self {
        Self { part: part.clone(), pieces, size, written, at: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Fills the buffer with the bytes at this offset; those beyond the end are zeros.
    pub(crate) fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let count = self.read_at(at, u64::MAX, rest)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (_, others) = std::mem::take(&mut rest).split_at_mut(count);
            (at, rest) = (at.saturating_add(count as u64), others);
        }
        Ok(())
    }

    /// The first piece that ends after this offset.
    fn index(&self, at: u64) -> usize {
        self.pieces.partition_point(|piece| piece.at + piece.length <= at)
    }

    /// Fills the beginning of the buffer, up to the end of the piece or the hole at this offset; returns the length.
    fn read_at(&self, at: u64, end: u64, into: &mut [u8]) -> io::Result<usize> {
        let next = self.pieces.get(self.index(at)).filter(|_| at < self.written).copied();
        let in_piece = next.filter(|piece| piece.at <= at);
        let to = match (in_piece, next) {
            (Some(piece), _) => (piece.at + piece.length).min(self.written),
            (None, Some(piece)) => piece.at,
            (None, None) => u64::MAX,
        };
        let left = to.min(end).saturating_sub(at);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = &mut into[..count];
        match in_piece {
            Some(piece) => self.part.read_at(piece.place.saturating_add(at - piece.at), into)?,
            None => into.fill(0),
        }
        Ok(count)
    }
}

impl Read for Content {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.size {
            return Ok(0);
        }
        let count = self.read_at(self.at, self.size, buf)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::disk::Disk;

    struct Letters;

    impl Disk for Letters {
        fn size(&self) -> u64 {
            26
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            for (byte, at) in into.iter_mut().zip(offset..) {
                *byte = b'a' + u8::try_from(at).expect("small");
            }
            Ok(())
        }
    }

    fn content(size: u64, written: u64) -> Content {
        let disk: Rc<dyn Disk> = Rc::new(Letters);
        let pieces = vec![Piece { at: 2, length: 3, place: 10 }, Piece { at: 5, length: 2, place: 0 }];
        Content::new(&Window::whole(&disk), pieces, size, written)
    }

    #[test]
    fn bytes_in_no_piece_and_those_that_were_not_written_are_zeros() {
        let contents: [(u64, u64, &[u8]); 5] = [
            (9, 9, b"\0\0klmab\0\0"),
            (6, 9, b"\0\0klma"),
            (9, 4, b"\0\0kl\0\0\0\0\0"),
            (9, 0, &[0; 9]),
            (0, 0, b""),
        ];
        for (size, written, expected) in contents {
            let mut found = Vec::new();
            content(size, written).read_to_end(&mut found).expect("read");
            assert_eq!(found, expected, "{size} {written}");
        }
    }

    #[test]
    fn bytes_at_an_offset_are_read_over_several_pieces() {
        let content = content(9, 9);
        let mut found = [1; 5];
        content.read_exact_at(4, &mut found).expect("read");
        assert_eq!(&found, b"mab\0\0");
    }
}
