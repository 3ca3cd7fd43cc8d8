//! Programs of the host that berth runs: by absolute path, never through a shell, with a time limit and bounded error
//! output.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::SystemError;

/// Enough for tens of thousands of rules.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much of an output is read at once.
const CHUNK: usize = 64 << 10;
/// How much is read of the errors of a program whose output is not held.
const MOST_ERRORS: u64 = 64 << 10;
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
        let mut child = self.spawn(args, Stdio::piped())?;
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
            Err(_) => Err(self.too_slow(limit)),
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Ok(Ok(output)) => Ok(Output {
                ok: output.status.success(),
                stderr: shown(output.status, &output.stderr),
                stdout: output.stdout,
            }),
        }
    }

    /// Runs the program until it ends, and gives its output to `take` as it arrives: none is held, and that of the result is empty.
    pub(super) async fn stream_within(
        &self,
        args: &[&str],
        input: Vec<u8>,
        limit: Duration,
        mut take: impl FnMut(&[u8]) + Send,
    ) -> Result<Output, SystemError> {
        let mut child = self.spawn(args, Stdio::piped())?;
        let mut stdin = child.stdin.take().expect("was asked for");
        let mut stdout = child.stdout.take().expect("was asked for");
        let mut stderr = child.stderr.take().expect("was asked for");
        let read = async {
            let mut bytes = vec![0; CHUNK];
            loop {
                match stdout.read(&mut bytes).await? {
                    0 => return Ok::<(), io::Error>(()),
                    length => take(&bytes[..length]),
                }
            }
        };
        let listen = async {
            let mut said = Vec::new();
            (&mut stderr).take(MOST_ERRORS).read_to_end(&mut said).await?;
            // A program whose errors are not read would wait for good.
            tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
            Ok::<_, io::Error>(said)
        };
        let feed = async move {
            // As above.
            let _ = stdin.write_all(&input).await;
            drop(stdin);
            Ok::<(), io::Error>(())
        };
        let talk = async {
            let ((), (), said) = tokio::try_join!(feed, read, listen)?;
            Ok::<_, io::Error>((child.wait().await?, said))
        };
        match tokio::time::timeout(limit, talk).await {
            Err(_) => Err(self.too_slow(limit)),
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Ok(Ok((status, said))) => {
                Ok(Output { ok: status.success(), stdout: Vec::new(), stderr: shown(status, &said) })
            }
        }
    }

    fn spawn(&self, args: &[&str], input: Stdio) -> Result<Child, SystemError> {
        let spawned = Command::new(self.find()?)
            .args(args)
            .env("LC_ALL", "C")
            // With these, `wireguard-go` keeps the output open after its start, or does not go into the background.
            .env_remove("LOG_LEVEL")
            .env_remove("WG_PROCESS_FOREGROUND")
            .current_dir("/")
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        spawned.map_err(|error| self.failed(error.to_string()))
    }

    fn too_slow(&self, limit: Duration) -> SystemError {
        self.failed(format!("it has not ended within {limit:?}"))
    }

    pub(super) fn failed(&self, detail: impl Into<String>) -> SystemError {
        SystemError::Program { program: self.name, detail: detail.into() }
    }
}

/// Returns the errors of a program, for people, or how it failed without any.
fn shown(status: ExitStatus, stderr: &[u8]) -> String {
    let printed: String = String::from_utf8_lossy(stderr).trim().chars().take(2000).collect();
    if status.success() || !printed.is_empty() {
        return printed;
    }
    format!("it ended with {status} and without a message")
}

#[cfg(test)]
mod tests {
    use super::super::network::{DNSMASQ, NFT};
    use super::*;

    const SHELL: Program = Program { name: "sh", advice: "" };

    #[tokio::test]
    async fn an_output_that_is_not_held_arrives_whole_beside_many_errors() {
        let script = "head -c 300000 /dev/zero >&2; head -c 20000000 /dev/zero; echo end; exit 3";
        let (mut length, mut tail, mut greatest) = (0, Vec::new(), 0);
        let take = |bytes: &[u8]| {
            (length, greatest) = (length + bytes.len(), greatest.max(bytes.len()));
            tail.extend_from_slice(bytes);
            tail.drain(..tail.len().saturating_sub(4));
        };
        let done = SHELL.stream_within(&["-c", script], Vec::new(), TIMEOUT, take).await.expect("it ends");
        assert_eq!((done.ok, done.stdout.len(), length), (false, 0, 20_000_004));
        assert_eq!(tail, b"end\n");
        assert!(greatest <= CHUNK, "{greatest}");
        assert!(done.stderr.len() <= 2000);
    }

    #[tokio::test]
    async fn a_program_whose_output_is_not_held_gets_its_input_to_the_end() {
        let (input, mut output) = (vec![b'k'; 200_000], Vec::new());
        let take = |bytes: &[u8]| output.extend_from_slice(bytes);
        let done = SHELL.stream_within(&["-c", "cat"], input.clone(), TIMEOUT, take).await.expect("it ends");
        assert!(done.ok && output == input, "{} bytes", output.len());
        // One that reads none of it.
        let done = SHELL.stream_within(&["-c", "exit 3"], input, TIMEOUT, |_| {}).await.expect("it ends");
        assert!(!done.ok, "{done:?}");
    }

    #[tokio::test]
    async fn a_program_whose_output_does_not_end_is_ended() {
        let limit = Duration::from_millis(200);
        let done = SHELL.stream_within(&["-c", "exec cat /dev/zero"], Vec::new(), limit, |_| {}).await;
        assert!(matches!(done, Err(SystemError::Program { program: "sh", .. })), "{done:?}");
    }

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
