//! Each change of a VM and of its class, for each power, on a real QEMU with the small guest: whether its machine goes on, what waits for
//! the next start, and what the next start brings. The changes and their consequences are the table of the reconciler's own tests.
//!
//! One VM is changed throughout, by server-side apply: each change replaces the one before it. A change that reaches the guest at once is
//! looked for in it or on its host (`live`); one that waits is looked for on the command line of the QEMU of a start (`shown`).

mod bench;
mod live;
mod planned;
mod shown;
#[path = "../../../reconciler/tests/shared/changes.rs"]
mod table;

use std::path::Path;

use anyhow::{Result, bail, ensure};

use self::bench::{BOOT, Bench, SOON, is_settled, waits};
use self::shown::Shown;
use self::table::{Change, Seen};
use super::Kit;
use crate::berth;
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::{undo, wait, workspace};

/// The power of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    Running,
    Paused,
    Stopped,
    Suspended,
}

impl Power {
    const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Suspended, Self::Stopped];

    /// Its name in the API, which is also that of the state that a VM then has.
    fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Stopped => "Stopped",
            Self::Suspended => "Suspended",
        }
    }
}

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("changes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = report.step("berth up is ready", || Platform::embedded(&parts))?;
    let failed = report.count().failed;
    let outcome = cases(report, &platform, &guest);
    if outcome.is_err() || report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends berth up", || platform.stop());
    Ok(())
}

fn cases(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    report.case("each change that is left to another test names its file", || {
        for change in table::all() {
            if let Some(file) = change.elsewhere {
                ensure!(workspace::root().join(file).is_file(), "{}: there is no {file}", named(&change));
                note(&format!("        skipped: {}: it is in {file}", named(&change)));
            }
        }
        Ok(())
    });
    let mut bench = report
        .step("a guest with everything that the changes name runs", || Bench::start(platform, guest))?;
    report.case(
        "Terraform's plan replaces the VM for a change that is refused, or its apply is refused",
        || planned::refusals(&bench),
    );
    for power in Power::ALL {
        report.case(
            &format!("each change of a VM and its class has its effect while the VM is {}", power.name()),
            || each_change(&mut bench, power),
        );
    }
    report.case("each change that waits for the next start is on the command line of its QEMU", || {
        each_start(&mut bench)
    });
    report.case("that VM can be deleted, and leaves no QEMU", || {
        platform.kubectl().delete("vm/web")?;
        ensure!(berth::qemu_processes(platform.namespace())?.is_empty(), "QEMU still runs");
        Ok(())
    });
    Ok(())
}

fn named(change: &Change) -> String {
    format!("{} {}", change.kind, change.attributes.join(", "))
}

/// Makes the changes that can be made, one after the other. Returns the failed ones together.
fn each(mut make: impl FnMut(&Change) -> Result<()>) -> Result<()> {
    let mut wrong = Vec::new();
    for change in table::all().iter().filter(|change| change.elsewhere.is_none()) {
        undo::halt_if_interrupted();
        if let Err(error) = make(change) {
            wrong.push(format!("{}: {error:#}", named(change)));
        }
        if wait::time_left().is_zero() {
            bail!("the time of the suite is over:\n{}", wrong.join("\n"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn each_change(bench: &mut Bench<'_>, power: Power) -> Result<()> {
    bench.declare(Power::Running)?;
    let mut first = bench.guest()?;
    let running = bench.witness()?;
    bench.declare(power)?;
    let of_power = bench.witness()?;
    ensure!(
        of_power.pid.is_some() == matches!(power, Power::Running | Power::Paused),
        "while {power:?}: {of_power:?}"
    );
    let outcome = each(|change| one_change(bench, change, power));
    if power == Power::Running && outcome.is_ok() {
        // The last change has started it anew.
        let again = bench.guest()?;
        ensure!(again.boot != first.boot && again.root == first.root, "{again:?}, and before {first:?}");
        first = again;
    }
    bench.declare(Power::Running)?;
    let (after, guest) = (bench.witness()?, bench.guest()?);
    outcome?;
    ensure!(guest.root == first.root, "another content of the boot disk: {guest:?}, and before {first:?}");
    let is_same_boot = guest.boot == first.boot;
    match power {
        Power::Running => ensure!(is_same_boot, "{guest:?}, and before {first:?}"),
        Power::Paused => ensure!(is_same_boot && after == running, "{after:?}, and before {running:?}"),
        Power::Suspended => {
            ensure!(is_same_boot && after.pid != running.pid, "{guest:?}, and before {first:?}");
        }
        Power::Stopped => ensure!(!is_same_boot, "{guest:?}, and before {first:?}"),
    }
    ensure!(!is_same_boot || guest.uptime >= first.uptime, "{guest:?}, and before {first:?}");
    Ok(())
}

/// Makes a change, which replaces the one before it, and waits for what the table says of it.
fn one_change(bench: &mut Bench<'_>, change: &Change, power: Power) -> Result<()> {
    let seen = change.with_power(power);
    bench.without_changes(change, power)?;
    let before = bench.witness()?;
    let refused = bench.make(change, power)?;
    ensure!(refused.is_some() == (seen == Seen::Refused), "while {power:?}: {refused:?}");
    if seen == Seen::Restarts {
        return wait::until("another QEMU", BOOT, || {
            let after = bench.witness()?;
            ensure!(after.pid.is_some() && after.pid != before.pid, "{after:?}, and before {before:?}");
            Ok(())
        });
    }
    let named = named(change);
    match (seen, power) {
        (Seen::Waits, Power::Running | Power::Paused) => match shown::of(change) {
            Some(Shown::Argument(_) | Shown::Unseen(_)) => {
                bench.until(&format!("{named} to wait"), SOON, |vm| is_settled(vm) && waits(vm))?;
            }
            // The machine goes on all the same.
            Some(Shown::Skipped(reason)) => {
                note(&format!("        skipped: {named} waits while {power:?}: {reason}"));
                bench.until(&named, SOON, is_settled)?;
            }
            None => bail!("acceptance-tests/src/suites/changes/shown.rs does not say how it is seen"),
        },
        (Seen::Same, Power::Running) | (_, Power::Stopped) => {
            bench.until(&format!("{named} not to wait"), SOON, |vm| is_settled(vm) && !waits(vm))?;
            if power == Power::Running
                && let Some(check) = live::of(change)
            {
                wait::until(&format!("{named} to be seen"), SOON, || check(bench))?;
            }
        }
        _ => {
            bench.until(&named, SOON, is_settled)?;
        }
    }
    let after = bench.witness()?;
    ensure!(after == before, "while {power:?}: {after:?}, and before {before:?}");
    Ok(())
}

/// Starts the VM with each change that waits for a start.
fn each_start(bench: &mut Bench<'_>) -> Result<()> {
    let of_vm: Vec<&str> = table::all()
        .iter()
        .filter(|change| change.kind == "VM" && change.elsewhere.is_none())
        .filter_map(|change| change.attributes.first().copied())
        .collect();
    bench.cut_the_power = true;
    bench.declare(Power::Stopped)?;
    let base = bench.command_line_of_a_start(None)?;
    let outcome = each(|change| {
        let is_seen_with_the_vm =
            change.kind != "VM" && change.attributes.iter().any(|name| of_vm.contains(name));
        if change.with_power(Power::Running) != Seen::Waits || is_seen_with_the_vm {
            return Ok(());
        }
        match shown::of(change) {
            Some(Shown::Argument(text)) => {
                let line = bench.command_line_of_a_start(Some(change))?;
                let (now, before) = (shown::arguments(&line, text), shown::arguments(&base, text));
                ensure!(
                    !now.is_empty() && now != before,
                    "{text}: {now:?}, and without the change {before:?}"
                );
            }
            Some(Shown::Skipped(reason) | Shown::Unseen(reason)) => {
                note(&format!("        skipped: a start with {}: {reason}", named(change)));
            }
            None => bail!("acceptance-tests/src/suites/changes/shown.rs does not say how it is seen"),
        }
        Ok(())
    });
    bench.cut_the_power = false;
    outcome
}

/// Whether this machine has a device file.
fn has_device(name: &str) -> bool {
    Path::new("/dev").join(name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_that_waits_for_a_start_says_how_it_is_seen() {
        let waits =
            |change: &&Change| change.elsewhere.is_none() && change.with_power(Power::Running) == Seen::Waits;
        let all = table::all();
        let missing: Vec<String> =
            all.iter().filter(waits).filter(|change| shown::of(change).is_none()).map(named).collect();
        assert!(missing.is_empty(), "add these to shown.rs: {missing:?}");
    }

    #[test]
    fn all_that_is_said_to_be_seen_is_in_the_table() {
        let all = table::all();
        let shown = shown::NAMES.iter().map(|(name, _)| name);
        for name in shown.chain(live::CHECKS.iter().map(|(name, _)| name)) {
            assert!(all.iter().any(|change| change.attributes.first() == Some(name)), "{name}");
        }
    }
}
