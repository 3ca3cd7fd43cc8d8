//! Invalid images, and connections that break during a download.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{LONGER, SOON, delete};
use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::kubectl::condition_of;
use crate::manifests;
use crate::oci_registry::OciRegistry;
use crate::platform::Platform;
use crate::report::Report;
use crate::suites::kubectl::contains_all;
use crate::{process, wait};

fn sum_of(path: &Path) -> Result<String> {
    let text = process::run(Command::new("sha256sum").arg(path), Duration::from_secs(60))?.success()?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

/// The same disk in another file with another checksum, which no cache has.
fn variant(guest: &GuestImage, folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::copy(&guest.path, &path)?;
    // A qcow2 may be longer than what it refers to.
    let mut file = File::options().append(true).open(&path)?;
    file.write_all(format!("{name:>4096}").as_bytes())?;
    Ok(path)
}

fn qemu_img(arguments: &[&str], folder: &Path) -> Result<()> {
    process::run(Command::new("qemu-img").args(arguments).current_dir(folder), Duration::from_secs(60))?
        .success()?;
    Ok(())
}

/// Applies an Image and waits until it is Stalled. Returns its message.
fn stalled(platform: &Platform, name: &str, url: &str, sha256: &str, reason: &str) -> Result<String> {
    let kubectl = platform.kubectl();
    kubectl.apply(&manifests::image(name, url, sha256).to_string())?;
    let image = kubectl.condition(&format!("image/{name}"), "Stalled=True", Some(reason), SOON)?;
    let message =
        condition_of(&image, "Stalled").and_then(|stalled| stalled["message"].as_str()).unwrap_or_default();
    delete(kubectl, &[&format!("image/{name}")])?;
    Ok(message.to_owned())
}

fn copied_and_limited(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let server = platform.images();
    report.case(
        "a download that failed as often as is allowed is given up, and begins anew with another limit",
        || {
            let kubectl = platform.kubectl();
            let fresh = variant(guest, platform.folder(), "limited")?;
            let url = server.put("limited.qcow2", Content::CutAlways(fresh.clone(), 100_000));
            let mut image = manifests::image("limited", &url, &sum_of(&fresh)?);
            image["spec"]["source"]["retries"] = 1.into();
            kubectl.apply(&image.to_string())?;
            kubectl.condition("image/limited", "Stalled=True", Some("DownloadFailed"), LONGER)?;
            server.put("limited.qcow2", Content::File(fresh));
            image["spec"]["source"]["retries"] = 2.into();
            kubectl.apply(&image.to_string())?;
            kubectl.condition("image/limited", "Ready=True", None, LONGER)?;
            delete(kubectl, &["image/limited"])
        },
    );
    report.case(
        "a copy of an image has its content without a download, and keeps it when that one is deleted",
        || {
            let kubectl = platform.kubectl();
            let fresh = variant(guest, platform.folder(), "original")?;
            let sum = sum_of(&fresh)?;
            let url = server.put("original.qcow2", Content::File(fresh));
            kubectl.apply(&manifests::image("original", &url, &sum).to_string())?;
            kubectl.condition("image/original", "Ready=True", None, LONGER)?;
            let requests = server.requests("original.qcow2");
            let mut copy = manifests::image("copy", &url, &sum);
            copy["spec"]["source"] = json!({"image": "original"});
            kubectl.apply(&copy.to_string())?;
            let ready = kubectl.condition("image/copy", "Ready=True", None, SOON)?;
            ensure!(ready["status"]["checksum"] == sum.as_str(), "another checksum: {ready}");
            ensure!(server.requests("original.qcow2") == requests, "it was asked for again");
            delete(kubectl, &["image/original"])?;
            let cached = platform.host().state().join("images").join(&sum);
            // Its host looks at its cache at the latest five seconds after that.
            std::thread::sleep(Duration::from_secs(8));
            ensure!(cached.exists(), "{} is gone", cached.display());
            delete(kubectl, &["image/copy"])?;
            wait::until("the cached content to go", LONGER, || {
                ensure!(!cached.exists(), "{} is still there", cached.display());
                Ok(())
            })
        },
    );
}

fn shared(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let server = platform.images();
    report.case(
        "an image of another namespace is copied once it is shared, and no new disk is made of the copy when it is not any more",
        || {
            let kubectl = platform.kubectl();
            let fresh = variant(guest, platform.folder(), "library")?;
            let sum = sum_of(&fresh)?;
            let url = server.put("library.qcow2", Content::File(fresh));
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "library"}});
            kubectl.apply(&namespace.to_string())?;
            let library = kubectl.within("library");
            let mut original = manifests::image("original", &url, &sum);
            library.apply(&original.to_string())?;
            library.condition("image/original", "Ready=True", None, LONGER)?;
            let requests = server.requests("library.qcow2");
            let mut copy = manifests::image("borrowed", &url, &sum);
            let refusal = |name: &str| -> Result<String> {
                let image =
                    kubectl.condition("image/borrowed", "Stalled=True", Some("ImageNotShared"), SOON)?;
                let message = condition_of(&image, "Stalled").and_then(|stalled| stalled["message"].as_str());
                Ok(message.unwrap_or_default().replace(name, "NAME"))
            };
            let mut texts = Vec::new();
            for name in ["nothing", "original"] {
                copy["spec"]["source"] = json!({"image": name, "imageNamespace": "library"});
                kubectl.apply(&copy.to_string())?;
                texts.push(refusal(name)?);
                if name == "nothing" {
                    delete(kubectl, &["image/borrowed"])?;
                }
            }
            ensure!(texts[0] == texts[1], "the messages differ: {texts:?}");
            original["spec"]["sharedWith"] = json!(["default"]);
            library.apply(&original.to_string())?;
            kubectl.condition("image/borrowed", "Ready=True", None, SOON)?;
            ensure!(server.requests("library.qcow2") == requests, "it was downloaded again");
            kubectl.apply(&manifests::disk("early", "borrowed", "1Gi").to_string())?;
            kubectl.condition("disk/early", "Ready=True", None, SOON)?;
            original["spec"]["sharedWith"] = json!(["others"]);
            library.apply(&original.to_string())?;
            kubectl.apply(&manifests::disk("late", "borrowed", "1Gi").to_string())?;
            kubectl.condition("disk/late", "Stalled=True", Some("ImageNotShared"), SOON)?;
            kubectl.condition("image/borrowed", "Ready=True", None, SOON)?;
            delete(kubectl, &["disk/early", "disk/late", "image/borrowed"])?;
            delete(&library, &["image/original"])?;
            delete(kubectl, &["namespace/library"])
        },
    );
}

/// The second disk of an archive whose first one is none: with the declared number it is taken, and without one the archive is refused.
fn of_ova(platform: &Platform, guest: &GuestImage, folder: &Path) -> Result<()> {
    let manifest = format!("SHA256(a.vmdk)= {}\n", sum_of(&folder.join("a.vmdk"))?);
    for (name, text) in [("box.ovf", "<Envelope/>"), ("none.vmdk", "none"), ("box.mf", manifest.as_str())] {
        fs::write(folder.join(name), text)?;
    }
    let members = ["-cf", "box.ova", "box.ovf", "none.vmdk", "a.vmdk", "box.mf"];
    process::run(Command::new("tar").args(members).current_dir(folder), LONGER)?.success()?;
    let packed = folder.join("box.ova");
    let sum = sum_of(&packed)?;
    let mut image =
        manifests::image("appliance", &platform.images().put("box.ova", Content::File(packed)), &sum);
    image["spec"]["format"] = "ova".into();
    let kubectl = platform.kubectl();
    kubectl.apply(&image.to_string())?;
    let refused = kubectl.condition("image/appliance", "Stalled=True", Some("ImageInvalid"), LONGER)?;
    let message = condition_of(&refused, "Stalled").and_then(|stalled| stalled["message"].as_str());
    contains_all(message.unwrap_or_default(), &["2 disks", "none.vmdk", "a.vmdk"])?;
    delete(kubectl, &["image/appliance"])?;
    image["spec"]["ovaDisk"] = 2.into();
    kubectl.apply(&image.to_string())?;
    kubectl.condition("image/appliance", "Ready=True", None, LONGER)?;
    // Its file has a name of its own: see `Image::stored_digest`.
    let first = u8::from_str_radix(&sum[..2], 16)? ^ 2;
    let cached = platform.host().state().join("images").join(format!("{first:02x}{}", &sum[2..]));
    let (original, cached) = (guest.path.to_str().unwrap_or_default(), cached.to_str().unwrap_or_default());
    qemu_img(&["compare", "-f", "qcow2", "-F", "qcow2", original, cached], folder)?;
    delete(kubectl, &["image/appliance"])
}

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let server = platform.images();
    let good = server.put("good.qcow2", Content::File(guest.path.clone()));
    report.case("a wrong checksum is refused, naming the declared one and not that of the bytes", || {
        let wrong = "0".repeat(64);
        let message = stalled(platform, "wrong-sum", &good, &wrong, "ChecksumMismatch")?;
        ensure!(!message.contains(&guest.sha256), "{message}");
        contains_all(&message, &[&wrong])
    });
    report.case("an image that is not found is refused with the answer", || {
        let message = stalled(platform, "missing", &server.url("missing"), &"1".repeat(64), "ImageNotFound")?;
        contains_all(&message, &["404"])
    });
    report.case("a connection cut in the middle is resumed where it ended", || {
        let fresh = variant(guest, platform.folder(), "cut")?;
        let length = fs::metadata(&fresh)?.len();
        let url = server.put("cut.qcow2", Content::CutOnce(fresh.clone(), length / 2));
        let kubectl = platform.kubectl();
        let sent = server.bytes_sent();
        kubectl.apply(&manifests::image("cut", &url, &sum_of(&fresh)?).to_string())?;
        kubectl.condition("image/cut", "Ready=True", None, LONGER)?;
        let sent = server.bytes_sent() - sent;
        ensure!(server.requests("cut.qcow2") >= 2, "the connection was not cut");
        ensure!(
            (length..length + length / 4).contains(&sent),
            "{sent} bytes were sent for an image of {length}"
        );
        Ok(())
    });
    report.case(
        "an image is downloaded once for any number of objects of a namespace, and goes when nothing refers to it",
        || {
            let kubectl = platform.kubectl();
            let sum = sum_of(&platform.folder().join("cut"))?;
            let requests = server.requests("cut.qcow2");
            kubectl.apply(&manifests::image("cut-again", &server.url("cut.qcow2"), &sum).to_string())?;
            kubectl.condition("image/cut-again", "Ready=True", None, SOON)?;
            ensure!(server.requests("cut.qcow2") == requests, "it was asked for again");
            let cached = platform.host().state().join("images").join(&sum);
            ensure!(cached.exists(), "{} is not there", cached.display());
            delete(kubectl, &["image/cut", "image/cut-again"])?;
            wait::until("the cached content to go", LONGER, || {
                ensure!(!cached.exists(), "{} is still there", cached.display());
                Ok(())
            })
        },
    );
    report.case("a connection that is always cut is reported, retried, and heals", || {
        let kubectl = platform.kubectl();
        let fresh = variant(guest, platform.folder(), "always")?;
        let url = server.put("always.qcow2", Content::CutAlways(fresh.clone(), 100_000));
        kubectl.apply(&manifests::image("always", &url, &sum_of(&fresh)?).to_string())?;
        kubectl.condition("image/always", "Ready=False", Some("Retrying"), SOON)?;
        server.put("always.qcow2", Content::File(fresh));
        kubectl.condition("image/always", "Ready=True", None, LONGER)?;
        delete(kubectl, &["image/always"])
    });
    copied_and_limited(report, platform, guest);
    shared(report, platform, guest);
    report.case("a VMDK in an OVA, and one compressed with xz, become the same disk in qcow2", || {
        let folder = platform.folder();
        let original = guest.path.to_str().unwrap_or_default();
        let options = "subformat=streamOptimized";
        qemu_img(&["convert", "-f", "qcow2", "-O", "vmdk", "-o", options, original, "a.vmdk"], folder)?;
        of_ova(platform, guest, folder)?;
        process::run(Command::new("xz").args(["-0", "a.vmdk"]).current_dir(folder), LONGER)?.success()?;
        let packed = folder.join("a.vmdk.xz");
        let sum = sum_of(&packed)?;
        let mut image = manifests::image("foreign", &server.put("a.vmdk.xz", Content::File(packed)), &sum);
        image["spec"]["format"] = "vmdk".into();
        image["spec"]["compression"] = "xz".into();
        let kubectl = platform.kubectl();
        kubectl.apply(&image.to_string())?;
        kubectl.condition("image/foreign", "Ready=True", None, LONGER)?;
        let cached = platform.host().state().join("images").join(&sum);
        let cached = cached.to_str().unwrap_or_default();
        qemu_img(&["compare", "-f", "qcow2", "-F", "qcow2", original, cached], folder)?;
        delete(kubectl, &["image/foreign"])
    });
    report.case("a file that is not compressed as declared is refused, with the decoder's reason", || {
        let fresh = variant(guest, platform.folder(), "plain")?;
        let sum = sum_of(&fresh)?;
        let mut image = manifests::image("packed", &server.put("plain.qcow2", Content::File(fresh)), &sum);
        image["spec"]["compression"] = "gzip".into();
        let kubectl = platform.kubectl();
        kubectl.apply(&image.to_string())?;
        let image = kubectl.condition("image/packed", "Stalled=True", Some("ImageInvalid"), SOON)?;
        let message = condition_of(&image, "Stalled").and_then(|stalled| stalled["message"].as_str());
        contains_all(message.unwrap_or_default(), &["gzip", "invalid gzip header"])?;
        delete(kubectl, &["image/packed"])
    });
    for (fact, name, make, reason) in hostile() {
        report.case(fact, || {
            let path = make(platform.folder())?;
            let url = server.put(name, Content::File(path.clone()));
            let message = stalled(platform, name, &url, &sum_of(&path)?, reason)?;
            ensure!(!message.is_empty(), "no message");
            Ok(())
        });
    }
}

/// A registry on the loopback interface of the host: any other has to speak HTTPS.
pub(super) fn from_registry(report: &mut Report, platform: &mut Platform, guest: &GuestImage) {
    report.case("a container disk in a registry becomes the same disk in qcow2", || {
        platform.host_mut().allow_images_from("127.0.0.1/32");
        platform.stop()?;
        platform.start()?;
        let registry = OciRegistry::start(platform.namespace())?;
        registry.push_container_disk("disks/small", "1", &guest.path, platform.folder())?;
        let mut image = manifests::image("from-registry", "", "");
        image["spec"]["source"] = json!({"url": format!("{}:1", registry.url("disks/small"))});
        let kubectl = platform.kubectl();
        kubectl.apply(&image.to_string())?;
        let image = kubectl.condition("image/from-registry", "Ready=True", None, LONGER)?;
        let sum = image["status"]["checksum"].as_str().unwrap_or_default();
        let cached = platform.host().state().join("images").join(sum);
        let [original, cached] = [&guest.path, &cached].map(|path| path.to_str().unwrap_or_default());
        qemu_img(&["compare", "-f", "qcow2", "-F", "qcow2", original, cached], platform.folder())?;
        delete(kubectl, &["image/from-registry"])?;
        listed(platform, &registry)
    });
}

/// Terraform lists the tags of the repository, and makes an image of each.
fn listed(platform: &Platform, registry: &OciRegistry) -> Result<()> {
    let repository = registry.url("disks/small");
    let project = platform.project_of(&format!(
        r#"
data "berth_remote_images" "small" {{
  url         = "{repository}"
  name_filter = "?"
}}

resource "berth_image" "listed" {{
  for_each = {{ for image in data.berth_remote_images.small.images : image.name => image.url }}
  name     = "listed-${{each.key}}"
  source   = {{ url = each.value }}
}}
"#
    ))?;
    project.init()?;
    project.run(&["apply", "-auto-approve", "-input=false", "-no-color"])?.success()?;
    let image = platform.kubectl().condition("image/listed-1", "Ready=True", None, SOON)?;
    ensure!(image["spec"]["source"]["url"] == format!("{repository}:1"), "{:#}", image["spec"]);
    project.run(&["destroy", "-auto-approve", "-input=false", "-no-color"])?.success().map(drop)
}

type Make = fn(&Path) -> Result<PathBuf>;

/// Images that must not be booted.
fn hostile() -> [(&'static str, &'static str, Make, &'static str); 5] {
    [
        (
            "what is no image is refused",
            "text",
            |folder| {
                let path = folder.join("text");
                fs::write(&path, "<html>not found</html>\n".repeat(100))?;
                Ok(path)
            },
            "ImageInvalid",
        ),
        (
            "an empty file is refused",
            "empty",
            |folder| {
                let path = folder.join("empty");
                File::create(&path)?;
                Ok(path)
            },
            "ImageInvalid",
        ),
        (
            "a qcow2 with a backing file is refused",
            "backed",
            |folder| {
                qemu_img(
                    &["create", "-q", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", "backed", "1M"],
                    folder,
                )?;
                Ok(folder.join("backed"))
            },
            "ImageInvalid",
        ),
        (
            "a qcow2 with an external data file is refused",
            "external",
            |folder| {
                let options = "data_file=external.raw,data_file_raw=on";
                qemu_img(&["create", "-q", "-f", "qcow2", "-o", options, "external", "1M"], folder)?;
                Ok(folder.join("external"))
            },
            "ImageInvalid",
        ),
        (
            "a qcow2 of an absurd virtual size is refused",
            "absurd",
            |folder| {
                qemu_img(&["create", "-q", "-f", "qcow2", "absurd", "1000T"], folder)?;
                Ok(folder.join("absurd"))
            },
            "ImageTooLarge",
        ),
    ]
}
