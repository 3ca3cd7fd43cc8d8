//! The power of a Debian guest: paused, suspended, restarted with other user data, off and on again; and snapshots and memory of it while
//! it runs.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::{BOOT, SOON, ssh};
use crate::http;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::suites::kubectl::contains_all;
use crate::terraform::{Project, unwrapped};
use crate::wait;

const VM: &str = "vm/web";
/// The least that the guest gives back of the 256 MiB, in KiB: its kernel may use a part of them for what it cannot move.
const GIVEN_BACK: u64 = 128 << 10;
/// How long the guest is suspended, at least: more than its clock may be off afterwards.
const SUSPENDED: Duration = Duration::from_secs(10);
/// By how many seconds the guest's clock may be off.
const OFF: u64 = 4;
/// Adds a line to a file at each stop, and has it on the disk before the guest is asked to shut down.
const HOOKS: &str = r#"  hooks = { pre_stop = {
    exec            = { command = ["sh", "-c", "echo stopped >>/var/local/stops && sync /var/local/stops"] }
    timeout_seconds = 60
    failure_policy  = "Fail"
  } }
"#;
const TOKEN: &str = "  restart_token = \"debian\"\n";
const PLACE: &str = "  wait_for = \"guest\"\n";
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// The boot, the instance, the number of stops, the kept file and the host name, once cloud-init has ended.
const STATE: &str = "cloud-init status --wait >/dev/null; cat /proc/sys/kernel/random/boot_id /var/lib/cloud/data/instance-id; \
                     sudo cat /var/local/stops 2>/dev/null | wc -l; cat /home/debian/kept; hostname";

/// The guest of the quickstart.
struct Guest<'a> {
    platform: &'a Platform,
    project: &'a Project,
    address: &'a str,
}

/// A boot of the guest.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    boot: String,
    instance: String,
    stops: String,
    kept: String,
    hostname: String,
}

/// The class has more memory, and the running guest gets it.
pub fn memory_is_added(platform: &Platform, project: &Project, address: &str) -> Result<()> {
    let guest = Guest { platform, project, address };
    let before = guest.memory()?;
    project.edit("main.tf", r#"memory = "512Mi""#, r#"memory = "768Mi""#)?;
    project.apply()?;
    wait::until("256 MiB more", SOON, || {
        let now = guest.memory()?;
        ensure!(now == before + (256 << 10), "{now} KiB, {before} KiB before");
        Ok(())
    })
}

/// The class has less memory, and the running guest gives back what was plugged in; then it gets the memory again.
pub fn memory_is_given_back(platform: &Platform, project: &Project, address: &str) -> Result<()> {
    let guest = Guest { platform, project, address };
    let (before, boot) = (guest.memory()?, guest.run(BOOT_ID)?);
    project.edit("main.tf", r#"memory = "768Mi""#, r#"memory = "512Mi""#)?;
    project.apply()?;
    wait::until("the guest to give memory back", SOON, || {
        let now = guest.memory()?;
        ensure!(now + GIVEN_BACK <= before, "{now} KiB, {before} KiB before");
        Ok(())
    })?;
    project.edit("main.tf", r#"memory = "512Mi""#, r#"memory = "768Mi""#)?;
    project.apply()?;
    wait::until("the guest to have its memory again", SOON, || {
        let now = guest.memory()?;
        ensure!(now == before, "{now} KiB, {before} KiB before");
        Ok(())
    })?;
    ensure!(guest.run(BOOT_ID)? == boot, "the guest has booted again");
    project.plan_is_empty()
}

/// Runs the cases on the VM of the quickstart, whose guest agent runs.
pub fn cases(report: &mut Report, platform: &Platform, project: &Project, address: &str) {
    let guest = Guest { platform, project, address };
    report.case("a snapshot of the running guest is taken while its file systems are frozen", || {
        guest.frozen()
    });
    report.case("power = Paused stops the guest, and it is resumed in the same boot and process", || {
        guest.paused()
    });
    report.case(
        "power = Suspended leaves no QEMU; resumed, the guest has the same boot and the right time",
        || guest.suspended(),
    );
    report.case(
        "user_data_policy = reboot: one restart, another instance of cloud-init, other user data and host name, the same data",
        || guest.gets_other_user_data(),
    );
    report.case("power = Stopped calls the hook first, and power = Running boots the same instance", || {
        guest.off_and_on()
    });
    // Debian's cloud kernel has no power management, and this guest runs on; one with another kernel sleeps and wakes up.
    report.case(
        "suspendMode = Memory: the guest sleeps in its QEMU and wakes up in the same boot, or runs on and says why",
        || guest.sleeps(),
    );
}

impl Guest<'_> {
    fn run(&self, script: &str) -> Result<String> {
        ssh(self.platform, self.project, self.address, script)?.success()
    }

    /// The memory that its kernel has, in KiB.
    fn memory(&self) -> Result<u64> {
        Ok(self.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo")?.trim().parse()?)
    }

    fn declare_power(&self, from: &str, to: &str) -> Result<()> {
        let line = |power: &str| format!("  power    = \"{power}\"");
        self.project.edit("main.tf", &line(from), &line(to))?;
        self.project.apply().map(drop)
    }

    fn seen(&self) -> Result<Seen> {
        let text = self.run(STATE)?;
        let lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        let Ok([boot, instance, stops, kept, hostname]) = <[String; 5]>::try_from(lines) else {
            bail!("five lines are expected: {text}");
        };
        Ok(Seen { boot, instance, stops, kept, hostname })
    }

    /// Waits until another boot has ended.
    fn boots_after(&self, before: &Seen) -> Result<Seen> {
        wait::until("another boot of the guest", BOOT, || {
            let now = self.seen()?;
            ensure!(now.boot != before.boot, "the same boot: {now:?}");
            Ok(now)
        })
    }

    fn frozen(&self) -> Result<()> {
        let kubectl = self.platform.kubectl();
        kubectl.apply(&manifests::vm_snapshot("frozen", "web").to_string())?;
        let taken = kubectl.condition("vmsnap/frozen", "Ready=True", None, SOON)?["status"].clone();
        ensure!(taken["consistency"] == "FileSystem", "{taken:#}");
        let part = taken["disks"][0]["snapshot"].as_str().unwrap_or_default();
        let part = kubectl.object("dsnap", part)?["status"].clone();
        ensure!(part["consistency"] == "FileSystem", "{part:#}");
        // A frozen file system blocks its writers.
        self.run("echo kept >/home/debian/kept && sync /home/debian/kept")?;
        kubectl.ok(&["delete", "vmsnap/frozen", "--timeout=60s"]).map(drop)
    }

    /// The boot, and the seconds since.
    fn uptime(&self) -> Result<(String, f64)> {
        let text = self.run("cat /proc/sys/kernel/random/boot_id; cut -d ' ' -f 1 /proc/uptime")?;
        let Some((boot, uptime)) = text.trim().split_once('\n') else {
            bail!("two lines are expected: {text}")
        };
        Ok((boot.to_owned(), uptime.trim().parse()?))
    }

    /// The boot that the guest goes on in after `before`.
    fn goes_on_after(&self, before: &(String, f64)) -> Result<()> {
        let now = wait::until("the guest", SOON, || self.uptime())?;
        ensure!(now.0 == before.0 && now.1 > before.1, "{now:?}, before {before:?}");
        Ok(())
    }

    fn paused(&self) -> Result<()> {
        let (before, pid) = (self.uptime()?, self.platform.qemu()?);
        self.declare_power("Running", "Paused")?;
        self.platform.kubectl().condition(VM, "Ready=True", Some("Paused"), SOON)?;
        self.project.plan_is_empty()?;
        self.declare_power("Paused", "Running")?;
        self.goes_on_after(&before)?;
        ensure!(self.platform.qemu()? == pid, "another process");
        self.project.plan_is_empty()
    }

    fn suspended(&self) -> Result<()> {
        let before = self.uptime()?;
        self.declare_power("Running", "Suspended")?;
        self.platform.kubectl().condition(VM, "Ready=True", Some("Suspended"), SOON)?;
        ensure!(self.platform.qemu().is_err(), "it still has a QEMU");
        self.project.plan_is_empty()?;
        // The guest's clock stands still.
        thread::sleep(SUSPENDED);
        self.declare_power("Suspended", "Running")?;
        self.goes_on_after(&before)?;
        wait::until("the guest agent to set the clock", SOON, || self.check_clock())?;
        self.project.plan_is_empty()
    }

    fn sleeps(&self) -> Result<()> {
        let (before, pid, kubectl) = (self.uptime()?, self.platform.qemu()?, self.platform.kubectl());
        let declare = |power: &str, mode: &str| {
            let patch = format!(r#"{{"spec": {{"power": "{power}", "suspendMode": "{mode}"}}}}"#);
            kubectl.ok(&["patch", VM, "--type=merge", "-p", &patch]).map(drop)
        };
        let ready = |vm: &Value| condition_of(vm, "Ready").cloned().unwrap_or_default();
        declare("Suspended", "Memory")?;
        let has_ended = |vm: &Value| {
            let reason = ready(vm)["reason"].clone();
            reason == "SuspendFailed" || (reason == "Suspended" && vm["status"]["state"] == "Suspended")
        };
        let vm = kubectl.until(VM, "to sleep, or to say why it does not", SOON, has_ended)?;
        let found = ready(&vm);
        if found["reason"] == "SuspendFailed" {
            let message = found["message"].as_str().unwrap_or_default();
            contains_all(message, &["the guest runs on: "])?;
            ensure!(vm["status"]["state"] == "Running", "{:#}", vm["status"]);
            note(&format!("the guest does not suspend itself: {message}"));
        }
        ensure!(self.platform.qemu()? == pid, "another process");
        declare("Running", "Disk")?;
        kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
        self.goes_on_after(&before)?;
        ensure!(self.platform.qemu()? == pid, "another process");
        self.project.plan_is_empty()
    }

    fn check_clock(&self) -> Result<()> {
        let now = || -> Result<u64> { Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()) };
        let before = now()?;
        let guest: u64 = self.run("date +%s")?.trim().parse()?;
        let after = now()?;
        let is_right = guest + OFF >= before && guest <= after + OFF;
        ensure!(is_right, "{guest} in the guest, {before} to {after} on the host");
        Ok(())
    }

    fn gets_other_user_data(&self) -> Result<()> {
        let before = self.seen()?;
        ensure!(before.kept == "kept" && before.stops == "0", "{before:?}");
        self.project.edit("cloud-init.yaml", "hello from berth", "hello again")?;
        let domain = "    domain = \"example.org\"\n";
        let more = format!("{domain}    hostname = \"again\"\n    user_data_policy = \"reboot\"\n");
        self.project.edit("main.tf", domain, &more)?;
        self.project.edit("main.tf", PLACE, &format!("{PLACE}{TOKEN}{HOOKS}"))?;
        let plan = self.project.plan()?;
        ensure!(plan.changes() == ["berth_vm.web: update"], "{:?}", plan.changes());
        contains_all(&unwrapped(&plan.text), &["The VM will be restarted"])?;
        self.project.apply()?;
        let now = self.boots_after(&before)?;
        ensure!(now.instance != before.instance, "the same instance: {now:?}");
        let rest = [now.stops.as_str(), &now.kept, &now.hostname];
        ensure!(rest == ["1", "kept", "again"], "one stop, the file and the host name: {now:?}");
        contains_all(&self.run("sudo cat /run/cloud-init/instance-data.json")?, &["again.example.org"])?;
        let page = http::get_within(self.platform.neighbour(), self.address, "/", SOON)?;
        contains_all(&page, &["hello again"])?;
        let has_token = |vm: &Value| {
            vm["status"]["restartToken"].as_str().is_some_and(|t| t.starts_with("debian"))
        };
        self.platform.kubectl().until(VM, "its restart token", SOON, has_token)?;
        self.project.plan_is_empty()
    }

    fn off_and_on(&self) -> Result<()> {
        let (before, kubectl) = (self.seen()?, self.platform.kubectl());
        self.declare_power("Running", "Stopped")?;
        kubectl.until(VM, "to be stopped", BOOT, |vm| vm["status"]["state"] == "Stopped")?;
        ensure!(self.platform.qemu().is_err(), "QEMU still runs");
        self.project.plan_is_empty()?;
        // Later cases stop the guest without its agent.
        self.project.edit("main.tf", HOOKS, "")?;
        self.declare_power("Stopped", "Running")?;
        let now = self.boots_after(&before)?;
        let expected = Seen { boot: now.boot.clone(), stops: "2".to_owned(), ..before };
        ensure!(now == expected, "{now:?}, expected {expected:?}");
        kubectl.until(VM, "the guest agent", BOOT, |vm| vm["status"]["guest"]["agent"] == true)?;
        self.project.plan_is_empty()
    }
}
