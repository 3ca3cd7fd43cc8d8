//! The content of a file.

use std::io::{self, Read};

use super::blocks::Blocks;
use super::inode::Inode;
use super::map::{Run, runs};
use crate::error::Result;

/// The content of a file, from its beginning. Bytes that no block has are zeros.
pub(super) struct Content<'a> {
    blocks: &'a Blocks,
    size: u64,
    at: u64,
    /// Those that are not read yet.
    runs: std::iter::Peekable<std::vec::IntoIter<Run>>,
}

impl<'a> Content<'a> {
    pub(super) fn open(blocks: &'a Blocks, inode: &Inode) -> Result<Self> {
        let runs = runs(blocks, inode)?.into_iter().peekable();
        Ok(Self { blocks, size: inode.size, at: 0, runs })
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let block_size = self.blocks.size();
        // A run can end beyond the end of the file.
        while self.runs.next_if(|run| (run.first + run.count) * block_size <= self.at).is_some() {}
        let next = self.runs.peek().copied();
        let in_run = next.filter(|run| run.first * block_size <= self.at);
        let end = match (in_run, next) {
            (Some(run), _) => (run.first + run.count) * block_size,
            (None, Some(run)) => run.first * block_size,
            (None, None) => self.size,
        };
        let left = end.min(self.size).saturating_sub(self.at);
        let count = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        match in_run {
            None => buf[..count].fill(0),
            Some(run) => {
                let within = self.at - run.first * block_size;
                let block = run.block + within / block_size;
                let read = self.blocks.read(block, within % block_size, &mut buf[..count]);
                read.map_err(io::Error::other)?;
            }
        }
        self.at += count as u64;
        Ok(count)
    }
}
