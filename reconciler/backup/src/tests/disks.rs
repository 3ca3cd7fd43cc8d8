//! Sparse disks in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::block::BLOCK_SIZE;
use crate::{DiskError, Extent, Sink, Source};

/// A disk, as blocks that are not zeros.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TestDisk {
    pub(super) size: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

/// A disk to back up.
#[derive(Debug)]
pub(super) struct TestSource {
    pub(super) disk: TestDisk,
    pub(super) extents: Vec<Extent>,
    pub(super) reads: Vec<(u64, usize)>,
    pub(super) fails_at: Option<u64>,
}

/// A disk to restore to.
#[derive(Debug, Default)]
pub(super) struct TestSink {
    pub(super) disk: TestDisk,
    pub(super) flushed: bool,
    pub(super) fails_at: Option<u64>,
}

impl TestDisk {
    /// Blocks with the seeds of their data; 0 is a block of zeros. The size is in bytes.
    pub(super) fn new(size: u64, seeds: &[u64]) -> Self {
        let mut disk = Self { size, ..Self::default() };
        for (at, seed) in seeds.iter().enumerate() {
            disk.set(at as u64, *seed);
        }
        disk
    }

    /// Sets the data of a block.
    pub(super) fn set(&mut self, at: u64, seed: u64) {
        let length = (self.size - at * BLOCK_SIZE as u64).min(BLOCK_SIZE as u64) as usize;
        let mut state = seed;
        let mut data = vec![0; length];
        // The rest of each page compresses.
        for page in data.chunks_mut(4096).filter(|_| seed != 0) {
            for word in page.chunks_mut(8).take(64) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
            }
        }
        self.blocks.insert(at, data);
        self.blocks.retain(|_, data| data.iter().any(|byte| *byte != 0));
    }

    /// Nothing is known about the extents.
    pub(super) fn source(&self) -> TestSource {
        let extents = vec![Extent { length: self.size, is_unchanged: false, is_zero: false }];
        TestSource { disk: self.clone(), extents, reads: Vec::new(), fails_at: None }
    }

    /// Blocks are unchanged and zero as they are.
    pub(super) fn since(&self, parent: &Self) -> TestSource {
        let blocks = self.size.div_ceil(BLOCK_SIZE as u64);
        let extents = (0..blocks).map(|at| Extent {
            length: (self.size - at * BLOCK_SIZE as u64).min(BLOCK_SIZE as u64),
            is_unchanged: self.blocks.get(&at) == parent.blocks.get(&at),
            is_zero: !self.blocks.contains_key(&at),
        });
        TestSource { extents: extents.collect(), ..self.source() }
    }
}

impl TestSink {
    /// A disk with other data.
    pub(super) fn new(size: u64) -> Self {
        let length = |at: u64| (size - at * BLOCK_SIZE as u64).min(BLOCK_SIZE as u64) as usize;
        let blocks = (0..size.div_ceil(BLOCK_SIZE as u64).min(8)).map(|at| (at, vec![1; length(at)]));
        Self { disk: TestDisk { size, blocks: blocks.collect() }, ..Self::default() }
    }
}

#[async_trait]
impl Source for TestSource {
    fn size(&self) -> u64 {
        self.disk.size
    }

    async fn extents(&mut self, offset: u64, length: u64) -> Result<Vec<Extent>, DiskError> {
        let (mut at, mut found) = (0, Vec::new());
        for extent in &self.extents {
            let (start, end) = (at.max(offset), (at + extent.length).min(offset + length));
            found.extend((start < end).then(|| Extent { length: end - start, ..*extent }));
            at += extent.length;
        }
        Ok(found)
    }

    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        if self.fails_at.is_some_and(|at| offset <= at && at < offset + into.len() as u64) {
            return Err("a bad sector".into());
        }
        self.reads.push((offset, into.len()));
        let at = offset / BLOCK_SIZE as u64;
        let start = (offset % BLOCK_SIZE as u64) as usize;
        assert!(start + into.len() <= BLOCK_SIZE, "a read ends with its block");
        match self.disk.blocks.get(&at) {
            Some(block) => into.copy_from_slice(&block[start..start + into.len()]),
            None => into.fill(0),
        }
        Ok(())
    }
}

#[async_trait]
impl Sink for TestSink {
    fn size(&self) -> u64 {
        self.disk.size
    }

    async fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        if self.fails_at.is_some_and(|at| offset <= at && at < offset + data.len() as u64) {
            return Err("a bad sector".into());
        }
        assert_eq!(offset % BLOCK_SIZE as u64, 0);
        self.disk.blocks.insert(offset / BLOCK_SIZE as u64, data.to_vec());
        Ok(())
    }

    async fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), DiskError> {
        let end = (offset + length).div_ceil(BLOCK_SIZE as u64);
        self.disk.blocks.retain(|at, _| !(offset / BLOCK_SIZE as u64..end).contains(at));
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), DiskError> {
        self.flushed = true;
        Ok(())
    }
}
