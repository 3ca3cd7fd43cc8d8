//! N11 and N12: disks that are created on a running VM, and removed again.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::hotswap::{ATTACH, DETACH, DOWNLOADS, LARGE, READY, SMALL};
use super::fleet;
use super::samples::Samples;
use super::site::Site;
use crate::api::{self, Access, Api};
use crate::image_server::{Content, ImageServer};
use crate::wait;

/// The number of runs of each.
const RUNS: usize = 15;
/// The time limit for the boot of a Linux under emulation on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(60);
/// The interval between two checks of a file.
const GLANCE: Duration = Duration::from_millis(1);
/// The kernel message in the guest for a usable disk.
const SEEN: &str = "Attached SCSI disk";
/// Makes the guest's kernel print its messages on the console.
const TALKATIVE: &str = "#!/bin/sh\ndmesg -n 7\necho berth-guest-talks >/dev/ttyS0\n";
const TALKS: &str = "berth-guest-talks";
const FILE: &str = "small.qcow2";

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N12"))?;
    site.start(&["--cpu-overcommit", "16", "--image-allow", "127.0.0.1/32"])?;
    let server = ImageServer::start(site.namespace(), "127.0.0.1")?;
    let url = server.put(FILE, Content::File(image.path.clone()));
    let access = site.access()?;
    let mut api = site.api()?;
    let source = json!({"source": {"url": url, "sha256": image.sha256}});
    fleet::make_image(&mut api, &access, "small", &source)?;
    api.create(api::VM_CLASS, "linux", &fleet::class(256 << 20))?;
    boot(&mut api, "first")?;
    let serial = site.instance_once("first")?.join("serial.log");
    wait::until("the guest to be up", BOOT, || {
        ensure!(text(&serial)?.contains(TALKS), "it is still booting");
        Ok(())
    })?;
    let mut readings = swaps(&mut api, &access, &serial)?;
    readings.extend(disks(&mut api, &access, &site)?);
    let before = server.requests(FILE);
    boot(&mut api, "second")?;
    access.connect()?.watch(api::VM)?.until(|vm| api::name(vm) == "second" && api::is_true(vm, "Running"))?;
    let more = u32::try_from(server.requests(FILE) - before)?;
    readings.push(Reading::once(DOWNLOADS, f64::from(more)));
    Ok(readings)
}

fn boot(api: &mut Api, name: &str) -> Result<()> {
    api.create(api::DISK, name, &json!({"image": "small"}))?;
    let mut vm = fleet::vm("linux", name, None);
    vm["bootstrap"] = json!({"userData": TALKATIVE});
    api.create(api::VM, name, &vm).map(drop)
}

fn attachment(disk: &str) -> Value {
    // Nothing in the guest reports its mounts.
    json!({"vm": "first", "disk": disk, "force": true})
}

/// N12: a blank disk is attached and detached, again and again.
fn swaps(api: &mut Api, access: &Access, serial: &Path) -> Result<Vec<Reading>> {
    let (mut visible, mut ready, mut released) = (Vec::new(), Vec::new(), Vec::new());
    // The first disk's file is created as well, so its run does not count.
    for run in 0..=RUNS {
        let name = format!("swap-{run}");
        api.create(api::DISK, &name, &json!({"size": "64Mi"}))?;
        let mut watch = access.connect()?.watch(api::ATTACHMENT)?;
        let seen_before = text(serial)?.matches(SEEN).count();
        let began = Instant::now();
        api.create(api::ATTACHMENT, &name, &attachment(&name))?;
        while text(serial)?.matches(SEEN).count() == seen_before {
            ensure!(began.elapsed() < LIMIT, "the guest does not see its disk");
            std::thread::sleep(GLANCE);
        }
        let saw = began.elapsed();
        let attached = watch.until(|object| api::name(object) == name && api::is_true(object, "Ready"))?;
        let pulled = Instant::now();
        api.delete(api::ATTACHMENT, &name)?;
        let gone = watch.until_gone(&name)?;
        if run > 0 {
            visible.push(saw);
            ready.push(attached.seen.saturating_duration_since(began));
            released.push(gone - pulled);
        }
    }
    Ok(vec![median(ATTACH, &visible)?, median(READY, &ready)?, median(DETACH, &released)?])
}

/// N11: disks made from the image that the host has, small and large. Disks are created when they are first used.
fn disks(api: &mut Api, access: &Access, site: &Site) -> Result<Vec<Reading>> {
    let pools = site.state().join("pools");
    let mut readings = Vec::new();
    for (figure, label, size) in [(SMALL, "small", None), (LARGE, "large", Some("1Ti"))] {
        let mut took = Vec::new();
        for run in 0..=RUNS {
            let name = format!("{label}-{run}");
            let mut spec = json!({"image": "small"});
            if let Some(size) = size {
                spec["size"] = json!(size);
            }
            api.create(api::DISK, &name, &spec)?;
            let mut watch = access.connect()?.watch(api::ATTACHMENT)?;
            let files = volumes(&pools);
            let began = Instant::now();
            api.create(api::ATTACHMENT, &name, &attachment(&name))?;
            while volumes(&pools) == files {
                ensure!(began.elapsed() < LIMIT, "no disk came into being\n{}", site.log_tail());
                std::thread::sleep(GLANCE);
            }
            let made = began.elapsed();
            watch.until(|object| api::name(object) == name && api::is_true(object, "Ready"))?;
            api.delete(api::ATTACHMENT, &name)?;
            watch.until_gone(&name)?;
            if run > 0 {
                took.push(made);
            }
        }
        readings.push(median(figure, &took)?);
    }
    Ok(readings)
}

/// The number of disks in the pools.
fn volumes(pools: &Path) -> usize {
    let folders = fs::read_dir(pools).into_iter().flatten().flatten();
    let files =
        folders.flat_map(|pool| fs::read_dir(pool.path().join("volumes")).into_iter().flatten().flatten());
    files.filter(|file| file.path().extension().is_some_and(|extension| extension == "qcow2")).count()
}

fn text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn median(figure: Figure, times: &[Duration]) -> Result<Reading> {
    let samples = Samples::new(times.iter().map(|time| time.as_secs_f64() * 1e3).collect());
    Ok(Reading::median(figure, &samples.context("no runs")?))
}
