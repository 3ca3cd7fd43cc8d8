//! `berth_vm`

mod annotations;
pub(crate) mod architecture;
mod bootstrap;
pub(crate) mod devices;
mod disks;
mod guest;
mod hardware;
mod interfaces;
mod lists;
mod network_config;
mod observed;
mod placement;
mod probes;
pub(crate) mod restart;
mod restore;
mod room;
pub(crate) mod size;

use async_trait::async_trait;
use berth_api::{Power, Reason};
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::{Api, ApiError},
    change::PlannedChange,
    disk,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind, SideObject},
    mapping::find_named,
    private::Private,
    readiness::{self, Outcome, Readiness},
    references::{CLASS, DISK, GROUP, HOST, IMAGE, Named, PUBLIC_IP, Reference, VM_GROUP},
};

/// A virtual machine.
#[derive(Debug)]
pub struct Vm;

fn cdroms() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).presence(Presence::Numbered("cdrom")).text(
            "Name of the drive within the VM, the key of the list, at most 36 characters: the guest sees it as the drive's serial \
             number. Default `cdrom0`, `cdrom1`, … by position.",
        ),
        Field::spec("image", Shape::Text(Form::Name)).refers(IMAGE),
        Field::spec("connected", Shape::Bool).default(true),
        Field::spec("boot_first", Shape::Bool).default(false).effect(Effect::PowerCycle),
        Field::spec("guest_can_eject", Shape::Bool).default(true),
    ];
    Field::spec("cdroms", Shape::Keyed(fields)).effect(Effect::PowerCycle)
}

fn placement_field() -> Field {
    let fields = vec![
        Field::spec("group", Shape::Text(Form::Name)).effect(Effect::Replace).refers(GROUP),
        Field::spec("host", Shape::Text(Form::DottedName)).effect(Effect::Placement).refers(HOST),
        Field::spec("host_selector", Shape::TextMap).effect(Effect::Placement),
        Field::spec("preferred_host_selector", Shape::TextMap),
        placement::affinity(),
        Field::spec("move_policy", Shape::Text(Form::Any)),
    ];
    Field::spec("placement", Shape::Object(fields)).presence(Presence::Filled).text(
        "Where it may run. Default: the `host_selector` of the provider for a new VM. A VM that exists keeps the placement that it got from \
         there, or had when it was imported, also with another default; `placement = {}` declares none.",
    )
}

fn stop() -> Field {
    let (mode, grace) = (Value::from("Graceful"), Value::from(60));
    let fields = vec![
        Field::spec("mode", Shape::Text(Form::Any)).default(mode.clone()),
        Field::spec("grace_period_seconds", Shape::Integer).default(grace.clone()),
    ];
    let default = Value::object([("mode", mode), ("grace_period_seconds", grace)]);
    Field::spec("stop", Shape::Object(fields)).implied(default)
}

fn observed_fields() -> Vec<Field> {
    vec![
        Field::observed(
            "private_address",
            "/status/privateAddress",
            "The private address of the first interface. Allocated once and kept.",
        )
        .follows(&["network_interfaces"]),
        Field::observed(
            "public_address",
            "/status/publicAddress",
            "The first public IPv4 address of its interfaces, once it is allocated. It reaches the VM while the VM runs.",
        )
        .follows(&["network_interfaces"]),
        Field::observed(
            "public_ipv6_address",
            "/status/publicIPv6Address",
            "The first public IPv6 address of its interfaces, once it is allocated. It reaches the VM while the VM runs.",
        )
        .follows(&["network_interfaces"]),
        Field {
            shape: Shape::TextListMap,
            ..Field::observed(
                "addresses",
                "/status/addresses",
                "The addresses of each interface, by its name: the private one, then the public IPv4 address once it is allocated, then the private and the public IPv6 address. For outputs \
                 and other resources: `berth_vm.web.addresses[\"nic0\"][0]`, or all of them with \
                 `flatten(values(berth_vm.web.addresses))`. The list of an interface is empty until the VM is placed. Addresses that \
                 the guest chose itself are in `status.guest.addresses` and `status.observed_addresses` of the data source.",
            )
        }
        .follows(&["network_interfaces"]),
        Field {
            shape: Shape::TextMap,
            ..Field::observed(
                "public_ports",
                "/status/publicPortAddresses",
                "The public address and port of each entry of `ports` of a `berth_public_ip` that leads to this VM, by the names of both: \
                 `berth_vm.web.public_ports[\"web/ssh\"]` is `203.0.113.5:30017`. A PublicIP is usually declared after its VMs: the next \
                 plan or refresh reads its ports. `status.public_ports` of the data source has them with protocol and port of the VM.",
            )
        },
        Field {
            shape: Shape::TextList(Form::Any),
            ..Field::observed(
                "pending_power_cycle",
                "/status/pendingPowerCycle",
                "The names of what takes effect when the running VM is next started: `class`, `cpus`, `max_cpus`, `memory`, \
                 `max_memory`, `huge_pages`, `firmware`, `secure_boot_keys`, `tpm`, `cpu_topology`, `numa_nodes`, `dedicated_cpu_placement`, `isolate_emulator_thread`, `io_threads_policy`, `cpu_model`, `machine_type`, `guest_os`, `watchdog`, `serial_number`, `graphics`, `resolution`, `keyboard_layout`, `sound`, `serial_ports`, `vsock`, `boot_order`, `uuid`, `pci_devices`, `usb_devices`, `vgpus`, `shares`, `scratch_disk`, `qemu_options` of its class, `disks[NAME]` of another boot disk, bus or `read_only`, `cdroms[NAME]`, `network_interfaces[NAME]`, `restore`, `placement` (the VM moves to another host). Every plan warns while it is not empty, \
                 whether this configuration or another client made the change. With `allow_reboot` the apply restarts the VM.",
            )
        }
        .follows(&["class", "cpus", "max_cpus", "memory", "max_memory", "huge_pages", "firmware", "secure_boot_keys", "tpm", "cpu_topology", "numa_nodes", "dedicated_cpu_placement", "isolate_emulator_thread", "io_threads_policy", "cpu_model", "machine_type", "guest_os", "watchdog", "serial_number", "graphics", "resolution", "keyboard_layout", "sound", "serial_ports", "vsock", "boot_order", "uuid", "pci_devices", "usb_devices", "vgpus", "shares", "scratch_disk", "disks", "cdroms", "network_interfaces", "restore", "placement", "power"]),
        Field::observed(
            "host",
            "/status/binding/host",
            "The host it runs on. A move to another host is not a change of the resource.",
        ),
        Field::observed(
            "instance_id",
            "/status/instanceID",
            "berth's own identity of the machine, also visible to cloud-init.",
        ),
        Field::observed(
            "state",
            "/status/state",
            "The state of the VM, such as `Running`, `Paused` or `Stopped`.",
        )
        .follows(&["power", "vm_group"]),
    ]
}

#[async_trait]
impl ResourceKind for Vm {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_vm",
            kind: "VM",
            plural: "vms",
            description: "A virtual machine: its size, disks, network interfaces, bootstrap data, power and placement.\n\nNo small change destroys a VM. The table below and the plan show the effect of each change: it is live, or takes effect at the next power cycle (with a warning; `allow_reboot` restarts the VM in the same apply), or is refused with the name of the attribute that allows it. Another boot disk takes effect at the next power cycle; until then the VM runs with the disk it booted from, and that disk stays in use.\n\nA refused change is a warning in the plan and an error in the apply, before the VM is changed. An error in the plan would block `terraform destroy`, because Terraform first makes such a plan for it. The same holds for names of objects that do not exist: the apply fails within seconds once no other apply of the run can create them. Refer to an object by the `name` of its resource, so that Terraform creates it first.",
            example: include_str!("../../examples/resources/berth_vm/resource.tf"),
            shown: "status.interfaces",
            timeouts: [600, 600, 600],
        }
    }

    fn finalizer(&self) -> Option<&'static str> {
        Some(berth_api::HOST_FINALIZER)
    }

    fn fields(&self) -> Vec<Field> {
        let disk = vec![
            Field::spec("name", Shape::Text(Form::Name)).required().refers(DISK),
            disk::template(),
            Field::spec("boot", Shape::Bool).default(false).effect(Effect::PowerCycle),
            Field::spec("bus", Shape::Text(Form::Any)).default("virtio-scsi").effect(Effect::PowerCycle),
            Field::spec("read_only", Shape::Bool).default(false).effect(Effect::PowerCycle),
        ];
        let mut fields = vec![
            annotations::field(),
            Field::spec("class", Shape::Text(Form::Name)).effect(Effect::PowerCycle).refers(CLASS),
            Field::spec("class_policy", Shape::Text(Form::Any)),
            Field::spec("cpus", Shape::Integer).effect(Effect::Grow),
            Field::spec("max_cpus", Shape::Integer).effect(Effect::PowerCycle),
            Field::spec("memory", Shape::Text(Form::Memory)).effect(Effect::Resize),
            Field::spec("max_memory", Shape::Text(Form::Memory)).effect(Effect::PowerCycle),
            Field::spec("memory_reservation", Shape::Text(Form::Memory)),
            Field::spec("huge_pages", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            Field::spec("firmware", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            hardware::secure_boot_keys(),
            Field::spec("tpm", Shape::Bool).effect(Effect::PowerCycle),
            size::cpu_topology(),
            Field::spec("numa_nodes", Shape::Integer).effect(Effect::PowerCycle),
            Field::spec("cpu_limit", Shape::Text(Form::Cpus)),
            Field::spec("cpu_weight", Shape::Integer),
            Field::spec("cpu_reservation", Shape::Text(Form::Cpus)),
            Field::spec("dedicated_cpu_placement", Shape::Bool).effect(Effect::PowerCycle),
            Field::spec("isolate_emulator_thread", Shape::Bool).effect(Effect::PowerCycle),
            Field::spec("io_threads_policy", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            Field::spec("architecture", Shape::Text(Form::Any)).effect(Effect::Replace),
            Field::spec("cpu_model", Shape::Text(Form::CpuModel)).effect(Effect::PowerCycle),
            Field::spec("machine_type", Shape::Text(Form::MachineType)).effect(Effect::PowerCycle),
            Field::spec("guest_os", Shape::Text(Form::Any)).key("guestOS").effect(Effect::PowerCycle),
            Field::spec("graphics", Shape::Text(Form::Any)).default("None").effect(Effect::PowerCycle),
            Field::spec("watchdog", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
            Field::spec("serial_number", Shape::Text(Form::SerialNumber)).effect(Effect::PowerCycle),
            Field::spec("uuid", Shape::Text(Form::Uuid)).effect(Effect::PowerCycle),
            devices::pci_devices(),
            devices::usb_devices(),
            devices::vgpus(),
            devices::scratch_disk(),
            devices::shares(),
            Field::spec("disks", Shape::Keyed(disk)).required(),
            cdroms(),
            interfaces::network_interfaces(),
            placement_field(),
            bootstrap::field(),
            guest::users(),
            guest::agent(),
            Field::spec("power", Shape::Text(Form::Any)).default("Running"),
            Field::spec("suspend_mode", Shape::Text(Form::Any)).default("Disk"),
            Field::spec("restart_policy", Shape::Text(Form::Any)).default("OnFailure"),
            probes::probe("readiness_probe"),
            probes::probe("liveness_probe"),
            probes::hooks(),
            Field::spec("start_order", Shape::Integer),
            Field::spec("start_delay_seconds", Shape::Integer).default(0),
            Field::spec("vm_group", Shape::Text(Form::Name)).refers(VM_GROUP),
            stop(),
            Field::spec("restart_mode", Shape::Text(Form::Any)),
            Field::spec("restart_token", Shape::Text(Form::Any)).effect(Effect::Reboot).text(
                "Any text, at most 230 characters. A change restarts the VM once (according to \
                 `restart_mode`) and is refused while `power` is not `Running`; removing it restarts nothing, unless the provider has restarted the VM before. \
                 Together with `allow_reboot` and `user_data_policy`, an \
                 apply restarts the VM only once.",
            ),
            restore::field(),
            Field::spec("deletion_protection", Shape::Bool).default(false),
            Field::local(
                "wait_for",
                Shape::Text(Form::Any),
                "The state that an apply waits for: `none`, `running` (default: QEMU runs and everything declared is \
                 attached), or `guest` (the guest agent answered, or without an agent the guest got its first DHCP \
                 lease).",
            )
            .one_of(&["none", "running", "guest"])
            .default("running"),
            Field::local(
                "allow_reboot",
                Shape::Bool,
                "Restart a running VM in the same apply when a change would otherwise wait for the next power cycle, and when one \
                 waits already (`pending_power_cycle`). Default false.",
            )
            .default(false),
        ];
        fields.extend(hardware::fields());
        fields.extend(observed_fields());
        fields.extend(network_config::observed());
        fields.extend(restore::observed());
        fields
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = size::check(config);
        found.extend(architecture::check(config));
        found.extend(disks::check_disks(config));
        found.extend(disks::check_buses(config));
        found.extend(disks::check_templates(config));
        found.extend(check_cdroms(config));
        found.extend(hardware::check(config));
        found.extend(devices::check(config));
        found.extend(devices::check_shares(config));
        found.extend(interfaces::check_interfaces(config));
        found.extend(bootstrap::check(config.get("bootstrap")));
        found.extend(guest::check(config));
        found.extend(restart::check(config.get("restart_token")));
        found.extend(annotations::check(config));
        found.extend(placement::check(config));
        found
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        // First: it may compute the changes again, with the effects of the table.
        bootstrap::refine(change);
        size::refine(change);
        refuse_other_identities(change);
        disks::refuse_smaller_templates(change);
        placement::refine(change);
        disks::wait_with_another_boot_disk(change);
        interfaces::wait_with_fixed_models(change);
        for list in ["disks", "network_interfaces"] {
            lists::wait_with_elements_that_stay(change, list);
        }
        restore::refine(change);
        restart::refine(change);
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        placement::look(api, change).await;
        room::look(api, change).await;
    }

    /// The disks and public addresses of a VM that is to run.
    fn holds(&self, planned: &Value) -> Vec<Named> {
        if planned.get("power").as_str() == Some("Stopped") {
            return Vec::new();
        }
        let of = |list: &str, attribute: &str, reference: Reference| {
            let path = AttributePath::root(list);
            let attribute = attribute.to_owned();
            let elements = planned.get(list).elements().to_vec();
            elements.into_iter().enumerate().filter_map(move |(i, element)| {
                let name = element.get(&attribute).as_str()?.to_owned();
                Some(Named { path: path.clone().index(i).attribute(&attribute), reference, name })
            })
        };
        let public = ["public_ip", "public_ipv6"].into_iter();
        let public = public.flat_map(|attribute| of("network_interfaces", attribute, PUBLIC_IP));
        of("disks", "name", DISK).chain(public).collect()
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        observed::view(object, &mut view);
        let decided = object.pointer("/status/interfaces").and_then(Json::as_array);
        let interfaces = view.pointer_mut("/spec/networkInterfaces").and_then(Json::as_array_mut);
        for interface in interfaces.into_iter().flatten() {
            let same_name = |other: &&Json| other.get("name") == interface.get("name");
            let decided = decided.into_iter().flatten().find(same_name).cloned();
            if let (Some(decided), Some(interface)) = (decided, interface.as_object_mut()) {
                for key in ["macAddress", "address", "ipv6Address"] {
                    let value = decided.get(key).filter(|value| value.as_str() != Some("")).cloned();
                    if let Some(value) = value {
                        interface.entry(key).or_insert(value);
                    }
                }
            }
        }
        bootstrap::view(&mut view);
        restart::view(&mut view);
        view
    }

    async fn complete(&self, api: &Api, object: Json) -> Json {
        observed::complete(api, object).await
    }

    fn declare(&self, spec: &mut Json, name: &str, planned: &Value, private: &Private) {
        bootstrap::declare(spec, name, planned, private);
        restart::declare(spec, private);
    }

    fn private_of(&self, object: &Json, private: Private) -> Private {
        Private { restart_token: restart::kept(object), ..private }
    }

    fn outcome(&self, object: &Json, planned: &Value) -> Outcome {
        let wait_for = planned.get("wait_for").as_str().unwrap_or("running");
        if wait_for == "none" {
            return addresses(object);
        }
        let readiness = Readiness::of(object);
        let is_in_group = object.pointer("/spec/vmGroup").is_some();
        let group_waits =
            readiness.ready.as_ref().filter(|ready| ready.reason == Reason::WaitingForVM.as_str());
        if let Some(ready) = group_waits.filter(|_| readiness.current && is_in_group) {
            // Terraform makes ten objects at a time: it may make the awaited VM only once this one is done.
            return Outcome::Soon(ready.text());
        }
        // An object that only waits for the next power cycle cannot become more ready.
        let waits_for_person =
            readiness.ready.as_ref().is_some_and(|ready| ready.reason == "PowerCycleNeeded");
        let outcome = match readiness.outcome() {
            Outcome::Waiting(_) if readiness.current && waits_for_person => Outcome::Done,
            outcome => outcome,
        };
        if outcome != Outcome::Done {
            return outcome;
        }
        let power = object.pointer("/spec/power").and_then(Json::as_str);
        if power.is_some_and(|power| power != Power::Running.as_str()) {
            return addresses(object);
        }
        // Its group has stopped it.
        let is_stopped = readiness.ready.is_some_and(|ready| ready.reason == Reason::Stopped.as_str());
        if is_stopped && is_in_group {
            return addresses(object);
        }
        let wanted: &[&str] = if wait_for == "guest" { &["Running", "GuestReady"] } else { &["Running"] };
        let missing = wanted.iter().find(|&&kind| !readiness::is_true(object, kind));
        missing.map_or(Outcome::Done, |&kind| {
            let seen = readiness::condition(object, kind).map(|condition| condition.text());
            Outcome::Waiting(seen.unwrap_or_else(|| format!("condition {kind}")))
        })
    }

    fn check_updated(&self, object: &Json, prior: &Value, planned: &Value) -> Option<Diagnostic> {
        size::check_taken(object, prior, planned)
    }

    /// The hardware is fixed at the first start: before that there is nothing to lose.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        let ran = |pointer| object.pointer(pointer).is_some_and(|value| !value.is_null());
        ran("/status/hardware") || ran("/status/process") || readiness::is_true(object, "Running")
    }

    fn has_side_object(&self, side_object: &SideObject<'_>) -> bool {
        bootstrap::content_to_write(side_object).is_some()
    }

    async fn write_side_object(&self, side_object: SideObject<'_>) -> Result<(), ApiError> {
        bootstrap::write(side_object).await
    }

    async fn read_side_object(
        &self,
        api: &Api,
        object: &Json,
        private: &Private,
        state: &mut Value,
    ) -> Result<Private, ApiError> {
        bootstrap::read(api, object, private, state).await
    }
}

/// Whether every interface has its addresses, which it gets when the VM is placed: at once, if all that it needs is there. Outputs
/// made of them should be complete after the apply. Once the control plane has decided that the VM waits for something else, such
/// as a class, an image or room on a host, its addresses are not waited for.
fn addresses(object: &Json) -> Outcome {
    let readiness = Readiness::of(object);
    let is_placed = object.pointer("/status/binding").is_some();
    if readiness.current && !is_placed && readiness.ready.is_some_and(|ready| ready.status != "True") {
        return Outcome::Done;
    }
    let list = |pointer| object.pointer(pointer).and_then(Json::as_array).into_iter().flatten();
    let has_address =
        |wanted: &&Json| list("/status/interfaces").any(|given| given.get("name") == wanted.get("name"));
    match list("/spec/networkInterfaces").find(|wanted| !has_address(wanted)) {
        Some(wanted) => Outcome::Soon(format!("the address of {}", wanted["name"])),
        None => Outcome::Done,
    }
}

/// Refuses one image in two drives, and two drives to boot from first.
fn check_cdroms(config: &Value) -> Vec<Diagnostic> {
    let drives = config.get("cdroms").elements();
    let mut found = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    for (i, drive) in drives.iter().enumerate() {
        if let Some(name) = drive.get("name").as_str().filter(|name| name.chars().count() > 36) {
            let path = AttributePath::root("cdroms").index(i).attribute("name");
            let detail = format!(
                "{path}: {name:?} has more than 36 characters, and it is the serial number of the drive in the guest: shorten it."
            );
            found.push(Diagnostic::error("The name of a CD-ROM drive is too long", detail).at(path));
        }
        let Some(image) = drive.get("image").as_str() else { continue };
        if let Some(first) = seen.insert(image.to_owned(), i) {
            let path = AttributePath::root("cdroms").index(i).attribute("image");
            let detail = format!(
                "{path}: cdroms[{first}] has the image {image:?} too; it can be in one drive only: remove it from one of them."
            );
            found.push(Diagnostic::error("One image in two CD-ROM drives", detail).at(path));
        }
    }
    let mut first =
        drives.iter().enumerate().filter(|(_, drive)| drive.get("boot_first").as_bool() == Some(true));
    if let Some((second, _)) = first.nth(1) {
        let path = AttributePath::root("cdroms").index(second).attribute("boot_first");
        let detail = "Several drives have boot_first = true; one may. The VM tries its medium before the boot disk: leave boot_first out of the others.";
        found.push(Diagnostic::error("More than one CD-ROM drive to boot from first", detail).at(path));
    }
    found
}

/// Whether the template of an existing disk is to be encrypted and was not, or the other way around.
fn gets_or_loses_encryption(before: &Value, after: &Value) -> bool {
    let (was, is) = (before.get("encryption"), after.get("encryption"));
    !before.is_null() && !is.is_unknown() && was.is_null() != is.is_null()
}

/// Refuses to change an interface's network, MAC or address: they are its identity, and other values mean another interface.
fn refuse_other_identities(change: &mut PlannedChange<'_>) {
    if change.is_create() || !change.replace.is_empty() {
        return;
    }
    // An unknown value may become the current one.
    let known =
        change.with_effect(Effect::Fixed).filter(|fixed| !change.planned.at(&fixed.path).is_unknown());
    let mut refused: Vec<AttributePath> = known.map(|fixed| fixed.path.clone()).collect();
    for list in ["disks", "network_interfaces"] {
        refused.extend(lists::fixed_in_elements_that_stay(change, list));
    }
    // A template that is added or removed is refused as a whole.
    for (i, disk) in change.planned.get("disks").elements().iter().enumerate() {
        let Some(before) = find_named(change.prior.get("disks").elements(), disk) else { continue };
        let (before, after) = (before.get("template"), disk.get("template"));
        let template = AttributePath::root("disks").index(i).attribute("template");
        if before.is_null() != after.is_null() {
            let within = format!("{template}.");
            let count = refused.len();
            refused.retain(|path| !path.to_string().starts_with(&within));
            refused.extend((refused.len() < count).then_some(template));
        } else if gets_or_loses_encryption(before, after) {
            refused.push(template.attribute("encryption"));
        }
    }
    for path in refused {
        let text = path.to_string();
        let name = text.rsplit('.').next().unwrap_or_default();
        let (element, replaced) = match text.starts_with("disks") {
            true => ("disk", "with a Disk of its own"),
            false => ("interface", "which replaces it at the next power cycle"),
        };
        let detail = format!(
            "{name} cannot change on an existing {element}. Give the {element} another name: it is a new {element} then, \
             {replaced}."
        );
        change.refuse(format!("{name} of the {element} cannot change"), detail, path);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_expected_soon_unless_the_vm_waits_for_something_else() {
        let vm = |observed: i64, binding: Json, interfaces: Json| {
            json!({
                "metadata": {"generation": 2},
                "spec": {"networkInterfaces": [{"name": "nic0"}]},
                "status": {
                    "observedGeneration": observed,
                    "binding": binding,
                    "interfaces": interfaces,
                    "conditions": [{"type": "Ready", "status": "False", "reason": "R"}],
                },
            })
        };
        let is_soon = |object: &Json| matches!(addresses(object), Outcome::Soon(_));
        let mut waiting = vm(2, json!(null), json!([]));
        waiting["status"].as_object_mut().expect("an object").remove("binding");
        assert_eq!(addresses(&waiting), Outcome::Done);
        waiting["status"]["observedGeneration"] = 1.into();
        assert!(is_soon(&waiting), "the status is that of an earlier spec");
        assert!(
            is_soon(&json!({"spec": {"networkInterfaces": [{"name": "nic0"}]}})),
            "there is no status yet"
        );
        let binding = || json!({"host": "a", "epoch": 1});
        assert!(is_soon(&vm(2, binding(), json!([]))), "it was placed");
        assert_eq!(addresses(&vm(2, binding(), json!([{"name": "nic0"}]))), Outcome::Done);
    }

    #[test]
    fn a_vm_whose_group_has_stopped_it_is_done_and_one_whose_group_waits_for_another_vm_is_soon() {
        let outcome = |group: Option<&str>, status: &str, reason: &str| {
            let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": ""});
            let mut vm = json!({"metadata": {"generation": 1}, "spec": {"power": "Running"},
                "status": {"observedGeneration": 1, "conditions": [ready]}});
            if let Some(group) = group {
                vm["spec"]["vmGroup"] = group.into();
            }
            Vm.outcome(&vm, &Value::Null)
        };
        assert_eq!(outcome(Some("app"), "True", "Stopped"), Outcome::Done);
        assert!(matches!(outcome(None, "True", "Stopped"), Outcome::Waiting(_)));
        assert!(matches!(outcome(Some("app"), "False", "StartOrderHeld"), Outcome::Waiting(_)));
        assert!(matches!(outcome(Some("app"), "False", "WaitingForVM"), Outcome::Soon(_)));
    }

    #[test]
    fn an_apply_waits_until_the_guest_has_the_memory_or_takes_no_more_of_it() {
        let outcome = |ready: &str, reason: &str| {
            let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason});
            let conditions = [
                condition("Ready", ready, reason),
                condition("Running", "True", "Running"),
                condition("ClassSynced", "False", reason),
            ];
            let vm = json!({"metadata": {"generation": 2}, "spec": {"power": "Running"},
                "status": {"observedGeneration": 2, "conditions": conditions}});
            Vm.outcome(&vm, &Value::Null)
        };
        assert_eq!(outcome("False", "Attaching"), Outcome::Waiting("Attaching".into()));
        assert_eq!(outcome("True", "PowerCycleNeeded"), Outcome::Done);
    }
}
