//! The CPUs of the host that a QEMU's threads run on.
//!
//! All threads inherit the CPUs that the process starts with. The threads of virtual CPUs are found by the name that QEMU gives them
//! with `debug-threads=on`. Only threads of the process itself are looked at, whatever names a QEMU makes up.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::machine::Affinity;

/// Returns a set of CPUs in the kernel's form.
///
/// *Errors*: a number is larger than the kernel supports.
pub(super) fn set_of(cpus: &[u32]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        set.set(usize::try_from(*cpu).unwrap_or(usize::MAX))?;
    }
    Ok(set)
}

/// Returns the CPUs that the process starts with; none: any.
pub(super) fn emulator(affinity: &Affinity) -> io::Result<Option<CpuSet>> {
    let cpus = &affinity.emulator;
    if cpus.is_empty() { Ok(None) } else { set_of(cpus).map(Some) }
}

/// Binds each virtual CPU of a process to its CPU of the host.
///
/// *Errors*: the process has another number of virtual CPUs, or the host does not have one of the CPUs.
pub(super) fn bind_vcpus(pid: i32, cpus: &[u32]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let threads = vcpu_threads(Path::new("/proc"), pid)?;
    if !threads.keys().copied().eq(0..cpus.len()) {
        let text =
            format!("QEMU has threads for the virtual CPUs {:?}, not for {}", threads.keys(), cpus.len());
        return Err(io::Error::other(text));
    }
    for (thread, cpu) in threads.values().zip(cpus) {
        sched_setaffinity(Pid::from_raw(*thread), &set_of(&[*cpu])?)?;
    }
    Ok(())
}

/// Returns the CPUs that a thread may run on.
pub fn cpus_of_thread(thread: i32) -> io::Result<Vec<u32>> {
    let set = sched_getaffinity(Pid::from_raw(thread))?;
    let has = |cpu: &usize| set.is_set(*cpu).unwrap_or_default();
    Ok((0..CpuSet::count()).filter(has).filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

/// Returns the thread of each virtual CPU of a process, by its number.
pub fn vcpu_threads(proc: &Path, pid: i32) -> io::Result<BTreeMap<usize, i32>> {
    let tasks = proc.join(pid.to_string()).join("task");
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(tasks)? {
        let task = task?;
        let thread = task.file_name().to_str().and_then(|name| name.parse().ok());
        // A thread may have ended since.
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if let (Some(thread), Some(number)) = (thread, vcpu_of(&name)) {
            threads.insert(number, thread);
        }
    }
    Ok(threads)
}

/// Returns the number of the virtual CPU whose thread has this name: `CPU 3/KVM`.
fn vcpu_of(name: &str) -> Option<usize> {
    let (number, accelerator) = name.trim().strip_prefix("CPU ")?.split_once('/')?;
    ["KVM", "TCG"].contains(&accelerator).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_virtual_cpus_are_known_by_their_names() {
        let proc = tempfile::tempdir().expect("a directory");
        let names = [
            ("7", "qemu-system-x86"),
            ("8", "CPU 1/KVM"),
            ("9", "CPU 0/KVM"),
            ("10", "CPU 10/TCG"),
            ("11", "worker"),
            ("12", "CPU 2/other"),
            ("x", "CPU 3/KVM"),
        ];
        for (thread, name) in names {
            let task = proc.path().join("7/task").join(thread);
            fs::create_dir_all(&task).expect("a directory");
            fs::write(task.join("comm"), format!("{name}\n")).expect("a file");
        }
        let found = vcpu_threads(proc.path(), 7).expect("read");
        assert_eq!(found, BTreeMap::from([(0, 9), (1, 8), (10, 10)]));
    }

    #[test]
    fn a_process_without_these_virtual_cpus_is_not_bound() {
        let own = i32::try_from(std::process::id()).expect("a process number");
        assert!(bind_vcpus(own, &[0]).is_err(), "a test has no virtual CPU");
        bind_vcpus(own, &[]).expect("nothing to bind");
        assert!(set_of(&[u32::MAX]).is_err(), "no kernel has as many");
        assert!(!cpus_of_thread(0).expect("read").is_empty());
    }
}
