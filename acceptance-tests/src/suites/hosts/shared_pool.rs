//! A folder that all hosts mount, as a pool of type Shared: links to one folder stand for its mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::ANSWER;
use crate::fleet::Fleet;
use crate::manifests;
use crate::report::Report;

/// The pool.
pub const POOL: &str = "slow";
/// The number of the machine that joins.
const FIFTH: u32 = 5;
/// VMs and their disks.
const NAMES: [&str; 2] = ["common-0", "common-1"];
/// A host looks at its pools every minute.
const LOOKS: Duration = Duration::from_secs(150);

/// Runs the case beside the members of a group whose image and class are `web`; nothing of VMs is left behind. The pool stays, and one
/// more host, without guests: both for the next case.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "hosts have a folder in common as a pool: each has its own files there, and one that has not mounted it writes nothing",
        || {
            fleet.join(FIFTH, &[])?;
            let common = common(fleet);
            fs::create_dir(&common)?;
            let folders: Vec<PathBuf> =
                fleet.members().iter().map(|member| member.berth.pool_folder(POOL)).collect();
            for folder in &folders {
                fs::rename(folder, own(folder))?;
                symlink(&common, folder)?;
            }
            let held = check_shared(fleet, &common);
            // The links stay: to the hosts, a folder with another marker would be one that is away.
            for object in ["vm", "disk"] {
                let [one, other] = NAMES;
                let delete = ["delete", object, one, other, "--ignore-not-found", "--timeout=60s"];
                fleet.kubectl().ok(&delete)?;
            }
            held
        },
    );
}

/// The folder that all hosts have in common.
pub fn common(fleet: &Fleet) -> PathBuf {
    fleet.folder().join("common")
}

fn own(folder: &Path) -> PathBuf {
    folder.with_extension("own")
}

fn check_shared(fleet: &Fleet, common: &Path) -> Result<()> {
    let kubectl = fleet.kubectl();
    let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool", "metadata": {"name": POOL},
        "spec": {"type": "Shared"}});
    kubectl.apply(&pool.to_string())?;
    let hosts = fleet.members().len();
    let path = format!("storagepool/{POOL}");
    let pool = kubectl
        .until(&path, "to be there on all hosts", LOOKS * 2, |pool| pool["status"]["hosts"] == hosts)?;
    ensure!(pool["status"]["shared"]["initialized"] == true, "{:#}", pool["status"]);
    let used = [fleet.host_of("web-0")?, fleet.host_of("web-1")?];
    // Guests that were started before could not open files in the common folder.
    for (name, host) in NAMES.into_iter().zip(&used) {
        let disk = manifests::with(manifests::disk(name, "web", "64Mi"), "pool", json!(POOL));
        let vm = manifests::with(manifests::vm(name, "web", name), "placement", json!({"host": host}));
        kubectl.apply(&manifests::all(&[disk, vm]))?;
    }
    for (name, host) in NAMES.into_iter().zip(&used) {
        kubectl.condition(&format!("vm/{name}"), "Ready=True", None, ANSWER)?;
        let volume = kubectl.object("disk", name)?["status"]["volumeID"].clone();
        let file = format!("hosts/{host}/volumes/{}.qcow2", volume.as_str().context("it has no volume")?);
        ensure!(common.join(&file).exists(), "{file} is not in {}", common.display());
    }
    check_away(fleet, common, &used)
}

/// The link of a host without a disk there leads to an empty folder, as the path of a file system that is not mounted does.
fn check_away(fleet: &Fleet, common: &Path, used: &[String; 2]) -> Result<()> {
    let kubectl = fleet.kubectl();
    let member =
        fleet.members().iter().find(|member| !used.contains(&member.name)).context("a third host")?;
    let (folder, empty) = (member.berth.pool_folder(POOL), fleet.folder().join("unmounted"));
    fs::create_dir(&empty)?;
    let leads_to = |target: &Path| -> Result<()> {
        fs::remove_file(&folder)?;
        Ok(symlink(target, &folder)?)
    };
    leads_to(&empty)?;
    let away =
        |number: u64| move |pool: &Value| pool["status"]["hostsAway"].as_u64().unwrap_or_default() == number;
    let path = format!("storagepool/{POOL}");
    let seen = kubectl.until(&path, "to be away on a host", LOOKS, away(1));
    let written = fs::read_dir(&empty)?.next().is_some();
    leads_to(common)?;
    seen?;
    ensure!(!written, "something was created in the folder that is not mounted");
    kubectl.until(&path, "to be back on that host", LOOKS, away(0)).map(drop)
}
