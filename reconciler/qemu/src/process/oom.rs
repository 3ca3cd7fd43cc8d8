//! The kernel's OOM killer: how often it has ended processes of a machine, which its cgroups count and which is remembered after these
//! are removed, and which processes it prefers.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More instances than a host has; the numbers of some are forgotten above it.
const MOST: usize = 4096;
/// The largest number of the kernel's scale: such a process is ended first.
const MOST_SCORE: i32 = 1000;

/// The numbers of an instance beside that which its cgroups have now.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// That of its cgroups when its machine was started: an earlier machine may have left them.
    before: u64,
    /// Those of its machine when its cgroups were removed.
    removed: u64,
}

static KNOWN: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<String, Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Begins to count for a machine that is about to be started in cgroups with this number.
pub(super) fn begin(instance: &str, counted: u64) {
    let mut known = known();
    known.remove(instance);
    if counted > 0 {
        insert(&mut known, instance, Known { before: counted, removed: 0 });
    }
}

/// Remembers the number of an instance whose cgroup with this number has been removed.
pub(super) fn remember(instance: &str, counted: u64) {
    let mut known = known();
    let Known { before, removed } = known.get(instance).copied().unwrap_or_default();
    let kills = counted.saturating_sub(before);
    if kills > removed {
        insert(&mut known, instance, Known { before, removed: kills });
    }
}

fn insert(known: &mut BTreeMap<String, Known>, instance: &str, numbers: Known) {
    known.insert(instance.to_owned(), numbers);
    if known.len() > MOST {
        known.pop_first();
    }
}

/// Returns the number of the machine of an instance whose cgroups have this number now.
pub(super) fn since_its_start(instance: &str, counted: u64) -> u64 {
    let Known { before, removed } = known().get(instance).copied().unwrap_or_default();
    counted.saturating_sub(before).max(removed)
}

/// Has the OOM killer prefer a process by this number more than this program, as far as the kernel's scale goes.
pub(super) fn prefer(pid: i32, preference: u16) -> io::Result<()> {
    let wanted = (read_score("/proc/self/oom_score_adj")? + i32::from(preference)).min(MOST_SCORE);
    let path = format!("/proc/{pid}/oom_score_adj");
    if read_score(&path)? == wanted { Ok(()) } else { std::fs::write(path, wanted.to_string()) }
}

fn read_score(path: &str) -> io::Result<i32> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{path} has no number")))
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
        assert_eq!(since_its_start("i-remembered", 0), 0);
        remember("i-remembered", 2);
        remember("i-remembered", 1);
        assert_eq!(since_its_start("i-remembered", 0), 2, "the other is of another hierarchy");
        begin("i-remembered", 0);
        assert_eq!(since_its_start("i-remembered", 0), 0);
    }

    #[test]
    fn a_machine_in_the_cgroup_of_an_earlier_one_has_numbers_of_its_own() {
        begin("i-again", 3);
        assert_eq!((since_its_start("i-again", 3), since_its_start("i-again", 4)), (0, 1));
        remember("i-again", 3);
        assert_eq!(since_its_start("i-again", 0), 0);
        remember("i-again", 5);
        assert_eq!(since_its_start("i-again", 0), 2);
    }
}
