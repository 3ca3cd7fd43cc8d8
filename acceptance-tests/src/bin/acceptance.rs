//! `cargo acceptance [LANE…]`: runs the acceptance lanes and ends with one plain line of counts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acceptance_tests::footprint::Footprint;
use acceptance_tests::lanes::{self, Kit, Lane};
use acceptance_tests::report::{Count, Report, chain, note, spoken};
use acceptance_tests::workspace::Source;
use acceptance_tests::{namespace, prerequisites, undo, wait};
use anyhow::{Result, bail};
use clap::Parser;

/// After a lane's limit its cases get this long to notice before all is torn down.
const GRACE: Duration = Duration::from_secs(60);

/// What is left after this is left for good.
const SETTLED: Duration = Duration::from_secs(5);

/// Runs the acceptance tests: the real programs, real guests.
#[derive(Debug, Parser)]
#[command(name = "cargo acceptance")]
struct Arguments {
    /// The lanes to run; all that this machine can run when none is named.
    lanes: Vec<String>,
    /// Lists the lanes.
    #[arg(long)]
    list: bool,
    /// A lane that this machine cannot run is a failure.
    #[arg(long)]
    all: bool,
    /// Builds the tools and guests that lanes need, and runs nothing.
    #[arg(long)]
    prepare: bool,
    /// Tests the release binaries.
    #[arg(long)]
    release: bool,
    /// Tests the binaries in this folder and builds none.
    #[arg(long, value_name = "FOLDER", conflicts_with = "release")]
    binaries: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(count) if count.failed == 0 => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            note(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Count> {
    undo::on_signals()?;
    let chosen = choose(&arguments.lanes)?;
    if arguments.list {
        for lane in &chosen {
            let obstacle =
                (lane.obstacle)().map(|reason| format!(" (not here: {reason})")).unwrap_or_default();
            note(&format!("{:13} {}{obstacle}", lane.name, lane.about));
        }
        return Ok(Count::default());
    }
    if prerequisites::is_root() {
        namespace::sweep()?;
        prerequisites::ensure_installed()?;
    }
    let source = match &arguments.binaries {
        Some(folder) => Source::Folder(folder.clone()),
        None if arguments.release => Source::Release,
        None => Source::Debug,
    };
    let kit = Kit::new(source)?;
    if arguments.prepare {
        return prepare(&kit);
    }
    let mut total = Count::default();
    let mut failures = Vec::new();
    for lane in &chosen {
        let report = run_lane(lane, &kit, arguments.all, total);
        total += report.count();
        failures.extend(report.failures().iter().map(|fact| format!("{}: {fact}", lane.name)));
    }
    if !failures.is_empty() {
        note("\nfailures:");
        failures.iter().for_each(|failure| note(&format!("  {failure}")));
    }
    note("");
    note(&total.to_string());
    Ok(total)
}

fn choose(names: &[String]) -> Result<Vec<&'static Lane>> {
    if names.is_empty() {
        return Ok(lanes::ALL.iter().collect());
    }
    names
        .iter()
        .map(|name| match lanes::ALL.iter().find(|lane| lane.name == name) {
            Some(lane) => Ok(lane),
            None => {
                let known: Vec<&str> = lanes::ALL.iter().map(|lane| lane.name).collect();
                bail!("there is no lane {name}; there are {}", known.join(", "))
            }
        })
        .collect()
}

fn prepare(kit: &Kit) -> Result<Count> {
    let started = Instant::now();
    note(&format!("small guest: {}", kit.small_guest()?.path.display()));
    note(&format!("Debian guest: {}", kit.debian_guest()?.path.display()));
    note(&format!("kube-apiserver: {}", kit.kubernetes()?.kube_apiserver.display()));
    note(&format!("settable clock: {}", kit.settable_clock()?.display()));
    for cli in kit.other_terraforms()? {
        note(&format!("{}: {}", cli.name, cli.program.display()));
    }
    note(&format!("ready after {}", spoken(started.elapsed())));
    Ok(Count::default())
}

fn run_lane(lane: &Lane, kit: &Kit, all: bool, before: Count) -> Report {
    let mut report = Report::new();
    note(&format!("\n== {}: {}", lane.name, lane.about));
    if let Some(reason) = (lane.obstacle)() {
        if all {
            report.failed(&format!("this machine cannot run the lane: {reason}"));
        } else {
            report.skip(&format!("the {} lane", lane.name), &reason);
        }
        return report;
    }
    let started = Instant::now();
    wait::set_deadline(Some(started + lane.limit));
    let watchdog = watch(lane, before);
    let before = Footprint::of_this_machine();
    let outcome = (lane.run)(kit, &mut report);
    if prerequisites::is_root() {
        report.case("the lane leaves nothing on this machine", || {
            // Another berth on this machine may just be starting a VM.
            let before = before?;
            wait::until("this machine to be as it was", SETTLED, || {
                Footprint::of_this_machine()?.must_not_exceed(&before)
            })
        });
    }
    watchdog.forget();
    wait::set_deadline(None);
    // A failed step has been counted; an error from elsewhere has not.
    if let Err(error) = outcome
        && report.count().failed == 0
    {
        report.failed(&chain(&error));
    }
    note(&format!("== {}: {} in {}", lane.name, report.count(), spoken(started.elapsed())));
    report
}

/// Ends the whole run when a lane hangs where no limit reaches it.
fn watch(lane: &Lane, before: Count) -> Watchdog {
    let (name, limit) = (lane.name, lane.limit + GRACE);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if stopped.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            return;
        }
        note(&format!("  FAIL  the {name} lane hangs: still running after {}", spoken(limit)));
        undo::everything();
        let count = Count { failed: before.failed + 1, ..before };
        note(&format!("\n{count}"));
        std::process::exit(1);
    });
    Watchdog(stop)
}

struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    fn forget(self) {
        // The thread has gone only if it has ended the process.
        let _ = self.0.send(());
    }
}
