//! The resources that VMs take of their hosts, and the values that they declare with their classes.

use berth_api::host::{MOST_CPUS, MOST_MEMORY};
use berth_api::vm::{Hardware, taken_devices};
use berth_api::{SizeError, SizeTaken, VM, size_taken};
use kube::ResourceExt;

use super::Cache;
use super::capacity::Demand;
use crate::key::Key;

impl Cache {
    /// Recomputes the usage of a class's VMs on their hosts after the class was resized, created or removed.
    pub(super) fn resize_vms(&mut self, class: &Key) -> Vec<Key> {
        let vms = self.users_of(class);
        vms.iter().flat_map(|vm| self.index_vm(vm)).collect()
    }

    pub(super) fn index_vm(&mut self, key: &Key) -> Vec<Key> {
        let Some(vm) = self.tables.vms.get(key).cloned() else {
            return self.index.set_vm(key, None, Demand::default());
        };
        let demand = self.demand(&vm).unwrap_or_default();
        self.index.set_vm(key, Some(&vm), demand)
    }

    /// Returns what a VM takes of its host, see [`size_taken`]. None: its size is not known.
    pub(crate) fn demand(&self, vm: &VM) -> Option<Demand> {
        let namespace = vm.namespace()?;
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&namespace, class.as_str()));
        let class = vm.class_values(class.map(|class| &class.spec));
        let class = class.as_deref();
        let declared = vm.spec.size(class).ok().map(|size| size.taken());
        let has = vm.status.as_ref().and_then(|s| s.hardware.as_ref()).and_then(Hardware::taken);
        // Reported by the host, so it is validated.
        let is_possible = |has: &SizeTaken| {
            let most = has.whole_memory.max(has.huge_memory.total());
            let cpus = has.cpus.max(has.dedicated_cpus);
            (0..=MOST_CPUS).contains(&cpus) && has.cpus.min(has.dedicated_cpus) >= 0 && most <= MOST_MEMORY
        };
        let has = has.filter(is_possible);
        let host = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| &b.host);
        let host = host.and_then(|host| self.index.capacity.get(host)).filter(|h| h.allocatable_memory > 0);
        let offered = host.map(|h| SizeTaken {
            cpus: h.allocatable_cpus,
            memory: h.allocatable_memory,
            huge_memory: h.huge_memory,
            dedicated_cpus: h.dedicated_cpus,
            ..SizeTaken::default()
        });
        let SizeTaken { cpus, dedicated_cpus, memory, whole_memory, huge_memory } =
            size_taken(declared, has, offered)?;
        Some(Demand {
            cpus,
            dedicated_cpus,
            memory,
            whole_memory,
            huge_memory,
            reserved: vm.spec.cpu_controls(class).reserved,
            devices: taken_devices(vm, class),
            scratch: vm.scratch_bytes(class),
        })
    }

    /// Returns why the size that a VM declares, with that of its class, cannot be used.
    pub(crate) fn invalid_size(&self, vm: &VM) -> Option<String> {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        match vm.spec.size(vm.class_values(class.map(|class| &class.spec)).as_deref()) {
            Ok(_) | Err(SizeError::NoClass(_) | SizeError::NoCpus) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns the CPU model that a VM declares.
    pub(crate) fn cpu_model(&self, vm: &VM) -> Option<String> {
        let class = vm.spec.class.as_ref();
        let class = class.and_then(|class| self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
        vm.spec.profile(vm.class_values(class.map(|class| &class.spec)).as_deref()).cpu_model
    }

    /// Whether a VM is to have a TPM.
    pub(crate) fn declares_tpm(&self, vm: &VM) -> bool {
        let of_class = || {
            let class = vm.spec.class.as_ref()?;
            let class = self.tables.vm_classes.lookup(&vm.namespace()?, class.as_str());
            Some(vm.class_values(class.map(|class| &class.spec))?.tpm)
        };
        vm.spec.tpm.or_else(of_class).unwrap_or_default()
    }
}
