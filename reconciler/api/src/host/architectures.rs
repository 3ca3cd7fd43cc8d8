//! The architectures of the VMs that a host runs.

use std::collections::BTreeSet;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{Architecture, HostStatus};

/// An architecture that VMs on a host can have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostArchitecture {
    /// `x86_64` or `aarch64`.
    #[schemars(length(max = 16))]
    pub name: String,
    /// The accelerator of VMs of this architecture: `kvm`, or `tcg`, which emulates the processors.
    #[schemars(length(max = 16))]
    pub accelerator: String,
    /// Why no VM of this architecture can run here now; absent: it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

impl HostStatus {
    /// The architectures that VMs here can have.
    pub fn offered_architectures(&self) -> BTreeSet<Architecture> {
        if self.architectures.is_empty() {
            return BTreeSet::from([Architecture::X86_64]);
        }
        let usable = self.architectures.iter().filter(|of| of.problem.is_none());
        usable.filter_map(|of| Architecture::of_text(&of.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_agent_runs_x86_64_and_a_problem_excludes_an_architecture() {
        let of = |name: &str, problem: Option<&str>| HostArchitecture {
            name: name.to_owned(),
            accelerator: "tcg".to_owned(),
            problem: problem.map(str::to_owned),
        };
        assert_eq!(HostStatus::default().offered_architectures(), [Architecture::X86_64].into());
        let status = HostStatus {
            architectures: vec![of("x86_64", None), of("aarch64", Some("no emulator")), of("vax", None)],
            ..HostStatus::default()
        };
        assert_eq!(status.offered_architectures(), [Architecture::X86_64].into());
        let status = HostStatus { architectures: vec![of("aarch64", None)], ..HostStatus::default() };
        assert_eq!(status.offered_architectures(), [Architecture::Aarch64].into());
    }

    #[test]
    fn emulated_processors_have_no_level_in_common_with_those_of_hosts() {
        let mut status = HostStatus {
            accelerator: Some("kvm".to_owned()),
            cpu_models: vec!["x86-64-v2".to_owned()],
            ..HostStatus::default()
        };
        assert_eq!(status.cpu_levels(), ["x86-64-v2"].into());
        let of = |name: &str, accelerator: &str| HostArchitecture {
            name: name.to_owned(),
            accelerator: accelerator.to_owned(),
            problem: None,
        };
        status.architectures = vec![of("x86_64", "kvm"), of("aarch64", "tcg")];
        assert_eq!(status.cpu_levels(), ["x86-64-v2"].into());
        status.architectures = vec![of("aarch64", "kvm"), of("x86_64", "tcg")];
        assert!(status.cpu_levels().is_empty());
    }
}
