//! Objects as a kubectl user would write them.

use serde_json::{Value, json};

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Several objects in one manifest, as documents of a file.
pub fn all(objects: &[Value]) -> String {
    // The first separator marks the text as YAML for kubectl, not as one JSON object.
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

/// Several objects as a `List`, as `kubectl get -o yaml` prints them.
pub fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// A VMClass.
pub fn class(name: &str, cpus: u32, memory: &str) -> Value {
    object("VMClass", name, &json!({"cpus": cpus, "memory": memory}))
}

/// A VMClass that boots by BIOS.
pub fn bios_class(name: &str, memory: &str) -> Value {
    object("VMClass", name, &json!({"cpus": 1, "memory": memory, "firmware": "BIOS"}))
}

/// An Image.
pub fn image(name: &str, url: &str, sha256: &str) -> Value {
    object("Image", name, &json!({"source": {"url": url, "sha256": sha256}}))
}

/// A blank Disk.
pub fn blank_disk(name: &str, size: &str) -> Value {
    object("Disk", name, &json!({"size": size}))
}

/// A Disk made from an Image.
pub fn disk(name: &str, image: &str, size: &str) -> Value {
    object("Disk", name, &json!({"image": image, "size": size}))
}

/// A VM with one boot disk. Stopping it cuts the power without a shutdown request to the guest.
pub fn vm(name: &str, class: &str, disk: &str) -> Value {
    object(
        "VM",
        name,
        &json!({"class": class, "disks": [{"name": disk, "boot": true}], "stop": {"mode": "Hard"}}),
    )
}

/// A HotswapDiskAttachment.
pub fn attachment(name: &str, vm: &str, disk: &str) -> Value {
    object("HotswapDiskAttachment", name, &json!({"vm": vm, "disk": disk}))
}

/// A VMSnapshot.
pub fn vm_snapshot(name: &str, vm: &str) -> Value {
    object("VMSnapshot", name, &json!({"vm": vm}))
}

/// A SnapshotSchedule of one VM that keeps the snapshots of a week.
pub fn schedule(name: &str, schedule: &str, vm: &str) -> Value {
    object("SnapshotSchedule", name, &json!({"schedule": schedule, "vms": [vm], "keep": {"daily": 7}}))
}

/// A PlacementGroup.
pub fn group(name: &str) -> Value {
    object("PlacementGroup", name, &json!({"strategy": "spread"}))
}

/// A Quota with these limits.
pub fn quota(name: &str, hard: &Value) -> Value {
    object("Quota", name, &json!({"hard": hard}))
}

/// A PublicIP from a pool.
pub fn public_ip(name: &str, pool: &str) -> Value {
    object("PublicIP", name, &json!({"pool": pool}))
}

/// A Network.
pub fn network(name: &str, cidr: &str) -> Value {
    object("Network", name, &json!({"cidr": cidr}))
}

/// An IPPool.
pub fn pool(name: &str, cidr: &str) -> Value {
    object("IPPool", name, &json!({"cidrs": [cidr]}))
}

/// Sets one more field in the spec.
#[must_use]
pub fn with(mut object: Value, field: &str, value: Value) -> Value {
    object["spec"][field] = value;
    object
}
