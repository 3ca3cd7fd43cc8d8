//! The suites that run `cargo test`: each of its tests counts as a case.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kit;
use crate::report::{Count, Report, note};
use crate::{process, workspace};

/// The one test target with a suite of its own.
const CONVERGES: &str = "converges";
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// With more failed tests than these, none is repeated.
const MOST_REPEATED: usize = 3;
/// The maximum number of characters shown of a failed test's output.
const MOST_WORDS: usize = 4_000;

/// Unit and property tests, and the integration tests that need nothing but cargo.
pub fn unit(_: &Kit, report: &mut Report) -> Result<()> {
    let targets = report.step("the workspace's test targets are listed", integration_tests)?;
    let mut selected = vec!["--lib", "--bins"];
    for target in targets.iter().filter(|target| *target != CONVERGES) {
        selected.extend(["--test", target]);
    }
    cargo_test(report, &selected)
}

/// The test target `converges`.
pub fn converge(_: &Kit, report: &mut Report) -> Result<()> {
    cargo_test(report, &["--test", CONVERGES])
}

fn integration_tests() -> Result<Vec<String>> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--no-deps", "--format-version=1"]);
    let text = process::run(&mut metadata, Duration::from_secs(120))?.success()?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let mut names = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        for target in package["targets"].as_array().context("no targets")? {
            if target["kind"][0] == "test"
                && let Some(name) = target["name"].as_str()
            {
                names.push(name.to_owned());
            }
        }
    }
    Ok(names)
}

fn cargo_test(report: &mut Report, selected: &[&str]) -> Result<()> {
    // A test that this machine cannot run prints `skipped: REASON` and passes.
    let finished = process::run(&mut command(selected, &["--show-output"]), LIMIT)?;
    let skipped = skipped(&finished.stdout);
    let mut count = counted(&finished.stdout);
    count.passed -= skipped.len().min(count.passed);
    skipped.iter().for_each(|(test, reason)| report.skip(test, reason));
    let failed: Vec<&str> = failed(&finished.stdout).collect();
    for test in &failed {
        note(&format!("  FAIL  {test}\n{}", words(&finished.stdout, test)));
    }
    if failed.len() == count.failed && failed.len() <= MOST_REPEATED {
        for test in failed.iter().filter(|test| passes_alone(selected, test)) {
            count.failed -= 1;
            count.passed += 1;
            report.unstable(test);
        }
    }
    report.counted(count);
    note(&format!("  {count}"));
    let is_complete = !failed.is_empty() && results(&finished.stdout) == started(&finished.stdout);
    if !finished.status.success() && (count.failed > 0 || !is_complete) {
        note(process::tail(&finished.stdout, 12_000));
        note(process::tail(&finished.stderr, 6_000));
        if count.failed == 0 || !is_complete {
            report.failed(&format!("`{}` ended with {}", finished.line, finished.status));
        }
    }
    ensure!(count.passed + count.failed > 0, "`{}` ran no test", finished.line);
    Ok(())
}

/// `cargo test` of the whole workspace: with the features of a single package it would recompile the dependencies.
fn command(selected: &[&str], arguments: &[&str]) -> Command {
    let mut command = workspace::cargo();
    command
        .args(["test", "--workspace", "--no-fail-fast", "--color=never"])
        .args(selected)
        .arg("--")
        .args(arguments);
    command
}

/// Repeats one failed test without any other beside it.
fn passes_alone(selected: &[&str], test: &str) -> bool {
    let repeated = process::run(&mut command(selected, &["--exact", test]), LIMIT);
    repeated.is_ok_and(|run| run.status.success() && counted(&run.stdout).passed > 0)
}

/// The number of test programs that started.
fn started(output: &str) -> usize {
    output
        .lines()
        .filter(|line| line.starts_with("running ") && line.trim_end_matches('s').ends_with(" test"))
        .count()
}

/// The number of test programs that ended with a result; one that crashes prints none.
fn results(output: &str) -> usize {
    output.lines().filter(|line| line.starts_with("test result: ")).count()
}

/// The names of the failed tests.
fn failed(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
}

/// The output of a failed test: its beginning, because the message comes before the backtrace.
fn words<'a>(output: &'a str, test: &str) -> &'a str {
    let heading = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = output.split_once(&heading) else { return "" };
    let own = rest.find("\n---- ").or_else(|| rest.find("\nfailures:")).map_or(rest, |end| &rest[..end]);
    own.char_indices().nth(MOST_WORDS).map_or(own, |(end, _)| &own[..end]).trim_end()
}

/// Returns the passed tests that printed `skipped: REASON`, with the reason.
fn skipped(output: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut is_passed = false;
    let mut test: Option<&str> = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----")) {
            test = Some(name);
        } else if line == "successes:" || line == "failures:" {
            is_passed = line == "successes:";
            test = None;
        } else if let Some(reason) = line.strip_prefix("skipped: ")
            && let Some(name) = test.take_if(|_| is_passed)
        {
            found.push((name, reason));
        }
    }
    found
}

/// Adds up the `test result:` lines.
fn counted(output: &str) -> Count {
    let mut count = Count::default();
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        let mut last = 0;
        for word in line.split([' ', ';', '.']).filter(|word| !word.is_empty()) {
            match word {
                "passed" => count.passed += last,
                "failed" => count.failed += last,
                "ignored" => count.skipped += last,
                number => last = number.parse().unwrap_or(0),
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_test_is_shown_from_its_message_on() {
        let output = "---- a::b stdout ----\n\npanicked at x:\nleft != right\n   0: frame\n\n---- c stdout ----\nother\n\n\nfailures:\n    a::b\n";
        assert_eq!(words(output, "a::b").trim(), "panicked at x:\nleft != right\n   0: frame");
        assert_eq!(words(output, "c"), "other");
        assert_eq!(words(output, "b"), "", "only the test itself");
        let long = format!("---- d stdout ----\n{}\nfailures:\n", "é".repeat(9_000));
        assert_eq!(words(&long, "d").chars().count(), MOST_WORDS);
    }

    #[test]
    fn a_test_that_prints_why_it_is_skipped_counts_as_skipped_once() {
        let output = "successes:\n\n---- a::b stdout ----\nskipped: no terraform in PATH\nskipped: again\n\n---- c stdout ----\nlog\n\n\n\
                      successes:\n    a::b\n\nfailures:\n\n---- d stdout ----\nskipped: not\n\ntest result: FAILED.";
        assert_eq!(skipped(output), [("a::b", "no terraform in PATH")]);
    }

    #[test]
    fn failed_tests_are_named_once() {
        let output = "test a::b ... FAILED\ntest c ... ok\n\nfailures:\n    a::b\n\ntest result: FAILED. 1 passed; 1 failed;";
        assert_eq!(failed(output).collect::<Vec<_>>(), ["a::b"]);
        let crashed =
            "running 1 test\ntest a ... ok\ntest result: ok. 1 passed;\nrunning 2 tests\nrunning late\n";
        assert_eq!((started(crashed), results(crashed)), (2, 1));
    }

    #[test]
    fn the_results_of_several_test_targets_add_up() {
        let output = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(counted(output), Count { passed: 15, failed: 2, skipped: 1, unstable: 0 });
    }
}
