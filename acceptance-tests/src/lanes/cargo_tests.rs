//! The lanes that are `cargo test`: each of its tests counts as a case.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Kit;
use crate::report::{Count, Report, note};
use crate::{process, workspace};

/// The one suite with a lane of its own.
const CONVERGES: &str = "converges";
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// How much is shown of what one failed test printed, in characters.
const MOST_WORDS: usize = 4_000;

/// Unit and property tests, and the integration tests that need nothing but cargo.
pub fn unit(_: &Kit, report: &mut Report) -> Result<()> {
    let suites = report.step("the workspace's test suites are listed", integration_tests)?;
    let mut arguments = vec!["test", "--workspace", "--lib", "--bins", "--no-fail-fast", "--color=never"];
    for suite in suites.iter().filter(|suite| *suite != CONVERGES) {
        arguments.extend(["--test", suite]);
    }
    cargo_test(report, &arguments)
}

/// The `converges` suite.
pub fn converge(_: &Kit, report: &mut Report) -> Result<()> {
    cargo_test(
        report,
        &["test", "--package", "berth", "--test", CONVERGES, "--no-fail-fast", "--color=never"],
    )
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

fn cargo_test(report: &mut Report, arguments: &[&str]) -> Result<()> {
    let finished = process::run(workspace::cargo().args(arguments), LIMIT)?;
    let count = counted(&finished.stdout);
    for line in finished.stdout.lines().filter(|line| line.starts_with("test ") && line.ends_with("FAILED")) {
        let test = line.trim_start_matches("test ").trim_end_matches(" ... FAILED");
        note(&format!("  FAIL  {test}\n{}", words(&finished.stdout, test)));
    }
    report.counted(count);
    note(&format!("  {count}"));
    if !finished.status.success() {
        note(process::tail(&finished.stdout, 12_000));
        note(process::tail(&finished.stderr, 6_000));
        if count.failed == 0 {
            report.failed(&format!("`{}` ended with {}", finished.line, finished.status));
        }
    }
    ensure!(count.passed + count.failed > 0, "`{}` ran no test", finished.line);
    Ok(())
}

/// What a failed test printed: its beginning, because the message comes before the backtrace.
fn words<'a>(output: &'a str, test: &str) -> &'a str {
    let heading = format!("---- {test} stdout ----\n");
    let Some((_, rest)) = output.split_once(&heading) else { return "" };
    let own = rest.find("\n---- ").or_else(|| rest.find("\nfailures:")).map_or(rest, |end| &rest[..end]);
    own.char_indices().nth(MOST_WORDS).map_or(own, |(end, _)| &own[..end]).trim_end()
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
    fn the_results_of_several_suites_add_up() {
        let output = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(counted(output), Count { passed: 15, failed: 2, skipped: 1 });
    }
}
