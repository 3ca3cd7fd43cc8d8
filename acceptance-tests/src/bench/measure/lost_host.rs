//! N10: a host is lost, and its VM, whose disk is in a shared pool, runs on another one.
//!
//! ```text
//!  power lost ──────▶ Host not Ready, declared lost ──────▶ VM Running elsewhere ──▶ its first process
//!              silent                                restart                      (guest)
//! ```
//!
//! One VM goes from host to host, as the one that has it is lost in each round. The agents of the lost hosts are started again, and must
//! start nothing.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::lost_host::{GUEST, RESTART, SILENT, TOTAL};
use super::guest::{MEMORY, load};
use super::samples::Samples;
use crate::api::{self, Access, Api, Watch};
use crate::fleet::{Fleet, host_in};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Parts;
use crate::segment::CARD;
use crate::{process, report, tools, undo, wait};

/// The number of measured rounds.
const ROUNDS: usize = 5;
/// The hosts that may have the VM, by number: one is lost in each round and in the one before them, and one is left.
const HOSTS: std::ops::RangeInclusive<u32> = 2..=8;
/// The label of these hosts. The first host has the control plane.
const LABEL: &str = "measure=lost";
/// The pool that all hosts have in common.
const POOL: &str = "slow";
const CLASS: &str = "linux";
const IMAGE: &str = "small";
/// The name of the VM and of its disk.
const NAME: &str = "survivor";
const CONSOLE: &str = "serial.log";
const SOON: Duration = Duration::from_secs(60);
/// The time limit until an agent whose host is lost has ended. It doubts a refusal for 20 s.
const REFUSAL: Duration = Duration::from_secs(120);

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let parts = Parts {
        binaries: bench.binaries.clone(),
        kubectl: tools::kubectl(&bench.cache)?,
        terraform: bench.terraform()?,
        logs: bench.log("N10").with_extension(""),
    };
    let mut fleet = Fleet::embedded(&parts)?;
    let measured = rounds(&mut fleet, &image);
    if measured.is_err() {
        report::note(&fleet.keep_evidence());
    }
    readings(&measured?)
}

/// The times of a round.
#[derive(Debug, Clone, Copy)]
struct Times {
    silent: Duration,
    restart: Duration,
    guest: Duration,
}

fn readings(times: &[Times]) -> Result<Vec<Reading>> {
    let median = |figure: Figure, of: fn(&Times) -> Duration| -> Result<Reading> {
        let seconds = times.iter().map(|times| of(times).as_secs_f64()).collect();
        Ok(Reading::median(figure, &Samples::new(seconds).context("no rounds")?))
    };
    Ok(vec![
        median(RESTART, |times| times.restart)?,
        median(GUEST, |times| times.guest)?,
        median(SILENT, |times| times.silent)?,
        median(TOTAL, |times| times.silent + times.restart)?,
    ])
}

fn rounds(fleet: &mut Fleet, image: &GuestImage) -> Result<Vec<Times>> {
    for number in HOSTS {
        fleet.join(number, &[LABEL])?;
    }
    fleet.share_pool(POOL)?;
    let mut survivor = Survivor::boot(fleet, image)?;
    // First a round that is not measured: the agent of the lost host is back before the VM runs elsewhere.
    let host = survivor.turn_off()?;
    let declared = survivor.declare_lost(host)?;
    survivor.turn_on(&declared.lost)?;
    let (_, first) = survivor.run_elsewhere(declared)?;
    let (mut times, mut lost) = (Vec::new(), vec![first]);
    for round in 0..ROUNDS {
        undo::halt_if_interrupted();
        let mut hosts = survivor.access.connect()?.watch(api::HOST)?;
        let began = Instant::now();
        let host = survivor.turn_off()?;
        let is_silent = |found: &Value| api::name(found) == host.name && !api::is_true(found, "Ready");
        let silent = hosts.until(is_silent)?.seen.saturating_duration_since(began);
        let declared = survivor.declare_lost(host)?;
        let (Elsewhere { restart, guest }, host) = survivor.run_elsewhere(declared)?;
        survivor.turn_on(&host)?;
        lost.push(host);
        report::note(&format!(
            "        round {} of {ROUNDS}: silent after {silent:.1?}, Running {restart:.2?} and guest {guest:.1?} after the declaration",
            round + 1
        ));
        times.push(Times { silent, restart, guest });
    }
    survivor.check(&lost)?;
    Ok(times)
}

/// A host without power.
struct Lost {
    name: String,
    /// The folder of the VM's instance there.
    folder: PathBuf,
    /// As the loss has left it.
    trace: Trace,
}

/// The logs of an instance that show a later start: the size of the guest's console, and the time of the last change of QEMU's log, which
/// each start empties.
type Trace = (u64, SystemTime);

fn trace(folder: &Path) -> Result<Trace> {
    let of = |log: &str| fs::metadata(folder.join(log)).with_context(|| format!("{log} of the VM"));
    Ok((of(CONSOLE)?.len(), of("qemu.log")?.modified()?))
}

/// A host that was declared lost.
struct Declared {
    lost: Lost,
    /// The time before the command.
    at: Instant,
    /// The VMs since then.
    watch: Watch,
}

/// The times from the declaration.
struct Elsewhere {
    restart: Duration,
    guest: Duration,
}

/// The VM whose hosts are lost.
struct Survivor<'a> {
    fleet: &'a mut Fleet,
    access: Access,
    api: Api,
    instance: String,
    /// Its present host.
    host: String,
}

impl<'a> Survivor<'a> {
    /// Creates it, and waits until its guest runs on its first host.
    fn boot(fleet: &'a mut Fleet, image: &GuestImage) -> Result<Self> {
        let access = fleet.access()?;
        let mut api = access.connect()?;
        let url = fleet.images().put("small.qcow2", Content::File(image.path.clone()));
        let source = json!({"url": url, "sha256": image.sha256});
        super::fleet::make_image(&mut api, &access, IMAGE, &json!({"source": source}))?;
        api.create(api::VM_CLASS, CLASS, &super::fleet::class(MEMORY))?;
        api.create(api::DISK, NAME, &json!({"image": IMAGE, "pool": POOL}))?;
        let mut vm = super::fleet::vm(CLASS, NAME, None);
        vm["placement"] = json!({"hostSelector": {"measure": "lost"}});
        let mut watch = access.connect()?.watch(api::VM)?;
        let began = Instant::now();
        api.create(api::VM, NAME, &vm)?;
        let running = watch.until(|vm| api::is_true(vm, "Running"))?.object;
        let instance = running["status"]["instanceID"].as_str().context("the VM has no machine")?.to_owned();
        let host = host_in(&running).context("the VM has no host")?;
        let mut survivor = Self { fleet, access, api, instance, host };
        load::started(&survivor.folder()?.join(CONSOLE), began)?;
        survivor.settle()?;
        Ok(survivor)
    }

    /// The folder of its instance on its host.
    fn folder(&self) -> Result<PathBuf> {
        let berth = &self.fleet.member(&self.host)?.berth;
        Ok(berth.machine().seen(berth.state()).join("instances").join(&self.instance))
    }

    /// Waits until its disk is in the folder of its host, and is one that survives the loss of it.
    fn settle(&mut self) -> Result<()> {
        let path = format!("{}/{NAME}", api::DISK.path());
        wait::until("the disk to survive the loss of its host", SOON, || {
            let disk = self.api.read(&path)?;
            let status = &disk["status"];
            let is_there = host_in(&disk).as_ref() == Some(&self.host) && status["formerHost"].is_null();
            ensure!(is_there && status["survivesHostLoss"] == true, "its status is {status:#}");
            Ok(())
        })
    }

    /// Cuts the power of its host. The network goes first: a machine without power closes no connection.
    fn turn_off(&mut self) -> Result<Lost> {
        let folder = self.folder()?;
        let member = self.fleet.member_mut(&self.host)?;
        member.namespace().ip(&["link", "set", CARD, "down"])?;
        member.berth.crash()?;
        for pid in member.qemu()? {
            kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing QEMU")?;
        }
        wait::until("no QEMU on the lost host", SOON, || {
            ensure!(member.qemu()?.is_empty(), "it still runs one");
            Ok(())
        })?;
        Ok(Lost { name: self.host.clone(), trace: trace(&folder)?, folder })
    }

    /// Declares that host lost, as an administrator does.
    fn declare_lost(&self, lost: Lost) -> Result<Declared> {
        let watch = self.access.connect()?.watch(api::VM)?;
        let at = Instant::now();
        self.fleet.administrator().run(&["host", "forget", &lost.name, "--lost"])?.success()?;
        Ok(Declared { lost, at, watch })
    }

    /// Starts the agent of a lost host again, on its network.
    fn turn_on(&mut self, lost: &Lost) -> Result<()> {
        let member = self.fleet.member_mut(&lost.name)?;
        let namespace = member.namespace();
        namespace.ip(&["link", "set", CARD, "up"])?;
        // An agent that reaches no control plane restarts the guests of one that has ended in the same boot; a lost machine boots anew.
        wait::until("the network of the lost host", SOON, || {
            let address = self.access.address.clone();
            namespace.inside(move || Ok(TcpStream::connect(&address)?)).map(drop)
        })?;
        member.berth.spawn_joined(None, &[])
    }

    /// Waits until the guest runs on another host, and the lost one is removed.
    fn run_elsewhere(&mut self, declared: Declared) -> Result<(Elsewhere, Lost)> {
        let Declared { lost, at, mut watch } = declared;
        let running = watch
            .until(|vm| api::is_true(vm, "Running") && host_in(vm).is_some_and(|host| host != lost.name))?;
        let restart = running.seen.saturating_duration_since(at);
        self.host = host_in(&running.object).context("the VM has no host")?;
        let guest = load::started(&self.folder()?.join(CONSOLE), at)?;
        self.check_host()?;
        self.settle()?;
        let kubectl = self.fleet.kubectl();
        wait::until("the lost host to be removed", SOON, || {
            kubectl.refused(&["get", "host", &lost.name]).map(drop)
        })?;
        Ok((Elsewhere { restart, guest }, lost))
    }

    /// Checks that it has a QEMU on its host, and on no other one.
    fn check_host(&self) -> Result<()> {
        let folder = format!("/instances/{}", self.instance);
        let mut hosts = Vec::new();
        for member in self.fleet.members() {
            let processes = member.namespace().processes()?;
            // An agent that starts runs a QEMU without an instance, for its capabilities.
            let is_its_own = |line: &str| line.contains("qemu-system") && line.contains(&folder);
            if processes.iter().any(|(_, line)| is_its_own(line)) {
                hosts.push(member.name.as_str());
            }
        }
        ensure!(hosts == [self.host.as_str()], "the VM runs on {hosts:?}, and its host is {}", self.host);
        Ok(())
    }

    /// Waits until the agents of the lost hosts have ended, and checks that none has started the VM.
    fn check(&mut self, lost: &[Lost]) -> Result<()> {
        for Lost { name, folder, trace: left } in lost {
            let (code, text) = self.fleet.member_mut(name)?.berth.ended(REFUSAL)?;
            let end = process::tail(&text, 2_000);
            ensure!(code == Some(1), "the agent of {name}, which is lost, ended with {code:?}: {end}");
            ensure!(trace(folder)? == *left, "the agent of {name}, which is lost, has started the VM: {end}");
        }
        self.check_host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_round_is_its_silence_and_its_restart() {
        let times = |silent, restart| Times {
            silent: Duration::from_secs(silent),
            restart: Duration::from_secs(restart),
            guest: Duration::from_secs(restart + 5),
        };
        let found = readings(&[times(40, 1), times(26, 6), times(30, 2)]).expect("there are rounds");
        let values: Vec<(&str, f64)> =
            found.iter().map(|reading| (reading.figure.key, reading.value)).collect();
        assert_eq!(
            values,
            [("N10.restart", 2.0), ("N10.guest", 7.0), ("N10.silent", 30.0), ("N10.total", 32.0)]
        );
        assert!(readings(&[]).is_err());
    }
}
