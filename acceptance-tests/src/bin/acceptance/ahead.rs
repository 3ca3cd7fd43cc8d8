//! Builds the tools that suites need ahead of those suites, at the lowest priority: a suite leaves processors idle while it waits
//! for guests. A suite that needs a tool which is under construction waits for it, by the lock of the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use acceptance_tests::process;
use acceptance_tests::report::{chain, note};

const LIMIT: Duration = Duration::from_secs(90 * 60);

/// A build of all tools, as a process of its own.
#[derive(Debug)]
pub(crate) struct Ahead(JoinHandle<String>);

/// Starts `program arguments --prepare`.
pub(crate) fn start(program: &Path, arguments: &[String]) -> Ahead {
    let (program, arguments): (PathBuf, Vec<String>) = (program.to_owned(), arguments.to_vec());
    Ahead(std::thread::spawn(move || {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "setpriv", "--pdeathsig", "TERM"]);
        command.arg(program).args(arguments).arg("--prepare");
        match process::run_terminable(&mut command, LIMIT) {
            Ok(finished) if finished.status.success() => finished.stdout,
            Ok(finished) => finished.output(),
            Err(error) => chain(&error),
        }
    }))
}

impl Ahead {
    /// Prints what was built. A failure is none of the run: the suites that need the tool have tried it again, and have said so.
    pub(crate) fn finish(self) {
        if self.0.is_finished() {
            let text = self.0.join().unwrap_or_else(|_| "the thread has panicked".to_owned());
            note(&format!("\ntools built beside the suites:\n{}", text.trim_end()));
        }
    }
}
