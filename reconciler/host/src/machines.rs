//! Machines: QEMU processes with their files and journals.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use berth_qemu::console::ConsoleStream;
use berth_qemu::efi_variables::SecureBootKeys;
use berth_qemu::guest_agent::GuestAgent;
use berth_qemu::hypervisor::{CpuTime, Limits, ProcessIdentity, ProcessState};
use berth_qemu::machine::{DiskSpec, MachineSpec, Medium, NicSpec, PciDeviceSpec, UsbDeviceSpec, VgpuSpec};
use berth_qemu::nics::LentTap;
use berth_qemu::qmp::{Events, Qmp};
use jiff::Timestamp;
use serde_json::Value;

use crate::{DedicatedCpus, DedicatedRequest, FirmwareCopy, MachineUse, NewScratch, Result};

/// Devices of a host for a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpecs {
    pub pci: Vec<PciDeviceSpec>,
    pub usb: Vec<UsbDeviceSpec>,
    pub vgpus: Vec<VgpuSpec>,
}

impl DeviceSpecs {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pci.is_empty() && self.usb.is_empty() && self.vgpus.is_empty()
    }
}

/// The machines of a host.
#[async_trait]
pub trait Machines: Send + Sync + fmt::Debug + 'static {
    /// Starts the machine's QEMU with its CPUs stopped: the caller records the process and then sends `cont`. Returns
    /// the existing process if this instance is already running.
    ///
    /// *Assumptions*: disks, taps and the instance's journal exist.
    async fn launch(&self, request: &LaunchRequest) -> Result<ProcessFacts>;

    /// Reports that the machine is running; `just_now` is true if it has just started. From then on it gets a normal
    /// share of CPU time; a machine that has just started first yields to machines that are still being launched.
    async fn mark_started(&self, _instance: &str, _just_now: bool) {}

    /// Reads the CPU time that the machine may use and gets, see [`Hypervisor::cpu_time`].
    ///
    /// [`Hypervisor::cpu_time`]: berth_qemu::hypervisor::Hypervisor::cpu_time
    async fn cpu_time(&self, instance: &str) -> Result<CpuTime>;

    /// Changes the CPU time of a running machine.
    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<()>;

    /// Returns how often the kernel's OOM killer has ended a process of the machine that was launched last, see [`Hypervisor::oom_kills`].
    ///
    /// [`Hypervisor::oom_kills`]: berth_qemu::hypervisor::Hypervisor::oom_kills
    async fn oom_kills(&self, instance: &str) -> Result<u64>;

    /// Has the kernel's OOM killer prefer this process, see [`Hypervisor::set_oom_preference`].
    ///
    /// [`Hypervisor::set_oom_preference`]: berth_qemu::hypervisor::Hypervisor::set_oom_preference
    async fn set_oom_preference(&self, process: &ProcessIdentity, preference: u16) -> Result<()>;

    /// Returns the instance's QEMU if it is alive.
    async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>>;

    /// Reads the use of the host by this process and by these taps of the instance. None: it has ended.
    async fn machine_use(
        &self,
        instance: &str,
        process: &ProcessIdentity,
        taps: &[String],
    ) -> Result<Option<MachineUse>>;

    /// Reads the state of this process. None: it has ended.
    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>>;

    /// Reads how the host runs this process, which is alive.
    async fn process_details(&self, _process: &ProcessIdentity) -> Result<ProcessDetails> {
        Ok(ProcessDetails::default())
    }

    /// Waits until this process has ended. Cancel safe.
    async fn exited(&self, process: &ProcessIdentity) -> Result<()>;

    /// Connects to the machine's main monitor. One connection at a time: a second one waits until the first is closed.
    async fn connect(&self, instance: &str) -> Result<(Qmp, Events)>;

    /// Opens the channel to the guest agent. Succeeds even if no agent listens in the guest.
    async fn guest_agent(&self, instance: &str) -> Result<GuestAgent>;

    /// Terminates the instance's QEMU: SIGTERM, then SIGKILL after `grace`. Returns when it has ended.
    async fn kill(&self, instance: &str, grace: Duration) -> Result<()>;

    /// Removes the temporary disk of an instance, unless its QEMU is alive or it has a saved state. [`Machines::kill`] does it too.
    async fn remove_scratch(&self, instance: &str) -> Result<()>;

    /// Removes all files of the instance, including its firmware variables and logs.
    ///
    /// *Errors*: [`SystemError::StillRunning`] while its QEMU is alive.
    async fn remove_instance(&self, instance: &str) -> Result<()>;

    /// Lists every instance that has files or a process on this host.
    async fn instances(&self) -> Result<Vec<InstanceFacts>>;

    /// Gives a running machine the key of an encrypted disk, before the disk is plugged in. Does nothing for other disks.
    ///
    /// *Errors*: [`SystemError::KeyMissing`](crate::SystemError::KeyMissing).
    async fn lend_key(&self, qmp: &Qmp, disk: &DiskSpec) -> Result<()>;

    /// Reads the agent's journal of an instance.
    async fn read_journal(&self, instance: &str) -> Result<Option<Value>>;

    /// Writes the agent's journal of an instance, which survives a crash; it is on disk when this returns. Creates the
    /// instance's directory.
    async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()>;

    /// Returns the bytes that the files of instances take: saved memory, firmware variables, the TPM, logs and bootstrap data. Disks and
    /// images are not part of it.
    async fn instance_bytes(&self) -> Result<BTreeMap<String, u64>>;

    /// Returns the last lines of QEMU's standard error; empty if there are none.
    async fn stderr_tail(&self, instance: &str) -> Result<String>;

    /// Connects to a serial port of a running machine, the first of which has number 1. One connection at a time, see [`ConsoleStream`].
    /// None: the machine has no such port, or has just ended.
    async fn serial(&self, instance: &str, port: u8) -> Result<Option<ConsoleStream>>;

    /// Connects to the VNC server of a running machine. None: the machine has no graphics.
    async fn vnc(&self, instance: &str) -> Result<Option<ConsoleStream>>;

    /// Returns a context id for the vsock device of a machine that is to be launched: the wanted one, or the next that no device on this
    /// host has. None: this host has no vsock devices.
    async fn free_vsock_cid(&self, wanted: u32) -> Result<Option<u32>>;

    /// Connects to a vsock port of the guest with this context id. The caller limits the time.
    async fn connect_to_vsock(&self, cid: u32, port: u32) -> Result<ConsoleStream>;

    /// Returns the end of a serial port's log, at most `max_bytes`, as the guest wrote it. The log outlives the
    /// machine's process; empty if there is none.
    async fn serial_log(&self, instance: &str, port: u8, max_bytes: u64) -> Result<Vec<u8>>;

    /// Limits the size of the logs that machines write. Runs for as long as it is polled.
    async fn rotate_logs(&self) {
        std::future::pending().await
    }

    /// Makes a disk accessible to the instance's QEMU, and returns the disk with the paths that this QEMU has to use.
    /// Required before the disk is plugged into a running machine; [`System::launch`] does it for its own disks.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`](crate::SystemError::VolumeBusy) if the file is a former one of its volume.
    async fn grant_disk(&self, instance: &str, disk: &DiskSpec) -> Result<DiskSpec>;

    /// Revokes QEMU's access to the file of a volume that was unplugged from the instance's machine.
    async fn revoke_disk(&self, instance: &str, volume: &str) -> Result<()>;

    /// Makes an image accessible to the instance's QEMU as a medium, and returns the path that this QEMU has to use. Required
    /// before it is inserted into a running machine; [`Machines::launch`] does it for the media of its drives.
    async fn grant_medium(&self, instance: &str, medium: &Medium) -> Result<Medium>;

    /// Removes the instance's own name of an image that was taken out of its machine, so that the image's bytes can be freed. The
    /// image is named by the beginning of its digest, at least 20 digits.
    async fn revoke_medium(&self, instance: &str, digest: &str) -> Result<()>;

    /// Takes devices of the host for the instance: from then on no other instance gets them, PCI devices are bound to vfio-pci, and vGPUs
    /// exist. Required before it is launched with them.
    ///
    /// *Errors*: [`SystemError::Device`], [`SystemError::UsbDevice`] or [`SystemError::Vgpu`] if another instance has one, or no guest can
    /// have it.
    ///
    /// [`SystemError::Device`]: crate::SystemError::Device
    /// [`SystemError::UsbDevice`]: crate::SystemError::UsbDevice
    /// [`SystemError::Vgpu`]: crate::SystemError::Vgpu
    async fn take_devices(&self, instance: &str, devices: &DeviceSpecs) -> Result<()>;

    /// Gives the devices that were taken for the instance back to the drivers that they had, and removes its vGPUs.
    ///
    /// *Errors*: [`SystemError::StillRunning`] while its QEMU is alive.
    ///
    /// [`SystemError::StillRunning`]: crate::SystemError::StillRunning
    async fn give_back_devices(&self, instance: &str) -> Result<()>;

    /// Gives the instance's QEMU the file of its saved state, over this connection.
    ///
    /// *Errors*: [`SystemError::NoSpace`] if the disk has less free space than the state can take.
    async fn lend_state(&self, instance: &str, qmp: &Qmp, access: StateAccess) -> Result<()>;

    /// Gives the instance's QEMU one end of a new connection, over which the state of its guest comes or goes, and returns the other one.
    async fn lend_channel(&self, instance: &str, qmp: &Qmp) -> Result<ConsoleStream>;

    /// Opens the tap of a network card and gives it to the instance's QEMU, over this connection.
    async fn lend_tap(&self, instance: &str, qmp: &Qmp, nic: &NicSpec) -> Result<LentTap>;

    /// Makes the saved state durable: when this returns, it survives a crash of the host.
    async fn seal_state(&self, instance: &str) -> Result<()>;

    /// Whether the instance has a file with a saved state, complete or not.
    async fn has_state(&self, instance: &str) -> Result<bool>;

    /// Removes the saved state; it is gone, also after a crash of the host, when this returns. Succeeds if there is none.
    async fn remove_state(&self, instance: &str) -> Result<()>;

    /// Keeps the saved state of the instance under this id too, with a note. It replaces one that is kept under this id. It is short, for a
    /// guest that is paused meanwhile: the state is complete, and survives a crash of the host after [`Machines::seal_kept_state`].
    async fn keep_state(&self, instance: &str, id: &str, note: &Value) -> Result<()>;

    /// Makes the state that is kept under this id durable: when this returns, it survives a crash of the host.
    async fn seal_kept_state(&self, id: &str) -> Result<()>;

    /// Returns the ids under which states are kept.
    async fn kept_states(&self) -> Result<Vec<String>>;

    /// Returns the note of the state that is kept under this id. None: there is none, or it is not complete.
    async fn kept_state(&self, id: &str) -> Result<Option<Value>>;

    /// Gives the instance the state that is kept under this id as its saved state, and keeps it as well. Both are one file, which
    /// is only read.
    async fn lay_state(&self, instance: &str, id: &str) -> Result<()>;

    /// Removes the state that is kept under this id; it is gone, also after a crash, when this returns. Succeeds if there is none.
    async fn remove_kept_state(&self, id: &str) -> Result<()>;

    /// Returns the names of the bootstrap data that the instance's machine was started with, in order: for each the guest has a device.
    async fn bootstrap_data(&self, instance: &str) -> Result<Vec<String>>;

    /// Returns the bootstrap data that the instance's machine was started with, for the host that its guest moves to.
    async fn bootstrap_files(&self, instance: &str) -> Result<Vec<BootstrapFile>>;

    /// Writes the bootstrap data of a guest that comes from another host, in the place of all that the instance has. The instance has a
    /// journal.
    ///
    /// *Errors*: [`SystemError::Invalid`] for another name than those of [`Machines::bootstrap_data`], or more than [`MAX_BOOTSTRAP`] bytes.
    ///
    /// [`SystemError::Invalid`]: crate::SystemError::Invalid
    async fn write_bootstrap_files(&self, instance: &str, files: &[BootstrapFile]) -> Result<()>;

    /// Returns an archive of the instance's firmware variables and of the memory of its TPM: the same bytes as long as nothing of it changes. It has
    /// secrets of the guest.
    async fn firmware_state(&self, instance: &str) -> Result<Vec<u8>>;

    /// Puts the firmware variables and the memory of a TPM of this archive in the place of those that the instance has; an empty one removes them.
    /// They are on disk when this returns. An interrupted call has to be repeated.
    ///
    /// *Errors*: [`SystemError::StillRunning`](crate::SystemError::StillRunning) while its QEMU is alive.
    async fn install_firmware_state(&self, instance: &str, archive: &[u8]) -> Result<()>;

    /// Whether the instance has the memory of a TPM.
    async fn has_tpm_state(&self, instance: &str) -> Result<bool>;

    /// Writes a copy of the instance's firmware state into a shared pool, in the folder or in Ceph, in the place of a former one. An interrupted call
    /// leaves the former one or this one.
    ///
    /// *Errors*: in Ceph there is one of a later epoch: another host has the VM now.
    async fn write_firmware_copy(&self, pool: &str, instance: &str, copy: &FirmwareCopy) -> Result<()>;

    /// Reads the copy of the instance's firmware state in a shared pool that was written for the VM with this uid under the latest epoch. None: there is
    /// none.
    async fn firmware_copy(&self, pool: &str, instance: &str, uid: &str) -> Result<Option<FirmwareCopy>>;

    /// Removes the copies of the instance's firmware state, if there are some.
    async fn remove_firmware_copy(&self, pool: &str, instance: &str) -> Result<()>;

    /// The directory of an instance's files.
    fn instance_directory(&self, instance: &str) -> PathBuf;
}

/// A machine to start. The host chooses the paths of its files (sockets, seed, firmware variables).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    pub machine: MachineSpec,
    /// None: the machine keeps the bootstrap data that the instance was last started with, as [`Machines::bootstrap_data`] lists it.
    pub seed: Option<Seed>,
    /// The keys of Secure Boot to enroll, for a machine with firmware of own keys. None: those that were enrolled last stay.
    pub keys: Option<SecureBootKeys>,
    /// Its temporary disk, which is made anew, except for a machine with a saved state: that keeps the one that it was saved with.
    pub scratch: Option<NewScratch>,
    pub limits: Limits,
    /// Whether each virtual CPU has a CPU of the host for itself. None: machines share those that are not given away.
    pub dedicated: Option<DedicatedRequest>,
    /// Whether the machine waits for its saved state instead of booting. Otherwise a saved state is removed.
    pub from_saved_state: bool,
}

/// The most bytes that the bootstrap data of a guest takes which comes from another host.
pub const MAX_BOOTSTRAP: usize = 32 << 20;

/// A file with bootstrap data. May contain secrets: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapFile {
    /// As in [`Machines::bootstrap_data`].
    pub name: String,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for BootstrapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How QEMU uses the file of a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAccess {
    /// Writes it anew: this many bytes at most.
    Write {
        at_most: u64,
    },
    Read,
}

/// Bootstrap data (NoCloud, Ignition, Sysprep). May contain secrets: never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Seed {
    pub meta_data: String,
    pub user_data: String,
    pub network_config: String,
    /// A cloud-config below the user data: what both declare is that of the user data.
    pub vendor_data: Option<String>,
    /// An answer file for Windows, on a volume of its own.
    pub unattend: Option<String>,
    /// An Ignition configuration, passed by the firmware configuration device.
    pub ignition: Option<String>,
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed")
            .field("user_data_bytes", &self.user_data.len())
            .field("ignition", &self.ignition.is_some())
            .field("unattend", &self.unattend.is_some())
            .finish_non_exhaustive()
    }
}

/// A running QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    pub identity: ProcessIdentity,
    pub started_at: Timestamp,
    /// The CPUs of the host that it has for itself.
    pub dedicated: Option<DedicatedCpus>,
}

/// How a host runs a QEMU. None: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessDetails {
    /// The path of its cgroup.
    pub cgroup: Option<String>,
    /// Whether the host's kernel moves the packets of network cards (vhost-net).
    pub vhost_net: Option<bool>,
}

/// The state of an instance on this host.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceFacts {
    pub instance: String,
    /// None also if it is not valid JSON: one damaged journal must not affect other instances.
    pub journal: Option<Value>,
    pub process: Option<ProcessFacts>,
}
