//! A folder that all hosts mount, as a pool of type Shared: links to one folder stand for its mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{ANSWER, SOON};
use crate::fleet::{Fleet, Member};
use crate::http::{self, field};
use crate::manifests;
use crate::report::Report;

/// The pool.
pub const POOL: &str = "slow";
/// The number of the machine that joins.
const FIFTH: u32 = 5;
/// VMs and their disks.
const NAMES: [&str; 2] = ["common-0", "common-1"];
/// A second disk of the first one.
const DATA: &str = "common-data";
/// A host looks at its pools every minute, and when it is asked to.
const LOOKS: Duration = Duration::from_secs(150);

/// Runs the case beside the members of a group whose image and class are `web`; nothing of VMs is left behind. The pool stays, and one
/// more host, without guests: both for the next case.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "hosts have a folder in common as a pool: each has its own files there, one that has not mounted it any more writes nothing, and its guest goes on",
        || {
            fleet.join(FIFTH, &[])?;
            let held = check_shared(fleet, &fleet.common());
            // The links stay: to the hosts, a folder with another marker would be one that is away.
            for object in ["vm", "disk"] {
                let [one, other] = NAMES;
                let delete = ["delete", object, one, other, "--ignore-not-found", "--timeout=60s"];
                fleet.kubectl().ok(&delete)?;
            }
            fleet.kubectl().delete(&format!("disk/{DATA}"))?;
            held
        },
    );
}

fn check_shared(fleet: &Fleet, common: &Path) -> Result<()> {
    let kubectl = fleet.kubectl();
    let pool = fleet.share_pool(POOL)?;
    ensure!(pool["status"]["shared"]["initialized"] == true, "{:#}", pool["status"]);
    let used = [fleet.host_of("web-0")?, fleet.host_of("web-1")?];
    // Guests that were started before could not open files in the common folder.
    let pooled = |disk: Value| manifests::with(disk, "pool", json!(POOL));
    kubectl.apply(&pooled(manifests::blank_disk(DATA, "64Mi")).to_string())?;
    for (name, host) in NAMES.into_iter().zip(&used) {
        let mut vm = manifests::with(manifests::vm(name, "web", name), "placement", json!({"host": host}));
        if name == NAMES[0] {
            vm = manifests::with(vm, "disks", json!([{"name": name, "boot": true}, {"name": DATA}]));
        }
        kubectl.apply(&manifests::all(&[pooled(manifests::disk(name, "web", "64Mi")), vm]))?;
    }
    for (name, host) in NAMES.into_iter().zip(&used) {
        kubectl.condition(&format!("vm/{name}"), "Ready=True", None, ANSWER)?;
        let volume = kubectl.object("disk", name)?["status"]["volumeID"].clone();
        let file = format!("hosts/{host}/volumes/{}.qcow2", volume.as_str().context("it has no volume")?);
        ensure!(common.join(&file).exists(), "{file} is not in {}", common.display());
    }
    check_away(fleet, common, &used)
}

/// The links of a host without a disk there, and of one with a running guest, lead to an empty folder for a while, as the path of a file system
/// does that was unmounted. The guest goes on in the files that it has open.
fn check_away(fleet: &Fleet, common: &Path, used: &[String; 2]) -> Result<()> {
    let kubectl = fleet.kubectl();
    let unused =
        fleet.members().iter().find(|member| !used.contains(&member.name)).context("a third host")?;
    let guest = Guest::on(fleet, &used[0])?;
    let before = guest.writes(fleet, 31)?;
    let folders = [unused.berth.pool_folder(POOL), guest.member.berth.pool_folder(POOL)];
    let empty = fleet.folder().join("unmounted");
    fs::create_dir(&empty)?;
    let lead_to = |target: &Path| -> Result<()> {
        folders.iter().try_for_each(|folder| {
            fs::remove_file(folder)?;
            Ok(symlink(target, folder)?)
        })
    };
    lead_to(&empty)?;
    let away =
        |number: u64| move |pool: &Value| pool["status"]["hostsAway"].as_u64().unwrap_or_default() == number;
    let path = format!("storagepool/{POOL}");
    let seen = kubectl
        .while_hosts_look(LOOKS, |limit| kubectl.until(&path, "to be away on both hosts", limit, away(2)))
        .and_then(|_| kubectl.condition(&format!("disk/{DATA}"), "Ready=False", Some("PoolAway"), SOON))
        .and_then(|_| guest.writes(fleet, 32));
    let written = fs::read_dir(&empty)?.next().is_some();
    lead_to(common)?;
    let during = seen?;
    ensure!(!written, "something was created in the folder that is not mounted");
    kubectl
        .while_hosts_look(LOOKS, |limit| kubectl.until(&path, "to be back on both hosts", limit, away(0)))?;
    for object in [format!("disk/{DATA}"), format!("vm/{}", NAMES[0])] {
        kubectl.condition(&object, "Ready=True", None, SOON)?;
    }
    let after = guest.reads(fleet)?;
    ensure!(before.1 != during.1 && during.1 == after, "it reads {after}, and wrote {}", during.1);
    ensure!(before.0 == during.0, "its QEMU was another one: {:?} before, {:?} then", before.0, during.0);
    Ok(())
}

/// The first VM, which has a data disk in the pool.
struct Guest<'a> {
    member: &'a Member,
    address: String,
}

impl<'a> Guest<'a> {
    fn on(fleet: &'a Fleet, host: &str) -> Result<Self> {
        let vm = fleet.kubectl().object("vm", NAMES[0])?;
        let address = vm["status"]["interfaces"][0]["address"].as_str().context("it has no address")?;
        Ok(Self { member: fleet.member(host)?, address: address.to_owned() })
    }

    /// Writes to the data disk. Returns the QEMU of the VM, and the checksum.
    fn writes(&self, fleet: &Fleet, seed: u8) -> Result<(Value, String)> {
        let path = format!("/cgi-bin/write?dev={}&seed={seed}", self.device(fleet)?);
        let sum = field(&self.page(&path)?, "sha256")?.to_owned();
        Ok((fleet.kubectl().object("vm", NAMES[0])?["status"]["process"].clone(), sum))
    }

    /// The checksum of what the guest reads from the data disk.
    fn reads(&self, fleet: &Fleet) -> Result<String> {
        Ok(field(&self.page(&format!("/cgi-bin/sum?dev={}", self.device(fleet)?))?, "sha256")?.to_owned())
    }

    fn device(&self, fleet: &Fleet) -> Result<String> {
        let disk = fleet.kubectl().object("disk", DATA)?;
        let serial = disk["status"]["serial"].as_str().context("the disk has no serial")?;
        let text = self.page("/cgi-bin/disks")?;
        let line = text.lines().find(|line| field(line, "serial").is_ok_and(|found| found == serial));
        Ok(field(line.with_context(|| format!("no disk {serial} in {text}"))?, "name")?.to_owned())
    }

    fn page(&self, path: &str) -> Result<String> {
        http::get_within(self.member.namespace(), &self.address, path, ANSWER)
    }
}
