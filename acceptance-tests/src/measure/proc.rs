//! What the kernel says of a process: memory and processor time, read from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Memory {
    /// Resident, MiB. Pages shared with others count whole.
    pub rss: f64,
    /// Proportional: pages shared with n others count 1/n. MiB.
    pub pss: f64,
    /// Of the proportional, what no file backs. MiB.
    pub anonymous: f64,
}

/// The memory of a process now.
pub fn memory(pid: i32) -> Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(Memory {
        rss: mebibytes(&text, "Rss:"),
        pss: mebibytes(&text, "Pss:"),
        anonymous: mebibytes(&text, "Pss_Anon:"),
    })
}

/// The most that was ever resident of a process, MiB.
pub fn peak(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(mebibytes(&text, "VmHWM:"))
}

/// The resident part of a process's mappings that are at least `size` bytes long and hold no file: a guest's memory. MiB.
pub fn large_mappings(pid: i32, size: u64) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(large(&text, size))
}

fn large(smaps: &str, size: u64) -> f64 {
    let mut sum = 0.0;
    let mut inside = false;
    for line in smaps.lines() {
        if let Some(length) = length(line) {
            inside = length >= size;
        } else if inside && let Some(rest) = line.strip_prefix("Pss:") {
            sum += kib(rest) / 1024.0;
        }
    }
    sum
}

/// The length of the mapping whose first line this is.
fn length(line: &str) -> Option<u64> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
}

/// Processor time the threads a process has now have used: less than before when some have ended.
pub fn cpu(pid: i32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?.flatten() {
        // A thread may end while we look.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        sum += Duration::from_nanos(nanoseconds);
    }
    Ok(sum)
}

fn mebibytes(text: &str, name: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(name)).map_or(0.0, kib) / 1024.0
}

fn kib(text: &str) -> f64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_as_large_as_the_guests_memory_are_the_guests_memory() {
        let smaps = "7f0000000000-7f0004000000 rw-p 00000000 00:00 0\nRss: 9000 kB\nPss: 8192 kB\n\
                     7f1000000000-7f1000001000 rw-p 00000000 00:00 0\nPss: 4 kB\n";
        assert_eq!(large(smaps, 64 << 20), 8.0);
        assert_eq!(large(smaps, 65 << 20), 0.0);
    }

    #[test]
    fn our_own_memory_and_time_can_be_read() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let memory = memory(pid).expect("it is ours");
        assert!(memory.rss >= memory.pss && memory.pss > 0.0, "{memory:?}");
        assert!(peak(pid).expect("it is ours") > 0.0);
        assert!(cpu(pid).is_ok());
    }
}
