//! The size and hardware that a VM declares: its own values, and its class's where it has none.

use crate::{CpuTopology, Firmware, ParseQuantityError, Quantity, VMClassSpec, VMSpec};

/// Guest memory for each CPU where none is declared, in bytes.
pub const MEMORY_PER_CPU: u64 = 2 << 30;

/// The size and hardware with which a VM is started next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Virtual CPUs.
    pub cpus: i64,
    /// Guest memory in bytes, in whole MiB.
    pub memory: u64,
    /// The bytes of memory up to which it can grow while it runs; none: not at all.
    pub max_memory: Option<u64>,
    /// The firmware.
    pub firmware: Firmware,
    /// Whether it has a TPM.
    pub tpm: bool,
    /// The CPUs up to which it can grow while it runs; none: not at all.
    pub max_cpus: Option<i64>,
    /// The arrangement of the CPUs: with `max_cpus` of that many.
    pub topology: CpuTopology,
}

/// Why the size of a VM is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The class does not exist: also a VM that declares everything itself waits for the class that it names.
    #[error("VMClass {0} does not exist (yet)")]
    NoClass(String),
    /// Neither the VM nor a class has a number of CPUs.
    #[error("the VM has neither a class nor cpus: set one of them")]
    NoCpus,
    /// The memory is no quantity.
    #[error("memory: {0}")]
    Memory(#[from] ParseQuantityError),
}

impl VMSpec {
    /// The size with which the VM is started next. `class` is the class that the VM names, if that exists.
    ///
    /// A value of the VM comes before that of its class. `cpus` of the VM also replaces the class's topology and its `max_cpus`, `memory` its `max_memory`. Memory that
    /// neither declares is [`MEMORY_PER_CPU`] for each CPU.
    ///
    /// # Errors
    /// When the class that the VM names does not exist; otherwise only for a VM that did not pass admission.
    pub fn size(&self, class: Option<&VMClassSpec>) -> Result<Size, SizeError> {
        let class = match (&self.class, class) {
            (Some(name), None) => return Err(SizeError::NoClass(name.to_string())),
            (Some(_), Some(class)) => Some(class),
            (None, _) => None,
        };
        let own = self.cpus.or(self.cpu_topology.map(CpuTopology::cpus));
        let cpus = own.or(class.map(|class| class.cpus)).ok_or(SizeError::NoCpus)?;
        let of_class = class.filter(|_| own.is_none()).and_then(|class| class.cpu_topology);
        let max_cpus = self.max_cpus.or(class.filter(|_| own.is_none()).and_then(|class| class.max_cpus));
        // CPUs that are plugged in are cores of one socket.
        let max_cpus = max_cpus.filter(|most| *most >= cpus && self.cpu_topology.is_none());
        let of_cores = CpuTopology::of_cores(max_cpus.unwrap_or(cpus));
        let of_class = of_class.filter(|_| max_cpus.is_none());
        let memory = self.memory.as_ref().or(class.and_then(|class| class.memory.as_ref()));
        let most_of_class =
            class.filter(|_| self.memory.is_none()).and_then(|class| class.max_memory.as_ref());
        let max_memory = self.max_memory.as_ref().or(most_of_class).map(Quantity::bytes).transpose()?;
        // What is plugged in is in blocks of 2 MiB.
        let max_memory = max_memory.map(|most| most.next_multiple_of(2 << 20));
        let unit = if max_memory.is_some() { 2 << 20 } else { 1 << 20 };
        let bytes = match memory.map(Quantity::bytes) {
            Some(bytes) => bytes?.next_multiple_of(unit),
            None => MEMORY_PER_CPU * cpus.unsigned_abs(),
        };
        Ok(Size {
            cpus,
            memory: bytes,
            max_memory: max_memory.filter(|most| *most >= bytes),
            firmware: self.firmware.or(class.map(|class| class.firmware)).unwrap_or_default(),
            tpm: self.tpm.or(class.map(|class| class.tpm)).unwrap_or_default(),
            max_cpus,
            topology: self.cpu_topology.or(of_class).unwrap_or(of_cores),
        })
    }
}

/// CPUs and bytes of guest memory a VM takes of its host: those it `has` or those it has `declared`, whichever
/// is more, because it may be started with what is declared at any time. Of a size that was made larger than
/// all that its host has `offered` nothing counts: it cannot start with that.
pub fn size_taken(
    declared: Option<(i64, u64)>,
    has: Option<(i64, u64)>,
    offered: Option<(i64, u64)>,
) -> Option<(i64, u64)> {
    let fits = |(cpus, memory): (i64, u64)| offered.is_none_or(|o| cpus <= o.0 && memory <= o.1);
    match (declared, has) {
        (Some(declared), has) if !fits(declared) => Some(has.unwrap_or_default()),
        (Some(declared), Some(has)) => Some((declared.0.max(has.0), declared.1.max(has.1))),
        (declared, has) => declared.or(has),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_vm_takes_what_it_has_or_will_have_whichever_is_more_and_nothing_that_it_never_can_have() {
        let offered = Some((8, 100));
        assert_eq!(size_taken(Some((1, 10)), Some((2, 5)), offered), Some((2, 10)));
        assert_eq!(size_taken(Some((1, 10)), None, offered), Some((1, 10)));
        assert_eq!(size_taken(None, Some((2, 5)), offered), Some((2, 5)), "its class is gone");
        assert_eq!(size_taken(None, None, offered), None);
        assert_eq!(size_taken(Some((1, 1000)), Some((2, 5)), offered), Some((2, 5)), "it never starts so");
        assert_eq!(size_taken(Some((9, 1)), None, offered), Some((0, 0)));
        assert_eq!(size_taken(Some((9, 1000)), None, None), Some((9, 1000)), "it has no host yet");
    }

    /// CPUs, MiB of memory, firmware, and sockets, cores and threads.
    fn size(own: Value, class: Option<Value>) -> Result<(i64, u64, &'static str, [i64; 3]), SizeError> {
        let mut spec = json!({"disks": []});
        spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
        let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
        let class: Option<VMClassSpec> = class.map(|class| serde_json::from_value(class).expect("a class"));
        let size = spec.size(class.as_ref())?;
        let CpuTopology { sockets, cores, threads } = size.topology;
        Ok((size.cpus, size.memory >> 20, size.firmware.as_str(), [sockets, cores, threads]))
    }

    #[test]
    fn a_vm_has_its_own_values_then_those_of_its_class_then_the_defaults() {
        let class = || {
            Some(
                json!({"cpus": 4, "memory": "3Gi", "firmware": "BIOS", "cpuTopology": {"sockets": 2, "cores": 2}}),
            )
        };
        let named = |own: Value| {
            let mut spec = json!({"class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            size(spec, class())
        };
        assert_eq!(named(json!({})), Ok((4, 3072, "BIOS", [2, 2, 1])));
        assert_eq!(named(json!({"memory": "1Gi"})), Ok((4, 1024, "BIOS", [2, 2, 1])));
        assert_eq!(named(json!({"firmware": "UEFI"})), Ok((4, 3072, "UEFI", [2, 2, 1])));
        assert_eq!(named(json!({"cpus": 6})), Ok((6, 3072, "BIOS", [1, 6, 1])), "not the class's topology");
        assert_eq!(named(json!({"cpus": 4})), Ok((4, 3072, "BIOS", [1, 4, 1])));
        assert_eq!(
            named(json!({"cpuTopology": {"cores": 3, "threads": 2}})),
            Ok((6, 3072, "BIOS", [1, 3, 2]))
        );
        assert_eq!(named(json!({"maxCpus": 8})), Ok((4, 3072, "BIOS", [1, 8, 1])), "places for eight cores");
        assert_eq!(
            named(json!({"maxCpus": 2})),
            Ok((4, 3072, "BIOS", [2, 2, 1])),
            "fewer than the class has"
        );
        let growing = || Some(json!({"cpus": 2, "memory": "1Gi", "maxCpus": 4}));
        assert_eq!(size(json!({"class": "c"}), growing()), Ok((2, 1024, "UEFI", [1, 4, 1])));
        let own = json!({"class": "c", "cpus": 3});
        assert_eq!(size(own, growing()), Ok((3, 1024, "UEFI", [1, 3, 1])), "not the class's maximum");
        assert_eq!(size(json!({"cpus": 3}), None), Ok((3, 6144, "UEFI", [1, 3, 1])));
        assert_eq!(size(json!({"cpus": 1, "memory": "16777217"}), None), Ok((1, 17, "UEFI", [1, 1, 1])));
        let plain = Some(json!({"cpus": 2}));
        assert_eq!(size(json!({"class": "c"}), plain.clone()), Ok((2, 4096, "UEFI", [1, 2, 1])));
        assert_eq!(size(json!({"class": "c", "cpus": 1}), plain), Ok((1, 2048, "UEFI", [1, 1, 1])));
    }

    #[test]
    fn memory_grows_up_to_the_maximum_of_whoever_declares_it() {
        let most = |own: Value, class: Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            let class: VMClassSpec = serde_json::from_value(class).expect("a class");
            let size = spec.size(Some(&class)).expect("a size");
            (size.memory >> 20, size.max_memory.map(|bytes| bytes >> 20))
        };
        let class = || json!({"cpus": 1, "memory": "1Gi", "maxMemory": "4Gi"});
        assert_eq!(most(json!({}), class()), (1024, Some(4096)));
        assert_eq!(most(json!({"maxMemory": "2Gi"}), class()), (1024, Some(2048)));
        assert_eq!(most(json!({"memory": "2Gi"}), class()), (2048, None), "not the class's maximum");
        assert_eq!(most(json!({"maxMemory": "512Mi"}), class()), (1024, None), "less than it has");
        assert_eq!(most(json!({"memory": "513Mi", "maxMemory": "1023Mi"}), class()), (514, Some(1024)));
    }

    #[test]
    fn a_class_that_is_named_must_exist_and_one_of_another_name_does_not_count() {
        let whole = json!({"class": "c", "cpus": 1, "memory": "1Gi", "firmware": "BIOS"});
        assert_eq!(size(whole, None), Err(SizeError::NoClass("c".to_owned())));
        assert_eq!(size(json!({}), None), Err(SizeError::NoCpus));
        assert_eq!(size(json!({}), Some(json!({"cpus": 1}))), Err(SizeError::NoCpus));
        assert!(matches!(size(json!({"cpus": 1, "memory": "much"}), None), Err(SizeError::Memory(_))));
    }
}
