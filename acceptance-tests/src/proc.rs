//! Process statistics of the kernel: memory and processor time, read from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// The memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Memory {
    /// Resident memory in MiB. Pages shared with others count whole.
    pub rss: f64,
    /// Proportional memory in MiB: pages shared by n processes count 1/n.
    pub pss: f64,
    /// The part of the proportional memory without a backing file, in MiB.
    pub anonymous: f64,
}

/// The current memory of a process.
pub fn memory(pid: i32) -> Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(Memory {
        rss: mebibytes(&text, "Rss:"),
        pss: mebibytes(&text, "Pss:"),
        anonymous: mebibytes(&text, "Pss_Anon:"),
    })
}

/// The peak resident memory of a process, in MiB.
pub fn peak(pid: i32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(mebibytes(&text, "VmHWM:"))
}

/// The resident part of a process's mappings that are at least `size` bytes long and have no file, in MiB: a guest's memory.
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

/// The length of the mapping with this first line.
fn length(line: &str) -> Option<u64> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
}

/// The processor time of a process's current threads: it decreases when threads end.
pub fn cpu(pid: i32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?.flatten() {
        // A thread may end during the search.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        sum += Duration::from_nanos(nanoseconds);
    }
    Ok(sum)
}

/// The processor time of a process, including that of ended threads; exact to the kernel's tick of 10 ms.
pub fn cpu_of_all(pid: i32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let ticks = ticks(&text).with_context(|| format!("{path} holds {text:?}"))?;
    Ok(Duration::from_millis(ticks * 10))
}

/// The ticks in user and kernel mode. The name before them may contain any character, but ends with the last parenthesis.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
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
    fn the_times_of_a_process_follow_its_name_whatever_that_is() {
        let stat = "7 (a ) 1 2) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 1 0 5 1 1";
        assert_eq!(ticks(stat), Some(300));
        assert!(cpu_of_all(i32::try_from(std::process::id()).expect("it fits")).is_ok());
    }

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
