//! A simulated machine: a network namespace of its own, and whatever runs in it.
//!
//! Everything a test starts for a host runs in one, so that bridges, taps, nftables and listening ports can neither meet those
//! of this machine nor outlive the test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::undo::Undo;
use crate::{cgroups, process};

/// Where iproute2 keeps named namespaces.
const FOLDER: &str = "/run/netns";
/// What ours are called, before our pid; our temporary folders too.
pub const PREFIX: &str = "berth-test-";
const LIMIT: Duration = Duration::from_secs(20);

/// A network namespace; dropping it kills all that runs in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _undo: Undo,
}

impl Namespace {
    /// Makes one with a loopback interface.
    pub fn new() -> Result<Arc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name])?;
        let doomed = name.clone();
        let undo = Undo::later(move || {
            if let Err(error) = dismantle(&doomed) {
                crate::report::note(&format!("removing network namespace {doomed}: {error:#}"));
            }
        });
        let namespace = Arc::new(Self { name, _undo: undo });
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name, for `ip netns`.
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

    /// The processes inside: pid and command line.
    pub fn processes(&self) -> Result<Vec<(i32, String)>> {
        processes_in(&self.name)
    }

    /// Links this namespace to another by a virtual cable: `here` and `there` are addresses with prefix.
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

/// Removes what runs of these tests that were killed outright left behind.
pub fn sweep() -> Result<()> {
    for name in orphans(Path::new(FOLDER)) {
        dismantle(&name)?;
    }
    // Of whose VMs they were nothing is left to tell. A berth that is about to enter one can do without.
    cgroups::remove(&cgroups::idle());
    let temporary = std::env::temp_dir();
    for name in orphans(&temporary) {
        fs::remove_dir_all(temporary.join(&name)).with_context(|| format!("removing {name}"))?;
    }
    Ok(())
}

/// What lies in a folder under a name of ours whose process is gone.
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
        // Processes come and go while we look.
        let Ok(link) = fs::read_link(entry.path().join("ns/net")) else { continue };
        if link.as_os_str() == wanted.as_str() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
            found.push((pid, line));
        }
    }
    Ok(found)
}

/// Kills all that runs in a namespace, and removes the control groups of the VMs among it: with no berth left, nobody else does.
/// Those berth itself forgot stay, to be found.
pub fn end_all(name: &str) -> Result<()> {
    let mut emptied = BTreeSet::new();
    // What is being started while we look is found in the next round.
    for _ in 0..50 {
        let running = processes_in(name)?;
        if running.is_empty() {
            break;
        }
        // All of them first: the end of one may be that of others.
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
    end_all(name)?;
    // Not through `process::run`: it refuses to start anything once we were interrupted.
    let status = Command::new("ip").args(["netns", "delete", name]).status().context("starting ip")?;
    anyhow::ensure!(status.success(), "ip netns delete {name}: {status}");
    Ok(())
}
