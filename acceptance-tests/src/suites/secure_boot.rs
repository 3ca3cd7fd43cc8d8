//! Secure Boot: a signed guest boots, an unsigned one does not, and with keys of its own a VM boots only guests that these have signed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::console;
use super::rules::{ANSWER, project};
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::{process, wait};

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

/// The attribute beside which keys are declared.
const FIRMWARE: &str = "  firmware           = \"UEFISecureBoot\"\n";
/// The variables that Debian's firmware with Microsoft's keys comes with.
const MICROSOFTS_VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.ms.fd";
/// The name in the certificate by which Debian's boot loader is signed.
const MICROSOFTS_NAME: &[u8] = b"Microsoft Corporation UEFI CA 2011";
/// The type of a list of X.509 certificates among UEFI's variables.
const X509: [u8; 16] =
    [0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72];

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
    report.case("with keys of its own the firmware refuses a guest that only Microsoft has signed", || {
        let own = own_certificate()?;
        set_keys(platform, &own, &own)?;
        let before = refusals(platform)?;
        project.edit("main.tf", FIRMWARE, &format!("{FIRMWARE}{}", declared_keys("1")))?;
        project.edit("main.tf", r#"= "guest""#, r#"= "running""#)?;
        project.apply()?;
        refused_since(platform, before)
    });
    report.case("another token enrolls the keys that the Secret has then, and the guest boots", || {
        let own = own_certificate()?;
        set_keys(platform, &own, &format!("{own}{}", microsofts_certificate()?))?;
        project.edit("main.tf", r#"token = "1""#, r#"token = "2""#)?;
        project.edit("main.tf", r#"= "running""#, r#"= "guest""#)?;
        project.apply()?;
        let page = http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
        ensure!(field(&page, "secure_boot")? == "on", "{page}");
        project.plan_is_empty()?;
        project.edit("main.tf", &declared_keys("2"), "")
    });
    report.case("with Secure Boot the firmware refuses a guest that nobody signed", || {
        let before = refusals(platform)?;
        project.edit("main.tf", "berth_disk.root.name, boot", "berth_disk.unsigned.name, boot")?;
        project.edit("main.tf", r#"= "guest""#, r#"= "running""#)?;
        project.apply()?;
        refused_since(platform, before)
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

/// The number of the firmware's refusals in the log of the serial console.
fn refusals(platform: &Platform) -> Result<usize> {
    Ok(console::log(platform, "boot")?.matches("Access Denied").count())
}

/// Waits until the firmware has refused something more.
fn refused_since(platform: &Platform, before: usize) -> Result<()> {
    wait::until("the firmware's refusal", ANSWER, || {
        ensure!(refusals(platform)? > before, "nothing is refused: {}", console::log(platform, "boot")?);
        Ok(())
    })
}

fn declared_keys(token: &str) -> String {
    format!("  secure_boot_keys   = {{ secret_name = \"boot-keys\", token = \"{token}\" }}\n")
}

/// Writes the Secret with the keys: one certificate for PK and KEK, and those of db.
fn set_keys(platform: &Platform, own: &str, db: &str) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "boot-keys"},
        "stringData": {"PK": own, "KEK": own, "db": db}});
    platform.kubectl().apply(&secret.to_string()).map(drop)
}

/// Returns a certificate of our own, as PEM.
fn own_certificate() -> Result<String> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=berth"]);
    command.args(["-keyout", "/dev/null"]);
    process::run(&mut command, Duration::from_secs(60))?.success()
}

/// Returns Microsoft's certificate for boot loaders of others, as PEM: it is in the variables of Debian's firmware.
fn microsofts_certificate() -> Result<String> {
    let variables =
        fs::read(MICROSOFTS_VARIABLES).with_context(|| format!("reading {MICROSOFTS_VARIABLES}"))?;
    // A list is its type, three sizes, an owner of 16 bytes, and the certificate; the third size is that of the last two.
    let mut lists = (0..variables.len()).filter_map(|at| {
        let list = variables.get(at..)?.strip_prefix(X509.as_slice())?;
        let size: [u8; 4] = list.get(8..12)?.try_into().ok()?;
        list.get(28..usize::try_from(u32::from_le_bytes(size)).ok()?.checked_add(12)?)
    });
    let is_theirs =
        |found: &&[u8]| found.windows(MICROSOFTS_NAME.len()).any(|window| window == MICROSOFTS_NAME);
    let found = lists.find(is_theirs).context("the variables do not have Microsoft's certificate")?;
    Ok(format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(found)))
}
