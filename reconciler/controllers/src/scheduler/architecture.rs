//! The architecture of a VM's processors, which its host has or emulates. Pure.

use super::Request;
use crate::cache::capacity::Candidate;

/// Whether the host has, or emulates, processors of the VM's architecture.
pub(super) fn fits(candidate: &Candidate, request: &Request) -> bool {
    candidate.architectures.contains(request.architecture)
}

/// Explains that a number of hosts lack it.
pub(super) fn of_several(count: usize, request: &Request) -> String {
    format!("{count} without the architecture {}", request.architecture.as_str())
}

/// Explains that the only candidate lacks it.
pub(super) fn of_one(candidate: &Candidate, request: &Request) -> String {
    let name = request.architecture.as_str();
    format!(
        "host {} runs no VMs of architecture {name}: its agent emulates it with --emulate {name}",
        candidate.name
    )
}

/// Returns why none of these hosts will take the VM.
pub(super) fn never<'a>(
    request: &Request,
    mut eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    // A host that has not reported may have any.
    let may_have = |candidate: &Candidate| candidate.allocatable_cpus == 0 || fits(candidate, request);
    if eligible.clone().next().is_none() || eligible.any(may_have) {
        return None;
    }
    let name = request.architecture.as_str();
    Some(format!(
        "no host that it may run on runs VMs of architecture {name}: see status.architectures of the Hosts, add a host with such \
         processors, or let one emulate them with --emulate {name}"
    ))
}
