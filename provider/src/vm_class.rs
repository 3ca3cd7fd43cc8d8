//! `berth_vm_class`

use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    disk,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::{Outcome, Readiness},
    vm::{architecture, devices, size},
};

/// A size and hardware profile.
#[derive(Debug)]
pub struct VmClass;

impl ResourceKind for VmClass {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_vm_class",
            kind: "VMClass",
            plural: "vmclasses",
            description: "A size and hardware profile that many VMs share. A change reaches each VM at its next power cycle; more `cpus`, up to `max_cpus`, another `memory`, up to `max_memory`, and another `memory_reservation`, `cpu_limit`, `cpu_weight`, `cpu_reservation` or other `disk_limits` reach those that run at once. Destroying a class that VMs use is accepted; a finalizer keeps it until no VM uses it.",
            example: include_str!("../../examples/resources/berth_vm_class/resource.tf"),
            shown: "status.used_by",
            timeouts: [120, 120, 120],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("cpus", Shape::Integer).required().effect(Effect::Grow),
            Field::spec("max_cpus", Shape::Integer).effect(Effect::PowerCycle),
            Field::spec("memory", Shape::Text(Form::Memory)).effect(Effect::Resize),
            Field::spec("max_memory", Shape::Text(Form::Memory)).effect(Effect::PowerCycle),
            Field::spec("memory_reservation", Shape::Text(Form::Memory)),
            Field::spec("huge_pages", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            Field::spec("firmware", Shape::Text(Form::Any)).default("UEFI").effect(Effect::PowerCycle),
            Field::spec("tpm", Shape::Bool).effect(Effect::PowerCycle),
            size::cpu_topology(),
            Field::spec("numa_nodes", Shape::Integer).effect(Effect::PowerCycle),
            Field::spec("cpu_limit", Shape::Text(Form::Cpus)),
            Field::spec("cpu_weight", Shape::Integer),
            Field::spec("cpu_reservation", Shape::Text(Form::Cpus)),
            Field::spec("dedicated_cpu_placement", Shape::Bool).effect(Effect::PowerCycle),
            Field::spec("isolate_emulator_thread", Shape::Bool).effect(Effect::PowerCycle),
            Field::spec("io_threads_policy", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            Field::spec("architecture", Shape::Text(Form::Any)).implied("x86_64").effect(Effect::Replace),
            Field::spec("cpu_model", Shape::Text(Form::CpuModel)).effect(Effect::PowerCycle),
            Field::spec("guest_os", Shape::Text(Form::Any)).key("guestOS").effect(Effect::PowerCycle),
            qemu_options(),
            Field::spec("network_interface_model", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            devices::pci_devices(),
            devices::usb_devices(),
            devices::vgpus(),
            devices::scratch_disk(),
            disk::limits("disk_limits"),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = size::check_bounds(config);
        found.extend(architecture::check(config));
        found.extend(devices::check(config));
        found.extend(disk::check_limits(config.get("disk_limits"), &AttributePath::root("disk_limits")));
        found
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        size::refine(change);
    }

    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        seen(object)
    }
}

fn qemu_options() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Any)).required(),
        Field::spec("value", Shape::Text(Form::Any)).required().effect(Effect::PowerCycle),
    ];
    Field::spec("qemu_options", Shape::Keyed(fields)).effect(Effect::PowerCycle)
}

/// Whether the control plane has observed the object: nothing has to be created for it.
pub(crate) fn seen(object: &Json) -> Outcome {
    let readiness = Readiness::of(object);
    match (readiness.outcome(), readiness.ready) {
        (Outcome::Waiting(_), Some(_)) if readiness.current => Outcome::Done,
        (outcome, _) => outcome,
    }
}
