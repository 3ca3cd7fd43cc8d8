//! Programs of the host that berth runs: by absolute path, never through a shell, with a time limit and bounded error
//! output.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::SystemError;

/// Enough for tens of thousands of rules.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The usual directories of system programs, even if `PATH` is a user's.
const FOLDERS: [&str; 8] = [
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    // Programs that others run.
    "/usr/libexec",
    "/usr/lib/qemu",
];

/// A program, and advice if it is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) advice: &'static str,
}

#[derive(Debug)]
pub(super) struct Output {
    pub(super) ok: bool,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

impl Program {
    pub(super) fn find(&self) -> Result<PathBuf, SystemError> {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&own).chain(FOLDERS.iter().map(PathBuf::from));
        folders
            .map(|folder| folder.join(self.name))
            .find(|path| path.is_absolute() && path.is_file())
            .ok_or(SystemError::ProgramMissing { program: self.name, advice: self.advice })
    }

    /// Runs the program until it ends. A non-zero exit is not an error here: the output reports it.
    pub(super) async fn run(&self, args: &[&str], input: Vec<u8>) -> Result<Output, SystemError> {
        self.run_within(args, input, TIMEOUT).await
    }

    /// Does the same with another time limit.
    pub(super) async fn run_within(
        &self,
        args: &[&str],
        input: Vec<u8>,
        limit: Duration,
    ) -> Result<Output, SystemError> {
        let mut child = Command::new(self.find()?)
            .args(args)
            .env("LC_ALL", "C")
            // With these, `wireguard-go` keeps the output open after its start, or does not go into the background.
            .env_remove("LOG_LEVEL")
            .env_remove("WG_PROCESS_FOREGROUND")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| self.failed(e.to_string()))?;
        let mut stdin = child.stdin.take().expect("was asked for");
        let talk = async {
            // A program that ends without reading its input reports the reason on its standard error.
            let feed = async move {
                let _ = stdin.write_all(&input).await;
                drop(stdin);
            };
            tokio::join!(feed, child.wait_with_output()).1
        };
        match tokio::time::timeout(limit, talk).await {
            Err(_) => Err(self.failed(format!("it has not ended within {limit:?}"))),
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Ok(Ok(output)) => {
                let ok = output.status.success();
                let printed: String =
                    String::from_utf8_lossy(&output.stderr).trim().chars().take(2000).collect();
                let stderr = match ok || !printed.is_empty() {
                    true => printed,
                    false => format!("it ended with {} and without a message", output.status),
                };
                Ok(Output { ok, stdout: output.stdout, stderr })
            }
        }
    }

    pub(super) fn failed(&self, detail: impl Into<String>) -> SystemError {
        SystemError::Program { program: self.name, detail: detail.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::{DNSMASQ, NFT};
    use super::*;

    #[tokio::test]
    async fn a_program_that_is_not_installed_is_named_with_the_command_that_installs_it() {
        for (program, package) in [(DNSMASQ, "dnsmasq-base"), (NFT, "nftables")] {
            let absent = Program { name: "berth-has-no-such-program", ..program };
            let error = absent.run(&[], Vec::new()).await.expect_err("it is absent").to_string();
            assert!(error.starts_with("berth-has-no-such-program is not installed: "), "{error}");
            assert!(error.contains(&format!("apt install {package}")), "{error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_fails_says_why_or_how_it_ended() {
        let shell = Program { name: "sh", advice: "" };
        for (script, expected) in [
            ("echo in use >&2; exit 2", "in use"),
            ("exit 2", "it ended with exit status: 2 and without a message"),
            ("kill -KILL $$", "it ended with signal: 9 (SIGKILL) and without a message"),
        ] {
            let output = shell.run(&["-c", script], Vec::new()).await.expect("it runs");
            assert_eq!((output.ok, output.stderr.as_str()), (false, expected), "{script}");
        }
        let quiet = shell.run(&["-c", "true"], Vec::new()).await.expect("it runs");
        assert!(quiet.ok && quiet.stderr.is_empty(), "{quiet:?}");
    }
}
