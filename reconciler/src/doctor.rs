//! Judges whether a machine can run VMs. Pure: from facts to checks.

mod huge_pages;
mod machine;
mod network;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use berth_host::linux::DoctorFacts;
use serde_json::{Value, json};

/// The result of a check, in rising order of gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ok,
    /// Everything works; something could be better.
    Note,
    /// VMs run, slowly or not all of them.
    Warning,
    /// No VM runs.
    Failure,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// A check of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    /// The finding.
    pub(crate) found: String,
    /// How to mend or improve it.
    pub(crate) fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, level: Level::Ok, found: found.into(), fix: None }
    }

    fn bad(name: &'static str, level: Level, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, level, found: found.into(), fix: Some(fix.into()) }
    }
}

/// Returns all checks, in a fixed order.
pub(crate) fn checks(facts: &DoctorFacts) -> Vec<Check> {
    vec![
        machine::user(facts),
        machine::kvm(facts),
        machine::nested(facts),
        machine::qemu(facts),
        machine::firmware(facts),
        machine::emulation(facts),
        machine::tpm(facts),
        machine::shares(facts),
        machine::filesystems(facts),
        machine::cgroups(facts),
        machine::service(facts),
        machine::memory(facts),
        huge_pages::huge_pages(facts),
        machine::storage(facts),
        machine::pools(facts),
        machine::open_files(facts),
        machine::clock(facts),
        network::tun(facts),
        network::bridge(facts),
        network::vxlan(facts),
        network::wireguard(facts),
        network::vhost_net(facts),
        network::vhost_vsock(facts),
        network::nft(facts),
        network::dnsmasq(facts),
        network::forwarding(facts),
        network::firewall(facts),
    ]
}

/// Formats the checks for people.
pub(crate) fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let mut out = String::new();
    for check in checks {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{:<7}  {:<width$}  {}", check.level.as_str(), check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(out, "         {:<width$}  → {fix}", "");
        }
    }
    out
}

/// Formats the checks for programs.
pub(crate) fn json(checks: &[Check]) -> Value {
    let worst = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    let all = checks.iter().map(|check| {
        json!({"name": check.name, "level": check.level.as_str(), "found": check.found, "fix": check.fix})
    });
    json!({"level": worst.as_str(), "checks": all.collect::<Vec<_>>()})
}

/// Formats bytes for people.
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
