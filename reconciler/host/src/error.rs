//! Errors of operations on the host, and whether a retry helps.

use std::io;
use std::path::PathBuf;

use berth_engine::ErrorChain;
use berth_qemu::block::BlockError;
use berth_qemu::guest_agent::GuestAgentError;
use berth_qemu::hypervisor::LendError;
use berth_qemu::process::{LaunchError, ProcessError};
use berth_qemu::qmp::QmpError;

/// Why a [`System`](super::System) operation failed. Variants are named by the attempt or by the problem.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// The source does not have it (HTTP 404 or 410, or no such file).
    #[error("{url}: not found ({detail})")]
    ImageNotFound { url: String, detail: String },
    /// The source is unreachable, breaks off, or returns something other than the bytes.
    #[error("cannot download {url}: {detail}")]
    Download { url: String, detail: String },
    /// The program that makes it failed, or was not in time.
    #[error("no image can be made from {from}: {detail}")]
    ImageNotMade { from: String, detail: String },
    /// The bytes of an upload do not continue those that the host has.
    #[error("the upload cannot continue: {detail}")]
    Upload { detail: String },
    /// The actual checksum is not included: it would confirm guesses about bytes that only the host can read.
    #[error("{url} has another checksum than the declared {declared}")]
    ChecksumMismatch { url: String, declared: String },
    /// The host's administrator does not allow images from this source.
    #[error("{url} is not allowed: {why}")]
    ImageNotAllowed { url: String, why: &'static str },
    /// The bytes match the checksum but are not a usable image.
    #[error("{url} is refused: {detail}")]
    ImageRefused { url: String, detail: String },
    #[error("{url} is too large: {detail}")]
    ImageTooLarge { url: String, detail: String },
    #[error("image {digest} is not in this host's cache")]
    ImageNotCached { digest: String },
    #[error("image {digest} is below volume {volume}")]
    ImageInUse { digest: String, volume: String },

    #[error("a disk of {size} bytes is smaller than its image, which has {image} bytes")]
    SmallerThanImage { size: u64, image: u64 },
    /// A file of the host that a volume is to be made of is not there yet, or another program has it open.
    #[error("{} is waited for: {why}", path.display())]
    FileAwaited { path: PathBuf, why: &'static str },
    /// A file of the host cannot become a volume.
    #[error("{} is not taken over: {why}", path.display())]
    FileRefused { path: PathBuf, why: String },
    #[error("volume {id} has {from} bytes and cannot shrink to {to}")]
    Shrink { id: String, from: u64, to: u64 },
    #[error("volume {id} has no file on this host")]
    VolumeLost { id: String },
    /// The volume's file, header or note is not as berth wrote it.
    #[error("volume {id} is damaged: {detail}")]
    VolumeDamaged { id: String, detail: String },
    /// The host does not have the key of an encrypted volume or snapshot in memory.
    #[error(
        "{id} is encrypted, and its key, which KeyClass {wrapped_by} protects, is not known to this host (yet)"
    )]
    KeyMissing { id: String, wrapped_by: String },
    /// The folder of a storage pool cannot be used now. Nothing in it is lost by that.
    #[error("storage pool {pool} is away: {detail}")]
    PoolAway { pool: String, detail: String },
    #[error("snapshot {id} is not on this host")]
    SnapshotLost { id: String },
    #[error(
        "volume {id} is on {most} snapshots, the most that are supported: delete some of them. A deleted one counts until its \
         file is merged with the next one's, or while a copy is based on it"
    )]
    TooManySnapshots { id: String, most: usize },
    #[error(
        "volume {id} was written after its snapshot had been begun, and before those of other disks were: they would be of \
         different moments"
    )]
    NotOneMoment { id: String },
    #[error("volume {id} is busy: {detail}")]
    VolumeBusy { id: String, detail: &'static str },
    /// A repository of backups.
    #[error("{repository}: {detail}")]
    Repository { repository: String, problem: RepositoryProblem, detail: String },
    /// The repository does not have it, or not all of it as it was written.
    #[error("backup {backup} in {repository}: {detail}")]
    BackupLost { backup: String, repository: String, detail: String },
    /// A Vault that has the key of a class.
    #[error("{vault}: {detail}")]
    Vault { vault: String, problem: VaultProblem, detail: String },
    /// A folder for backups.
    #[error("folder for backups {name}: {detail}")]
    BackupFolder { name: String, detail: String },
    /// `needed` is 0 if it is not known.
    #[error("no space left for {what}: {}", space(*needed, *free))]
    NoSpace { what: String, needed: u64, free: u64 },
    #[error("{what} {value:?} is not usable: {why}")]
    Invalid { what: &'static str, value: String, why: &'static str },

    #[error("cannot {attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {attempt} {name}: {detail}")]
    Network { attempt: &'static str, name: String, detail: String },
    /// The DHCP and DNS server of a network does not run. The network's bridge, tunnel and routes are as they should be.
    #[error("cannot start the DHCP and DNS server on {bridge}")]
    NetworkServer { bridge: String, source: Box<SystemError> },
    /// A program that berth needs, besides QEMU.
    #[error("{program} is not installed: {advice}")]
    ProgramMissing { program: &'static str, advice: &'static str },
    #[error("{program} failed: {detail}")]
    Program { program: &'static str, detail: String },

    /// A PCI device that a machine is to have.
    #[error("PCI device {address}: {detail}")]
    Device { address: String, detail: String },
    /// A USB device that a machine is to have.
    #[error("USB device {port}: {detail}")]
    UsbDevice { port: String, detail: String },
    /// A vGPU that a machine is to have.
    #[error("vGPU {mdev_type} of {parent}: {detail}")]
    Vgpu { parent: String, mdev_type: String, detail: String },
    /// A block device of the host that a disk is to be.
    #[error("block device {name}: {detail}")]
    BlockDevice { name: String, detail: String },
    /// A folder of the host that a machine is to have.
    #[error("share {name}: {detail}")]
    Share { name: String, detail: String },
    #[error("the machine needs {needed} dedicated CPUs and this host has {free} free")]
    NoDedicatedCpus { needed: usize, free: usize },
    #[error("cannot start the machine")]
    Launch(#[from] LaunchError),
    #[error("cannot reach the machine's process")]
    Process(#[from] ProcessError),
    #[error("cannot talk to the machine's monitor")]
    Monitor(#[from] QmpError),
    #[error("cannot talk to the guest's agent")]
    GuestAgent(#[from] GuestAgentError),
    #[error("cannot give the machine the file of its saved state")]
    Lend(#[from] LendError),
    #[error("cannot give the machine the key of a disk")]
    LendKey(#[source] BlockError),
    #[error("instance {instance} has no QEMU running")]
    NotRunning { instance: String },
    #[error("instance {instance} still runs as pid {pid}")]
    StillRunning { instance: String, pid: i32 },
}

/// The problem with a repository of backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryProblem {
    WrongPassword,
    /// Its server or folder does not answer, or answers with an error.
    Unreachable,
    /// Its server refuses the credentials, or what they are used for.
    Denied,
    /// There is something else, or nothing where there was one.
    NoRepository,
    /// It is another one than before.
    Replaced,
}

/// The problem with a Vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaultProblem {
    /// It does not answer, is sealed, or answers with an error that may pass.
    Unreachable,
    /// It refuses the token or the login, or does not permit the operation.
    Denied,
    /// It has no such engine or key.
    NoKey,
    /// It refuses the text: the key that encrypted it is another one.
    Refused,
}

/// How to react to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// A retry may succeed.
    Backoff,
    /// An object has to change first.
    WaitForChange,
}

impl SystemError {
    /// Whether a retry can help. A missing part of the host or of a source may appear without a notification, so most
    /// errors that a person has to fix are retried as well; only contradictions within the declaration wait for a
    /// change.
    pub fn retry(&self) -> Retry {
        match self {
            Self::ChecksumMismatch { .. }
            | Self::ImageRefused { .. }
            | Self::ImageTooLarge { .. }
            | Self::SmallerThanImage { .. }
            | Self::Shrink { .. }
            | Self::TooManySnapshots { .. }
            | Self::NotOneMoment { .. }
            | Self::Invalid { .. }
            | Self::Launch(LaunchError::Spec(_)) => Retry::WaitForChange,
            Self::NetworkServer { source, .. } => source.retry(),
            _ => Retry::Backoff,
        }
    }

    /// Returns the error with all its causes in one line.
    pub fn chain(&self) -> String {
        ErrorChain(self).to_string()
    }

    /// The name of the variant.
    #[cfg(test)]
    pub(crate) fn variant(&self) -> String {
        let text = format!("{self:?}");
        text.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_owned()
    }
}

fn space(needed: u64, free: u64) -> String {
    if needed == 0 { format!("{free} bytes are free") } else { format!("{needed} bytes needed, {free} free") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_qemu_that_gave_up_are_in_the_message() {
        let error = SystemError::from(LaunchError::Exited {
            status: "exit status: 1".to_owned(),
            stderr: "qemu: unsupported machine type".to_owned(),
        });
        assert!(error.chain().ends_with("qemu: unsupported machine type"), "{}", error.chain());
        assert_eq!(error.retry(), Retry::Backoff);
    }

    #[test]
    fn only_a_contradiction_in_the_declaration_waits_for_a_change() {
        let gone = SystemError::ImageNotFound { url: "http://a/b".to_owned(), detail: "404".to_owned() };
        assert_eq!(gone.retry(), Retry::Backoff, "it may be uploaded later");
        let small = SystemError::SmallerThanImage { size: 1, image: 2 };
        assert_eq!(small.retry(), Retry::WaitForChange);
    }
}
