//! The size and hardware that a VM declares: its own values, and its class's where it has none.

use crate::numa::{self, NumaError};
use crate::taken::SizeTaken;
use crate::{CpuTopology, Firmware, HugePages, ParseQuantityError, Quantity, VMClassSpec, VMSpec};

/// Guest memory for each CPU where none is declared, in bytes.
pub const MEMORY_PER_CPU: u64 = 2 << 30;

/// The size and hardware with which a VM is started next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Virtual CPUs.
    pub cpus: i64,
    /// Whether each of them has a CPU of the host for itself.
    pub dedicated_cpus: bool,
    /// Whether QEMU's other threads have one, too: only with `dedicated_cpus`.
    pub isolate_emulator_thread: bool,
    /// Guest memory in bytes, in whole MiB.
    pub memory: u64,
    /// The bytes of memory that its host keeps for it; none: all of them.
    pub memory_reservation: Option<u64>,
    /// The bytes of memory up to which it can grow while it runs; none: not at all.
    pub max_memory: Option<u64>,
    /// The huge pages that its memory consists of.
    pub huge_pages: HugePages,
    /// The firmware.
    pub firmware: Firmware,
    /// Whether it has a TPM.
    pub tpm: bool,
    /// The CPUs up to which it can grow while it runs; none: not at all.
    pub max_cpus: Option<i64>,
    /// The arrangement of the CPUs: with `max_cpus` of that many.
    pub topology: CpuTopology,
    /// The NUMA nodes that the guest sees, among which CPUs and memory are divided evenly.
    pub numa_nodes: i64,
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
    /// The memory, its maximum or its reservation is no quantity.
    #[error("memory: {0}")]
    Memory(#[from] ParseQuantityError),
    /// The memory is not a whole number of huge pages.
    #[error("memory {} is not a multiple of hugePages, which is {}: set another memory, or hugePages None", Quantity::from_bytes(*memory), pages.as_str())]
    PartOfAPage {
        /// Bytes.
        memory: u64,
        /// The size of its pages.
        pages: HugePages,
    },
    /// Memory in huge pages does not grow.
    #[error(
        "hugePages and maxMemory exclude each other, of the VM and of its class: set memory without maxMemory on the VM, or hugePages None"
    )]
    GrowsInHugePages,
    /// CPUs of the host are given at the start.
    #[error(
        "dedicatedCpuPlacement and maxCpus exclude each other, of the VM and of its class: set cpus without maxCpus on the VM, or dedicatedCpuPlacement false"
    )]
    GrowsOnDedicatedCpus,
    /// A CPU or memory that is plugged in would be of one node.
    #[error(
        "numaNodes excludes maxCpus and maxMemory, of the VM and of its class: set cpus and memory without a maximum on the VM, or numaNodes 1"
    )]
    GrowsOnNumaNodes,
    /// A node would have more than another.
    #[error("numaNodes: {0}")]
    Numa(#[from] NumaError),
}

impl Size {
    /// The capacity of its host that a VM of this size takes.
    #[must_use]
    pub fn taken(&self) -> SizeTaken {
        let taken = SizeTaken::of(self.cpus, self.memory, self.huge_pages);
        let taken = taken.with_reservation(self.memory_reservation);
        if self.dedicated_cpus { taken.with_dedicated_cpus(self.isolate_emulator_thread) } else { taken }
    }
}

impl VMSpec {
    /// The size with which the VM is started next. `class` is the class that the VM names, if that exists.
    ///
    /// A value of the VM comes before that of its class. `cpus` of the VM also replaces the class's topology and its `max_cpus`, `memory` its `max_memory` and its
    /// `memory_reservation`. Memory that
    /// neither declares is [`MEMORY_PER_CPU`] for each CPU.
    ///
    /// # Errors
    /// When the class that the VM names does not exist, or the VM's memory and its class's huge pages, or the size of the one and the NUMA nodes of
    /// the other, do not fit together; otherwise only for a VM that did not pass admission.
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
        let topology = self.cpu_topology.or(of_class.filter(|_| max_cpus.is_none()));
        let numa_nodes = self.numa_nodes.or(class.and_then(|class| class.numa_nodes)).unwrap_or(1);
        let dedicated = self.dedicated_cpu_placement.or(class.map(|class| class.dedicated_cpu_placement));
        let dedicated = dedicated.unwrap_or_default();
        if dedicated && max_cpus.is_some() {
            return Err(SizeError::GrowsOnDedicatedCpus);
        }
        let isolated = self.isolate_emulator_thread.or(class.map(|class| class.isolate_emulator_thread));
        let memory = self.memory.as_ref().or(class.and_then(|class| class.memory.as_ref()));
        let most_of_class =
            class.filter(|_| self.memory.is_none()).and_then(|class| class.max_memory.as_ref());
        let max_memory = self.max_memory.as_ref().or(most_of_class).map(Quantity::bytes).transpose()?;
        // What is plugged in is in blocks of 2 MiB.
        let max_memory = max_memory.map(|most| most.next_multiple_of(2 << 20));
        let unit = if max_memory.is_some() { 2 << 20 } else { 1 << 20 };
        let declared = match memory.map(Quantity::bytes) {
            Some(bytes) => bytes?,
            None => MEMORY_PER_CPU * cpus.unsigned_abs(),
        };
        let bytes = declared.next_multiple_of(unit);
        let pages = self.huge_pages.or(class.and_then(|class| class.huge_pages)).unwrap_or_default();
        if let Some(page) = pages.bytes() {
            if !declared.is_multiple_of(page) {
                return Err(SizeError::PartOfAPage { memory: declared, pages });
            }
            if max_memory.is_some() {
                return Err(SizeError::GrowsInHugePages);
            }
        }
        let of_class =
            class.filter(|_| self.memory.is_none()).and_then(|class| class.memory_reservation.as_ref());
        let reserved = self.memory_reservation.as_ref().or(of_class).map(Quantity::bytes).transpose()?;
        // Of such a VM's memory the balloon gives nothing back.
        let is_whole = || dedicated || pages != HugePages::None || self.has_pinned_memory(class);
        let reserved = reserved.filter(|_| !is_whole()).map(|reserved| reserved.next_multiple_of(1 << 20));
        if numa_nodes > 1 && (max_cpus.is_some() || max_memory.is_some()) {
            return Err(SizeError::GrowsOnNumaNodes);
        }
        numa::check_cpus(numa_nodes, cpus, topology)?;
        numa::check_memory(numa_nodes, declared, pages)?;
        Ok(Size {
            cpus,
            dedicated_cpus: dedicated,
            isolate_emulator_thread: dedicated && isolated.unwrap_or_default(),
            memory: bytes,
            memory_reservation: reserved.filter(|reserved| *reserved < bytes),
            max_memory: max_memory.filter(|most| *most >= bytes),
            huge_pages: pages,
            firmware: self.firmware.or(class.map(|class| class.firmware)).unwrap_or_default(),
            tpm: self.tpm.or(class.map(|class| class.tpm)).unwrap_or_default(),
            max_cpus,
            topology: topology
                .unwrap_or_else(|| numa::default_topology(numa_nodes, max_cpus.unwrap_or(cpus))),
            numa_nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::size_taken;

    #[test]
    fn a_vm_takes_what_it_has_or_will_have_whichever_is_more_and_nothing_that_it_never_can_have() {
        let size = |cpus, memory| Some(SizeTaken::of(cpus, memory, HugePages::None));
        let offered = size(8, 100);
        assert_eq!(size_taken(size(1, 10), size(2, 5), offered), size(2, 10));
        assert_eq!(size_taken(size(1, 10), None, offered), size(1, 10));
        assert_eq!(size_taken(None, size(2, 5), offered), size(2, 5), "its class is gone");
        assert_eq!(size_taken(None, None, offered), None);
        assert_eq!(size_taken(size(1, 1000), size(2, 5), offered), size(2, 5), "it never starts so");
        assert_eq!(size_taken(size(9, 1), None, offered), size(0, 0));
        assert_eq!(size_taken(size(9, 1000), None, None), size(9, 1000), "it has no host yet");
    }

    #[test]
    fn memory_in_huge_pages_takes_none_of_the_ordinary_memory() {
        let huge = |bytes| SizeTaken::of(1, bytes, HugePages::TwoMebibytes);
        assert_eq!((huge(10).memory, huge(10).huge_memory.total()), (0, 10));
        let offered = Some(SizeTaken { cpus: 8, memory: 5, ..huge(100) });
        assert_eq!(size_taken(Some(huge(100)), None, offered), Some(huge(100)));
        assert_eq!(
            size_taken(Some(huge(101)), None, offered),
            Some(SizeTaken::default()),
            "more than there are"
        );
        let giant = SizeTaken::of(1, 1, HugePages::OneGibibyte);
        assert_eq!(size_taken(Some(giant), None, offered), Some(SizeTaken::default()), "of another size");
        let both = size_taken(Some(huge(10)), Some(SizeTaken::of(1, 5, HugePages::None)), offered);
        assert_eq!(
            both,
            Some(SizeTaken { memory: 5, whole_memory: 5, ..huge(10) }),
            "until the next power cycle"
        );
    }

    #[test]
    fn a_vm_on_dedicated_cpus_takes_none_of_those_that_vms_share() {
        let taken = |own: Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            let class =
                json!({"cpus": 4, "maxCpus": 8, "cpuReservation": "1", "dedicatedCpuPlacement": false});
            let class: VMClassSpec = serde_json::from_value(class).expect("a class");
            let reserved = spec.cpu_controls(Some(&class)).reserved;
            spec.size(Some(&class)).map(|size| (size.taken().cpus, size.taken().dedicated_cpus, reserved))
        };
        assert_eq!(taken(json!({})), Ok((4, 0, 1000)));
        assert_eq!(taken(json!({"isolateEmulatorThread": true})), Ok((4, 0, 1000)), "there is none to add");
        let own = json!({"cpus": 2, "dedicatedCpuPlacement": true});
        assert_eq!(taken(own), Ok((0, 2, 0)), "beside CPUs of its own a reservation is none");
        let own = json!({"cpus": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true});
        assert_eq!(taken(own), Ok((0, 3, 0)));
        assert_eq!(taken(json!({"dedicatedCpuPlacement": true})), Err(SizeError::GrowsOnDedicatedCpus));
        let offered = |dedicated_cpus| Some(SizeTaken { dedicated_cpus, cpus: 8, ..SizeTaken::default() });
        let needed = SizeTaken::of(2, 0, HugePages::None).with_dedicated_cpus(true);
        assert_eq!(size_taken(Some(needed), None, offered(3)), Some(needed));
        assert_eq!(size_taken(Some(needed), None, offered(2)), Some(SizeTaken::default()));
    }

    #[test]
    fn numa_nodes_divide_what_the_vm_has_and_nothing_that_grows() {
        let size = |own: Value, class: Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            let class: VMClassSpec = serde_json::from_value(class).expect("a class");
            spec.size(Some(&class)).map(|size| (size.numa_nodes, size.topology))
        };
        let topology = |sockets, cores| CpuTopology { sockets, cores, threads: 1 };
        let class = || json!({"cpus": 4, "memory": "1Gi", "numaNodes": 2});
        assert_eq!(size(json!({}), class()), Ok((2, topology(2, 2))), "a socket for each node");
        assert_eq!(size(json!({"numaNodes": 1}), class()), Ok((1, topology(1, 4))));
        assert_eq!(size(json!({"cpus": 8}), class()), Ok((2, topology(2, 4))));
        let own = json!({"cpuTopology": {"cores": 6}});
        assert_eq!(size(own, class()), Ok((2, topology(1, 6))), "the declared one counts");
        let odd = size(json!({"cpus": 3}), class()).expect_err("one is left over").to_string();
        assert!(odd.starts_with("numaNodes: 3 CPUs cannot be divided evenly among 2 NUMA nodes"), "{odd}");
        let odd = size(json!({"memory": "513Mi"}), class()).expect_err("1 MiB is left over").to_string();
        assert!(odd.starts_with("numaNodes: memory 513Mi cannot be divided"), "{odd}");
        let pages = json!({"memory": "3Gi", "hugePages": "1Gi"});
        assert!(matches!(size(pages, class()), Err(SizeError::Numa(NumaError::Memory { .. }))));
        for growing in [json!({"maxCpus": 8}), json!({"maxMemory": "2Gi"})] {
            assert_eq!(size(growing, class()), Err(SizeError::GrowsOnNumaNodes));
        }
        let growing = json!({"cpus": 4, "memory": "1Gi", "maxCpus": 8, "maxMemory": "2Gi"});
        let own = json!({"cpus": 4, "memory": "1Gi", "numaNodes": 2});
        assert_eq!(size(own, growing), Ok((2, topology(2, 2))), "the class's maxima do not count");
    }

    #[test]
    fn memory_in_huge_pages_is_a_whole_number_of_them_and_does_not_grow() {
        let size = |own: Value, class: Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            let class: VMClassSpec = serde_json::from_value(class).expect("a class");
            spec.size(Some(&class)).map(|size| (size.memory >> 20, size.huge_pages))
        };
        let class = || json!({"cpus": 1, "memory": "1Gi", "hugePages": "1Gi"});
        assert_eq!(size(json!({}), class()), Ok((1024, HugePages::OneGibibyte)));
        assert_eq!(size(json!({"hugePages": "None"}), class()), Ok((1024, HugePages::None)));
        assert_eq!(
            size(json!({"hugePages": "2Mi", "memory": "514Mi"}), class()),
            Ok((514, HugePages::TwoMebibytes))
        );
        let error = size(json!({"memory": "1536Mi"}), class()).expect_err("not whole pages");
        assert_eq!(
            error.to_string(),
            "memory 1536Mi is not a multiple of hugePages, which is 1Gi: set another memory, or hugePages None"
        );
        let odd = size(json!({"hugePages": "2Mi", "memory": "513Mi"}), class());
        assert!(matches!(odd, Err(SizeError::PartOfAPage { .. })), "{odd:?}");
        assert_eq!(size(json!({"maxMemory": "2Gi"}), class()), Err(SizeError::GrowsInHugePages));
        assert_eq!(
            size(json!({}), json!({"cpus": 1, "hugePages": "1Gi"})),
            Ok((2048, HugePages::OneGibibyte))
        );
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
    fn the_memory_that_is_kept_is_declared_beside_the_memory_or_by_the_vm_itself() {
        let kept = |own: Value, class: Value| {
            let mut spec = json!({"disks": [], "class": "c"});
            spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
            let class: VMClassSpec = serde_json::from_value(class).expect("a class");
            let size = spec.size(Some(&class)).expect("a size");
            (size.memory_reservation.map(|bytes| bytes >> 20), size.taken().memory >> 20)
        };
        let class = || json!({"cpus": 1, "memory": "4Gi", "memoryReservation": "1Gi"});
        assert_eq!(kept(json!({}), class()), (Some(1024), 1024));
        assert_eq!(kept(json!({"memoryReservation": "2Gi"}), class()), (Some(2048), 2048));
        assert_eq!(kept(json!({"memory": "8Gi"}), class()), (None, 8192), "not the class's reservation");
        let own = json!({"memory": "8Gi", "memoryReservation": "1000M"});
        assert_eq!(kept(own, class()), (Some(954), 954), "in whole MiB");
        assert_eq!(kept(json!({"memoryReservation": "4Gi"}), class()), (None, 4096), "all of it");
        assert_eq!(kept(json!({"memoryReservation": "9Gi"}), class()), (None, 4096), "no more than it has");
        let whole = [
            json!({"hugePages": "2Mi"}),
            json!({"dedicatedCpuPlacement": true}),
            json!({"pciDevices": [{"name": "gpu"}]}),
            json!({"vgpus": [{"name": "a16"}]}),
        ];
        for own in whole {
            assert_eq!(kept(own.clone(), class()).0, None, "{own}: it gives nothing back");
        }
        assert_eq!(kept(json!({"usbDevices": [{"name": "key"}]}), class()).0, Some(1024));
        let mut pinned = class();
        pinned["vgpus"] = json!([{"name": "a16"}]);
        assert_eq!(kept(json!({}), pinned).0, None, "the devices of its class");
    }

    #[test]
    fn a_vm_that_is_larger_than_its_host_takes_nothing_of_it_whatever_is_kept_for_it() {
        let of = |memory| SizeTaken::of(1, memory, HugePages::None).with_reservation(Some(10));
        let offered = Some(SizeTaken { cpus: 8, memory: 100, ..SizeTaken::default() });
        assert_eq!(size_taken(Some(of(100)), None, offered).map(|taken| taken.memory), Some(10));
        assert_eq!(size_taken(Some(of(101)), None, offered), Some(SizeTaken::default()));
        let has = SizeTaken::of(1, 50, HugePages::None);
        let both = size_taken(Some(of(60)), Some(has), offered);
        assert_eq!(both.map(|taken| (taken.memory, taken.whole_memory)), Some((50, 60)), "the most of each");
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
