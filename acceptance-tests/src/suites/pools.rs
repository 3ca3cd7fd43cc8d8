//! `examples/pools` with the small guest: disks in two folders of the host, of which one goes away and comes back.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::wait;

const SOON: Duration = Duration::from_secs(60);
/// A host looks at its pools every minute and when it is asked to, and at disks of one that is away every half minute.
const LOOKS: Duration = Duration::from_secs(150);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/pools: disks are in the folders of their pools, and one in that with the most room; one whose pool is away is neither lost nor made anew; one gets another pool while its guest runs, and back with its snapshot while it is off; a namespace has a default pool",
        || {
            let (project, _) = platform.example("pools", guest)?;
            let done = lives(platform, &project).and_then(|written| {
                default_of_a_namespace(platform)?;
                moves(platform, &project, &written)
            });
            project.destroy()?;
            done
        },
    );
}

/// Returns the checksum of the data of the disk in the second pool.
fn lives(platform: &Platform, project: &Project) -> Result<String> {
    let kubectl = platform.kubectl();
    project.apply()?;
    project.plan_is_empty()?;
    let (fast, slow) = (platform.host().pool_folder("fast"), platform.host().pool_folder("slow"));
    check_disk(platform, "pools-root", &fast)?;
    check_disk(platform, "pools-data", &slow)?;
    // Both folders are on one file system, and `fast` may be promised more of it.
    check_disk(platform, "pools-cache", &fast)?;
    for pool in ["fast", "slow"] {
        kubectl.until(&format!("storagepool/{pool}"), "to have space", LOOKS, |pool| {
            pool["status"]["hosts"] == 1 && pool["status"]["total"].is_string()
        })?;
    }
    let address = project.output("address")?;
    write(platform, &address, "pools-data", 9)
}

/// A disk of the namespace `archives` that names no pool is in that of the example, and stays there.
fn default_of_a_namespace(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "archives"}});
    kubectl.apply(&namespace.to_string())?;
    let within = kubectl.within("archives");
    let disk = json!({"size": "64Mi"});
    let vm = json!({"cpus": 1, "memory": "256Mi", "power": "Stopped", "disks": [{"name": "papers", "boot": true, "template": disk}]});
    let vm =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "papers"}, "spec": vm});
    within.apply(&vm.to_string())?;
    let made = |disk: &Value| disk["status"]["pool"] == "slow" && disk["status"]["size"].is_string();
    let disk = within.until("disk/papers", "to be in the default pool", LOOKS, made)?;
    ensure!(disk["spec"]["pool"] == "default" && disk["status"]["defaultPool"] == "slow", "{disk:#}");
    let volume = disk["status"]["volumeID"].as_str().context("it has no volume")?.to_owned();
    let file = platform.host().pool_folder("slow").join(format!("volumes/{volume}.qcow2"));
    ensure!(file.exists(), "{} is not there", file.display());
    within.ok(&["delete", "vm", "papers", "--timeout=60s"])?;
    within.ok(&["delete", "disk", "papers", "--ignore-not-found", "--timeout=60s"])?;
    platform.delete_namespace("archives")
}

/// The disk of the running guest moves while it runs on, with its data; then back while it is off. The pool goes away and comes back, and the VM
/// starts after that.
fn moves(platform: &Platform, project: &Project, written: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    let (fast, slow) = (platform.host().pool_folder("fast"), platform.host().pool_folder("slow"));
    let address = project.output("address")?;
    let process = || -> Result<Value> { Ok(kubectl.object("vm", "pools")?["status"]["process"].clone()) };
    let before = process()?;
    // The apply waits until the disk is in the other pool.
    let applied = project.apply_with(&["-var", "data_pool=fast"])?.success()?;
    contains_all(&applied, &["0 added, 1 changed, 0 destroyed"])?;
    kubectl.until("disk/pools-data", "to be moved", LOOKS, |disk| disk["status"]["pool"] == "fast")?;
    kubectl.condition("disk/pools-data", "Ready=True", None, SOON)?;
    check_disk(platform, "pools-data", &fast)?;
    check_empty(&slow)?;
    ensure!(sum(platform, &address, "pools-data")? == written, "it has other data");
    let written = write(platform, &address, "pools-data", 10)?;
    ensure!(process()? == before, "its QEMU is another one: {before} before, {} now", process()?);

    kubectl.ok(&["patch", "vm", "pools", "--type=merge", "-p", r#"{"spec": {"power": "Stopped"}}"#])?;
    kubectl.until("vm/pools", "to stop", SOON, |vm| vm["status"]["state"] == "Stopped")?;
    let snapshot = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "DiskSnapshot", "metadata": {"name": "pools-data"}, "spec": {"disk": "pools-data"}});
    kubectl.apply(&snapshot.to_string())?;
    kubectl.condition("dsnap/pools-data", "Ready=True", None, SOON)?;
    let applied = project.apply_with(&["-target=berth_disk.data"])?.success()?;
    contains_all(&applied, &["0 added, 1 changed, 0 destroyed"])?;
    kubectl.until("disk/pools-data", "to be moved back", SOON, |disk| disk["status"]["pool"] == "slow")?;
    check_disk(platform, "pools-data", &slow)?;
    snapshot_has_moved(platform, &fast, &slow)?;

    let away = slow.with_extension("away");
    fs::rename(&slow, &away)?;
    fs::create_dir(&slow)?;
    let done = goes_and_comes_back(platform, &slow, &away);
    if away.exists() {
        fs::remove_dir_all(&slow)?;
        fs::rename(&away, &slow)?;
    }
    done?;
    // A stopped VM is ready too.
    kubectl.until("vm/pools", "to run", LOOKS * 2, |vm| vm["status"]["state"] == "Running")?;
    kubectl.condition("vm/pools", "Ready=True", None, LOOKS)?;
    ensure!(sum(platform, &address, "pools-data")? == written, "it has other data");
    project.plan_is_empty()
}

/// The snapshot of the disk is in its new pool, and the disk is restored from it there, while no VM has it open.
fn snapshot_has_moved(platform: &Platform, fast: &Path, slow: &Path) -> Result<()> {
    let kubectl = platform.kubectl();
    let moved = kubectl
        .until("dsnap/pools-data", "to be moved", SOON, |snapshot| snapshot["status"]["pool"] == "slow")?;
    let id = moved["status"]["snapshotID"].as_str().context("it has no identity")?;
    let file = |pool: &Path| pool.join(format!("snapshots/{id}.qcow2"));
    ensure!(file(slow).exists(), "{} is not there", file(slow).display());
    wait::until("its former file to be removed", SOON, || {
        ensure!(!file(fast).exists(), "{} is there", file(fast).display());
        Ok(())
    })?;
    let restore =
        |value: Value| kubectl.ok(&["patch", "disk", "pools-data", "--type=merge", "-p", &value.to_string()]);
    restore(json!({"spec": {"restore": {"snapshot": "pools-data"}}}))?;
    let is_restored = |disk: &Value| disk["status"]["restoredFrom"]["snapshot"] == "pools-data";
    kubectl.until("disk/pools-data", "to be restored", SOON, is_restored)?;
    restore(json!({"spec": {"restore": null}}))?;
    kubectl.ok(&["delete", "dsnap", "pools-data", "--timeout=60s"])?;
    check_disk(platform, "pools-data", slow)
}

/// The former file is removed after the note that makes the copy the volume.
fn check_empty(pool: &Path) -> Result<()> {
    wait::until("its former pool to be empty", SOON, || {
        ensure!(fs::read_dir(pool.join("volumes"))?.next().is_none(), "a file is left in its former pool");
        Ok(())
    })
}

/// Checks that the file of a disk is in this folder, and not in the state directory.
fn check_disk(platform: &Platform, disk: &str, folder: &Path) -> Result<()> {
    let volume = platform.kubectl().object("disk", disk)?["status"]["volumeID"].clone();
    let volume = volume.as_str().context("it has no volume")?;
    // After a snapshot it continues in a file with a number.
    let mut files =
        fs::read_dir(folder.join("volumes"))?.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let has_file = files.any(|file| file.starts_with(volume) && file.ends_with(".qcow2"));
    ensure!(has_file, "no file of {volume} is in {}", folder.display());
    let pool = platform.kubectl().object("disk", disk)?["status"]["pool"].clone();
    let state = platform.host().state().join("pools").join(pool.as_str().unwrap_or_default());
    ensure!(!state.exists(), "{} is there", state.display());
    Ok(())
}

fn goes_and_comes_back(platform: &Platform, slow: &Path, away: &Path) -> Result<()> {
    let kubectl = platform.kubectl();
    kubectl.while_hosts_look(LOOKS, |limit| {
        kubectl.condition("disk/pools-data", "Ready=False", Some("PoolAway"), limit)?;
        kubectl.until("storagepool/slow", "to be away", limit, |pool| pool["status"]["hostsAway"] == 1)
    })?;
    kubectl.ok(&["patch", "vm", "pools", "--type=merge", "-p", r#"{"spec": {"power": "Running"}}"#])?;
    kubectl.condition("vm/pools", "Ready=False", Some("WaitingForDisk"), SOON)?;
    ensure!(fs::read_dir(slow)?.next().is_none(), "something was created in the empty folder");
    fs::remove_dir(slow)?;
    fs::rename(away, slow)?;
    kubectl.while_hosts_look(LOOKS, |limit| {
        kubectl.condition("disk/pools-data", "Ready=True", None, limit)?;
        wait::until("the host to have the pool again", limit, || {
            let pools = kubectl.ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.pools}"])?;
            ensure!(!pools.contains("problem"), "{pools}");
            Ok(())
        })
    })
}
