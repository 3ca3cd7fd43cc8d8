//! The work in the background, and the limits of its number.

use berth_host::{
    Arrival, BackupId, BackupToVerify, ChecksumSource, DownloadLimits, Fill, ImageSource, NewBackup,
    NewFetch, NewImage, NewMove, NewVolume,
};

use crate::credentials::Repository;
use crate::details::Details;

/// Maximum number of concurrent downloads per namespace, and of backups and of their deletions beside them.
pub(super) const MAX_CONCURRENT: usize = 4;
/// Maximum number of concurrent verifications per namespace: their rate is a limit for all of them.
const MAX_VERIFICATIONS: usize = 1;
/// Maximum number of concurrent moves per namespace, and of volumes that are filled beside them: each reads and writes as fast as the drives allow.
const MAX_MOVES: usize = 2;
/// Maximum number of concurrent copies of volumes from other hosts per namespace.
const MAX_FETCHES: usize = 1;

/// A download, or other work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    Image(ImageSource),
    /// The checksum of an image, which is needed before the image.
    Checksum(ChecksumSource),
    /// An image that is made from a snapshot of this host. Its checksum is the result.
    Made(NewImage),
    /// A backup of a snapshot of this host.
    Backup(Repository, BackupId, Details<NewBackup>),
    /// The facts of a backup that is in the repository already.
    Existing(Repository, BackupId),
    /// A volume, by its identity, that is made from a backup.
    Restore(Repository, BackupId, String, Details<Box<NewVolume>>),
    /// A volume of a Disk of this namespace, by its identity, that gets its data from this host: a copy of an image or of a snapshot in
    /// another pool, or a file system.
    Fill(String, String, Details<Box<(NewVolume, Fill)>>),
    /// The deletion of a backup.
    Deletion(Repository, BackupId),
    /// The verification of a complete backup, and when it was requested: another request is other work.
    Verification(Repository, BackupId, String, Details<BackupToVerify>),
    /// The move of a volume of a Disk of this namespace to another pool.
    Move(String, NewMove),
    /// The copy of the volume of a Disk from the host that its VM has left.
    Fetch(Arriving, Details<Box<NewFetch>>),
}

/// A volume that comes from another host, and the stay of its VM that it comes for: for another one, it is copied again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arriving {
    pub(crate) namespace: String,
    pub(crate) disk: String,
    pub(crate) pool: String,
    pub(crate) volume: String,
    pub(crate) from: String,
    pub(crate) arrival: Arrival,
}

impl Wanted {
    /// Whether it makes this volume, from a backup or with data of this host.
    pub(super) fn makes(&self, volume: &str) -> bool {
        matches!(self, Self::Restore(_, _, id, _) | Self::Fill(_, id, _) if id == volume)
    }

    /// Returns the snapshot whose data it copies to another pool.
    pub(super) fn copied_snapshot(&self) -> Option<&str> {
        match self {
            Self::Fill(_, _, Details(of)) => match &of.1 {
                Fill::Snapshot { id, .. } => Some(id),
                Fill::Image | Fill::Filesystem(_) | Fill::RawFile(_) => None,
            },
            _ => None,
        }
    }

    /// Whether it moves this volume.
    pub(super) fn moves(&self, volume: &str) -> bool {
        matches!(self, Self::Move(_, new) if new.id == volume)
    }

    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Image(source) => &source.namespace,
            Self::Checksum(source) => &source.namespace,
            Self::Made(new) => &new.namespace,
            Self::Move(namespace, _) | Self::Fill(namespace, ..) => namespace,
            Self::Fetch(arriving, _) => &arriving.namespace,
            Self::Backup(repository, ..)
            | Self::Existing(repository, _)
            | Self::Restore(repository, ..)
            | Self::Deletion(repository, _)
            | Self::Verification(repository, ..) => &repository.namespace,
        }
    }

    /// Returns the limits of its attempts, and its URL for messages.
    pub(super) fn limits(&self) -> (DownloadLimits, &str) {
        match self {
            Self::Image(source) => (source.limits, source.shown.as_str()),
            Self::Checksum(source) => (source.limits, source.shown.as_str()),
            _ => (DownloadLimits::default(), ""),
        }
    }

    /// Returns what limits it. Backups, verifications and moves take long, deletions wait for a backup of the same disk, and none of them holds
    /// up an image that a VM waits for.
    pub(crate) fn slot_group(&self) -> SlotGroup {
        let work = match self {
            Self::Backup(..) => LimitedWork::Backups,
            Self::Deletion(..) => LimitedWork::Deletions,
            Self::Verification(..) => LimitedWork::Verifications,
            Self::Move(..) => LimitedWork::Moves,
            Self::Fill(..) => LimitedWork::Fills,
            Self::Fetch(..) => LimitedWork::Fetches,
            _ => LimitedWork::Others,
        };
        SlotGroup { namespace: self.namespace().to_owned(), work }
    }
}

/// The work that shares a number of slots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotGroup {
    namespace: String,
    work: LimitedWork,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LimitedWork {
    Backups,
    Deletions,
    Verifications,
    Moves,
    Fills,
    Fetches,
    Others,
}

impl SlotGroup {
    pub(super) fn slots(&self) -> usize {
        match self.work {
            LimitedWork::Verifications => MAX_VERIFICATIONS,
            LimitedWork::Moves | LimitedWork::Fills => MAX_MOVES,
            LimitedWork::Fetches => MAX_FETCHES,
            LimitedWork::Backups | LimitedWork::Deletions | LimitedWork::Others => MAX_CONCURRENT,
        }
    }
}
