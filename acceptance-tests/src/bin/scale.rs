//! `cargo scale`: many VMs on simulated hosts, and what that takes.

use std::process::ExitCode;
use std::time::Duration;

use acceptance_tests::bench::scale::{self, Burst, Findings, Measured, Size};
use acceptance_tests::cache::Cache;
use acceptance_tests::report::{chain, note};
use acceptance_tests::workspace::{self, Binaries, Source};
use acceptance_tests::{namespace, prerequisites, undo};
use anyhow::Result;
use clap::Parser;

/// Creates many VMs, each with a Disk, on simulated hosts at once, and measures control plane and controllers.
#[derive(Debug, Parser)]
#[command(name = "cargo scale")]
struct Arguments {
    /// VMs created at once.
    #[arg(long, default_value_t = 10_000, value_parser = count)]
    vms: usize,
    /// Simulated hosts.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=9999))]
    hosts: u16,
    /// Seconds of doing nothing that are measured in the end.
    #[arg(long, default_value_t = 30)]
    steady: u64,
    /// Measures a real kube-apiserver and etcd, with `berth controllers`.
    #[arg(long)]
    kubernetes: bool,
    /// Measures debug builds: they are compiled sooner, and slower.
    #[arg(long)]
    debug: bool,
    /// Measures the binaries in this folder and builds none.
    #[arg(long, value_name = "FOLDER", conflicts_with = "debug")]
    binaries: Option<std::path::PathBuf>,
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("{text:?} is no number of VMs"))
}

fn main() -> ExitCode {
    match undo::on_signals().map_err(Into::into).and_then(|()| run(&Arguments::parse())) {
        Ok(findings) => {
            print(&findings);
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Findings> {
    prerequisites::ensure_installed()?;
    namespace::sweep()?;
    let source = Source::new(arguments.binaries.as_deref(), !arguments.debug);
    let size =
        Size { vms: arguments.vms, hosts: arguments.hosts, steady: Duration::from_secs(arguments.steady) };
    let berth = &Binaries::get(&source)?.berth;
    let logs = workspace::artifacts().join("scale");
    if arguments.kubernetes {
        return scale::run(size, &Measured::Kubernetes { berth, cache: &Cache::open()? }, &logs);
    }
    scale::run(size, &Measured::Embedded { berth }, &logs)
}

fn print(findings: &Findings) {
    note("");
    for (what, burst) in [("early", &findings.early), ("at once", &findings.burst), ("late", &findings.late)]
    {
        tell_burst(what, burst);
    }
    let (fewest, most) = findings.seen.spread();
    note(&format!("VMs on a host: {fewest} to {most}, on {} hosts", findings.seen.hosts()));
    let steady = &findings.steady;
    note(&format!(
        "control plane and controllers: {:.0} MiB, at most {:.0} MiB; the simulated hosts: {:.0} MiB; {} watches",
        steady.memory, steady.peak_memory, steady.hosts_memory, steady.counts.watches
    ));
    note(&format!(
        "doing nothing for {:.0?}: {:.1} % of a core, {} writes besides leases",
        steady.lasted,
        steady.core_percent(),
        steady.idle_writes()
    ));
    for list in [&findings.short_list, &findings.long_list] {
        note(&format!(
            "a list of {} VMs: {:.1?}, {:.2} µs of processor each",
            list.vms,
            list.took,
            list.per_vm()
        ));
    }
    note(&format!(
        "growth of the cost of a VM from {} to {}: {:.2} (create, schedule, reconcile), {:.2} (list)",
        findings.early.vms,
        findings.vms(),
        findings.growth(),
        findings.list_growth()
    ));
    note(&format!("\nwrites per VM, of those created at once:\n{}", findings.burst.table()));
    note("\nrequests for the VMs created at once:");
    for ((verb, resource), count) in &findings.burst.counts.requests {
        note(&format!("{count:9} {verb:7} {resource}"));
    }
    note(&format!("{:9} refused", findings.burst.counts.refused));
}

fn tell_burst(what: &str, burst: &Burst) {
    note(&format!(
        "{what:8} {:6} VMs: created in {:6.1?}, bound in {:6.1?}, converged in {:6.1?}; {:.1} writes and {:.2} ms of \
         processor a VM (hosts: {:.2} ms), {} writes of hosts, {} commits",
        burst.vms,
        burst.created,
        burst.bound,
        burst.converged,
        burst.writes_per_vm(),
        burst.cpu_per_vm(),
        burst.hosts_cpu_per_vm(),
        burst.host_writes(),
        burst.counts.commits,
    ));
}
