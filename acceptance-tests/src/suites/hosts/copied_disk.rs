//! A VM with disks in a pool that each host has for itself: they are copied to its next host, and removed from the one that it has left.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::json;

use super::HOST;
use super::mover::Mover;
use super::{ANSWER, SILENCE};
use crate::fleet::{Fleet, host_in};
use crate::kubectl::condition_of;
use crate::report::Report;
use crate::wait;

const CARRIER: Mover = Mover { name: "carrier", data: "carrier-data", pool: None };

/// Runs the case; nothing is left behind.
pub fn run(report: &mut Report, fleet: &mut Fleet) {
    report.case(
        "a guest whose disks are on its host alone moves to another host with its data, and back while it is stopped",
        || moves_and_returns(fleet).and(CARRIER.delete(fleet)),
    );
}

fn moves_and_returns(fleet: &Fleet) -> Result<()> {
    let kubectl = fleet.kubectl();
    let disks = [CARRIER.name, CARRIER.data];
    let moved = CARRIER.moves_at_restart(fleet)?;
    for disk in disks {
        let disk = kubectl.object("disk", disk)?;
        ensure!(disk["status"]["formerHost"].is_null(), "its host has its data: {:#}", disk["status"]);
    }
    are_on(fleet, &moved.volumes, &moved.host, HOST)?;

    CARRIER.stop(fleet, json!({}))?;
    fleet.administrator().run(&["move", CARRIER.name, "--to", HOST])?.success()?;
    for disk in disks {
        kubectl.until(&format!("disk/{disk}"), "to be copied back", ANSWER, |disk| {
            host_in(disk).as_deref() == Some(HOST)
                && disk["status"]["formerHost"].is_null()
                && condition_of(disk, "Ready").is_some_and(|ready| ready["status"] == "True")
        })?;
    }
    are_on(fleet, &moved.volumes, HOST, &moved.host)
}

/// Waits until the files are in the folder of one host, and nothing of them in that of the other, which is made to look for what it has
/// left.
fn are_on(fleet: &Fleet, volumes: &[String; 2], host: &str, other: &str) -> Result<()> {
    let folder = |host: &str| -> Result<PathBuf> {
        Ok(fleet.member(host)?.berth.state().join("pools/default/volumes"))
    };
    let (here, there) = (folder(host)?, folder(other)?);
    for volume in volumes {
        ensure!(here.join(format!("{volume}.qcow2")).exists(), "{volume} is not on {host}");
    }
    let removed = |limit| {
        wait::until(&format!("{other} to remove what {host} has copied"), limit, || {
            for volume in volumes {
                for end in ["qcow2", "json"] {
                    ensure!(
                        !there.join(format!("{volume}.{end}")).exists(),
                        "{volume}.{end} is on {other} still"
                    );
                }
            }
            Ok(())
        })
    };
    fleet.kubectl().while_hosts_look(SILENCE, removed)
}
