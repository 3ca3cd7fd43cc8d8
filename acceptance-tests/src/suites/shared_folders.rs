//! `examples/shared-folders` with the small guest: folders of the host that it reads and writes, and what it cannot do there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::image_server::Content;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::{Project, unwrapped};
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(60);
/// A boot without KVM.
const BOOT: Duration = Duration::from_secs(240);
/// The results of the guest's attempts, as its script names them.
const ATTEMPTS: &[(&str, &str)] = &[
    ("media", "yes"),
    ("work", "yes"),
    ("film", "from-the-host"),
    ("written", "yes"),
    ("folder", "yes"),
    ("media_written", "no"),
    ("media_removed", "no"),
    ("media_changed", "no"),
    ("executable", "yes"),
    ("set_user_id", "no"),
    ("set_group_id", "no"),
    ("device", "no"),
    ("link", "no"),
    ("far_link", "no"),
    ("above", "no"),
    ("above_root", "no"),
    ("own_link", "yes"),
    ("own_link_read", "no"),
];

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/shared-folders: a guest reads and writes folders of its host, nothing beside them, and makes no devices and set-id files there",
        || {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/shared-folders"))?;
            let url = platform.images().put("shared-folders.qcow2", Content::File(guest.path.clone()));
            let secret = platform.host().shared("secret");
            let script = include_str!("shared_folders/guest.sh").replace("SECRET", &secret.to_string_lossy());
            let variables =
                json!({"image_url": url, "image_sha256": guest.sha256, "user_data": script});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            let done = check(platform, &project, &secret);
            project.destroy()?;
            done?;
            wait::until("the servers of the shares to end", SOON, || {
                let left = servers(platform)?;
                ensure!(left.is_empty(), "{left:?}");
                Ok(())
            })
        },
    );
}

fn check(platform: &Platform, project: &Project, secret: &Path) -> Result<()> {
    let (media, data) = (platform.host().shared("media"), platform.host().shared("data"));
    fs::write(secret, "secret")?;
    fs::write(media.join("film"), "from-the-host")?;
    symlink("../secret", data.join("link"))?;
    symlink(secret, data.join("far-link"))?;
    refusals(project)?;
    project.apply()?;
    project.plan_is_empty()?;

    let shared = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[0].status.shares}"])?;
    let shared: Value = serde_json::from_str(&shared)?;
    ensure!(
        shared == json!([{"name": "media", "readOnly": true}, {"name": "data", "readOnly": false}]),
        "{shared}"
    );
    let address = project.output("address")?;
    let page = wait::until("the guest to try everything", BOOT, || {
        let page = http::get(platform.namespace(), &address, "/shares", SOON)?;
        field(&page, "done")?;
        Ok(page)
    })?;
    for (name, result) in ATTEMPTS {
        ensure!(field(&page, name)? == *result, "{name} is not {result}: {page}");
    }
    ensure!(fs::read_to_string(data.join("from-guest"))? == "hello host", "the host sees another text");
    ensure!(fs::read_to_string(media.join("film"))? == "from-the-host", "the film was changed");
    ensure!(data.join("made").is_dir() && !data.join("device").exists(), "the host sees something else");
    let mode = fs::metadata(data.join("program"))?.permissions().mode();
    ensure!(mode & 0o7777 == 0o755, "the mode is {mode:o}");
    ensure!(servers(platform)?.len() == 4, "two for each share: {:?}", servers(platform)?);
    Ok(())
}

/// Refused at plan, before anything is created.
fn refusals(project: &Project) -> Result<()> {
    let (was, tag) = ("tag = \"work\"", "tag = \"media\"");
    project.edit("main.tf", was, tag)?;
    let refused = unwrapped(&project.plan_refused()?);
    ensure!(refused.contains("Duplicate tag"), "{refused}");
    project.edit("main.tf", tag, was)?;
    let (was, suspended) = ("wait_for  = \"guest\"", "power = \"Suspended\"");
    project.edit("main.tf", was, suspended)?;
    let refused = unwrapped(&project.plan_refused()?);
    ensure!(refused.contains("A VM with shares cannot be suspended"), "{refused}");
    project.edit("main.tf", suspended, was)
}

/// The processes that serve shares of this platform's VMs.
fn servers(platform: &Platform) -> Result<Vec<String>> {
    let state = platform.folder().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("listing processes")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let name =
            String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        if name.starts_with(&state) && name.ends_with("/virtiofsd") {
            found.push(name);
        }
    }
    Ok(found)
}
