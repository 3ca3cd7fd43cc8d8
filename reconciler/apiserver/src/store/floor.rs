//! How full the disk with the database is: under a floor nothing new is taken, so that what is there can go on being
//! told of, and deleted, in the room that the database keeps for itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes free on the disk under which nothing new is taken.
const FLOOR: u64 = 4 << 20;
/// How often the disk is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Floor {
    /// Where the database is; none in memory.
    pub(super) directory: Option<PathBuf>,
    pub(super) looked: Option<Instant>,
    pub(super) below: bool,
}

impl Floor {
    pub(super) fn of(directory: Option<PathBuf>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Whether there is too little room for anything new. A disk that cannot be asked has room.
    pub(super) fn is_reached(&mut self) -> bool {
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
        assert!(!Floor::of(Some(std::env::temp_dir())).is_reached());
        assert!(!Floor::of(Some("/no/such/directory".into())).is_reached());
        assert!(!Floor::of(None).is_reached());
    }
}
