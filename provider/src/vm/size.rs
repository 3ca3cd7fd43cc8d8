//! The size of a VM: its own attributes, or those of its class.

use berth_api::{Power, Quantity, ResourceName, VMClassSpec, VMSpec};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Effect, Field, Shape, declared_power},
};

/// The arrangement of the CPUs, of a VM or of a class.
pub(crate) fn cpu_topology() -> Field {
    let count = |name| Field::spec(name, Shape::Integer).default(1).effect(Effect::PowerCycle);
    let counts = vec![count("sockets"), count("cores"), count("threads")];
    Field::spec("cpu_topology", Shape::Object(counts)).effect(Effect::PowerCycle)
}

/// The problems with the size of a VM.
pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let mut found = check_cpus(config);
    if ["class", "cpus", "cpu_topology"].iter().all(|name| config.get(name).is_null()) {
        let detail = "cpus: a VM without a class needs a number of CPUs: set cpus (and memory, of which the default is 2Gi for \
                      each CPU), or name a class.";
        found.push(Diagnostic::error("Neither cpus nor class", detail).at(AttributePath::root("cpus")));
    }
    found
}

/// The problems with the numbers of CPUs, of a VM or of a class.
pub(crate) fn check_cpus(config: &Value) -> Vec<Diagnostic> {
    check_topology(config).into_iter().chain(check_most(config)).collect()
}

/// Refuses a `max_cpus` that is less than `cpus`, or beside a topology.
fn check_most(config: &Value) -> Option<Diagnostic> {
    let most = config.get("max_cpus").as_i64()?;
    let path = AttributePath::root("max_cpus");
    let detail = match config.get("cpus").as_i64() {
        Some(cpus) if most < cpus => format!("{path}: {most} is less than cpus, which is {cpus}."),
        _ if !config.get("cpu_topology").is_null() => format!(
            "{path}: max_cpus and cpu_topology exclude each other: CPUs that are plugged in are cores of one socket."
        ),
        _ => return None,
    };
    Some(Diagnostic::error("Invalid max_cpus", detail).at(path))
}

/// Decides the effect of another number of CPUs: more of them reach a VM that runs at once, as far as it was started with places
/// for them.
pub(crate) fn refine(change: &mut PlannedChange<'_>) {
    let (cpus, most) = (AttributePath::root("cpus"), AttributePath::root("max_cpus"));
    let count = |state: &Value, path: &AttributePath| state.at(path).as_i64();
    let grows = match (count(change.prior, &cpus), count(&change.planned, &cpus)) {
        (Some(was), Some(is)) => was < is && count(&change.planned, &most).is_some_and(|most| is <= most),
        _ => false,
    };
    let pending = change.prior.get("pending_power_cycle").elements();
    // What the VM was started with is not what is declared.
    let is_as_started = change.prior.at(&most) == change.planned.at(&most)
        && !pending.iter().any(|name| matches!(name.as_str(), Some("cpus" | "max_cpus")));
    let runs = declared_power(&change.planned) == Power::Running;
    let effect = if grows && is_as_started && runs { Effect::Live } else { Effect::PowerCycle };
    for change in change.changes.iter_mut().filter(|change| change.effect == Effect::Grow) {
        change.effect = effect;
    }
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

/// CPUs and bytes of guest memory of a planned VM, as far as they are known.
pub(super) fn of(planned: &Value, class: Option<&VMClassSpec>) -> Option<(i64, u64)> {
    let topology = planned.get("cpu_topology");
    let parts = [planned.get("class"), planned.get("cpus"), planned.get("memory"), topology];
    if !parts.iter().all(|part| part.is_wholly_known()) {
        return None;
    }
    let count = |name: &str| topology.get(name).as_i64().unwrap_or(1);
    let cpu_topology = (!topology.is_null()).then(|| berth_api::CpuTopology {
        sockets: count("sockets"),
        cores: count("cores"),
        threads: count("threads"),
    });
    let spec = VMSpec {
        class: planned.get("class").as_str().map(ResourceName::from),
        cpus: planned.get("cpus").as_i64(),
        memory: planned.get("memory").as_str().map(|text| Quantity(text.to_owned())),
        cpu_topology,
        ..VMSpec::default()
    };
    spec.size(class).ok().map(|size| (size.cpus, size.memory))
}
