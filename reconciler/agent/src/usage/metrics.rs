//! The metrics of a host in the format of OpenMetrics. Names and units are those of Prometheus' conventions: seconds, bytes,
//! counters that end in `_total`.

use std::fmt;
use std::sync::Arc;

use berth_qemu::balloon::GuestMemory;
use berth_qemu::block::{DURATION_LIMITS, OperationUse};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{PoolUsage, Reconciles, Usage, Verifications, VmUsage};

/// The labels of a metric and its value.
type Sample<V> = (Vec<(&'static str, String)>, V);

/// The metrics of an agent.
#[derive(Debug)]
pub(crate) struct AgentMetrics<'a> {
    pub(crate) reconciles: &'a Reconciles,
    pub(crate) verifications: &'a Verifications,
    /// The Backups of this host whose last verification found damage.
    pub(crate) damaged_backups: usize,
    /// The length of the queue.
    pub(crate) queue: usize,
}

/// Renders the metrics of a host, of its VMs and of its agent.
pub(crate) fn render(usage: Arc<Usage>, of_agent: &AgentMetrics<'_>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Collected(usage)));
    let agent = registry.sub_registry_with_prefix("berth_agent");
    of_agent.reconciles.register(agent);
    of_agent.verifications.register(agent);
    let damaged = ConstGauge::new(of_agent.damaged_backups as u64);
    agent.register("damaged_backups", "Backups of the host of which data is damaged or missing", damaged);
    let queue = ConstGauge::new(of_agent.queue as u64);
    agent.register("queue_length", "Keys that wait to be reconciled", queue);
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing into a String cannot fail");
    text
}

#[derive(Debug)]
struct Collected(Arc<Usage>);

impl Collector for Collected {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        of_host(&mut out, &self.0)?;
        of_pools(&mut out, &self.0)?;
        of_processes(&mut out, &self.0)?;
        of_guest_memory(&mut out, &self.0)?;
        of_interfaces(&mut out, &self.0)?;
        of_disks(&mut out, &self.0)
    }
}

/// Writes families of metrics.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    /// A counter of seconds.
    fn seconds(&mut self, name: &str, help: &str, samples: Vec<Sample<f64>>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            match labels.is_empty() {
                true => family.encode_counter::<NoLabelSet, f64, u64>(&value, None)?,
                false => {
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, u64>(&value, None)?
                }
            }
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            match labels.is_empty() {
                true => family.encode_counter::<NoLabelSet, u64, u64>(&value, None)?,
                false => {
                    family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)?
                }
            }
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Vec<Sample<u64>>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            match labels.is_empty() {
                true => family.encode_gauge(&value)?,
                false => family.encode_family(&labels)?.encode_gauge(&value)?,
            }
        }
        Ok(())
    }
}

fn of_host(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let host = &usage.machine;
    let modes =
        [("busy", host.cpu_busy_seconds), ("idle", host.cpu_idle_seconds), ("steal", host.cpu_steal_seconds)];
    let modes = modes.map(|(mode, seconds)| (vec![("mode", mode.to_owned())], seconds));
    out.seconds("berth_host_cpu_seconds", "Time of all processors of the host", modes.into())?;
    let one = |value: u64| vec![(Vec::new(), value)];
    out.gauge("berth_host_memory_bytes", "Memory of the host", one(host.memory_bytes))?;
    let help = "Memory of the host that programs can still get";
    out.gauge("berth_host_memory_available_bytes", help, one(host.memory_available_bytes))?;
    let pressure = [
        ("cpu", host.cpu_pressure_seconds),
        ("memory", host.memory_pressure_seconds),
        ("io", host.io_pressure_seconds),
    ];
    let pressure =
        pressure.into_iter().filter_map(|(of, seconds)| Some((vec![("resource", of.to_owned())], seconds?)));
    let help = "Time in which some process of the host waited for a resource";
    out.seconds("berth_host_pressure_waiting_seconds", help, pressure.collect())?;
    out.gauge("berth_host_vms", "VMs that run on the host", one(usage.vms.len() as u64))
}

fn of_pools(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let samples = |value: fn(&PoolUsage) -> Option<u64>| -> Vec<Sample<u64>> {
        let sample = |pool: &PoolUsage| Some((vec![("pool", pool.name.clone())], value(pool)?));
        usage.pools.iter().filter_map(sample).collect()
    };
    let help = "Size of the file system of the storage pool";
    out.gauge("berth_pool_size_bytes", help, samples(|pool| (!pool.is_away).then_some(pool.size_bytes)))?;
    let help = "Free space of the file system of the storage pool";
    out.gauge("berth_pool_free_bytes", help, samples(|pool| (!pool.is_away).then_some(pool.free_bytes)))?;
    let help = "Sizes of the disks in the storage pool together";
    out.gauge("berth_pool_promised_bytes", help, samples(|pool| Some(pool.promised_bytes)))?;
    let help = "Whether the storage pool is away: 1 or 0";
    out.gauge("berth_pool_away", help, samples(|pool| Some(pool.is_away.into())))
}

fn labels(vm: &VmUsage) -> Vec<(&'static str, String)> {
    vec![("namespace", vm.namespace.clone()), ("vm", vm.name.clone())]
}

fn of_processes(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let seconds = |value: fn(&VmUsage) -> Option<f64>| -> Vec<Sample<f64>> {
        usage.vms.iter().filter_map(|vm| Some((labels(vm), value(vm)?))).collect()
    };
    let numbers = |value: fn(&VmUsage) -> u64| -> Vec<Sample<u64>> {
        usage.vms.iter().map(|vm| (labels(vm), value(vm))).collect()
    };
    let count = |count: i64| u64::try_from(count).unwrap_or_default();
    let help = "Time of the host's processors that the VM has used";
    out.seconds("berth_vm_cpu_seconds", help, seconds(|vm| Some(vm.process.cpu_seconds)))?;
    let help = "Time that threads of the VM waited for a processor of the host (steal)";
    out.seconds("berth_vm_cpu_waited_seconds", help, seconds(|vm| Some(vm.process.waited_seconds)))?;
    let help = "Time that the VM was stopped by its limit of CPU time";
    out.seconds("berth_vm_cpu_throttled_seconds", help, seconds(|vm| vm.process.throttled_seconds))?;
    let cpus: Vec<Sample<u64>> = usage.vms.iter().map(|vm| (labels(vm), count(vm.cpus))).collect();
    out.gauge("berth_vm_cpus", "CPUs of the VM", cpus)?;
    out.gauge("berth_vm_memory_bytes", "Memory of the guest", numbers(|vm| vm.memory_bytes))?;
    let help = "Memory of the host that the VM takes";
    out.gauge("berth_vm_memory_resident_bytes", help, numbers(|vm| vm.process.resident_bytes))?;
    let help = "Memory of the VM that the host has swapped out";
    out.gauge("berth_vm_memory_swapped_bytes", help, numbers(|vm| vm.process.swapped_bytes))?;
    let restarts: Vec<Sample<u64>> = usage.vms.iter().map(|vm| (labels(vm), count(vm.restarts))).collect();
    out.counter("berth_vm_restarts", "Restarts after the guest ended by itself", restarts)
}

/// The memory that guests report. A VM whose guest reports nothing is left out.
fn of_guest_memory(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let reported = |value: fn(&GuestMemory) -> u64| -> Vec<Sample<u64>> {
        usage.vms.iter().filter_map(|vm| Some((labels(vm), value(vm.guest_memory.as_ref()?)))).collect()
    };
    let help = "Memory that programs and kernel of the guest use, without caches";
    out.gauge("berth_vm_memory_used_bytes", help, reported(GuestMemory::used))?;
    let help = "Memory that programs of the guest can still get";
    out.gauge("berth_vm_memory_available_bytes", help, reported(|memory| memory.available))?;
    let ballooned = usage.vms.iter().map(|vm| (labels(vm), vm.ballooned_bytes)).collect();
    let help = "Memory of the guest that its balloon has given back to the host";
    out.gauge("berth_vm_memory_ballooned_bytes", help, ballooned)?;
    let mut swapped: Vec<Sample<u64>> = Vec::new();
    for (vm, memory) in usage.vms.iter().filter_map(|vm| Some((vm, vm.guest_memory.as_ref()?))) {
        for (direction, bytes) in [("in", memory.swapped_in), ("out", memory.swapped_out)] {
            let mut labels = labels(vm);
            labels.push(("direction", direction.to_owned()));
            swapped.extend(bytes.map(|bytes| (labels, bytes)));
        }
    }
    out.counter(
        "berth_vm_guest_swap_bytes",
        "Memory that the guest read from its swap space and wrote to it",
        swapped,
    )
}

fn of_interfaces(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let samples = |received: fn(&berth_host::InterfaceUse) -> u64,
                   sent: fn(&berth_host::InterfaceUse) -> u64| {
        let mut all: Vec<Sample<u64>> = Vec::new();
        for (vm, (name, interface)) in
            usage.vms.iter().flat_map(|vm| vm.interfaces.iter().map(move |one| (vm, one)))
        {
            for (direction, value) in [("received", received(interface)), ("sent", sent(interface))] {
                let mut labels = labels(vm);
                labels.extend([("interface", name.clone()), ("direction", direction.to_owned())]);
                all.push((labels, value));
            }
        }
        all
    };
    let bytes = samples(|i| i.received_bytes, |i| i.sent_bytes);
    out.counter("berth_vm_network_bytes", "Bytes that the guest received and sent", bytes)?;
    let packets = samples(|i| i.received_packets, |i| i.sent_packets);
    out.counter("berth_vm_network_packets", "Packets that the guest received and sent", packets)?;
    let dropped = samples(|i| i.received_dropped, |i| i.sent_dropped);
    out.counter("berth_vm_network_dropped_packets", "Packets of the guest that were dropped", dropped)
}

fn of_disks(out: &mut Out<'_>, usage: &Usage) -> fmt::Result {
    let mut all: Vec<Sample<&OperationUse>> = Vec::new();
    for (vm, disk) in usage.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        for (operation, sort) in [("read", &disk.read), ("write", &disk.write), ("flush", &disk.flush)] {
            let mut labels = labels(vm);
            labels.extend([("disk", disk.name.clone()), ("operation", operation.to_owned())]);
            all.push((labels, sort));
        }
    }
    let numbers = |value: fn(&OperationUse) -> u64| -> Vec<Sample<u64>> {
        all.iter().map(|(labels, sort)| (labels.clone(), value(sort))).collect()
    };
    out.counter("berth_vm_disk_bytes", "Bytes that the guest read and wrote", numbers(|sort| sort.bytes))?;
    let help = "Operations of the guest on its disks";
    out.counter("berth_vm_disk_operations", help, numbers(|sort| sort.operations))?;
    let seconds = all.iter().map(|(labels, sort)| (labels.clone(), sort.nanoseconds as f64 / 1e9)).collect();
    out.seconds("berth_vm_disk_operation_seconds", "Sum of the durations of these operations", seconds)?;
    let help = "Durations of the operations since they are counted by duration";
    let name = "berth_vm_disk_operation_duration_seconds";
    let mut family = out.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, sort) in all.iter().filter(|(_, sort)| !sort.durations.is_empty()) {
        let (sum, buckets) = histogram(&sort.durations);
        let count = sort.durations.iter().sum();
        family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

/// Returns the approximate sum of the durations, each counted as the upper limit of its class, and the classes.
fn histogram(durations: &[u64]) -> (f64, Vec<(f64, u64)>) {
    let limits = DURATION_LIMITS.map(|limit| limit as f64 / 1e9);
    let last = limits.last().copied().unwrap_or_default();
    let buckets: Vec<(f64, u64)> =
        limits.into_iter().chain([f64::INFINITY]).zip(durations.iter().copied()).collect();
    let sum = buckets.iter().map(|(limit, count)| limit.min(last) * *count as f64).sum();
    (sum, buckets)
}

#[cfg(test)]
mod tests {
    use berth_host::{HostUse, InterfaceUse, MachineUse, VerifiedBackup};
    use std::time::Duration;

    use super::super::DiskUsage;
    use super::*;

    fn usage() -> Usage {
        let read = OperationUse {
            operations: 4,
            bytes: 4096,
            nanoseconds: 3_000_000,
            durations: vec![1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        };
        let disk = DiskUsage {
            name: "root".into(),
            read,
            write: OperationUse::default(),
            flush: OperationUse::default(),
        };
        let interface = InterfaceUse { received_bytes: 10, sent_bytes: 20, ..InterfaceUse::default() };
        let vm = VmUsage {
            namespace: "shop".into(),
            name: "web".into(),
            cpus: 2,
            memory_bytes: 1 << 30,
            restarts: 3,
            guest_memory: Some(GuestMemory {
                total: 900,
                available: 600,
                swapped_in: Some(7),
                swapped_out: None,
            }),
            ballooned_bytes: 256,
            process: MachineUse { cpu_seconds: 1.5, waited_seconds: 0.25, ..MachineUse::default() },
            interfaces: vec![("nic0".into(), interface)],
            disks: vec![disk],
        };
        let machine = HostUse { cpu_busy_seconds: 7.0, io_pressure_seconds: Some(0.5), ..HostUse::default() };
        let pool = |name: &str, is_away| PoolUsage {
            name: name.into(),
            size_bytes: 1 << 40,
            free_bytes: 1 << 39,
            promised_bytes: 3 << 30,
            is_away,
        };
        let pools = vec![pool("fast", false), pool("slow", true)];
        Usage { host: "h1".into(), time: jiff::Timestamp::UNIX_EPOCH, machine, vms: vec![vm], pools }
    }

    #[test]
    fn each_metric_has_its_labels_unit_and_value() {
        let reconciles = Reconciles::default();
        reconciles.count("VM", false, Duration::from_millis(3));
        let verifications = Verifications::default();
        verifications.count(Some(&VerifiedBackup { read_bytes: 7, ..VerifiedBackup::default() }));
        verifications.count(None);
        let of_agent = AgentMetrics {
            reconciles: &reconciles,
            verifications: &verifications,
            damaged_backups: 2,
            queue: 5,
        };
        let text = render(Arc::new(usage()), &of_agent);
        for line in [
            "berth_host_cpu_seconds_total{mode=\"busy\"} 7.0",
            "berth_host_pressure_waiting_seconds_total{resource=\"io\"} 0.5",
            "berth_host_vms 1",
            "berth_pool_size_bytes{pool=\"fast\"} 1099511627776",
            "berth_pool_free_bytes{pool=\"fast\"} 549755813888",
            "berth_pool_promised_bytes{pool=\"slow\"} 3221225472",
            "berth_pool_away{pool=\"fast\"} 0",
            "berth_pool_away{pool=\"slow\"} 1",
            "berth_vm_cpu_seconds_total{namespace=\"shop\",vm=\"web\"} 1.5",
            "berth_vm_cpu_waited_seconds_total{namespace=\"shop\",vm=\"web\"} 0.25",
            "berth_vm_cpus{namespace=\"shop\",vm=\"web\"} 2",
            "berth_vm_memory_used_bytes{namespace=\"shop\",vm=\"web\"} 300",
            "berth_vm_memory_available_bytes{namespace=\"shop\",vm=\"web\"} 600",
            "berth_vm_memory_ballooned_bytes{namespace=\"shop\",vm=\"web\"} 256",
            "berth_vm_guest_swap_bytes_total{namespace=\"shop\",vm=\"web\",direction=\"in\"} 7",
            "berth_vm_restarts_total{namespace=\"shop\",vm=\"web\"} 3",
            "berth_vm_network_bytes_total{namespace=\"shop\",vm=\"web\",interface=\"nic0\",direction=\"sent\"} 20",
            "berth_vm_disk_bytes_total{namespace=\"shop\",vm=\"web\",disk=\"root\",operation=\"read\"} 4096",
            "berth_vm_disk_operation_duration_seconds_bucket{le=\"0.0001\",namespace=\"shop\",vm=\"web\",disk=\"root\",operation=\"read\"} 1",
            "berth_vm_disk_operation_duration_seconds_bucket{le=\"+Inf\",namespace=\"shop\",vm=\"web\",disk=\"root\",operation=\"read\"} 4",
            "berth_agent_reconciles_total{kind=\"VM\",result=\"success\"} 1",
            "berth_agent_backup_verifications_total{result=\"whole\"} 1",
            "berth_agent_backup_verifications_total{result=\"error\"} 1",
            "berth_agent_backup_verification_bytes_total 7",
            "berth_agent_damaged_backups 2",
            "berth_agent_queue_length 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        for unknown in
            ["throttled_seconds_total{", "direction=\"out\"", "berth_pool_free_bytes{pool=\"slow\"}"]
        {
            assert!(!text.contains(unknown), "unknown values are left out");
        }
        let silent = VmUsage { guest_memory: None, ..usage().vms[0].clone() };
        let text = render(Arc::new(Usage { vms: vec![silent], ..usage() }), &of_agent);
        assert!(!text.contains("berth_vm_memory_used_bytes{"), "it reports nothing");
    }
}
