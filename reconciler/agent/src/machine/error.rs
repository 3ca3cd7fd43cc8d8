//! Why a request to a machine failed.

use std::time::Duration;

use berth_qemu::block::BlockError;
use berth_qemu::nics::NicError;
use berth_qemu::qmp::QmpError;

use super::legal::IllegalAction;
use berth_engine::ErrorChain;
use berth_host::SystemError;

/// Why a request to a machine failed. Variants are named after the attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error("cannot change the machine's disks")]
    Block(#[from] BlockError),
    #[error("cannot change the machine's network cards")]
    Nic(#[from] NicError),
    #[error("cannot drive the machine")]
    Monitor(#[from] QmpError),
    #[error(transparent)]
    Illegal(#[from] IllegalAction),
    #[error("the machine is not there any more")]
    Gone,
    /// It did not when it was last asked: nothing else is asked of it.
    #[error("QEMU does not answer")]
    Silent,
    /// One at a time: each has the disk of the host for itself.
    #[error("the memory of another guest is being saved for a snapshot")]
    SaveInProgress,
    /// A guest is not paused again at once after a save that failed.
    #[error("the guest was paused a moment ago, and its memory was not saved")]
    SavedJustNow { left: Duration },
    /// Another program, or a step that was planned before the save began.
    #[error("the devices of the machine were changed while its memory was saved")]
    ChangedMeanwhile,
    /// Which file has the data of the disk is not recorded yet.
    #[error("disk {id} has just been switched to its file in another pool, which is being recorded")]
    MirrorNotRecorded { id: String },
    /// The users of the volume are being determined at this moment.
    #[error("volume {volume} cannot be reserved while its users are being determined")]
    ReservationBlocked { volume: String },
}

impl MachineError {
    /// Whether QEMU did not answer in time; it may be about to.
    pub(crate) fn is_timeout(&self) -> bool {
        let error = match self {
            Self::Monitor(error) | Self::Block(BlockError::Qmp(error)) | Self::Nic(NicError::Qmp(error)) => {
                error
            }
            Self::Silent => return true,
            _ => return false,
        };
        matches!(error, QmpError::Timeout { .. })
    }

    /// Returns the error with all its sources in one line.
    pub(super) fn chain(&self) -> String {
        ErrorChain(self).to_string()
    }
}
