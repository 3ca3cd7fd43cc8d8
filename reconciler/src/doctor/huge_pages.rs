//! The check of reserved huge pages, which VMs with `huge_pages` use and nothing else of berth does.

use berth_host::linux::{DoctorFacts, DoctorHugePages};

use super::{Check, Level, gib};

const NAME: &str = "huge pages";

pub(super) fn huge_pages(facts: &DoctorFacts) -> Check {
    let all = &facts.huge_pages;
    if all.is_empty() {
        return Check::ok(NAME, "none reserved: VMs with `huge_pages` run on other hosts");
    }
    let found = all.iter().map(described).collect::<Vec<_>>().join("; ");
    if let Some((pages, wanted)) = all.iter().find_map(|pages| Some((pages, missing(pages)?))) {
        let (size, parameter) = (name(pages.page_bytes), parameter(pages.page_bytes));
        return Check::bad(
            NAME,
            Level::Warning,
            format!(
                "{found}: the configuration of this machine asks for {wanted} of {size}: the kernel had too little memory in one piece, or they were released later"
            ),
            format!(
                "reserve them at boot, by the kernel parameters hugepagesz={parameter} hugepages={wanted}, or now, after other programs have ended: \
                 `echo {wanted} > {}`",
                file(pages.page_bytes)
            ),
        );
    }
    if let Some(pages) = all.iter().find(|pages| memory(pages, pages.free) > facts.memory.total / 4) {
        return Check::bad(
            NAME,
            Level::Warning,
            format!(
                "{found}: {} are free, and only VMs with `huge_pages` can use them",
                gib(memory(pages, pages.free))
            ),
            format!(
                "if no such VM and no other program is to use them: `echo {} > {}`, and take them out of sysctl's files and the kernel parameters",
                pages.total.saturating_sub(pages.free),
                file(pages.page_bytes)
            ),
        );
    }
    if let Some((pages, node)) = all.iter().find_map(|pages| Some((pages, node_without(pages)?))) {
        return Check::bad(
            NAME,
            Level::Note,
            format!(
                "{found}: node {node} has none of {}, and a VM with several NUMA nodes needs some on each",
                name(pages.page_bytes)
            ),
            format!(
                "`echo NUMBER > /sys/devices/system/node/node{node}/hugepages/{}/nr_hugepages`",
                folder(pages.page_bytes)
            ),
        );
    }
    Check::ok(NAME, found)
}

fn described(pages: &DoctorHugePages) -> String {
    let DoctorHugePages { page_bytes, total, free, nodes, .. } = pages;
    let by_node: Vec<String> = nodes.iter().map(|(node, pages)| format!("node {node}: {pages}")).collect();
    let by_node = if nodes.len() > 1 { format!(" ({})", by_node.join(", ")) } else { String::new() };
    let size = name(*page_bytes);
    format!("{total} of {size} reserved{by_node}, {}, {free} free", gib(memory(pages, *total)))
}

/// Returns the number that is asked for, if there are fewer.
fn missing(pages: &DoctorHugePages) -> Option<u64> {
    pages.wanted.filter(|wanted| *wanted > pages.total)
}

/// Returns a node without pages, if another one has some.
fn node_without(pages: &DoctorHugePages) -> Option<u32> {
    let empty = pages.nodes.iter().find(|(_, count)| **count == 0).map(|(node, _)| *node);
    empty.filter(|_| pages.nodes.values().any(|count| *count > 0))
}

fn memory(pages: &DoctorHugePages, count: u64) -> u64 {
    count.saturating_mul(pages.page_bytes)
}

/// The size as it is declared: `2Mi`.
fn name(page_bytes: u64) -> String {
    parameter(page_bytes) + "i"
}

/// The size as the kernel's parameters have it: `2M`.
fn parameter(page_bytes: u64) -> String {
    match page_bytes {
        gigabytes if gigabytes >= 1 << 30 => format!("{}G", gigabytes >> 30),
        megabytes if megabytes >= 1 << 20 => format!("{}M", megabytes >> 20),
        smaller => format!("{}K", smaller >> 10),
    }
}

fn folder(page_bytes: u64) -> String {
    format!("hugepages-{}kB", page_bytes >> 10)
}

fn file(page_bytes: u64) -> String {
    format!("/sys/kernel/mm/hugepages/{}/nr_hugepages", folder(page_bytes))
}
