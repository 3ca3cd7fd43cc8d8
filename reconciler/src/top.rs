//! The rates between two readings of the use of hosts, and their table. Pure.

pub(crate) mod history;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write as _;

use berth_agent::{DiskUsage, OperationUse, Usage, VmUsage};
use berth_filesystems::shown;

use crate::printable::printable_json;

/// The use of a VM in a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VmRates {
    /// Processors of the host.
    pub(crate) cpus: f64,
    /// The part of the time, over all its CPUs, in which its threads waited for a processor.
    pub(crate) waited: f64,
    /// The part of the time in which it was stopped by its limit.
    pub(crate) throttled: f64,
    pub(crate) read_bytes: f64,
    pub(crate) written_bytes: f64,
    pub(crate) operations: f64,
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
    /// Memory that the guest reads back from its swap space.
    pub(crate) swapped_in_bytes: f64,
    pub(crate) dropped_packets: f64,
    /// The mean duration of an operation of each disk and sort, in seconds; without those that had none.
    pub(crate) durations: Vec<(String, &'static str, f64)>,
}

/// The use of a host in a second, as parts of the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HostRates {
    pub(crate) busy: f64,
    pub(crate) steal: f64,
    pub(crate) cpu_pressure: Option<f64>,
    pub(crate) memory_pressure: Option<f64>,
    pub(crate) io_pressure: Option<f64>,
}

/// Returns the seconds between two readings.
fn seconds(before: &Usage, after: &Usage) -> f64 {
    after.time.duration_since(before.time).as_secs_f64().max(0.001)
}

/// Returns the rates of a host.
pub(crate) fn host_rates(before: &Usage, after: &Usage) -> HostRates {
    let (old, new) = (&before.machine, &after.machine);
    let busy = (new.cpu_busy_seconds - old.cpu_busy_seconds).max(0.0);
    let idle = (new.cpu_idle_seconds - old.cpu_idle_seconds).max(0.0);
    let steal = (new.cpu_steal_seconds - old.cpu_steal_seconds).max(0.0);
    let all = (busy + idle + steal).max(0.001);
    let time = seconds(before, after);
    let waited = |before: Option<f64>, after: Option<f64>| Some(((after? - before?) / time).clamp(0.0, 1.0));
    HostRates {
        busy: busy / all,
        steal: steal / all,
        cpu_pressure: waited(old.cpu_pressure_seconds, new.cpu_pressure_seconds),
        memory_pressure: waited(old.memory_pressure_seconds, new.memory_pressure_seconds),
        io_pressure: waited(old.io_pressure_seconds, new.io_pressure_seconds),
    }
}

/// Returns the rates of a VM, of which both readings have the same name. Counters that decreased are those of a new process.
pub(crate) fn vm_rates(before: &Usage, after: &Usage, vm: &VmUsage) -> Option<VmRates> {
    let old = before.vms.iter().find(|old| old.namespace == vm.namespace && old.name == vm.name)?;
    let time = seconds(before, after);
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / time;
    let part = |before: f64, after: f64| (after - before).max(0.0) / time;
    let cpus = vm.cpus.max(1) as f64;
    let throttled = old.process.throttled_seconds.zip(vm.process.throttled_seconds);
    let mut rates = VmRates {
        cpus: part(old.process.cpu_seconds, vm.process.cpu_seconds),
        waited: (part(old.process.waited_seconds, vm.process.waited_seconds) / cpus).min(1.0),
        throttled: throttled.map_or(0.0, |(before, after)| part(before, after).min(1.0)),
        ..VmRates::default()
    };
    let swapped_in = |vm: &VmUsage| vm.guest_memory.and_then(|memory| memory.swapped_in);
    if let Some((before, after)) = swapped_in(old).zip(swapped_in(vm)) {
        rates.swapped_in_bytes = rate(before, after);
    }
    for (name, new) in &vm.interfaces {
        let Some((_, old)) = old.interfaces.iter().find(|(old, _)| old == name) else { continue };
        rates.received_bytes += rate(old.received_bytes, new.received_bytes);
        rates.sent_bytes += rate(old.sent_bytes, new.sent_bytes);
        rates.dropped_packets += rate(old.received_dropped, new.received_dropped);
    }
    for new in &vm.disks {
        let Some(old) = old.disks.iter().find(|old| old.name == new.name) else { continue };
        rates.read_bytes += rate(old.read.bytes, new.read.bytes);
        rates.written_bytes += rate(old.write.bytes, new.write.bytes);
        for (sort, before, after) in sorts(old, new) {
            rates.operations += rate(before.operations, after.operations);
            let count = after.operations.saturating_sub(before.operations);
            let took = after.nanoseconds.saturating_sub(before.nanoseconds);
            if count > 0 {
                rates.durations.push((new.name.clone(), sort, took as f64 / 1e9 / count as f64));
            }
        }
    }
    Some(rates)
}

fn sorts<'a>(
    old: &'a DiskUsage,
    new: &'a DiskUsage,
) -> [(&'static str, &'a OperationUse, &'a OperationUse); 3] {
    [("read", &old.read, &new.read), ("write", &old.write, &new.write), ("flush", &old.flush, &new.flush)]
}

/// Formats hosts and their VMs, the busiest VM first, of one namespace or of all.
pub(crate) fn table(hosts: &[(&Usage, &Usage)], namespace: Option<&str>) -> String {
    let mut lines = vec![row(&[
        "HOST",
        "VMS",
        "CPU",
        "STEAL",
        "MEMORY",
        "AVAILABLE",
        "WAITS FOR CPU",
        "MEMORY",
        "DISKS",
    ])];
    for (before, after) in hosts {
        let rates = host_rates(before, after);
        let optional = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), percent);
        lines.push(vec![
            after.host.clone(),
            after.vms.len().to_string(),
            percent(rates.busy),
            percent(rates.steal),
            bytes(after.machine.memory_bytes as f64),
            bytes(after.machine.memory_available_bytes as f64),
            optional(rates.cpu_pressure),
            optional(rates.memory_pressure),
            optional(rates.io_pressure),
        ]);
    }
    let mut out = aligned(&lines) + &pools(hosts);
    let mut vms: Vec<(&Usage, &VmUsage, VmRates)> = Vec::new();
    for (before, after) in hosts {
        let wanted = after.vms.iter().filter(|vm| namespace.is_none_or(|wanted| vm.namespace == wanted));
        vms.extend(wanted.filter_map(|vm| Some((*after, vm, vm_rates(before, after, vm)?))));
    }
    vms.sort_by(|a, b| b.2.cpus.total_cmp(&a.2.cpus));
    let head = [
        "NAMESPACE",
        "VM",
        "HOST",
        "CPUS",
        "CPU",
        "WAITS",
        "MEMORY",
        "USED",
        "RESIDENT",
        "READ/S",
        "WRITTEN/S",
        "IO/S",
        "SLOWEST",
        "RECEIVED/S",
        "SENT/S",
    ];
    let mut lines = vec![row(&head)];
    for (usage, vm, rates) in vms {
        let slowest = rates.durations.iter().map(|(_, _, time)| *time).fold(0.0, f64::max);
        lines.push(vec![
            vm.namespace.clone(),
            vm.name.clone(),
            usage.host.clone(),
            vm.cpus.to_string(),
            percent(rates.cpus),
            percent(rates.waited),
            bytes(vm.memory_bytes as f64),
            vm.guest_memory.map_or_else(|| "-".to_owned(), |memory| bytes(memory.used() as f64)),
            bytes(vm.process.resident_bytes as f64),
            bytes(rates.read_bytes),
            bytes(rates.written_bytes),
            format!("{:.0}", rates.operations),
            milliseconds(slowest),
            bytes(rates.received_bytes),
            bytes(rates.sent_bytes),
        ]);
    }
    out.push('\n');
    out + &aligned(&lines)
}

/// Formats the readings as a list in JSON, with the VMs of one namespace or of all.
pub(crate) fn json(hosts: &[Usage], namespace: Option<&str>) -> serde_json::Result<String> {
    let mut hosts = hosts.to_vec();
    for usage in &mut hosts {
        usage.vms.retain(|vm| namespace.is_none_or(|wanted| vm.namespace == wanted));
    }
    Ok(printable_json(&serde_json::to_string_pretty(&hosts)?) + "\n")
}

/// Formats the storage pools of hosts; empty if none is reported.
fn pools(hosts: &[(&Usage, &Usage)]) -> String {
    let mut lines = vec![row(&["HOST", "POOL", "SIZE", "FREE", "PROMISED"])];
    for (host, pool) in hosts.iter().flat_map(|(_, host)| host.pools.iter().map(move |pool| (host, pool))) {
        let space = |amount: u64| if pool.is_away { "away".to_owned() } else { bytes(amount as f64) };
        lines.push(vec![
            host.host.clone(),
            pool.name.clone(),
            space(pool.size_bytes),
            space(pool.free_bytes),
            bytes(pool.promised_bytes as f64),
        ]);
    }
    if lines.len() > 1 { format!("\n{}", aligned(&lines)) } else { String::new() }
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Formats lines of cells as a table. A cell stays on its line, and a terminal interprets nothing in it.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let escaped =
        |line: &Vec<String>| -> Vec<String> { line.iter().map(|cell| shown(cell.as_bytes())).collect() };
    let lines: Vec<Vec<String>> = lines.iter().map(escaped).collect();
    let length = |line: &Vec<String>, column: usize| line[column].chars().count();
    let width = |column: usize| lines.iter().map(|line| length(line, column)).max().unwrap_or_default();
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
    out
}

pub(crate) fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

pub(crate) fn milliseconds(seconds: f64) -> String {
    match seconds * 1000.0 {
        0.0 => "-".to_owned(),
        short if short < 10.0 => format!("{short:.1}ms"),
        long => format!("{long:.0}ms"),
    }
}

/// Formats an amount of bytes in three digits.
pub(crate) fn bytes(amount: f64) -> String {
    let mut amount = amount;
    for unit in ["", "Ki", "Mi", "Gi"] {
        if amount < 999.5 {
            let digits = usize::from(!unit.is_empty() && amount < 9.95);
            return format!("{amount:.digits$}{unit}");
        }
        amount /= 1024.0;
    }
    format!("{amount:.1}Ti")
}
