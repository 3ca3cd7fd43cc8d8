//! How often the kernel's OOM killer has ended processes of a machine: counted in its cgroups, and remembered after these are removed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More instances than a host has; the numbers of some are forgotten above it.
const MOST: usize = 4096;

/// The numbers of instances whose cgroups are removed.
static REMOVED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn removed() -> MutexGuard<'static, BTreeMap<String, u64>> {
    REMOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the number of a cgroup from this file of it: `memory.events` in version 2, `memory.oom_control` in version 1. 0 if there is
/// none: the kernel counts since 4.13.
pub(super) fn kills(file: &Path) -> u64 {
    std::fs::read_to_string(file).map_or(0, |text| parse(&text))
}

fn parse(text: &str) -> u64 {
    let number = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok();
    text.lines().find_map(number).unwrap_or_default()
}

/// Remembers the number of an instance whose cgroup is about to be removed.
pub(super) fn remember(instance: &str, kills: u64) {
    if kills == 0 {
        return;
    }
    let mut removed = removed();
    let number = removed.entry(instance.to_owned()).or_default();
    *number = kills.max(*number);
    if removed.len() > MOST {
        removed.pop_first();
    }
}

/// Forgets the number of an instance of which a machine is about to be started.
pub(super) fn forget(instance: &str) {
    removed().remove(instance);
}

/// Returns the number of an instance whose cgroups were removed.
pub(super) fn remembered(instance: &str) -> u64 {
    removed().get(instance).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_in_both_versions_of_cgroups() {
        assert_eq!(parse("low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 5\n"), 1);
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 2);
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\n"), 0, "an older kernel");
        assert_eq!(parse("oom_kill x\n"), 0);
    }

    #[test]
    fn a_number_is_remembered_until_the_next_start() {
        remember("i-remembered", 0);
        assert_eq!(remembered("i-remembered"), 0);
        remember("i-remembered", 2);
        remember("i-remembered", 1);
        assert_eq!(remembered("i-remembered"), 2, "of another hierarchy");
        forget("i-remembered");
        assert_eq!(remembered("i-remembered"), 0);
    }
}
