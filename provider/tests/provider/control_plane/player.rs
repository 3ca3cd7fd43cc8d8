//! The task that acts as the controllers and agents: the finalizers and the status of each object.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value as Json, json};

use super::{objects, resource};

/// The task that acts as the controllers and agents.
pub(super) struct Player {
    client: Client,
    hold_users: Arc<AtomicBool>,
    /// The revision of the control plane at which there was nothing to write, and whether users were held then.
    settled: Option<(String, bool)>,
}

const KINDS: [&str; 20] = [
    "Host",
    "StoragePool",
    "IPPool",
    "Network",
    "VMClass",
    "KeyClass",
    "Image",
    "Disk",
    "DiskSnapshot",
    "BackupRepository",
    "Backup",
    "PlacementGroup",
    "VMGroup",
    "SecurityGroup",
    "PublicIP",
    "VM",
    "VMSnapshot",
    "SnapshotSchedule",
    "HotswapDiskAttachment",
    "Quota",
];

impl Player {
    pub(super) fn new(client: Client, hold_users: Arc<AtomicBool>) -> Self {
        Self { client, hold_users, settled: None }
    }

    /// Reads all objects and acts on each. While nothing is written it reads one list only: its requests would take a third of the time
    /// of a test.
    pub(super) async fn look(&mut self) {
        let hold = self.hold_users.load(Ordering::SeqCst);
        let (mut all, mut first) = (Vec::new(), None);
        for kind in KINDS {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
            let Ok(list) = api.list(&ListParams::default()).await else { return };
            if first.is_none() {
                // The revision of a list is that of the whole control plane.
                first = list.metadata.resource_version.clone().map(|revision| (revision, hold));
                if first.is_some() && first == self.settled {
                    return;
                }
            }
            all.extend(list.items.into_iter().map(|object| {
                let mut object = serde_json::to_value(object).expect("plain data");
                object["kind"] = kind.into();
                object
            }));
        }
        let mut is_settled = true;
        for object in &all {
            // The status of those follows the time.
            let is_late = text(object, "/metadata/name").starts_with("late");
            is_settled &= !self.play(object, &all).await && !is_late;
        }
        self.settled = first.filter(|_| is_settled);
    }

    /// Acts on one object. Failures are retried in the next round, as controllers do. Returns whether there was something to write.
    async fn play(&self, object: &Json, all: &[Json]) -> bool {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        let api = objects(&self.client, text(object, "/metadata/namespace"), kind);
        let params = PatchParams { field_manager: Some("player".into()), ..PatchParams::default() };
        let held = object.pointer("/metadata/finalizers").is_some();
        let terminating = object.pointer("/metadata/deletionTimestamp").is_some();
        let busy = terminating && name.starts_with("busy");
        let hold = self.hold_users.load(Ordering::SeqCst);
        let staying = |object: &&Json| hold || object.pointer("/metadata/deletionTimestamp").is_none();
        let users: Vec<&Json> = all.iter().filter(staying).collect();
        let mut status = status(object, all, busy);
        list_users(object, &users, &mut status);
        let is_used = status.get("usedBy").is_some();
        if terminating && !busy && !is_used {
            if held {
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = api.patch(name, &params, &patch).await;
            }
            return held;
        }
        let mut is_written = false;
        if !held && !terminating && (is_used || matches!(kind, "VM" | "HotswapDiskAttachment")) {
            let finalizer =
                if kind == "VM" || kind.starts_with("Hot") { "berth.dev/host" } else { "berth.dev/in-use" };
            let patch = Patch::Merge(json!({"metadata": {"finalizers": [finalizer]}}));
            let _ = api.patch(name, &params, &patch).await;
            is_written = true;
        }
        if terminating && is_used {
            let mut ready = condition("Ready", false, "InUse", &object["metadata"]["generation"]);
            ready["message"] = format!("used by {}", status["usedBy"][0]).into();
            status["conditions"] = json!([ready]);
        }
        if object.get("status") != Some(&status) {
            // The whole status is written anew: null removes fields that are no longer there.
            let mut patch = status.clone();
            for (key, _) in object["status"].as_object().into_iter().flatten() {
                if status.get(key).is_none() {
                    patch[key] = Json::Null;
                }
            }
            let _ = api.patch_status(name, &params, &Patch::Merge(json!({"status": patch}))).await;
            is_written = true;
        }
        is_written
    }
}

fn condition(kind: &str, status: bool, reason: &str, generation: &Json) -> Json {
    let status = if status { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": generation,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn status(object: &Json, all: &[Json], busy: bool) -> Json {
    let name = text(object, "/metadata/name");
    let generation = &object["metadata"]["generation"];
    let mut conditions = if name.starts_with("stalled") || busy {
        let reason = if busy { "GuestBusy" } else { "InvalidSpec" };
        vec![condition("Ready", false, reason, generation), condition("Stalled", true, reason, generation)]
    } else if name.starts_with("slow") {
        vec![
            condition("Ready", false, "Pulling", generation),
            condition("Reconciling", true, "Pulling", generation),
        ]
    } else {
        vec![condition("Ready", true, "Available", generation)]
    };
    let mut status = json!({"observedGeneration": generation});
    match text(object, "/kind") {
        "Host" => {
            status["address"] = "192.0.2.7".into();
            status["accelerator"] = "kvm".into();
            status["kvm"] = json!({"usable": true, "reason": "", "mips": 1234.25});
            status["capacity"] = json!({"cpus": 8, "memory": "16Gi", "storage": "100Gi"});
            status["allocatable"] = json!({"cpus": 8, "memory": "16Gi", "storage": "100Gi"});
            status["vmOverhead"] = "1Gi".into();
            status["vms"] = 0.into();
            if object.pointer("/metadata/labels/live").is_some() {
                status["liveMigration"] = true.into();
            }
        }
        "IPPool" => {
            status["allocated"] = 0.into();
            status["free"] = if name == "tiny" { 1.into() } else { 30.into() };
        }
        "Network" => {
            status["vni"] = 7.into();
            status["mtu"] = 1450.into();
        }
        "PlacementGroup" => {
            let group = &object["metadata"]["name"];
            let is_member =
                |vm: &&Json| vm["kind"] == "VM" && vm.pointer("/spec/placement/group") == Some(group);
            let member =
                |vm: &Json| json!({"vm": vm["metadata"]["name"], "host": "host-a", "value": "host-a"});
            let members: Vec<Json> = all.iter().filter(is_member).map(member).collect();
            status["placed"] = members.len().into();
            status["total"] = members.len().into();
            status["members"] = members.into();
        }
        "Image" => status["virtualSize"] = "2Gi".into(),
        "PublicIP" => {
            status["address"] = format!("198.18.100.{}", name.len()).into();
            if object.pointer("/spec/ports").is_some() {
                status["ports"] = ports_of(object);
            }
        }
        "HotswapDiskAttachment" => {
            conditions.push(condition("Attached", true, "Attached", generation));
            status["serial"] = "v0123456789abcdef012".into();
            status["device"] = "/dev/sdb".into();
            status["state"] = "Attached".into();
        }
        "Disk" => {
            let restore = &object["spec"]["restore"];
            status["restoredFrom"] = object["status"]["restoredFrom"].clone();
            if restore.is_object() {
                let more = json!({"snapshotID": "s-0123456789abcdef", "restoredAt": "2026-01-01T00:00:00Z"});
                status["restoredFrom"] = restore.clone();
                status["restoredFrom"]
                    .as_object_mut()
                    .expect("an object")
                    .extend(more.as_object().cloned().unwrap_or_default());
            }
            let users = users(name, all);
            if !users.is_empty() {
                status["usedBy"] = users.into();
                status["volumeID"] = "v-0123456789abcdef".into();
                status["serial"] = "v0123456789abcdef".into();
                status["binding"] = json!({"host": "host-a", "epoch": 1});
            }
        }
        "Quota" => {
            status["hard"] = object["spec"]["hard"].clone();
            status["used"] = json!({"diskSize": "1Gi", "memory": "2Gi", "cpus": 1, "vms": 1, "disks": 1, "snapshots": 0,
                "images": 0, "publicIps": 0});
        }
        "SnapshotSchedule" => {
            status["lastScheduleTime"] = "2026-01-01T03:00:00Z".into();
            status["nextScheduleTime"] = "2026-01-02T03:00:00Z".into();
            status["lastSuccessfulTime"] = "2026-01-01T03:00:01Z".into();
            status["vms"] = 1.into();
            status["snapshots"] = 7.into();
            status["backups"] = 14.into();
            status["lastBackupTime"] = "2026-01-01T03:00:01Z".into();
        }
        "VMSnapshot" => {
            status["disks"] = json!([{"disk": "web-root", "snapshot": format!("{name}-0")}]);
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
        }
        "DiskSnapshot" => {
            status["size"] = "1Gi".into();
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
            status["pool"] = "default".into();
            status["snapshotID"] = "s-0123456789abcdef".into();
            status["volumeID"] = "v-0123456789abcdef".into();
            status["binding"] = json!({"host": "host-a", "epoch": 1});
        }
        "Backup" => {
            status["size"] = "1Gi".into();
            status["takenAt"] = "2026-01-01T00:00:00Z".into();
            status["consistency"] = "FileSystem".into();
            status["volumeID"] = "v-0123456789abcdef".into();
            status["backupID"] = "b-0123456789abcdef".into();
            if conditions[0]["status"] == "True" {
                status["readBytes"] = 4_194_304.into();
                status["storedBytes"] = 1_048_576.into();
                status["completedAt"] = "2026-01-01T00:01:00Z".into();
                status["verifiedAt"] = "2026-01-01T00:02:00Z".into();
                status["verification"] = json!({"endedAt": "2026-01-01T00:02:00Z", "damagedBlocks": 0});
            }
            status["binding"] = json!({"host": "host-a", "epoch": 1});
        }
        "VM" => {
            let runs = object["spec"]["power"] == "Running" && !name.starts_with("stalled");
            conditions.push(condition("Running", runs, "Running", generation));
            conditions.push(condition("GuestReady", runs, "GuestSeen", generation));
            vm_status(object, all, runs, &mut status);
        }
        _ => {}
    }
    status["conditions"] = conditions.into();
    status
}

fn vm_status(object: &Json, all: &[Json], runs: bool, status: &mut Json) {
    status["state"] = if runs { "Running".into() } else { object["spec"]["power"].clone() };
    if text(object, "/metadata/name").starts_with("late") && age(object) < 2 {
        return;
    }
    status["restarts"] = 0.into();
    if let Some(token) = object["spec"].get("restartToken").filter(|_| runs) {
        status["restartToken"] = token.clone();
    }
    status["binding"] = json!({"host": "host-a", "epoch": 1});
    if !text(object, "/metadata/name").starts_with("mute") {
        status["console"] = json!({"address": "192.0.2.7:7444", "certificateSha256": "ab".repeat(32)});
    }
    status["instanceID"] = "i-0123456789ab".into();
    let specified = object["spec"]["networkInterfaces"].as_array().cloned().unwrap_or_default();
    let find =
        |kind: &str, name: &Json| all.iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == *name);
    let public_address = |interface: &Json| {
        find("PublicIP", interface.get("publicIP")?)?.pointer("/status/address").filter(|_| runs).cloned()
    };
    let interfaces = specified.iter().enumerate().map(|(i, interface)| {
        let mac = interface.get("macAddress").cloned().unwrap_or(json!(format!("52:54:00:00:00:0{i}")));
        let address = interface.get("address").cloned().unwrap_or(json!(format!("10.77.0.{}", 10 + i)));
        let mut decided = json!({"name": interface["name"], "network": "berth-shared/default", "macAddress": mac, "address": address});
        if let Some(address) = public_address(interface) {
            decided["publicAddress"] = address;
        }
        decided
    });
    let interfaces: Vec<Json> = interfaces.collect();
    if let Some(first) = interfaces.first() {
        status["privateAddress"] = first["address"].clone();
    }
    if let Some(address) = specified.iter().find_map(public_address) {
        status["publicAddress"] = address;
    }
    status["interfaces"] = interfaces.into();
    let disk = |disk: &Json| {
        let device =
            runs.then(|| format!("/dev/disk/by-id/virtio-{}", disk["name"].as_str().unwrap_or_default()));
        let message = (!runs).then_some("the VM does not run");
        json!({"name": disk["name"], "attached": runs, "device": device, "message": message})
    };
    let mut disks: Vec<Json> = object["spec"]["disks"].as_array().into_iter().flatten().map(disk).collect();
    for disk in disks.iter_mut().filter_map(Json::as_object_mut) {
        disk.retain(|_, value| !value.is_null());
    }
    status["disks"] = disks.into();
    if runs {
        status["guest"] =
            json!({"agent": true, "hostname": "guest", "addresses": ["10.77.0.10", "fd00::10"]});
        let class = find("VMClass", &object["spec"]["class"]);
        let of_class = |pointer: &str, default: Json| {
            class.and_then(|class| class.pointer(pointer)).cloned().unwrap_or(default)
        };
        let own = |key: &str| Some(object["spec"][key].clone()).filter(|value| !value.is_null());
        let declared = json!({"class": own("class"), "cpus": own("cpus").unwrap_or(of_class("/spec/cpus", json!(1))),
            "memory": own("memory").unwrap_or(of_class("/spec/memory", json!("512Mi"))), "firmware": "UEFI",
            "machineType": "pc-q35-7.2", "cpuModel": "max", "accelerator": "tcg", "uuid": "u"});
        let token = &object["spec"]["restartToken"];
        let is_restarted = !token.is_null() && *token != object["status"]["restartToken"];
        let ran = object["status"]["state"] == "Running" && !is_restarted;
        let hardware = object.pointer("/status/hardware").filter(|_| ran).unwrap_or(&declared).clone();
        let pending = ["class", "cpus", "memory"].into_iter().filter(|key| hardware[key] != declared[key]);
        let pending: Vec<&str> = pending.collect();
        if !pending.is_empty() {
            status["pendingPowerCycle"] = json!(pending);
        }
        status["hardware"] = hardware;
        status["facts"] = json!({"qemuVersion": "7.2.22", "diskIO": "io_uring"});
        status["lastReconfigured"] = object["metadata"]["creationTimestamp"].clone();
    }
}

/// The age in seconds.
fn age(object: &Json) -> i64 {
    let made = text(object, "/metadata/creationTimestamp").parse::<k8s_openapi::jiff::Timestamp>();
    made.map_or(0, |made| k8s_openapi::jiff::Timestamp::now().as_second() - made.as_second())
}

/// Lists the first users of an object that any number of others may use, as the controllers do.
fn list_users(object: &Json, all: &[&Json], status: &mut Json) {
    let name = &object["metadata"]["name"];
    let (kind, named_by) = match text(object, "/kind") {
        "VMClass" => ("VM", "/spec/class"),
        "PlacementGroup" => ("VM", "/spec/placement/group"),
        "VMGroup" => ("VM", "/spec/vmGroup"),
        "Image" => ("Disk", "/spec/image"),
        "KeyClass" => ("Disk", "/spec/encryption/keyClass"),
        "StoragePool" => ("Disk", "/spec/pool"),
        "IPPool" => ("PublicIP", "/spec/pool"),
        "Network" => ("VM", "/spec/networkInterfaces/0/network"),
        "SecurityGroup" => ("VM", "/spec/networkInterfaces/0/securityGroups/0"),
        _ => return,
    };
    let users = all.iter().filter(|user| user["kind"] == kind && user.pointer(named_by) == Some(name));
    let users = users.map(|user| {
        json!({"kind": kind, "namespace": user["metadata"]["namespace"], "name": user["metadata"]["name"]})
    });
    let users: Vec<Json> = users.take(4).collect();
    if !users.is_empty() {
        status["usedBy"] = users.into();
    }
}

fn users(disk: &str, all: &[Json]) -> Vec<Json> {
    let of_vms = all.iter().filter(|object| object["kind"] == "VM").filter(|vm| {
        let disks = vm["spec"]["disks"].as_array();
        disks.into_iter().flatten().any(|listed| listed["name"] == disk)
    });
    let fixed = of_vms
        .map(|vm| json!({"use": "Fixed", "vm": vm["metadata"]["name"], "vmUid": vm["metadata"]["uid"]}));
    let attached = all
        .iter()
        .filter(|object| object["kind"] == "HotswapDiskAttachment" && object["spec"]["disk"] == disk);
    let hotswap = attached.map(|attachment| {
        json!({"use": "Hotswap", "vm": attachment["spec"]["vm"], "vmUid": "u", "attachment": attachment["metadata"]["name"]})
    });
    fixed.chain(hotswap).collect()
}

fn text<'a>(object: &'a Json, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Json::as_str).unwrap_or_default()
}

/// The ports of a PublicIP: declared ones, those that its status has, and the lowest free ones.
fn ports_of(ip: &Json) -> Json {
    let list = |pointer: &str| ip.pointer(pointer).and_then(Json::as_array).cloned().unwrap_or_default();
    let (entries, former) = (list("/spec/ports"), list("/status/ports"));
    let mut taken: Vec<i64> = former.iter().filter_map(|port| port["port"].as_i64()).collect();
    let port_of = |entry: &Json| {
        let kept = former.iter().find(|port| port["name"] == entry["name"]);
        let known = entry["port"].as_i64().or_else(|| kept?["port"].as_i64());
        let port = known.or_else(|| (30_000..).find(|port| !taken.contains(port)));
        taken.extend(port);
        json!({"name": entry["name"], "port": port, "protocol": entry["protocol"], "available": 0, "total": 1})
    };
    entries.iter().map(port_of).collect()
}
