//! Why a reconcile failed, the reason reported in conditions, and whether a retry helps.

use std::net::IpAddr;
use std::time::Duration;

use berth_api::vm::ACCEPT_FIRMWARE_LOSS_ANNOTATION;
use berth_api::{Readiness, Reason};
use berth_qemu::block::BlockError;

use crate::machine::MachineError;
use berth_engine::ErrorChain;
use berth_host::{RepositoryProblem, Retry, SystemError, VaultProblem};
use berth_qemu::process::LaunchError;

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The name is not valid for a Host.
    #[error(
        "{name:?} is no host name: it must be DNS labels (lower-case letters, digits and '-') joined by dots"
    )]
    HostName { name: String },
    /// Another live agent is this host.
    #[error(
        "another machine is host {host} (its agent {holder} renews the Lease {host} in berth-system): two machines \
         cannot be one host. Give this one a name of its own (--host-name, and a join string for that name), or stop \
         the other agent; one that is gone for good loses the name after 40 seconds"
    )]
    Taken { host: String, holder: String },
    /// An administrator declared the host permanently gone.
    #[error(
        "host {host} was declared gone for good (Host.spec.fenced): what runs here is nobody's any more. Stop it, \
         then let this machine join under a name of its own with another --state-dir"
    )]
    Fenced { host: String },
    /// The control plane no longer accepts the credential.
    #[error(
        "the control plane no longer accepts the credential of host {host}: it was revoked or has run out. Its VMs go \
         on running. To join again: `berth token create {host}`, then `berth host --join STRING`"
    )]
    Unauthorized { host: String },
    /// The site moved to another control plane, which holds what this host needs to join it.
    #[error("host {host} belongs to another control plane now: the site has moved")]
    Moved { host: String },
    /// The control plane is no longer the one in charge; for example, it was restored from a backup.
    #[error("this control plane does not command host {host} any more: {why}")]
    Deposed { host: String, why: String },
}

/// Interval of retries after a failure for lack of space, of a file of the host, or of an address.
pub(crate) const RETRY_SPACE_EVERY: Duration = Duration::from_secs(10);

/// The longest back-off while another program, another host or other work has a file: the end of that causes no event.
const LONGEST_BUSY: Duration = Duration::from_secs(30);

/// Delay before an object is reconciled again after a passing error.
const SOON: Duration = Duration::from_millis(200);
/// Interval at which it is seen whether the memory of another guest is saved.
const RETRY_SAVE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a machine is told again to close files that it does not need any more.
const RETRY_FILES_EVERY: Duration = Duration::from_secs(60);

/// Why one reconcile failed. Variants are named after the attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error("cannot {attempt}")]
    Api { attempt: &'static str, source: Box<kube::Error> },
    /// The control plane has just not answered: it is not asked again yet.
    #[error("the Lease of this host cannot be renewed: the control plane does not answer")]
    Unanswered,
    /// Another live agent is this host.
    #[error("another agent is this host: {holder}")]
    Taken { holder: String },
    /// Another agent was this host; whether it is alive is not known yet.
    #[error("another agent has the Lease: {holder}")]
    Waiting { holder: String },
    /// The site moved to another control plane.
    #[error("the site has moved to another control plane")]
    Moved,
    /// The control plane does not command this host.
    #[error("the control plane does not command this host: {why}")]
    NotInCharge { why: String },
    /// The object was modified by another writer since it was read.
    #[error("the object was changed meanwhile")]
    Conflict,
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The guest was asked to release the disk and has not done so yet.
    #[error("the guest still holds disk {name}")]
    StillHeld { name: String },
    /// The guest was asked to release the network card and has not done so yet.
    #[error("the guest still holds network interface {name}")]
    InterfaceHeld { name: String },
    /// The guest was asked to release a medium and has not done so yet.
    #[error("the guest has locked the tray of CD-ROM drive {name}")]
    TrayLocked { name: String },
    /// A machine reads its disk through files that are not needed any more: its data is the same.
    #[error("the files of deleted snapshots below volume {volume} stay open in its machine")]
    FormerFilesKept { volume: String, source: Box<Error> },
    /// Without these addresses the firewall would let guests reach hosts.
    #[error(
        "the addresses of the site's hosts are not known yet (ConfigMap berth-host-addresses in berth-system)"
    )]
    NoHostAddresses,
    /// One of the VM's networks is not created on this host; the next plan reports that in the VM's status.
    #[error("{why}")]
    NetworkRefused { why: String },
    /// One of the VM's networks could not be made on this host.
    #[error("Network {network} is not served on this host: {detail}")]
    NetworkFailed { network: String, reason: Reason, detail: String },
    /// Another machine of a bridged network has the address of an interface.
    #[error(
        "{mac} answers for {address}, the address of network interface {interface}, on its Network: free the address on that machine, \
         declare another one, or take it out of the Network's range and create the VM again"
    )]
    AddressConflict { interface: String, address: IpAddr, mac: String },
    /// The former host of a VM does not give its firmware state to this one.
    #[error(
        "the firmware variables, and the TPM if it has one, of the VM are on its former host {host}: {detail}. To start it without them: \
         kubectl annotate --overwrite vm {vm} {annotation}={epoch}",
        annotation = ACCEPT_FIRMWARE_LOSS_ANNOTATION
    )]
    FormerHost { host: String, detail: String, vm: String, epoch: i64 },
    #[error(
        "the memory of the TPM of the VM, with its keys, is lost: {detail}. To start it with an empty TPM, for which the guest may ask for \
         recovery keys: kubectl annotate --overwrite vm {vm} {annotation}={epoch}",
        annotation = ACCEPT_FIRMWARE_LOSS_ANNOTATION
    )]
    FirmwareLost { detail: String, vm: String, epoch: i64 },
    /// A snapshot with memory is of a guest that runs.
    #[error("the guest does not run: its memory is saved once it does")]
    NoRunningGuest,
    /// The guest has something that is not saved with its memory.
    #[error("the guest's memory cannot be saved: {why}")]
    MemoryRefused { why: String },
    #[error(
        "the guest's memory was not saved, and the guest goes on: {why}. Delete the VMSnapshot, and create another"
    )]
    MemoryNotSaved { why: String },
    #[error("the record of the control plane that this host obeys cannot be read: {detail}")]
    SiteRecord { detail: String },
    #[error("the instance's journal cannot be read: {detail}")]
    Journal { detail: String },
}

impl Error {
    pub(crate) fn api(attempt: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| match &source {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            _ => Self::Api { attempt, source: Box::new(source) },
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(s) if s.code == 404))
    }

    /// Whether the control plane rejected our credential (HTTP 401).
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(s) if s.code == 401))
    }

    /// Whether the control plane did not answer, or is not able to (HTTP 5xx).
    pub(crate) fn is_unanswered(&self) -> bool {
        let source = match self {
            Self::Unanswered => return true,
            Self::Api { source, .. } => source,
            _ => return false,
        };
        match &**source {
            kube::Error::Api(status) => status.code >= 500,
            kube::Error::Service(_) | kube::Error::HyperError(_) => true,
            _ => false,
        }
    }

    /// Returns the reason for conditions and events.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::System(error) | Self::Machine(MachineError::System(error)) => reason_of(error),
            Self::Machine(MachineError::Block(BlockError::Spec(_))) | Self::NetworkRefused { .. } => {
                Reason::InvalidSpec
            }
            Self::Machine(MachineError::Block(BlockError::NotOneMoment { .. })) => {
                Reason::SnapshotInterrupted
            }
            Self::NetworkFailed { reason, .. } => *reason,
            Self::AddressConflict { .. } => Reason::AddressConflict,
            Self::FormerHost { .. } => Reason::WaitingForFormerHost,
            Self::FirmwareLost { .. } => Reason::FirmwareStateLost,
            Self::NoRunningGuest => Reason::WaitingForVM,
            Self::MemoryRefused { .. } => Reason::NotSupported,
            Self::MemoryNotSaved { .. } => Reason::SnapshotFailed,
            _ => Reason::Retrying,
        }
    }

    /// Whether the failure is a lack of space on a disk, this host's or the control plane's (HTTP 507). Freeing space
    /// causes no event, so such a failure is retried at a short fixed interval without back-off.
    pub(crate) fn is_no_space(&self) -> bool {
        let is_full = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 507);
        match self {
            Self::Api { source, .. } => is_full(source),
            other => other.reason() == Reason::NoSpace,
        }
    }

    /// Whether a file or a pool of the host, another host, an address of a network or a guest that runs is waited for: that causes no event for the object
    /// either.
    pub(crate) fn is_unannounced(&self) -> bool {
        matches!(
            self.reason(),
            Reason::WaitingForFile
                | Reason::PoolAway
                | Reason::AddressConflict
                | Reason::WaitingForVM
                | Reason::WaitingForFormerHost
        )
    }

    /// Returns whether to back off or to wait for a change.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::System(error) | Self::Machine(MachineError::System(error)) => error.retry(),
            Self::Machine(MachineError::Block(BlockError::Spec(_) | BlockError::NotOneMoment { .. })) => {
                Retry::WaitForChange
            }
            // Each attempt pauses the guest.
            Self::MemoryNotSaved { .. } => Retry::WaitForChange,
            _ => Retry::Backoff,
        }
    }

    /// Returns the longest back-off after it, if that is shorter than that of others: nothing announces that the obstacle is gone.
    pub(crate) fn longest_back_off(&self) -> Option<Duration> {
        // A QEMU that answers again is announced to its VM only, and its guest may be paused for the switch of a disk.
        let is_busy = matches!(
            self,
            Self::System(SystemError::VolumeBusy { .. })
                | Self::Machine(MachineError::System(SystemError::VolumeBusy { .. }) | MachineError::Silent)
        );
        (is_busy || self.is_unannounced() || self.is_transient()).then_some(LONGEST_BUSY)
    }

    /// Whether the error concerns only the moment and not the object: it is retried soon and not shown in the status.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Conflict
                | Self::StillHeld { .. }
                | Self::InterfaceHeld { .. }
                | Self::TrayLocked { .. }
                | Self::FormerFilesKept { .. }
                | Self::Machine(
                    MachineError::Illegal(_)
                        | MachineError::Gone
                        | MachineError::SaveInProgress
                        | MachineError::SavedJustNow { .. }
                        | MachineError::ChangedMeanwhile
                        | MachineError::MirrorNotRecorded { .. }
                        | MachineError::ReservationBlocked { .. }
                )
        )
    }

    /// Returns when to try again after a transient error.
    pub(crate) fn wait(&self) -> Duration {
        match self {
            Self::FormerFilesKept { .. } => RETRY_FILES_EVERY,
            Self::Machine(MachineError::SaveInProgress) => RETRY_SAVE_EVERY,
            Self::Machine(MachineError::SavedJustNow { left }) => (*left).max(SOON),
            _ => SOON,
        }
    }

    /// Returns the readiness of an object with this error.
    pub(crate) fn readiness(&self) -> Readiness {
        let stalled = match self {
            Self::System(error) | Self::Machine(MachineError::System(error)) => is_stalled(error),
            Self::NetworkFailed { reason, .. } => needs_a_person(*reason),
            Self::Machine(MachineError::Block(BlockError::Spec(_) | BlockError::NotOneMoment { .. }))
            | Self::AddressConflict { .. }
            | Self::FirmwareLost { .. }
            | Self::MemoryRefused { .. }
            | Self::MemoryNotSaved { .. } => true,
            _ => false,
        };
        if stalled {
            Readiness::Stalled(self.reason(), self.chain())
        } else {
            Readiness::Reconciling(self.reason(), self.chain())
        }
    }

    /// Returns the error with all its sources in one line.
    pub(crate) fn chain(&self) -> String {
        ErrorChain(self).to_string()
    }
}

/// Returns the reason that a failure on the host has in conditions and events.
pub(crate) fn reason_of(error: &SystemError) -> Reason {
    match error {
        SystemError::ImageNotFound { .. } => Reason::ImageNotFound,
        SystemError::ChecksumMismatch { .. } => Reason::ChecksumMismatch,
        SystemError::ImageNotAllowed { .. } => Reason::ImageNotAllowed,
        SystemError::ImageRefused { .. } => Reason::ImageInvalid,
        SystemError::ImageTooLarge { .. } => Reason::ImageTooLarge,
        SystemError::ImageNotCached { .. } => Reason::WaitingForImage,
        SystemError::SmallerThanImage { .. } => Reason::DiskSmallerThanImage,
        SystemError::FileAwaited { .. } => Reason::WaitingForFile,
        SystemError::FileRefused { .. } => Reason::FileRefused,
        SystemError::Shrink { .. } | SystemError::Invalid { .. } => Reason::InvalidSpec,
        SystemError::VolumeLost { .. } | SystemError::VolumeDamaged { .. } => Reason::DiskLost,
        SystemError::PoolAway { .. } => Reason::PoolAway,
        SystemError::SnapshotLost { .. } => Reason::SnapshotLost,
        SystemError::KeyMissing { .. } => Reason::WaitingForKey,
        SystemError::TooManySnapshots { .. } => Reason::TooManySnapshots,
        SystemError::NotOneMoment { .. } => Reason::SnapshotInterrupted,
        SystemError::Repository { problem, .. } => match problem {
            RepositoryProblem::WrongPassword => Reason::WrongPassword,
            RepositoryProblem::Unreachable => Reason::RepositoryUnreachable,
            RepositoryProblem::Denied => Reason::RepositoryAccessDenied,
            RepositoryProblem::NoRepository => Reason::NoRepository,
            RepositoryProblem::Replaced => Reason::RepositoryReplaced,
        },
        SystemError::Vault { problem, .. } => match problem {
            VaultProblem::Unreachable => Reason::VaultUnreachable,
            VaultProblem::Denied => Reason::VaultAccessDenied,
            VaultProblem::NoKey => Reason::VaultKeyMissing,
            VaultProblem::Refused => Reason::WrongKey,
        },
        SystemError::NetworkServer { source, .. } => reason_of(source),
        SystemError::BackupLost { .. } => Reason::BackupLost,
        SystemError::BackupFolder { .. } => Reason::BackupFolderUnavailable,
        SystemError::NoSpace { .. } => Reason::NoSpace,
        SystemError::ProgramMissing { .. } => Reason::NotSupported,
        SystemError::NoDedicatedCpus { .. } => Reason::Unschedulable,
        SystemError::Device { .. }
        | SystemError::UsbDevice { .. }
        | SystemError::Vgpu { .. }
        | SystemError::BlockDevice { .. } => Reason::DeviceUnavailable,
        SystemError::Share { .. } => Reason::ShareUnavailable,
        SystemError::Launch(error) => match error {
            LaunchError::NoBinary { .. } => Reason::QemuMissing,
            LaunchError::Spec(_) => Reason::InvalidSpec,
            LaunchError::LockMemory { .. } => Reason::DeviceUnavailable,
            LaunchError::HugePages { .. } => Reason::Unschedulable,
            LaunchError::Exited { .. } | LaunchError::Unresponsive { .. } => Reason::QemuFailed,
            _ => Reason::Retrying,
        },
        SystemError::Download { .. }
        | SystemError::ImageNotMade { .. }
        | SystemError::Upload { .. }
        | SystemError::ImageInUse { .. }
        | SystemError::VolumeBusy { .. }
        | SystemError::File { .. }
        | SystemError::Network { .. }
        | SystemError::Program { .. }
        | SystemError::Process(_)
        | SystemError::Monitor(_)
        | SystemError::GuestAgent(_)
        | SystemError::Lend(_)
        | SystemError::LendKey(_)
        | SystemError::NotRunning { .. }
        | SystemError::StillRunning { .. } => Reason::Retrying,
    }
}

/// Whether a person has to intervene (a `Stalled` condition).
pub(crate) fn is_stalled(error: &SystemError) -> bool {
    needs_a_person(reason_of(error))
}

fn needs_a_person(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::Retrying
            | Reason::WaitingForImage
            | Reason::WaitingForFile
            | Reason::WaitingForKey
            | Reason::RepositoryUnreachable
            | Reason::VaultUnreachable
            | Reason::Unschedulable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qemu_that_gave_up_stalls_with_its_own_words() {
        let launch =
            LaunchError::Exited { status: "exit status: 1".into(), stderr: "no such machine".into() };
        let error = Error::from(SystemError::from(launch));
        let Readiness::Stalled(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!(reason, Reason::QemuFailed);
        assert!(message.ends_with("no such machine"), "{message}");
        assert_eq!(error.retry(), Retry::Backoff);
    }

    #[test]
    fn a_host_without_free_huge_pages_is_waited_for() {
        let launch = LaunchError::HugePages { page: 2 << 20, stderr: "Cannot allocate memory".into() };
        let error = Error::from(SystemError::from(launch));
        let Readiness::Reconciling(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!(reason, Reason::Unschedulable);
        assert!(message.contains("too few free huge pages of 2Mi"), "{message}");
        assert_eq!(error.retry(), Retry::Backoff);
    }

    #[test]
    fn a_full_disk_of_the_control_plane_is_waited_for_and_another_error_is_not() {
        let refused = |code| {
            let status = kube::core::Status { code, ..Default::default() };
            Error::api("write")(kube::Error::Api(status.into()))
        };
        assert!(refused(507).is_no_space());
        assert!(!refused(500).is_no_space());
    }

    #[test]
    fn a_control_plane_that_fails_has_not_answered_and_one_that_refuses_has() {
        let answered = |code| {
            let status = kube::core::Status { code, ..Default::default() };
            Error::api("read")(kube::Error::Api(status.into()))
        };
        assert!([500, 503, 504].into_iter().all(|code| answered(code).is_unanswered()));
        assert!(![401, 403, 404, 429].into_iter().any(|code| answered(code).is_unanswered()));
        let broken = Error::api("read")(kube::Error::Service("connection refused".into()));
        assert!(broken.is_unanswered());
        assert!(!Error::NoRunningGuest.is_unanswered());
    }

    #[test]
    fn an_address_that_another_machine_has_stalls_and_is_tried_at_a_fixed_interval() {
        let interface = "nic0".to_owned();
        let address = IpAddr::from([192, 0, 2, 50]);
        let error = Error::AddressConflict { interface, address, mac: "02:00:00:00:00:09".to_owned() };
        let Readiness::Stalled(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!((reason, error.retry()), (Reason::AddressConflict, Retry::Backoff));
        assert!(error.is_unannounced() && !error.is_transient());
        assert!(message.starts_with("02:00:00:00:00:09 answers for 192.0.2.50"), "{message}");
    }

    #[test]
    fn memory_that_was_not_saved_is_not_tried_again_by_itself_and_a_guest_that_does_not_run_is_waited_for() {
        let failed = Error::MemoryNotSaved { why: "no".to_owned() };
        assert_eq!((failed.reason(), failed.retry()), (Reason::SnapshotFailed, Retry::WaitForChange));
        assert!(matches!(failed.readiness(), Readiness::Stalled(..)));
        let refused = Error::MemoryRefused { why: "no".to_owned() };
        assert!(matches!(refused.readiness(), Readiness::Stalled(Reason::NotSupported, _)));
        let off = Error::NoRunningGuest;
        assert!(matches!(off.readiness(), Readiness::Reconciling(Reason::WaitingForVM, _)));
        assert!(off.is_unannounced() && !off.is_transient(), "it is looked for at a fixed interval");
        let left = Duration::from_secs(40);
        let again = Error::from(MachineError::SavedJustNow { left });
        assert_eq!((again.is_transient(), again.wait()), (true, left));
        let busy = Error::from(MachineError::SaveInProgress);
        assert_eq!((busy.is_transient(), busy.wait()), (true, RETRY_SAVE_EVERY));
    }

    #[test]
    fn a_file_that_other_work_has_is_looked_at_again_soon_after_that_has_ended() {
        let busy =
            SystemError::VolumeBusy { id: "v-1".to_owned(), detail: "a QEMU of another host has it open" };
        assert_eq!(Error::from(busy).longest_back_off(), Some(LONGEST_BUSY));
        let away = SystemError::PoolAway { pool: "fast".to_owned(), detail: "not mounted".to_owned() };
        assert_eq!(Error::from(away).longest_back_off(), Some(LONGEST_BUSY));
        assert_eq!(Error::Conflict.longest_back_off(), Some(LONGEST_BUSY));
        assert_eq!(Error::from(MachineError::Silent).longest_back_off(), Some(LONGEST_BUSY));
        let broken = SystemError::Program { program: "nft", detail: "it ended".to_owned() };
        assert_eq!(Error::from(broken).longest_back_off(), None);
    }

    #[test]
    fn a_conflict_passes_and_is_no_state_of_the_object() {
        let status = kube::core::Status { code: 409, ..Default::default() };
        let error = Error::api("write")(kube::Error::Api(status.into()));
        assert!(error.is_transient());
    }

    #[test]
    fn a_program_that_is_missing_stalls_with_its_package_and_one_that_fails_is_tried_again() {
        let missing = SystemError::ProgramMissing { program: "dnsmasq", advice: "apt install dnsmasq-base" };
        let error = Error::from(missing);
        let Readiness::Stalled(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!((reason, error.retry()), (Reason::NotSupported, Retry::Backoff));
        assert_eq!(message, "dnsmasq is not installed: apt install dnsmasq-base");
        let failed =
            SystemError::Program { program: "nft", detail: "it ended with exit status: 1".to_owned() };
        let error = Error::from(failed);
        let Readiness::Reconciling(reason, message) = error.readiness() else { panic!("{error:?}") };
        assert_eq!((reason, error.retry()), (Reason::Retrying, Retry::Backoff));
        assert_eq!(message, "nft failed: it ended with exit status: 1");
    }

    #[test]
    fn a_key_that_is_not_there_yet_is_waited_for_and_is_no_end() {
        let missing = SystemError::KeyMissing { id: "data".to_owned(), wrapped_by: "secure".to_owned() };
        assert_eq!((reason_of(&missing), is_stalled(&missing)), (Reason::WaitingForKey, false));
    }

    #[test]
    fn a_pool_that_is_away_is_no_lost_disk_and_is_looked_for_at_a_fixed_interval() {
        let away = SystemError::PoolAway { pool: "fast".to_owned(), detail: "not mounted".to_owned() };
        assert_eq!((reason_of(&away), is_stalled(&away)), (Reason::PoolAway, true));
        assert_eq!(away.to_string(), "storage pool fast is away: not mounted");
        let error = Error::from(away);
        assert!(error.is_unannounced() && error.retry() == Retry::Backoff);
    }

    #[test]
    fn a_missing_image_or_too_small_a_disk_stalls_and_a_broken_download_does_not() {
        let gone = SystemError::ImageNotFound { url: "http://a/b".to_owned(), detail: "404".to_owned() };
        let small = SystemError::SmallerThanImage { size: 1, image: 2 };
        let broken = SystemError::Download { url: "http://a/b".to_owned(), detail: "cut off".to_owned() };
        assert_eq!([&gone, &small, &broken].map(is_stalled), [true, true, false]);
        let without_qemu = LaunchError::NoBinary { binary: "qemu-system-x86_64".into() };
        assert_eq!(reason_of(&without_qemu.into()), Reason::QemuMissing);
        assert_eq!(
            reason_of(&SystemError::ImageNotCached { digest: "d".to_owned() }),
            Reason::WaitingForImage
        );
    }
}
