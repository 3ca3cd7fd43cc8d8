//! A machine under measurement: a network namespace and a folder with one `berth up`, and a client of its API.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::api::{self, Access, Api};
use crate::berth::Berth;
use crate::machine::Machine;
use crate::namespace::Namespace;
use crate::process::{self, Daemon};
use crate::scratch::Scratch;

/// The range of public addresses; nothing here requests one.
const PUBLIC: &str = "198.51.100.0/28";
/// The interval between two checks of a starting berth.
const GLANCE: Duration = Duration::from_millis(1);
/// The folder that hosts take images from, in the site's folder.
const IMAGES: &str = "images";
/// The time after which a start counts as failed.
const START: Duration = Duration::from_secs(60);

/// The times from the start of the process.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Until the API responded to `/readyz`.
    pub api: Duration,
    /// Until the machine's Host was ready.
    pub host: Duration,
}

/// The machine.
#[derive(Debug)]
pub struct Site {
    // Fields drop in this order: first the process, then its namespace, then its files.
    daemon: Option<Daemon>,
    namespace: Arc<Namespace>,
    berth: Berth,
    gate: PathBuf,
    log: PathBuf,
    folder: Scratch,
}

impl Site {
    /// Starts nothing yet.
    pub fn new(program: &Path, log: &Path) -> Result<Self> {
        let folder = Scratch::new()?;
        let namespace = Namespace::new()?;
        let gate = folder.path().join("gate");
        process::run(Command::new("mkfifo").arg(&gate), Duration::from_secs(10))?.success()?;
        // The preparation of the namespace must not count as berth's start: a message through the gate starts berth.
        let script = folder.path().join("start");
        let text =
            format!("#!/bin/sh\nread -r _ <'{}'\nexec '{}' \"$@\"\n", gate.display(), program.display());
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let berth =
            Berth::new(&script, &Machine::plain(&namespace), &folder.path().join("state"), PUBLIC, log)
                .with_images_in(&folder.path().join(IMAGES));
        fs::create_dir(folder.path().join(IMAGES))?;
        Ok(Self { daemon: None, namespace, berth, gate, log: log.to_owned(), folder })
    }

    /// Starts `berth up` with additional options and waits until its host is ready.
    pub fn start(&mut self, options: &[&str]) -> Result<Start> {
        let (began, api) = self.launch(options)?;
        let ready = self.api()?.watch(api::HOST)?.until(|host| api::is_true(host, "Ready"))?.seen;
        Ok(Start { api, host: ready - began })
    }

    /// Starts `berth up` without an agent: control plane and controllers.
    pub fn start_control_plane(&mut self) -> Result<()> {
        self.launch(&["--no-agent"]).map(drop)
    }

    /// Starts `berth up` and waits until its API responds.
    fn launch(&mut self, options: &[&str]) -> Result<(Instant, Duration)> {
        let mut command = self.berth.up_command();
        // As by default: the suites allow it.
        command.env_remove("BERTH_EMULATE");
        command.args(options);
        let mut daemon = Daemon::spawn("berth up", &mut command, &self.log)?;
        // Opening it for writing blocks until the script reads.
        let mut gate = fs::File::options().write(true).open(&self.gate)?;
        let began = Instant::now();
        std::io::Write::write_all(&mut gate, b"go\n")?;
        drop(gate);
        let kubeconfig = self.kubeconfig();
        while !kubeconfig.exists() {
            daemon.must_run()?;
            anyhow::ensure!(began.elapsed() < START, "berth up wrote no kubeconfig\n{}", daemon.log_tail());
            std::thread::sleep(GLANCE);
        }
        let access = self.access()?;
        // Until it listens, and until it is ready.
        while let Err(error) = access.connect().and_then(|mut api| api.get("/readyz")) {
            if began.elapsed() > START {
                return Err(error.context("the API does not answer"));
            }
            daemon.must_run()?;
            std::thread::sleep(GLANCE);
        }
        let answered = began.elapsed();
        daemon.must_run()?;
        self.daemon = Some(daemon);
        Ok((began, answered))
    }

    /// Requests berth to end and waits.
    pub fn stop(&mut self) -> Result<()> {
        let status =
            self.daemon.take().context("berth is not running")?.terminate(Duration::from_secs(30))?;
        if !status.success() {
            bail!("berth ended on SIGTERM with {status}");
        }
        Ok(())
    }

    /// Removes all of berth's data, so that the next start is a first one.
    pub fn forget(&self) -> Result<()> {
        fs::remove_dir_all(self.berth.state()).context("removing the state directory")
    }

    /// The address and credentials of the API.
    pub fn access(&self) -> Result<Access> {
        Access::read(&self.kubeconfig(), &self.namespace)
    }

    /// The folder that hosts take images from.
    pub fn images(&self) -> PathBuf {
        self.folder.path().join(IMAGES)
    }

    /// The port of the API.
    pub fn port(&self) -> Result<u16> {
        self.access()?.port()
    }

    /// A connection to the API.
    pub fn api(&self) -> Result<Api> {
        self.access()?.connect()
    }

    /// The process id of berth.
    pub fn pid(&self) -> Result<i32> {
        let pid = self.daemon.as_ref().context("berth is not running")?.pid();
        Ok(i32::try_from(pid)?)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.berth.kubeconfig()
    }

    /// The network namespace.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// A folder for a measurement's own files, removed with the site.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        self.berth.state()
    }

    /// The folder of a VM's machine.
    pub fn instance(&self, vm: &str) -> Result<PathBuf> {
        let object = self.api()?.read(&format!("{}/{vm}", api::VM.path()))?;
        let id = object["status"]["instanceID"].as_str().context("the VM has no machine yet")?;
        Ok(self.state().join("instances").join(id))
    }

    /// Waits until a VM has a machine folder and returns it.
    pub fn instance_once(&self, vm: &str) -> Result<PathBuf> {
        crate::wait::until("the VM to have a machine", START, || self.instance(vm))
    }

    /// The end of the log.
    pub fn log_tail(&self) -> String {
        self.daemon.as_ref().map(Daemon::log_tail).unwrap_or_default()
    }
}
