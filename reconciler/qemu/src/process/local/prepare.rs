//! The files, devices and keys of a machine before its QEMU is started.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, fchown};
use std::path::Path;

use nix::unistd::Uid;

use super::LocalHypervisor;
use super::confine::{files, serial_logs, tpm_ruleset_of};
use crate::machine::{Accelerator, LaunchSpec, NicModel, NicSpec, Tap};
use crate::process::key_file::key_file;
use crate::process::landlock::Ruleset;
use crate::process::{LaunchError, RunAs, log, swtpm, tap, vsock};

/// The memory that a QEMU with PCI devices of the host may lock besides its guest's, in bytes.
const LOCKED_BESIDE_THE_GUEST: u64 = 1 << 30;

impl LocalHypervisor {
    /// Prepares directories, ownership and taps before the process starts.
    pub(super) fn prepare(&self, spec: &LaunchSpec) -> Result<Prepared, LaunchError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LaunchError::Prepare { path, source }
        };
        let directory = &spec.files.paths.directory;
        std::fs::create_dir_all(directory).map_err(failed(directory))?;
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).map_err(failed(directory))?;
        let user = self.user_of(spec);
        if let Some(user) = user {
            chown(directory, Some(user.uid), Some(user.gid)).map_err(failed(directory))?;
        }
        for (file, writable) in files(spec) {
            give(file, writable, user.as_ref()).map_err(failed(file))?;
        }
        let stderr =
            log::open_log(&spec.files.paths.stderr_log).map_err(failed(&spec.files.paths.stderr_log))?;
        stderr.set_len(0).map_err(failed(&spec.files.paths.stderr_log))?;
        for path in serial_logs(spec) {
            let serial = log::open_log(&path).map_err(failed(&path))?;
            if let Some(user) = user {
                // Owned by root, with append access for QEMU: an owner could write anywhere in the file, and rename it.
                let owner = Uid::effective().as_raw();
                fchown(&serial, Some(owner), Some(user.gid)).map_err(failed(&path))?;
                let mode = std::fs::Permissions::from_mode(0o620);
                serial.set_permissions(mode).map_err(failed(&path))?;
            }
        }
        for node in spec.files.vfio_groups.iter().chain(&spec.files.usb_nodes) {
            give(node, true, user.as_ref()).map_err(failed(node))?;
        }
        let (mut ruleset, mut tpm_ruleset) = (None, None);
        if let Some(tpm) = &spec.files.tpm {
            swtpm::prepare(tpm, user)?;
        }
        if spec.files.confinement.is_some() {
            ruleset = self.ruleset(spec).map_err(LaunchError::Confine)?;
            tpm_ruleset = tpm_ruleset_of(spec).map_err(LaunchError::Confine)?;
        }
        let mut spec = spec.clone();
        let (mut inherited, mut keys) = (Vec::new(), Vec::new());
        for nic in &mut spec.machine.nics {
            if let Tap::Name(name) = &nic.tap {
                let queues = tap::open(name, nic.queues)
                    .map_err(|source| LaunchError::Tap { name: name.clone(), source })?;
                // Only virtio has it. It notifies by KVM's event descriptors: emulated guests gain nothing.
                let has_vhost = may_have_vhost(nic) && spec.machine.accelerator == Accelerator::Kvm;
                let vhosts = if has_vhost { tap::open_vhosts(nic.queues) } else { Vec::new() };
                let numbers = |files: &[File]| files.iter().map(AsRawFd::as_raw_fd).collect();
                nic.tap = Tap::Open { taps: numbers(&queues), vhosts: numbers(&vhosts) };
                inherited.extend(queues);
                inherited.extend(vhosts);
            }
        }
        if let Some(cid) = spec.machine.extras.vsock_cid {
            let device = vsock::open_with(cid).map_err(|source| LaunchError::Vsock { cid, source })?;
            spec.files.vsock_file = Some(device.as_raw_fd());
            inherited.push(device);
        }
        for (disk, key) in std::mem::take(&mut spec.files.keys) {
            let file = key_file(&key).map_err(failed(Path::new("memory")))?;
            let lent = file.try_clone().map_err(failed(Path::new("memory")))?;
            spec.files.key_files.insert(disk, lent.as_raw_fd());
            inherited.push(lent);
            keys.push(file);
        }
        Ok(Prepared { spec, stderr, inherited, keys, ruleset, tpm_ruleset })
    }
}

pub(super) struct Prepared {
    pub(super) spec: LaunchSpec,
    pub(super) stderr: File,
    /// The taps of its network cards, its vsock device, and the keys of its disks.
    pub(super) inherited: Vec<File>,
    /// The same files in memory with the keys.
    pub(super) keys: Vec<File>,
    pub(super) ruleset: Option<Ruleset>,
    pub(super) tpm_ruleset: Option<Ruleset>,
}

/// The memory that QEMU locks for PCI devices of the host, which reach all of the guest's memory, in bytes: the most that the guest can
/// have, and room for the firmware and the memory of devices. None: it locks none.
pub(in crate::process) fn locked_memory(spec: &LaunchSpec) -> Option<u64> {
    let machine = &spec.machine;
    let most = machine.max_memory_bytes.unwrap_or(machine.memory_bytes);
    (!spec.files.vfio_groups.is_empty()).then(|| most.saturating_add(LOCKED_BESIDE_THE_GUEST))
}

/// Writable: QEMU's user becomes the owner. Read-only: the owner stays, QEMU's group may read it. A block device: QEMU's user becomes the
/// owner, and its group and mode stay.
pub(super) fn give(file: &Path, writable: bool, user: Option<&RunAs>) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(file)?;
    if metadata.file_type().is_symlink() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a symbolic link, which is not followed"));
    }
    let Some(user) = user else { return Ok(()) };
    if metadata.file_type().is_block_device() {
        // udev has set its group and mode, and only the owner is taken back from a machine that has ended.
        return chown(file, Some(user.uid), None);
    }
    let mode = metadata.mode() & 0o777;
    let (owner, wanted) = if writable { (Some(user.uid), mode | 0o600) } else { (None, mode | 0o440) };
    // World-readable files (a system's firmware, for example) are left unchanged.
    if !writable && mode & 0o004 != 0 {
        return Ok(());
    }
    chown(file, owner, Some(user.gid))?;
    std::fs::set_permissions(file, PermissionsExt::from_mode(wanted))
}

/// Whether the host's kernel can move the packets of the card, and may.
pub(super) fn may_have_vhost(nic: &NicSpec) -> bool {
    nic.model == NicModel::Virtio && !nic.no_vhost
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, metadata, set_permissions};

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    #[test]
    fn a_block_device_gets_an_owner_and_keeps_its_group_and_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("device");
        // A number of no driver: the device is never opened.
        if mknod(&file, SFlag::S_IFBLK, Mode::from_bits_truncate(0o660), makedev(240, 77)).is_err() {
            println!("skipped: this user makes no device files");
            return;
        }
        set_permissions(&file, Permissions::from_mode(0o660)).expect("changed");
        let about = || metadata(&file).map(|m| (m.uid(), m.gid(), m.mode() & 0o777)).expect("it is there");
        let (_, group, mode) = about();
        for (writable, uid) in [(true, 60_001), (false, 60_002)] {
            give(&file, writable, Some(&RunAs { uid, gid: 60_000 })).expect("given");
            assert_eq!(about(), (uid, group, mode));
        }
    }
}
