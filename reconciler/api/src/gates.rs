//! Gates: annotations by which a privileged user or program holds back the start or the deletion of a VM.
//!
//! `poweron.check.berth.dev/NAME: REASON` is read by the VM's host, `delete.check.berth.dev/NAME: REASON` by admission. The
//! policies are in `manifests/gates.rs`.

use kube::ResourceExt;

use crate::VM;

/// The prefix of an annotation that holds back the start of a VM's QEMU.
pub const POWER_ON_GATE: &str = "poweron.check.berth.dev/";
/// The prefix of an annotation that holds back the deletion of a VM.
pub const DELETE_GATE: &str = "delete.check.berth.dev/";
/// The group whose members, beside administrators, write gates.
pub const GATEKEEPERS: &str = "berth.dev:gatekeepers";
/// The namespace whose ServiceAccounts write gates.
pub const GATEKEEPERS_NAMESPACE: &str = "berth-gatekeepers";

/// The first annotation that holds back the VM's start, and its reason.
pub fn power_on_gate(vm: &VM) -> Option<(&str, &str)> {
    let annotations = vm.annotations().iter();
    let gates = annotations.filter(|(key, _)| key.starts_with(POWER_ON_GATE));
    gates.map(|(key, reason)| (key.as_str(), reason.as_str())).next()
}
