//! Whether a VM follows later changes of its class, or keeps the values that the class had.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::VM;
use crate::{CpuTopology, Quantity, VMClassSpec};

/// The maximum length of the values of a class, in bytes.
const MAX_VALUES: usize = 32_768;
/// The maximum number of CPUs of a class.
const MOST_CPUS: i64 = 128;
/// More memory than any host has, in bytes.
const MOST_MEMORY: u64 = 1 << 46;
/// The maximum number of NUMA nodes of a class, and of its devices of one name.
const MOST_PARTS: i64 = 8;

/// Whether later changes of its class reach a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClassPolicy {
    #[default]
    Follow,
    Pin,
}

/// The values of a class that a VM keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedClass {
    /// Name of the VMClass.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The `spec` that it had, as JSON.
    #[schemars(length(max = 32_768))]
    pub values: String,
}

impl PinnedClass {
    fn of(name: &str, class: &VMClassSpec) -> Option<Self> {
        let values = serde_json::to_string(class).ok().filter(|values| values.len() <= MAX_VALUES)?;
        Some(Self { name: name.to_owned(), values })
    }

    /// The values. They come from a host, so that they are checked. None: they are none of a class.
    fn spec(&self) -> Option<VMClassSpec> {
        // serde also reads a list as a struct.
        let values = Some(&self.values).filter(|values| values.starts_with('{'))?;
        let spec: VMClassSpec = serde_json::from_str(values).ok()?;
        is_possible(&spec).then_some(spec)
    }
}

/// Whether a class can have these values, as far as others calculate with them.
fn is_possible(spec: &VMClassSpec) -> bool {
    let cpus = |number: &i64| (1..=MOST_CPUS).contains(number);
    let memory = |declared: &Option<Quantity>| {
        let bytes = declared.as_ref().map_or(Ok(0), Quantity::bytes);
        bytes.is_ok_and(|bytes| bytes <= MOST_MEMORY)
    };
    let topology = |of: &CpuTopology| [of.sockets, of.cores, of.threads].iter().all(&cpus);
    let parts = |number: &i64| (1..=MOST_PARTS).contains(number);
    let pci = spec.pci_devices.iter().map(|devices| &devices.count);
    let usb = spec.usb_devices.iter().map(|devices| &devices.count);
    let vgpus = spec.vgpus.iter().map(|vgpus| &vgpus.count);
    cpus(&spec.cpus)
        && spec.max_cpus.iter().all(cpus)
        && spec.cpu_topology.iter().all(topology)
        && [&spec.memory, &spec.max_memory].into_iter().all(memory)
        && spec.numa_nodes.iter().all(parts)
        && pci.chain(usb).chain(vgpus).all(parts)
}

impl VM {
    /// Returns the values of its class that count for the VM: those that it keeps, or the present ones.
    pub fn class_values<'a>(&self, present: Option<&'a VMClassSpec>) -> Option<Cow<'a, VMClassSpec>> {
        match self.kept().and_then(PinnedClass::spec) {
            Some(kept) => Some(Cow::Owned(kept)),
            None => present.map(Cow::Borrowed),
        }
    }

    /// Returns the values that the VM keeps from now on: those that it keeps already, or the present ones of its class.
    pub fn pinned_class(&self, present: Option<&VMClassSpec>) -> Option<Box<PinnedClass>> {
        let class = self.spec.class.as_ref().filter(|_| self.is_pinned())?;
        match self.kept() {
            Some(kept) => Some(Box::new(kept.clone())),
            None => PinnedClass::of(class.as_str(), present?).map(Box::new),
        }
    }

    fn is_pinned(&self) -> bool {
        self.spec.class_policy == Some(ClassPolicy::Pin)
    }

    /// The values that are kept of the class that the VM names now.
    fn kept(&self) -> Option<&PinnedClass> {
        let class = self.spec.class.as_ref().filter(|_| self.is_pinned())?;
        let kept = self.status.as_ref()?.pinned_class.as_deref()?;
        (kept.name == class.as_str()).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::VMSpec;

    fn class(cpus: i64) -> VMClassSpec {
        serde_json::from_value(json!({"cpus": cpus, "memory": "1Gi"})).expect("a class")
    }

    fn vm(policy: Option<ClassPolicy>, kept: Option<PinnedClass>) -> VM {
        let mut vm =
            VM::new("web", VMSpec { class: Some("small".into()), class_policy: policy, ..VMSpec::default() });
        vm.status.get_or_insert_default().pinned_class = kept.map(Box::new);
        vm
    }

    fn cpus(vm: &VM, present: i64) -> Option<i64> {
        vm.class_values(Some(&class(present))).map(|class| class.cpus)
    }

    #[test]
    fn a_vm_that_pins_its_class_keeps_the_values_of_the_first_moment() {
        let kept = vm(Some(ClassPolicy::Pin), None).pinned_class(Some(&class(2))).expect("pinned");
        let pinned = vm(Some(ClassPolicy::Pin), Some((*kept).clone()));
        assert_eq!(cpus(&pinned, 8), Some(2));
        assert_eq!(pinned.pinned_class(Some(&class(8))), Some(kept.clone()), "later ones do not count");
        assert_eq!(pinned.class_values(None).map(|class| class.cpus), Some(2), "the class is not read");
        for policy in [None, Some(ClassPolicy::Follow)] {
            let follows = vm(policy, Some((*kept).clone()));
            assert_eq!((cpus(&follows, 8), follows.pinned_class(Some(&class(8)))), (Some(8), None));
        }
        let mut other = pinned;
        other.spec.class = Some("large".into());
        assert_eq!(cpus(&other, 8), Some(8), "another class has values of its own");
        let name = other.pinned_class(Some(&class(8))).map(|kept| kept.name);
        assert_eq!(name.as_deref(), Some("large"));
    }

    #[test]
    fn values_that_are_none_of_a_class_do_not_count() {
        let huge = i64::MAX;
        let arranged = format!(r#"{{"cpus": 1, "cpuTopology": {{"sockets": {huge}, "cores": 2}}}}"#);
        let many = format!(r#"{{"cpus": 1, "pciDevices": [{{"name": "gpu", "count": {huge}}}]}}"#);
        for values in [
            "",
            "{}",
            "[1]",
            r#"{"cpus": 0}"#,
            r#"{"cpus": 1000000}"#,
            r#"{"cpus": 1, "maxCpus": 1000000}"#,
            r#"{"cpus": 1, "memory": "999Ei"}"#,
            r#"{"cpus": 1, "maxMemory": "15Ei"}"#,
            r#"{"cpus": 1, "numaNodes": 0}"#,
            &arranged,
            &many,
        ] {
            let forged = PinnedClass { name: "small".into(), values: values.into() };
            assert_eq!(cpus(&vm(Some(ClassPolicy::Pin), Some(forged)), 4), Some(4), "{values}");
        }
    }
}
