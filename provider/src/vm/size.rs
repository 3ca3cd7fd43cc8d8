//! The size of a VM: its own attributes, or those of its class.

use berth_api::{Quantity, ResourceName, VMClassSpec, VMSpec};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::field::{Effect, Field, Shape};

/// The arrangement of the CPUs, of a VM or of a class.
pub(crate) fn cpu_topology() -> Field {
    let count = |name| Field::spec(name, Shape::Integer).default(1).effect(Effect::PowerCycle);
    let counts = vec![count("sockets"), count("cores"), count("threads")];
    Field::spec("cpu_topology", Shape::Object(counts)).effect(Effect::PowerCycle)
}

/// The problems with the size of a VM.
pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = check_topology(config).into_iter().collect();
    if ["class", "cpus", "cpu_topology"].iter().all(|name| config.get(name).is_null()) {
        let detail = "cpus: a VM without a class needs a number of CPUs: set cpus (and memory, of which the default is 2Gi for \
                      each CPU), or name a class.";
        found.push(Diagnostic::error("Neither cpus nor class", detail).at(AttributePath::root("cpus")));
    }
    found
}

/// Refuses a topology with another number of CPUs than `cpus`, of a VM or of a class.
pub(crate) fn check_topology(config: &Value) -> Option<Diagnostic> {
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
