//! A guest in the common pool that moves to another host while it runs, and back.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::HOST;
use super::lost_host::{device_of, file, public_address, volume_of};
use super::mover::Mover;
use super::shared_pool::POOL;
use super::{ANSWER, page};
use crate::fleet::{Fleet, host_in};
use crate::http::field;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::report::Report;

const MOVER: Mover = Mover { name: "live", data: "live-data", pool: Some(POOL) };

/// The variable that has the agents move running guests.
const EXPERIMENT: &str = "BERTH_EXPERIMENTAL_LIVE_MIGRATION";

/// Runs the case in the pool that all hosts have in common, if the experiment is asked for; nothing of VMs is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    if std::env::var(EXPERIMENT).is_err() {
        return;
    }
    report.case(
        "a guest in that pool moves to another host while it runs, with its memory, data and addresses, and back",
        || {
            let common = fleet.common();
            moves_live(fleet, &common).and(MOVER.delete(fleet))
        },
    );
}

fn moves_live(fleet: &Fleet, common: &Path) -> Result<()> {
    let kubectl = fleet.kubectl();
    let pooled = |disk: Value| manifests::with(disk, "pool", json!(POOL));
    kubectl.apply(&manifests::all(&[
        pooled(manifests::disk(MOVER.name, "web", "64Mi")),
        pooled(manifests::blank_disk(MOVER.data, "64Mi")),
        manifests::public_ip(MOVER.name, "segment"),
        MOVER.vm(json!({"host": HOST}), "Running", "1"),
    ]))?;
    let before = kubectl.condition(&format!("vm/{}", MOVER.name), "Ready=True", None, ANSWER)?;
    let public = public_address(fleet, MOVER.name)?;
    let device = device_of(fleet, &public, MOVER.data)?;
    let wrote = page(fleet, &public, &format!("/cgi-bin/write?dev={device}&seed=11"))?;
    let sum = field(&wrote, "sha256")?.to_owned();
    let volumes = [volume_of(fleet, MOVER.name)?, volume_of(fleet, MOVER.data)?];

    let host = fleet.host_of("web-0")?;
    let boot = boot_of(fleet, &public)?;
    // The change of the placement alone moves it.
    kubectl.apply(&MOVER.vm(json!({"host": host, "movePolicy": "Live"}), "Running", "1").to_string())?;
    let there = runs_on(fleet, &host)?;
    ensure!(there["status"]["process"] != before["status"]["process"], "{:#}", there["status"]);
    ensure!(there["status"]["restarts"] == before["status"]["restarts"], "{:#}", there["status"]);
    ensure!(boot_of(fleet, &public)? == boot, "it was booted anew");
    let again = device_of(fleet, &public, MOVER.data)?;
    let read = page(fleet, &public, &format!("/cgi-bin/sum?dev={again}"))?;
    ensure!(field(&read, "sha256")? == sum, "it reads other data than was written: {read}");
    are_taken(common, &volumes, &host, HOST)?;

    // And back, by the command.
    kubectl.apply(&MOVER.vm(json!({}), "Running", "1").to_string())?;
    fleet.administrator().run(&["move", MOVER.name, "--to", HOST, "--live"])?.success()?;
    runs_on(fleet, HOST)?;
    ensure!(boot_of(fleet, &public)? == boot, "it was booted anew on the way back");
    are_taken(common, &volumes, HOST, &host)
}

fn runs_on(fleet: &Fleet, host: &str) -> Result<Value> {
    fleet.kubectl().until(&format!("vm/{}", MOVER.name), "to run on the other host", ANSWER * 2, |vm| {
        host_in(vm).as_deref() == Some(host)
            && condition_of(vm, "Ready").is_some_and(|ready| ready["status"] == "True")
            && vm["status"]["migration"].is_null()
    })
}

/// Another one for each boot of the guest.
fn boot_of(fleet: &Fleet, public: &str) -> Result<String> {
    Ok(field(&page(fleet, public, "/cgi-bin/uptime")?, "boot_id")?.to_owned())
}

/// Whether the files are in the folder of one host, and not in that of the other.
fn are_taken(common: &Path, volumes: &[String; 2], host: &str, other: &str) -> Result<()> {
    for volume in volumes {
        ensure!(file(common, host, volume).exists(), "{volume} is not in the folder of {host}");
        ensure!(!file(common, other, volume).exists(), "{volume} is in the folder of {other} still");
    }
    Ok(())
}
