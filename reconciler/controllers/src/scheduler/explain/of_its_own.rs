//! Explains that no host has the CPUs and huge pages that a VM is to have for itself.

use berth_api::HugeMemory;

use super::page_count;
use crate::{cache::capacity::Candidate, scheduler::Request};

pub(super) fn too_few_dedicated_cpus<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    let needed = request.dedicated_cpus;
    // A host that has not reported may have any number.
    let has = |c: &Candidate| c.allocatable_cpus == 0 || needed <= c.dedicated_cpus;
    if needed == 0 || eligible.clone().any(has) {
        return None;
    }
    let most = eligible.max_by_key(|c| (c.dedicated_cpus, &c.name))?;
    Some(format!(
        "it needs {needed} dedicated CPUs and no host it may run on has that many: {} has {}. Start the agent there with \
         --dedicated-cpus and their numbers, or lower its cpus",
        most.name, most.dedicated_cpus
    ))
}

pub(super) fn too_few_huge_pages<'a>(
    request: &Request,
    eligible: impl Iterator<Item = &'a Candidate> + Clone,
) -> Option<String> {
    let pages = request.huge_memory.exceeds(&HugeMemory::default())?;
    // A host that has not reported may have any number.
    let has =
        |c: &Candidate| c.allocatable_cpus == 0 || request.huge_memory.exceeds(&c.huge_memory).is_none();
    if eligible.clone().any(has) {
        return None;
    }
    let most = eligible.max_by_key(|c| (c.huge_memory.bytes(pages), &c.name))?;
    Some(format!(
        "it needs {} huge pages of {} and no host it may run on has that many: {} has {}. Reserve them there, or lower its memory",
        page_count(&request.huge_memory, pages),
        pages.as_str(),
        most.name,
        page_count(&most.huge_memory, pages)
    ))
}
