//! The `berth` program as a user starts it. Every word of its command line that the tests use is in this file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::kubectl::{Kubectl, condition_of};
use crate::namespace::Namespace;
use crate::process::{self, Daemon, Finished};
use crate::wait;

/// Where `berth up` listens: it has the namespace's loopback to itself.
const LISTEN: &str = "127.0.0.1:7443";
/// Private addresses of guests.
const PRIVATE: &str = "10.77.0.0/16";
/// What `berth up` writes for its administrator, in its state directory.
const KUBECONFIG: &str = "admin.kubeconfig";
/// The environment variable by which the provider finds a kubeconfig.
pub const KUBECONFIG_VARIABLE: &str = "BERTH_KUBECONFIG";
/// How long it may take to be ready on a machine that is busy emulating.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end when asked.
const END: Duration = Duration::from_secs(30);

/// The program, and the host (namespace and state directory) it runs on.
#[derive(Debug)]
pub struct Berth {
    program: PathBuf,
    namespace: Arc<Namespace>,
    state: PathBuf,
    log: PathBuf,
    public: String,
    daemon: Option<Daemon>,
}

impl Berth {
    /// Nothing is started yet. `public` is the range public addresses come from.
    pub fn new(program: &Path, namespace: &Arc<Namespace>, state: &Path, public: &str, log: &Path) -> Self {
        Self {
            program: program.to_owned(),
            namespace: Arc::clone(namespace),
            state: state.to_owned(),
            log: log.to_owned(),
            public: public.to_owned(),
            daemon: None,
        }
    }

    /// `berth up`, as a command.
    pub fn up_command(&self) -> Command {
        let mut command = self.namespace.command_on_machine(&self.program);
        command
            .args([
                "up",
                "--listen",
                LISTEN,
                "--private-cidr",
                PRIVATE,
                "--public-cidr",
                &self.public,
                "--state-dir",
            ])
            .arg(&self.state);
        command.env("PATH", self.search_path());
        command
    }

    /// A folder that comes first in berth's PATH: a test may put a program of its own there.
    pub fn programs(&self) -> PathBuf {
        self.state.with_file_name("programs")
    }

    fn search_path(&self) -> std::ffi::OsString {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let mut path = self.programs().into_os_string();
        path.push(":");
        path.push(rest);
        path
    }

    /// Starts `berth up` and waits until its host is ready.
    pub fn start(&mut self, kubectl: &Kubectl) -> Result<()> {
        self.spawn_up()?;
        self.wait_ready(kubectl)
    }

    /// Starts `berth up` without waiting.
    pub fn spawn_up(&mut self) -> Result<()> {
        let mut command = self.up_command();
        self.daemon = Some(Daemon::spawn("berth up", &mut command, &self.log)?);
        Ok(())
    }

    /// Starts `berth controllers` on another control plane.
    pub fn spawn_controllers(&mut self, kubeconfig: &Path) -> Result<()> {
        let mut command = self.namespace.command_on_machine(&self.program);
        command.arg("controllers").arg("--kubeconfig").arg(kubeconfig);
        command.args(["--private-cidr", PRIVATE, "--public-cidr", &self.public]);
        self.daemon = Some(Daemon::spawn("berth controllers", &mut command, &self.log)?);
        Ok(())
    }

    /// Starts `berth host`, the agent, on another control plane.
    pub fn spawn_host(&mut self, name: &str, kubeconfig: &Path) -> Result<()> {
        let mut command = self.namespace.command_on_machine(&self.program);
        command.args(["host", "--name", name, "--kubeconfig"]).arg(kubeconfig);
        command.env("PATH", self.search_path());
        command.arg("--state-dir").arg(&self.state);
        self.daemon = Some(Daemon::spawn("berth host", &mut command, &self.log)?);
        Ok(())
    }

    /// Waits until its control plane serves and its host is ready.
    pub fn wait_ready(&mut self, kubectl: &Kubectl) -> Result<()> {
        wait::until("berth to be ready", READY, || {
            self.must_run()?;
            kubectl.ok(&["get", "--raw", "/readyz"])?;
            host_ready(kubectl)
        })
    }

    /// Fails, with its log, when it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        self.daemon.as_mut().context("berth was not started")?.must_run()
    }

    /// Kills it as a crash would.
    pub fn crash(&mut self) -> Result<()> {
        self.daemon.take().context("berth is not running")?.crash()
    }

    /// Asks it to end and waits; it must end with success.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.daemon.take().context("berth is not running")?.terminate(END)?;
        anyhow::ensure!(status.success(), "berth ended on SIGTERM with {status}");
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join(KUBECONFIG)
    }

    /// Its state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Its log's path.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Runs `berth undelete DISK`.
    pub fn undelete(&self, disk: &str) -> Result<Finished> {
        let mut command = self.namespace.command_on_machine(&self.program);
        command.args(["undelete", disk, "--state-dir"]).arg(&self.state);
        process::run(&mut command, END)
    }

    /// What `berth crds` prints.
    pub fn crds(&self) -> Result<String> {
        process::run(Command::new(&self.program).arg("crds"), END)?.success()
    }
}

/// Fails until some host is ready.
pub fn host_ready(kubectl: &Kubectl) -> Result<()> {
    let hosts: serde_json::Value =
        serde_json::from_str(&kubectl.ok(&["get", "hosts.berth.dev", "-o", "json"])?)?;
    let ready = hosts["items"].as_array().is_some_and(|hosts| {
        hosts.iter().any(|host| condition_of(host, "Ready").is_some_and(|ready| ready["status"] == "True"))
    });
    anyhow::ensure!(ready, "no host is ready: {}", hosts["items"]);
    Ok(())
}

/// The QEMU processes of a namespace.
pub fn qemu_processes(namespace: &Namespace) -> Result<Vec<i32>> {
    Ok(namespace
        .processes()?
        .into_iter()
        .filter(|(_, line)| line.split_whitespace().next().is_some_and(|word| word.contains("qemu-system")))
        .map(|(pid, _)| pid)
        .collect())
}
