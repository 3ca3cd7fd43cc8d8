//! N14, N16 and N19: the network and the disks that a guest gets of its host, and the time until it runs, beside the same guest in a
//! bare QEMU.
//!
//! ```text
//!  guest ─ tap ─ berth's bridge, filter and NAT ─ cable ─ server       a second each,
//!  guest ─ tap ─ a plain bridge, routed ───────── cable ─ server       in turn
//! ```
//!
//! The guest loads its disk and its network with `guest-load` and reports on its console. Each load in berth has one in the bare QEMU
//! right after it: the speed of a machine that others use too varies more from minute to minute than the two differ.

pub mod by_hand;
pub mod load;

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::guest::{
    APPLY, APPLY_RATIO, BOOT, BOOT_BARE, BOOT_RATIO, DISK, Load as LoadFigures, NETWORK,
};
use super::fleet;
use super::samples::Samples;
use super::site::Site;
use crate::api::{self, Access, Api};
use crate::berth;
use crate::guests::GuestImage;
use crate::terraform::{Installation, Project};
use crate::{report, undo};
use by_hand::ByHand;
use load::{Course, Load, Outside};

/// The number of starts of each, in turn.
const ROUNDS: usize = 9;
/// The disks of a guest in berth.
const DISKS: [&str; 3] = ["boot", "data", "load"];
/// The memory of the guest.
pub(super) const MEMORY: u64 = 256 << 20;
const IMAGE: &str = "small";
const CLASS: &str = "linux";

const TERRAFORM: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
provider "berth" {}
resource "berth_disk" "boot" {
  name  = "applied"
  image = "small"
}
resource "berth_vm" "applied" {
  name     = "applied"
  class    = "linux"
  disks    = [{ name = berth_disk.boot.name, boot = true }]
  stop     = { mode = "Hard" }
  wait_for = "none"
}
"#;

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N14"))?;
    site.start(&[])?;
    let load = Load::build(&site.images())?;
    let _outside = Outside::beyond(site.namespace(), &load)?;
    let access = site.access()?;
    let mut api = site.api()?;
    make_objects(&mut api, &access, &site, &image, &load)?;
    let project = project(bench, &site)?;
    let (mut ours, mut bare, mut applied) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_hand: Option<ByHand> = None;
    for round in 0..ROUNDS {
        undo::halt_if_interrupted();
        let guest = start(&mut api, &site, &load)?;
        let hand = match &mut by_hand {
            Some(hand) => hand,
            none => {
                let pid = *berth::qemu_processes(site.namespace())?.first().context("no QEMU runs")?;
                let log = bench.log("N14-by-hand");
                none.insert(ByHand::new(&image, &load, &guest.instance, pid, &log)?)
            }
        };
        end(&mut api, &access)?;
        ours.push(guest.took);
        bare.push(hand.start(&site.folder().join(format!("bare-{round}")))?.took);
        applied.push(apply(&project, &site)?);
        report::note(&format!(
            "        start {} of {ROUNDS}: berth {:.1?}, bare QEMU {:.1?}, terraform {:.1?}",
            round + 1,
            ours[round],
            bare[round],
            applied[round]
        ));
    }
    let hand = by_hand.context("the first guest prepares it")?;
    let loads = loads(&mut api, &site, &load, &hand)?;
    end(&mut api, &access)?;
    readings(&loads, [&ours, &bare, &applied])
}

/// Runs the loads in a guest in berth and in a bare QEMU, in turns.
fn loads(api: &mut Api, site: &Site, load: &Load, hand: &ByHand) -> Result<[Course; 2]> {
    // The servers get it in their turn.
    let turn = File::open(&load.turns)?;
    turn.lock()?;
    let guest = start(api, site, load)?;
    let bare = hand.start(&site.folder().join("bare-loads"))?;
    let console = guest.console();
    load::ready(&console)?;
    load::ready(&bare.console)?;
    drop(turn);
    Ok([load::course(&console)?, load::course(&bare.console)?])
}

/// The class and the images.
fn make_objects(api: &mut Api, access: &Access, site: &Site, image: &GuestImage, load: &Load) -> Result<()> {
    let file = site.images().join("small.qcow2");
    fs::copy(&image.path, &file)?;
    let source = json!({"url": format!("file://{}", file.display()), "sha256": image.sha256});
    fleet::make_image(api, access, IMAGE, &json!({"source": source}))?;
    let source = json!({"url": format!("file://{}", load.disk.display()), "sha256": load.sha256});
    fleet::make_image(api, access, "load", &json!({"source": source, "format": "raw"}))?;
    api.create(api::VM_CLASS, CLASS, &fleet::class(MEMORY)).map(drop)
}

/// A guest in berth.
struct Guest {
    /// The folder of its machine.
    instance: PathBuf,
    /// The time until its first process ran.
    took: Duration,
}

impl Guest {
    fn console(&self) -> PathBuf {
        self.instance.join("serial.log")
    }
}

/// Starts the guest in berth, and waits until its first process runs.
fn start(api: &mut Api, site: &Site, load: &Load) -> Result<Guest> {
    let specs = [
        json!({"image": IMAGE}),
        json!({"size": format!("{}Mi", load::DATA >> 20)}),
        json!({"image": "load"}),
    ];
    for (name, spec) in DISKS.iter().zip(&specs) {
        api.create(api::DISK, name, spec)?;
    }
    let mut vm = fleet::vm(CLASS, "boot", None);
    vm["disks"] = json!([{"name": "boot", "boot": true}, {"name": "data"}, {"name": "load"}]);
    vm["bootstrap"] = json!({"userData": load.script()});
    let began = Instant::now();
    api.create(api::VM, "guest", &vm)?;
    let instance = site.instance_once("guest")?;
    let took = load::started(&instance.join("serial.log"), began)?;
    Ok(Guest { instance, took })
}

/// Removes the guest in berth with its disks.
fn end(api: &mut Api, access: &Access) -> Result<()> {
    remove(api, access, api::VM, "guest")?;
    DISKS.iter().try_for_each(|name| remove(api, access, api::DISK, name))
}

pub(super) fn remove(api: &mut Api, access: &Access, kind: api::Kind, name: &str) -> Result<()> {
    let mut watch = access.connect()?.watch(kind)?;
    api.delete(kind, name)?;
    watch.until_gone(name).map(drop)
}

fn project(bench: &Bench, site: &Site) -> Result<Project> {
    let home = site.folder().join("home");
    fs::create_dir_all(&home)?;
    let installation = Installation::make(&bench.terraform()?, &bench.binaries.provider, &home)?;
    let folder = site.folder().join("project");
    let project = Project::new(&installation, &folder, &site.kubeconfig(), site.namespace())?;
    project.write("main.tf", TERRAFORM)?;
    project.init()?;
    Ok(project)
}

/// Creates the guest with Terraform, and returns the time from its start until the guest's first process runs.
fn apply(project: &Project, site: &Site) -> Result<Duration> {
    let began = Instant::now();
    let started = std::thread::scope(|scope| -> Result<Duration> {
        let applied = scope.spawn(|| project.apply());
        let instance = site.instance_once("applied")?;
        let started = load::started(&instance.join("serial.log"), began)?;
        applied.join().map_err(|_| anyhow::anyhow!("the thread of terraform apply panicked"))??;
        Ok(started)
    })?;
    project.destroy()?;
    Ok(started)
}

fn median(figure: Figure, values: Vec<f64>) -> Result<Reading> {
    Ok(Reading::median(figure, &Samples::new(values).context("no runs")?))
}

/// The readings of these loads from courses of both, in turn.
pub(super) fn of_loads<'a>(
    loads: impl Iterator<Item = &'a LoadFigures>,
    ours: &[Course],
    bare: &[Course],
) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for LoadFigures { name, divisor, ratio, ours: our, bare: theirs } in loads {
        let values = |courses: &[Course]| -> Result<Vec<f64>> {
            let mut values = Vec::new();
            for course in courses {
                values.extend(course.values(name)?.iter().map(|value| value / divisor));
            }
            Ok(values)
        };
        let (of_ours, of_theirs) = (values(ours)?, values(bare)?);
        let ratios = of_theirs.iter().zip(&of_ours).map(|(bare, ours)| bare / ours).collect();
        readings.extend([median(*ratio, ratios)?, median(*our, of_ours)?, median(*theirs, of_theirs)?]);
    }
    Ok(readings)
}

fn readings([ours, bare]: &[Course; 2], starts: [&[Duration]; 3]) -> Result<Vec<Reading>> {
    let loads = NETWORK.iter().chain(DISK);
    let mut readings = of_loads(loads, std::slice::from_ref(ours), std::slice::from_ref(bare))?;
    let milliseconds =
        |times: &[Duration]| -> Vec<f64> { times.iter().map(|time| time.as_secs_f64() * 1e3).collect() };
    let [ours, bare, applied] = starts.map(milliseconds);
    let over_bare = |values: &[f64]| values.iter().zip(&bare).map(|(value, bare)| value / bare).collect();
    readings.extend([
        median(BOOT_RATIO, over_bare(&ours))?,
        median(APPLY_RATIO, over_bare(&applied))?,
        median(BOOT, ours)?,
        median(APPLY, applied)?,
        median(BOOT_BARE, bare.clone())?,
    ]);
    Ok(readings)
}
