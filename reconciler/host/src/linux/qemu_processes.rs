//! The QEMU processes of this machine, of any origin, and what runs them.

use std::fs;
use std::path::PathBuf;

use berth_qemu::process::list_qemu;

use crate::SystemError;

/// The monitor of each QEMU that libvirt starts.
const LIBVIRT_MONITOR: &str = "chardev=charmonitor";

/// A QEMU process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuProcess {
    pub pid: i32,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its working directory. None if only root and its user can read it.
    pub folder: Option<PathBuf>,
    /// Whether its paths may mean other files than those of this process, as in a container.
    pub has_own_mounts: bool,
    pub run_by: RunBy,
}

/// The software that runs a QEMU process, by its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBy {
    Berth,
    Libvirt,
    /// A script, a user, Proxmox VE.
    Other,
}

impl RunBy {
    fn of(argv: &[String], is_berths: bool) -> Self {
        let is_monitor = |pair: &[String]| matches!(pair, [option, value] if option == "-mon" && value.split(',').any(|part| part == LIBVIRT_MONITOR));
        match is_berths {
            true => Self::Berth,
            false if argv.windows(2).any(is_monitor) => Self::Libvirt,
            false => Self::Other,
        }
    }
}

/// All QEMU processes, in the order of their numbers.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn qemu_processes() -> Result<Vec<QemuProcess>, SystemError> {
    let own_mounts = fs::read_link("/proc/self/ns/mnt").ok();
    let mut found: Vec<QemuProcess> = list_qemu()?
        .into_iter()
        .map(|found| {
            let pid = found.identity.pid;
            let mounts = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
            QemuProcess {
                pid,
                folder: fs::read_link(format!("/proc/{pid}/cwd")).ok(),
                has_own_mounts: mounts.is_some() && mounts != own_mounts,
                run_by: RunBy::of(&found.argv, found.instance.is_some()),
                argv: found.argv,
            }
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libvirts_monitor_and_berths_claim_name_what_runs_a_process() {
        let argv = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let libvirts =
            argv("qemu-system-x86_64 -name guest=web -mon chardev=charmonitor,id=monitor,mode=control");
        let proxmoxs = argv("/usr/bin/kvm -id 100 -mon chardev=qmp,mode=control");
        assert_eq!(RunBy::of(&libvirts, false), RunBy::Libvirt);
        assert_eq!(RunBy::of(&proxmoxs, false), RunBy::Other);
        assert_eq!(RunBy::of(&argv("qemu-system-x86_64 -S"), true), RunBy::Berth);
    }

    #[test]
    fn processes_are_listed_by_their_numbers() {
        let found = qemu_processes().expect("/proc is readable");
        assert!(found.is_sorted_by_key(|process| process.pid));
    }
}
