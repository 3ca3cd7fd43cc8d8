//! Why something on the host did not work, what to call it in a condition, and whether trying again helps.

use std::io;
use std::path::PathBuf;

use berth_api::Reason;
use berth_qemu::guest_agent::GuestAgentError;
use berth_qemu::process::{LaunchError, ProcessError};
use berth_qemu::qmp::QmpError;

/// Why a [`System`](super::System) could not do it. Variants are named by what was attempted or what is the matter.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// The source says that it has no such thing (HTTP 404 or 410, or no such file).
    #[error("{url}: not found ({detail})")]
    ImageNotFound { url: String, detail: String },
    /// The source cannot be reached, breaks off, or answers something else than the bytes.
    #[error("cannot download {url}: {detail}")]
    Download { url: String, detail: String },
    #[error("{url} has checksum {actual}, declared is {declared}")]
    ChecksumMismatch { url: String, declared: String, actual: String },
    /// The bytes are the declared ones and not an image that may be used.
    #[error("{url} is refused: {detail}")]
    ImageRefused { url: String, detail: String },
    #[error("{url} is too large: {detail}")]
    ImageTooLarge { url: String, detail: String },
    #[error("image {sha256} is not in this host's cache")]
    ImageNotCached { sha256: String },
    #[error("image {sha256} is below volume {volume}")]
    ImageInUse { sha256: String, volume: String },

    #[error("a disk of {size} bytes is smaller than its image, which has {image} bytes")]
    SmallerThanImage { size: u64, image: u64 },
    #[error("volume {id} has {from} bytes and cannot shrink to {to}")]
    Shrink { id: String, from: u64, to: u64 },
    #[error("volume {id} has no file on this host")]
    VolumeLost { id: String },
    /// The file exists, and what it says of itself is not what berth wrote there.
    #[error("volume {id} is damaged: {detail}")]
    VolumeDamaged { id: String, detail: String },
    #[error("no space left for {what}: {needed} bytes needed, {free} free")]
    NoSpace { what: String, needed: u64, free: u64 },
    #[error("{what} {value:?} is not usable: {why}")]
    Invalid { what: &'static str, value: String, why: &'static str },

    #[error("cannot {attempt} {}", path.display())]
    File { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {attempt} {name}: {detail}")]
    Network { attempt: &'static str, name: String, detail: String },
    /// A program berth needs, besides QEMU.
    #[error("{program} is not installed: {advice}")]
    ProgramMissing { program: &'static str, advice: &'static str },
    #[error("{program} failed: {detail}")]
    Program { program: &'static str, detail: String },

    #[error("cannot start the machine")]
    Launch(#[from] LaunchError),
    #[error("cannot reach the machine's process")]
    Process(#[from] ProcessError),
    #[error("cannot talk to the machine's monitor")]
    Monitor(#[from] QmpError),
    #[error("cannot talk to the guest's agent")]
    GuestAgent(#[from] GuestAgentError),
    #[error("instance {instance} has no QEMU running")]
    NotRunning { instance: String },
    #[error("instance {instance} still runs as pid {pid}")]
    StillRunning { instance: String, pid: i32 },
}

/// What to do after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may work by itself later.
    Backoff,
    /// Somebody has to change something first.
    WaitForChange,
}

impl SystemError {
    /// What conditions, events and metrics call it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::ImageNotFound { .. } => Reason::ImageNotFound,
            Self::ChecksumMismatch { .. } => Reason::ChecksumMismatch,
            Self::ImageRefused { .. } => Reason::ImageInvalid,
            Self::ImageTooLarge { .. } => Reason::ImageTooLarge,
            Self::ImageNotCached { .. } => Reason::WaitingForImage,
            Self::SmallerThanImage { .. } => Reason::DiskSmallerThanImage,
            Self::Shrink { .. } | Self::Invalid { .. } => Reason::InvalidSpec,
            Self::VolumeLost { .. } | Self::VolumeDamaged { .. } => Reason::DiskLost,
            Self::NoSpace { .. } => Reason::NoSpace,
            Self::ProgramMissing { .. } => Reason::NotSupported,
            Self::Launch(error) => launch_reason(error),
            Self::Download { .. }
            | Self::ImageInUse { .. }
            | Self::File { .. }
            | Self::Network { .. }
            | Self::Program { .. }
            | Self::Process(_)
            | Self::Monitor(_)
            | Self::GuestAgent(_)
            | Self::NotRunning { .. }
            | Self::StillRunning { .. } => Reason::Retrying,
        }
    }

    /// Whether trying again can help. What is missing on the host or at a source may come without anybody telling
    /// us, so most of what a person must fix is tried again all the same; only what is a contradiction in the
    /// declaration itself waits.
    pub fn retry(&self) -> Retry {
        match self {
            Self::ChecksumMismatch { .. }
            | Self::ImageRefused { .. }
            | Self::ImageTooLarge { .. }
            | Self::SmallerThanImage { .. }
            | Self::Shrink { .. }
            | Self::Invalid { .. }
            | Self::Launch(LaunchError::Spec(_)) => Retry::WaitForChange,
            _ => Retry::Backoff,
        }
    }

    /// Whether a person must change something for this to end (a `Stalled` condition).
    pub fn is_stalled(&self) -> bool {
        !matches!(self.reason(), Reason::Retrying | Reason::WaitingForImage)
    }

    /// The error with all its causes in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

fn launch_reason(error: &LaunchError) -> Reason {
    match error {
        LaunchError::NoBinary { .. } => Reason::QemuMissing,
        LaunchError::Spec(_) => Reason::InvalidSpec,
        LaunchError::Exited { .. } | LaunchError::Unresponsive { .. } => Reason::QemuFailed,
        _ => Reason::Retrying,
    }
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
        assert_eq!(
            (error.reason(), error.retry(), error.is_stalled()),
            (Reason::QemuFailed, Retry::Backoff, true)
        );
    }

    #[test]
    fn only_a_contradiction_in_the_declaration_waits_for_a_change() {
        let gone = SystemError::ImageNotFound { url: "http://a/b".to_owned(), detail: "404".to_owned() };
        assert_eq!((gone.retry(), gone.is_stalled()), (Retry::Backoff, true), "it may be uploaded later");
        let small = SystemError::SmallerThanImage { size: 1, image: 2 };
        assert_eq!((small.retry(), small.is_stalled()), (Retry::WaitForChange, true));
    }
}
