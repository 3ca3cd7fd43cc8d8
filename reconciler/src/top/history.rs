//! The use of hosts and VMs over the last hour, as a table with a line of bars for each quantity. Pure.

use berth_agent::{History, HostPoint, VmPoint};
use k8s_openapi::jiff::Timestamp;

use super::{aligned, bytes, percent, row};
use crate::printable::printable_json;

/// The number of bars: one for each minute.
const BARS: usize = 60;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The values of a quantity, each with the time at which it was read.
type Series = Vec<(Timestamp, f64)>;
/// The form of a value.
type Form = fn(f64) -> String;

/// Formats the histories of hosts, with the VMs of one namespace or of all.
pub(crate) fn table(hosts: &[History], namespace: Option<&str>) -> String {
    let mut lines = vec![row(&["HOST", "NAMESPACE", "VM", "USE", "NOW", "MEAN", "MOST", "LAST HOUR"])];
    for history in hosts {
        let Some(newest) = history.points.back().map(|point| point.time) else { continue };
        for (name, series, form) in of_host(history) {
            lines.push(line([history.host.as_str(), "", ""], name, &series, form, newest));
        }
        for vm in history.vms.iter().filter(|vm| namespace.is_none_or(|wanted| vm.namespace == wanted)) {
            let points: Vec<&VmPoint> = vm.points.iter().collect();
            for (name, series, form) in of_vm(&points) {
                let names = [history.host.as_str(), vm.namespace.as_str(), vm.name.as_str()];
                lines.push(line(names, name, &series, form, newest));
            }
        }
    }
    aligned(&lines)
}

/// Formats the histories as a list in JSON, with the VMs of one namespace or of all.
pub(crate) fn json(hosts: &[History], namespace: Option<&str>) -> serde_json::Result<String> {
    let mut hosts = hosts.to_vec();
    for history in &mut hosts {
        history.vms.retain(|vm| namespace.is_none_or(|wanted| vm.namespace == wanted));
    }
    Ok(printable_json(&serde_json::to_string_pretty(&hosts)?) + "\n")
}

fn of_host(history: &History) -> [(&'static str, Series, Form); 2] {
    let points: Vec<&HostPoint> = history.points.iter().collect();
    let busy = |pair: &[&HostPoint]| {
        let busy = (pair[1].cpu_busy_seconds - pair[0].cpu_busy_seconds).max(0.0);
        let other = (pair[1].cpu_other_seconds - pair[0].cpu_other_seconds).max(0.0);
        (pair[1].time, busy / (busy + other).max(0.001))
    };
    let memory = points.iter().map(|point| (point.time, point.memory_used_bytes as f64));
    [("CPU", points.windows(2).map(busy).collect(), percent), ("MEMORY", memory.collect(), bytes)]
}

fn of_vm(points: &[&VmPoint]) -> [(&'static str, Series, Form); 6] {
    let rate = |of: fn(&VmPoint) -> f64| -> Series {
        let pairs = points.windows(2).map(|pair| {
            let time = pair[1].time.duration_since(pair[0].time).as_secs_f64().max(0.001);
            // Counters that decreased are those of a new process.
            (pair[1].time, (of(pair[1]) - of(pair[0])).max(0.0) / time)
        });
        pairs.collect()
    };
    let memory = points.iter().map(|point| (point.time, point.resident_bytes as f64));
    [
        ("CPU", rate(|point| point.cpu_seconds), percent),
        ("RESIDENT", memory.collect(), bytes),
        ("READ/S", rate(|point| point.read_bytes as f64), bytes),
        ("WRITTEN/S", rate(|point| point.written_bytes as f64), bytes),
        ("RECEIVED/S", rate(|point| point.received_bytes as f64), bytes),
        ("SENT/S", rate(|point| point.sent_bytes as f64), bytes),
    ]
}

fn line(
    names: [&str; 3],
    name: &str,
    series: &[(Timestamp, f64)],
    form: Form,
    newest: Timestamp,
) -> Vec<String> {
    let most = series.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let count = series.len().max(1) as f64;
    let mean: f64 = series.iter().map(|(_, value)| value / count).sum();
    let now = series.last().filter(|(time, _)| minutes(*time, newest) == Some(0));
    let now = now.map_or_else(|| "-".to_owned(), |(_, value)| form(*value));
    let mut cells = row(&names);
    cells.extend([name.to_owned(), now, form(mean), form(most), bars(series, most, newest)]);
    cells
}

/// Returns how many minutes before the newest reading this one is, if that is less than an hour.
fn minutes(time: Timestamp, newest: Timestamp) -> Option<usize> {
    let minutes = newest.duration_since(time).as_secs_f64() / 60.0;
    let hour = -0.5..BARS as f64 - 0.5;
    hour.contains(&minutes).then(|| minutes.round().max(0.0) as usize)
}

/// Formats values as bars, the newest at the right; a minute without a value is a space.
fn bars(series: &[(Timestamp, f64)], most: f64, newest: Timestamp) -> String {
    let mut bars = [' '; BARS];
    for (time, value) in series {
        let Some(age) = minutes(*time, newest) else { continue };
        let part = if most > 0.0 { value / most } else { 0.0 };
        let level = (part * (LEVELS.len() - 1) as f64).round() as usize;
        bars[BARS - 1 - age.min(BARS - 1)] = LEVELS[level.min(LEVELS.len() - 1)];
    }
    bars.iter().collect()
}

#[cfg(test)]
mod tests {
    use berth_agent::VmHistory;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).expect("a time")
    }

    fn vm_point(minute: i64, cpu_seconds: f64) -> VmPoint {
        VmPoint {
            time: at(minute),
            cpu_seconds,
            resident_bytes: 300 << 20,
            read_bytes: 60 * 4096 * minute.unsigned_abs(),
            written_bytes: 0,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    fn history() -> History {
        let host = |minute: i64| HostPoint {
            time: at(minute),
            cpu_busy_seconds: 30.0 * minute as f64,
            cpu_other_seconds: 30.0 * minute as f64,
            memory_used_bytes: 2 << 30,
        };
        // The process is another one from the third minute on, and nothing was read in the fifth.
        let points = [(0, 100.0), (1, 130.0), (2, 190.0), (3, 6.0), (4, 66.0), (6, 126.0)];
        let vm = VmHistory {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            points: points.map(|(minute, cpu)| vm_point(minute, cpu)).into(),
        };
        History { host: "h1".to_owned(), points: (0..7).map(host).collect(), vms: vec![vm] }
    }

    #[test]
    fn a_history_is_a_table_with_bars() {
        let table = table(&[history()], None);
        let line = |of: &str| {
            let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let found = table.lines().map(cells).find(|cells| cells.iter().any(|cell| cell == of));
            found.unwrap_or_else(|| panic!("{of} is not in\n{table}"))
        };
        assert_eq!(line("MEMORY")[..5], ["h1", "MEMORY", "2.0Gi", "2.0Gi", "2.0Gi"]);
        let found = line("READ/S");
        assert_eq!(found[..5], ["h1", "shop", "web", "READ/S", "4.0Ki"]);
        let cpu = table.lines().find(|line| line.contains("web") && line.contains("CPU")).expect("a line");
        assert!(cpu.trim_end().ends_with("▅█▁█ ▅"), "{cpu}");
        assert!(table.lines().all(|line| line.chars().count() < 140), "{table}");
    }

    #[test]
    fn one_namespace_can_be_shown_and_a_host_without_readings_has_no_line() {
        let hosts = [history(), History::default()];
        let lines = |namespace: Option<&str>| table(&hosts, namespace).lines().count();
        assert_eq!((lines(None), lines(Some("shop")), lines(Some("other"))), (9, 9, 3));
        let text = json(&hosts, Some("other")).expect("JSON");
        assert!(!text.contains("web") && text.contains("cpuBusySeconds"), "{text}");
    }

    #[test]
    fn readings_of_other_times_have_no_bar() {
        let series = vec![(at(-100), 1.0), (at(0), 1.0), (at(100), 1.0)];
        assert_eq!(bars(&series, 1.0, at(0)).trim_start(), "█");
        assert_eq!(bars(&Vec::new(), 0.0, at(0)).trim(), "");
    }
}
