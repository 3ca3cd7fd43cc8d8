//! Downloads of images, snapshots and disks, beside the running guest of `examples/images-from-disks`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::console::administrator;
use super::kubectl::contains_all;
use crate::platform::Platform;
use crate::process;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(120);

/// The snapshot `golden-root-1` against its files on the host, and the disk `golden-data` against the image `golden-data-1`, which has the
/// same data, with this checksum.
pub fn compared(platform: &Platform, checksum: &str) -> Result<()> {
    let folder = platform.folder().join("downloads");
    fs::create_dir_all(&folder).context("a folder")?;
    let result = compared_in(platform, checksum, &folder);
    fs::remove_dir_all(&folder).context("removing the downloads")?;
    result
}

fn compared_in(platform: &Platform, checksum: &str, folder: &Path) -> Result<()> {
    let kubectl = platform.kubectl();
    let download_as = |format: &str, kind: &str, name: &str, file: &Path| {
        let file = file.display().to_string();
        administrator(platform).run(&[kind, "download", name, &file, "--format", format])
    };
    let download = |kind: &str, name: &str, file: &Path| {
        let file = file.display().to_string();
        administrator(platform).run(&[kind, "download", name, &file])
    };
    let (root, data, disk) = (folder.join("root.qcow2"), folder.join("data.qcow2"), folder.join("disk.raw"));
    // As another download left it: the checksum shows that these bytes are not of this image.
    fs::write(folder.join("data.qcow2.part"), "other").context("a part of a file")?;
    let said = download("image", "golden-data-1", &data)?.success()?;
    contains_all(&said, &["image/golden-data-1 is in ", checksum])?;
    let mut sum = Command::new("sha256sum");
    let sum = process::run(sum.arg(&data), LIMIT)?.success()?;
    ensure!(sum.starts_with(checksum), "{sum} is not {checksum}");
    contains_all(&download("image", "golden-data-1", &data)?.failure()?, &["exists", "--force"])?;
    continued(platform, &data, checksum)?;
    contains_all(&download("image", "golden-base", &disk)?.failure()?, &["comes from a URL"])?;
    contains_all(&download("disk", "golden-none", &disk)?.failure()?, &["there is no disk golden-none"])?;

    // Of a disk that a running guest has.
    download_as("raw", "disk", "golden-data", &disk)?.success()?;
    same("raw", &disk, &data)?;
    download("snapshot", "golden-root-1", &root)?.success()?;
    let snapshot = kubectl.object("dsnap", "golden-root-1")?;
    let id = snapshot["status"]["snapshotID"].as_str().context("the snapshot has no identity")?;
    same("qcow2", &root, &platform.host().state().join(format!("pools/default/snapshots/{id}.qcow2")))?;

    wait::until("the Images of the downloads to be gone", LIMIT, || {
        let left = kubectl.ok(&["get", "images", "-l", "berth.dev/download-of", "-o", "name"])?;
        ensure!(left.trim().is_empty(), "{left}");
        Ok(())
    })?;
    let files: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    ensure!(files.len() == 3, "{files:?}");
    Ok(())
}

/// As a command that was killed leaves it: of the file, three quarters are there, and only the last one comes.
fn continued(platform: &Platform, data: &Path, checksum: &str) -> Result<()> {
    let bytes = fs::read(data).context("the download before")?;
    fs::write(data.with_added_extension("part"), &bytes[..bytes.len() / 4 * 3])
        .context("a part of a file")?;
    let file = data.display().to_string();
    let finished = administrator(platform).run(&["image", "download", "golden-data-1", &file, "--force"])?;
    let shown = finished.stderr.clone();
    contains_all(&finished.success()?, &[checksum])?;
    ensure!(shown.contains(" 75 % of") && !shown.contains("  0 % of"), "{shown}");
    ensure!(fs::read(data).context("the download")? == bytes, "the bytes differ");
    Ok(())
}

/// Compares the data of a disk with that of a qcow2 file, which QEMU may have open.
fn same(format: &str, one: &Path, other: &Path) -> Result<()> {
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-U", "-f", format, "-F", "qcow2"]).arg(one).arg(other);
    process::run(&mut compare, LIMIT)?.success().map(drop)
}
