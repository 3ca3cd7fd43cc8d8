//! The attributes of a file: each is a value, or has its content in runs of clusters.

use super::boot::Boot;
use super::{NUMBER, damaged};
use crate::content::{Content, Piece};
use crate::disk::{Window, number};
use crate::error::Result;

/// The mark of the end of the attributes of a record.
const END: u64 = 0xffff_ffff;
/// The lengths of the heads of an attribute with a value, and of one with runs.
const VALUE_HEAD: usize = 24;
const RUNS_HEAD: usize = 64;
const COMPRESSED: u64 = 0xff;
const ENCRYPTED: u64 = 0x4000;
/// The limit of pieces of a file: 24 bytes of memory each.
const MOST_PIECES: usize = 4 << 20;
/// The length of an entry of a list of attributes, without its name.
const LISTED: usize = 26;

/// The types of attributes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Information,
    List,
    Data,
    IndexRoot,
    Index,
    Bitmap,
    Reparse,
    Other,
}

/// An attribute of a record.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    pub(super) kind: Type,
    pub(super) stored: Stored,
    /// In the letters of the file system.
    name: Vec<u8>,
    flags: u64,
}

/// Where its content is.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// In the record.
    Value(Vec<u8>),
    /// In clusters: the first cluster of the content that these runs have; for the first of its parts, the sizes in bytes.
    Runs { first: u64, size: u64, written: u64, runs: Vec<u8> },
}

impl Attribute {
    /// Whether it is of this type, and has this name.
    pub(super) fn is(&self, kind: Type, name: &[u8]) -> bool {
        let is_first = !matches!(self.stored, Stored::Runs { first, .. } if first > 0);
        is_first && self.is_part(kind, name)
    }

    fn is_part(&self, kind: Type, name: &[u8]) -> bool {
        self.kind == kind && self.name == name
    }

    pub(super) fn size(&self) -> u64 {
        match &self.stored {
            Stored::Value(value) => value.len() as u64,
            Stored::Runs { size, .. } => *size,
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        self.flags & COMPRESSED != 0
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.flags & ENCRYPTED != 0
    }
}

/// Reads the attributes of a record; `None`: they are damaged.
pub(super) fn attributes(bytes: &[u8]) -> Option<Vec<Attribute>> {
    let (mut rest, mut found) = (bytes, Vec::new());
    while number(rest.get(..4)?, 0, 4) != END {
        let length = usize::try_from(number(rest, 4, 4)).ok()?;
        if length < VALUE_HEAD || length > rest.len() {
            return None;
        }
        let (one, others) = rest.split_at(length);
        found.push(attribute(one)?);
        rest = others;
    }
    Some(found)
}

fn attribute(bytes: &[u8]) -> Option<Attribute> {
    let part = |offset: u64, length: u64| {
        let start = usize::try_from(offset).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
    };
    let name = part(number(bytes, 10, 2), number(bytes, 9, 1) * 2)?.to_vec();
    let stored = if number(bytes, 8, 1) == 0 {
        Stored::Value(part(number(bytes, 20, 2), number(bytes, 16, 4))?.to_vec())
    } else {
        let start = number(bytes, 32, 2);
        let runs = part(start, (bytes.len() as u64).checked_sub(start)?)?.to_vec();
        if bytes.len() < RUNS_HEAD {
            return None;
        }
        let (size, written) = (number(bytes, 48, 8), number(bytes, 56, 8));
        i64::try_from(size).ok()?;
        Stored::Runs { first: number(bytes, 16, 8), size, written, runs }
    };
    let kind = match number(bytes, 0, 4) {
        0x10 => Type::Information,
        0x20 => Type::List,
        0x80 => Type::Data,
        0x90 => Type::IndexRoot,
        0xa0 => Type::Index,
        0xb0 => Type::Bitmap,
        0xc0 => Type::Reparse,
        _ => Type::Other,
    };
    Some(Attribute { kind, stored, name, flags: number(bytes, 12, 2) })
}

/// Returns the value of an attribute that has one.
pub(super) fn value<'a>(all: &'a [Attribute], kind: Type, name: &[u8]) -> Option<&'a [u8]> {
    all.iter().filter(|attribute| attribute.is(kind, name)).find_map(|attribute| match &attribute.stored {
        Stored::Value(value) => Some(value.as_slice()),
        Stored::Runs { .. } => None,
    })
}

/// Returns the content of an attribute in clusters, whose parts can be in several records; `None`: there is none.
pub(super) fn content(
    all: &[Attribute],
    kind: Type,
    name: &[u8],
    boot: &Boot,
    part: &Window,
) -> Result<Option<Content>> {
    let of_runs = |attribute: &Attribute| match &attribute.stored {
        Stored::Runs { first, size, written, runs } if attribute.is_part(kind, name) => {
            Some((*first, *size, *written, runs.clone()))
        }
        _ => None,
    };
    let mut parts: Vec<_> = all.iter().filter_map(of_runs).collect();
    parts.sort_by_key(|(first, ..)| *first);
    let Some((0, size, written, _)) = parts.first().cloned() else {
        return if parts.is_empty() { Ok(None) } else { Err(damaged("the first part of a file is missing")) };
    };
    let (mut pieces, mut next) = (Vec::new(), 0);
    for (first, _, _, runs) in parts {
        if first != next {
            return Err(damaged("the parts of a file do not follow each other"));
        }
        next = add(&mut pieces, next, &runs, boot)
            .ok_or_else(|| damaged("the runs of a file are damaged, or not all in the file system"))?;
    }
    Ok(Some(Content::new(part, pieces, size, written)))
}

/// Adds the pieces of runs, which begin at this cluster of the file; returns the cluster after them. `None`: they are damaged.
fn add(pieces: &mut Vec<Piece>, first: u64, runs: &[u8], boot: &Boot) -> Option<u64> {
    let (mut rest, mut next, mut cluster) = (runs, first, 0_u64);
    while let Some((head, others)) = rest.split_first().filter(|(head, _)| **head != 0) {
        let (lengths, places) = (usize::from(head & 0xf), usize::from(head >> 4));
        if !(1..=8).contains(&lengths) || places > 8 {
            return None;
        }
        let (numbers, others) = others.split_at_checked(lengths + places)?;
        let count = number(numbers, 0, lengths);
        let end = next.checked_add(count).filter(|_| count > 0)?;
        // The end in bytes is a number of 63 bits.
        end.checked_mul(boot.cluster).filter(|end| i64::try_from(*end).is_ok())?;
        if places > 0 {
            cluster = cluster.checked_add_signed(signed(&numbers[lengths..]))?;
            if !boot.has(cluster, count) || pieces.len() >= MOST_PIECES {
                return None;
            }
            pieces.push(boot.piece(next * boot.cluster, cluster, count * boot.cluster));
        }
        (next, rest) = (end, others);
    }
    Some(next)
}

/// Returns a signed number of at most 8 bytes.
fn signed(bytes: &[u8]) -> i64 {
    let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut whole = [if is_negative { 0xff } else { 0 }; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(whole)
}

/// Returns the records that a list of attributes names.
pub(super) fn listed(list: &[u8]) -> Result<Vec<u64>> {
    let (mut rest, mut found) = (list, Vec::new());
    while rest.len() >= LISTED {
        let length = usize::try_from(number(rest, 4, 2)).unwrap_or(usize::MAX);
        if length < LISTED || length > rest.len() {
            return Err(damaged("a list of attributes has an entry that is none"));
        }
        found.push(number(rest, 16, 8) & NUMBER);
        rest = &rest[length..];
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: Boot = Boot { cluster: 512, clusters: 1000, record_size: 1024, table: 4 };

    fn pieces(runs: &[u8]) -> Option<(u64, Vec<Piece>)> {
        let mut pieces = Vec::new();
        let next = add(&mut pieces, 0, runs, &BOOT)?;
        Some((next, pieces))
    }

    #[test]
    fn runs_are_relative_and_can_be_holes() {
        let (next, found) = pieces(&[0x11, 4, 100, 0x01, 2, 0x21, 1, 0xce, 0xff, 0]).expect("runs");
        let piece = |at: u64, length: u64, place: u64| Piece {
            at: at * 512,
            length: length * 512,
            place: place * 512,
        };
        assert_eq!((next, found), (7, vec![piece(0, 4, 100), piece(6, 1, 50)]));
    }

    #[test]
    fn runs_that_lead_elsewhere_are_refused() {
        for runs in [
            [0x11, 4, 0x80].as_slice(),
            &[0x11, 0, 1],
            &[0x11, 4],
            &[0x10, 4],
            &[0x9f, 1],
            &[0x21, 1, 0xe8, 0x03],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert!(pieces(runs).is_none(), "{runs:?}");
        }
    }
}
