//! `examples/images-from-disks` with the small guest: images of a snapshot and of the disk of a running guest, downloads of both, and a
//! second guest that boots from the one and has the data of the other.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::downloads;
use super::kubectl::contains_all;
use super::snapshots::{sum, write};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::workspace;

const SOON: Duration = Duration::from_secs(60);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/images-from-disks: a guest boots from an image of another guest's disk, and has its data",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/images-from-disks"))?;
            let image = project.read("image.tf")?;
            project.write("image.tf", "")?;
            let url = platform.images().put("golden.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image_url": url, "image_sha256": guest.sha256});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            project.apply()?;
            let held = made(platform, &project, &image).and_then(|()| shared(platform));
            project.destroy()?;
            held?;
            let left = platform.kubectl().ok(&["get", "images,disks,dsnap", "-o", "name"])?;
            ensure!(!left.contains("golden"), "{left}");
            Ok(())
        },
    );
}

fn made(platform: &Platform, project: &Project, image: &str) -> Result<()> {
    let kubectl = platform.kubectl();
    let first = project.output("address")?;
    let before = write(platform, &first, "golden-data", 7)?;
    project.write("image.tf", image)?;
    project.apply()?;
    project.plan_is_empty()?;
    let status = kubectl.object("image", "golden-data-1")?["status"].clone();
    let checksum = status["checksum"].as_str().unwrap_or_default();
    ensure!(
        status["state"] == "Ready" && checksum.len() == 64 && status["virtualSize"] == "1Gi",
        "{status:#}"
    );
    downloads::compared(platform, checksum)?;
    // The guest goes on, and its data changes after the image.
    let after = write(platform, &first, "golden-data", 8)?;
    let worker = project.output("worker_address")?;
    ensure!(
        sum(platform, &worker, "golden-worker-data")? == before && before != after,
        "the data of that moment"
    );
    let own = write(platform, &worker, "golden-worker-data", 9)?;
    ensure!(sum(platform, &first, "golden-data")? == after && own != after, "each has its own");
    // Another token has the image made anew, and the disk that was made before keeps its data.
    let anew =
        image.replace("{ disk = berth_disk.data.name }", "{ disk = berth_disk.data.name, token = \"2\" }");
    ensure!(anew != image, "image.tf has no such source");
    project.write("image.tf", &anew)?;
    project.apply()?;
    project.plan_is_empty()?;
    let status = kubectl.object("image", "golden-data-1")?["status"].clone();
    ensure!(status["token"] == "2" && status["checksum"] != checksum, "{status:#}");
    ensure!(sum(platform, &worker, "golden-worker-data")? == own, "it is based on the former content");
    let other = json!({"spec": {"source": {"disk": "golden-root"}}}).to_string();
    let refused = kubectl.refused(&["patch", "image", "golden-data-1", "--type=merge", "-p", &other])?;
    contains_all(&refused, &["source.disk cannot change"])?;
    // One that nothing is made from waits, and says for what.
    let none = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "golden-none"},
        "spec": {"source": {"disk": "golden-none"}}});
    kubectl.apply(&none.to_string())?;
    let waits =
        |image: &serde_json::Value| image["status"]["conditions"].to_string().contains("WaitingForDisk");
    kubectl.until("image/golden-none", "to wait", SOON, waits)?;
    kubectl.ok(&["delete", "image", "golden-none", "--timeout=60s"]).map(drop)
}

/// A disk of another namespace is copied, and an image made of it, once it is shared.
fn shared(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "borrower"}});
    kubectl.apply(&namespace.to_string())?;
    let borrower = kubectl.within("borrower");
    let source = json!({"disk": "golden-data", "diskNamespace": "default"});
    for kind in ["Image", "Disk"] {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": "borrowed"},
            "spec": {"source": source}});
        borrower.apply(&object.to_string())?;
    }
    for object in ["image/borrowed", "disk/borrowed"] {
        borrower.condition(object, "Stalled=True", Some("SourceNotShared"), SOON)?;
    }
    let share = |with: serde_json::Value| {
        let patch = json!({"spec": {"sharedWith": with}}).to_string();
        kubectl.ok(&["patch", "disk", "golden-data", "--type=merge", "-p", &patch]).map(drop)
    };
    share(json!(["borrower"]))?;
    for object in ["image/borrowed", "disk/borrowed"] {
        borrower.condition(object, "Ready=True", None, SOON)?;
    }
    share(serde_json::Value::Null)?;
    borrower.ok(&["delete", "image/borrowed", "disk/borrowed", "--timeout=60s"])?;
    platform.delete_namespace("borrower")
}
