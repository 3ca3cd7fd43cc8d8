//! N17 and N20: copies of a large disk, the pause of a guest while a snapshot is taken, the data that an incremental backup reads,
//! and the time until a console shows something.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Bench;
use super::figure::{Figure, Reading};
use super::figures::copies::{BACKUP, CONSOLE, DISK, GET, PAUSE, QUIET, SNAPSHOT};
use super::fleet;
use super::guest::load::{self, Load};
use super::guest::{MEMORY, remove};
use super::samples::Samples;
use super::site::Site;
use crate::api::{self, Access, Api, Kind};
use crate::{undo, wait};

/// The number of runs of each.
const RUNS: usize = 15;
const CLASS: &str = "linux";
/// The folder for backups.
const FOLDER: &str = "nas";
/// The time limit for a boot under emulation, and for the guest's writes.
const BOOT: Duration = Duration::from_secs(300);
/// The time before and after a snapshot in which the writes of the guest are watched.
const AROUND: Duration = Duration::from_millis(800);
/// The time limit for the first byte of a console.
const FIRST_BYTE: Duration = Duration::from_secs(30);
/// The sizes of the guest's first and second writes, in MiB.
const WRITES: [u32; 2] = [128, 24];
const WROTE: &str = "berth-guest-wrote";

/// Measures it.
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let image = bench.small_guest()?;
    let mut site = Site::new(&bench.binaries.berth, &bench.log("N17"))?;
    let nas = site.images().with_file_name(FOLDER);
    std::fs::create_dir(&nas)?;
    site.start(&["--backup-folder", &format!("{FOLDER}={}", nas.display())])?;
    let load = Load::build(&site.images())?;
    let access = site.access()?;
    let mut api = site.api()?;
    let file = site.images().join("small.qcow2");
    std::fs::copy(&image.path, &file)?;
    let of_file =
        |path: &Path, sha256: &str| json!({"url": format!("file://{}", path.display()), "sha256": sha256});
    fleet::make_image(&mut api, &access, "small", &json!({"source": of_file(&file, &image.sha256)}))?;
    let source = of_file(&load.disk, &load.sha256);
    fleet::make_image(&mut api, &access, "load", &json!({"source": source, "format": "raw"}))?;
    api.create(api::VM_CLASS, CLASS, &fleet::class(MEMORY))?;
    let mut readings = incremental_backup(&mut api, &access, &site)?;
    readings.extend(snapshots(&mut api, &access, &site)?);
    readings.extend(consoles(bench, &site)?);
    readings.extend(copies(&mut api, &access)?);
    Ok(readings)
}

/// Starts a guest with this script, on disks of its own: it boots from the first.
fn boot(api: &mut Api, name: &str, disks: &[&str], script: &str) -> Result<()> {
    let mut vm = fleet::vm(CLASS, name, None);
    let others = disks.iter().map(|disk| json!({"name": disk}));
    vm["disks"] = std::iter::once(json!({"name": name, "boot": true})).chain(others).collect();
    vm["bootstrap"] = json!({"userData": script});
    api.create(api::VM, name, &vm).map(drop)
}

/// A guest writes, a backup is made, the guest writes less, and another backup is made.
fn incremental_backup(api: &mut Api, access: &Access, site: &Site) -> Result<Vec<Reading>> {
    api.post(
        "/api/v1/namespaces/default/secrets",
        &json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "backups"},
            "stringData": {"password": "correct horse battery staple"},
        })
        .to_string(),
    )?;
    let repository = json!({"folder": FOLDER, "passwordSecretName": "backups"});
    api.create(api::BACKUP_REPOSITORY, "folder", &repository)?;
    api.create(api::DISK, "writer", &json!({"image": "small"}))?;
    api.create(api::DISK, "written", &json!({"size": format!("{}Mi", load::DATA >> 20)}))?;
    let [first, second] = WRITES;
    let sectors = load::DATA / 512;
    let script = format!(
        "#!/bin/sh
for disk in /sys/block/sd*; do
	[ $(cat $disk/size) = {sectors} ] && data=/dev/${{disk##*/}}
done
if dd if=$data bs=512 count=1 2>/dev/null | grep -q wrote; then
	dd if=/dev/urandom of=$data bs=1M seek={first} count={second}
else
	dd if=/dev/urandom of=$data bs=1M count={first}
	echo wrote | dd of=$data conv=notrunc
fi
sync
echo {WROTE} >/dev/ttyS0
"
    );
    let mut read = 0.0;
    for run in 0..WRITES.len() {
        boot(api, "writer", &["written"], &script)?;
        let console = site.instance_once("writer")?.join("serial.log");
        wait::until("the guest's writes", BOOT, || {
            let text = std::fs::read(&console).unwrap_or_default();
            ensure!(String::from_utf8_lossy(&text).contains(WROTE), "it has not written yet");
            Ok(())
        })?;
        remove(api, access, api::VM, "writer")?;
        let name = format!("written-{run}");
        ready(api, access, api::DISK_SNAPSHOT, &name, &json!({"disk": "written"}))?;
        let made =
            ready(api, access, api::BACKUP, &name, &json!({"repository": "folder", "snapshot": name}))?;
        read = made.1["status"]["readBytes"].as_f64().context("the backup reports no readBytes")?;
    }
    Ok(vec![Reading::once(BACKUP, read / (f64::from(second) * 1_048_576.0))])
}

/// Snapshots of a disk that the guest writes to without a pause.
fn snapshots(api: &mut Api, access: &Access, site: &Site) -> Result<Vec<Reading>> {
    for (name, spec) in [
        ("guest", json!({"image": "small"})),
        ("data", json!({"size": format!("{}Mi", load::DATA >> 20)})),
        ("load", json!({"image": "load"})),
    ] {
        api.create(api::DISK, name, &spec)?;
    }
    boot(api, "guest", &["data", "load"], &load::pauses_script())?;
    let console = site.instance_once("guest")?.join("serial.log");
    wait::until("the guest's load", BOOT, || {
        ensure!(load::pauses(&console).is_ok_and(|pauses| pauses.len() > 5), "it has not begun");
        Ok(())
    })?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        undo::halt_if_interrupted();
        let name = format!("moment-{run}");
        let before = load::pauses(&console)?.len();
        thread::sleep(AROUND);
        let began = load::pauses(&console)?.len();
        ready(api, access, api::DISK_SNAPSHOT, &name, &json!({"disk": "data"}))?;
        thread::sleep(AROUND);
        let pauses = load::pauses(&console)?;
        let longest =
            |pauses: &[f64]| pauses.iter().copied().reduce(f64::max).context("the guest reports no writes");
        without.push(longest(&pauses[before..began])?);
        with.push(longest(&pauses[began..])?);
        remove(api, access, api::DISK_SNAPSHOT, &name)?;
    }
    Ok(vec![median(PAUSE, with)?, median(QUIET, without)?])
}

/// The time until `berth console` shows the earlier output of the guest, beside `kubectl get` of its VM.
fn consoles(bench: &Bench, site: &Site) -> Result<Vec<Reading>> {
    let (mut consoles, mut gets) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut console = site.namespace().command(&bench.binaries.berth);
        console.args(["console", "guest", "--kubeconfig"]).arg(site.kubeconfig());
        consoles.push(first_byte(&mut console)?);
        let mut get = site.namespace().command("kubectl");
        get.args(["get", "vm", "guest", "--kubeconfig"]).arg(site.kubeconfig());
        gets.push(first_byte(&mut get)?);
    }
    Ok(vec![median(CONSOLE, consoles)?, median(GET, gets)?])
}

/// Milliseconds from the start of a program to the first byte of its output.
fn first_byte(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().context("starting the program")?;
    let mut output = child.stdout.take().context("its output")?;
    let reader = thread::spawn(move || output.read(&mut [0]).map(|count| (count, Instant::now())));
    while !reader.is_finished() && began.elapsed() < FIRST_BYTE {
        thread::sleep(Duration::from_millis(1));
    }
    let late = !reader.is_finished();
    child.kill().context("ending the program")?;
    child.wait().context("waiting for the program")?;
    let (count, seen) = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    ensure!(count > 0 && !late, "the program has no output");
    Ok((seen - began).as_secs_f64() * 1e3)
}

/// Copies of a disk of 1 TiB, and of a snapshot of it.
fn copies(api: &mut Api, access: &Access) -> Result<Vec<Reading>> {
    api.create(api::DISK, "huge", &json!({"image": "small", "size": "1Ti"}))?;
    let spec = json!({"vm": "guest", "disk": "huge", "force": true});
    ready(api, access, api::ATTACHMENT, "huge", &spec)?;
    remove(api, access, api::ATTACHMENT, "huge")?;
    ready(api, access, api::DISK_SNAPSHOT, "huge", &json!({"disk": "huge"}))?;
    let mut readings = Vec::new();
    for (figure, source) in [(DISK, json!({"disk": "huge"})), (SNAPSHOT, json!({"snapshot": "huge"}))] {
        let mut times = Vec::new();
        for _ in 0..RUNS {
            let (took, _) = ready(api, access, api::DISK, "copy", &json!({"source": source}))?;
            times.push(took.as_secs_f64() * 1e3);
            remove(api, access, api::DISK, "copy")?;
        }
        readings.push(median(figure, times)?);
    }
    Ok(readings)
}

/// Creates an object and waits until it is ready. Returns the time that it took, and the object.
fn ready(api: &mut Api, access: &Access, kind: Kind, name: &str, spec: &Value) -> Result<(Duration, Value)> {
    let mut watch = access.connect()?.watch(kind)?;
    let began = Instant::now();
    api.create(kind, name, spec)?;
    let event = watch.until(|object| api::name(object) == name && api::is_true(object, "Ready"))?;
    Ok((event.seen.saturating_duration_since(began), event.object))
}

fn median(figure: Figure, values: Vec<f64>) -> Result<Reading> {
    Ok(Reading::median(figure, &Samples::new(values).context("no runs")?))
}
