//! A VM with UEFI and a TPM: its firmware variables and the memory of the TPM follow it to its next host, also if the former one is lost.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::HOST;
use super::{ANSWER, SILENCE, SOON};
use crate::fleet::{Fleet, host_in};
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;
use crate::wait;

const CARRIED: Sealed = Sealed { name: "carried", pool: None };
/// At the end of the variables: stands for something that the guest has written there.
const MARK: &[u8] = b"of this guest";
/// The files of an instance.
const FILES: [&str; 2] = ["vars.fd", "tpm/tpm2-00.permall"];

/// Runs the case; nothing is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a VM that is off moves with its firmware variables and its TPM, and starts with them on the other host",
        || moves(fleet).and(CARRIED.delete(fleet)),
    );
}

fn moves(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    let instance = CARRIED.stops_on(fleet, HOST)?;
    let variables = folder(fleet, HOST, &instance)?.join(FILES[0]);
    let mut bytes = fs::read(&variables)?;
    let start = bytes.len().checked_sub(MARK.len()).context("no variables")?;
    bytes[start..].copy_from_slice(MARK);
    fs::write(&variables, bytes)?;
    let before = digests(&folder(fleet, HOST, &instance)?)?;

    let next = fleet.host_of("web-0")?;
    kubectl.apply(&CARRIED.vm(json!({}), "Stopped").to_string())?;
    fleet.administrator().run(&["move", CARRIED.name, "--to", &next])?.success()?;
    CARRIED.until_on(fleet, &next, "Stopped")?;
    let after = digests(&folder(fleet, &next, &instance)?)?;
    ensure!(after == before, "{FILES:?} are {after:?} there, and were {before:?}");
    let left = folder(fleet, HOST, &instance)?;
    wait::until("the former host to remove them", SILENCE, || {
        ensure!(!left.exists(), "{} is there still", left.display());
        Ok(())
    })?;
    kubectl.apply(&CARRIED.vm(json!({}), "Running").to_string())?;
    CARRIED.until_on(fleet, &next, "Running")
}

/// A VM without an operating system.
#[derive(Debug)]
pub struct Sealed {
    /// Also of its disk.
    pub name: &'static str,
    /// The pool of its disk. None: the default one.
    pub pool: Option<&'static str>,
}

impl Sealed {
    /// Starts it on a host and stops it there, once its TPM has a memory. Returns its instance.
    pub fn stops_on(&self, fleet: &Fleet, host: &str) -> Result<String> {
        let kubectl = fleet.kubectl();
        let disk = manifests::blank_disk(self.name, "64Mi");
        let disk = match self.pool {
            Some(pool) => manifests::with(disk, "pool", json!(pool)),
            None => disk,
        };
        let placement = json!({"host": host});
        kubectl.apply(&manifests::all(&[disk, self.vm(placement.clone(), "Running")]))?;
        self.until_on(fleet, host, "Running")?;
        let vm = kubectl.object("vm", self.name)?;
        let instance = vm["status"]["instanceID"].as_str().context("it has no instance")?.to_owned();
        let folder = folder(fleet, host, &instance)?;
        wait::until("a TPM with keys", SOON, || digests(&folder))?;
        kubectl.apply(&self.vm(placement, "Stopped").to_string())?;
        self.until_on(fleet, host, "Stopped")?;
        Ok(instance)
    }

    /// Waits until it is on a host that has its firmware state, in this state.
    pub fn until_on(&self, fleet: &Fleet, host: &str, state: &str) -> Result<()> {
        let what = format!("to be {state} on {host}");
        let is_there = |vm: &Value| {
            host_in(vm).as_deref() == Some(host)
                && vm["status"]["formerHost"].is_null()
                && vm["status"]["state"] == state
                && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        fleet.kubectl().until(&format!("vm/{}", self.name), &what, ANSWER, is_there).map(drop)
    }

    pub fn delete(&self, fleet: &Fleet) -> Result<()> {
        ["vm", "disk"].iter().try_for_each(|kind| fleet.kubectl().delete(&format!("{kind}/{}", self.name)))
    }

    pub fn vm(&self, placement: Value, power: &str) -> Value {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": self.name},
            "spec": {
                "cpus": 1, "memory": "192Mi", "firmware": "UEFI", "tpm": true, "power": power, "placement": placement,
                "disks": [{"name": self.name, "boot": true}], "networkInterfaces": [], "stop": {"mode": "Hard"},
            },
        })
    }
}

/// The folder of an instance on a host.
pub fn folder(fleet: &Fleet, host: &str, instance: &str) -> Result<PathBuf> {
    Ok(fleet.member(host)?.berth.state().join("instances").join(instance))
}

/// The checksums of the firmware variables and of the memory of the TPM in the folder of an instance.
pub fn digests(folder: &Path) -> Result<[String; 2]> {
    let digest = |file: &str| -> Result<String> {
        let path = folder.join(file);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
    };
    let [variables, tpm] = FILES;
    Ok([digest(variables)?, digest(tpm)?])
}
