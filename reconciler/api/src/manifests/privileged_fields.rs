//! Reserves the fields of VMs and VMClasses by which a guest gets something of its host, or the identity of another machine, for
//! privileged users, in namespaces with a label.
//!
//! Objects that exist keep their values, and every editor may remove one. Nothing here concerns deletions.

use serde_json::{Value, json};

use super::guarded_fields::{GuardedField, of_specs, privileged_users, privileged_variable};
use super::policy;
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
    of_vms.push(mac_addresses());
    [
        reserved("berth-privileged-fields", "vms", &of_vms),
        reserved("berth-privileged-fields-of-classes", "vmclasses", &of(&OF_CLASSES)),
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
