//! Images: files of the host, addresses the host must not fetch from, other tenants' images.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tenant::Tenant;
use crate::guests::GuestImage;
use crate::image_server::{Content, ImageServer};
use crate::kubectl::{Kubectl, condition_of};
use crate::manifests;
use crate::platform::Platform;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::{process, wait};

const SOON: Duration = Duration::from_secs(60);
/// The secret in signed URLs.
const CANARY: &str = "canary-7f3a";

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case("an Image reads no file of the host, and does not reveal whether it exists", || {
        let tenant = Tenant::new(platform, "image-files")?;
        let secret = platform.folder().join("secret.img");
        fs::write(&secret, vec![7; 4096])?;
        let gone = platform.folder().join("gone.img");
        let mut output = Vec::new();
        for path in [&secret, &gone] {
            let url = format!("file://{}", path.display());
            let message = stalled(tenant.kubectl(), &url, &"0".repeat(64), "ImageNotAllowed")?;
            contains_all(&message, &["--image-dir"])?;
            output.push(message.replace(&url, "URL"));
        }
        ensure!(output[0] == output[1], "{output:?}");
        // Nor with the correct checksum.
        let url = format!("file://{}", secret.display());
        stalled(tenant.kubectl(), &url, &sum("sha256sum", &secret)?, "ImageNotAllowed").map(drop)
    });
    report.case(
        "an Image is fetched from no address of the host or of its loopback, not by a redirect either",
        || {
            let tenant = Tenant::new(platform, "image-addresses")?;
            refused_addresses(platform, tenant.kubectl())
        },
    );
    report.case("the checksum of another tenant's image does not open it", || {
        let (owner, thief) = (Tenant::new(platform, "image-owner")?, Tenant::new(platform, "image-thief")?);
        let private = variant(guest, platform.folder(), "private")?;
        let (url, digest) = (
            platform.images().put("private.qcow2", Content::File(private.clone())),
            sum("sha256sum", &private)?,
        );
        ready(owner.kubectl(), &manifests::image("mine", &url, &digest))?;
        let guess = platform.images().url("guess.qcow2");
        stalled(thief.kubectl(), &guess, &digest, "ImageNotFound")?;
        // A tenant that can read the source gets the image too, stored once.
        ready(thief.kubectl(), &manifests::image("mine", &url, &digest))?;
        let stored =
            files(platform)?.into_iter().filter(|name| name.starts_with(&digest) && !name.ends_with(".json"));
        ensure!(stored.count() == 1, "{:?}", files(platform)?);
        owner.kubectl().delete("image/mine")?;
        thief.kubectl().delete("image/mine")
    });
    report.case("a source that hangs holds up no other tenant's, and ends with its Image", || {
        let (slow, other) = (Tenant::new(platform, "image-slow")?, Tenant::new(platform, "image-other")?);
        let path = variant(guest, platform.folder(), "contended")?;
        let digest = sum("sha256sum", &path)?;
        let hangs = platform.images().put("hangs.qcow2", Content::Hang(path.clone(), 100_000));
        let good = platform.images().put("contended.qcow2", Content::File(path));
        slow.kubectl().apply(&manifests::image("slow", &hangs, &digest).to_string())?;
        wait::until("the download to hang", SOON, || {
            ensure!(platform.images().hanging() == 1, "it was not begun");
            Ok(())
        })?;
        ready(other.kubectl(), &manifests::image("good", &good, &digest))?;
        slow.kubectl().delete("image/slow")?;
        wait::until("the download to end", SOON, || {
            ensure!(platform.images().hanging() == 0, "it still goes on");
            let left: Vec<String> =
                files(platform)?.into_iter().filter(|name| name.contains(".partial")).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })?;
        other.kubectl().delete("image/good")
    });
    report.case("what a URL is signed with is in no condition, event or log", || {
        let tenant = Tenant::new(platform, "image-signed")?;
        let url = platform.images().url("signed.qcow2").replace("http://", &format!("http://me:{CANARY}@"));
        let url = format!("{url}?X-Signature={CANARY}");
        let message = stalled(tenant.kubectl(), &url, &"1".repeat(64), "ImageNotFound")?;
        contains_all(&message, &["signed.qcow2", "404"])?;
        ensure!(!message.contains(CANARY), "{message}");
        let events = tenant.administrator().ok(&["get", "events", "-o", "yaml"])?;
        ensure!(!events.contains(CANARY), "{events}");
        let log = fs::read_to_string(platform.host().log())?;
        contains_all(&log, &["signed.qcow2"])?;
        let output: Vec<&str> = log.lines().filter(|line| line.contains(CANARY)).collect();
        ensure!(output.is_empty(), "{output:?}");
        Ok(())
    });
    report.case("an image is verified by SHA-512, and by a file of checksums that is read once", || {
        let tenant = Tenant::new(platform, "image-sums")?;
        checksums(platform, tenant.kubectl(), guest)
    });
}

/// Loopback and the host's own address, with and without a listener: the message is the same.
fn refused_addresses(platform: &Platform, kubectl: &Kubectl) -> Result<()> {
    let loopback = ImageServer::start(platform.namespace(), "127.0.0.1")?;
    let own = ImageServer::start(platform.namespace(), "192.0.2.1")?;
    let direct = [
        loopback.url("x"),
        loopback.url("x").replace("127.0.0.1", "[::ffff:127.0.0.1]"),
        loopback.url("x").replace("127.0.0.1", "localhost"),
        own.url("x"),
        "http://127.0.0.1:1/x".to_owned(),
        "http://169.254.169.254/latest/meta-data".to_owned(),
    ];
    let redirect = platform.images().put("redirect", Content::Redirect(loopback.url("x")));
    let mut output = Vec::new();
    for url in direct.iter().chain([&redirect]) {
        let message = stalled(kubectl, url, &"0".repeat(64), "ImageNotAllowed")?;
        output.push(message.replace(url.as_str(), "URL"));
    }
    output.sort();
    output.dedup();
    ensure!(output.len() == 1, "{output:?}");
    ensure!(loopback.requests("x") == 0 && own.requests("x") == 0, "it was connected to");
    Ok(())
}

fn checksums(platform: &Platform, kubectl: &Kubectl, guest: &GuestImage) -> Result<()> {
    let path = variant(guest, platform.folder(), "summed")?;
    let url = platform.images().put("summed.qcow2", Content::File(path.clone()));
    let digest = sum("sha512sum", &path)?;
    let image = |name: &str, source: Value| {
        let mut image = manifests::image(name, &url, "");
        image["spec"]["source"] = source;
        image
    };
    ready(kubectl, &image("by-sha512", json!({"url": url, "sha512": digest})))?;
    wait::until("the host to report it", SOON, || {
        let images = platform.kubectl().ok(&["get", "hosts", "-o", "jsonpath={.items[*].status.images}"])?;
        ensure!(images.contains(&digest), "{images}");
        Ok(())
    })?;
    let sums = platform.folder().join("SHA512SUMS");
    fs::write(&sums, format!("{}  other.qcow2\n{digest}  summed.qcow2\n", "0".repeat(128)))?;
    let at = platform.images().put("SHA512SUMS", Content::File(sums));
    let found = ready(kubectl, &image("by-file", json!({"url": url, "checksumUrl": at})))?;
    ensure!(found["status"]["checksum"] == digest.as_str(), "{:#}", found["status"]);
    let both = image("both", json!({"url": url, "sha512": digest, "checksumUrl": at}));
    contains_all(&kubectl.apply_refused(&both.to_string())?, &["exactly one"])?;
    contains_all(&kubectl.apply_refused(&image("none", json!({"url": url})).to_string())?, &["exactly one"])?;
    let other = image("by-sha512", json!({"url": url, "sha512": "0".repeat(128)}));
    contains_all(&kubectl.apply_refused(&other.to_string())?, &["cannot change"])?;
    kubectl.delete("image/by-sha512")?;
    kubectl.delete("image/by-file")
}

/// Applies an Image and waits until it is Stalled. Returns its message.
fn stalled(kubectl: &Kubectl, url: &str, sha256: &str, reason: &str) -> Result<String> {
    kubectl.apply(&manifests::image("attack", url, sha256).to_string())?;
    let image = kubectl.condition("image/attack", "Stalled=True", Some(reason), SOON)?;
    let stalled = condition_of(&image, "Stalled").context("no condition")?;
    let message = stalled["message"].as_str().unwrap_or_default().to_owned();
    kubectl.delete("image/attack")?;
    Ok(message)
}

/// Applies an Image and waits until it is Ready.
fn ready(kubectl: &Kubectl, image: &Value) -> Result<Value> {
    kubectl.apply(&image.to_string())?;
    let name = image["metadata"]["name"].as_str().unwrap_or_default();
    kubectl.condition(&format!("image/{name}"), "Ready=True", None, SOON)
}

/// The host's image cache.
fn files(platform: &Platform) -> Result<Vec<String>> {
    let folder = platform.host().state().join("images");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The same disk in another file with another checksum, which no cache has.
fn variant(guest: &GuestImage, folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(format!("attack-{name}"));
    fs::copy(&guest.path, &path)?;
    fs::File::options().append(true).open(&path)?.write_all(format!("{name:>4096}").as_bytes())?;
    Ok(path)
}

fn sum(program: &str, path: &Path) -> Result<String> {
    let text = process::run(Command::new(program).arg(path), Duration::from_secs(60))?.success()?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
