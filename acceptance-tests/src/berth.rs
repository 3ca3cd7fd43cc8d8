//! The `berth` program as a user starts it. This file holds every command-line argument that the tests use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::Clock;
use crate::kubectl::{Kubectl, condition_of};
use crate::machine::Machine;
use crate::namespace::Namespace;
use crate::process::{self, Daemon, Finished};
use crate::wait;

/// The pools with a folder of their own on each host.
const POOLS: [&str; 2] = ["fast", "slow"];
/// The default address of `berth up`. The machine's loopback is its own.
const LISTEN: &str = "127.0.0.1:7443";
/// The file name of the administrator's kubeconfig that `berth up` writes to its state directory.
const KUBECONFIG: &str = "admin.kubeconfig";
/// The file name of a joined host's kubeconfig in its state directory.
const HOST_KUBECONFIG: &str = "host.kubeconfig";
/// The environment variable in which the provider looks for a kubeconfig.
pub const KUBECONFIG_VARIABLE: &str = "BERTH_KUBECONFIG";
/// The time limit until it is ready on a machine that is busy emulating.
const READY: Duration = Duration::from_secs(60);
/// Where `berth up` serves metrics, in the namespace of its machine.
pub const METRICS: &str = "127.0.0.1:7446";
/// Where `berth controllers` answers probes, in the namespace of its machine.
pub const HEALTH: &str = "127.0.0.1:7447";
/// Where they serve metrics then.
pub const CONTROLLERS_METRICS: &str = "127.0.0.1:7448";
/// The time limit until it ends on request.
const END: Duration = Duration::from_secs(30);

/// A pool in a Ceph cluster, as the administrator of a host names it.
#[derive(Debug, Clone)]
pub struct RbdPool {
    /// The pool, and Ceph's pool for it.
    pub pools: (&'static str, &'static str),
    /// `ceph.conf`.
    pub configuration: PathBuf,
    /// Ceph's user.
    pub user: &'static str,
}

/// The program, with its machine and its state directory.
#[derive(Debug)]
pub struct Berth {
    program: PathBuf,
    machine: Arc<Machine>,
    state: PathBuf,
    /// The state directory that it had first: folders of the host are beside it.
    first_state: PathBuf,
    log: PathBuf,
    public: String,
    listen: String,
    name: Option<String>,
    image_dir: Option<PathBuf>,
    disk_dir: Option<PathBuf>,
    /// A name, and the path of the device.
    block_device: Option<(String, PathBuf)>,
    image_range: Option<String>,
    rbd: Option<RbdPool>,
    clock: Option<Clock>,
    daemon: Option<Daemon>,
}

impl Berth {
    /// Starts nothing yet. `public` is the range of public addresses.
    pub fn new(program: &Path, machine: &Arc<Machine>, state: &Path, public: &str, log: &Path) -> Self {
        machine.namespace().keeps(state);
        Self {
            program: program.to_owned(),
            machine: Arc::clone(machine),
            state: state.to_owned(),
            first_state: state.to_owned(),
            log: log.to_owned(),
            public: public.to_owned(),
            listen: LISTEN.to_owned(),
            name: None,
            image_dir: None,
            disk_dir: None,
            block_device: None,
            image_range: None,
            rbd: None,
            clock: None,
            daemon: None,
        }
    }

    /// Sets the name of the host.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// Sets the address that `berth up` listens on.
    #[must_use]
    pub fn listening_on(self, address: &str) -> Self {
        Self { listen: address.to_owned(), ..self }
    }

    /// Sets a folder that images may come from.
    #[must_use]
    pub fn with_images_in(self, folder: &Path) -> Self {
        Self { image_dir: Some(folder.to_owned()), ..self }
    }

    /// Allows images from a folder of the host, from the next start on.
    pub fn allow_images_in(&mut self, folder: &Path) {
        self.image_dir = Some(folder.to_owned());
    }

    /// Allows disks to be made of the files of a folder, from the next start on.
    pub fn allow_disks_in(&mut self, folder: &Path) {
        self.disk_dir = Some(folder.to_owned());
    }

    /// Offers a block device under a name, from the next start on.
    pub fn offer_block_device(&mut self, name: &str, device: &Path) {
        self.block_device = Some((name.to_owned(), device.to_owned()));
    }

    /// Allows images from a range of addresses, from the next start on.
    pub fn allow_images_from(&mut self, range: &str) {
        self.image_range = Some(range.to_owned());
    }

    /// Names a pool in a Ceph cluster, from the next start on.
    pub fn offer_rbd(&mut self, pool: &RbdPool) {
        self.rbd = Some(pool.clone());
    }

    /// Gives it a clock of its own. QEMU does not get it, because berth starts QEMU in a separate environment.
    pub fn set_clock(&mut self, clock: &Clock) {
        self.clock = Some(clock.clone());
    }

    /// Replaces the program with another build, which runs from the next start on.
    pub fn set_program(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// Gives it another state directory, from the next start on.
    pub fn set_state(&mut self, state: &Path) {
        self.machine.namespace().keeps(state);
        state.clone_into(&mut self.state);
    }

    /// `berth up`, as a command.
    pub fn up_command(&self) -> Command {
        let mut command = self.command("up");
        command.args(["--listen", &self.listen, "--public-cidr", &self.public]);
        // A variable: older builds do not know the option.
        command.env("BERTH_METRICS", METRICS);
        command.env("BERTH_PCI_DEVICES", "gpu-missing=ffff:1f:1f.0");
        command.env("BERTH_USB_DEVICES", "key-missing=999-9");
        command.env("BERTH_VGPUS", "vgpu-missing=ffff:1f:1f.0/nvidia-558");
        self.on_this_host(&mut command);
        command
    }

    /// `berth host`, as a command.
    pub fn host_command(&self) -> Command {
        let mut command = self.command("host");
        self.on_this_host(&mut command);
        command
    }

    fn command(&self, name: &str) -> Command {
        let mut command = match &self.clock {
            Some(clock) => {
                // `env` runs inside the machine: the clock's files must be on the machine.
                let mut command = self.machine.command("env");
                command.args(clock.variables()).arg(&self.program);
                command
            }
            None => self.machine.command(&self.program),
        };
        command.arg(name);
        command
    }

    fn on_this_host(&self, command: &mut Command) {
        command.env("PATH", self.search_path()).arg("--state-dir").arg(&self.state);
        // A variable: older builds do not know the option.
        let (media, data) = (self.shared("media"), self.shared("data"));
        command.env("BERTH_SHARES", format!("media={}:ro,data={}", media.display(), data.display()));
        command.env("BERTH_EMULATE", "aarch64");
        command.env("BERTH_BACKUP_FOLDERS", format!("nas={}", self.backups().display()));
        let folders = POOLS.map(|pool| format!("{pool}={}", self.pool_folder(pool).display()));
        command.env("BERTH_POOL_FOLDERS", folders.join(","));
        if let Some(pool) = &self.rbd {
            let (name, in_ceph) = pool.pools;
            // Variables: older builds do not know the options.
            command.env("BERTH_RBD_POOLS", format!("{name}={in_ceph}"));
            command.env("BERTH_CEPH_CONF", &pool.configuration).env("BERTH_CEPH_USER", pool.user);
        }
        if let Some(name) = &self.name {
            command.args(["--host-name", name]);
        }
        if let Some(folder) = &self.image_dir {
            command.arg("--image-dir").arg(folder);
        }
        if let Some(folder) = &self.disk_dir {
            command.arg("--disk-dir").arg(folder);
        }
        if let Some((name, device)) = &self.block_device {
            command.arg("--block-device").arg(format!("{name}={}", device.display()));
        }
        if let Some(range) = &self.image_range {
            command.args(["--image-allow", range]);
        }
    }

    /// A folder at the front of berth's PATH, in which a test may put a program of its own.
    pub fn programs(&self) -> PathBuf {
        self.first_state.with_file_name("programs")
    }

    /// A path in the folder beside its state directory in which it shares `media`, read-only, and `data` with VMs.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.first_state.with_file_name("shared").join(name)
    }

    /// The folder beside its state directory that it offers for backups, as `nas`.
    pub fn backups(&self) -> PathBuf {
        self.first_state.with_file_name("backups")
    }

    /// The folder beside its state directory for the disks of a pool, `fast` or `slow`.
    pub fn pool_folder(&self, pool: &str) -> PathBuf {
        let mut name = self.first_state.file_name().unwrap_or_default().to_owned();
        name.push(format!("-pool-{pool}"));
        self.first_state.with_file_name(name)
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
        let command = self.up_command();
        self.spawn("berth up", command)
    }

    /// Starts `berth controllers` against another control plane; probes are answered at `health`.
    pub fn spawn_controllers(&mut self, kubeconfig: &Path, health: Option<&str>) -> Result<()> {
        let mut command = self.command("controllers");
        if let Some(address) = health {
            command.args(["--health", address, "--metrics", CONTROLLERS_METRICS]);
        }
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(["--public-cidr", &self.public]);
        self.spawn("berth controllers", command)
    }

    /// Starts `berth host`, the agent, with the credentials of a kubeconfig.
    pub fn spawn_host(&mut self, name: &str, kubeconfig: &Path) -> Result<()> {
        let mut command = self.host_command();
        command.args(["--name", name, "--kubeconfig"]).arg(kubeconfig);
        self.spawn("berth host", command)
    }

    /// Starts `berth host` on a machine that joins, or with the credentials from an earlier join.
    pub fn spawn_joined(&mut self, join: Option<&str>, labels: &[&str]) -> Result<()> {
        let mut command = self.host_command();
        if let Some(join) = join {
            // Every user of the machine could read it on the command line.
            command.env("BERTH_JOIN", join);
        }
        for label in labels {
            command.args(["--label", label]);
        }
        self.spawn("berth host", command)
    }

    fn spawn(&mut self, name: &str, command: Command) -> Result<()> {
        for share in ["media", "data"] {
            std::fs::create_dir_all(self.shared(share))?;
        }
        std::fs::create_dir_all(self.backups())?;
        for folder in POOLS.map(|pool| self.pool_folder(pool)) {
            // The marker of a host whose state directory is gone is that of another host.
            if folder.exists() && !self.state.exists() {
                std::fs::remove_dir_all(&folder)?;
            }
            std::fs::create_dir_all(&folder)?;
        }
        self.daemon = Some(self.machine.spawn(name, command, &self.log)?);
        Ok(())
    }

    /// Waits until the control plane serves and the host is ready.
    pub fn wait_ready(&mut self, kubectl: &Kubectl) -> Result<()> {
        wait::until("berth to be ready", READY, || {
            self.must_run()?;
            kubectl.ok(&["get", "--raw", "/readyz"])?;
            host_ready(kubectl)
        })
    }

    /// Fails with its log if the program has ended.
    pub fn must_run(&mut self) -> Result<()> {
        self.daemon.as_mut().context("berth was not started")?.must_run()
    }

    /// Waits for the program to end by itself. Returns its exit code and its output.
    pub fn ended(&mut self, limit: Duration) -> Result<(Option<i32>, String)> {
        let daemon = self.daemon.take().context("berth is not running")?;
        let status = daemon.ended(limit)?;
        Ok((status.code(), std::fs::read_to_string(&self.log).unwrap_or_default()))
    }

    /// Kills the program, as in a crash.
    pub fn crash(&mut self) -> Result<()> {
        self.daemon.take().context("berth is not running")?.crash()
    }

    /// Requests the program to end and waits; it must end with success.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.daemon.take().context("berth is not running")?.terminate(END)?;
        anyhow::ensure!(status.success(), "berth ended on SIGTERM with {status}");
        Ok(())
    }

    /// Whether it has been started and not stopped since.
    pub fn is_started(&self) -> bool {
        self.daemon.is_some()
    }

    /// The process id.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join(KUBECONFIG)
    }

    /// The kubeconfig of a host that joined.
    pub fn host_kubeconfig(&self) -> PathBuf {
        self.state.join(HOST_KUBECONFIG)
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The path of the log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The machine of the program.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Runs `berth undelete DISK`.
    pub fn undelete(&self, disk: &str) -> Result<Finished> {
        let mut command = self.command("undelete");
        command.arg(disk).arg("--state-dir").arg(&self.state);
        process::run(&mut command, END)
    }

    /// Runs a command that reads the state directory: `top`, `doctor`.
    pub fn on_state(&self, name: &str, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.command(name);
        command.env("PATH", self.search_path()).arg("--state-dir").arg(&self.state).args(arguments);
        process::run(&mut command, END)
    }

    /// Runs the command with which systemd has the guests stopped before the machine is shut down.
    pub fn stop_guests(&self) -> Result<Finished> {
        let mut command = self.command("service");
        command.args(["stop-guests", "--timeout", "150s", "--state-dir"]).arg(&self.state);
        process::run(&mut command, Duration::from_secs(180))
    }

    /// Runs `berth reset` or `berth nmi` of a VM.
    pub fn press(&self, button: &str, vm: &str) -> Result<Finished> {
        let mut command = self.command(button);
        command.args([vm, "--state-dir"]).arg(&self.state);
        process::run(&mut command, END)
    }

    /// Runs `berth start`, `stop`, `restart`, `pause` or `suspend` of VMs.
    pub fn power(&self, verb: &str, vms: &[&str]) -> Result<Finished> {
        let mut command = self.command(verb);
        command.args(vms).args(["--timeout", "150s", "--state-dir"]).arg(&self.state);
        process::run(&mut command, Duration::from_secs(180))
    }

    /// The output of `berth crds`.
    pub fn crds(&self) -> Result<String> {
        process::run(Command::new(&self.program).arg("crds"), END)?.success()
    }

    /// The output of `berth crds` with a Deployment of the controllers.
    pub fn deployment(&self) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["crds", "--controllers", "registry.example/berth:test", "--replicas", "2"]);
        command.args(["--env", "BERTH_API_QPS=500", "--node-selector", "kubernetes.io/os=linux"]);
        command.args(["--toleration", "node-role.kubernetes.io/control-plane:NoSchedule"]);
        command.args(["--request", "cpu=100m,memory=256Mi", "--limit", "memory=1Gi"]);
        command.args(["--image-pull-secret", "registry", "--", "--placement", "balance"]);
        process::run(&mut command, END)?.success()
    }
}

/// `berth` as an administrator's tool: `host drain`, `token create` and the like.
#[derive(Debug, Clone)]
pub struct Administrator {
    program: PathBuf,
    namespace: Arc<Namespace>,
    kubeconfig: PathBuf,
}

impl Administrator {
    /// An administrator with this kubeconfig in some network namespace.
    pub fn new(program: &Path, namespace: &Arc<Namespace>, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            namespace: Arc::clone(namespace),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Runs `berth ARGUMENTS…` with that kubeconfig.
    pub fn run(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.namespace.command(&self.program);
        command.args(arguments).env(KUBECONFIG_VARIABLE, &self.kubeconfig);
        // A drain waits for guests to shut down.
        process::run(&mut command, Duration::from_secs(180))
    }

    /// The join token for a host.
    pub fn token(&self, host: &str) -> Result<String> {
        self.token_for(host, &[])
    }

    /// The join token for a host, with further arguments.
    pub fn token_for(&self, host: &str, arguments: &[&str]) -> Result<String> {
        let printed = self.run(&[&["token", "create", host][..], arguments].concat())?.success()?;
        let lines: Vec<&str> = printed.lines().collect();
        anyhow::ensure!(lines.len() == 1, "not one line: {printed:?}");
        Ok(lines[0].to_owned())
    }

    /// Revokes the credentials of a joined host.
    pub fn revoke(&self, host: &str) -> Result<()> {
        self.run(&["token", "revoke", host])?.success().map(drop)
    }

    /// `berth host WHAT HOST`
    pub fn host(&self, what: &str, host: &str) -> Result<Finished> {
        self.run(&["host", what, host])
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
