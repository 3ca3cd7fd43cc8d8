//! The parts of a VM that the machines of its architecture do not have. Pure.

use crate::hardware::CPU_LEVELS;
use crate::vm::DiskBus;
use crate::{Architecture, Firmware, GuestOS, Profile, Size, SuspendMode, VMSpec};

impl VMSpec {
    /// Returns the part of the VM, with the values of its class, that machines of its architecture do not have, and a remedy.
    #[must_use]
    pub fn unsupported_part(&self, size: &Size, profile: &Profile) -> Option<String> {
        let architecture = profile.architecture;
        if let Some(declared) = self.machine_type.as_ref().filter(|name| !architecture.has_machine_type(name))
        {
            let name = architecture.as_str();
            return Some(format!(
                "machineType {declared} is of another architecture than {name}: set a machineType of {name}, or none"
            ));
        }
        if architecture == Architecture::X86_64 {
            return None;
        }
        let sata = self.disks.iter().find(|disk| disk.bus == DiskBus::Sata);
        let text = if size.firmware != Firmware::UEFI {
            format!("firmware {}: machines of aarch64 have firmware UEFI only", size.firmware.as_str())
        } else if profile.guest_os == GuestOS::Windows {
            "guestOS Windows: Windows guests have architecture x86_64 only".to_owned()
        } else if let Some(level) =
            profile.cpu_model.as_ref().filter(|model| CPU_LEVELS.contains(&model.as_str()))
        {
            format!("cpuModel {level}: it is a level of x86_64; set a model of aarch64, or none")
        } else if size.max_cpus.is_some_and(|most| most > size.cpus) {
            "maxCpus: machines of aarch64 have no places for more CPUs; set cpus alone".to_owned()
        } else if self.serial_ports.is_some_and(|ports| ports > 1) {
            "serialPorts: machines of aarch64 have one serial port".to_owned()
        } else if self.suspend_mode == SuspendMode::Memory {
            "suspendMode Memory: machines of aarch64 have no suspension to memory; set Disk".to_owned()
        } else {
            let disk = &sata?.name;
            format!("disk {disk} has bus sata, which machines of aarch64 do not have: use virtio-scsi")
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn unsupported(more: Value) -> Option<String> {
        let mut spec = json!({"disks": [], "cpus": 1, "memory": "1Gi", "architecture": "aarch64"});
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
        spec.unsupported_part(&spec.size(None).expect("a size"), &spec.profile(None))
    }

    #[test]
    fn a_machine_of_aarch64_has_no_parts_of_a_pc() {
        assert_eq!(unsupported(json!({})), None);
        assert_eq!(unsupported(json!({"machineType": "virt-7.2", "tpm": true})), None);
        for (more, part) in [
            (json!({"firmware": "BIOS"}), "firmware BIOS"),
            (json!({"firmware": "UEFISecureBoot"}), "firmware UEFISecureBoot"),
            (json!({"guestOS": "Windows"}), "guestOS Windows"),
            (json!({"maxCpus": 4}), "maxCpus"),
            (json!({"cpuModel": "x86-64-v3"}), "cpuModel x86-64-v3"),
            (json!({"serialPorts": 2}), "serialPorts"),
            (json!({"suspendMode": "Memory"}), "suspendMode Memory"),
            (json!({"disks": [{"name": "d", "bus": "sata"}]}), "disk d has bus sata"),
            (json!({"machineType": "pc-q35-7.2"}), "machineType pc-q35-7.2"),
        ] {
            let text = unsupported(more.clone()).unwrap_or_default();
            assert!(text.starts_with(part), "{more}: {text}");
        }
    }

    #[test]
    fn a_machine_of_x86_64_has_all_but_the_machine_type_of_the_other() {
        let x86 = |mut more: Value| {
            more["architecture"] = json!("x86_64");
            unsupported(more)
        };
        assert_eq!(
            x86(json!({"firmware": "BIOS", "maxCpus": 4, "serialPorts": 2, "suspendMode": "Memory"})),
            None
        );
        assert!(
            x86(json!({"machineType": "virt-7.2"})).is_some_and(|text| text.contains("another architecture"))
        );
    }
}
