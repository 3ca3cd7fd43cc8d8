//! Reads the use of the host's resources from the kernel's files.

use std::fs;
use std::path::{Path, PathBuf};

use berth_qemu::process::Cgroups;

use crate::{HostUse, InterfaceUse, MachineUse};

/// More threads than any QEMU has.
const MAX_THREADS: usize = 4096;

/// Reads the use by a machine's process. None if it has ended.
pub(super) fn machine(pid: i32, instance: &str, taps: &[String]) -> Option<MachineUse> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let threads = fs::read_dir(folder.join("task")).ok()?.flatten().take(MAX_THREADS);
    let waited = threads
        .filter_map(|thread| waited_nanoseconds(&fs::read_to_string(thread.path().join("schedstat")).ok()?));
    Some(MachineUse {
        cpu_seconds: cpu_ticks(&stat)? as f64 / ticks_per_second(),
        waited_seconds: waited.sum::<u64>() as f64 / 1e9,
        throttled_seconds: throttled(instance),
        resident_bytes: kib(&status, "VmRSS") << 10,
        swapped_bytes: kib(&status, "VmSwap") << 10,
        interfaces: taps.iter().map(|tap| interface(tap)).collect(),
    })
}

/// Reads the use of the whole host.
pub(super) fn host() -> HostUse {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (stat, meminfo) = (read("/proc/stat"), read("/proc/meminfo"));
    let [busy, idle, steal] = host_ticks(&stat).map(|ticks| ticks as f64 / ticks_per_second());
    let pressure = |of: &str| some_total(&fs::read_to_string(Path::new("/proc/pressure").join(of)).ok()?);
    HostUse {
        cpus: std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        cpu_busy_seconds: busy,
        cpu_idle_seconds: idle,
        cpu_steal_seconds: steal,
        memory_bytes: kib(&meminfo, "MemTotal") << 10,
        memory_available_bytes: kib(&meminfo, "MemAvailable") << 10,
        huge_page_bytes: kib(&meminfo, "Hugetlb") << 10,
        swap_bytes: kib(&meminfo, "SwapTotal") << 10,
        swap_free_bytes: kib(&meminfo, "SwapFree") << 10,
        cpu_pressure_seconds: pressure("cpu"),
        memory_pressure_seconds: pressure("memory"),
        io_pressure_seconds: pressure("io"),
    }
}

/// The packets of a tap. The tap receives what the guest sends.
fn interface(tap: &str) -> InterfaceUse {
    let folder = Path::new("/sys/class/net").join(tap).join("statistics");
    let number = |name: &str| -> u64 {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    };
    InterfaceUse {
        received_bytes: number("tx_bytes"),
        received_packets: number("tx_packets"),
        received_dropped: number("tx_dropped"),
        sent_bytes: number("rx_bytes"),
        sent_packets: number("rx_packets"),
        sent_dropped: number("rx_dropped"),
    }
}

/// Time that an instance was stopped by a limit of its CPU time.
fn throttled(instance: &str) -> Option<f64> {
    let texts = Cgroups::detect().cpu_statistics(instance);
    texts.iter().find_map(|text| throttled_seconds(text))
}

fn throttled_seconds(cpu_stat: &str) -> Option<f64> {
    let value = |name: &str| -> Option<f64> {
        cpu_stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    // Version 2 counts microseconds, version 1 nanoseconds.
    value("throttled_usec").map(|us| us / 1e6).or_else(|| value("throttled_time").map(|ns| ns / 1e9))
}

/// Returns user and system time of `/proc/PID/stat`. The process's name, in parentheses, may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Returns busy, idle and stolen time of all processors.
fn host_ticks(stat: &str) -> [u64; 3] {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal
    [at(0) + at(1) + at(2) + at(5) + at(6), at(3) + at(4), at(7)]
}

/// Returns the second number of a `schedstat`: time on a run queue.
fn waited_nanoseconds(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the time in which some process waited, in seconds.
fn some_total(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let micros: f64 = line.split(' ').find_map(|field| field.strip_prefix("total=")?.parse().ok())?;
    Some(micros / 1e6)
}

fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn ticks_per_second() -> f64 {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    ticks.filter(|ticks| *ticks > 0).unwrap_or(100) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read_whatever_a_process_is_called() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 4 0 99 1 2 3";
        assert_eq!(cpu_ticks(stat), Some(200));
        assert_eq!(cpu_ticks("garbage"), None);
        assert_eq!(host_ticks("cpu  1 2 3 100 10 5 6 7 0 0\ncpu0 9 9 9 9\n"), [17, 110, 7]);
        assert_eq!(waited_nanoseconds("1000 2000 30\n"), Some(2000));
        assert_eq!(kib("VmRSS:\t  1234 kB\nVmSwap: 5 kB\n", "VmRSS"), 1234);
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n";
        assert_eq!(some_total(pressure), Some(2.5));
        assert_eq!(throttled_seconds("nr_throttled 2\nthrottled_usec 1500000\n"), Some(1.5));
        assert_eq!(throttled_seconds("nr_throttled 2\nthrottled_time 1500000000\n"), Some(1.5));
        assert_eq!(throttled_seconds("nr_periods 0\n"), None);
    }

    #[test]
    fn this_process_is_measured_and_one_that_is_gone_is_not() {
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let before = machine(pid, "i-none", &[]).expect("it runs");
        // At least ten ticks of work.
        let start = std::time::Instant::now();
        let mut work = 0u64;
        while machine(pid, "i-none", &[]).expect("it runs").cpu_seconds < before.cpu_seconds + 0.1 {
            work = work.wrapping_add(1);
            assert!(
                start.elapsed() < std::time::Duration::from_secs(60),
                "the counter does not rise ({work})"
            );
        }
        assert!(before.resident_bytes > 1 << 20, "{before:?}");
        assert_eq!(machine(i32::MAX, "i-none", &[]), None);
        let host = host();
        assert!(host.memory_bytes > host.memory_available_bytes && host.cpu_idle_seconds > 0.0, "{host:?}");
    }
}
