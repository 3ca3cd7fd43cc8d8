//! A guest with two disks that moves to another host: the common part of the cases about moves.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::HOST;
use super::lost_host::{device_of, public_address, volume_of};
use super::{ANSWER, SOON, page};
use crate::fleet::{Fleet, host_in};
use crate::http::field;
use crate::kubectl::condition_of;
use crate::manifests;

/// A VM on a host without other guests, with a boot disk of its own name.
#[derive(Debug)]
pub struct Mover {
    pub name: &'static str,
    /// The disk beside the boot disk.
    pub data: &'static str,
    /// The pool of both. None: the default one.
    pub pool: Option<&'static str>,
}

/// Where the guest is after its move.
#[derive(Debug)]
pub struct Moved {
    /// The host that it is on.
    pub host: String,
    pub volumes: [String; 2],
}

impl Mover {
    /// Starts the guest on [`HOST`], writes to its disk, and has it move at a restart, with its data and addresses.
    pub fn moves_at_restart(&self, fleet: &Fleet) -> Result<Moved> {
        let kubectl = fleet.kubectl();
        let pooled = |disk: Value| match self.pool {
            Some(pool) => manifests::with(disk, "pool", json!(pool)),
            None => disk,
        };
        kubectl.apply(&manifests::all(&[
            pooled(manifests::disk(self.name, "web", "64Mi")),
            pooled(manifests::blank_disk(self.data, "64Mi")),
            manifests::public_ip(self.name, "segment"),
            self.vm(json!({"host": HOST}), "Running", "1"),
        ]))?;
        let path = format!("vm/{}", self.name);
        let before = kubectl.condition(&path, "Ready=True", None, ANSWER)?;
        ensure!(host_in(&before).as_deref() == Some(HOST), "{:#}", before["status"]["binding"]);
        let public = public_address(fleet, self.name)?;
        let device = device_of(fleet, &public, self.data)?;
        let wrote = page(fleet, &public, &format!("/cgi-bin/write?dev={device}&seed=7"))?;
        let sum = field(&wrote, "sha256")?;
        let volumes = [volume_of(fleet, self.name)?, volume_of(fleet, self.data)?];

        let host = fleet.host_of("web-0")?;
        let placement = json!({"host": host, "movePolicy": "WhenStopped"});
        kubectl.apply(&self.vm(placement.clone(), "Running", "1").to_string())?;
        let waits = kubectl.condition(&path, "Movable=True", None, SOON)?;
        ensure!(
            host_in(&waits).as_deref() == Some(HOST),
            "it runs on until it is stopped: {:#}",
            waits["status"]
        );
        kubectl.apply(&self.vm(placement, "Running", "2").to_string())?;
        let vm = kubectl.until(&path, "to run on the other host", ANSWER, |vm| {
            host_in(vm).as_deref() == Some(host.as_str())
                && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
        })?;
        let same = |vm: &Value| {
            let interface = &vm["status"]["interfaces"][0];
            [&interface["address"], &interface["macAddress"], &vm["status"]["instanceID"]].map(Value::clone)
        };
        ensure!(same(&vm) == same(&before), "after: {:#}, before: {:#}", vm["status"], before["status"]);
        ensure!(condition_of(&vm, "Movable").is_none(), "it has moved: {:#}", vm["status"]);
        ensure!(public_address(fleet, self.name)? == public, "it has another public address");
        let again = device_of(fleet, &public, self.data)?;
        let read = page(fleet, &public, &format!("/cgi-bin/sum?dev={again}"))?;
        ensure!(field(&read, "sha256")? == sum, "it reads other data than was written: {read}");
        Ok(Moved { host, volumes })
    }

    /// Stops the guest under this placement.
    pub fn stop(&self, fleet: &Fleet, placement: Value) -> Result<()> {
        let kubectl = fleet.kubectl();
        kubectl.apply(&self.vm(placement, "Stopped", "2").to_string())?;
        let is_off = |vm: &Value| vm["status"]["state"] == "Stopped" && vm["status"]["process"].is_null();
        kubectl.until(&format!("vm/{}", self.name), "to be off", ANSWER, is_off).map(drop)
    }

    /// Deletes it with its disks and its address.
    pub fn delete(&self, fleet: &Fleet) -> Result<()> {
        let objects = [("vm", self.name), ("publicip", self.name), ("disk", self.name), ("disk", self.data)];
        objects.iter().try_for_each(|(kind, name)| fleet.kubectl().delete(&format!("{kind}/{name}")))
    }

    pub fn vm(&self, placement: Value, power: &str, token: &str) -> Value {
        let vm = manifests::with(manifests::vm(self.name, "web", self.name), "placement", placement);
        let disks = json!([{"name": self.name, "boot": true}, {"name": self.data}]);
        let vm = manifests::with(vm, "disks", disks);
        let vm = manifests::with(vm, "power", json!(power));
        let vm = manifests::with(vm, "restartToken", json!(token));
        manifests::with(vm, "networkInterfaces", json!([{"name": "nic0", "publicIP": self.name}]))
    }
}
