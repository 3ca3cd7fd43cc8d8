//! Secure Boot: a signed guest boots, an unsigned one does not.

use anyhow::{Result, ensure};
use serde_json::json;

use super::console;
use super::kubectl::contains_all;
use super::rules::{ANSWER, project};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::wait;

const GUEST: &str = r#"
variable "images" {
  type = map(object({ url = string, sha256 = string }))
}

resource "berth_image" "guest" {
  for_each = var.images
  name     = "boot-${each.key}"
  source   = each.value
}

resource "berth_disk" "root" {
  name  = "boot-root"
  image = berth_image.guest["signed"].name
  size  = "64Mi"
}

resource "berth_disk" "unsigned" {
  name  = "boot-unsigned"
  image = berth_image.guest["unsigned"].name
  size  = "64Mi"
}

resource "berth_public_ip" "guest" {
  name = "boot"
}

resource "berth_vm" "guest" {
  name               = "boot"
  cpus               = 1
  # GRUB loads kernel and initramfs into what the firmware leaves: 256Mi is not enough.
  memory             = "1Gi"
  firmware           = "UEFISecureBoot"
  disks              = [{ name = berth_disk.root.name, boot = true }]
  network_interfaces = [{ public_ip = berth_public_ip.guest.name }]
  wait_for           = "guest"
  allow_reboot       = true
  # A guest that the firmware refused does not answer a request to shut down.
  stop               = { grace_period_seconds = 2 }
}

output "address" {
  value = berth_public_ip.guest.address
}
"#;

/// Runs the cases.
pub fn run(report: &mut Report, platform: &Platform, signed: &GuestImage, unsigned: &GuestImage) {
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = cases(report, platform, signed, unsigned);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn cases(report: &mut Report, platform: &Platform, signed: &GuestImage, unsigned: &GuestImage) -> Result<()> {
    let (project, address) = report.step("a guest with signed boot loaders boots with Secure Boot", || {
        let project = project(platform, GUEST)?;
        let image = |name: &str, guest: &GuestImage| {
            let url = platform.images().put(name, Content::File(guest.path.clone()));
            json!({"url": url, "sha256": guest.sha256})
        };
        let images = json!({"signed": image("signed.qcow2", signed), "unsigned": image("unsigned.qcow2", unsigned)});
        project.write("terraform.tfvars.json", &json!({"images": images}).to_string())?;
        project.init()?;
        project.apply()?;
        let address = project.output("address")?;
        let page = http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
        ensure!(field(&page, "secure_boot")? == "on", "{page}");
        project.plan_is_empty()?;
        Ok((project, address))
    })?;
    report.case("with Secure Boot the firmware refuses a guest that nobody signed", || {
        project.edit("main.tf", "berth_disk.root.name, boot", "berth_disk.unsigned.name, boot")?;
        project.edit("main.tf", r#"= "guest""#, r#"= "running""#)?;
        project.apply()?;
        wait::until("the firmware's refusal", ANSWER, || {
            contains_all(&console::log(platform, "boot")?, &["Access Denied"])
        })
    });
    report.case("the same guest boots with plain UEFI in the same apply", || {
        project.edit("main.tf", r#""UEFISecureBoot""#, r#""UEFI""#)?;
        project.edit("main.tf", r#"= "running""#, r#"= "guest""#)?;
        let plan = project.plan()?;
        ensure!(plan.changes() == ["berth_vm.guest: update"], "{:?}", plan.changes());
        project.apply()?;
        let page = http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
        ensure!(field(&page, "secure_boot")? == "off" && field(&page, "firmware")? == "uefi", "{page}");
        project.plan_is_empty()
    });
    report.case("destroy takes it away", || project.destroy().map(drop));
    Ok(())
}
