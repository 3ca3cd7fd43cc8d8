//! `examples/install-from-iso`: an installer boots from its medium on a blank disk, installs and ejects the medium; afterwards the
//! VM boots from its disk. By UEFI and by BIOS, from the same image.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::rules::ANSWER;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::Project;
use crate::{wait, workspace};

/// Runs the cases.
pub fn run(report: &mut Report, platform: &Platform, installer: &GuestImage) {
    let failed = report.count().failed;
    // A failed step has been counted, and the steps after it cannot run.
    let _ = cases(report, platform, installer);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn cases(report: &mut Report, platform: &Platform, installer: &GuestImage) -> Result<()> {
    let project = platform.project()?;
    project.copy_from(&workspace::root().join("examples/install-from-iso"))?;
    let url = platform.images().put("installer.iso", Content::File(installer.path.clone()));
    let set = |firmware: &str, inserted: bool| {
        let variables = json!({
            "iso_url": url, "iso_sha256": installer.sha256, "firmware": firmware, "medium_inserted": inserted,
            "disk_size": "64Mi", "memory": "512Mi",
        });
        project.write("terraform.tfvars.json", &variables.to_string())
    };
    set("UEFI", true)?;
    project.init()?;
    let address = report
        .step("an installer boots on a blank disk by UEFI, and then what it installed", || {
            installed(platform, &project, "uefi")
        })?;
    report.case("a reboot closes the tray that the installer has opened, and another plan is empty", || {
        drive_is(platform, &json!({"name": "installer", "inserted": true, "trayOpen": false}))?;
        project.plan_is_empty()
    });
    report.case("the medium is taken out and inserted again while the guest runs, which reads it", || {
        let boot = boot_of(platform, &address)?;
        set("UEFI", false)?;
        project.apply()?;
        drive_is(platform, &json!({"name": "installer", "inserted": false, "trayOpen": false}))?;
        ensure!(medium_size(platform, &address)? == 0, "the drive is not empty");
        set("UEFI", true)?;
        project.apply()?;
        drive_is(platform, &json!({"name": "installer", "inserted": true, "trayOpen": false}))?;
        let bytes = installer.path.metadata()?.len();
        ensure!(medium_size(platform, &address)? == bytes, "the guest does not see all of the medium");
        ensure!(boot_of(platform, &address)? == boot, "it was restarted");
        project.plan_is_empty()
    });
    report.case("a deleted image stays while a drive names it", || {
        let kubectl = platform.kubectl();
        kubectl.ok(&["delete", "image", "installer", "--wait=false"])?;
        let image = kubectl.object("image", "installer")?;
        let users = image["status"]["usedBy"].to_string();
        ensure!(users.contains("\"VM\"") && users.contains("desktop"), "{users}");
        Ok(())
    });
    report.case("destroy takes it away", || project.destroy().map(drop));
    report.case("the same image installs by BIOS", || {
        set("BIOS", true)?;
        installed(platform, &project, "bios")?;
        project.destroy().map(drop)
    });
    Ok(())
}

/// Applies, and returns the address of the guest once it was installed.
fn installed(platform: &Platform, project: &Project, firmware: &str) -> Result<String> {
    project.apply()?;
    let address = project.output("address")?;
    let text = http::get_within(platform.neighbour(), &address, "/", ANSWER)?;
    ensure!(field(&text, "firmware")? == firmware, "{text}");
    Ok(address)
}

fn drive_is(platform: &Platform, wanted: &Value) -> Result<()> {
    wait::until("the state of the drive", ANSWER, || {
        let drives = platform.kubectl().object("vm", "desktop")?["status"]["cdroms"].clone();
        ensure!(drives == json!([wanted]), "{drives}");
        Ok(())
    })
}

/// The size of the medium in the guest's drive, in bytes.
fn medium_size(platform: &Platform, address: &str) -> Result<u64> {
    let text = http::get_within(platform.neighbour(), address, "/cgi-bin/disks", ANSWER)?;
    let drive = text.lines().find(|line| line.starts_with("name=sr0 ")).context("the guest has no drive")?;
    let size =
        drive.split_whitespace().find_map(|word| word.strip_prefix("size=")).context("it has no size")?;
    Ok(size.parse()?)
}

fn boot_of(platform: &Platform, address: &str) -> Result<String> {
    let text = http::get_within(platform.neighbour(), address, "/cgi-bin/uptime", ANSWER)?;
    Ok(field(&text, "boot_id")?.to_owned())
}
