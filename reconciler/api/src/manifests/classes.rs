//! Restricts the VMs of a namespace to the VMClasses that an administrator offers it, by an annotation of the Namespace.
//!
//! VMs that exist keep their class and their values. Nothing here concerns deletions.

use serde_json::{Value, json};

use super::guarded_fields::{GuardedField, of_specs, privileged_users, privileged_variable};
use super::policy;
use crate::restrictions::OFFERED_CLASSES_ANNOTATION;

/// The size and the devices that a VM has by its class: with values of its own, the choice of classes would restrict nothing.
const OF_THE_CLASS: [GuardedField; 17] = [
    GuardedField::value("cpus"),
    GuardedField::value("maxCpus"),
    GuardedField::value("cpuTopology"),
    GuardedField::value("memory"),
    GuardedField::value("maxMemory"),
    GuardedField::value("memoryReservation"),
    GuardedField::or_none("hugePages"),
    GuardedField::value("numaNodes"),
    GuardedField::value("cpuLimit"),
    GuardedField::value("cpuWeight"),
    GuardedField::value("cpuReservation"),
    GuardedField::flag("dedicatedCpuPlacement"),
    GuardedField::flag("isolateEmulatorThread"),
    GuardedField::list("pciDevices"),
    GuardedField::list("usbDevices"),
    GuardedField::list("vgpus"),
    GuardedField::value("scratchDisk"),
];

const IS_EXEMPT: &str = "!variables.isLimited || variables.isPrivileged";

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    [vms(), classes()].concat()
}

fn limited(name: &str, resource: &str, own: &[Value], validations: &[Value]) -> Vec<Value> {
    let (rules, conditions) = of_specs(resource);
    let annotations = "namespaceObject.metadata.annotations";
    let mut variables = vec![
        privileged_variable(),
        json!({"name": "isLimited", "expression": format!(
            "has({annotations}) && '{OFFERED_CLASSES_ANNOTATION}' in {annotations}"
        )}),
        json!({"name": "offered", "expression": format!(
            "variables.isLimited ? {annotations}['{OFFERED_CLASSES_ANNOTATION}'].replace(' ', '') : ''"
        )}),
    ];
    variables.extend_from_slice(own);
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": conditions,
        "variables": variables,
        "validations": validations,
    });
    policy(name, spec).to_vec()
}

fn vms() -> Vec<Value> {
    let class = |object: &str| format!("has({object}.spec.class) && {object}.spec.class != null");
    let (after, before) = (class("object"), class("oldObject"));
    let own = [json!({"name": "class", "expression": format!("{after} ? object.spec.class : ''")})];
    let mut validations = vec![json!({
        "expression": format!(
            "{IS_EXEMPT} || \
             (variables.class != '' && (',' + variables.offered + ',').contains(',' + variables.class + ',')) || \
             (request.operation == 'UPDATE' && variables.class == ({before} ? oldObject.spec.class : ''))"
        ),
        "messageExpression": "'class: the VMClasses that namespace ' + request.namespace + ' is offered are: ' + variables.offered",
        "message": format!(
            "class: a VM has one of the VMClasses that its namespace is offered (annotation {OFFERED_CLASSES_ANNOTATION} of the Namespace)"
        ),
        "reason": "Forbidden",
    })];
    let why = "is that of the class: the namespace of the VM is offered certain VMClasses, so leave it out";
    validations.extend(OF_THE_CLASS.map(|field| field.validation(IS_EXEMPT, why)));
    limited("berth-offered-classes", "vms", &own, &validations)
}

fn classes() -> Vec<Value> {
    let validation = json!({
        "expression": IS_EXEMPT,
        "message": format!(
            "only {} create and change VMClasses in a namespace that is offered certain ones (annotation {OFFERED_CLASSES_ANNOTATION} of the \
             Namespace)",
            privileged_users()
        ),
        "reason": "Forbidden",
    });
    limited("berth-offered-classes-written", "vmclasses", &[], &[validation])
}
