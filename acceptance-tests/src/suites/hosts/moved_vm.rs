//! A VM that moves to another host while its host lives: by its placement at a restart, and back by `berth move` while it is stopped.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::HOST;
use super::lost_host::file;
use super::mover::{Moved, Mover};
use super::shared_pool::POOL;
use super::{SOON, message};
use crate::fleet::{Fleet, host_in};
use crate::report::Report;

const MOVER: Mover = Mover { name: "mover", data: "mover-data", pool: Some(POOL) };

/// Runs the case in the pool that all hosts have in common; nothing of VMs is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a guest in that pool moves to another host at a restart, with its data and addresses, and back while it is stopped",
        || {
            let common = fleet.common();
            moves_and_returns(fleet, &common).and(MOVER.delete(fleet))
        },
    );
}

fn moves_and_returns(fleet: &Fleet, common: &Path) -> Result<()> {
    let moved = MOVER.moves_at_restart(fleet)?;
    are_on(common, &moved.volumes, &moved.host, HOST)?;
    let left = fleet.kubectl().object("host", HOST)?;
    ensure!(
        left["status"]["orphans"].as_array().is_none_or(Vec::is_empty),
        "{:#}",
        left["status"]["orphans"]
    );
    returns(fleet, common, &moved)
}

/// Stops the VM, and has it moved back by the command, which refuses what cannot be.
fn returns(fleet: &Fleet, common: &Path, moved: &Moved) -> Result<()> {
    let kubectl = fleet.kubectl();
    MOVER.stop(fleet, json!({"host": moved.host}))?;
    let administrator = fleet.administrator();
    let refused = administrator.run(&["move", MOVER.name, "--to", HOST])?.failure()?;
    ensure!(refused.contains("placement.host"), "{refused}");
    let stays = kubectl.object("vm", MOVER.name)?;
    ensure!(message(&stays, "Movable")?.contains("placement.host"), "{:#}", stays["status"]["conditions"]);
    administrator.run(&["move", MOVER.name, "--cancel"])?.success()?;
    kubectl.apply(&MOVER.vm(json!({}), "Stopped", "2").to_string())?;
    administrator.run(&["move", MOVER.name, "--to", HOST])?.success()?;
    let back = kubectl.object("vm", MOVER.name)?;
    ensure!(host_in(&back).as_deref() == Some(HOST), "{:#}", back["status"]["binding"]);
    for disk in [MOVER.name, MOVER.data] {
        kubectl.condition(&format!("disk/{disk}"), "Ready=True", None, SOON)?;
    }
    are_on(common, &moved.volumes, HOST, &moved.host)
}

/// Whether the files are in the folder of one host, and not in that of the other.
fn are_on(common: &Path, volumes: &[String; 2], host: &str, other: &str) -> Result<()> {
    for volume in volumes {
        ensure!(file(common, host, volume).exists(), "{volume} is not in the folder of {host}");
        ensure!(!file(common, other, volume).exists(), "{volume} is in the folder of {other} still");
    }
    Ok(())
}
