//! The floor of free disk space: below it new data is refused, so that the status of existing objects can
//! still be written, and objects deleted, in the space that the database reserves for itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The free space in bytes below which nothing new is accepted.
const FLOOR: u64 = 4 << 20;
/// The minimum interval between checks of the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// The directory of the database; `None` in memory.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) looked: Option<Instant>,
    pub(crate) below: bool,
}

impl Floor {
    pub(crate) fn of(directory: Option<PathBuf>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Whether there is too little space for new data. A disk that cannot be queried counts as having space.
    pub(crate) fn check(&mut self) -> bool {
        let Some(directory) = &self.directory else { return self.below };
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return self.below;
        }
        self.looked = Some(Instant::now());
        let free = nix::sys::statvfs::statvfs(directory)
            .map_or(u64::MAX, |facts| facts.blocks_available().saturating_mul(facts.fragment_size()));
        let below = free < FLOOR;
        match (self.below, below) {
            (false, true) => tracing::error!(
                free,
                directory = %directory.display(),
                "the disk is full: nothing new is taken until there is room; status and deletions are"
            ),
            (true, false) => tracing::info!(free, "there is room on the disk again"),
            _ => {}
        }
        self.below = below;
        below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_room_is_not_below_and_neither_is_one_that_cannot_be_asked() {
        assert!(!Floor::of(Some(std::env::temp_dir())).check());
        assert!(!Floor::of(Some("/no/such/directory".into())).check());
        assert!(!Floor::of(None).check());
    }
}
