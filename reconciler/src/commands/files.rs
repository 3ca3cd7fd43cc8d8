//! `berth disk-backup ls`, `berth disk-backup cp`, `berth snapshot ls`, `berth snapshot cp`: single files out of backups and snapshots.
//!
//! ```text
//!  object, ticket ─▶ host ◀── parts of the data ──▶ remote_disk ─▶ partitions and file system ─▶ list, copy
//!    origin                                         in a thread of this process, which has the rights of its user only
//! ```
//!
//! *Guarantees:* the data is that of a guest, and hostile. Nothing in it names a file outside of the target, nor reaches the terminal as it
//! is; entries and bytes are limited; a file system that leads nowhere ends the command.

mod copy;
mod list;
mod origin;
mod remote_disk;

use std::io::Write;

use anyhow::{Context, bail, ensure};
use berth_api::{Quantity, disk_read::DiskOrigin};
use berth_filesystems::{Choice, FileSystem, FsError, Tree};

use crate::cli::{CopyFilesOptions, FileSource, ListFilesOptions};
pub(super) use copy::Part;
pub(super) use origin::opened;
use remote_disk::with_disk;

/// Lists a folder, or a file.
///
/// *Errors:* those of the connection; the data has no file system that is read, or no such path.
pub(super) async fn list(origin: DiskOrigin, options: ListFilesOptions) -> anyhow::Result<()> {
    let ListFilesOptions { name, path, source } = options;
    let data = Box::pin(opened(origin, &source, &name)).await?;
    let (choice, ignores_journal) = (choice(&source), source.ignore_journal);
    let listed = with_disk(data, move |disk, alive| {
        let tree = described(berth_filesystems::open(&disk, &choice), ignores_journal)?;
        let content = tree.content();
        if content.partition.is_some() || content.volume.is_some() {
            notice!("the disk has {}", tree.there());
        }
        list::lines(&tree, path.as_bytes(), alive)
    });
    let listed = listed.await.with_context(|| what(origin, &source, &name))?;
    let mut out = std::io::stdout().lock();
    for line in listed.lines {
        match writeln!(out, "{line}") {
            // The reader of a pipe has read enough, as `head` does.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("printing")?,
        }
    }
    ensure!(listed.damaged == 0, "{} entries are damaged: each has a line with the reason", listed.damaged);
    Ok(())
}

/// Copies a file, or a folder.
///
/// *Errors:* the target exists; those of the connection; the data has no such file, or is damaged.
pub(super) async fn copy(origin: DiskOrigin, options: CopyFilesOptions) -> anyhow::Result<()> {
    let CopyFilesOptions { from, to, recursive, force, source } = options;
    let target = copy::Target::new(&from.path, &to, recursive, force)?;
    let data = Box::pin(opened(origin, &source, &from.name)).await?;
    let (choice, ignores_journal) = (choice(&source), source.ignore_journal);
    let copied = with_disk(data, move |disk, alive| {
        let tree = described(berth_filesystems::open(&disk, &choice), ignores_journal)?;
        copy::run(&tree, from.path.as_bytes(), &target, alive)
    });
    let copied = copied.await.with_context(|| what(origin, &source, &from.name))?;
    for note in &copied.notes {
        notice!("berth: {note}");
    }
    let (files, size, to) = (copied.files, Quantity::from_bytes(copied.bytes).0, copied.to.display());
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    writeln!(std::io::stdout(), "{files} with {size} in {to}").context("printing")
}

fn what(origin: DiskOrigin, source: &FileSource, name: &str) -> String {
    format!("reading {} {name} in namespace {}", origin.kind(), source.namespace)
}

/// Returns the file system that the options name.
fn choice(source: &FileSource) -> Choice {
    match (&source.volume, source.partition) {
        (Some(volume), _) => Choice::Volume(volume.0.clone()),
        (None, Some(number)) => Choice::Partition(number),
        (None, None) => Choice::Largest,
    }
}

/// Prints which file system it is, or explains what else can be done without one.
fn described(tree: Result<Tree, FsError>, ignores_journal: bool) -> anyhow::Result<Tree> {
    match tree {
        Ok(tree) => {
            let content = tree.content();
            let (place, name) = (content.place(), content.file_system.name());
            notice!("{place}: {name}, {}", Quantity::from_bytes(content.length).0);
            ensure!(
                ignores_journal || !tree.has_unapplied_changes(),
                "the {name} file system has changes in its journal, which is not applied: it was mounted, and not frozen by qemu-guest-agent. \
                 Make a Disk from it (source), and mount that in a VM; or read what is in place with --ignore-journal: files can be missing, \
                 older, or have content of other files"
            );
            if tree.has_unapplied_changes() || content.file_system == FileSystem::Ntfs {
                notice!(
                    "berth: the journal of {name} is not applied: the newest changes can be missing or incomplete"
                );
            }
            Ok(tree)
        }
        Err(
            error @ (FsError::Unsupported { .. } | FsError::NothingToRead { .. } | FsError::Features { .. }),
        ) => {
            bail!(
                "{error}. Make a Disk from it (source), and attach that to a VM whose system reads this (HotswapDiskAttachment); the data of \
                 a snapshot as a file: berth snapshot download"
            )
        }
        Err(error) => Err(error.into()),
    }
}
