use berth_agent::GuestMemory;
use berth_agent::PoolUsage;
use berth_host::{HostUse, InterfaceUse, MachineUse};

use super::*;

/// A reading of a host with one VM, after this many seconds of a steady load.
pub(crate) fn reading(second: u64) -> Usage {
    let at = second as f64;
    let sort = |operations: u64, milliseconds: u64| OperationUse {
        operations: operations * second,
        bytes: operations * second * 4096,
        nanoseconds: operations * second * milliseconds * 1_000_000,
        durations: Vec::new(),
    };
    let disk = DiskUsage { name: "root".into(), read: sort(100, 2), write: sort(10, 40), flush: sort(0, 0) };
    let interface =
        InterfaceUse { received_bytes: 2048 * second, sent_bytes: second, ..InterfaceUse::default() };
    let process = MachineUse {
        cpu_seconds: 1.5 * at,
        waited_seconds: 0.5 * at,
        throttled_seconds: Some(0.25 * at),
        resident_bytes: 300 << 20,
        swapped_bytes: 0,
        interfaces: Vec::new(),
    };
    let memory =
        GuestMemory { total: 1 << 30, available: 824 << 20, swapped_in: Some(0), swapped_out: Some(0) };
    let vm = VmUsage {
        namespace: "shop".into(),
        name: "web".into(),
        cpus: 2,
        memory_bytes: 1 << 30,
        restarts: 0,
        guest_memory: Some(memory),
        ballooned_bytes: 0,
        process,
        interfaces: vec![("nic0".into(), interface)],
        disks: vec![disk],
    };
    let machine = HostUse {
        cpus: 4,
        cpu_busy_seconds: 3.0 * at,
        cpu_idle_seconds: 0.8 * at,
        cpu_steal_seconds: 0.2 * at,
        memory_bytes: 8 << 30,
        memory_available_bytes: 2 << 30,
        io_pressure_seconds: Some(0.3 * at),
        ..HostUse::default()
    };
    let time =
        k8s_openapi::jiff::Timestamp::from_second(i64::try_from(second).expect("small")).expect("a time");
    Usage { host: "h1".into(), time, machine, vms: vec![vm], pools: Vec::new() }
}

#[test]
fn rates_are_differences_per_second() {
    let (before, after) = (reading(10), reading(14));
    let rates = vm_rates(&before, &after, &after.vms[0]).expect("both readings have it");
    assert_eq!((rates.cpus, rates.waited, rates.throttled), (1.5, 0.25, 0.25));
    assert_eq!((rates.operations, rates.read_bytes, rates.received_bytes), (110.0, 409_600.0, 2048.0));
    assert_eq!(rates.durations, [("root".to_owned(), "read", 0.002), ("root".to_owned(), "write", 0.04)]);
    let host = host_rates(&before, &after);
    assert!((host.busy - 0.75).abs() < 1e-9 && (host.steal - 0.05).abs() < 1e-9, "{host:?}");
    assert_eq!(host.memory_pressure, None);
}

#[test]
fn a_new_process_has_no_negative_rates_and_a_new_vm_none() {
    let (before, after) = (reading(100), reading(101));
    let restarted = Usage { vms: reading(0).vms, ..after.clone() };
    let rates = vm_rates(&before, &restarted, &restarted.vms[0]).expect("it is known");
    assert_eq!((rates.cpus, rates.operations, rates.sent_bytes), (0.0, 0.0, 0.0));
    let empty = Usage { vms: Vec::new(), ..before };
    assert_eq!(vm_rates(&empty, &after, &after.vms[0]), None);
}

#[test]
fn the_table_has_hosts_and_vms_in_aligned_columns() {
    let (before, after) = (reading(10), reading(12));
    let text = table(&[(&before, &after)], None);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(
        lines[1].split_whitespace().collect::<Vec<_>>(),
        ["h1", "1", "75%", "5%", "8.0Gi", "2.0Gi", "-", "-", "30%"]
    );
    let vm: Vec<&str> = lines[4].split_whitespace().collect();
    assert_eq!(
        vm,
        [
            "shop", "web", "h1", "2", "150%", "25%", "1.0Gi", "200Mi", "300Mi", "400Ki", "40Ki", "110",
            "40ms", "2.0Ki", "1"
        ]
    );
    assert_eq!(lines[3].find("CPUS"), lines[4].find("2  "), "aligned:\n{text}");
    assert_eq!(table(&[(&before, &after)], Some("other")).lines().count(), 4);
}

#[test]
fn a_cell_makes_no_line_of_its_own_and_no_column_crooked() {
    let cells = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
    let text = aligned(&[cells(["VM", "HOST"]), cells(["a\u{1b}[31m\nweb", "h1"]), cells(["b", "h1"])]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[1], "a\\u{1b}[31m\\nweb  h1");
    assert_eq!(lines[1].find("h1"), lines[2].find("h1"), "{text}");
}

#[test]
fn as_json_there_are_the_counters_of_the_last_reading() {
    let text = json(&[reading(12)], None).expect("text");
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found[0]["vms"][0]["guestMemory"]["available"], 824 << 20);
    let read: Vec<Usage> = serde_json::from_str(&text).expect("the same form as /usage");
    assert_eq!((read[0].host.as_str(), read[0].vms.len()), ("h1", 1));
    let others = json(&[reading(12)], Some("other")).expect("text");
    let others: Vec<Usage> = serde_json::from_str(&others).expect("JSON");
    assert!(others[0].vms.is_empty(), "of one namespace");
}

#[test]
fn a_reading_of_an_agent_that_knows_no_balloons_is_read() {
    let mut older = serde_json::to_value(reading(12)).expect("JSON");
    let vm = older["vms"][0].as_object_mut().expect("a VM");
    vm.remove("guestMemory");
    vm.remove("balloonedBytes");
    let read: Usage = serde_json::from_value(older).expect("a reading");
    assert_eq!((read.vms[0].guest_memory, read.vms[0].ballooned_bytes), (None, 0));
}

#[test]
fn pools_are_listed_with_their_space_and_one_that_is_away_without() {
    let pool = |name: &str, is_away| PoolUsage {
        name: name.into(),
        size_bytes: 1 << 40,
        free_bytes: 1 << 39,
        promised_bytes: 2 << 40,
        is_away,
    };
    let after = Usage { pools: vec![pool("fast", false), pool("slow", true)], ..reading(12) };
    let text = table(&[(&reading(10), &after)], None);
    let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[3], ["HOST", "POOL", "SIZE", "FREE", "PROMISED"], "{text}");
    assert_eq!(cells[4], ["h1", "fast", "1.0Ti", "512Gi", "2.0Ti"]);
    assert_eq!(cells[5], ["h1", "slow", "away", "away", "2.0Ti"]);
}

#[test]
fn amounts_have_three_digits() {
    let all = [0.0, 999.0, 1000.0, 1024.0 * 1024.0, 5e12].map(bytes);
    assert_eq!(all, ["0", "999", "1.0Ki", "1.0Mi", "4.5Ti"]);
    assert_eq!([milliseconds(0.0), milliseconds(0.0004), milliseconds(0.25)], ["-", "0.4ms", "250ms"]);
}
