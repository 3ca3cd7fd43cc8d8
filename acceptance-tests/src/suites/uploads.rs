//! Images from files of this machine: `examples/images-from-a-file` with the small guest, and `berth image push`.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::console::administrator;
use super::kubectl::contains_all;
use super::snapshots::sum;
use crate::berth::KUBECONFIG_VARIABLE;
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::process::Daemon;
use crate::report::{Report, note};
use crate::terraform::{Project, unwrapped};
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(60);
/// The size of the file for `berth image push`: the upload takes long enough to be interrupted.
const SIZE: usize = 128 << 20;
/// How often the progress of that upload is read.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How often it is tried to interrupt an upload.
const ATTEMPTS: u32 = 3;
/// The unit in which its content differs.
const PAGE: usize = 4 << 10;

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/images-from-a-file: a guest boots from a file of the machine that runs Terraform",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/images-from-a-file"))?;
            let file = project.folder().join("disk.qcow2");
            project.write("terraform.tfvars.json", &json!({"image_file": "disk.qcow2"}).to_string())?;
            project.init()?;
            // The plan warns, since an error would block a destroy as well. The apply fails before it changes the image.
            contains_all(&unwrapped(&project.apply_refused()?), &["disk.qcow2 does not exist"])?;
            fs::copy(&guest.path, &file).context("copying the image")?;
            project.apply()?;
            let held = uploaded(platform, &project, guest);
            // With other content, the plan before the destroy would replace an image in use.
            fs::copy(&guest.path, &file).context("copying the image again")?;
            project.destroy()?;
            held?;
            let left = platform.kubectl().ok(&["get", "images,disks", "-o", "name"])?;
            ensure!(!left.contains("built-here"), "{left}");
            Ok(())
        },
    );
}

fn uploaded(platform: &Platform, project: &Project, guest: &GuestImage) -> Result<()> {
    project.plan_is_empty()?;
    ensure!(project.output("sha256")? == guest.sha256, "the checksum of the file is in the state");
    let image = platform.kubectl().object("image", "built-here")?;
    let bytes = fs::metadata(&guest.path).context("the image")?.len();
    ensure!(
        image["status"]["state"] == "Ready"
            && image["status"]["upload"].is_null()
            && image["spec"]["source"]["upload"]["size"] == bytes,
        "{image:#}"
    );
    // The guest answers, and reads its disk.
    sum(platform, &project.output("address")?, "built-here-root")?;
    let file = project.folder().join("disk.qcow2");
    let elsewhere = project.folder().join("elsewhere.qcow2");
    fs::rename(&file, &elsewhere).context("moving the file away")?;
    project.plan_is_empty()?;
    fs::rename(&elsewhere, &file).context("moving the file back")?;
    let mut other = fs::read(&file).context("the file")?;
    other.push(0);
    fs::write(&file, other).context("changing the file")?;
    // Other content is another image, and a disk is made from this one.
    contains_all(&project.plan_refused()?, &["The image is in use"])
}

/// Kills an upload once some of it is shown; returns whether that was before its end.
fn interrupt(platform: &Platform, words: &[&str], attempt: u32) -> Result<bool> {
    let mut command = platform.namespace().command(platform.host().program());
    command.args(words).env(KUBECONFIG_VARIABLE, platform.kubeconfig());
    let log = platform.folder().join(format!("push-{attempt}.log"));
    let push = Daemon::spawn("berth image push", &mut command, &log)?;
    let shown = || fs::read_to_string(&log).unwrap_or_default();
    let end = Instant::now() + SOON.min(wait::time_left());
    // A look at the log takes less time than a tenth of the upload, unlike the pauses of `wait::until`.
    while !(1..=9).any(|tenth| shown().contains(&format!(" {tenth}0 % of "))) {
        ensure!(Instant::now() < end, "nothing was uploaded within {SOON:.0?}: {}", shown());
        std::thread::sleep(LOOK_EVERY);
    }
    push.crash()?;
    Ok(!shown().contains("100 % of "))
}

/// An upload that is killed continues. Runs on both control planes.
pub fn push(report: &mut Report, platform: &Platform) {
    report.case("berth image push uploads a file, and continues after kill -9", || {
        let file = platform.folder().join("pushed.raw");
        // No page is as another one, nor empty.
        let mut bytes = vec![0x5a; SIZE];
        for (number, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
            page[..size_of::<usize>()].copy_from_slice(&number.to_le_bytes());
        }
        fs::write(&file, &bytes).context("writing the file")?;
        let path = file.display().to_string();
        let words = ["image", "push", &path, "--name", "pushed", "--format", "raw"];
        for attempt in 1..=ATTEMPTS {
            if interrupt(platform, &words, attempt)? {
                break;
            }
            ensure!(attempt < ATTEMPTS, "each upload ended before it was killed: the file is too small");
            platform.kubectl().ok(&["delete", "image", "pushed", "--timeout=60s"])?;
        }
        let again = administrator(platform).run(&words)?;
        ensure!(again.status.success() && again.stdout == "image/pushed is ready\n", "{}", again.output());
        // It first shows what the host has.
        let shown = again.stderr.lines().find(|line| line.contains(" % of ")).unwrap_or_default();
        ensure!(
            !shown.is_empty() && !shown.contains("  0 % of "),
            "it does not continue: {}",
            again.output()
        );
        note(&format!("    it continued at{shown}"));
        let image = platform.kubectl().object("image", "pushed")?;
        let status = &image["status"];
        ensure!(status["state"] == "Ready" && status["bytes"] == SIZE, "{image:#}");
        fs::write(&file, &bytes[1..]).context("changing the file")?;
        let refused = administrator(platform).run(&words)?.failure()?;
        contains_all(&refused, &["Image pushed exists already", "another file"])?;
        fs::remove_file(&file).context("removing the file")?;
        contains_all(&administrator(platform).run(&words)?.failure()?, &["pushed.raw does not exist"])?;
        platform.kubectl().ok(&["delete", "image", "pushed", "--timeout=60s"]).map(drop)
    });
}
