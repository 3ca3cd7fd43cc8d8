//! Options of the commands that read single files out of backups and snapshots of disks, and the actions on backups.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};

use super::{Connection, ListBackupsOptions, RestoreVmOptions, StateDir, VerifyBackupOptions};

/// `berth disk-backup`
#[derive(Args, Debug)]
pub struct DiskBackupOptions {
    /// The action.
    #[command(subcommand)]
    pub action: DiskBackupAction,
}

/// Actions on backups of disks.
#[derive(Debug, Subcommand)]
pub enum DiskBackupAction {
    /// Lists the files in a folder of a Backup. Only the parts of its data that this needs are read.
    Ls(ListFilesOptions),
    /// Copies a file, or with -r a folder, out of a Backup. Only the parts of its data that this needs are read.
    Cp(CopyFilesOptions),
    /// Lists the backups in a repository by its place and its password: without a control plane, such as after a total loss.
    List(ListBackupsOptions),
    /// Has a Backup read back and verified by its host, and waits for the result. Exit code 1: data is damaged or missing, 2: it
    /// was not verified, or there is no result yet.
    Verify(VerifyBackupOptions),
    /// Prints the Disks and the VM that Backups of all disks of a VM make again, by the declaration that is stored with them.
    RestoreVm(RestoreVmOptions),
}

/// `ls` of a backup or a snapshot.
#[derive(Args, Debug)]
pub struct ListFilesOptions {
    /// The name of the object.
    pub name: String,
    /// A folder or a file in it.
    #[arg(default_value = "/")]
    pub path: String,
    #[command(flatten)]
    pub source: FileSource,
}

/// `cp` from a backup or a snapshot.
#[derive(Args, Debug)]
pub struct CopyFilesOptions {
    /// The name of the object, a colon, and a path in it.
    #[arg(value_name = "NAME:PATH")]
    pub from: PathInDisk,
    /// The copy; or a folder that exists, for a copy of the same name.
    pub to: PathBuf,
    /// Copies a folder with everything in it. Symbolic links are copied as such; devices, pipes and sockets are left out.
    #[arg(short, long)]
    pub recursive: bool,
    /// Replaces a file that exists. A folder is never replaced.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub source: FileSource,
}

/// The object that files are read from.
#[derive(Args, Clone, Debug)]
pub struct FileSource {
    /// The namespace of the object.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// The number of the partition. Default: the largest partition or logical volume that can be read: ext2, ext3, ext4, XFS, NTFS or FAT.
    #[arg(long, value_name = "NUMBER", conflicts_with = "volume")]
    pub partition: Option<u32>,
    /// The logical volume of LVM, with its volume group.
    #[arg(long, value_name = "GROUP/VOLUME")]
    pub volume: Option<VolumeName>,
    /// Reads an XFS file system with changes in its journal as it is without them: files can be missing, older, or have other content.
    #[arg(long)]
    pub ignore_journal: bool,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// The name of a logical volume, with its volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName(pub String);

impl FromStr for VolumeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((group, volume)) if !group.is_empty() && !volume.is_empty() && !volume.contains('/') => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(format!("{text:?} is not GROUP/VOLUME, such as rhel/root")),
        }
    }
}

/// A path in the file system of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInDisk {
    /// The object's name.
    pub name: String,
    /// The path.
    pub path: String,
}

impl FromStr for PathInDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.to_owned(), path: path.to_owned() })
            }
            _ => Err(format!("{text:?} is not NAME:PATH, the name of an object and a path in it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_disk_follows_the_first_colon() {
        let path = |name: &str, path: &str| Ok(PathInDisk { name: name.to_owned(), path: path.to_owned() });
        assert_eq!("daily:/etc/a:b".parse(), path("daily", "/etc/a:b"));
        assert_eq!("daily:etc".parse(), path("daily", "etc"));
        for wrong in ["", ":", "daily", "daily:", ":/etc"] {
            assert!(wrong.parse::<PathInDisk>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_logical_volume_is_named_with_its_group() {
        assert_eq!("rhel/root".parse(), Ok(VolumeName("rhel/root".to_owned())));
        for wrong in ["", "root", "/root", "rhel/", "/dev/rhel/root"] {
            assert!(wrong.parse::<VolumeName>().is_err(), "{wrong}");
        }
    }
}
