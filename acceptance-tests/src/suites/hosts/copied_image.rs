//! An image of a disk of one host, and a guest that boots from it on another one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{ANSWER, SOON};
use crate::fleet::{Fleet, host_in};
use crate::manifests;
use crate::report::Report;

const NAME: &str = "copied";
/// The time limit for the image, which is made by emulated reads of a small disk, and for its copy.
const MADE: Duration = Duration::from_secs(120);

/// Runs the case beside the members of a group whose class is `web`; nothing is left behind.
pub fn run(report: &mut Report, fleet: &Fleet) {
    report.case(
        "an image of a disk of one host is copied to another, and a guest boots from it there",
        || {
            let (from, to) = (fleet.host_of("web-0")?, fleet.host_of("web-1")?);
            let held = boots(fleet, &from, &to);
            for object in ["vm", "disk", "image"] {
                fleet.kubectl().ok(&["delete", object, NAME, "--ignore-not-found", "--timeout=60s"])?;
            }
            held
        },
    );
}

fn boots(fleet: &Fleet, from: &str, to: &str) -> Result<()> {
    let kubectl = fleet.kubectl();
    let image = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": NAME},
        "spec": {"source": {"disk": "web-0"}}});
    kubectl.apply(&image.to_string())?;
    let image = kubectl.condition(&format!("image/{NAME}"), "Ready=True", None, MADE)?;
    ensure!(host_in(&image).as_deref() == Some(from), "{:#}", image["status"]);
    ensure!(image["status"]["server"]["address"].is_string(), "its host serves it: {:#}", image["status"]);
    kubectl.apply(&manifests::all(&[manifests::disk(NAME, NAME, "64Mi")]))?;
    let disk = kubectl.condition(&format!("disk/{NAME}"), "Ready=True", Some("WaitingForFirstUse"), SOON)?;
    ensure!(host_in(&disk).is_none(), "its first VM decides the host: {:#}", disk["status"]);
    let vm = manifests::with(manifests::vm(NAME, "web", NAME), "placement", json!({"host": to}));
    kubectl.apply(&manifests::all(&[vm]))?;
    kubectl.condition(&format!("vm/{NAME}"), "GuestReady=True", None, MADE + ANSWER)?;
    let disk = kubectl.object("disk", NAME)?;
    ensure!(host_in(&disk).as_deref() == Some(to), "{:#}", disk["status"]);
    let checksum = image["status"]["checksum"].as_str().context("a checksum")?;
    let has = |host: &Value| {
        host["status"]["images"].as_array().is_some_and(|images| images.iter().any(|image| image == checksum))
    };
    kubectl.until(&format!("host/{to}"), "to list the copy", SOON, has).map(drop)
}
