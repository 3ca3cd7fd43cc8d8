//! `cargo demo`: the whole course of events, shown to the user: from nothing to a Debian guest that responds, and back to
//! nothing.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use acceptance_tests::footprint::Footprint;
use acceptance_tests::guests::GuestImage;
use acceptance_tests::platform::Platform;
use acceptance_tests::progress::Progress;
use acceptance_tests::report::{chain, note, spoken};
use acceptance_tests::suites::{Kit, lifecycle};
use acceptance_tests::terraform::Project;
use acceptance_tests::workspace::{self, Source};
use acceptance_tests::{http, namespace, prerequisites, process, undo, wait};
use anyhow::{Context, Result, ensure};
use clap::Parser;

/// The time limit for Debian under emulation, up to the end of cloud-init.
const BOOT: Duration = Duration::from_secs(480);
const APPLY: Duration = Duration::from_secs(900);

/// Brings up a real Debian guest with Terraform on this machine, shows it, and takes it all away again.
#[derive(Debug, Parser)]
#[command(name = "cargo demo")]
struct Arguments {
    /// Uses debug builds: they are compiled sooner.
    #[arg(long)]
    debug: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    let outcome = undo::on_signals().map_err(Into::into).and_then(|()| demo(&arguments));
    // The thread that cleans up ends the process, with the correct exit code.
    undo::halt_if_interrupted();
    match outcome {
        Ok(()) => {
            note(&format!("\nThe demo took {}.", spoken(started.elapsed())));
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("\nThe demo failed:\n{}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Prints the step, runs it, shows the progress, and prints the time it took.
fn step<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    undo::halt_if_interrupted();
    note(&format!("\n▸ {what}"));
    let started = Instant::now();
    let progress = Progress::show();
    let result = body();
    drop(progress);
    // A failure caused by the teardown is not a failure of the demo.
    undo::halt_if_interrupted();
    let result = result.with_context(|| what.to_owned())?;
    note(&format!("  ✓ {}", spoken(started.elapsed())));
    Ok(result)
}

fn demo(arguments: &Arguments) -> Result<()> {
    note("berth: from `terraform apply` to a guest that answers, on this machine.");
    note("Everything happens in a network namespace and a temporary folder of its own.");
    step("Looking for the programs this needs, installing from Debian those that are missing", || {
        prerequisites::ensure_installed()
    })?;
    namespace::sweep()?;
    let before = Footprint::of_this_machine()?;
    let kit = Kit::new(Source::new(None, !arguments.debug))?;
    let parts = step("Building berth and its Terraform provider", || kit.parts("demo"))?;
    let guest = step("Building a Debian 12 guest from Debian's packages (kept for the next time)", || {
        kit.debian_guests()
    })?
    .with_agent;
    let mut platform =
        step("Starting `berth up`: control plane, scheduler and host agent in one process", || {
            Platform::embedded(&parts)
        })?;
    let output = story_of(&mut platform, &guest);
    undo::halt_if_interrupted();
    if output.is_err() {
        note(&platform.keep_evidence());
    }
    output?;
    let (state, pid) = (platform.host().state().to_owned(), platform.host().pid());
    step("Stopping `berth up`", || platform.stop())?;
    drop(platform);
    step("Looking for anything left on this machine", || {
        Footprint::of_this_machine()?.must_not_exceed(&before)?;
        ensure!(!state.exists(), "{} is left", state.display());
        let alive =
            pid.is_some_and(|pid| std::path::Path::new("/proc").join(pid.to_string()).join("exe").exists());
        ensure!(!alive, "berth still runs");
        note("  no process, link, address, firewall rule, control group or file");
        Ok(())
    })
}

fn story_of(platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    show(&mut platform.kubectl().command(&["get", "hosts,storagepools,ippools"]))?;
    let empty = platform.footprint()?;
    let user_data = std::fs::read_to_string(workspace::root().join("examples/quickstart/cloud-init.yaml"))?;
    let project = step("terraform init (examples/quickstart)", || {
        let project = lifecycle::quickstart(platform, guest, &user_data)?;
        project.init()?;
        Ok(project)
    })?;
    step("terraform apply", || {
        terraform(&project, &["apply", "-auto-approve", "-input=false", "-no-color"])
    })?;
    let public = project.output("public_address")?;
    show(&mut platform.kubectl().command(&["get", "berth", "-o", "wide"]))?;
    step(&format!("Asking the guest on its public address, from another machine: http://{public}/"), || {
        let text = http::get_within(platform.neighbour(), &public, "/", BOOT)?;
        note(&format!("    {}", text.trim()));
        Ok(())
    })?;
    let serial = lifecycle::serial_of(platform, "web-data")?;
    step(
        &format!("The disk that was plugged in while the guest ran (serial {serial}), seen by ssh"),
        || {
            let script = "hostname; uptime; lsblk -o NAME,SIZE,TYPE,SERIAL,MOUNTPOINT";
            let text = wait::until("ssh", BOOT, || ssh(platform, &project, &public, script))?;
            text.lines().for_each(|line| note(&format!("    {line}")));
            ensure!(text.contains(&serial), "the guest does not list a disk with serial {serial}");
            Ok(())
        },
    )?;
    step("terraform plan: nothing to do", || project.plan_is_empty())?;
    step("kill -9 of berth: the guest does not notice, and a new berth takes it over", || {
        let pid = platform.qemu()?;
        platform.crash()?;
        http::get_within(platform.neighbour(), &public, "/", BOOT)?;
        platform.start()?;
        platform.kubectl().condition("vm/web", "Ready=True", None, BOOT)?;
        ensure!(platform.qemu()? == pid, "another QEMU runs now");
        note(&format!("    QEMU still has pid {pid}"));
        Ok(())
    })?;
    step("terraform destroy", || {
        terraform(&project, &["destroy", "-auto-approve", "-input=false", "-no-color"])
    })?;
    step("Looking for anything left on the host", || {
        platform.nothing_beyond(&empty, Duration::from_secs(60))?;
        note(
            "    no QEMU, tap, bridge, address, firewall rule or disk; the trash keeps deleted disks for a day",
        );
        Ok(())
    })
}

fn terraform(project: &Project, arguments: &[&str]) -> Result<()> {
    let telling = |line: &str| {
        ["Plan:", "Apply complete", "Destroy complete", "private_address =", "public_address ="]
            .iter()
            .any(|start| line.starts_with(start))
            || (line.starts_with("berth_") && line.contains(": ") && !line.contains("Refreshing state"))
            || line.contains("Error:")
            || line.contains("Warning:")
    };
    process::run_shown(&mut project.command(arguments), APPLY, telling)?.success().map(drop)
}

fn show(command: &mut Command) -> Result<()> {
    process::run_shown(command, Duration::from_secs(60), |_| true)?.success().map(drop)
}

fn ssh(platform: &Platform, project: &Project, address: &str, script: &str) -> Result<String> {
    platform.ssh(&project.folder().join("id"), address, script)?.success()
}
