//! Data that is written to files before they are volumes: copies of images, and empty file systems.
//!
//! The programs are confined, as they are for images: each opens the files that it is given and no other. A program for a file system changes a
//! file of holes of the size of the disk, which `qemu-img` copies: it has data at the file system's own structures only.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_qemu::machine::Backing;
use berth_qemu::process::{Filter, FilterError, RunAs};

use super::files::{self, blocking, failed};
use super::images::Input;
use super::program::Program;
use super::qemu_img::{CONVERT_MEMORY, DiskNode, QEMU_IMG, block_node, no_space, text};
use crate::{FilesystemKind, NewFilesystem, Result, SystemError};

pub(super) const MKFS_EXT4: Program =
    Program { name: "mkfs.ext4", advice: "it formats disks (Debian, Ubuntu, Fedora: package e2fsprogs)" };
pub(super) const MKFS_XFS: Program =
    Program { name: "mkfs.xfs", advice: "it formats disks (Debian, Ubuntu, Fedora: package xfsprogs)" };

/// The end of the names of files that a file system is made in.
pub(super) const FORMATTED: &str = ".formatted.raw";
/// A file that the programs for ext file systems read, where it exists.
const MKE2FS_CONF: &str = "/etc/mke2fs.conf";
/// The tables for the largest disk.
const FORMAT_MEMORY: u64 = 2 << 30;
const FORMAT_TIME: Duration = Duration::from_secs(15 * 60);
/// 256 GiB in three hours are 24 MiB a second.
pub(super) const COPY_TIME: Duration = Duration::from_secs(3 * 3600);
/// Room for tables beside the data.
const TABLES: u64 = 64 << 20;

/// A file with a file system, which goes with the work, however it ends.
#[derive(Debug)]
pub(super) struct Formatted(PathBuf);

impl Formatted {
    /// The file, as a chain of one.
    pub(super) fn backing(&self) -> Backing {
        Backing { file: self.0.clone(), format: berth_qemu::machine::Format::Raw, backing: None }
    }
}

impl Drop for Formatted {
    fn drop(&mut self) {
        // One that stays is removed by the next attempt, or when the next agent starts.
        let _ = files::remove_if_there(&self.0);
    }
}

impl NewFilesystem {
    fn program(&self) -> Program {
        match self.kind {
            FilesystemKind::Ext4 => MKFS_EXT4,
            FilesystemKind::Xfs => MKFS_XFS,
        }
    }

    /// The arguments of its program.
    fn arguments(&self, file: &str) -> Vec<String> {
        let options: &[&str] = match self.kind {
            // The tables of inodes are zeros already.
            FilesystemKind::Ext4 => {
                &["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"]
            }
            FilesystemKind::Xfs => &["-q", "-f", "-K"],
        };
        let label = self.label.iter().flat_map(|label| ["-L", label.as_str()]);
        options.iter().copied().chain(label).chain([file]).map(str::to_owned).collect()
    }
}

/// Makes a file of this size with a file system. One that an earlier attempt has left is replaced.
///
/// *Errors*: [`SystemError::ProgramMissing`]; [`SystemError::NoSpace`].
pub(super) async fn format(
    file: &Path,
    size: u64,
    filesystem: &NewFilesystem,
    user: Option<RunAs>,
) -> Result<Formatted> {
    let program = filesystem.program();
    let path = program.find()?;
    let formatted = Formatted(file.to_owned());
    let new = file.to_owned();
    let create = move || {
        files::remove_if_there(&new).map_err(failed("remove", &new))?;
        files::check_space(&new, 0)?;
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let sized = created.and_then(|file| file.set_len(size));
        sized.map_err(|error| not_created(&new, size, error))?;
        files::give(&new, user.as_ref())
    };
    blocking(create).await?;
    let settings = Path::new(MKE2FS_CONF);
    let filter = Filter {
        program: path,
        args: filesystem.arguments(&text(file)),
        input: file.to_owned(),
        further: settings.exists().then(|| settings.to_owned()).into_iter().collect(),
        output: None,
        changed: vec![file.to_owned()],
        lock: None,
        key: None,
        user,
        max_bytes: size,
        memory: FORMAT_MEMORY,
        time: FORMAT_TIME,
    };
    filter.run().await.map_err(|error| explain(program, file, error))?;
    Ok(formatted)
}

/// The error of a file for a file system that could not be created.
fn not_created(file: &Path, size: u64, error: io::Error) -> SystemError {
    if error.kind() != io::ErrorKind::FileTooLarge {
        return failed("create", file)(error);
    }
    SystemError::Invalid {
        what: "size of a disk with a file system",
        value: size.to_string(),
        why: "it is made in one file, and the file system of this host has none so large (ext4: less than 16 TiB): create a \
              smaller disk, which can grow later, or one without filesystem, to format in its VM",
    }
}

/// Copies the data of a chain of files to the disk of a qcow2 file, which is new and at least as large, and which the user can write.
///
/// *Errors*: [`SystemError::NoSpace`].
pub(super) async fn copy(chain: &Backing, target: &Path, size: u64, user: Option<RunAs>) -> Result<()> {
    let disk = DiskNode { node: block_node(chain, "auto"), files: vec![chain.file.clone()] };
    copy_data(Input { disk, user, memory: CONVERT_MEMORY }, target, size).await
}

/// Copies the data of a disk in the same way.
///
/// *Errors*: [`SystemError::NoSpace`].
pub(super) async fn copy_data(from: Input, target: &Path, size: u64) -> Result<()> {
    let Input { disk: DiskNode { node, mut files }, user, memory } = from;
    let input = files.remove(0);
    let source = format!("json:{node}");
    let output = format!("file:{}", text(target));
    let filter = Filter {
        program: QEMU_IMG.find()?,
        args: ["convert", "-n", "--target-is-zero", "-O", "qcow2", &source, &output]
            .map(str::to_owned)
            .to_vec(),
        input,
        further: files,
        output: None,
        changed: vec![target.to_owned()],
        lock: None,
        key: None,
        user,
        max_bytes: size.saturating_add(size / 1024).saturating_add(TABLES),
        memory,
        time: COPY_TIME,
    };
    filter.run().await.map_err(|error| explain(QEMU_IMG, target, error))
}

fn explain(program: Program, file: &Path, error: FilterError) -> SystemError {
    match error {
        FilterError::Failed { said, .. } if said.contains("No space left") => no_space(file),
        FilterError::File { path, source } => SystemError::File { attempt: "use", path, source },
        FilterError::Launch(error) => SystemError::Launch(error),
        FilterError::Process(error) => SystemError::Process(error),
        other => program.failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_gets_its_label_and_its_program_asks_nothing() {
        let arguments = |kind, label: Option<&str>| {
            NewFilesystem { kind, label: label.map(str::to_owned) }.arguments("/pool/a.raw").join(" ")
        };
        assert_eq!(
            arguments(FilesystemKind::Ext4, Some("data")),
            "-q -F -t ext4 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard -L data /pool/a.raw"
        );
        assert_eq!(arguments(FilesystemKind::Xfs, None), "-q -f -K /pool/a.raw");
    }

    #[test]
    fn a_file_system_beyond_the_largest_file_of_the_host_is_refused_by_its_size() {
        let error =
            |code| not_created(Path::new("/none/a.raw"), 17 << 40, io::Error::from_raw_os_error(code));
        let text = error(libc::EFBIG).to_string();
        assert!(text.contains("18691697672192") && text.contains("less than 16 TiB"), "{text}");
        assert!(matches!(error(libc::EFBIG), SystemError::Invalid { .. }));
        assert!(matches!(error(libc::EACCES), SystemError::File { attempt: "create", .. }));
    }
}
