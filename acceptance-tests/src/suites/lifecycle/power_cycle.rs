//! Cases of the lifecycle: power cycles, changes that wait for one, and changes of the running guest.

use anyhow::{Context, Result, ensure};

use super::super::console;
use super::super::kubectl::contains_all;
use super::{ANSWER, CARD, Lifecycle, SOON, guest_disk, holds, same_boot, serial_of};
use crate::http::{self, field};
use crate::{cgroups, wait};

/// The UUID that the guest gets with its second start.
const UUID: &str = "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c";
/// The least that the guest gives back of 256 MiB, in KiB: its kernel may use a part of them for what it cannot move.
const GIVEN_BACK: u64 = 128 << 10;
const TWO_CARDS: &str = r#"[{ public_ip = berth_public_ip.web.name, queues = 2 }, { model = "e1000e" }]"#;

impl Lifecycle<'_> {
    pub(super) fn power_cycle(&mut self) {
        let (public, boot) = (self.public.clone(), self.boot.clone());
        self.case(
            "a new size of the class waits for the next power cycle and is reported",
            |platform, project| {
                project.edit(
                    "main.tf",
                    "cpus   = 1",
                    "cpus   = 2\n  max_cpus = 3\n  max_memory = \"1Gi\"",
                )?;
                let plan = project.plan()?;
                ensure!(plan.changes() == ["berth_vm_class.small: update"], "{:?}", plan.changes());
                project.apply()?;
                platform.kubectl().condition("vm/web", "ClassSynced=False", None, SOON)?;
                let waits = crate::terraform::unwrapped(&project.plan()?.text);
                contains_all(&waits, &["Changes wait for the next power cycle", "cpus"])?;
                same_boot(platform, &public, &boot)?;
                project.plan_is_empty()
            },
        );
        self.case(
            "power = Stopped asks the guest to shut down, then nothing runs and the plan is empty",
            |platform, project| {
                project.edit("main.tf", r#"power    = "Running""#, r#"power    = "Stopped""#)?;
                let plan = project.plan()?;
                ensure!(plan.changes() == ["berth_vm.web: update"], "{:?}", plan.changes());
                let serial = platform.serial("web");
                project.apply()?;
                platform
                    .kubectl()
                    .until("vm/web", "to be stopped", ANSWER, |vm| vm["status"]["state"] == "Stopped")?;
                ensure!(platform.qemu().is_err(), "QEMU still runs");
                let printed = platform.serial("web").or(serial)?;
                contains_all(&printed, &["berth-guest-powering-off"])?;
                contains_all(&console::log(platform, "web")?, &["berth-guest-powering-off"])?;
                let refused = console::attach(platform, "web")?;
                contains_all(&refused, &["the VM does not run"])?;
                platform.kubectl().condition("vm/web", "Ready=True", None, SOON)?;
                project.plan_is_empty()
            },
        );
        let pattern = self.pattern.clone();
        self.case(
            "power = Running starts it with the new size, card and UUID, the same address and its disks",
            |platform, project| {
                let address = project.output("public_address")?;
                project.edit("main.tf", r#"power    = "Stopped""#, r#"power    = "Running""#)?;
                project.edit("main.tf", CARD, TWO_CARDS)?;
                project.edit(
                    "main.tf",
                    "wait_for = \"guest\"",
                    &format!("wait_for = \"guest\"\n  uuid = \"{UUID}\"\n  serial_number = \"ACME-1\"\n  watchdog = \"Reset\"\n  sound = true\n  serial_ports = 2"),
                )?;
                project.edit("main.tf", "cpus   = 2", "cpus   = 2\n  cpu_model = \"x86-64-v2\"\n  io_threads_policy = \"PerDisk\"")?;
                project.edit("main.tf", "boot = true }", "boot = true, bus = \"virtio-blk\" }")?;
                project.apply()?;
                let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
                let root = guest_disk(platform, &address, &serial_of(platform, "web-root")?)?;
                ensure!(root.name.starts_with("vd"), "not on virtio-blk: {}", root.name);
                let line = std::fs::read_to_string(format!("/proc/{}/cmdline", platform.qemu()?))?;
                ensure!(line.contains(r#""iothread":"io-"#), "no thread of its own: {line}");
                ensure!(field(&text, "cpus")? == "2", "{text}");
                let cards = http::get(platform.neighbour(), &address, "/cgi-bin/network", SOON)?;
                contains_all(&cards, &["card=0x1af4:0x1041", "card=0x8086:0x10d3"])?;
                let queues = format!("queues-{}", field(&cards, "mac")?);
                ensure!(field(&cards, &queues)? == "2", "not a queue for each CPU: {cards}");
                ensure!(field(&text, "uuid")? == UUID, "{text}");
                ensure!(field(&text, "serial")? == "ACME-1" && field(&text, "watchdogs")? == "1", "{text}");
                ensure!(field(&text, "sound_cards")? == "1", "{text}");
                wait::until("the log of the second serial port", SOON, || {
                    contains_all(&console::log_of_port(platform, "web", "2")?, &["berth-guest-second-port"])
                })?;
                ensure!(!console::log(platform, "web")?.contains("berth-guest-second-port"), "of its own");
                ensure!(field(&text, "avx2")? == "0", "more than the level has: {text}");
                ensure!(field(&text, "boot_id")? != boot, "the same boot: {text}");
                ensure!(project.output("public_address")? == address, "another address");
                platform.kubectl().condition("vm/web", "ClassSynced=True", None, SOON)?;
                holds(platform, &address, &pattern)?;
                project.plan_is_empty()
            },
        );
        self.case(
            "a third CPU and more memory reach the running guest at once, within the maxima",
            |platform, project| {
                let address = project.output("public_address")?;
                let text = http::get(platform.neighbour(), &address, "/cgi-bin/uptime", SOON)?;
                let (boot, pid) = (field(&text, "boot_id")?.to_owned(), platform.qemu()?);
                project.edit("main.tf", "cpus   = 2", "cpus   = 3")?;
                project.edit("main.tf", r#"memory = "512Mi""#, r#"memory = "768Mi""#)?;
                let had: u64 = field(&text, "memory_kib")?.parse()?;
                let plan = project.plan()?;
                ensure!(!plan.text.contains("power cycle"), "{}", plan.text);
                project.apply()?;
                wait::until("the guest to use it", SOON, || {
                    let text = http::get(platform.neighbour(), &address, "/cgi-bin/uptime", SOON)?;
                    let memory: u64 = field(&text, "memory_kib")?.parse()?;
                    ensure!(
                        field(&text, "cpus")? == "3" && memory == had + (256 << 10),
                        "{had} KiB before: {text}"
                    );
                    ensure!(field(&text, "boot_id")? == boot, "another boot: {text}");
                    Ok(())
                })?;
                ensure!(platform.qemu()? == pid, "another QEMU");
                platform.kubectl().condition("vm/web", "ClassSynced=True", None, SOON)?;
                project.plan_is_empty()
            },
        );
        self.case(
            "less memory is given back by the running guest, and plugged in again",
            |platform, project| {
                let address = project.output("public_address")?;
                let page = || http::get(platform.neighbour(), &address, "/cgi-bin/uptime", SOON);
                let memory = |text: &str| -> Result<u64> { Ok(field(text, "memory_kib")?.parse()?) };
                let (before, pid) = (page()?, platform.qemu()?);
                let had = memory(&before)?;
                project.edit("main.tf", r#"memory = "768Mi""#, r#"memory = "512Mi""#)?;
                project.apply()?;
                wait::until("the guest to give memory back", SOON, || {
                    let text = page()?;
                    ensure!(memory(&text)? + GIVEN_BACK <= had, "{had} KiB before: {text}");
                    Ok(())
                })?;
                project.edit("main.tf", r#"memory = "512Mi""#, r#"memory = "768Mi""#)?;
                project.apply()?;
                wait::until("the guest to use it again", SOON, || {
                    let text = page()?;
                    ensure!(memory(&text)? == had, "{had} KiB before: {text}");
                    ensure!(field(&text, "boot_id")? == field(&before, "boot_id")?, "another boot: {text}");
                    Ok(())
                })?;
                ensure!(platform.qemu()? == pid, "another QEMU");
                platform.kubectl().condition("vm/web", "ClassSynced=True", None, SOON)?;
                project.plan_is_empty()
            },
        );
        self.case(
            "a limit and a weight for the CPU time, and a reservation of memory, of the running guest are in force at once",
            |platform, project| {
                let pid = platform.qemu()?;
                let before = platform.kubectl().object("vm", "web")?["status"]["lastReconfigured"].clone();
                let declared =
                    "cpus   = 3\n  cpu_limit = 1.5\n  cpu_weight = 50\n  memory_reservation = \"128Mi\"";
                project.edit("main.tf", "cpus   = 3", declared)?;
                let plan = project.plan()?;
                ensure!(!plan.text.contains("power cycle"), "{}", plan.text);
                project.apply()?;
                let time = |vm: &serde_json::Value| vm["status"]["cpuTime"].clone();
                let wanted = serde_json::json!({"limit": "1.5", "weight": 50});
                platform.kubectl().until("vm/web", "to have the time", SOON, |vm| time(vm) == wanted)?;
                ensure!(cgroups::cpu_time(pid)? == (1500, 50), "{:?}", cgroups::cpu_time(pid)?);
                let kept = |vm: &serde_json::Value| vm["status"]["hardware"]["memoryReservation"].clone();
                platform.kubectl().until("vm/web", "to reserve less", SOON, |vm| kept(vm) == "128Mi")?;
                reports_its_process(&platform.kubectl().object("vm", "web")?["status"], &before, pid)?;
                project.plan_is_empty()?;
                project.edit("main.tf", declared, "cpus   = 3")?;
                project.apply()?;
                platform.kubectl().until("vm/web", "to have no limit", SOON, |vm| time(vm).is_null())?;
                platform.kubectl().until("vm/web", "to reserve all", SOON, |vm| kept(vm).is_null())?;
                ensure!(cgroups::cpu_time(pid)? == (0, 100), "{:?}", cgroups::cpu_time(pid)?);
                ensure!(platform.qemu()? == pid, "another QEMU");
                project.plan_is_empty()
            },
        );
        self.case(
            "power = Paused stops the guest's CPUs, and it is resumed where it was",
            |platform, project| {
                let address = project.output("public_address")?;
                let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
                let (boot, pid) = (field(&text, "boot_id")?.to_owned(), platform.qemu()?);
                project.edit("main.tf", r#"power    = "Running""#, r#"power    = "Paused""#)?;
                project.apply()?;
                let kubectl = platform.kubectl();
                kubectl.condition("vm/web", "Ready=True", Some("Paused"), SOON)?;
                kubectl.condition("vm/web", "Running=False", Some("Paused"), SOON)?;
                let state = kubectl.object("vm", "web")?["status"]["state"].clone();
                ensure!(state == "Paused", "{state}");
                project.plan_is_empty()?;
                let token = r#"{"spec":{"restartToken":"paused"}}"#;
                let refused = kubectl.refused(&["patch", "vm", "web", "--type=merge", "-p", token])?;
                contains_all(&refused, &["spec.restartToken", "while power is Paused"])?;
                project.edit("main.tf", r#"power    = "Paused""#, r#"power    = "Running""#)?;
                project.apply()?;
                let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
                ensure!(field(&text, "boot_id")? == boot, "another boot: {text}");
                ensure!(platform.qemu()? == pid, "another process");
                project.plan_is_empty()
            },
        );
        self.case(
            "power = Suspended leaves no QEMU, and the guest goes on where it was in another, with what was plugged in",
            |platform, project| {
                let address = project.output("public_address")?;
                let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
                let (boot, pid) = (field(&text, "boot_id")?.to_owned(), platform.qemu()?);
                let uptime: f64 = field(&text, "uptime")?.parse()?;
                let (cpus, memory) = (field(&text, "cpus")?.to_owned(), field(&text, "memory_kib")?.to_owned());
                project.edit("main.tf", r#"power    = "Running""#, r#"power    = "Suspended""#)?;
                project.apply()?;
                let kubectl = platform.kubectl();
                kubectl.condition("vm/web", "Ready=True", Some("Suspended"), SOON)?;
                let status = kubectl.object("vm", "web")?["status"].clone();
                ensure!(status["state"] == "Suspended" && status["process"].is_null(), "{status:#}");
                ensure!(status["operation"].is_null() && status["facts"].is_null(), "{status:#}");
                ensure!(platform.qemu().is_err(), "it still has a QEMU");
                project.plan_is_empty()?;
                let off = r#"{"spec":{"power":"Stopped"}}"#;
                let refused = kubectl.refused(&["patch", "vm", "web", "--type=merge", "-p", off])?;
                contains_all(&refused, &["spec.power", "the VM is suspended"])?;
                project.edit("main.tf", r#"power    = "Suspended""#, r#"power    = "Running""#)?;
                project.apply()?;
                let text = http::get_within(platform.neighbour(), &address, "/cgi-bin/uptime", ANSWER)?;
                ensure!(field(&text, "boot_id")? == boot, "another boot: {text}");
                ensure!(field(&text, "uptime")?.parse::<f64>()? > uptime, "its time stood still: {text}");
                ensure!(field(&text, "cpus")? == cpus && field(&text, "memory_kib")? == memory, "{text}");
                ensure!(platform.qemu()? != pid, "the same process");
                kubectl.condition("vm/web", "GuestReady=True", None, SOON)?;
                project.plan_is_empty()
            },
        );
    }
}

/// Checks that a status has the time of a change, and the facts of this process.
fn reports_its_process(status: &serde_json::Value, before: &serde_json::Value, pid: i32) -> Result<()> {
    let (facts, changed) = (&status["facts"], &status["lastReconfigured"]);
    ensure!(changed.is_string() && changed != before, "{changed} and {before} before");
    ensure!(facts["accelerator"] == status["hardware"]["accelerator"], "{facts:#}");
    let group = facts["cgroup"].as_str().context("no control group is reported")?;
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    ensure!(groups.lines().any(|line| line.ends_with(group)), "{group} is not of {groups}");
    Ok(())
}
