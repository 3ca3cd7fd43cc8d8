//! The application that every client installs: a stopped VM on a public address, with all its dependencies.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::manifests;

/// The kinds, in kubectl's notation.
pub(super) const KINDS: &str = "hotswapdiskattachments,vms,disks,images,publicips,placementgroups,vmclasses";

/// The objects: kind and name. Version 2 has no Disk `web-data`.
pub(super) const OBJECTS: [(&str, &str); 8] = [
    ("vmclass", "small"),
    ("image", "system"),
    ("disk", "web-root"),
    ("placementgroup", "web"),
    ("publicip", "web"),
    ("vm", "web"),
    ("disk", "web-hot"),
    ("hotswapdiskattachment", "web-hot"),
];

/// An image that can be downloaded.
#[derive(Debug, Clone)]
pub(super) struct Image {
    pub(super) url: String,
    pub(super) sha256: String,
}

/// Version 1: one CPU, a second disk.
pub(super) fn version_1(image: &Image) -> Vec<Value> {
    let mut objects = common(image, 1, json!([{"name": "web-root", "boot": true}, {"name": "web-data"}]));
    objects.push(manifests::blank_disk("web-data", "16Mi"));
    objects
}

/// Version 2: two CPUs, no second disk.
pub(super) fn version_2(image: &Image) -> Vec<Value> {
    common(image, 2, json!([{"name": "web-root", "boot": true}]))
}

fn common(image: &Image, cpus: u32, disks: Value) -> Vec<Value> {
    let mut vm = manifests::vm("web", "small", "web-root");
    for (field, value) in [
        ("disks", disks),
        ("power", json!("Stopped")),
        ("restartPolicy", json!("OnFailure")),
        ("networkInterfaces", json!([{"name": "nic0", "publicIP": "web"}])),
        ("placement", json!({"group": "web"})),
    ] {
        vm = manifests::with(vm, field, value);
    }
    // Dependencies come before their users, which is also the order in which clients delete.
    vec![
        manifests::class("small", cpus, "64Mi"),
        manifests::image("system", &image.url, &image.sha256),
        manifests::disk("web-root", "system", "32Mi"),
        manifests::group("web"),
        manifests::public_ip("web", "default"),
        vm,
        manifests::blank_disk("web-hot", "16Mi"),
        manifests::attachment("web-hot", "web", "web-hot"),
    ]
}

/// Makes a folder contain exactly these objects.
pub(super) fn write(folder: &Path, objects: &[Value]) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("application.yaml"), manifests::all(objects))?;
    Ok(())
}
