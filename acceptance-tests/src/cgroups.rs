//! The control groups that berth creates for its VMs, observed from outside.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// berth's folder in every hierarchy.
const PARENT: &str = "berth";
/// The number of attempts: a process leaves its group some time after its end is visible, later under load.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

/// berth's folders in all hierarchies: v2 is mounted at the root or beside those of v1.
fn parents() -> Vec<PathBuf> {
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    let parents = hierarchies.chain([PathBuf::from(ROOT)]).map(|hierarchy| hierarchy.join(PARENT));
    parents.filter(|parent| parent.is_dir()).collect()
}

/// The groups of a process.
pub fn of(pid: i32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let names: BTreeSet<&str> =
        text.lines().filter_map(|line| line.splitn(3, ':').nth(2)?.strip_prefix("/berth/")).collect();
    parents()
        .iter()
        .flat_map(|parent| names.iter().map(|name| parent.join(name)).collect::<Vec<_>>())
        .collect()
}

/// The limit of the CPU time of a process in thousandths of a CPU, 0 without one, and its weight in the terms of version 2.
pub fn cpu_time(pid: i32) -> Result<(i64, i64)> {
    let read = |name: &str| {
        of(pid).iter().find_map(|group| fs::read_to_string(group.join(name)).ok()).unwrap_or_default()
    };
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let v2 = read("cpu.max");
    let (quota, weight) = match v2.split_once(' ') {
        Some((quota, _)) => (number(quota), number(&read("cpu.weight"))),
        None => (
            number(&read("cpu.cfs_quota_us")),
            number(&read("cpu.shares")).map(|shares| (shares * 100 + 1023) / 1024),
        ),
    };
    let weight = weight.context("the process has no control group for CPU time")?;
    Ok((quota.filter(|quota| *quota > 0).unwrap_or_default() / 100, weight))
}

/// Groups without processes, and berth's folders without groups: one with a process belongs to a running VM.
pub fn idle() -> BTreeSet<PathBuf> {
    let mut idle = BTreeSet::new();
    for parent in parents() {
        let groups: Vec<PathBuf> = fs::read_dir(&parent)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        idle.extend(groups.iter().filter(|group| holds_none(group)).cloned());
        if groups.is_empty() {
            idle.insert(parent);
        }
    }
    idle
}

fn holds_none(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| pids.trim().is_empty())
}

/// Removes groups after their process has ended, and berth's folders once these are empty.
pub fn remove(groups: &BTreeSet<PathBuf>) {
    for group in groups {
        for _ in 0..TRIES {
            // Not every hierarchy has it. A process that has ended may still be listed.
            if fs::remove_dir(group).is_ok() || !group.exists() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        if let Some(parent) = group.parent().filter(|parent| parent.ends_with(PARENT)) {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Creates a group as berth would, in the first hierarchy that permits it.
#[cfg(test)]
pub(crate) fn make(name: &str) -> Option<PathBuf> {
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    let groups = hierarchies.chain([PathBuf::from(ROOT)]).map(|hierarchy| hierarchy.join(PARENT).join(name));
    groups.into_iter().find(|group| {
        let made = fs::create_dir_all(group).is_ok() && group.join("cgroup.procs").is_file();
        if !made {
            remove(&BTreeSet::from([group.clone()]));
        }
        made
    })
}
