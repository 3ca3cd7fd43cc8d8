//! The suites that run the workspace's test programs: each of their tests counts as a case.

use std::collections::VecDeque;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kit;
use crate::process::{self, Finished};
use crate::report::{Count, Report, chain, note, spoken};
use crate::workspace::{self, TestProgram};

/// The one test target with a suite of its own.
const CONVERGES: &str = "converges";
/// The environment variable that makes it inject faults at every call.
const EVERY_CALL: &str = "BERTH_TEST_EVERY_CALL";
const LIMIT: Duration = Duration::from_secs(110 * 60);
/// Test programs that take longer are listed with their time.
const LONG: Duration = Duration::from_secs(20);
/// The number of test programs that run at a time: many tests wait for a timer, a process or the disk.
const CONCURRENT: usize = 3;
/// The test programs that take the longest. They run first, so that none runs alone at the end.
const LONGEST: [&str; 4] = ["provider", "sites", "agent", "berth_host"];
/// With more failed tests than these, none is repeated.
const MOST_REPEATED: usize = 3;
/// The maximum number of characters shown of a failed test's output.
const MOST_WORDS: usize = 4_000;

/// Unit and property tests, and the integration tests that need nothing but cargo.
pub fn unit(_: &Kit, report: &mut Report) -> Result<()> {
    let targets = report.step("the workspace's test targets are listed", test_targets)?;
    report.step("the example provider is built, which tests start", || {
        // Not by those tests: a build that goes on beside them would hold them up.
        workspace::run_build(workspace::cargo().args([
            "build",
            "--workspace",
            "--example",
            "toy",
            "--message-format=json",
        ]))
    })?;
    let mut selected = vec!["--lib"];
    for (kind, name) in targets.iter().filter(|(_, name)| *name != CONVERGES) {
        selected.extend([*kind, name]);
    }
    run(report, &selected, &[])
}

/// The test target `converges`.
pub fn converge(_: &Kit, report: &mut Report) -> Result<()> {
    run(report, &["--test", CONVERGES], &[])
}

/// The test target `converges`, with faults at every call.
pub fn converge_every_call(_: &Kit, report: &mut Report) -> Result<()> {
    run(report, &["--test", CONVERGES], &[(EVERY_CALL, "1")])
}

/// The integration tests and the programs with tests of their own, each with the flag that selects it. `--bins` would also select the
/// programs whose manifest says that they have none.
fn test_targets() -> Result<Vec<(&'static str, String)>> {
    let mut metadata = workspace::cargo();
    metadata.args(["metadata", "--no-deps", "--format-version=1"]);
    let text = process::run(&mut metadata, Duration::from_secs(120))?.success()?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        for target in package["targets"].as_array().context("no targets")? {
            let flag = match target["kind"][0].as_str() {
                Some("test") => "--test",
                Some("bin") if target["test"] == true => "--bin",
                _ => continue,
            };
            if let Some(name) = target["name"].as_str() {
                found.push((flag, name.to_owned()));
            }
        }
    }
    Ok(found)
}

/// Builds the selected test programs and runs all of their tests with these variables in their environment.
fn run(report: &mut Report, selected: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    let mut build = workspace::cargo();
    // Of the whole workspace: with the features of a single package, dependencies would be compiled again.
    build.args(["test", "--workspace", "--no-run", "--message-format=json"]).args(selected);
    let messages = report.step("the test programs are built", || workspace::run_build(&mut build))?;
    let mut programs = workspace::test_programs(&messages);
    programs.sort_by_key(|program| !LONGEST.contains(&program.name.as_str()));
    let waiting: Mutex<VecDeque<&TestProgram>> = Mutex::new(programs.iter().collect());
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(program) = next else { return };
                    // A test that this machine cannot run prints `skipped: REASON` and passes.
                    let started = Instant::now();
                    let finished =
                        process::run(&mut command(program, &["--show-output"], environment), LIMIT);
                    if started.elapsed() > LONG {
                        note(&format!("        {} took {}", program.name, spoken(started.elapsed())));
                    }
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push((program, finished));
                }
            });
        }
    });
    let mut total = Count::default();
    let mut failed = Vec::new();
    for (program, finished) in ended.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match finished {
            Ok(finished) => total += evaluate(report, program, &finished, &mut failed),
            Err(error) => report.failed(&chain(&error)),
        }
    }
    if failed.len() <= MOST_REPEATED {
        for (program, test) in failed {
            if passes_alone(program, &test, environment) {
                total.failed -= 1;
                total.passed += 1;
                report.passed_when_repeated(&test);
            }
        }
    }
    report.counted(total);
    note(&format!("  {total}"));
    ensure!(total.passed + total.failed > 0, "no test ran");
    Ok(())
}

/// Counts and shows what one program reported, and adds its failed tests to `failed`.
fn evaluate<'a>(
    report: &mut Report,
    program: &'a TestProgram,
    finished: &Finished,
    failed: &mut Vec<(&'a TestProgram, String)>,
) -> Count {
    let skipped = skipped(&finished.stdout);
    let mut count = counted(&finished.stdout);
    count.passed -= skipped.len().min(count.passed);
    skipped.iter().for_each(|(test, reason)| report.skip(test, reason));
    if !finished.status.success() && count.failed == 0 {
        // It crashed or could not start: there is no result to count.
        note(process::tail(&finished.stdout, 12_000));
        note(process::tail(&finished.stderr, 6_000));
        report.failed(&format!("`{}` ended with {}", finished.line, finished.status));
        return count;
    }
    for test in failed_tests(&finished.stdout) {
        note(&format!("  FAIL  {} {test}\n{}", program.name, words(&finished.stdout, test)));
        failed.push((program, test.to_owned()));
    }
    count
}

/// The program as cargo would run it.
fn command(program: &TestProgram, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder).args(arguments);
    command.envs(environment.iter().copied());
    command
}

/// Repeats one failed test with no other beside it.
fn passes_alone(program: &TestProgram, test: &str, environment: &[(&str, &str)]) -> bool {
    let repeated = process::run(&mut command(program, &["--exact", test], environment), LIMIT);
    repeated.is_ok_and(|run| run.status.success() && counted(&run.stdout).passed == 1)
}

/// The names of the failed tests.
fn failed_tests(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
}

/// The output of a failed test up to the backtrace, which is long.
fn words<'a>(output: &'a str, test: &str) -> &'a str {
    let heading = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = output.split_once(&heading) else { return "" };
    let own = rest.find("\n---- ").or_else(|| rest.find("\nfailures:")).map_or(rest, |end| &rest[..end]);
    let own = own.split("\nstack backtrace:").next().unwrap_or(own);
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
    fn a_failed_test_is_shown_from_its_message_on_without_the_backtrace() {
        let output = "---- a::b stdout ----\n\npanicked at x:\nleft != right\nstack backtrace:\n   0: frame\n\n---- c stdout ----\nother\n\n\nfailures:\n    a::b\n";
        assert_eq!(words(output, "a::b").trim(), "panicked at x:\nleft != right");
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
        assert_eq!(failed_tests(output).collect::<Vec<_>>(), ["a::b"]);
    }

    #[test]
    fn the_results_of_several_test_targets_add_up() {
        let output = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(counted(output), Count { passed: 15, failed: 2, skipped: 1 });
    }
}
