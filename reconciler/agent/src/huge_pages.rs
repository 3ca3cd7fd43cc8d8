//! The huge pages of this host, in the terms of the API. Pure.

use berth_api::{HugeMemory, HugePages};
use berth_host::{HostFacts, HugePagesFacts};

/// Returns the memory in huge pages that VMs may use: all pages that the administrator has reserved.
pub(crate) fn offered(facts: &HostFacts) -> HugeMemory {
    sum(facts, |pages| pages.total)
}

/// Returns the memory in huge pages that no process uses.
pub(crate) fn free(facts: &HostFacts) -> HugeMemory {
    sum(facts, |pages| pages.free)
}

/// Returns all memory in huge pages, of whatever size, in bytes: no ordinary memory is in them.
pub(crate) fn reserved_bytes(facts: &HostFacts) -> u64 {
    let bytes = facts.huge_pages.iter().map(|pages| pages.total.saturating_mul(pages.page_bytes));
    bytes.fold(0, u64::saturating_add)
}

/// Returns an amount for people, for example `64 huge pages of 2Mi`.
pub(crate) fn text(memory: &HugeMemory, pages: HugePages) -> String {
    let count = pages.bytes().map_or(0, |bytes| memory.bytes(pages) / bytes);
    format!("{count} huge pages of {}", pages.as_str())
}

fn sum(facts: &HostFacts, count: impl Fn(&HugePagesFacts) -> u64) -> HugeMemory {
    let of = |pages: &HugePagesFacts| {
        let size = HugePages::of_bytes(pages.page_bytes).unwrap_or_default();
        HugeMemory::of(size, count(pages).saturating_mul(pages.page_bytes))
    };
    facts.huge_pages.iter().map(of).fold(HugeMemory::default(), HugeMemory::saturating_add)
}
