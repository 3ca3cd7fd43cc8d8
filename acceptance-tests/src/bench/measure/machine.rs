//! A one-line description of the machine that numbers were measured on, without its name.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::process;

/// Processors, memory, kernel, system, QEMU.
pub fn description() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor");
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib: f64 =
        field(&meminfo, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
    format!(
        "{cpus} × {model}, {:.0} GiB, Linux {}, {}, {}",
        kib / f64::from(1 << 20),
        kernel.trim(),
        system.trim_matches('"'),
        qemu()
    )
}

fn qemu() -> String {
    let asked = process::run(Command::new("qemu-system-x86_64").arg("--version"), Duration::from_secs(20));
    let text = asked.map(|finished| finished.stdout).unwrap_or_default();
    let version = text.split_whitespace().nth(3).unwrap_or("not installed");
    format!("QEMU {version}")
}

/// Today's date, in UTC, in an unambiguous notation.
pub fn today() -> String {
    let asked = process::run(Command::new("date").args(["-u", "+%F"]), Duration::from_secs(20));
    asked.map(|finished| finished.stdout.trim().to_owned()).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "model\t\t: 17\nmodel name\t: A Processor\n";
        assert_eq!(field(text, "model name"), Some("A Processor"));
        assert_eq!(field(text, "name"), None);
    }
}
