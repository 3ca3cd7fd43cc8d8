//! Whole disks in memory.

mod ext;
mod fat;
mod lvm;
mod ntfs;
mod partitions;
mod xfs;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::{Choice, Content, Disk, FsError, NodeKind, Tree};

/// The limit of nodes of a walk: a damaged folder can contain itself.
const MOST_NODES: usize = 500;
/// The limit of bytes of a file in a walk.
const MOST_BYTES: u64 = 1 << 20;

/// The limit of the time for one disk, also on a slow machine: reads that lead nowhere end much earlier.
const LONGEST: Duration = Duration::from_secs(60);

struct Memory(Vec<u8>);

impl Disk for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).expect("64 bits");
        into.copy_from_slice(&self.0[start..start + into.len()]);
        Ok(())
    }
}

fn disk(bytes: Vec<u8>) -> Rc<dyn Disk> {
    Rc::new(Memory(bytes))
}

fn read(tree: &Tree, path: &str) -> Result<Vec<u8>, FsError> {
    let path = tree.resolve(path.as_bytes(), true)?;
    let mut content = Vec::new();
    let read = tree.open(&path)?.take(MOST_BYTES).read_to_end(&mut content);
    read.map(|_| content).map_err(|source| FsError::Read { source })
}

fn names(tree: &Tree, path: &str) -> Vec<String> {
    let names = tree.names(path.as_bytes()).expect("a folder");
    names.into_iter().map(|name| String::from_utf8(name).expect("text")).collect()
}

/// Returns the content of each file, by its path. Folders that cannot be read end it with their error.
fn walk(tree: &Tree) -> Result<BTreeMap<String, Vec<u8>>, FsError> {
    let (mut found, mut folders, mut nodes) = (BTreeMap::new(), vec![String::new()], 0);
    while let Some(folder) = folders.pop() {
        for name in tree.names(if folder.is_empty() { b"/" } else { folder.as_bytes() })? {
            let path = format!("{folder}/{}", String::from_utf8_lossy(&name));
            nodes += 1;
            if nodes > MOST_NODES {
                return Ok(found);
            }
            match tree.node(path.as_bytes())?.kind {
                NodeKind::Folder => folders.push(path),
                NodeKind::File => {
                    let content = read(tree, &path)?;
                    found.insert(path, content);
                }
                NodeKind::Link => drop(tree.link(path.as_bytes())?),
                NodeKind::Special => {}
            }
        }
    }
    Ok(found)
}

fn choice_of(content: &Content) -> Choice {
    match (&content.volume, content.partition) {
        (Some(name), _) => Choice::Volume(name.clone()),
        (None, Some(number)) => Choice::Partition(number),
        (None, None) => Choice::Largest,
    }
}

/// Reads everything of a disk that is damaged. It ends, in whatever way: a panic ends the process of a person at most.
fn survive(bytes: Vec<u8>) {
    in_time(|| drop(catch_unwind(AssertUnwindSafe(|| read_all(bytes)))));
}

/// Reads everything of a disk that is damaged. It ends, without a panic.
fn endure(bytes: Vec<u8>) {
    in_time(|| read_all(bytes));
}

fn in_time(reads: impl FnOnce()) {
    let begun = Instant::now();
    reads();
    let took = begun.elapsed();
    assert!(took < LONGEST, "{took:?}");
}

fn read_all(bytes: Vec<u8>) {
    let disk = disk(bytes);
    for content in crate::contents(&disk).unwrap_or_default() {
        if let Ok(tree) = crate::open(&disk, &choice_of(&content)) {
            let _ = walk(&tree);
        }
    }
}

/// Returns the sectors of an image that have something.
fn used(image: &[u8]) -> Vec<usize> {
    let sectors = image.chunks_exact(512).enumerate();
    sectors.filter(|(_, sector)| **sector != [0; 512]).map(|(index, _)| index).collect()
}

/// Damages an image in so many places of these sectors.
fn damaged(image: &[u8], used: &[usize], places: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut image = image.to_vec();
    for _ in 0..places {
        let at = used[numbers.next(used.len())] * 512 + numbers.next(512);
        image[at] = u8::try_from(numbers.next(256)).expect("a byte");
    }
    image
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("64 bits") % below
    }
}
