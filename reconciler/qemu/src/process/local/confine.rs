//! The files that the programs of a machine can open, and the directories that are hidden from them.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use super::LocalHypervisor;
use crate::machine::{LaunchSpec, RbdImage, UefiFiles};
use crate::process::landlock::{Reach, Ruleset};
use crate::process::swtpm;

/// The host directories that every QEMU needs: programs, libraries and firmware.
const PROGRAMS: [&str; 5] = ["/usr", "/lib", "/lib32", "/lib64", "/bin"];
/// Files read by the dynamic linker, the C library, the TLS libraries, and QEMU before it maps memory without a reservation.
const SETTINGS: [&str; 5] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/sys/crypto",
    "/proc/sys/vm/overcommit_memory",
    "/sys/kernel/mm",
];
const DEVICES: [&str; 4] = ["/dev/null", "/dev/kvm", "/dev/random", "/dev/urandom"];

/// Directories with the sockets of services and with other files of people and programs. Hidden from QEMU, unless they
/// contain a file it needs.
const HIDDEN: [&str; 5] = ["/run", "/tmp", "/var/tmp", "/home", "/root"];

impl LocalHypervisor {
    /// The files that the machine's QEMU can open: programs, its own directories, and files passed by name.
    pub(super) fn ruleset(&self, spec: &LaunchSpec) -> io::Result<Option<Ruleset>> {
        let Some(ruleset) = ruleset_of_program(&self.binary)? else { return Ok(None) };
        ruleset.allow(&spec.files.paths.directory, Reach::Own)?;
        for log in serial_logs(spec) {
            ruleset.allow(&log, Reach::Write)?;
        }
        for folder in spec.files.confinement.iter().flat_map(|confinement| &confinement.folders) {
            ruleset.allow(folder, Reach::Write)?;
        }
        for (file, writable) in files(spec) {
            ruleset.allow(file, if writable { Reach::Write } else { Reach::Read })?;
        }
        if let Some(UefiFiles { code, .. }) = &spec.files.uefi {
            ruleset.allow(code, Reach::Read)?;
        }
        for group in &spec.files.vfio_groups {
            ruleset.allow(group, Reach::Write)?;
            // The container of all groups is beside them.
            ruleset.allow(&group.with_file_name("vfio"), Reach::Write)?;
        }
        for node in &spec.files.usb_nodes {
            ruleset.allow(node, Reach::Write)?;
        }
        Ok(Some(ruleset))
    }

    pub(super) fn hidden(&self, spec: &LaunchSpec) -> Vec<CString> {
        let mut needed = vec![self.binary.as_path(), &spec.files.paths.directory];
        needed.extend(spec.files.confinement.iter().flat_map(|c| &c.folders).map(PathBuf::as_path));
        needed.extend(files(spec).into_iter().map(|(file, _)| file));
        needed.extend(spec.files.tpm.iter().flat_map(|tpm| [tpm.program.as_path(), &tpm.state]));
        if let Some(UefiFiles { code, .. }) = &spec.files.uefi {
            needed.push(code);
        }
        hidden_without(&needed)
    }
}

/// Returns the directories to hide from a program that needs these files.
pub(in crate::process) fn hidden_without(needed: &[&Path]) -> Vec<CString> {
    // A symbolic link may lead into one of them.
    let needed: Vec<PathBuf> = needed
        .iter()
        .flat_map(|path| [Some(path.to_path_buf()), path.canonicalize().ok()])
        .flatten()
        .collect();
    let mut hidden = Vec::new();
    for folder in HIDDEN.map(Path::new) {
        // A symbolic link, such as /var/run, points to another directory.
        let is_folder = std::fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir());
        if is_folder && !needed.iter().any(|path| path.starts_with(folder)) {
            hidden.extend(CString::new(folder.as_os_str().as_encoded_bytes()));
        }
    }
    hidden
}

/// Allows the files that every program opens: itself, libraries, settings and devices.
pub(in crate::process) fn ruleset_of_program(binary: &Path) -> io::Result<Option<Ruleset>> {
    let Some(ruleset) = Ruleset::new()? else {
        tracing::debug!("this kernel has no Landlock: QEMU is confined by users and modes of files alone");
        return Ok(None);
    };
    for path in PROGRAMS {
        ruleset.allow(Path::new(path), Reach::Run)?;
    }
    // If programs are installed elsewhere, their libraries are next to them. The path of a running program can be gone:
    // its file was replaced.
    let binary = binary.canonicalize().or_else(|_| std::fs::read_link(binary))?;
    let top: PathBuf = binary.components().take(2).collect();
    ruleset.allow(if top == binary { &binary } else { &top }, Reach::Run)?;
    for path in SETTINGS {
        ruleset.allow(Path::new(path), Reach::Read)?;
    }
    for path in DEVICES {
        ruleset.allow(Path::new(path), Reach::Write)?;
    }
    Ok(Some(ruleset))
}

pub(super) fn tpm_ruleset_of(spec: &LaunchSpec) -> io::Result<Option<Ruleset>> {
    let Some(files) = &spec.files.tpm else { return Ok(None) };
    let Some(ruleset) = ruleset_of_program(&files.program)? else { return Ok(None) };
    swtpm::allow(&ruleset, files)?;
    Ok(Some(ruleset))
}

/// The logs of the machine's serial ports.
pub(super) fn serial_logs(spec: &LaunchSpec) -> Vec<PathBuf> {
    spec.machine.serial_ports().map(|number| spec.files.paths.serial_port(number).1).collect()
}

/// Lists the files that the machine opens, and whether it writes to them.
pub(super) fn files(spec: &LaunchSpec) -> Vec<(&Path, bool)> {
    let mut files = Vec::new();
    for disk in &spec.machine.disks {
        files.extend(disk.backing.as_ref().map(|b| (b.file.as_path(), false)));
        // An image of Ceph is no file; those by which it is reached are in the folder of the instance.
        if !RbdImage::is_rbd(&disk.file) {
            files.push((disk.file.as_path(), !disk.read_only));
        }
    }
    let media = spec.machine.cdroms.iter().flat_map(|cdrom| &cdrom.medium);
    files.extend(media.map(|medium| (medium.file.as_path(), false)));
    let volumes = [&spec.files.seed, &spec.files.sysprep];
    files.extend(volumes.into_iter().flatten().map(|volume| (volume.as_path(), false)));
    files.extend(spec.files.fw_cfg.iter().map(|f| (f.file.as_path(), false)));
    files.extend(spec.files.scratch.iter().map(|scratch| (scratch.as_path(), true)));
    if let Some(UefiFiles { vars, .. }) = &spec.files.uefi {
        files.push((vars, true));
    }
    files
}
