//! `examples/disks-of-a-vm` with the small guest: disks that only the VM declares, an image behind a password, limits of traffic.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;
use crate::{process, wait, workspace};

const SOON: Duration = Duration::from_secs(60);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/disks-of-a-vm: a VM with its disks and a private image is one apply, changed live, and leaves nothing",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/disks-of-a-vm"))?;
            let image = of_its_own(platform, guest)?;
            // printf 'ci:s3cret' | base64
            let private = Content::Private(image.path.clone(), "Basic Y2k6czNjcmV0".to_owned());
            let url = platform.images().put("private.qcow2", private);
            let variables = json!({"image_url": url, "image_sha256": image.sha256, "image_secret": "images-login"});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let done = lives(platform, &project, &variables);
            project.destroy()?;
            platform.kubectl().ok(&["delete", "secret", "images-login", "--ignore-not-found"])?;
            done?;
            wait::until("the disks to go after their VM", SOON, || {
                let left = platform.kubectl().ok(&["get", "disks", "-o", "name"])?;
                ensure!(!left.contains("shop-"), "{left}");
                Ok(())
            })
        },
    );
}

/// Returns the guest as an image that no other case of the namespace has had downloaded.
fn of_its_own(platform: &Platform, guest: &GuestImage) -> Result<GuestImage> {
    let path = platform.folder().join("private.qcow2");
    fs::copy(&guest.path, &path)?;
    // Behind the last cluster nothing is read.
    fs::OpenOptions::new().append(true).open(&path)?.write_all(&[0; 65_536])?;
    GuestImage::at(path)
}

fn rules(platform: &Platform) -> Result<String> {
    let mut nft = platform.namespace().command("nft");
    nft.args(["list", "table", "bridge", "berth"]);
    process::run(&mut nft, SOON)?.success()
}

fn lives(platform: &Platform, project: &Project, variables: &Value) -> Result<()> {
    let kubectl = platform.kubectl();
    let login = ["create", "secret", "generic", "images-login"];
    let wrong = ["--from-literal=username=ci", "--from-literal=password=wrong"];
    kubectl.ok(&[&login[..], &wrong].concat())?;
    let only_image = ["apply", "-auto-approve", "-input=false", "-no-color", "-target=berth_image.golden"];
    let log = platform.folder().join("private-image.log");
    let apply = process::Daemon::spawn("terraform apply", &mut project.command(&only_image), &log)?;
    let refused = kubectl.condition("image/golden", "Ready=False", Some("Retrying"), SOON)?;
    contains_all(&refused["status"]["conditions"].to_string(), &["401"])?;
    let right = json!({"stringData": {"password": "s3cret"}}).to_string();
    kubectl.ok(&["patch", "secret", "images-login", "--type=merge", "-p", &right])?;
    apply.ended(SOON * 2)?;
    project.apply()?;
    project.plan_is_empty()?;

    let pid = platform.qemu()?;
    let owner = &kubectl.object("disk", "shop-root")?["metadata"]["ownerReferences"][0];
    ensure!(owner["kind"] == "VM" && owner["name"] == "shop", "{owner}");
    contains_all(
        &rules(platform)?,
        &["chain sent_btt", "over 6250000 bytes/second", "chain received_btt", "over 12500000 bytes/second"],
    )?;

    let mut larger = variables.clone();
    larger["root_size"] = "5Gi".into();
    larger["egress"] = "8M".into();
    project.write("terraform.tfvars.json", &larger.to_string())?;
    let plan = project.plan()?;
    ensure!(plan.changes().iter().all(|change| change.contains("update")), "{:?}", plan.changes());
    project.apply()?;
    project.plan_is_empty()?;
    kubectl.until("disk/shop-root", "to grow", SOON, |disk| disk["status"]["size"] == "5Gi")?;
    wait::until("the new limit", SOON, || contains_all(&rules(platform)?, &["over 1000000 bytes/second"]))?;
    ensure!(platform.qemu()? == pid, "the VM was restarted");
    let attached = kubectl.object("vm", "shop")?["status"]["disks"].clone();
    let disks = attached.as_array().context("it has disks")?;
    ensure!(disks.len() == 2 && disks.iter().all(|disk| disk["attached"] == true), "{attached}");
    follows_labels(platform)?;
    keeps_places(platform, project)
}

/// A label of the VM reaches its disk, and leaves it again.
fn follows_labels(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    for (change, wanted) in [("team=web", json!("web")), ("team-", Value::Null)] {
        kubectl.ok(&["label", "vm", "shop", change])?;
        let has = |disk: &Value| disk["metadata"]["labels"]["team"] == wanted;
        kubectl.until("disk/shop-data", "to have the labels of its VM", SOON, has)?;
    }
    Ok(())
}

/// A disk that was plugged in stays at its SCSI target when the one before it is taken off.
fn keeps_places(platform: &Platform, project: &Project) -> Result<()> {
    let data = r#"{ name = "shop-data", template = { size = "1Gi", limits = { iops = 500 } } },"#;
    let more = r#"{ name = "shop-more", template = { size = "1Gi" } },"#;
    let (running, stopped) = (r#"wait_for = "guest""#, r#"power    = "Stopped""#);
    let places = |wanted: Value| {
        let seen = |vm: &Value| vm["status"]["hardware"]["diskPlaces"] == wanted;
        platform.kubectl().until("vm/shop", "to have its disks at their places", SOON, seen)
    };
    let place = |name: &str, number: u8| json!({"name": name, "bus": "virtio-scsi", "number": number});
    project.edit("main.tf", data, &format!("{data}\n    {more}"))?;
    project.apply()?;
    places(json!([place("shop-data", 1), place("shop-more", 2), place("shop-root", 0)]))?;
    project.edit("main.tf", running, stopped)?;
    project.apply()?;
    project.edit("main.tf", data, "")?;
    project.edit("main.tf", stopped, running)?;
    project.apply()?;
    places(json!([place("shop-more", 2), place("shop-root", 0)]))?;
    project.plan_is_empty()
}
