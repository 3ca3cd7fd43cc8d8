//! The admission policies behind [Quota](crate::Quota): a creation or a change that would use more than a limit is refused.
//!
//! They compare `status.used`, which the controllers count, with the limits. An amount that the object does not declare itself, such as
//! the memory of a class or the size of an image, is known to the controllers alone: these check it before they place the object, and
//! also find those of many creations at once that the count came too late for.

use serde_json::{Value, json};

use super::policy;
use crate::{GROUP, SHARED_NAMESPACE, VERSION};

/// The group that creates classes where their amounts are limited. A policy of both control planes cannot ask for the right to write
/// Quotas.
const MASTERS: &str = "system:masters";

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    let public_ips = count("berth-quota-public-ips", "publicips", "publicIps");
    [vms(), classes(), disks(), snapshots(), images(), backups(), public_ips].into_iter().flatten().collect()
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

/// The validation of a new file, image or backup: none is created once these take as much space as the limit. What they take is known after
/// the fact.
fn some_storage_left(limit: &str, applies: &str) -> Value {
    validation(
        &format!(
            "!has(variables.hard.{limit}) || !variables.isCounted || !has(params.status.used.{limit}) || !({applies}) || \
             quantity(params.status.used.{limit}).compareTo(quantity(variables.hard.{limit})) < 0"
        ),
        &format!("'{limit}: ' + params.status.used.{limit} + ' used, limit ' + variables.hard.{limit}"),
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
    let validations = vec![
        number("snapshots", one()),
        some_bytes_left("diskSize", "variables.isCreate"),
        some_storage_left("usedStorage", "variables.isCreate"),
    ];
    with_quotas("berth-quota-snapshots", "disksnapshots", &["CREATE"], (json!([]), validations))
}

/// An upload declares its size; that of any other image is known once a host has the file.
fn images() -> [Value; 2] {
    let upload = "object.spec.source.upload";
    let size = format!(
        "{} ? quantity(string({})) : quantity('0')",
        present(upload),
        whole(&format!("{upload}.size"))
    );
    let declared = validation(
        "!has(variables.hard.imageStorage) || !variables.isCounted || !has(params.status.used.imageStorage) || \
         quantity(params.status.used.imageStorage).add(variables.uploaded).compareTo(quantity(variables.hard.imageStorage)) <= 0 || \
         variables.uploaded.compareTo(quantity('0')) <= 0",
        &used_bytes("imageStorage"),
        "the Quota of the namespace allows no more imageStorage",
    );
    let validations =
        vec![number("images", one()), declared, some_storage_left("imageStorage", "variables.isCreate")];
    let variables = json!([{"name": "uploaded", "expression": size}]);
    with_quotas("berth-quota-images", "images", &["CREATE"], (variables, validations))
}

/// One that is in its repository already adds nothing there.
fn backups() -> [Value; 2] {
    let is_made = format!("variables.isCreate && {}", present("object.spec.snapshot"));
    let validations = vec![number("backups", one()), some_storage_left("backupStorage", &is_made)];
    with_quotas("berth-quota-backups", "backups", &["CREATE"], (json!([]), validations))
}

fn disks() -> [Value; 2] {
    let (after, before) = (present("object.spec.size"), present("oldObject.spec.size"));
    let variables = json!([
        {"name": "after", "expression": format!("{after} ? quantity(object.spec.size) : quantity('0')")},
        {"name": "before", "expression": format!(
            "variables.isCreate ? quantity('0') : {before} ? quantity(oldObject.spec.size) : \
             has(oldObject.status) && has(oldObject.status.size) ? quantity(oldObject.status.size) : quantity('0')"
        )},
    ]);
    let validations = vec![
        number("disks", one()),
        bytes("diskSize", "variables.after", "variables.before"),
        some_bytes_left("diskSize", &format!("variables.isCreate && !({after})")),
        some_storage_left("usedStorage", "variables.isCreate"),
    ];
    with_quotas("berth-quota-disks", "disks", &["CREATE", "UPDATE"], (variables, validations))
}

/// A number of a request as an integer: the schema takes `2.0` too, with which CEL does not calculate as with `2`.
fn whole(number: &str) -> String {
    format!("int({number})")
}

/// Whether a field has a value: the schema takes a null for a field without one, with which a rule fails, and a rule that fails refuses
/// nothing here.
fn present(field: &str) -> String {
    format!("has({field}) && {field} != null")
}

/// The CPUs that a VM declares itself; 0: those of its class.
fn own_cpus(object: &str) -> String {
    let (cpus, own) = (format!("{object}.spec.cpus"), format!("{object}.spec.cpuTopology"));
    let topology = ["sockets", "cores", "threads"].map(|part| whole(&format!("{own}.{part}")));
    format!("{} ? {} : {} ? {} : 0", present(&cpus), whole(&cpus), present(&own), topology.join(" * "))
}

/// The memory that a VM declares itself, or has by its CPUs; 0: that of its class.
fn own_memory(object: &str, cpus: &str) -> String {
    let (memory, class) = (format!("{object}.spec.memory"), format!("{object}.spec.class"));
    format!(
        "{} ? quantity({memory}) : {} ? quantity('0') : quantity(string({cpus} * 2) + 'Gi')",
        present(&memory),
        present(&class)
    )
}

/// The size of the scratch disk that a VM declares itself, or that a class declares; 0: a VM has that of its class, if there is one.
fn own_scratch(object: &str) -> String {
    let disk = format!("{object}.spec.scratchDisk");
    format!("{} ? quantity({disk}.size) : quantity('0')", present(&disk))
}

/// The amounts that a VM declares, those that it declared before, and those that it counts with: a bound VM has its hardware until its
/// next start, whatever it declares.
fn vm_variables() -> Value {
    let class = |object: &str| {
        let class = format!("{object}.spec.class");
        format!("({} ? {class} : '')", present(&class))
    };
    json!([
        {"name": "cpus", "expression": own_cpus("object")},
        {"name": "ownCpusBefore", "expression": format!("variables.isCreate ? 0 : ({})", own_cpus("oldObject"))},
        {"name": "memory", "expression": own_memory("object", "variables.cpus")},
        {"name": "ownMemoryBefore", "expression": format!(
            "variables.isCreate ? quantity('0') : ({})", own_memory("oldObject", "variables.ownCpusBefore")
        )},
        {"name": "hasHardware", "expression": "!variables.isCreate && has(oldObject.status) && has(oldObject.status.binding) && \
            has(oldObject.status.hardware)"},
        {"name": "cpusBefore", "expression": "variables.hasHardware && oldObject.status.hardware.cpus > variables.ownCpusBefore ? \
            oldObject.status.hardware.cpus : variables.ownCpusBefore"},
        {"name": "memoryBefore", "expression": "variables.hasHardware && \
            quantity(oldObject.status.hardware.memory).compareTo(variables.ownMemoryBefore) > 0 ? \
            quantity(oldObject.status.hardware.memory) : variables.ownMemoryBefore"},
        {"name": "scratch", "expression": own_scratch("object")},
        {"name": "ownScratchBefore", "expression": format!("variables.isCreate ? quantity('0') : ({})", own_scratch("oldObject"))},
        {"name": "scratchBefore", "expression": "variables.hasHardware && has(oldObject.status.hardware.scratchDisk) && \
            quantity(oldObject.status.hardware.scratchDisk).compareTo(variables.ownScratchBefore) > 0 ? \
            quantity(oldObject.status.hardware.scratchDisk) : variables.ownScratchBefore"},
        {"name": "hasNewClass", "expression": format!("!variables.isCreate && {} != {}", class("object"), class("oldObject"))},
        {"name": "mayGetScratch", "expression": format!(
            "{} != '' && variables.scratch.compareTo(quantity('0')) <= 0 && \
             (variables.hasNewClass || variables.ownScratchBefore.compareTo(quantity('0')) > 0)",
            class("object")
        )},
    ])
}

/// The validation of a VM that exists and may get the scratch disk of a class, whose size is not in the request: none gets one once nothing
/// is left. A new VM is compared with its class before it is placed.
fn scratch_of_class() -> Value {
    validation(
        "!has(variables.hard.diskSize) || !variables.isCounted || !variables.mayGetScratch || \
         quantity(params.status.used.diskSize).compareTo(quantity(variables.hard.diskSize)) < 0",
        "'diskSize: ' + params.status.used.diskSize + ' used, limit ' + variables.hard.diskSize + \
         ': a VM that exists cannot get the scratch disk of a class: set scratchDisk of the VM, or delete disks first'",
        "diskSize: the VM cannot get the scratch disk of a class, because a Quota limits it",
    )
}

fn vms() -> [Value; 2] {
    // The amounts of classes cannot be compared here.
    let of_class = |limit: &str, is_own: &str, is_same: &str| {
        validation(
            &format!("!has(variables.hard.{limit}) || variables.isCreate || {is_own} || ({is_same})"),
            &format!(
                "'{limit}: a VM that exists cannot get those of another class or of other CPUs: set {limit} of the VM'"
            ),
            &format!(
                "{limit}: the VM cannot get those of another class or of other CPUs, because a Quota limits them"
            ),
        )
    };
    let is_set = |name: &str| format!("variables.{name}.compareTo(quantity('0')) > 0");
    let validations = vec![
        number("vms", one()),
        number("cpus", "(variables.cpus - variables.cpusBefore)"),
        bytes("memory", "variables.memory", "variables.memoryBefore"),
        bytes("diskSize", "variables.scratch", "variables.scratchBefore"),
        of_class("cpus", "variables.cpus > 0", "!variables.hasNewClass && variables.ownCpusBefore == 0"),
        // Under a class without memory a VM has memory by its own CPUs.
        of_class(
            "memory",
            &is_set("memory"),
            &format!(
                "!variables.hasNewClass && !({}) && variables.cpus == variables.ownCpusBefore",
                is_set("ownMemoryBefore")
            ),
        ),
        scratch_of_class(),
    ];
    with_quotas("berth-quota-vms", "vms", &["CREATE", "UPDATE"], (vm_variables(), validations))
}

/// VMs of a class get more with their class: one that is in a namespace with a limit does not grow. Nor is one made there, except by
/// administrators: under the name of one in `berth-shared` it is the class of VMs that exist.
fn classes() -> [Value; 2] {
    let cpus = |object: &str| whole(&format!("{object}.spec.cpus"));
    let memory = |object: &str| {
        let memory = format!("{object}.spec.memory");
        format!("{} ? quantity({memory}) : quantity(string({} * 2) + 'Gi')", present(&memory), cpus(object))
    };
    let variables = json!([
        {"name": "memory", "expression": memory("object")},
        {"name": "memoryBefore", "expression": format!("variables.isCreate ? quantity('0') : ({})", memory("oldObject"))},
        {"name": "scratch", "expression": own_scratch("object")},
        {"name": "scratchBefore", "expression": format!("variables.isCreate ? quantity('0') : ({})", own_scratch("oldObject"))},
        {"name": "isMaster", "expression": format!(
            "has(request.userInfo.groups) && '{MASTERS}' in request.userInfo.groups"
        )},
    ]);
    let no_more = |limit: &str, field: &str, expression: &str| {
        validation(
            &format!("!has(variables.hard.{limit}) || variables.isCreate || {expression}"),
            &format!(
                "'{limit}: the VMs of the class would get more: use another class, and set {field} of the VMs'"
            ),
            &format!("{field} of a class cannot grow, because a Quota limits {limit}"),
        )
    };
    let only_masters = |is_limited: &str, what: &str, set: &str| {
        let text = format!(
            "only members of {MASTERS} create a VMClass {what}: use one of {SHARED_NAMESPACE}, or set {set} of the VM"
        );
        validation(
            &format!("!variables.isCreate || variables.isMaster || !({is_limited})"),
            &format!("'{text}'"),
            &text,
        )
    };
    let validations = vec![
        only_masters(
            "has(variables.hard.cpus) || has(variables.hard.memory)",
            "where cpus or memory are limited",
            "cpus and memory",
        ),
        only_masters(
            "has(variables.hard.diskSize) && variables.scratch.compareTo(quantity('0')) > 0",
            "with a scratchDisk where diskSize is limited",
            "scratchDisk",
        ),
        no_more("cpus", "cpus", &format!("{} <= {}", cpus("object"), cpus("oldObject"))),
        no_more("memory", "memory", "variables.memory.compareTo(variables.memoryBefore) <= 0"),
        no_more("diskSize", "scratchDisk", "variables.scratch.compareTo(variables.scratchBefore) <= 0"),
    ];
    with_quotas("berth-quota-classes", "vmclasses", &["CREATE", "UPDATE"], (variables, validations))
}
