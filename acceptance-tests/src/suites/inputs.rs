//! Invalid input that needs the whole stack: hostile images, objects that do not exist yet or never will, exhausted addresses,
//! a control plane that goes away in the middle of an apply.

mod images;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::kubectl::contains_all;
use super::{lifecycle, manifests};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::kubectl::{Kubectl, condition_of};
use crate::platform::Platform;
use crate::process::Daemon;
use crate::report::{Report, note};
use crate::wait;

const SOON: Duration = Duration::from_secs(60);
const LONGER: Duration = Duration::from_secs(120);

/// Runs the cases; each cleans up after itself.
pub fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) -> Result<()> {
    let failed = report.count().failed;
    images::run(report, platform, guest);
    images::from_registry(report, platform, guest);
    disks(report, platform, guest);
    waiting(report, platform);
    hopeless(report, platform);
    sharing(report, platform);
    failing_qemu(report, platform);
    through_terraform(report, platform, guest);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
    Ok(())
}

fn delete(kubectl: &Kubectl, objects: &[&str]) -> Result<()> {
    objects.iter().try_for_each(|object| kubectl.delete(object))
}

fn disks(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let kubectl = platform.kubectl();
    report.case("a disk smaller than its image is refused with the size it needs", || {
        let url = platform.images().put("good.qcow2", Content::File(guest.path.clone()));
        kubectl.apply(&manifests::image("big", &url, &guest.sha256).to_string())?;
        kubectl.condition("image/big", "Ready=True", None, LONGER)?;
        kubectl.apply(&manifests::disk("little", "big", "1Mi").to_string())?;
        let disk = kubectl.condition("disk/little", "Stalled=True", Some("DiskSmallerThanImage"), SOON)?;
        let message = condition_of(&disk, "Stalled").context("no condition")?["message"].to_string();
        contains_all(&message, &["big", "56Mi"])?;
        delete(kubectl, &["disk/little", "image/big"])
    });
}

fn waiting(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case(
        "a VM that names a missing class, disk or group waits with that reason, then goes on by itself",
        || {
            let vm = manifests::with(
                manifests::vm("early", "later-class", "later-disk"),
                "placement",
                serde_json::json!({"group": "later-group"}),
            );
            kubectl.apply(&vm.to_string())?;
            let waits =
                |reason: &str| kubectl.condition("vm/early", "Ready=False", Some(reason), SOON).map(drop);
            let missing: [(&str, Value); 3] = [
                ("WaitingForClass", manifests::class("later-class", 1, "64Mi")),
                ("WaitingForDisk", manifests::blank_disk("later-disk", "64Mi")),
                ("WaitingForGroup", manifests::group("later-group")),
            ];
            let mut left: Vec<(&str, Value)> = missing.into();
            while !left.is_empty() {
                // Which of them the message names first is not defined.
                let named = wait::until("a reason", SOON, || {
                    let object = kubectl.object("vm", "early")?;
                    let reason = condition_of(&object, "Ready").context("no Ready")?["reason"].clone();
                    left.iter()
                        .position(|(known, _)| reason == *known)
                        .with_context(|| format!("{reason} is none of what is missing"))
                })?;
                let (reason, object) = left.remove(named);
                waits(reason)?;
                kubectl.apply(&object.to_string())?;
            }
            kubectl.condition("vm/early", "Running=True", None, LONGER)?;
            delete(
                kubectl,
                &["vm/early", "disk/later-disk", "placementgroup/later-group", "vmclass/later-class"],
            )
        },
    );
}

fn sharing(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("of two VMs that boot one disk the first runs and the second names it", || {
        kubectl.apply(&manifests::all(&[
            manifests::bios_class("tiny", "64Mi"),
            manifests::blank_disk("shared", "64Mi"),
            manifests::vm("first", "tiny", "shared"),
        ]))?;
        kubectl.condition("vm/first", "Running=True", None, LONGER)?;
        kubectl.apply(&manifests::vm("second", "tiny", "shared").to_string())?;
        let second = kubectl.condition("vm/second", "Ready=False", Some("DiskInUse"), SOON)?;
        let message = condition_of(&second, "Ready").context("no Ready")?["message"].to_string();
        contains_all(&message, &["shared", "first"])?;
        platform.qemu()?;
        delete(kubectl, &["vm/second", "vm/first"])?;
        super::kubectl::wait_for_release(kubectl, "shared")?;
        delete(kubectl, &["disk/shared", "vmclass/tiny"])
    });
    report.case(
        "without a free public address the next PublicIP reports it, and gets one that is released",
        || {
            kubectl.apply(&manifests::all(&[
                manifests::pool("one-address", "203.0.113.7/32"),
                manifests::public_ip("taken", "one-address"),
            ]))?;
            kubectl.condition("publicip/taken", "Ready=True", None, SOON)?;
            kubectl.apply(&manifests::public_ip("hopeful", "one-address").to_string())?;
            kubectl.condition("publicip/hopeful", "Ready=False", Some("NoFreeAddress"), SOON)?;
            delete(kubectl, &["publicip/taken"])?;
            kubectl.condition("publicip/hopeful", "Ready=True", None, SOON)?;
            delete(kubectl, &["publicip/hopeful", "ippool/one-address"])
        },
    );
}

/// A cloud-config with an unclosed bracket.
const NOT_YAML: &str = "#cloud-config\nusers:\n  - name: [web\nruncmd: []\n";

fn hopeless(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    let stalled = |reason: &str| -> Result<String> {
        let vm = kubectl.condition("vm/hopeless", "Stalled=True", Some(reason), SOON)?;
        ensure!(crate::fleet::host_in(&vm).is_none(), "it is bound: {:#}", vm["status"]);
        Ok(condition_of(&vm, "Stalled").context("no Stalled")?["message"].to_string())
    };
    report.case("user data that is no YAML stalls its VM, with line and column and none of its text", || {
        let vm = manifests::vm("hopeless", "vast", "hopeless");
        let vm = manifests::with(vm, "bootstrap", serde_json::json!({"userData": NOT_YAML}));
        kubectl.apply(&vm.to_string())?;
        let message = stalled("InvalidSpec")?;
        contains_all(&message, &["user data", "line", "column"])?;
        ensure!(!message.contains("web"), "{message}");
        delete(kubectl, &["vm/hopeless"])
    });
    report.case("a VM larger than any host is stalled, with what the largest host offers", || {
        kubectl.apply(&manifests::all(&[
            manifests::class("vast", 1, "4000Gi"),
            manifests::blank_disk("hopeless", "64Mi"),
            manifests::vm("hopeless", "vast", "hopeless"),
        ]))?;
        contains_all(&stalled("NoHostLargeEnough")?, &["4000Gi", "the largest"])?;
        delete(kubectl, &["vm/hopeless", "disk/hopeless", "vmclass/vast"])
    });
}

/// A QEMU that fails to start a machine, with QEMU's own kind of error message.
const FAILING: &str = "#!/bin/sh
case \"$*\" in
*virtio-scsi*) echo 'qemu-system-x86_64: this machine is out of luck' >&2; exit 1 ;;
*) exec /usr/bin/qemu-system-x86_64 \"$@\" ;;
esac
";
const WORKING: &str = "#!/bin/sh\nexec /usr/bin/qemu-system-x86_64 \"$@\"\n";

fn failing_qemu(report: &mut Report, platform: &mut Platform) {
    report.case("a QEMU that fails at start is reported with its own message, retried, and heals", || {
        let folder = platform.host().programs();
        let program = folder.join("qemu-system-x86_64");
        platform.stop()?;
        fs::create_dir_all(&folder)?;
        write_program(&program, FAILING)?;
        platform.start()?;
        let kubectl = platform.kubectl();
        kubectl.apply(&manifests::all(&[
            manifests::bios_class("tiny", "64Mi"),
            manifests::blank_disk("unlucky", "64Mi"),
            manifests::vm("unlucky", "tiny", "unlucky"),
        ]))?;
        let vm = kubectl.condition("vm/unlucky", "Ready=False", Some("QemuFailed"), SOON)?;
        let message = condition_of(&vm, "Ready").context("no Ready")?["message"].to_string();
        contains_all(&message, &["out of luck"])?;
        write_program(&program, WORKING)?;
        kubectl.condition("vm/unlucky", "Running=True", None, LONGER)?;
        delete(kubectl, &["vm/unlucky"])?;
        super::kubectl::wait_for_release(kubectl, "unlucky")?;
        delete(kubectl, &["disk/unlucky", "vmclass/tiny"])?;
        platform.stop()?;
        fs::remove_dir_all(&folder)?;
        platform.start()
    });
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    // Written beside and renamed: the executable of a running program cannot be written.
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    fs::rename(&fresh, path)?;
    Ok(())
}

/// The errors that Terraform shows.
pub fn through_terraform(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case("Terraform shows a wrong checksum as an error, and the right one heals it", || {
        let project = lifecycle::quickstart(platform, guest, "#!/bin/sh\n")?;
        let variables = project.read("terraform.tfvars.json")?;
        project.write("terraform.tfvars.json", &variables.replace(&guest.sha256, &"0".repeat(64)))?;
        project.init()?;
        let output = project.apply_with(&["-target=berth_image.debian"])?.failure()?;
        contains_all(&crate::terraform::unwrapped(&output), &["berth_image.debian", "checksum"])?;
        project.write("terraform.tfvars.json", &variables)?;
        project.apply_with(&["-target=berth_image.debian"])?.success()?;
        project.destroy().map(drop)
    });
    report.case("Terraform's plan refuses what admission would, with the attribute", || {
        let project = lifecycle::quickstart(platform, guest, "#!/bin/sh\n")?;
        project.init()?;
        for memory in ["512MB", "-1", "lots"] {
            let before = project.read("main.tf")?;
            project.edit("main.tf", r#"memory = "512Mi""#, &format!("memory = \"{memory}\""))?;
            contains_all(&project.plan_refused()?, &["memory", memory])?;
            project.write("main.tf", &before)?;
        }
        project.edit("main.tf", r#"name = "web-data""#, r#"name = "Web_Data""#)?;
        contains_all(&project.plan_refused()?, &["name", "Web_Data"])
    });
    report.case("Terraform's plan refuses user data that is no YAML, with line and column", || {
        let project = lifecycle::quickstart(platform, guest, NOT_YAML)?;
        project.init()?;
        let output = crate::terraform::unwrapped(&project.plan_refused()?);
        contains_all(&output, &["user_data", "not YAML", "line", "column"])
    });
    report.case(
        "a control plane that goes away in the middle of an apply costs a second apply and nothing else",
        || {
            let project = lifecycle::quickstart(platform, guest, "#!/bin/sh\n")?;
            project.init()?;
            let log = platform.folder().join("interrupted-apply.log");
            let mut apply = project.command(&["apply", "-auto-approve", "-input=false", "-no-color"]);
            let apply = Daemon::spawn("terraform apply", &mut apply, &log)?;
            wait::until("the VM to be declared", LONGER, || {
                platform.kubectl().object("vm", "web").map(drop)
            })?;
            platform.control_plane_down()?;
            std::thread::sleep(Duration::from_secs(3));
            platform.control_plane_up()?;
            // Whether it succeeded or gave up depends on timing; a second VM or a lost one would be a failure.
            apply.ended(Duration::from_secs(600))?;
            project.apply()?;
            project.plan_is_empty()?;
            platform.qemu()?;
            project.destroy().map(drop)
        },
    );
}
