//! A disk that is a block device of its host: what a plan checks.

use tfplugin6::{AttributePath, Diagnostic, Value};

/// Refuses a disk, or a template of one at this path, that is a block device of its host and is to have what only files have.
pub(super) fn check(disk: &Value, at: &AttributePath) -> Option<Diagnostic> {
    let device = disk.get("source").get("device");
    if !device.is_set() {
        return None;
    }
    let is_set = |name: &str| disk.get(name).is_set();
    let is_other = |name: &str, default: &str| disk.get(name).as_str().is_some_and(|value| value != default);
    let refusals = [
        ("access", is_other("access", "ReadWriteOnce"), "is for one VM at a time: take `access` out"),
        ("provisioning", is_other("provisioning", "Thin"), "has its space: take `provisioning` out"),
        (
            "encryption",
            is_set("encryption"),
            "is not encrypted by berth: take `encryption` out, and encrypt it on the host or in the VM",
        ),
        ("restore", is_set("restore"), "has no snapshots, and is not restored: take `restore` out"),
        ("shared_with", is_set("shared_with"), "is the source of no other disk: take `shared_with` out"),
        ("pools", is_set("pools"), "is in no pool: take `pools` out"),
        ("pool_selector", is_set("pool_selector"), "is in no pool: take `pool_selector` out"),
    ];
    let (name, _, why) = refusals.into_iter().find(|(_, refuses, _)| *refuses)?;
    let path = at.clone().attribute(name);
    let detail = format!("{path}: a disk that is a block device of its host {why}.");
    Some(Diagnostic::error("Invalid block device", detail).at(path))
}
