//! The requests that a machine's driver takes, as data.

use berth_qemu::balloon::Balloon;
use berth_qemu::block::{DiskUse, ImageSnapshot, IoLimits, Unplugged};
use berth_qemu::cdrom::Changed;
use berth_qemu::machine::{DiskSpec, Medium, NicSpec};
use tokio::sync::oneshot;

use super::MachineState;
use super::error::MachineError;
use super::live_command::LiveCommand;
use super::sleep_command::SleepCommand;

/// A request to the driver.
#[derive(Debug)]
pub(super) enum Command {
    ReadState(oneshot::Sender<Result<MachineState, MachineError>>),
    Start(Reply),
    Pause(Reply),
    Save(u64, Reply),
    CancelSave(Reply),
    Load(usize, Reply),
    PressPowerButton(Reply),
    Reset(Reply),
    InjectNmi(Reply),
    Quit(Reply),
    Plug(Box<DiskSpec>, Reply),
    Unplug(String, oneshot::Sender<Result<Unplugged, MachineError>>),
    PlugNic(Box<NicSpec>, Reply),
    UnplugNic(String, oneshot::Sender<Result<Unplugged, MachineError>>),
    SetLink {
        nic: String,
        up: bool,
        reply: Reply,
    },
    AssumeLinksUp(Reply),
    Resize {
        id: String,
        bytes: u64,
        reply: Reply,
    },
    /// Whether something was done just now.
    SnapshotDisks {
        overlays: Vec<DiskSpec>,
        images: Vec<ImageSnapshot>,
        reply: oneshot::Sender<Result<bool, MachineError>>,
    },
    ShortenChain(Box<DiskSpec>, Reply),
    Mirror(MirrorRequest, oneshot::Sender<Result<bool, MachineError>>),
    SetLimits {
        id: String,
        limits: IoLimits,
        reply: Reply,
    },
    ChangeMedium {
        slot: u8,
        medium: Option<Medium>,
        reply: oneshot::Sender<Result<Changed, MachineError>>,
    },
    CloseTray(u8, Reply),
    PlugCpus(usize, Reply),
    RequestMemory(u64, Reply),
    ReadDiskUse(oneshot::Sender<Result<Vec<DiskUse>, MachineError>>),
    ReadBalloon(oneshot::Sender<Result<Balloon, MachineError>>),
    /// The bytes that are in the balloon.
    ReadBallooned(oneshot::Sender<Result<u64, MachineError>>),
    SetBalloon(u64, Reply),
    CheckAnswer,
    /// Whether a process in the guest has the guest agent's port open.
    GuestListens(oneshot::Sender<Result<bool, MachineError>>),
    Live(LiveCommand),
    Sleep(SleepCommand),
}

impl Command {
    /// Whether it is for a QEMU that does not answer for a while: one that sends, saves or loads a guest, or that is asked whether it answers.
    pub(super) fn is_patient(&self) -> bool {
        matches!(self, Self::CheckAnswer | Self::Live(_) | Self::CancelSave(_) | Self::Load(..))
    }
}

/// A request about the mirror of a disk, which is named by its id.
#[derive(Debug)]
pub(super) enum MirrorRequest {
    Begin(Box<DiskSpec>),
    Switch(String),
    End(String),
    Cancel(String),
}

pub(super) type Reply = oneshot::Sender<Result<(), MachineError>>;
