//! Options of the commands that download the data of images, disks and snapshots.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Connection, CopyFilesOptions, ListFilesOptions, StateDir, TimeSpan, time::time};

/// `berth disk`
#[derive(Args, Debug)]
pub struct DiskOptions {
    /// The action.
    #[command(subcommand)]
    pub action: DiskAction,
}

/// Actions on disks.
#[derive(Debug, Subcommand)]
pub enum DiskAction {
    /// Downloads the data of a Disk, while a VM uses it or not, as one file. Its host makes an Image of the disk first, which is
    /// deleted at the end. A download that was interrupted continues where it ended, by the same command.
    Download(OriginDownloadOptions),
}

/// `berth snapshot`
#[derive(Args, Debug)]
pub struct SnapshotOptions {
    /// The action.
    #[command(subcommand)]
    pub action: SnapshotAction,
}

/// Actions on snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotAction {
    /// Lists the files in a folder of a DiskSnapshot. Only the parts of its data that this needs are read.
    Ls(ListFilesOptions),
    /// Copies a file, or with -r a folder, out of a DiskSnapshot. Only the parts of its data that this needs are read.
    Cp(CopyFilesOptions),
    /// Downloads the data of a DiskSnapshot, as one file. Its host makes an Image of the snapshot first, which is deleted at the
    /// end. A download that was interrupted continues where it ended, by the same command.
    Download(OriginDownloadOptions),
}

/// An object, and the file that its data is written to.
#[derive(Args, Debug)]
pub struct DownloadOptions {
    /// The object's name.
    pub name: String,
    /// The file to write. It appears once it is complete and verified: until then its bytes are in FILE.part.
    pub file: PathBuf,
    /// The object's namespace.
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Replaces the file if it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub state: StateDir,
    #[command(flatten)]
    pub connection: Connection,
}

/// `berth disk download` and `berth snapshot download`
#[derive(Args, Debug)]
pub struct OriginDownloadOptions {
    #[command(flatten)]
    pub download: DownloadOptions,
    /// Begins with the data of now, instead of continuing a download that was interrupted.
    #[arg(long)]
    pub anew: bool,
    /// The format of the file. For a raw one, there has to be space for the qcow2 file beside it, which is removed at the end.
    // The log has a global option of this name.
    #[arg(id = "disk_format", long = "format", value_enum, default_value = "qcow2")]
    pub format: DiskFileFormat,
    /// How long to wait until the host has made the Image. The download itself may take longer.
    #[arg(long, value_parser = time, default_value = "3h")]
    pub timeout: TimeSpan,
}

/// The format of a file with the data of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskFileFormat {
    /// Without the parts that were never written.
    Qcow2,
    /// The bytes that a guest sees; parts without data are holes.
    Raw,
}
