//! How much of its host's CPU time a VM may use, and gets when CPU time is scarce: from its own attributes and those of its class.

use crate::{VMClassSpec, VMSpec};

/// The weight of a VM that declares none.
pub const DEFAULT_CPU_WEIGHT: u32 = 100;
/// The largest weight.
pub const MOST_CPU_WEIGHT: u32 = 10_000;

/// The share of its host's CPU time that a VM declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuControls {
    /// Thousandths of a CPU that it may use at most; none: as many as it has.
    pub limit: Option<u32>,
    /// Its share when CPU time is scarce, from 1 to [`MOST_CPU_WEIGHT`].
    pub weight: u32,
    /// Thousandths of a CPU that its host keeps for it.
    pub reserved: u32,
}

impl Default for CpuControls {
    fn default() -> Self {
        Self { limit: None, weight: DEFAULT_CPU_WEIGHT, reserved: 0 }
    }
}

impl CpuControls {
    /// The weight on a host with this many CPUs. That of a VM with a reservation is at least its part of all of them: beside VMs of the
    /// default weight it then gets what is reserved for it.
    #[must_use]
    pub fn weight_on(&self, cpus: u32) -> u32 {
        let whole = u64::from(cpus.max(1)) * 1000;
        let part = (u64::from(self.reserved) * u64::from(MOST_CPU_WEIGHT)).div_ceil(whole);
        u32::try_from(part).unwrap_or(MOST_CPU_WEIGHT).clamp(self.weight, MOST_CPU_WEIGHT)
    }
}

impl VMSpec {
    /// The share of CPU time. `class` is the class that the VM names, if that exists. Each value of the VM comes before that of
    /// its class; a reservation counts up to the number of its CPUs, and not for a VM on dedicated ones.
    #[must_use]
    pub fn cpu_controls(&self, class: Option<&VMClassSpec>) -> CpuControls {
        let size = self.size(class).ok();
        let cpus = size.and_then(|size| u32::try_from(size.cpus).ok());
        let is_dedicated = size.is_some_and(|size| size.dedicated_cpus);
        let class = class.filter(|_| self.class.is_some());
        let limit = self.cpu_limit.as_ref().or(class.and_then(|class| class.cpu_limit.as_ref()));
        let weight = self.cpu_weight.or(class.and_then(|class| class.cpu_weight));
        let reserved =
            self.cpu_reservation.as_ref().or(class.and_then(|class| class.cpu_reservation.as_ref()));
        // CPUs of its own are more than any reservation.
        let reserved = reserved.filter(|_| !is_dedicated);
        let reserved = reserved.and_then(|amount| amount.millis().ok()).unwrap_or_default();
        let weight = weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(DEFAULT_CPU_WEIGHT);
        CpuControls {
            limit: limit.and_then(|amount| amount.millis().ok()),
            weight: weight.clamp(1, MOST_CPU_WEIGHT),
            reserved: reserved.min(cpus.map_or(reserved, |cpus| cpus.saturating_mul(1000))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn controls(own: Value, class: Value) -> CpuControls {
        let mut spec = json!({"disks": [], "class": "c"});
        spec.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
        let spec: VMSpec = serde_json::from_value(spec).expect("a spec");
        let class: VMClassSpec = serde_json::from_value(class).expect("a class");
        spec.cpu_controls(Some(&class))
    }

    #[test]
    fn each_value_of_the_vm_comes_before_that_of_its_class() {
        let class = json!({"cpus": 2, "cpuLimit": "1.5", "cpuWeight": 200, "cpuReservation": "1"});
        assert_eq!(controls(json!({}), json!({"cpus": 2})), CpuControls::default());
        let all = CpuControls { limit: Some(1500), weight: 200, reserved: 1000 };
        assert_eq!(controls(json!({}), class.clone()), all);
        assert_eq!(
            controls(json!({"cpuLimit": "2"}), class.clone()),
            CpuControls { limit: Some(2000), ..all }
        );
        assert_eq!(controls(json!({"cpuWeight": 1}), class.clone()), CpuControls { weight: 1, ..all });
        let own = json!({"cpuReservation": "0.25"});
        assert_eq!(controls(own, class), CpuControls { reserved: 250, ..all });
        let more = controls(json!({"cpus": 1}), json!({"cpus": 4, "cpuReservation": "3"}));
        assert_eq!(more.reserved, 1000, "no more than the VM has");
    }

    #[test]
    fn a_reservation_is_a_part_of_all_weights() {
        let reserved = |reserved, cpus| CpuControls { reserved, ..CpuControls::default() }.weight_on(cpus);
        assert_eq!(reserved(0, 8), 100);
        assert_eq!(reserved(2000, 8), 2500);
        assert_eq!(reserved(10, 128), 100, "not less than declared");
        assert_eq!(reserved(8000, 8), 10_000);
        assert_eq!(reserved(9000, 8), 10_000);
        assert_eq!(CpuControls { weight: 10_000, ..CpuControls::default() }.weight_on(0), 10_000);
    }
}
