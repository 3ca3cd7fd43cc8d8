//! Reserves the fields of VMs, VMClasses and Disks by which a guest gets something of its host, or the identity of another machine, for
//! privileged users, in namespaces with a label.
//!
//! Objects that exist keep their values, and every editor may remove one. Nothing here concerns deletions.

use serde_json::{Value, json};

use super::guarded_fields::{GuardedField, of_specs, privileged_users, privileged_variable};
use super::policy;
use crate::SYSTEM_NAMESPACE;
use crate::restrictions::{PRIVILEGED_FIELDS_LABEL, RESERVED};

const OF_VMS: [GuardedField; 11] = [
    GuardedField::value("uuid"),
    GuardedField::value("serialNumber"),
    GuardedField::value("machineType"),
    GuardedField::or_none("hugePages"),
    GuardedField::flag("dedicatedCpuPlacement"),
    GuardedField::flag("isolateEmulatorThread"),
    GuardedField::flag("vsock"),
    GuardedField::list("pciDevices"),
    GuardedField::list("usbDevices"),
    GuardedField::list("vgpus"),
    GuardedField::list("shares"),
];

const OF_CLASSES: [GuardedField; 7] = [
    GuardedField::or_none("hugePages"),
    GuardedField::flag("dedicatedCpuPlacement"),
    GuardedField::flag("isolateEmulatorThread"),
    GuardedField::list("pciDevices"),
    GuardedField::list("usbDevices"),
    GuardedField::list("vgpus"),
    GuardedField::list("qemuOptions"),
];

const IS_EXEMPT: &str = "variables.isPrivileged";

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    let of = |fields: &[GuardedField]| -> Vec<Value> {
        fields.iter().map(|field| field.validation(IS_EXEMPT, &why())).collect()
    };
    let mut of_vms = of(&OF_VMS);
    of_vms.extend([mac_addresses(), devices_of_templates()]);
    [
        reserved("berth-privileged-fields", "vms", &of_vms),
        reserved("berth-privileged-fields-of-classes", "vmclasses", &of(&OF_CLASSES)),
        reserved("berth-privileged-fields-of-disks", "disks", &[device()]),
    ]
    .concat()
}

fn reserved(name: &str, resource: &str, validations: &[Value]) -> Vec<Value> {
    let (rules, conditions) = of_specs(resource);
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {PRIVILEGED_FIELDS_LABEL: RESERVED}},
            "resourceRules": rules,
        },
        "matchConditions": conditions,
        "variables": [privileged_variable()],
        "validations": validations,
    });
    policy(name, spec).to_vec()
}

fn why() -> String {
    format!(
        "is a privileged field in this namespace (label {PRIVILEGED_FIELDS_LABEL} of the Namespace): only {} set and change it",
        privileged_users()
    )
}

/// The MAC addresses that interfaces declare: one may be that of a machine outside of berth.
fn mac_addresses() -> Value {
    json!({
        "expression": format!(
            "{IS_EXEMPT} || !has(object.spec.networkInterfaces) || object.spec.networkInterfaces.all(n, \
             !has(n.macAddress) || n.macAddress == null || (request.operation == 'UPDATE' && has(oldObject.spec.networkInterfaces) && \
             oldObject.spec.networkInterfaces.exists(o, o.name == n.name && has(o.macAddress) && o.macAddress == n.macAddress)))"
        ),
        "message": format!("macAddress of an interface {}", why()),
        "reason": "Forbidden",
    })
}

/// The condition that this spec of a Disk is a block device of a host.
fn names_device(spec: &str) -> String {
    let (source, device) = (format!("{spec}.source"), format!("{spec}.source.device"));
    format!("has({source}) && {source} != null && has({device}) && {device} != null")
}

/// The block device of a host that a Disk is. The controllers make the Disks of templates, for which the field is one of the VM.
fn device() -> Value {
    let (after, before) = (names_device("object.spec"), names_device("oldObject.spec"));
    json!({
        "expression": format!(
            "{IS_EXEMPT} || (has(request.userInfo.groups) && 'system:serviceaccounts:{SYSTEM_NAMESPACE}' in request.userInfo.groups) || \
             !({after}) || \
             (request.operation == 'UPDATE' && {before} && object.spec.source.device == oldObject.spec.source.device)"
        ),
        "message": format!("source.device {}", why()),
        "reason": "Forbidden",
    })
}

/// The same of the Disks that a VM declares by templates.
fn devices_of_templates() -> Value {
    let (after, before) = (names_device("d.template"), names_device("o.template"));
    json!({
        "expression": format!(
            "{IS_EXEMPT} || !has(object.spec.disks) || object.spec.disks.all(d, \
             !has(d.template) || d.template == null || !({after}) || \
             (request.operation == 'UPDATE' && has(oldObject.spec.disks) && oldObject.spec.disks.exists(o, \
             o.name == d.name && has(o.template) && o.template != null && {before} && \
             o.template.source.device == d.template.source.device)))"
        ),
        "message": format!("source.device in the template of a disk {}", why()),
        "reason": "Forbidden",
    })
}
