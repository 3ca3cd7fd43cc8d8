//! A pool in a Ceph cluster with the small guest: its disks, their growth, a VM that moves, a monitor that is away, a host that is lost while
//! its QEMU runs on and still reaches Ceph, the TPM of a VM of that host, an encrypted disk. In a suite of its own: snapshots, backups and images of
//! a disk, an OSD that stands still, a full clone and the trash, snapshots with the guest's memory and with a disk in a file, and copies in other
//! pools. The first ones also run on a real Kubernetes control plane, with snapshots, backups and images.

mod backups;
mod copies;
mod encryption;
mod faults;
mod firmware;
mod memory;
mod mixed;
mod snapshots;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Kit;
use super::site::ControlPlane;
use crate::berth::RbdPool;
use crate::ceph::{self, Ceph};
use crate::control_plane::Location;
use crate::fleet::{Fleet, host_in};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::namespace::Namespace;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::{manifests, process, wait};

/// The address of Ceph's machine on the segment.
const CEPH: &str = "192.0.2.4";
/// The time limit for a guest that boots beside others on two emulating processors.
const ANSWER: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
/// A host looks at its pools every minute, and when it is asked to.
const LOOKS: Duration = Duration::from_secs(150);
/// Longer than a write takes, shorter than a client that gives up.
const NO_ANSWER: Duration = Duration::from_secs(10);
/// The image by which a host knows the pool again.
const MARKER: &str = "berth-pool";
/// The names in the configuration.
const POOL: &str = "remote";
const VM: &str = "in-ceph";
const ROOT: &str = "in-ceph-root";
const DATA: &str = "in-ceph-data";
const CONFIGURATION: &str = include_str!("rbd/main.tf");
/// A VM with a disk in the default pool.
const OTHER: &str = "beside-ceph";
/// The host that stays, and the one that is lost.
const STAYS: &str = "h1";
const LOST: &str = "h2";

type Cases = fn(&mut Report, &mut Fleet, &mut Ceph, &GuestImage) -> Result<()>;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report, on: ControlPlane) -> Result<()> {
    on_ceph(kit, report, ("rbd", on), cases)
}

/// The longer cases, on `berth up`.
pub fn snapshots_and_copies(kit: &Kit, report: &mut Report) -> Result<()> {
    on_ceph(kit, report, ("rbd-snapshots", ControlPlane::Embedded), longer_cases)
}

fn on_ceph(kit: &Kit, report: &mut Report, (name, on): (&str, ControlPlane), cases: Cases) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts(&on.suite(name)))?;
    let servers = report.step("Ceph's programs are there", || kit.ceph())?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut fleet = on.fleet(kit, report, &parts)?;
    let mut ceph = report.step("a Ceph cluster serves the segment", || {
        let namespace = fleet.server(CEPH)?;
        let folder = fleet.folder().join("ceph");
        let place =
            Location { namespace: &namespace, address: CEPH, ipv6: None, folder: &folder, logs: &parts.logs };
        Ceph::start(&servers, place)
    })?;
    report.step("both hosts know its pool", || offer(&mut fleet, &ceph))?;
    let before = report.step("the empty hosts are looked at", || fleet.footprints())?;
    let outcome = cases(report, &mut fleet, &mut ceph, &guest);
    if outcome.is_err() || report.count().failed > 0 {
        note(&fleet.keep_evidence());
    }
    outcome?;
    report.case("the host that stays has nothing left of a VM", || {
        let stays: Vec<_> = before.into_iter().filter(|(name, _)| name == STAYS).collect();
        fleet.nothing_beyond(&stays, SOON)
    });
    report.case("SIGTERM ends berth, and Ceph", || {
        fleet.stop()?;
        ceph.stop()
    });
    Ok(())
}

fn offer(fleet: &mut Fleet, ceph: &Ceph) -> Result<()> {
    let pool = RbdPool { pools: (POOL, ceph::POOL), configuration: ceph.configuration(), user: ceph::USER };
    if fleet.is_embedded() {
        let berth = &mut fleet.member_mut(STAYS)?.berth;
        berth.stop()?;
        berth.offer_rbd(&pool);
        fleet.start_again(STAYS)?;
    } else {
        join(fleet, 1, &pool)?;
    }
    join(fleet, 2, &pool)
}

fn join(fleet: &mut Fleet, number: u32, pool: &RbdPool) -> Result<()> {
    let mut machine = fleet.machine(number)?;
    machine.berth.offer_rbd(pool);
    fleet.join_on(machine, &[])
}

/// The guest.
struct Guest {
    project: Project,
    variables: Value,
    address: String,
}

fn cases(report: &mut Report, fleet: &mut Fleet, ceph: &mut Ceph, image: &GuestImage) -> Result<()> {
    let mut guest = report
        .step("a guest runs with a disk from an image and a blank one: both are images in Ceph", || {
            boots(fleet, ceph, image, "64Mi")
        })?;
    report.case(
        "it moves to the other host while it is off, with its data, and no client has its disks open meanwhile",
        || moves(fleet, ceph, &guest),
    );
    report.case("it moves back while it is off, with its data", || returns(fleet, &guest));
    report.case("its disk grows while it runs", || grows(fleet, ceph, &mut guest));
    report.case("a VM with a TPM is stopped: a copy of its firmware state is in Ceph", || {
        firmware::copied(fleet, ceph)
    });
    report.case("without Ceph's monitor the pool is away, the guest goes on, and others start", || {
        let written = write(fleet, &guest, 5)?;
        ceph.freeze_monitor(true);
        let held = without_monitor(fleet, &guest, &written);
        ceph.freeze_monitor(false);
        let objects = [format!("vm/{OTHER}"), format!("disk/{OTHER}"), format!("vmclass/{OTHER}")];
        let deleted = objects.iter().try_for_each(|object| fleet.kubectl().delete(object));
        held.and(deleted)
    });
    report.case(
        "its host is lost, its QEMU is not: the guest goes on elsewhere, what the old one writes is refused, and a VM with a TPM keeps that",
        || {
            let held = goes_on_elsewhere(fleet, ceph, &guest);
            let ended = end_guests(fleet);
            held.and(ended).and(firmware::delete(fleet))
        },
    );
    report.case("its QEMU is killed: it boots again, and writes to its disks", || killed(fleet, &guest));
    // On `berth up` they are in the suite of the longer cases.
    if !fleet.is_embedded() {
        data_cases(report, fleet, ceph, &guest);
    }
    report.case(
        "Ceph has nothing readable of an encrypted disk, which has its data after a change of its class and a restart",
        || encryption::case(fleet, ceph, &guest),
    );
    report.case("its deletion leaves neither of its disks in Ceph", || deleted(fleet, ceph, &guest));
    Ok(())
}

/// Snapshots, backups and images of the disks of the guest on [`STAYS`], of which the second has 128 MiB.
fn data_cases(report: &mut Report, fleet: &mut Fleet, ceph: &Ceph, guest: &Guest) {
    report.case(
        "a snapshot of its disks while it runs: a disk from it and a restore have its data, and it is deleted",
        || snapshots::case(fleet, ceph, guest),
    );
    report.case(
        "backups of its disk read what has changed, a disk from one and an image have the data, and no snapshot is left",
        || backups::case(fleet, ceph, guest),
    );
}

fn longer_cases(report: &mut Report, fleet: &mut Fleet, ceph: &mut Ceph, image: &GuestImage) -> Result<()> {
    let guest = report
        .step("a guest runs with a disk from an image and a blank one: both are images in Ceph", || {
            boots(fleet, ceph, image, "128Mi")
        })?;
    report.case(
        "while the only OSD stands still the pool is away and a write of the guest waits, and is done afterwards",
        || faults::osd_stands_still(fleet, ceph, &guest),
    );
    report.step("it moves to the other host", || move_to(fleet, STAYS))?;
    data_cases(report, fleet, ceph, &guest);
    report.case("a full clone has no parent in Ceph, and comes back out of the trash with its data", || {
        faults::copied_whole(fleet, ceph, &guest)
    });
    report.case(
        "a snapshot of its disks in Ceph and of one in a file of its host is of one moment, and all are restored",
        || mixed::case(fleet, ceph, &guest),
    );
    report.case(
        "a snapshot with its memory: after a restore it goes on at that moment, with the data of its disks in Ceph",
        || memory::case(fleet, ceph, &guest),
    );
    report.case(
        "copies of its disk in a file of its host, and of that in Ceph, have its data and depend on nothing",
        || copies::case(fleet, ceph, &guest),
    );
    report.case(
        "an encrypted disk has the data of its image and is no clone of it, and a copy of its snapshot is one",
        || encryption::of_an_image(fleet, ceph, &guest),
    );
    report.case("its deletion leaves neither of its disks in Ceph", || deleted(fleet, ceph, &guest));
    Ok(())
}

/// Destroys the VM and its disks, and then the pool, which must be there for its hosts to delete anything in it.
fn deleted(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let mut arguments = vec!["destroy", "-auto-approve", "-input=false", "-no-color"];
    arguments.extend(["-target=berth_disk.root", "-target=berth_disk.data"]);
    guest.project.run(&arguments)?.success()?;
    fleet.kubectl().while_hosts_look(LOOKS, |limit| {
        wait::until("the disks' images to be deleted", limit, || {
            let images = ceph.images()?;
            // The content of an Image stays for the next disk.
            let stays = |image: &str| image == MARKER || image.starts_with("berth-image-");
            let Some(image) = images.iter().find(|image| !stays(image)) else { return Ok(()) };
            bail!(
                "it has {images:?}, of which {image} is open by {:?}; the cluster refuses {:?}",
                ceph.clients(image),
                ceph.blocked()?
            )
        })
    })?;
    guest.project.destroy().map(drop)
}

fn boots(fleet: &Fleet, ceph: &Ceph, image: &GuestImage, data_size: &str) -> Result<Guest> {
    let kubectl = fleet.kubectl();
    let project = fleet.project()?;
    project.write("main.tf", CONFIGURATION)?;
    let url = fleet.images().put("guest.qcow2", Content::File(image.path.clone()));
    let variables = json!({"image_url": url, "image_sha256": image.sha256, "data_size": data_size});
    project.write("terraform.tfvars.json", &variables.to_string())?;
    project.init()?;
    // No rule that it would have to keep when its host is lost.
    fleet.administrator().host("cordon", STAYS)?.success()?;
    project.apply()?;
    fleet.administrator().host("uncordon", STAYS)?.success()?;
    project.plan_is_empty()?;
    ensure!(fleet.host_of(VM)? == LOST, "it is on {}", fleet.host_of(VM)?);
    for disk in [ROOT, DATA] {
        client(ceph, &volume(fleet, disk)?)?;
    }
    let root = ceph.image(&volume(fleet, ROOT)?)?;
    let parent = root["parent"]["image"].as_str().unwrap_or_default();
    ensure!(parent.starts_with("berth-image-"), "the disk is no clone of the image: {root}");
    kubectl.while_hosts_look(LOOKS, |limit| {
        kubectl.until(&format!("storagepool/{POOL}"), "to be there on both hosts", limit, |pool| {
            pool["status"]["hosts"] == 2 && pool["status"]["total"].is_string()
        })
    })?;
    let address = project.output("address")?;
    Ok(Guest { project, variables, address })
}

fn moves(fleet: &Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let written = write(fleet, guest, 3)?;
    power(fleet, "Stopped")?;
    for disk in [ROOT, DATA] {
        let image = volume(fleet, disk)?;
        wait::until("the disks to be closed", SOON, || {
            let clients = ceph.clients(&image)?;
            ensure!(clients.is_empty(), "{disk} is open at {clients:?}");
            Ok(())
        })?;
    }
    move_to(fleet, STAYS)?;
    ensure!(sum(fleet, STAYS, guest)? == written, "it reads other data than was written");
    guest.project.plan_is_empty()
}

/// Declares the power, and waits until it is so.
fn power(fleet: &Fleet, power: &str) -> Result<()> {
    let (kubectl, object) = (fleet.kubectl(), format!("vm/{VM}"));
    let patch = json!({"spec": {"power": power}}).to_string();
    kubectl.ok(&["patch", &object, "--type=merge", "-p", &patch])?;
    kubectl.until(&object, power, ANSWER, |vm| vm["status"]["state"] == power)?;
    Ok(())
}

/// The VM runs on this host next.
fn move_to(fleet: &Fleet, host: &str) -> Result<()> {
    let administrator = fleet.administrator();
    power(fleet, "Stopped")?;
    administrator.run(&["move", VM, "--to", host])?.success()?;
    power(fleet, "Running")?;
    let vm = fleet.kubectl().object("vm", VM)?;
    ensure!(host_in(&vm).as_deref() == Some(host), "{:#}", vm["status"]["binding"]);
    administrator.run(&["move", VM, "--cancel"])?.success().map(drop)
}

/// Its first host has to take its disks again, from the other one.
fn returns(fleet: &Fleet, guest: &Guest) -> Result<()> {
    let written = write_on(fleet, STAYS, guest, 4)?;
    move_to(fleet, LOST)?;
    ensure!(sum(fleet, LOST, guest)? == written, "it reads other data than was written");
    let stays = fleet.kubectl().object("host", STAYS)?;
    ensure!(
        stays["status"]["orphans"].as_array().is_none_or(Vec::is_empty),
        "{:#}",
        stays["status"]["orphans"]
    );
    guest.project.plan_is_empty()
}

fn grows(fleet: &Fleet, ceph: &Ceph, guest: &mut Guest) -> Result<()> {
    let boot = boot_of(fleet, LOST, guest)?;
    guest.variables["data_size"] = "128Mi".into();
    guest.project.write("terraform.tfvars.json", &guest.variables.to_string())?;
    guest.project.apply()?;
    wait::until("the guest to see the new size", SOON, || {
        let line = line_of(fleet, LOST, &guest.address, DATA)?;
        ensure!(field(&line, "size")? == (128 << 20).to_string(), "{line}");
        Ok(())
    })?;
    let image = ceph.image(&volume(fleet, DATA)?)?;
    ensure!(image["size"] == 128 << 20, "{image}");
    ensure!(boot_of(fleet, LOST, guest)? == boot, "the guest rebooted");
    guest.project.plan_is_empty()
}

fn without_monitor(fleet: &mut Fleet, guest: &Guest, written: &str) -> Result<()> {
    let pids = fleet.member(LOST)?.qemu()?;
    // An agent looks at its pools when it starts.
    fleet.member_mut(LOST)?.berth.crash()?;
    fleet.member_mut(LOST)?.berth.spawn_joined(None, &[])?;
    let kubectl = fleet.kubectl();
    let vm = manifests::with(manifests::vm(OTHER, OTHER, OTHER), "placement", json!({"host": LOST}));
    kubectl.apply(&manifests::all(&[
        manifests::bios_class(OTHER, "128Mi"),
        manifests::blank_disk(OTHER, "64Mi"),
        vm,
    ]))?;
    kubectl.condition(&format!("vm/{OTHER}"), "Running=True", None, ANSWER)?;
    kubectl.until(&format!("host/{LOST}"), "to miss the pool", LOOKS, |host| problem(host).is_some())?;
    kubectl.until(&format!("storagepool/{POOL}"), "to be away", SOON, |pool| {
        pool["status"]["hostsAway"].as_u64().is_some_and(|hosts| hosts > 0)
    })?;
    let now = fleet.member(LOST)?.qemu()?;
    ensure!(pids.iter().all(|pid| now.contains(pid)), "before {pids:?}, now {now:?}");
    ensure!(sum(fleet, LOST, guest)? == written, "it reads other data than was written");
    Ok(())
}

/// The reason for which a host cannot use the pool, if it has reported one.
fn problem(host: &Value) -> Option<&str> {
    let pool = host["status"]["pools"].as_array()?.iter().find(|pool| pool["name"] == POOL)?;
    pool["problem"].as_str()
}

/// The host hangs and is cut off from the other one, but not from Ceph.
fn goes_on_elsewhere(fleet: &mut Fleet, ceph: &Ceph, guest: &Guest) -> Result<()> {
    let kubectl = fleet.kubectl().clone();
    kubectl.while_hosts_look(LOOKS, |limit| {
        kubectl.until(&format!("host/{STAYS}"), "to have the pool", limit, |host| problem(host).is_none())
    })?;
    let boot = boot_of(fleet, LOST, guest)?;
    let device = device(fleet, LOST, guest)?;
    let images = [volume(fleet, ROOT)?, volume(fleet, DATA)?];
    for disk in [ROOT, DATA] {
        let disk = kubectl.object("disk", disk)?;
        ensure!(disk["status"]["survivesHostLoss"] == true, "{:#}", disk["status"]);
    }
    fleet.member_mut(LOST)?.berth.crash()?;
    let (pids, address) = (fleet.member(LOST)?.qemu()?, fleet.member(STAYS)?.address.clone());
    cut_off(fleet.member(LOST)?.namespace(), &address)?;
    let written = write(fleet, guest, 6)?;
    let former = [client(ceph, &images[0])?, client(ceph, &images[1])?];
    let sealed = firmware::may_go_to(fleet, STAYS)?;

    fleet.administrator().run(&["host", "forget", LOST, "--lost"])?.success()?;
    kubectl.until(&format!("vm/{VM}"), "to run elsewhere", ANSWER, |vm| {
        host_in(vm).as_deref() == Some(STAYS)
            && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
    })?;
    let blocked = ceph.blocked()?;
    ensure!(
        former.iter().all(|client| blocked.contains_key(client)),
        "{blocked:?} are not all of {former:?}"
    );
    for image in &images {
        let client = client(ceph, image)?;
        ensure!(!former.contains(&client), "{image} is open at {client}, before at {former:?}");
    }
    ensure!(fleet.member(LOST)?.qemu()? == pids, "the former QEMU has ended");
    let path = format!("/cgi-bin/write?dev={device}&seed=7");
    // Its QEMU may have paused it at the first error.
    let answer = http::get(fleet.member(LOST)?.namespace(), &guest.address, &path, NO_ANSWER);
    ensure!(
        !answer.as_ref().is_ok_and(|text| text.contains("sha256=")),
        "the former guest wrote: {answer:?}"
    );
    ensure!(boot_of(fleet, STAYS, guest)? != boot, "the former guest answered on the other host");
    ensure!(sum(fleet, STAYS, guest)? == written, "it reads other data than was written");
    let written = write_on(fleet, STAYS, guest, 10)?;
    ensure!(sum(fleet, STAYS, guest)? == written, "it does not write to its disk");
    // A client that breaks a lock has the former owner refused anew, by default for an hour.
    let blocked = ceph.blocked()?;
    let years = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / (365 * 24 * 3600);
    for client in &former {
        let until = blocked.get(client).context("a former client is not refused any more")?;
        let year: u64 = until.get(..4).unwrap_or_default().parse().with_context(|| until.clone())?;
        ensure!(year >= 1970 + years + 9, "{client} is refused until {until} only");
    }
    firmware::must_be_kept(fleet, ceph, &sealed)?;
    guest.project.plan_is_empty()
}

/// A QEMU that is killed leaves the locks of its images, which the next one breaks.
fn killed(fleet: &Fleet, guest: &Guest) -> Result<()> {
    write_on(fleet, STAYS, guest, 11)?;
    let boot = boot_of(fleet, STAYS, guest)?;
    for pid in fleet.member(STAYS)?.qemu()? {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing QEMU")?;
    }
    wait::until("another boot", ANSWER, || {
        ensure!(boot_of(fleet, STAYS, guest)? != boot, "the guest has not booted again");
        Ok(())
    })?;
    let written = write_on(fleet, STAYS, guest, 12)?;
    ensure!(sum(fleet, STAYS, guest)? == written, "it does not write to its disk");
    Ok(())
}

/// Drops all packets from and to the address of another machine.
fn cut_off(machine: &Arc<Namespace>, address: &str) -> Result<()> {
    for (chain, side) in [("input", "saddr"), ("output", "daddr")] {
        for rule in [
            "add table ip cut".to_owned(),
            format!("add chain ip cut {chain} {{ type filter hook {chain} priority -300; }}"),
            format!("add rule ip cut {chain} ip {side} {address} drop"),
        ] {
            process::run(machine.command("nft").arg(rule), SOON)?.success()?;
        }
    }
    Ok(())
}

/// Ends the guests of the lost host. Nothing of berth runs there.
fn end_guests(fleet: &mut Fleet) -> Result<()> {
    let member = fleet.member_mut(LOST)?;
    if member.berth.is_started() {
        // It was not lost: the case has failed before.
        return Ok(());
    }
    for pid in member.qemu()? {
        kill(Pid::from_raw(pid), Signal::SIGKILL).context("killing QEMU")?;
    }
    wait::until("no QEMU", SOON, || {
        ensure!(member.qemu()?.is_empty(), "it still runs one");
        Ok(())
    })
}

/// The image in Ceph that is a disk.
fn volume(fleet: &Fleet, disk: &str) -> Result<String> {
    let disk = fleet.kubectl().object("disk", disk)?;
    Ok(format!("berth-{}", disk["status"]["volumeID"].as_str().context("it has no volume")?))
}

/// The QEMU that has an image open, by its address. An agent that changes the image is a client for a moment.
fn client(ceph: &Ceph, image: &str) -> Result<String> {
    wait::until("the image to be open once", SOON, || {
        let mut clients = ceph.clients(image)?;
        ensure!(clients.len() == 1, "{image} is open at {clients:?}");
        clients.pop().context("no client")
    })
}

/// Gets a page of the guest from its host.
fn page(fleet: &Fleet, host: &str, address: &str, path: &str) -> Result<String> {
    http::get_within(fleet.member(host)?.namespace(), address, path, ANSWER)
}

/// Writes to the data disk while the guest is on the host that is lost later. Returns the checksum.
fn write(fleet: &Fleet, guest: &Guest, seed: u8) -> Result<String> {
    write_on(fleet, LOST, guest, seed)
}

fn write_on(fleet: &Fleet, host: &str, guest: &Guest, seed: u8) -> Result<String> {
    let path = format!("/cgi-bin/write?dev={}&seed={seed}", device(fleet, host, guest)?);
    Ok(field(&page(fleet, host, &guest.address, &path)?, "sha256")?.to_owned())
}

/// The checksum of what the guest reads from its data disk.
fn sum(fleet: &Fleet, host: &str, guest: &Guest) -> Result<String> {
    sum_of(fleet, host, guest, DATA)
}

/// The checksum of what it reads from another disk.
fn sum_of(fleet: &Fleet, host: &str, guest: &Guest, disk: &str) -> Result<String> {
    let line = line_of(fleet, host, &guest.address, disk)?;
    let path = format!("/cgi-bin/sum?dev={}", field(&line, "name")?);
    Ok(field(&page(fleet, host, &guest.address, &path)?, "sha256")?.to_owned())
}

fn boot_of(fleet: &Fleet, host: &str, guest: &Guest) -> Result<String> {
    Ok(field(&page(fleet, host, &guest.address, "/cgi-bin/uptime")?, "boot_id")?.to_owned())
}

/// The name by which the guest knows its data disk. It may have another one after each boot.
fn device(fleet: &Fleet, host: &str, guest: &Guest) -> Result<String> {
    Ok(field(&line_of(fleet, host, &guest.address, DATA)?, "name")?.to_owned())
}

/// The guest's line on one of its disks.
fn line_of(fleet: &Fleet, host: &str, address: &str, disk: &str) -> Result<String> {
    let disk = fleet.kubectl().object("disk", disk)?;
    let serial = disk["status"]["serial"].as_str().context("the disk has no serial")?;
    let text = page(fleet, host, address, "/cgi-bin/disks")?;
    let line = text.lines().find(|line| field(line, "serial").is_ok_and(|found| found == serial));
    Ok(line.with_context(|| format!("no disk {serial} in {text}"))?.to_owned())
}
