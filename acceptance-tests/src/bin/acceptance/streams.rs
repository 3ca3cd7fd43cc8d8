//! Runs suites in processes of their own, three at a time: most of a suite is waiting for emulated guests.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use acceptance_tests::process;
use acceptance_tests::report::{Count, chain, note};
use acceptance_tests::suites::Suite;
use anyhow::{Context, Result};

use super::GRACE;

/// The number of concurrent suites. On two processors two leave a third of the time unused, and with more than three the guests
/// would starve each other.
const STREAMS: usize = 3;

/// Runs each suite as `program arguments SUITE`, and prints its output when it has ended.
pub(crate) fn run(
    suites: &[&'static Suite],
    program: &Path,
    arguments: &[String],
) -> Vec<(&'static Suite, Ended)> {
    let waiting: Mutex<VecDeque<&'static Suite>> = Mutex::new(suites.iter().copied().collect());
    let outcome = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                loop {
                    let Some(suite) = lock(&waiting).pop_front() else { return };
                    let ended = run_suite(suite, program, arguments);
                    let mut outcome = lock(&outcome);
                    note(&ended.text);
                    outcome.push((suite, ended));
                }
            });
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The output and the counts of one suite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) text: String,
    pub(crate) count: Count,
    pub(crate) failures: Vec<String>,
}

/// Runs one suite to its end.
pub(crate) fn run_suite(suite: &Suite, program: &Path, arguments: &[String]) -> Ended {
    // A run that is killed outright cannot end its suites: the kernel does, and each cleans up after itself.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program).args(arguments).arg(suite.name);
    // The suite's own limit is shorter, so that it cleans up itself.
    output_of(&mut command, suite.limit + GRACE * 3).unwrap_or_else(|error| Ended {
        text: format!("\n== {}: FAIL\n{}", suite.name, chain(&error)),
        count: Count { failed: 1, ..Count::default() },
        failures: vec![format!("{}: it did not run to its end", suite.name)],
    })
}

fn output_of(command: &mut Command, limit: Duration) -> Result<Ended> {
    let finished = process::run_terminable(command, limit)?;
    read(&finished.stdout).with_context(|| finished.output())
}

/// Splits the output of a run of one suite into the suite's own lines, its failures and its counts.
fn read(output: &str) -> Option<Ended> {
    let (text, last) = output.trim_end().rsplit_once('\n')?;
    let count = last.parse().ok()?;
    let (text, failures) = text.split_once("\nfailures:\n").unwrap_or((text, ""));
    let failures = failures.lines().filter_map(|line| line.strip_prefix("  ")).map(str::to_owned).collect();
    Some(Ended { text: text.trim_end().to_owned(), count, failures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read_from_its_output() {
        let output = "\n== a: b\n  ok    c (1 s)\n== a: 1 passed, 0 failed in 1 s\n\n1 passed, 0 failed\n";
        let ended = read(output).expect("it has counts");
        assert_eq!(ended.count, Count { passed: 1, ..Count::default() });
        assert_eq!(ended.text, "\n== a: b\n  ok    c (1 s)\n== a: 1 passed, 0 failed in 1 s");
        assert_eq!(ended.failures, Vec::<String>::new());
        let failed =
            "== a: b\n  FAIL  c (1 s)\n\nfailures:\n  a: c\n  a: d\n\n3 passed, 2 failed, 1 skipped\n";
        let ended = read(failed).expect("it has counts");
        assert_eq!(ended.count, Count { passed: 3, failed: 2, skipped: 1 });
        assert_eq!(ended.failures, ["a: c", "a: d"]);
        assert_eq!(read("it was killed\n"), None, "a suite without counts did not run to its end");
    }
}
