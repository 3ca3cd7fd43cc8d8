//! The admission policies behind [Quota](crate::Quota): a creation or a change that would use more than a limit is refused.
//!
//! They compare `status.used`, which the controllers count, with the limits. An amount that the object does not declare itself, such as
//! the memory of a class or the size of an image, is known to the controllers alone: these check it before they place the object, and
//! also find those of many creations at once that the count came too late for.

use serde_json::{Value, json};

use super::policy;
use crate::{GROUP, VERSION};

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    let counted = [
        count("berth-quota-images", "images", "images"),
        count("berth-quota-public-ips", "publicips", "publicIps"),
    ];
    [vms(), classes(), disks(), snapshots()].into_iter().chain(counted).flatten().collect()
}

/// A policy about a resource that each Quota of the namespace is a parameter of.
fn with_quotas(name: &str, resource: &str, operations: &[&str], rules: (Value, Vec<Value>)) -> [Value; 2] {
    let (own, validations) = rules;
    let mut variables = vec![
        json!({"name": "hard", "expression": "params.spec.hard"}),
        json!({"name": "isCreate", "expression": "request.operation == 'CREATE'"}),
        // A new Quota is counted within a moment; until then the check of the controllers stands alone.
        json!({"name": "isCounted", "expression": "has(params.status) && has(params.status.used)"}),
    ];
    variables.extend(own.as_array().into_iter().flatten().cloned());
    let spec = json!({
        // Kubernetes does not find the kind of the parameters for a while after its definition is installed, and would refuse all
        // writes. The check of the controllers does not depend on it.
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Quota"},
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": operations, "resources": [resource],
        }]},
        "variables": variables,
        "validations": validations,
    });
    let [policy, mut binding] = policy(name, spec);
    binding["spec"]["paramRef"] = json!({"selector": {}, "parameterNotFoundAction": "Allow"});
    [policy, binding]
}

fn validation(expression: &str, message_expression: &str, message: &str) -> Value {
    json!({
        "expression": expression,
        "messageExpression": format!("'Quota ' + params.metadata.name + ': ' + {message_expression}"),
        "message": message,
        "reason": "Forbidden",
    })
}

/// The validation of an amount that is a number; `more` is how much the request adds.
fn number(limit: &str, more: &str) -> Value {
    validation(
        &format!(
            "!has(variables.hard.{limit}) || !variables.isCounted || {more} <= 0 || \
             params.status.used.{limit} + {more} <= variables.hard.{limit}"
        ),
        &format!(
            "'{limit}: ' + string(params.status.used.{limit}) + ' used, ' + string({more}) + ' more needed, limit ' + \
             string(variables.hard.{limit})"
        ),
        &format!("the Quota of the namespace allows no more {limit}"),
    )
}

/// The validation of an amount of bytes, of which the object has `after` and had `before`.
fn bytes(limit: &str, after: &str, before: &str) -> Value {
    validation(
        &format!(
            "!has(variables.hard.{limit}) || !variables.isCounted || {after}.compareTo({before}) <= 0 || \
             quantity(params.status.used.{limit}).add({after}).sub({before}).compareTo(quantity(variables.hard.{limit})) <= 0"
        ),
        &used_bytes(limit),
        &format!("the Quota of the namespace allows no more {limit}"),
    )
}

/// The validation of an object whose bytes the request does not name: none is created once nothing is left.
fn some_bytes_left(limit: &str, applies: &str) -> Value {
    validation(
        &format!(
            "!has(variables.hard.{limit}) || !variables.isCounted || !({applies}) || \
             quantity(params.status.used.{limit}).compareTo(quantity(variables.hard.{limit})) < 0"
        ),
        &used_bytes(limit),
        &format!("the Quota of the namespace allows no more {limit}"),
    )
}

fn used_bytes(limit: &str) -> String {
    format!(
        "'{limit}: ' + params.status.used.{limit} + ' used, more needed, limit ' + variables.hard.{limit}"
    )
}

fn one() -> &'static str {
    "(variables.isCreate ? 1 : 0)"
}

fn count(name: &str, resource: &str, limit: &str) -> [Value; 2] {
    with_quotas(name, resource, &["CREATE"], (json!([]), vec![number(limit, one())]))
}

fn snapshots() -> [Value; 2] {
    let validations = vec![number("snapshots", one()), some_bytes_left("diskSize", "variables.isCreate")];
    with_quotas("berth-quota-snapshots", "disksnapshots", &["CREATE"], (json!([]), validations))
}

fn disks() -> [Value; 2] {
    let variables = json!([
        {"name": "after", "expression": "has(object.spec.size) ? quantity(object.spec.size) : quantity('0')"},
        {"name": "before", "expression": "variables.isCreate ? quantity('0') : has(oldObject.spec.size) ? quantity(oldObject.spec.size) : \
            has(oldObject.status) && has(oldObject.status.size) ? quantity(oldObject.status.size) : quantity('0')"},
    ]);
    let validations = vec![
        number("disks", one()),
        bytes("diskSize", "variables.after", "variables.before"),
        some_bytes_left("diskSize", "variables.isCreate && !has(object.spec.size)"),
    ];
    with_quotas("berth-quota-disks", "disks", &["CREATE", "UPDATE"], (variables, validations))
}

/// The CPUs that a VM declares itself; 0: those of its class.
fn own_cpus(object: &str) -> String {
    format!(
        "has({object}.spec.cpus) ? {object}.spec.cpus : has({object}.spec.cpuTopology) ? {object}.spec.cpuTopology.sockets * \
         {object}.spec.cpuTopology.cores * {object}.spec.cpuTopology.threads : 0"
    )
}

/// The memory that a VM declares itself, or has by its CPUs; 0: that of its class.
fn own_memory(object: &str, cpus: &str) -> String {
    format!(
        "has({object}.spec.memory) ? quantity({object}.spec.memory) : has({object}.spec.class) ? quantity('0') : \
         quantity(string({cpus} * 2) + 'Gi')"
    )
}

fn vms() -> [Value; 2] {
    let class = |object: &str| format!("(has({object}.spec.class) ? {object}.spec.class : '')");
    let variables = json!([
        {"name": "cpus", "expression": own_cpus("object")},
        {"name": "cpusBefore", "expression": format!("variables.isCreate ? 0 : ({})", own_cpus("oldObject"))},
        {"name": "memory", "expression": own_memory("object", "variables.cpus")},
        {"name": "memoryBefore", "expression": format!(
            "variables.isCreate ? quantity('0') : ({})", own_memory("oldObject", "variables.cpusBefore")
        )},
        {"name": "hasNewClass", "expression": format!("!variables.isCreate && {} != {}", class("object"), class("oldObject"))},
    ]);
    let zero = "quantity('0')";
    // The amounts of classes cannot be compared here. From those of a class to own ones is a change by the whole amount.
    let of_class = |limit: &str, is_own: &str, was_own: &str| {
        validation(
            &format!(
                "!has(variables.hard.{limit}) || variables.isCreate || {is_own} || (!variables.hasNewClass && !({was_own}))"
            ),
            &format!("'{limit}: a VM that exists cannot get those of another class: set {limit} of the VM'"),
            &format!("{limit}: the VM cannot get those of another class, because a Quota limits them"),
        )
    };
    let memory = |name: &str| format!("variables.{name}.compareTo({zero}) > 0");
    let validations = vec![
        number("vms", one()),
        number("cpus", "(variables.cpus - variables.cpusBefore)"),
        bytes("memory", "variables.memory", "variables.memoryBefore"),
        of_class("cpus", "variables.cpus > 0", "variables.cpusBefore > 0"),
        of_class("memory", &memory("memory"), &memory("memoryBefore")),
    ];
    with_quotas("berth-quota-vms", "vms", &["CREATE", "UPDATE"], (variables, validations))
}

/// VMs of a class get more with their class: one that is in a namespace with a limit does not grow.
fn classes() -> [Value; 2] {
    let memory = |object: &str| {
        format!(
            "has({object}.spec.memory) ? quantity({object}.spec.memory) : quantity(string({object}.spec.cpus * 2) + 'Gi')"
        )
    };
    let variables = json!([
        {"name": "memory", "expression": memory("object")},
        {"name": "memoryBefore", "expression": memory("oldObject")},
    ]);
    let no_more = |limit: &str, expression: &str| {
        validation(
            &format!("!has(variables.hard.{limit}) || {expression}"),
            &format!(
                "'{limit}: the VMs of the class would get more: create another class, and set {limit} of the VMs'"
            ),
            &format!("{limit} of a class cannot grow, because a Quota limits them"),
        )
    };
    let validations = vec![
        no_more("cpus", "object.spec.cpus <= oldObject.spec.cpus"),
        no_more("memory", "variables.memory.compareTo(variables.memoryBefore) <= 0"),
    ];
    with_quotas("berth-quota-classes", "vmclasses", &["UPDATE"], (variables, validations))
}
