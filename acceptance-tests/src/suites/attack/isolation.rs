//! A guest that has taken over its QEMU: the reach of that process to other VMs and the host.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::manifests;
use crate::platform::Platform;
use crate::process::{self, Daemon};
use crate::report::Report;
use crate::scratch::Scratch;
use crate::wait;

const ANSWER: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(30);
const VICTIM: &str = "isolation-a";
const ATTACKER: &str = "isolation-b";
/// The Ignition config.
const IGNITION: &str = "{\"ignition\": {\"version\": \"3.4.0\"}}";
/// The maximum length of a log, plus the output of one second.
const LOG_BYTES: u64 = 4 << 20;

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    let [victim, attacker] = report.step("two VMs run", || start(platform, guest))?;
    report.case("each QEMU has a user, a group and an empty network of its own, and no rights", || {
        confined(&victim, &attacker)
    });
    report.case("a QEMU opens nothing of another VM's, of the control plane's or of the image cache", || {
        reaches(platform, &victim, &attacker)
    });
    report
        .case("a QEMU opens no file of the host that is not its own, not even one that all may read", || {
            opens(&victim, &attacker)
        });
    report.case("a serial log stays within bounds while its machine runs", || bounded(&attacker));
    report.case("an Ignition configuration is offered as Ignition reads it", || ignition(&attacker));
    report.case(
        "what a QEMU leaves at the place of its logs holds nothing up; other user data is another instance",
        || restarted(platform, &victim),
    );
    report.case("no user of the host can hold an agent off, and its machines run on", || squatted(platform));
    report
        .case("what is deleted leaves no file of a user that is free again", || deleted(platform, &attacker));
    Ok(())
}

/// A VM as seen on the host.
struct Machine {
    name: &'static str,
    pid: i64,
    /// User and group id alike.
    uid: u32,
    folder: PathBuf,
    state: PathBuf,
}

impl Machine {
    fn of(platform: &Platform, name: &'static str) -> Result<Self> {
        let vm = platform.kubectl().condition(&format!("vm/{name}"), "Running=True", None, ANSWER)?;
        let pid = vm["status"]["process"]["pid"].as_i64().context("no process")?;
        let instance = vm["status"]["instanceID"].as_str().context("no instance")?;
        let process = fs::metadata(format!("/proc/{pid}")).context("QEMU is gone")?;
        ensure!(process.uid() == process.gid(), "user {}, group {}", process.uid(), process.gid());
        let state = platform.host().state().to_owned();
        let folder = state.join("instances").join(instance);
        Ok(Self { name, pid, uid: process.uid(), folder, state })
    }

    /// Runs a script with the permissions of this QEMU: its user and network, without capabilities, with a path as `$1`.
    fn can(&self, script: &str, path: &Path) -> Result<bool> {
        let mut command = std::process::Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid)).args(["--", "setpriv"]);
        command.args([format!("--reuid={}", self.uid), format!("--regid={}", self.uid)]);
        command.args(["--clear-groups", "--no-new-privs", "--bounding-set=-all"]);
        command.args(["bash", "-c", script, "bash"]).arg(path);
        Ok(process::run(&mut command, SOON)?.status.success())
    }

    fn argument_after(&self, option: &str) -> Result<Option<String>> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid))?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0').skip_while(|word| *word != option);
        Ok(words.nth(1).map(str::to_owned))
    }

    /// Sends a command to this QEMU's second monitor.
    fn ask(&self, command: &str, arguments: &Value) -> Result<Value> {
        let stream = UnixStream::connect(self.folder.join("run/rescue.sock"))?;
        stream.set_read_timeout(Some(SOON))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut answer = |request: Value| -> Result<Value> {
            writeln!(&stream, "{request}")?;
            loop {
                let line = lines.next().context("the monitor closed")??;
                let message: Value = serde_json::from_str(&line)?;
                if message.get("return").is_some() || message.get("error").is_some() {
                    return Ok(message);
                }
            }
        };
        answer(json!({"execute": "qmp_capabilities"}))?;
        answer(json!({"execute": command, "arguments": arguments}))
    }

    fn disk(&self) -> Result<PathBuf> {
        let volumes = self.state.join("pools/default/volumes");
        for entry in fs::read_dir(&volumes)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "qcow2") && entry.metadata()?.uid() == self.uid {
                return Ok(path);
            }
        }
        anyhow::bail!("{} owns no disk in {}", self.name, volumes.display())
    }
}

fn start(platform: &Platform, guest: &GuestImage) -> Result<[Machine; 2]> {
    let kubectl = platform.kubectl();
    let url = platform.images().put("isolation.qcow2", Content::File(guest.path.clone()));
    let mut objects =
        vec![manifests::image("isolation", &url, &guest.sha256), manifests::bios_class("isolation", "128Mi")];
    for (name, user_data) in [(VICTIM, "#cloud-config\n{}\n"), (ATTACKER, IGNITION)] {
        objects.push(manifests::disk(name, "isolation", "64Mi"));
        let vm = manifests::vm(name, "isolation", name);
        objects.push(manifests::with(vm, "bootstrap", json!({"userData": user_data})));
    }
    kubectl.apply(&manifests::all(&objects))?;
    Ok([Machine::of(platform, VICTIM)?, Machine::of(platform, ATTACKER)?])
}

fn confined(victim: &Machine, attacker: &Machine) -> Result<()> {
    ensure!(victim.uid != attacker.uid, "both run as {}", victim.uid);
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).context("no network namespace");
    let ours = network("self")?;
    let mut seen = vec![ours];
    for machine in [victim, attacker] {
        let status = fs::read_to_string(format!("/proc/{}/status", machine.pid))?;
        let four = vec![machine.uid.to_string(); 4].join("\t");
        for line in [
            format!("Uid:\t{four}"),
            format!("Gid:\t{four}"),
            "CapEff:\t0000000000000000".to_owned(),
            "CapPrm:\t0000000000000000".to_owned(),
            "NoNewPrivs:\t1".to_owned(),
            "Seccomp:\t2".to_owned(),
        ] {
            ensure!(status.lines().any(|found| found == line), "no {line:?} in\n{status}");
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        ensure!(!accounts.contains(&format!(":{}:", machine.uid)), "{} is an account's", machine.uid);
        let own = network(&machine.pid.to_string())?;
        ensure!(!seen.contains(&own), "{} shares its network with another", machine.name);
        seen.push(own);
        let run = fs::read_dir(format!("/proc/{}/root/run", machine.pid))?.count();
        ensure!(run == 0, "{} sees {run} things in /run, where services have their sockets", machine.name);
        let routes = fs::read_to_string(format!("/proc/{}/net/route", machine.pid))?;
        ensure!(routes.lines().count() <= 1, "{} has routes:\n{routes}", machine.name);
    }
    Ok(())
}

const READ: &str = "head -c 1 -- \"$1\" >/dev/null";
const WRITE: &str = ": >>\"$1\"";
const SEE: &str = "test -e \"$1\"";
const LIST: &str = "ls -- \"$1\" >/dev/null";

fn reaches(platform: &Platform, victim: &Machine, attacker: &Machine) -> Result<()> {
    // Its own disk is accessible, so the refusals below are meaningful.
    let own = attacker.disk()?;
    ensure!(attacker.can(READ, &own)? && attacker.can(WRITE, &own)?, "its own disk is out of reach");
    ensure!(attacker.can(READ, &attacker.folder.join("seed.img"))?, "its own seed is out of reach");
    let disk = victim.disk()?;
    ensure!(!attacker.can(READ, &disk)? && !attacker.can(WRITE, &disk)?, "another VM's disk is reached");
    for file in ["seed.img", "run/qmp.sock", "run/rescue.sock", "run/qga.sock", "serial.log", "journal.json"]
    {
        let file = victim.folder.join(file);
        ensure!(file.exists(), "{} is not there to be reached", file.display());
        ensure!(!attacker.can(SEE, &file)?, "{} is reached", file.display());
    }
    for file in ["journal.json", "user.json", "process.json", "qemu.log", "seed.img"] {
        ensure!(!attacker.can(WRITE, &attacker.folder.join(file))?, "its own {file} is written");
    }
    let images = attacker.state.join("images");
    for entry in fs::read_dir(&images)?.flatten() {
        ensure!(!attacker.can(SEE, &entry.path())?, "{} is reached", entry.path().display());
    }
    for folder in [images, attacker.state.join("instances"), attacker.state.join("pools/default/volumes")] {
        ensure!(!attacker.can(LIST, &folder)?, "{} is listed", folder.display());
    }
    if platform.is_embedded() {
        let database = attacker.state.join("control-plane");
        ensure!(database.is_dir() && !attacker.can(LIST, &database)?, "the control plane's folder is listed");
        let api = "exec 3<>/dev/tcp/127.0.0.1/7443";
        let mut outside = platform.namespace().command("bash");
        process::run(outside.args(["-c", api]), SOON)?.success().context("the API from the host itself")?;
        ensure!(!attacker.can(api, Path::new("/"))?, "the control plane is reached");
    }
    let signal = format!("kill -0 {}", victim.pid);
    ensure!(!attacker.can(&signal, Path::new("/"))?, "another QEMU can be signalled");
    let memory = PathBuf::from(format!("/proc/{}/mem", victim.pid));
    ensure!(!attacker.can(READ, &memory)?, "another guest's memory can be opened");
    Ok(())
}

fn opens(victim: &Machine, attacker: &Machine) -> Result<()> {
    let add = |file: &Path| {
        let file = json!({"driver": "file", "filename": file});
        json!({"driver": "raw", "node-name": "isolation", "read-only": true, "file": file})
    };
    let kernel = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let mut files = vec![victim.disk()?];
    if kernel.contains("landlock_restrict_self") {
        files.extend(["/etc/passwd", "/proc/version"].map(PathBuf::from));
    }
    for file in files {
        let answer = attacker.ask("blockdev-add", &add(&file))?;
        let text =
            answer["error"]["desc"].as_str().with_context(|| format!("{}: {answer}", file.display()))?;
        ensure!(text.contains("Permission denied"), "{}: {text}", file.display());
    }
    // So that the refusals are meaningful.
    let answer = attacker.ask("blockdev-add", &add(&attacker.folder.join("seed.img")))?;
    ensure!(answer.get("return").is_some(), "its own seed: {answer}");
    let answer = attacker.ask("blockdev-del", &json!({"node-name": "isolation"}))?;
    ensure!(answer.get("return").is_some(), "{answer}");
    Ok(())
}

fn bounded(attacker: &Machine) -> Result<()> {
    let log = attacker.folder.join("serial.log");
    // As its QEMU would write if its guest produced that much output.
    let flood = format!("head -c {} /dev/zero | tr '\\0' x >>\"$1\"", 2 * LOG_BYTES);
    ensure!(attacker.can(&flood, &log)?, "its serial log cannot be written");
    wait::until("the log to be cut", SOON, || {
        let length = fs::metadata(&log)?.len();
        ensure!(length <= LOG_BYTES, "it has {length} bytes");
        // Written after the cut.
        let kept = fs::metadata(attacker.folder.join("serial.log.1")).context("the end of it is kept")?;
        ensure!(kept.len() <= LOG_BYTES && kept.uid() == 0, "{} bytes of user {}", kept.len(), kept.uid());
        Ok(())
    })
}

fn ignition(attacker: &Machine) -> Result<()> {
    let offered = attacker.argument_after("-fw_cfg")?.context("QEMU offers nothing")?;
    let file = offered.strip_prefix("name=opt/com.coreos/config,file=").with_context(|| offered.clone())?;
    ensure!(fs::read_to_string(file)? == IGNITION, "another configuration");
    ensure!(attacker.can(READ, Path::new(file))?, "QEMU cannot read it");
    Ok(())
}

fn restarted(platform: &Platform, victim: &Machine) -> Result<()> {
    let kubectl = platform.kubectl();
    let before = instance_id(victim)?;
    // Its own folder is the only place that it can fill with arbitrary data.
    let run = victim.folder.join("run");
    for name in ["qemu.log", "serial.log"] {
        ensure!(victim.can("mkfifo -- \"$1\"", &run.join(name))?, "its own folder is out of reach");
        ensure!(
            !victim.can("rm -f -- \"$1\" && mkfifo -- \"$1\"", &victim.folder.join(name))?,
            "a log is exchanged"
        );
    }
    let change =
        json!({"spec": {"restartToken": "isolation", "bootstrap": {"userData": "#cloud-config\n{a: 1}\n"}}});
    kubectl.ok(&["patch", "vm", VICTIM, "--type=merge", "-p", &change.to_string()])?;
    let other = |vm: &Value| {
        vm["status"]["process"]["pid"].as_i64().is_some_and(|pid| pid != victim.pid)
            && vm["status"]["state"] == "Running"
    };
    kubectl.until(&format!("vm/{VICTIM}"), "another process", ANSWER, other)?;
    let again = Machine::of(platform, VICTIM)?;
    ensure!(again.uid == victim.uid, "user {} became {}", victim.uid, again.uid);
    ensure!(!run.join("qemu.log").exists(), "the folder of sockets is not new");
    let after = instance_id(&again)?;
    ensure!(after != before, "cloud-init would take {after} for the instance it has seen");
    Ok(())
}

/// Reads the instance id from the bootstrap volume, as cloud-init does.
fn instance_id(machine: &Machine) -> Result<String> {
    let bytes = fs::read(machine.folder.join("seed.img"))?;
    let text = String::from_utf8_lossy(&bytes);
    let (_, rest) = text.split_once("\"instance-id\": \"").context("no instance-id")?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// Takes the name by which agents of one network find each other, in Perl, which every Debian has.
const SQUATTER: &str = r#"use Socket; $| = 1; socket(S, PF_UNIX, SOCK_STREAM, 0); listen(S, 1) && print "held\n"
    if bind(S, pack_sockaddr_un("\0berth-agent")); sleep 600"#;

fn squatted(platform: &mut Platform) -> Result<()> {
    let before = Machine::of(platform, VICTIM)?.pid;
    platform.crash()?;
    // A user without any rights: root's processes may hold the name.
    let mut perl = platform.namespace().command("setpriv");
    perl.args(["--reuid=65534", "--regid=65534", "--clear-groups", "perl", "-e", SQUATTER]);
    let folder = Scratch::new()?;
    let mut squatter = Daemon::spawn("a squatter", &mut perl, &folder.path().join("log"))?;
    wait::until("the name to be held", SOON, || {
        squatter.must_run()?;
        ensure!(squatter.log_tail().contains("held"), "{}", squatter.log_tail());
        Ok(())
    })?;
    platform.start()?;
    squatter.must_run()?;
    let after = Machine::of(platform, VICTIM)?.pid;
    ensure!(before == after, "process {before} became {after}");
    Ok(())
}

fn deleted(platform: &Platform, attacker: &Machine) -> Result<()> {
    let kubectl = platform.kubectl();
    let disk = attacker.disk()?;
    let claim = Path::new("/run/berth/users").join(attacker.uid.to_string());
    ensure!(claim.exists(), "{} is not noted for other berths of this machine", attacker.uid);
    kubectl.ok(&["delete", "vm", VICTIM, ATTACKER, "--timeout=85s"])?;
    ensure!(fs::metadata(&disk)?.uid() == 0, "a disk that no VM uses is still user {}'s", attacker.uid);
    ensure!(!claim.exists() && !attacker.folder.exists(), "the user is still noted");
    wait::until("disks, image and class to go", SOON, || {
        let disks = [VICTIM, ATTACKER].map(|name| format!("disk/{name}"));
        let all =
            ["delete", &disks[0], &disks[1], "image/isolation", "vmclass/isolation", "--ignore-not-found"];
        kubectl.ok(&all).map(drop)
    })
}
