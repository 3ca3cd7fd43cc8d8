//! What a person reads while the tests or the demo run, and the count at the end.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::undo;

/// Prints a line. A closed terminal is no reason to stop cleaning up, so errors are ignored.
pub fn note(text: &str) {
    // Our own unit tests fail cases on purpose: nobody should read of it.
    if cfg!(test) {
        return;
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// A duration as people say it.
pub fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 10.0 {
        format!("{seconds:.2} s")
    } else if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {:02} s", duration.as_secs() / 60, duration.as_secs() % 60)
    }
}

/// Test cases counted over all lanes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Cases that held.
    pub passed: usize,
    /// Cases that did not.
    pub failed: usize,
    /// Lanes or cases this machine cannot run.
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

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// One lane's progress: its cases are told as they end.
#[derive(Debug)]
pub struct Report {
    count: Count,
    failures: Vec<String>,
}

impl Report {
    /// An empty one.
    pub fn new() -> Self {
        Self { count: Count::default(), failures: Vec::new() }
    }

    /// Runs one test case, named by the fact it holds. True when it held.
    pub fn case(&mut self, fact: &str, body: impl FnOnce() -> Result<()>) -> bool {
        self.step(fact, body).is_ok()
    }

    /// A case whose result the following ones need: their lane ends when it fails.
    pub fn step<T>(&mut self, fact: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
        undo::halt_if_interrupted();
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        // What fails because it was taken down is no finding.
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

    /// Names a case that cannot run here, with the reason.
    pub fn skip(&mut self, fact: &str, reason: &str) {
        self.count.skipped += 1;
        note(&format!("  skip  {fact}: {reason}"));
    }

    /// Takes over cases that another program counted.
    pub fn counted(&mut self, count: Count) {
        self.count += count;
    }

    /// A failure outside of any case.
    pub fn failed(&mut self, what: &str) {
        self.count.failed += 1;
        self.failures.push(what.to_owned());
        note(&format!("  FAIL  {what}"));
    }

    /// The count so far.
    pub fn count(&self) -> Count {
        self.count
    }

    /// The facts that did not hold.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// An error and its causes, indented; no backtrace, whatever the environment says.
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
        let mut count = Count { passed: 3, failed: 1, skipped: 0 };
        assert_eq!(count.to_string(), "3 passed, 1 failed");
        count.skipped = 2;
        assert_eq!(count.to_string(), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn a_panic_is_a_failed_case_and_the_next_one_runs() {
        let mut report = Report::new();
        assert!(!report.case("a case panics", || panic!("on purpose")));
        assert!(report.case("the next one runs", || Ok(())));
        assert_eq!(report.count(), Count { passed: 1, failed: 1, skipped: 0 });
    }
}
