//! A simulated machine: a network namespace with the processes in it.
//!
//! Every process that a test starts for a host runs in one, so that bridges, taps, nftables and listening ports can neither
//! conflict with those of this machine nor outlive the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::undo::Undo;
use crate::{cgroups, process};

/// The folder in which iproute2 keeps named namespaces.
const FOLDER: &str = "/run/netns";
/// The prefix of our namespaces' names, followed by our pid; also of our temporary folders.
pub const PREFIX: &str = "berth-test-";
const LIMIT: Duration = Duration::from_secs(20);
/// The time in which a machine that is being started enters its control group, on a busy machine.
const ABOUT_TO_ENTER: Duration = Duration::from_secs(2);

/// The state directories of the berths in each namespace of this process: their QEMUs have namespaces of their own.
static STATES: Mutex<BTreeMap<String, BTreeSet<PathBuf>>> = Mutex::new(BTreeMap::new());

/// A network namespace; dropping it kills all processes in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _undo: Undo,
}

impl Namespace {
    /// Creates a namespace with a loopback interface.
    pub fn new() -> Result<Arc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let doomed = name.clone();
        // Registered before the creation: a signal may arrive while `ip` runs.
        let undo = Undo::later(move || {
            if let Err(error) = dismantle(&doomed) {
                crate::report::note(&format!("removing network namespace {doomed}: {error:#}"));
            }
        });
        ip(&["netns", "add", &name])?;
        let namespace = Arc::new(Self { name, _undo: undo });
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name, for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside. Only the network differs: mounts and cgroups are the machine's.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", path_of(&self.name).display())).arg("--").arg(program);
        command
    }

    /// Runs iproute2 inside.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments);
        ip(&all)
    }

    /// Runs `body` in a thread whose sockets are inside.
    pub fn inside<T: Send + 'static>(&self, body: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let path = path_of(&self.name);
        std::thread::spawn(move || {
            enter(&path)?;
            body()
        })
        .join()
        .map_err(|_| anyhow!("a thread inside the namespace panicked"))?
    }

    /// Registers a berth's state directory, so that the processes it starts count as inside.
    pub fn keeps(&self, state: &Path) {
        let mut states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
        states.entry(self.name.clone()).or_default().insert(state.to_owned());
    }

    /// The processes inside, and the QEMUs of the berths inside: pid and command line.
    pub fn processes(&self) -> Result<Vec<(i32, String)>> {
        processes_in(&self.name)
    }

    /// Links this namespace to another by a virtual cable: `here` and `there` are addresses with prefix length.
    pub fn connect(&self, here: &str, other: &Self, there: &str) -> Result<()> {
        self.ip(&["link", "add", "uplink", "type", "veth", "peer", "name", "uplink", "netns", &other.name])?;
        for (namespace, address) in [(self, here), (other, there)] {
            namespace.ip(&["addr", "add", address, "dev", "uplink"])?;
            namespace.ip(&["link", "set", "uplink", "up"])?;
        }
        Ok(())
    }
}

/// Moves the calling thread into a namespace.
pub fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).context("entering a network namespace")?;
    Ok(())
}

/// Removes the leftovers of test runs that were killed.
pub fn sweep() -> Result<()> {
    for name in orphans(Path::new(FOLDER)) {
        dismantle(&name)?;
    }
    // The owners of these VMs can no longer be determined. A group that is empty for a moment only is one that a machine of another
    // suite is about to enter.
    let idle = cgroups::idle();
    if !idle.is_empty() {
        std::thread::sleep(ABOUT_TO_ENTER);
        cgroups::remove(&cgroups::idle().intersection(&idle).cloned().collect());
    }
    let temporary = std::env::temp_dir();
    for name in orphans(&temporary) {
        fs::remove_dir_all(temporary.join(&name)).with_context(|| format!("removing {name}"))?;
    }
    Ok(())
}

/// Entries of a folder under a name of ours with a process that is gone.
fn orphans(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| {
            let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists())
        })
        .collect()
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn ip(arguments: &[&str]) -> Result<String> {
    process::run(Command::new("ip").args(arguments), LIMIT)?.success()
}

fn processes_in(name: &str) -> Result<Vec<(i32, String)>> {
    let inode = fs::metadata(path_of(name)).with_context(|| format!("network namespace {name}"))?.ino();
    let wanted = format!("net:[{inode}]");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        // A process may end during the search.
        let Ok(link) = fs::read_link(entry.path().join("ns/net")) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
        if link.as_os_str() == wanted.as_str() || is_machine_of(name, &line) {
            found.push((pid, line));
        }
    }
    Ok(found)
}

/// Whether it is the command line of a QEMU that a berth in this namespace started.
fn is_machine_of(name: &str, line: &str) -> bool {
    if !line.split_whitespace().next().is_some_and(|program| program.contains("qemu-system")) {
        return false;
    }
    let states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = states.get(name).into_iter().flatten();
    if known.into_iter().any(|state| line.contains(&format!("{}/instances/", state.display()))) {
        return true;
    }
    // For a run that was killed, the folder in the command line identifies it.
    let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).unwrap_or_default();
    owner != std::process::id().to_string() && line.contains(&format!("/{PREFIX}{owner}-"))
}

/// Kills all processes in a namespace, and removes the control groups of the VMs among them: with no berth left, nothing else
/// does. Groups that berth itself forgot stay, so that the test finds them.
pub fn end_all(name: &str) -> Result<()> {
    let mut emptied = BTreeSet::new();
    // A process that starts during one round is found in the next.
    for _ in 0..50 {
        let running = processes_in(name)?;
        if running.is_empty() {
            break;
        }
        // All groups first: the end of one process may end others.
        emptied.extend(running.iter().flat_map(|(pid, _)| cgroups::of(*pid)));
        for (pid, _) in running {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    cgroups::remove(&emptied);
    Ok(())
}

fn dismantle(name: &str) -> Result<()> {
    if !path_of(name).exists() {
        return Ok(());
    }
    end_all(name)?;
    // Not through `process::run`, which refuses to start anything after an interruption.
    let status = Command::new("ip").args(["netns", "delete", name]).status().context("starting ip")?;
    anyhow::ensure!(status.success(), "ip netns delete {name}: {status}");
    Ok(())
}
