//! `cargo measure [N1 …]`: measures the numbers of `docs/SPECIFICATION.md` on this machine.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use acceptance_tests::bench::measure::figure::Reading;
use acceptance_tests::bench::measure::{self, Bench, Number, machine, specification};
use acceptance_tests::report::{chain, note, spoken};
use acceptance_tests::workspace::{self, Binaries, Source};
use acceptance_tests::{namespace, prerequisites, undo};
use anyhow::{Context, Result, bail};
use clap::Parser;

/// Measures what docs/SPECIFICATION.md publishes, each number beside its anchor in the same run.
#[derive(Debug, Parser)]
#[command(name = "cargo measure")]
struct Arguments {
    /// The numbers to measure, such as N4; all of them when none is named.
    numbers: Vec<String>,
    /// Writes what was measured into docs/SPECIFICATION.md.
    #[arg(long)]
    write: bool,
    /// Fails when a figure that does not drift with the machine (a size, a count, a ratio) misses its target.
    #[arg(long)]
    check: bool,
    /// Writes the readings as JSON into this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Lists the numbers.
    #[arg(long)]
    list: bool,
    /// A terraform-provider-kubernetes 2.x, to measure its kubernetes_manifest in N6 too: the Go module system offers no such
    /// version to build.
    #[arg(long, value_name = "FILE")]
    kubernetes_2: Option<PathBuf>,
    /// Measures the binaries in this folder instead of building release binaries.
    #[arg(long, value_name = "FOLDER")]
    binaries: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            note(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether all measurements succeeded.
fn run(arguments: &Arguments) -> Result<bool> {
    undo::on_signals()?;
    let chosen = choose(&arguments.numbers)?;
    if arguments.list {
        chosen.iter().for_each(|number| note(&format!("{:8} {}", number.name(), number.about)));
        return Ok(true);
    }
    prerequisites::ensure_installed()?;
    namespace::sweep()?;
    let source = Source::new(arguments.binaries.as_deref(), true);
    let bench = Bench::new(Binaries::get(&source)?, arguments.kubernetes_2.clone())?;
    let mut readings = Vec::new();
    let mut well = true;
    for number in chosen {
        note(&format!("\n== {}: {}", number.name(), number.about));
        let started = Instant::now();
        let outcome = (number.measure)(&bench);
        // A failure caused by the teardown is not a result.
        undo::halt_if_interrupted();
        match outcome {
            Ok(measured) => {
                measured.iter().for_each(|reading| note(&line(reading)));
                readings.extend(measured);
            }
            Err(error) => {
                well = false;
                note(&format!("  FAIL  {} was not measured\n{}", number.name(), chain(&error)));
            }
        }
        note(&format!("== {} in {}", number.name(), spoken(started.elapsed())));
    }
    publish(arguments, &readings)?;
    Ok(well && !(arguments.check && missed(&readings)))
}

/// The named numbers, in the best order of measurement.
fn choose(names: &[String]) -> Result<Vec<&'static Number>> {
    let known = || measure::ALL.iter().flat_map(|number| number.names);
    if let Some(stranger) = names.iter().find(|name| !known().any(|known| known.eq_ignore_ascii_case(name))) {
        let known: Vec<&str> = known().copied().collect();
        bail!("{stranger} is not measured by this command; it measures {}", known.join(", "));
    }
    let wanted = |number: &&Number| {
        names.is_empty()
            || number.names.iter().any(|known| names.iter().any(|name| known.eq_ignore_ascii_case(name)))
    };
    Ok(measure::ALL.iter().filter(wanted).collect())
}

fn line(reading: &Reading) -> String {
    let mark = match reading.met() {
        Some(true) => "ok    ",
        Some(false) => "MISS  ",
        None => "      ",
    };
    let target = if reading.met().is_some() { reading.figure.target() } else { String::new() };
    format!(
        "  {mark}{:16} {:52} {target:12} {}",
        reading.figure.key,
        reading.figure.what,
        reading.formatted()
    )
}

fn missed(readings: &[Reading]) -> bool {
    let missed = readings.iter().filter(|reading| reading.figure.enforced && reading.met() == Some(false));
    missed.map(|reading| note(&format!("missed: {}", reading.figure.key))).count() > 0
}

fn publish(arguments: &Arguments, readings: &[Reading]) -> Result<()> {
    let (machine, date) = (machine::description(), machine::today());
    note(&format!("\non {machine}"));
    if let Some(path) = &arguments.json {
        let readings: Vec<serde_json::Value> = readings.iter().map(Reading::json).collect();
        let all = serde_json::json!({"date": date, "machine": machine, "readings": readings});
        fs::write(path, serde_json::to_string_pretty(&all)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if arguments.write {
        if arguments.binaries.is_some() {
            bail!("--write is for release binaries that this command has built");
        }
        let path = workspace::root().join("docs/SPECIFICATION.md");
        let text = fs::read_to_string(&path).context("reading docs/SPECIFICATION.md")?;
        let text = specification::updated(&text, readings, &date, &machine)?;
        fs::write(&path, text).context("writing docs/SPECIFICATION.md")?;
        note("written into docs/SPECIFICATION.md");
    }
    Ok(())
}
