//! A simulated machine: the place where a host's programs run.
//!
//! The plain one is only a network namespace. The whole one also has its own processes, mounts and host name, so that several
//! hosts on this machine can neither see nor reach each other's QEMU.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::namespace::{self, Namespace};
use crate::process::Daemon;
use crate::report::note;
use crate::undo::Undo;
use crate::wait;

/// The first process of a whole machine: sets the host name, mounts its own shared memory, reports that it is up, and reaps
/// orphans.
const INIT: &str = "printf %s \"$1\" >/proc/sys/kernel/hostname; mount -t tmpfs tmpfs /dev/shm && echo \"$2 is up\"; \
                    while :; do sleep 3600 & wait; done";

/// The machine. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order. The control groups of its VMs are only known while its last process exists.
    _undo: Option<Undo>,
    first: Option<Daemon>,
    namespace: Arc<Namespace>,
}

impl Machine {
    /// A machine of which only the network differs from this machine's.
    pub fn plain(namespace: &Arc<Namespace>) -> Arc<Self> {
        Arc::new(Self { _undo: None, first: None, namespace: Arc::clone(namespace) })
    }

    /// A machine with its own processes, mounts and name.
    pub fn whole(name: &str, namespace: &Arc<Namespace>, log: &Path) -> Result<Arc<Self>> {
        let mut unshare = namespace.command("unshare");
        unshare.args(["--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare.args(["sh", "-c", INIT, "init", name, namespace.name()]);
        let mut first = Daemon::spawn(&format!("machine {name}"), &mut unshare, log)?;
        wait::until(&format!("machine {name} to be up"), Duration::from_secs(20), || {
            first.must_run()?;
            // An earlier machine of the same name may have logged this line to the same file.
            let is_up = first.log_tail().contains(&format!("{} is up", namespace.name()));
            anyhow::ensure!(is_up, "its log does not report it");
            Ok(())
        })?;
        let doomed = namespace.name().to_owned();
        let undo = Undo::later(move || {
            if let Err(error) = namespace::end_all(&doomed) {
                note(&format!("ending what runs in {doomed}: {error:#}"));
            }
        });
        Ok(Arc::new(Self { _undo: Some(undo), first: Some(first), namespace: Arc::clone(namespace) }))
    }

    /// The network namespace.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// The path at which this machine finds a file of the simulated one, regardless of mounts.
    pub fn seen(&self, path: &Path) -> PathBuf {
        let Some(first) = &self.first else { return path.to_owned() };
        let root = PathBuf::from(format!("/proc/{}/root", first.pid()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A command that will run on the machine. On a whole machine, only [`Self::spawn`] makes it one of its processes too.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let Some(first) = &self.first else { return self.namespace.command(program) };
        let mut command = Command::new("nsenter");
        for (option, kind) in [("net", "net"), ("mount", "mnt"), ("uts", "uts")] {
            command.arg(format!("--{option}={}", space(first.pid(), kind).display()));
        }
        command.arg("--").arg(program);
        command
    }

    /// Starts such a command as one of the machine's processes.
    pub fn spawn(&self, name: &str, mut command: Command, log: &Path) -> Result<Daemon> {
        let Some(first) = &self.first else { return Daemon::spawn(name, &mut command, log) };
        let processes = space(first.pid(), "pid_for_children");
        let (name, log) = (name.to_owned(), log.to_owned());
        // The process namespace of a thread applies only to its children, and permanently: hence a separate thread.
        std::thread::spawn(move || {
            let file = File::open(&processes).with_context(|| format!("opening {}", processes.display()))?;
            setns(file, CloneFlags::CLONE_NEWPID).context("entering a process namespace")?;
            Daemon::spawn(&name, &mut command, &log)
        })
        .join()
        .map_err(|_| anyhow!("a thread on the machine panicked"))?
    }

    /// Stops every process on the machine, as if it hung; [`Self::resume`] continues them.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::SIGSTOP)
    }

    /// Undoes [`Self::freeze`].
    pub fn resume(&self) -> Result<()> {
        self.signal_all(Signal::SIGCONT)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        for (pid, line) in self.namespace.processes()? {
            match kill(Pid::from_raw(pid), signal) {
                // The process may have ended in the meantime.
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("{signal} to {pid} ({line})")),
            }
        }
        Ok(())
    }
}

fn space(pid: u32, kind: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cgroups, prerequisites};

    #[test]
    fn a_machine_that_goes_takes_the_control_groups_of_what_ran_on_it_along() {
        if !prerequisites::is_root() {
            eprintln!("skipped: network namespaces and control groups need root");
            return;
        }
        let name = format!("i-test-{}", std::process::id());
        let Some(group) = cgroups::make(&name) else {
            eprintln!("skipped: no control group can be made here");
            return;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let network = Namespace::new().expect("a namespace");
        let machine = Machine::whole("m", &network, &folder.path().join("machine.log")).expect("a machine");
        let mut enter = machine.command("sh");
        // In a session of its own, like QEMU: it survives the process that started it.
        let script = format!("echo 0 >{}/cgroup.procs; setsid sleep 600 & exec sleep 600", group.display());
        enter.args(["-c", &script]);
        let inside = machine.spawn("sleep", enter, &folder.path().join("sleep.log")).expect("it starts");
        let pid = i32::try_from(inside.pid()).expect("a pid fits");
        wait::until("both to be in the group", Duration::from_secs(20), || {
            anyhow::ensure!(cgroups::of(pid).contains(&group), "it is in {:?}", cgroups::of(pid));
            let inside = std::fs::read_to_string(group.join("cgroup.procs"))?;
            // Before it has become `sleep`, the other one still belongs to the session that ends first.
            let comm = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let sleeping = inside.lines().filter(|pid| comm(pid).trim() == "sleep").count();
            anyhow::ensure!(sleeping == 2, "in the group are {inside:?}");
            Ok(())
        })
        .expect("they enter");
        drop(inside);
        assert!(group.exists(), "the other process is still in it");
        drop(machine);
        assert!(!group.exists(), "{} is left", group.display());
    }
}
