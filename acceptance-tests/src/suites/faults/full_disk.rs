//! A host with a full disk: while it pulls an image, while a guest writes, while the database of `berth up` is written. The
//! tests cover the refusals, the operations that continue, and the recovery once there is space.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::fleet::{Fleet, Member};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::platform::Parts;
use crate::report::{Report, note};
use crate::suites::kubectl::contains_all;
use crate::{process, wait};

/// The size of the disk for all of berth's data on the host. The guest's image is 26 MB and its firmware variables a few
/// hundred KiB.
const SIZE: &str = "200m";
const ANSWER: Duration = Duration::from_secs(120);
/// The time limit of the recovery: a failed step is retried with growing pauses.
const HEALS: Duration = Duration::from_secs(330);
const SOON: Duration = Duration::from_secs(60);
/// The name of the file that fills the disk, and of a label.
const FILLER: &str = "filler";

/// Runs the cases on a host of its own.
pub fn run(report: &mut Report, parts: &Parts, guest: &GuestImage) -> Result<()> {
    let mut fleet = report
        .step("berth up is ready on a host with a small disk", || Fleet::embedded_on(parts, small_disk))?;
    let outcome = chapters(report, &mut fleet, guest);
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("SIGTERM ends berth up", || fleet.stop());
    Ok(())
}

fn small_disk(member: &mut Member) -> Result<()> {
    let state = member.berth.state();
    fs::create_dir_all(state)?;
    let mut mount = member.berth.machine().command("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE},mode=0711"), "tmpfs"]).arg(state);
    process::run(&mut mount, SOON)?.success().map(drop)
}

fn chapters(report: &mut Report, fleet: &mut Fleet, guest: &GuestImage) -> Result<()> {
    let disk = HostDisk::of(fleet)?;
    pulling(report, fleet, guest, &disk)?;
    let address = report.step("with room again a guest runs from it, with a data disk", || running(fleet))?;
    writing(report, fleet, &address, &disk);
    database(report, fleet, &address, &disk);
    report.case("what was there can be deleted, and leaves nothing", || {
        let kubectl = fleet.kubectl();
        kubectl.ok(&["delete", "vm/full", "--timeout=85s"])?;
        wait::until("disks and image to go", SOON, || {
            let objects = [
                "delete",
                "disk/full",
                "disk/data",
                "image/full",
                "vmclass/full",
                "vmclass/after",
                "--ignore-not-found",
            ];
            kubectl.ok(&objects).map(drop)
        })?;
        ensure!(fleet.members()[0].qemu()?.is_empty(), "QEMU still runs");
        Ok(())
    });
    Ok(())
}

/// The host's disk, as accessible from this machine.
struct HostDisk {
    folder: PathBuf,
}

impl HostDisk {
    fn of(fleet: &Fleet) -> Result<Self> {
        let berth = &fleet.members().first().context("no host")?.berth;
        Ok(Self { folder: berth.machine().seen(berth.state()) })
    }

    /// Fills the disk up to this many free bytes.
    fn leave(&self, bytes: u64) -> Result<()> {
        self.empty()?;
        let free = self.free()?;
        let size = free.saturating_sub(bytes).to_string();
        let mut fill = Command::new("fallocate");
        fill.args(["--length", &size]).arg(self.folder.join(FILLER));
        process::run(&mut fill, SOON)?.success()?;
        let left = self.free()?;
        ensure!(left <= bytes + 4096, "{left} bytes are left");
        Ok(())
    }

    fn empty(&self) -> Result<()> {
        match fs::remove_file(self.folder.join(FILLER)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn free(&self) -> Result<u64> {
        free(&self.folder)
    }
}

fn free(folder: &Path) -> Result<u64> {
    let facts = nix::sys::statvfs::statvfs(folder).with_context(|| folder.display().to_string())?;
    Ok(facts.blocks_available() * facts.fragment_size())
}

fn pulling(report: &mut Report, fleet: &Fleet, guest: &GuestImage, disk: &HostDisk) -> Result<()> {
    let kubectl = fleet.kubectl();
    report.case("an image without room is not Ready, with a reason, and leaves no partial file", || {
        disk.leave(8 << 20)?;
        let url = fleet.images().put("guest.qcow2", Content::File(guest.path.clone()));
        kubectl.apply(&manifests::image("full", &url, &guest.sha256).to_string())?;
        let image = kubectl.condition("image/full", "Ready=False", Some("NoSpace"), SOON)?;
        let message = condition_of(&image, "Ready").context("no Ready")?["message"].to_string();
        contains_all(&message, &["free"])?;
        // Other operations continue.
        kubectl.apply(&manifests::class("full", 1, "128Mi").to_string())?;
        Ok(())
    });
    report.step("once there is room it is pulled by itself", || {
        disk.empty()?;
        kubectl.condition("image/full", "Ready=True", None, HEALS).map(drop)
    })
}

/// Starts a VM with a data disk. Returns its private address.
fn running(fleet: &Fleet) -> Result<String> {
    let kubectl = fleet.kubectl();
    let vm = manifests::with(
        manifests::vm("full", "full", "full"),
        "disks",
        json!([{"name": "full", "boot": true}, {"name": "data"}]),
    );
    kubectl.apply(&manifests::all(&[
        manifests::bios_class("full", "128Mi"),
        manifests::disk("full", "full", "64Mi"),
        manifests::blank_disk("data", "64Mi"),
        vm,
    ]))?;
    let vm = kubectl.condition("vm/full", "Ready=True", None, ANSWER)?;
    let address = vm["status"]["interfaces"][0]["address"].as_str().context("no address")?.to_owned();
    http::get_within(fleet.members()[0].namespace(), &address, "/", ANSWER)?;
    Ok(address)
}

fn writing(report: &mut Report, fleet: &Fleet, address: &str, disk: &HostDisk) {
    let kubectl = fleet.kubectl();
    let namespace = fleet.members()[0].namespace();
    report.case(
        "a guest whose host has no room to write is paused with a reason, and continues once there is",
        || {
            let serial =
                kubectl.object("disk", "data")?["status"]["serial"].as_str().unwrap_or_default().to_owned();
            let disks = http::get(namespace, address, "/cgi-bin/disks", SOON)?;
            let line = disks.lines().find(|line| field(line, "serial").is_ok_and(|found| found == serial));
            let device = field(line.with_context(|| disks.clone())?, "name")?.to_owned();
            // Less than the 8 MiB that the guest will write, and enough for berth's own records.
            disk.leave(4 << 20)?;
            let (place, from) = (address.to_owned(), std::sync::Arc::clone(namespace));
            let page = format!("/cgi-bin/write?dev={device}&seed=full");
            let writer = std::thread::spawn(move || http::get(&from, &place, &page, HEALS));
            let paused = kubectl.until("vm/full", "to be paused, with the name of the disk", ANSWER, |vm| {
                condition_of(vm, "Ready").is_some_and(|ready| {
                    let message = ready["message"].to_string();
                    ready["reason"] == "NoSpace" && message.contains("Disk data in StoragePool default")
                })
            });
            disk.empty()?;
            let paused = paused?;
            let message = condition_of(&paused, "Ready").context("no Ready")?["message"].to_string();
            contains_all(&message, &["paused", "free space there"])?;
            ensure!(paused["status"]["state"] == "Paused", "{:#}", paused["status"]);
            let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            let read = http::get(namespace, address, &format!("/cgi-bin/sum?dev={device}"), SOON)?;
            ensure!(field(&written, "sha256")? == field(&read, "sha256")?, "{written} {read}");
            kubectl.condition("vm/full", "Ready=True", None, HEALS).map(drop)
        },
    );
}

fn database(report: &mut Report, fleet: &mut Fleet, address: &str, disk: &HostDisk) {
    report.case(
        "with no room for the database nothing new is taken, small changes, deletions and guests go on, and it heals",
        || {
            let kubectl = fleet.kubectl().clone();
            kubectl.apply(&manifests::class("spare", 1, "128Mi").to_string())?;
            let boot = boot_of(fleet, address)?;
            disk.leave(0)?;
            let outcome = refused_writes(fleet, address);
            disk.empty()?;
            outcome?;
            wait::until("something new to be taken again", SOON, || {
                kubectl.apply(&manifests::class("after", 1, "128Mi").to_string()).map(drop)
            })?;
            fleet.member_mut("h1")?.berth.must_run()?;
            kubectl.condition("vm/full", "Ready=True", None, HEALS)?;
            ensure!(boot_of(fleet, address)? == boot, "the guest rebooted");
            // The data written is still there after a restart.
            fleet.member_mut("h1")?.berth.crash()?;
            fleet.member_mut("h1")?.berth.spawn_up()?;
            fleet.host_is_ready("h1")?;
            let class = kubectl.object("vmclass", "full")?;
            ensure!(class["metadata"]["labels"]["during"] == "full", "{:#}", class["metadata"]);
            kubectl.object("vmclass", "after")?;
            kubectl.refused(&["get", "vmclass", "spare"])?;
            ensure!(boot_of(fleet, address)? == boot, "the guest rebooted");
            Ok(())
        },
    );
}

fn refused_writes(fleet: &mut Fleet, address: &str) -> Result<()> {
    let kubectl = fleet.kubectl().clone();
    let mut number = 0;
    // berth does not check the disk for every write.
    let output = wait::until("something new to be refused", SOON, || {
        number += 1;
        let mut filling = manifests::class(&format!("filling-{number}"), 1, "128Mi");
        filling["metadata"]["labels"] = json!({FILLER: "yes"});
        let finished = kubectl.with_input(&["apply", "--server-side", "-f", "-"], &filling.to_string())?;
        ensure!(!finished.status.success(), "it was taken");
        Ok(finished.output())
    })?;
    contains_all(&output, &["disk is full", "make some"])?;
    kubectl.object("vm", "full").context("reading")?;
    kubectl.ok(&["label", "vmclass", "full", "during=full", "--overwrite"]).context("a small change")?;
    kubectl.ok(&["delete", "vmclass", "-l", &format!("{FILLER}=yes")]).context("deleting what was taken")?;
    kubectl.ok(&["delete", "vmclass", "spare"]).context("deleting")?;
    http::get(fleet.members()[0].namespace(), address, "/", SOON).context("the guest")?;
    fleet.member_mut("h1")?.berth.must_run()
}

fn boot_of(fleet: &Fleet, address: &str) -> Result<String> {
    let text = http::get(fleet.members()[0].namespace(), address, "/cgi-bin/uptime", SOON)?;
    Ok(field(&text, "boot_id")?.to_owned())
}
