//! The variables of a VM's firmware and the memory of its TPM, which follow it to another host.
//!
//! ```text
//!  controllers: status.formerHost = OLD      agent of NEW: has them, durably          agent of OLD
//!  (the VM has left OLD)                ──▶  removes formerHost                  ──▶  removes its files of the VM
//! ```

use super::VM;

/// On a VM: the epoch of its binding, under which it starts without the firmware variables and the memory of the TPM that it had, if they
/// cannot be had.
pub const ACCEPT_FIRMWARE_LOSS_ANNOTATION: &str = "berth.dev/accept-firmware-loss";

impl VM {
    /// Whether the machine that it has, or had last, keeps firmware variables or has a TPM.
    #[must_use]
    pub fn has_firmware_state(&self) -> bool {
        let hardware = self.status.as_ref().and_then(|status| status.hardware.as_ref());
        hardware.is_some_and(|hardware| hardware.firmware != "BIOS") || self.had_tpm()
    }

    /// Whether the machine that it has, or had last, has a TPM.
    #[must_use]
    pub fn had_tpm(&self) -> bool {
        let hardware = self.status.as_ref().and_then(|status| status.hardware.as_ref());
        hardware.and_then(|hardware| hardware.tpm).unwrap_or_default()
    }

    /// Returns the host that has its firmware state.
    #[must_use]
    pub fn firmware_state_on(&self) -> Option<&str> {
        self.status.as_ref()?.former_host.as_deref()
    }

    /// Whether it may start under its present binding without the firmware state that it had.
    #[must_use]
    pub fn accepts_firmware_loss(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        let accepted = annotations.and_then(|all| all.get(ACCEPT_FIRMWARE_LOSS_ANNOTATION));
        let binding = self.status.as_ref().and_then(|status| status.binding.as_ref());
        let epoch = accepted.and_then(|text| text.parse::<i64>().ok());
        binding.is_some_and(|binding| epoch == Some(binding.epoch))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm(annotation: Option<&str>, status: Value) -> VM {
        let annotations: Option<Value> =
            annotation.map(|text| json!({ACCEPT_FIRMWARE_LOSS_ANNOTATION: text}));
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {"disks": [{"name": "root", "boot": true}]}, "status": status,
        }))
        .expect("a VM")
    }

    #[test]
    fn a_loss_is_accepted_for_one_binding() {
        let bound = json!({"binding": {"host": "b", "epoch": 3}});
        assert!(vm(Some("3"), bound.clone()).accepts_firmware_loss());
        for (annotation, status) in
            [(None, &bound), (Some("2"), &bound), (Some("yes"), &bound), (Some("3"), &json!({}))]
        {
            assert!(!vm(annotation, status.clone()).accepts_firmware_loss(), "{annotation:?}");
        }
    }

    #[test]
    fn a_machine_with_bios_and_without_a_tpm_has_no_state_that_counts() {
        let had = |firmware: &str, tpm: bool| {
            let hardware = json!({"cpus": 1, "memory": "1Gi", "firmware": firmware, "tpm": tpm, "machineType": "q35",
                "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
            vm(None, json!({"hardware": hardware})).has_firmware_state()
        };
        assert!(
            !had("BIOS", false) && had("BIOS", true) && had("UEFI", false) && had("UEFISecureBoot", true)
        );
        assert!(!vm(None, json!({})).has_firmware_state(), "it was never started");
    }
}
