//! The sentences about a running VM that may be slow, from two readings of its host.

use berth_agent::{Usage, VmUsage};

use crate::top::{HostRates, VmRates, bytes, host_rates, milliseconds, percent, vm_rates};

/// Parts of the time that are worth a sentence.
const WAITED: f64 = 0.05;
const THROTTLED: f64 = 0.01;
const STEAL: f64 = 0.05;
const ALL_CPUS: f64 = 0.95;
const PRESSURE: f64 = 0.1;
/// The part of the host's memory below which it is short of it.
const AVAILABLE: f64 = 0.05;
/// The part of a guest's memory that may be swapped out without a word.
const SWAPPED: f64 = 0.05;
/// The part of a guest's memory below which it is short of it.
const GUEST_AVAILABLE: f64 = 0.05;
/// The bytes a second from which on a guest that reads its swap space is short of memory.
const SWAPPED_IN: f64 = 1_048_576.0;
/// The part of a guest's memory that may be in its balloon without a word.
const BALLOONED: f64 = 0.05;
/// The mean duration of an operation, in seconds, from which on a disk is slow.
const SLOW_OPERATION: f64 = 0.02;

/// Returns why the VM may be slow, a sentence each, or that nothing on its host slows it down: nothing else if it is emulated, which has a
/// sentence elsewhere.
pub(crate) fn slowness(
    before: &Usage,
    after: &Usage,
    namespace: &str,
    name: &str,
    is_emulated: bool,
) -> Vec<String> {
    let vm = after.vms.iter().find(|vm| vm.namespace == namespace && vm.name == name);
    let Some((vm, rates)) = vm.and_then(|vm| Some((vm, vm_rates(before, after, vm)?))) else {
        return vec!["Its host has no measurements of it yet.".to_owned()];
    };
    let host = host_rates(before, after);
    let mut found = cpu(vm, &rates, &host);
    found.extend(memory(vm, after, &host));
    found.extend(guest_memory(vm, &rates));
    found.extend(disks(&rates, &host));
    if rates.dropped_packets >= 1.0 {
        let dropped = rates.dropped_packets;
        found.push(format!(
            "{dropped:.0} packets a second for it are dropped: its guest does not fetch them fast enough."
        ));
    }
    if found.is_empty() {
        let nothing = if is_emulated { "Nothing else" } else { "Nothing" };
        found.push(format!(
            "{nothing} on its host slows it down: it uses {} of a processor, waits {} of the time for one,{} and the host is busy at {}.",
            percent(rates.cpus),
            percent(rates.waited),
            used_memory(vm),
            percent(host.busy)
        ));
    }
    found
}

fn cpu(vm: &VmUsage, rates: &VmRates, host: &HostRates) -> Vec<String> {
    let mut found = Vec::new();
    if rates.waited >= WAITED {
        found.push(format!(
            "Its CPUs wait {} of the time for a processor of the host, which is busy at {}: the host has too much to do. \
             Move VMs elsewhere, or stop some.",
            percent(rates.waited),
            percent(host.busy)
        ));
    }
    if rates.throttled >= THROTTLED {
        found.push(format!(
            "It is stopped {} of the time by its limit of CPU time.",
            percent(rates.throttled)
        ));
    }
    if rates.cpus >= ALL_CPUS * vm.cpus.max(1) as f64 {
        found.push(format!(
            "Its guest uses all of its {} CPUs: give it more `cpus`, or look in the guest for what uses them.",
            vm.cpus
        ));
    }
    if host.steal >= STEAL {
        found.push(format!(
            "Its host is itself a guest and waits {} of the time for a processor of its own host.",
            percent(host.steal)
        ));
    }
    found
}

fn memory(vm: &VmUsage, usage: &Usage, host: &HostRates) -> Vec<String> {
    let mut found = Vec::new();
    let swapped = vm.process.swapped_bytes as f64;
    if swapped > SWAPPED * vm.memory_bytes as f64 {
        found.push(format!("Its host has swapped out {} of its memory.", bytes(swapped)));
    }
    let (total, available) = (usage.machine.memory_bytes as f64, usage.machine.memory_available_bytes as f64);
    let is_short = total > 0.0 && available < AVAILABLE * total;
    let waits = host.memory_pressure.filter(|part| *part >= PRESSURE);
    if is_short || waits.is_some() {
        let waits = waits.map(|part| format!(", and programs wait {} of the time for memory", percent(part)));
        found.push(format!(
            "Its host is short of memory: {} of {} are available{}. Move VMs elsewhere, or stop other programs on it.",
            bytes(available),
            bytes(total),
            waits.unwrap_or_default()
        ));
    }
    found
}

/// The guest's own report of its memory, and the part of it that its host has back.
fn guest_memory(vm: &VmUsage, rates: &VmRates) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(memory) = &vm.guest_memory {
        let (total, available) = (memory.total as f64, memory.available as f64);
        let swaps = (rates.swapped_in_bytes >= SWAPPED_IN)
            .then(|| format!(" and reads {} a second from its swap space", bytes(rates.swapped_in_bytes)));
        if available < GUEST_AVAILABLE * total || swaps.is_some() {
            found.push(format!(
                "Its guest has {} of {} of memory available{}: give it more `memory`, or look in the guest for what uses it.",
                bytes(available),
                bytes(total),
                swaps.unwrap_or_default()
            ));
        }
    }
    let ballooned = vm.ballooned_bytes as f64;
    if ballooned > BALLOONED * vm.memory_bytes as f64 {
        found.push(format!(
            "Its host was short of memory and has {} of the guest's memory back: raise its `memory_reservation`, or move VMs elsewhere.",
            bytes(ballooned)
        ));
    }
    found
}

fn used_memory(vm: &VmUsage) -> String {
    let used = vm.guest_memory.map(|memory| {
        format!(
            " its guest uses {} of {} of memory,",
            bytes(memory.used() as f64),
            bytes(memory.total as f64)
        )
    });
    used.unwrap_or_default()
}

fn disks(rates: &VmRates, host: &HostRates) -> Vec<String> {
    let slow = rates.durations.iter().filter(|(_, _, time)| *time >= SLOW_OPERATION);
    let mut found: Vec<String> = slow
        .map(|(disk, sort, time)| {
            format!("A {sort} of its disk {disk} takes {} on average.", milliseconds(*time))
        })
        .collect();
    if let Some(part) = host.io_pressure.filter(|part| *part >= PRESSURE) {
        found.push(format!("Programs of its host wait {} of the time for disks.", percent(part)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_agent::GuestMemory;

    use crate::top::tests::reading;

    /// A reading in which nothing is slow, `change`d.
    fn after(change: impl FnOnce(&mut Usage)) -> Vec<String> {
        let (mut before, mut after) = (reading(10), reading(12));
        for usage in [&mut before, &mut after] {
            let at = usage.time.as_second() as f64;
            usage.machine.io_pressure_seconds = None;
            usage.machine.cpu_steal_seconds = 0.0;
            let vm = &mut usage.vms[0];
            vm.process.cpu_seconds = 0.5 * at;
            vm.process.waited_seconds = 0.0;
            vm.process.throttled_seconds = None;
            vm.disks[0].write.nanoseconds = 0;
        }
        change(&mut after);
        slowness(&before, &after, "shop", "web", false)
    }

    #[test]
    fn a_vm_that_nothing_slows_down_is_said_to_be_so() {
        assert_eq!(
            after(|_| {}),
            [
                "Nothing on its host slows it down: it uses 50% of a processor, waits 0% of the time for one, its guest uses 200Mi of 1.0Gi of memory, and the host is busy at 79%."
            ]
        );
        let silent = after(|usage| usage.vms[0].guest_memory = None);
        assert!(silent[0].contains("of the time for one, and the host is busy"), "{silent:?}");
    }

    #[test]
    fn each_cause_has_its_sentence() {
        let only = |change: fn(&mut Usage)| {
            let found = after(change);
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].clone()
        };
        let waits = only(|usage| usage.vms[0].process.waited_seconds = 1.0);
        assert!(waits.starts_with("Its CPUs wait 25% of the time for a processor of the host"), "{waits}");
        assert!(only(|usage| usage.vms[0].process.cpu_seconds += 3.0).contains("uses all of its 2 CPUs"));
        assert!(only(|usage| usage.machine.cpu_steal_seconds = 1.0).contains("itself a guest and waits"));
        assert!(only(|usage| usage.vms[0].process.swapped_bytes = 100 << 20).contains("swapped out 100Mi"));
        assert!(
            only(|usage| usage.machine.memory_available_bytes = 1 << 20)
                .contains("1.0Mi of 8.0Gi are available")
        );
        let guest = |usage: &mut Usage, change: fn(&mut GuestMemory)| {
            usage.vms[0].guest_memory.iter_mut().for_each(change);
        };
        let short = after(|usage| guest(usage, |memory| memory.available = 10 << 20));
        assert_eq!(short.len(), 1, "{short:?}");
        assert!(short[0].starts_with("Its guest has 10Mi of 1.0Gi of memory available: give"), "{short:?}");
        let swaps = after(|usage| guest(usage, |memory| memory.swapped_in = Some(8 << 20)));
        assert!(
            swaps[0].contains("824Mi of 1.0Gi of memory available and reads 4.0Mi a second"),
            "{swaps:?}"
        );
        assert!(only(|usage| usage.vms[0].ballooned_bytes = 512 << 20).contains("has 512Mi of the guest's"));
        let slow = only(|usage| usage.vms[0].disks[0].read.nanoseconds += 200 * 90_000_000);
        assert_eq!(slow, "A read of its disk root takes 92ms on average.");
        let dropped = only(|usage| usage.vms[0].interfaces[0].1.received_dropped = 10);
        assert!(dropped.starts_with("5 packets a second"), "{dropped}");
    }

    #[test]
    fn an_emulated_vm_is_not_said_to_be_slowed_down_by_nothing() {
        let (before, mut after) = (reading(10), reading(12));
        after.machine.io_pressure_seconds = None;
        after.machine.cpu_steal_seconds = before.machine.cpu_steal_seconds;
        let vm = &mut after.vms[0];
        vm.process = before.vms[0].process.clone();
        vm.disks = before.vms[0].disks.clone();
        let of = |is_emulated: bool| slowness(&before, &after, "shop", "web", is_emulated).join("\n");
        assert!(of(false).starts_with("Nothing on its host slows it down"), "{}", of(false));
        assert!(of(true).starts_with("Nothing else on its host slows it down"), "{}", of(true));
    }

    #[test]
    fn a_vm_without_measurements_is_not_judged() {
        let (before, after) = (reading(10), reading(12));
        assert_eq!(
            slowness(&before, &after, "shop", "other", false),
            ["Its host has no measurements of it yet."]
        );
        let throttled = slowness(&before, &after, "shop", "web", false);
        assert!(throttled.contains(&"It is stopped 25% of the time by its limit of CPU time.".to_owned()));
        assert!(throttled.contains(&"Programs of its host wait 30% of the time for disks.".to_owned()));
    }
}
