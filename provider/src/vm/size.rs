//! The size of a VM: its own attributes, or those of its class.

use berth_api::{
    CpuAmount, CpuTopology, Firmware, HugePages, Power, Quantity, ResourceName, VMClassSpec, VMSpec, numa,
};
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Effect, Field, Shape, declared_power},
    readiness::{self, Readiness},
};

/// The least memory of a VM, in bytes.
const LEAST: u64 = 16 << 20;
/// Less memory than this is little beside UEFI firmware, in bytes.
const LEAST_FOR_UEFI: u64 = 128 << 20;

/// The arrangement of the CPUs, of a VM or of a class.
pub(crate) fn cpu_topology() -> Field {
    let count = |name| Field::spec(name, Shape::Integer).default(1).effect(Effect::PowerCycle);
    let counts = vec![count("sockets"), count("cores"), count("threads")];
    Field::spec("cpu_topology", Shape::Object(counts)).effect(Effect::PowerCycle)
}

/// The problems with the size of a VM.
pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let mut found = check_bounds(config);
    if ["class", "cpus", "cpu_topology"].iter().all(|name| config.get(name).is_null()) {
        let detail = "cpus: a VM without a class needs a number of CPUs: set cpus (and memory, of which the default is 2Gi for \
                      each CPU), or name a class.";
        found.push(Diagnostic::error("Neither cpus nor class", detail).at(AttributePath::root("cpus")));
    }
    if config.get("class_policy").as_str() == Some("Pin") && config.get("class").is_null() {
        let detail =
            "class_policy: Pin keeps the values of a class: name one with class, or leave class_policy out.";
        found.push(
            Diagnostic::error("class_policy without class", detail).at(AttributePath::root("class_policy")),
        );
    }
    found
}

/// The problems with the numbers of CPUs and the maxima, of a VM or of a class.
pub(crate) fn check_bounds(config: &Value) -> Vec<Diagnostic> {
    [
        check_topology(config),
        check_numa_nodes(config),
        check_most_cpus(config),
        check_most_memory(config),
        check_huge_pages(config),
        check_dedicated_cpus(config),
        check_reservation(config),
        check_firmware(config),
        check_memory_reservation(config),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Refuses a `max_cpus` that is less than `cpus`, or beside a topology.
fn check_most_cpus(config: &Value) -> Option<Diagnostic> {
    let most = config.get("max_cpus").as_i64()?;
    let path = AttributePath::root("max_cpus");
    let detail = match config.get("cpus").as_i64() {
        Some(cpus) if most < cpus => {
            format!("{path}: {most} is less than cpus, which is {cpus}: set at least {cpus}.")
        }
        _ if config.get("cpu_topology").is_set() => format!(
            "{path}: max_cpus and cpu_topology exclude each other, because hot-plugged CPUs are cores of one socket: leave one of them out."
        ),
        _ => return None,
    };
    Some(Diagnostic::error("Invalid max_cpus", detail).at(path))
}

/// Refuses NUMA nodes that cannot have the same number of CPUs and the same memory each, and those of a VM that grows.
fn check_numa_nodes(config: &Value) -> Option<Diagnostic> {
    let nodes = config.get("numa_nodes").as_i64().filter(|nodes| *nodes > 1)?;
    let path = AttributePath::root("numa_nodes");
    let maximum = ["max_cpus", "max_memory"].into_iter().find(|name| config.get(name).is_set());
    let detail = if let Some(maximum) = maximum {
        format!(
            "{path}: numa_nodes and {maximum} exclude each other, because hot-plugged CPUs or memory would belong to one node: leave one of them out."
        )
    } else {
        let topology = declared_topology(config);
        let cpus = config.get("cpus").as_i64().or(topology.map(CpuTopology::cpus));
        let pages = huge_pages(config).unwrap_or_default();
        let of_cpus = cpus.map_or(Ok(()), |cpus| numa::check_cpus(nodes, cpus, topology));
        let of_memory =
            bytes(config.get("memory")).map_or(Ok(()), |memory| numa::check_memory(nodes, memory, pages));
        format!("{path}: {}.", of_cpus.and(of_memory).err()?)
    };
    Some(Diagnostic::error("Invalid numa_nodes", detail).at(path))
}

/// Refuses a `max_memory` that is less than `memory`.
fn check_most_memory(config: &Value) -> Option<Diagnostic> {
    let (memory, most) = (bytes(config.get("memory"))?, bytes(config.get("max_memory"))?);
    let path = AttributePath::root("max_memory");
    let detail = format!(
        "{path}: {} is less than memory, which is {}.",
        Quantity::from_bytes(most),
        Quantity::from_bytes(memory)
    );
    (most < memory).then(|| Diagnostic::error("Invalid max_memory", detail).at(path))
}

/// Refuses memory that is no whole number of huge pages, or that grows.
fn check_huge_pages(config: &Value) -> Option<Diagnostic> {
    let pages = huge_pages(config).filter(|pages| *pages != HugePages::None)?;
    let page = pages.bytes()?;
    let name = pages.as_str();
    if config.get("max_memory").is_set() {
        let path = AttributePath::root("huge_pages");
        let detail = format!(
            "{path}: huge_pages and max_memory exclude each other, because memory in huge pages is allocated at the start: leave one of them out."
        );
        return Some(Diagnostic::error("Invalid huge_pages", detail).at(path));
    }
    let memory = bytes(config.get("memory")).filter(|memory| !memory.is_multiple_of(page))?;
    let path = AttributePath::root("memory");
    let (less, more) = (memory / page * page, memory.checked_next_multiple_of(page)?);
    let near = if less == 0 {
        Quantity::from_bytes(more).0
    } else {
        format!("{} or {}", Quantity::from_bytes(less), Quantity::from_bytes(more))
    };
    let detail = format!(
        "{path}: {} is not a multiple of huge_pages, which is {name}: set {near}.",
        Quantity::from_bytes(memory)
    );
    Some(Diagnostic::error("Invalid memory", detail).at(path))
}

/// Refuses CPUs of the host that are given to CPUs which are plugged in later, or to QEMU's other threads alone.
fn check_dedicated_cpus(config: &Value) -> Option<Diagnostic> {
    let is_dedicated = config.get("dedicated_cpu_placement").as_bool() == Some(true);
    if is_dedicated && config.get("max_cpus").is_set() {
        let path = AttributePath::root("dedicated_cpu_placement");
        let detail = format!(
            "{path}: dedicated_cpu_placement and max_cpus exclude each other, because CPUs of the host are assigned at the start: leave one of them out."
        );
        return Some(Diagnostic::error("Invalid dedicated_cpu_placement", detail).at(path));
    }
    let is_isolated = config.get("isolate_emulator_thread").as_bool() == Some(true);
    let is_without = config.get("dedicated_cpu_placement").is_null() && config.get("class").is_null()
        || config.get("dedicated_cpu_placement").as_bool() == Some(false);
    if is_isolated && is_without {
        let path = AttributePath::root("isolate_emulator_thread");
        let detail = format!("{path}: it needs dedicated_cpu_placement = true.");
        return Some(Diagnostic::error("Invalid isolate_emulator_thread", detail).at(path));
    }
    None
}

/// Warns of memory of which UEFI firmware leaves little.
fn check_firmware(config: &Value) -> Option<Diagnostic> {
    let memory = bytes(config.get("memory")).filter(|memory| (LEAST..LEAST_FOR_UEFI).contains(memory))?;
    let firmware = config.get("firmware");
    let is_uefi = match firmware.as_str() {
        Some(firmware) => firmware != Firmware::BIOS.as_str(),
        // The class of a VM may declare BIOS.
        None => firmware.is_null() && config.get("class").is_null(),
    };
    let path = AttributePath::root("memory");
    let detail = format!(
        "{path}: {} is little for a guest with UEFI firmware, which takes a part of it before a system is loaded. A guest that does not \
         come up may have too little: use {} or more, or firmware = \"BIOS\".",
        Quantity::from_bytes(memory),
        Quantity::from_bytes(LEAST_FOR_UEFI)
    );
    is_uefi.then(|| Diagnostic::warning("Little memory for UEFI", detail).at(path))
}

fn huge_pages(state: &Value) -> Option<HugePages> {
    serde_json::from_value(state.get("huge_pages").as_str()?.into()).ok()
}

/// Refuses a reservation of more than the VM may use.
fn check_reservation(config: &Value) -> Option<Diagnostic> {
    let millis = |name: &str| config.get(name).as_str()?.parse::<CpuAmount>().ok()?.millis().ok();
    let reserved = millis("cpu_reservation")?;
    let path = AttributePath::root("cpu_reservation");
    let most = |name: &str, most: i64| {
        let (reserved, most) = (CpuAmount::from_millis(reserved), most as f64 / 1000.0);
        format!("{path}: {reserved} is more than {name}, which is {most}: reserve less, or raise {name}.")
    };
    let cpus = config.get("cpus").as_i64().map(|cpus| ("cpus", cpus.saturating_mul(1000)));
    let limit = millis("cpu_limit").map(|limit| ("cpu_limit", i64::from(limit)));
    let (name, exceeded) =
        [cpus, limit].into_iter().flatten().find(|(_, most)| i64::from(reserved) > *most)?;
    Some(Diagnostic::error("Invalid cpu_reservation", most(name, exceeded)).at(path))
}

/// Refuses a reservation of more memory than the VM has, and one beside what needs all of the memory.
fn check_memory_reservation(config: &Value) -> Option<Diagnostic> {
    let reserved = bytes(config.get("memory_reservation"))?;
    let path = AttributePath::root("memory_reservation");
    let has_some = |name: &str| config.get(name).is_set() && !config.get(name).elements().is_empty();
    let excluded = [
        ("huge_pages", huge_pages(config).is_some_and(|pages| pages != HugePages::None)),
        ("dedicated_cpu_placement", config.get("dedicated_cpu_placement").as_bool() == Some(true)),
        ("pci_devices", has_some("pci_devices")),
        ("vgpus", has_some("vgpus")),
    ];
    let excluded = excluded.into_iter().find(|(_, is_declared)| *is_declared);
    let detail = match (bytes(config.get("memory")), excluded) {
        (_, Some((name, _))) => format!(
            "{path}: memory_reservation and {name} exclude each other, because {name} reserves all of the memory for the VM: leave one of them out."
        ),
        (Some(memory), None) if reserved > memory => format!(
            "{path}: {} is more than memory, which is {}.",
            Quantity::from_bytes(reserved),
            Quantity::from_bytes(memory)
        ),
        _ => return None,
    };
    Some(Diagnostic::error("Invalid memory_reservation", detail).at(path))
}

fn bytes(memory: &Value) -> Option<u64> {
    memory.as_str()?.parse::<Quantity>().ok()?.bytes().ok()
}

/// Decides the effect of another size: more CPUs, and another amount of memory, reach a VM that runs at once, as far as it was
/// started for them.
pub(crate) fn refine(change: &mut PlannedChange<'_>) {
    let count =
        |state: &Value, name: &str| state.get(name).as_i64().and_then(|count| u64::try_from(count).ok());
    let cpus = is_live(change.prior, &change.planned, "cpus", "max_cpus", count);
    let memory = is_memory_live(change.prior, &change.planned);
    for change in &mut change.changes {
        let is_live = match change.effect {
            Effect::Grow => cpus,
            Effect::Resize => memory,
            _ => continue,
        };
        change.effect = if is_live { Effect::Live } else { Effect::PowerCycle };
    }
}

/// Whether the change of the memory is one that a running VM gets at once. Below the memory of its start a guest gives nothing back, and
/// how much that was is not known here.
fn is_memory_live(prior: &Value, planned: &Value) -> bool {
    is_live(prior, planned, "memory", "max_memory", |state, name| bytes(state.get(name)))
}

/// Warns of a guest that has not taken the memory of this update, which the plan has announced for at once.
pub(super) fn check_taken(object: &Json, prior: &Value, planned: &Value) -> Option<Diagnostic> {
    let pending = object.pointer("/status/pendingPowerCycle").and_then(Json::as_array);
    let is_pending = pending.is_some_and(|names| names.iter().any(|name| name == "memory"));
    if !is_pending || !Readiness::of(object).current || !is_memory_live(prior, planned) {
        return None;
    }
    let seen = readiness::condition(object, "ClassSynced").map(|condition| condition.message);
    let seen = seen.unwrap_or_else(|| "its status has the memory among the changes that wait".to_owned());
    let path = AttributePath::root("memory");
    let detail = format!(
        "{path}: {seen}. Until the VM is next started, plans list memory in pending_power_cycle; with allow_reboot = true the next \
         apply restarts it."
    );
    Some(Diagnostic::warning("The guest has not taken the memory", detail).at(path))
}

/// Whether the change of an attribute is one that a running VM gets at once, within a maximum with which it was started.
fn is_live(
    prior: &Value,
    planned: &Value,
    name: &str,
    maximum: &str,
    number: impl Fn(&Value, &str) -> Option<u64>,
) -> bool {
    let is_within = match (number(prior, name), number(planned, name), number(planned, maximum)) {
        (Some(was), Some(is), Some(most)) => was < is && is <= most,
        _ => false,
    };
    let pending = prior.get("pending_power_cycle").elements();
    // What the VM was started with is not what is declared.
    let is_as_started = number(prior, maximum) == number(planned, maximum)
        && !pending.iter().filter_map(Value::as_str).any(|pending| pending == name || pending == maximum);
    is_within && is_as_started && declared_power(planned) == Power::Running
}

/// Refuses a topology with another number of CPUs than `cpus`, of a VM or of a class.
fn check_topology(config: &Value) -> Option<Diagnostic> {
    let topology = config.get("cpu_topology");
    if topology.is_null() || !topology.is_wholly_known() {
        return None;
    }
    let count = |name: &str| topology.get(name).as_i64().unwrap_or(1);
    let (sockets, cores, threads) = (count("sockets"), count("cores"), count("threads"));
    // Each of them is checked on its own.
    let product = [cores, threads].iter().try_fold(sockets, |product, count| product.checked_mul(*count))?;
    let path = AttributePath::root("cpu_topology");
    let cpus = config.get("cpus");
    let detail = match cpus.as_i64() {
        Some(cpus) if cpus != product => format!(
            "{path}: {sockets} sockets * {cores} cores * {threads} threads are {product} CPUs, and cpus is {cpus}: the product must \
             equal cpus."
        ),
        None if cpus.is_null() && product > MOST_CPUS => {
            format!(
                "{path}: {sockets} sockets * {cores} cores * {threads} threads are {product} CPUs; at most {MOST_CPUS} are allowed."
            )
        }
        _ => return None,
    };
    Some(Diagnostic::error("Invalid cpu_topology", detail).at(path))
}

const MOST_CPUS: i64 = 128;

/// The topology of a VM or of a class, if it is known.
fn declared_topology(state: &Value) -> Option<CpuTopology> {
    let topology = state.get("cpu_topology");
    let count = |name: &str| topology.get(name).as_i64().unwrap_or(1);
    let is_known = !topology.is_null() && topology.is_wholly_known();
    is_known.then(|| CpuTopology {
        sockets: count("sockets"),
        cores: count("cores"),
        threads: count("threads"),
    })
}

/// CPUs and bytes of memory that a planned VM takes of those that VMs share, as far as they are known.
pub(super) fn of(planned: &Value, class: Option<&VMClassSpec>) -> Option<(i64, u64)> {
    let names =
        ["class", "cpus", "memory", "huge_pages", "cpu_topology", "numa_nodes", "dedicated_cpu_placement"];
    let parts = names.map(|name| planned.get(name));
    if !parts.iter().all(|part| part.is_wholly_known()) {
        return None;
    }
    let spec = VMSpec {
        class: planned.get("class").as_str().map(ResourceName::from),
        cpus: planned.get("cpus").as_i64(),
        memory: planned.get("memory").as_str().map(|text| Quantity(text.to_owned())),
        cpu_topology: declared_topology(planned),
        numa_nodes: planned.get("numa_nodes").as_i64(),
        huge_pages: huge_pages(planned),
        dedicated_cpu_placement: planned.get("dedicated_cpu_placement").as_bool(),
        ..VMSpec::default()
    };
    spec.size(class).ok().map(|size| (size.taken().cpus, size.taken().whole_memory))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn little_memory_beside_uefi_firmware_is_a_warning() {
        let warnings = |class: Value, memory: &str, firmware: Value| -> Vec<String> {
            let config = [
                ("class", class),
                ("cpus", Value::from(1)),
                ("memory", Value::from(memory)),
                ("firmware", firmware),
            ];
            check(&Value::object(config)).into_iter().map(|diagnostic| diagnostic.summary).collect()
        };
        let uefi = || Value::from("UEFISecureBoot");
        assert_eq!(warnings(Value::Null, "64Mi", Value::Null), ["Little memory for UEFI"]);
        assert_eq!(warnings(Value::from("small"), "64Mi", uefi()), ["Little memory for UEFI"]);
        for (class, memory, firmware) in [
            (Value::Null, "128Mi", uefi()),
            (Value::Null, "64Mi", Value::from("BIOS")),
            (Value::from("small"), "64Mi", Value::Null),
            (Value::Null, "64Mi", Value::UNKNOWN),
        ] {
            assert_eq!(warnings(class, memory, firmware), [""; 0], "{memory}");
        }
    }

    #[test]
    fn memory_that_was_announced_for_at_once_and_that_the_guest_has_not_taken_is_a_warning() {
        let state = |memory: &str, most: &str, pending: &[&str]| {
            let pending = pending.iter().map(|name| Value::from(*name)).collect();
            Value::object([
                ("memory", Value::from(memory)),
                ("max_memory", Value::from(most)),
                ("power", Value::from("Running")),
                ("pending_power_cycle", Value::List(pending)),
            ])
        };
        let vm = |observed: i64, pending: &[&str]| {
            let synced = json!({"type": "ClassSynced", "status": "False", "reason": "PowerCycleNeeded", "message": "no driver"});
            json!({"metadata": {"generation": 2},
                "status": {"observedGeneration": observed, "pendingPowerCycle": pending, "conditions": [synced]}})
        };
        let (less, more) = (state("512Mi", "2Gi", &[]), state("1Gi", "2Gi", &[]));
        let warning = check_taken(&vm(2, &["memory"]), &less, &more).expect("not taken");
        assert!(warning.detail.starts_with("memory: no driver. "), "{}", warning.detail);
        for (object, prior, planned, why) in [
            (vm(2, &[]), &less, &more, "the guest has it"),
            (vm(1, &["memory"]), &less, &more, "the status is that of the earlier spec"),
            (vm(2, &["memory"]), &more, &more, "an earlier update declared it"),
            (vm(2, &["memory"]), &more, &less, "the plan has warned of that"),
            (vm(2, &["memory"]), &state("512Mi", "1Gi", &[]), &more, "and of another maximum"),
            (vm(2, &["memory"]), &state("512Mi", "2Gi", &["memory"]), &more, "and of what waits already"),
            (vm(2, &["memory"]), &Value::Null, &more, "it is created"),
        ] {
            assert_eq!(check_taken(&object, prior, planned), None, "{why}");
        }
    }
}
