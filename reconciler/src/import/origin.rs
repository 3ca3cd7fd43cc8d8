//! The software that runs a domain, and the steps that end its guest there.

use super::shell::quoted;

/// The software that runs a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// libvirt.
    Libvirt,
    /// Proxmox VE, as the VM with this number.
    Proxmox(u32),
    /// A script, a unit or a user.
    Process {
        /// The process, if it runs on this machine.
        pid: Option<i32>,
        /// The socket of its monitor for people.
        monitor: Option<String>,
    },
    /// None yet: it is described in an OVF.
    Appliance,
}

impl Origin {
    /// The word after `berth import`.
    pub(super) fn importer(&self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::Proxmox(_) | Self::Process { .. } => "qemu",
            Self::Appliance => "ova",
        }
    }

    /// Its name.
    pub(super) fn system(&self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::Proxmox(_) => "Proxmox VE",
            Self::Process { .. } => "QEMU",
            Self::Appliance => "OVF",
        }
    }

    /// A domain of this name, in words.
    pub(super) fn described(&self, name: &str) -> String {
        match self {
            Self::Libvirt => format!("the domain {name:?} of libvirt"),
            Self::Proxmox(id) => format!("the VM {id} ({name:?}) of Proxmox VE"),
            Self::Process { .. } => format!("the guest {name:?} of QEMU"),
            Self::Appliance => format!("the virtual system {name:?} of the appliance"),
        }
    }

    /// The step that shuts the guest down.
    pub(super) fn shutdown(&self, name: &str) -> String {
        match self {
            Self::Libvirt => format!("virsh shutdown {}", quoted(name)),
            Self::Proxmox(id) => format!("qm shutdown {id}"),
            Self::Process { monitor: Some(path), .. } => {
                format!("echo system_powerdown | socat - {}", quoted(&format!("UNIX-CONNECT:{path}")))
            }
            Self::Process { pid, .. } => {
                let process = pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
                format!("from within, or with system_powerdown in the monitor of its QEMU{process}")
            }
            Self::Appliance => "from within, where it runs".to_owned(),
        }
    }

    /// The step after which nothing starts the guest there again.
    pub(super) fn no_autostart(&self, name: &str) -> String {
        match self {
            Self::Libvirt => format!("virsh autostart --disable {}", quoted(name)),
            Self::Proxmox(id) => format!("qm set {id} --onboot 0"),
            Self::Process { .. } => {
                "disable the unit or the script that starts it, if there is one".to_owned()
            }
            Self::Appliance => "disable its start where it runs".to_owned(),
        }
    }
}
