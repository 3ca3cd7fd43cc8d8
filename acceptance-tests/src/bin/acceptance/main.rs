//! `cargo acceptance [SUITE…]`: runs the acceptance suites and ends with one plain line of counts.

mod ahead;
mod streams;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use acceptance_tests::footprint::Footprint;
use acceptance_tests::report::{Count, Report, chain, note, spoken};
use acceptance_tests::suites::{self, Kit, Suite};
use acceptance_tests::workspace::Source;
use acceptance_tests::{namespace, prerequisites, undo, wait};
use anyhow::{Context, Result, bail};
use clap::Parser;

/// After a suite's limit, its cases get this long to notice before everything is torn down.
const GRACE: Duration = Duration::from_secs(60);

/// With more failed suites than these, none is repeated.
const MOST_REPEATED: usize = 2;

/// The time after which leftovers count as permanent.
const SETTLED: Duration = Duration::from_secs(5);

/// Runs the acceptance tests: the real programs, real guests.
#[derive(Debug, Parser)]
#[command(name = "cargo acceptance")]
struct Arguments {
    /// The suites to run; when none is named, all that this machine can run and that are not extended ones.
    suites: Vec<String>,
    /// Lists the suites.
    #[arg(long)]
    list: bool,
    /// Runs the extended suites: those that are too long for a usual run.
    #[arg(long, conflicts_with = "suites")]
    extended: bool,
    /// A suite or case that this machine cannot run is a failure.
    #[arg(long)]
    all: bool,
    /// Builds the tools and guests that suites need, and runs nothing.
    #[arg(long)]
    prepare: bool,
    /// Runs one suite after the other. Else those that leave processors idle run three at a time.
    #[arg(long)]
    one_by_one: bool,
    /// Tests the release binaries.
    #[arg(long)]
    release: bool,
    /// Tests the binaries in this folder and builds none.
    #[arg(long, value_name = "FOLDER", conflicts_with = "release")]
    binaries: Option<PathBuf>,
}

impl Arguments {
    /// The arguments for a process that runs one of the suites.
    fn for_each_suite(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        arguments.extend(self.all.then(|| "--all".to_owned()));
        arguments.extend(self.release.then(|| "--release".to_owned()));
        if let Some(folder) = &self.binaries {
            arguments.extend(["--binaries".to_owned(), folder.display().to_string()]);
        }
        arguments
    }
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
    let chosen = choose(&arguments.suites, arguments.extended)?;
    if arguments.list {
        for suite in &chosen {
            let obstacle =
                (suite.obstacle)().map(|reason| format!(" (not here: {reason})")).unwrap_or_default();
            note(&format!("{:19} {}{obstacle}", suite.name, suite.about));
        }
        return Ok(Count::default());
    }
    if prerequisites::is_root() {
        namespace::sweep()?;
        prerequisites::ensure_installed()?;
    }
    let source = Source::new(arguments.binaries.as_deref(), arguments.release);
    let kit = Kit::new(source)?;
    if arguments.prepare {
        return prepare(&kit, arguments.extended);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let needs_all_tools = arguments.suites.is_empty()
        && !arguments.extended
        && chosen.iter().all(|suite| (suite.obstacle)().is_none());
    let ahead = (needs_all_tools && !arguments.one_by_one)
        .then(|| ahead::start(&program, &arguments.for_each_suite()));
    let mut total = Count::default();
    let (mut failures, mut unstable) = (Vec::new(), Vec::new());
    let (alone, beside): (Vec<_>, Vec<_>) =
        chosen.iter().copied().partition(|suite| suite.alone || arguments.one_by_one || chosen.len() == 1);
    for suite in alone {
        let report = run_suite(suite, &kit, arguments.all, total);
        total += report.count();
        failures.extend(report.failures().iter().map(|fact| format!("{}: {fact}", suite.name)));
        unstable.extend(report.unstable().iter().map(|fact| format!("{}: {fact}", suite.name)));
    }
    if !beside.is_empty() {
        let ended = streams::run(&beside, &program, &arguments.for_each_suite());
        let failed = ended.iter().filter(|(_, ended)| ended.count.failed > 0).count();
        for (suite, mut ended) in ended {
            if ended.count.failed > 0 && failed <= MOST_REPEATED {
                let again = streams::run_suite(suite, &program, &arguments.for_each_suite());
                note(&again.text);
                if again.count.failed == 0 {
                    unstable.append(&mut ended.failures);
                    ended = again;
                }
            }
            total += ended.count;
            failures.extend(ended.failures);
        }
    }
    if let Some(ahead) = ahead {
        ahead.finish();
    }
    if !unstable.is_empty() {
        note("\nunstable (failed, and passed when repeated):");
        unstable.iter().for_each(|fact| note(&format!("  {fact}")));
    }
    if !failures.is_empty() {
        note("\nfailures:");
        failures.iter().for_each(|failure| note(&format!("  {failure}")));
    }
    note("");
    note(&total.to_string());
    Ok(total)
}

fn choose(names: &[String], extended: bool) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(suites::ALL.iter().filter(|suite| suite.extended == extended).collect());
    }
    names
        .iter()
        .map(|name| match suites::ALL.iter().find(|suite| suite.name == name) {
            Some(suite) => Ok(suite),
            None => {
                let known: Vec<&str> = suites::ALL.iter().map(|suite| suite.name).collect();
                bail!("there is no suite {name}; there are {}", known.join(", "))
            }
        })
        .collect()
}

fn prepare(kit: &Kit, extended: bool) -> Result<Count> {
    let started = Instant::now();
    // The longest suites' first, but for the guests, which the first suites build themselves. The last one is ready shortly
    // before the end of a run, and its suite must not take long.
    note(&format!("kube-apiserver: {}", kit.kubernetes()?.kube_apiserver.display()));
    if extended {
        note(&format!("Helm and Argo's engine: {}", kit.helm_and_argo()?.program("").display()));
        note(&format!("Flux: {}", kit.flux()?.program("").display()));
        kit.kube_rs()?;
        note(&format!("OpenTofu: {}", kit.opentofu()?.program.display()));
        note(&format!("Terraform: {}", kit.newer_terraform()?.program.display()));
        note(&format!("settable clock: {}", kit.settable_clock()?.display()));
        note(&format!("berth's next version: {}", kit.next_version()?.berth.display()));
    }
    note(&format!("OpenBao: {}", kit.openbao()?.display()));
    note(&format!("Ceph: {}", kit.ceph()?.display()));
    note(&format!("small guest: {}", kit.small_guest()?.path.display()));
    note(&format!("Debian guest: {}", kit.debian_guests()?.with_agent.path.display()));
    note(&format!("ready after {}", spoken(started.elapsed())));
    Ok(Count::default())
}

fn run_suite(suite: &Suite, kit: &Kit, all: bool, before: Count) -> Report {
    let mut report = Report::new();
    note(&format!("\n== {}: {}", suite.name, suite.about));
    if let Some(reason) = (suite.obstacle)() {
        if all {
            report.failed(&format!("this machine cannot run the suite: {reason}"));
        } else {
            report.skip(&format!("the {} suite", suite.name), &reason);
        }
        return report;
    }
    let started = Instant::now();
    wait::set_deadline(Some(started + suite.limit));
    let watchdog = watch(suite, before);
    let before = Footprint::of_this_machine();
    let outcome = (suite.run)(kit, &mut report);
    if prerequisites::is_root() {
        report.case("the suite leaves nothing on this machine", || {
            // Another berth on this machine may be starting a VM at this moment.
            let before = before?;
            wait::until("this machine to be as it was", SETTLED, || {
                Footprint::of_this_machine()?.must_not_exceed(&before)
            })
        });
    }
    watchdog.forget();
    wait::set_deadline(None);
    // A failed step has been counted already; an error from elsewhere has not.
    if let Err(error) = outcome
        && report.count().failed == 0
    {
        report.failed(&chain(&error));
    }
    let skipped = report.count().skipped;
    if all && skipped > 0 {
        report.failed(&format!("{skipped} cases cannot run on this machine"));
    }
    note(&format!("== {}: {} in {}", suite.name, report.count(), spoken(started.elapsed())));
    report
}

/// Ends the whole run when a suite hangs beyond every limit.
fn watch(suite: &Suite, before: Count) -> Watchdog {
    let (name, limit) = (suite.name, suite.limit + GRACE);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if stopped.recv_timeout(limit) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            return;
        }
        note(&format!("  FAIL  the {name} suite hangs: still running after {}", spoken(limit)));
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
        // The thread is gone only if it has ended the process.
        let _ = self.0.send(());
    }
}
