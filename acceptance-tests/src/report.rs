//! The output for people while the tests or the demo run, and the count at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};

pub use crate::progress::{note, spoken};
use crate::undo;

/// Test cases counted over all suites.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The number of passed cases.
    pub passed: usize,
    /// The number of failed cases.
    pub failed: usize,
    /// The number of suites or cases that this machine cannot run.
    pub skipped: usize,
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(formatter, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Count {
    type Err = anyhow::Error;

    /// Parses the output of `Display`.
    fn from_str(text: &str) -> Result<Self> {
        let mut count = Self::default();
        for part in text.trim().split(", ") {
            let (number, of) = part.split_once(' ').with_context(|| format!("{part:?} is no count"))?;
            let number = number.parse().with_context(|| format!("{number:?} is no number"))?;
            match of {
                "passed" => count.passed = number,
                "failed" => count.failed = number,
                "skipped" => count.skipped = number,
                _ => bail!("{of:?} is no count"),
            }
        }
        Ok(count)
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// One suite's report: its cases are printed as they end.
#[derive(Debug)]
pub struct Report {
    count: Count,
    failures: Vec<String>,
    unstable: Vec<String>,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Self { count: Count::default(), failures: Vec::new(), unstable: Vec::new() }
    }

    /// Runs one test case, named by the fact it checks. Returns whether it passed.
    pub fn case(&mut self, fact: &str, body: impl FnOnce() -> Result<()>) -> bool {
        self.step(fact, body).is_ok()
    }

    /// A case with a result that the following ones need: their suite ends when it fails.
    pub fn step<T>(&mut self, fact: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        undo::halt_if_interrupted();
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        // A failure caused by the teardown is not a result.
        undo::halt_if_interrupted();
        let took = spoken(started.elapsed());
        match outcome {
            Ok(value) => {
                self.count.passed += 1;
                note(&format!("  ok    {fact} ({took})"));
                Ok(value)
            }
            Err(error) => {
                self.count.failed += 1;
                self.failures.push(fact.to_owned());
                note(&format!("  FAIL  {fact} ({took})"));
                note(&chain(&error));
                Err(anyhow!("{fact}"))
            }
        }
    }

    /// Reports a case that cannot run here, with the reason.
    pub fn skip(&mut self, fact: &str, reason: &str) {
        self.count.skipped += 1;
        note(&format!("  skip  {fact}: {reason}"));
    }

    /// Lists a case that failed at first and passed when it was repeated.
    pub fn passed_when_repeated(&mut self, fact: &str) {
        self.unstable.push(fact.to_owned());
        note(&format!("  ok    {fact}, when it was repeated by itself"));
    }

    /// Adds the cases that another program counted.
    pub fn counted(&mut self, count: Count) {
        self.count += count;
    }

    /// Adds the cases of a report that was written concurrently.
    pub fn join(&mut self, other: Self) {
        self.count += other.count;
        self.failures.extend(other.failures);
        self.unstable.extend(other.unstable);
    }

    /// Records a failure outside of any case.
    pub fn failed(&mut self, what: &str) {
        self.count.failed += 1;
        self.failures.push(what.to_owned());
        note(&format!("  FAIL  {what}"));
    }

    /// The count so far.
    pub fn count(&self) -> Count {
        self.count
    }

    /// The facts of cases that failed at first and passed when they were repeated.
    pub fn unstable(&self) -> &[String] {
        &self.unstable
    }

    /// The facts of failed cases.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// An error and its causes, indented; without a backtrace, regardless of the environment.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for (depth, cause) in error.chain().enumerate() {
        for line in cause.to_string().lines() {
            text += &format!("        {}{line}\n", if depth == 0 { "" } else { "because: " });
        }
    }
    text.trim_end().to_owned()
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    anyhow!("panicked: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_plain() {
        let mut count = Count { passed: 3, failed: 1, ..Count::default() };
        assert_eq!(count.to_string(), "3 passed, 1 failed");
        count.skipped = 2;
        assert_eq!(count.to_string(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(count.to_string().parse::<Count>().expect("it is a count"), count);
        assert!("3 passed, one failed".parse::<Count>().is_err());
    }

    #[test]
    fn a_panic_is_a_failed_case_and_the_next_one_runs() {
        let mut report = Report::new();
        assert!(!report.case("a case panics", || panic!("on purpose")));
        assert!(report.case("the next one runs", || Ok(())));
        assert_eq!(report.count(), Count { passed: 1, failed: 1, ..Count::default() });
    }
}
