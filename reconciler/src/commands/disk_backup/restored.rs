//! The objects that make a VM again from backups of its disks. Pure.
//!
//! ```text
//!  a backup of each disk, with the declaration of the VM ─▶ a Disk each, with the backup as its source ─▶ the VM, with these disks
//! ```

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use berth_api::backup::declaration::{InterfaceIdentity, VMDeclaration};
use berth_api::{ResourceName, user_data::is_ignition};
use serde_json::{Map, Value, json};

/// The longest name of an object.
const MOST_NAME: usize = 63;
/// The fields that a Disk made from a backup does not declare.
const OTHER_SOURCES: [&str; 5] = ["image", "cloneMode", "filesystem", "source", "restore"];
/// The fields that were meant for the former VM only.
const FORMER: [&str; 2] = ["restore", "restartToken"];
/// The fields that no two VMs can declare, or whose objects no two VMs can have.
const IDENTITY: [&str; 2] = ["uuid", "serialNumber"];
const INTERFACE_IDENTITY: [&str; 7] = [
    "macAddress",
    "address",
    "ipv6Address",
    "publicIP",
    "publicIPv6",
    "allowedAddresses",
    "allowedMacAddresses",
];

/// A backup of a disk of the VM.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) backup: String,
    /// The moment of its data.
    pub(super) taken_at: Option<String>,
    pub(super) declaration: VMDeclaration,
}

/// The VM to make.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WantedVm<'a> {
    pub(super) namespace: &'a str,
    /// Another name.
    pub(super) name: Option<&'a str>,
    pub(super) keeps_identity: bool,
    /// The disks to leave out.
    pub(super) without: &'a [String],
}

/// The objects, in the order in which they are created, and notes for a person.
#[derive(Debug)]
pub(super) struct Restored {
    /// The name of the former VM.
    pub(super) former: String,
    pub(super) disks: Vec<Value>,
    pub(super) vm: Value,
    pub(super) notes: Vec<String>,
}

/// *Errors:* the backups are of several VMs, or not one of each disk.
pub(super) fn restored(sources: &[Source], wanted: WantedVm<'_>) -> anyhow::Result<Restored> {
    let by_disk = by_disk(sources)?;
    // Of several moments, the last declaration.
    let last = sources.iter().max_by(|a, b| a.taken_at.cmp(&b.taken_at));
    let Some(last) = last else { bail!("no backup is named: name one Backup of each disk of the VM") };
    let declared = &last.declaration;
    let name = wanted.name.unwrap_or(&declared.vm);
    let mut spec = declared.spec.clone();
    let mut disks = Vec::new();
    let of_vm = spec.get("disks").and_then(Value::as_array).cloned().unwrap_or_default();
    check_disks(&declared.vm, &of_vm, &by_disk, wanted.without)?;
    let mut listed = Vec::new();
    for mut of_vm in of_vm {
        let former = disk_of(&of_vm).to_owned();
        let Some(source) = by_disk.get(former.as_str()) else { continue };
        let disk = renamed(&former, &declared.vm, name)?;
        let made = disk_spec(&source.declaration.disk_spec, &source.backup);
        match of_vm.get("template").is_some_and(Value::is_object) {
            true => of_vm["template"] = made,
            false => disks.push(object("Disk", wanted.namespace, &disk, made)),
        }
        of_vm["name"] = disk.into();
        listed.push(of_vm);
    }
    spec["disks"] = listed.into();
    vm_spec(&mut spec, declared, wanted.keeps_identity);
    let mut vm = object("VM", wanted.namespace, name, spec);
    if !declared.labels.is_empty() {
        vm["metadata"]["labels"] = json!(declared.labels);
    }
    let notes = notes(sources, declared, &vm["spec"], wanted);
    Ok(Restored { former: declared.vm.clone(), disks, vm, notes })
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn disk_of(of_vm: &Value) -> &str {
    of_vm.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn by_disk(sources: &[Source]) -> anyhow::Result<BTreeMap<&str, &Source>> {
    let mut found: BTreeMap<&str, &Source> = BTreeMap::new();
    for source in sources {
        let declared = &source.declaration;
        if let Some(other) = sources.iter().find(|other| other.declaration.vm != declared.vm) {
            bail!(
                "Backup {} is of VM {}, and Backup {} of VM {}: name those of one VM",
                source.backup,
                declared.vm,
                other.backup,
                other.declaration.vm
            );
        }
        if let Some(other) = found.insert(&declared.disk, source) {
            bail!(
                "Backups {} and {} are both of Disk {}: name one of them",
                other.backup,
                source.backup,
                declared.disk
            );
        }
    }
    Ok(found)
}

/// Refuses backups that are not one of each disk of the VM, except for those to leave out.
fn check_disks(
    vm: &str,
    of_vm: &[Value],
    by_disk: &BTreeMap<&str, &Source>,
    without: &[String],
) -> anyhow::Result<()> {
    // Any writer of the repository may have chosen it.
    let is_known = |of_vm: &Value| of_vm.is_object() && ResourceName::is_dns_label(disk_of(of_vm));
    ensure!(
        of_vm.iter().all(is_known),
        "the declaration of VM {vm} in the backup has an invalid list of disks"
    );
    let is_listed = |disk: &str| of_vm.iter().any(|of_vm| disk_of(of_vm) == disk);
    for disk in without {
        ensure!(is_listed(disk), "VM {vm} had no Disk {disk} that --without could leave out");
        ensure!(
            !by_disk.contains_key(disk.as_str()),
            "--without {disk}: a Backup of this Disk is named too. Leave one of them out"
        );
    }
    for (&disk, source) in by_disk {
        let backup = &source.backup;
        ensure!(
            is_listed(disk),
            "VM {vm} did not have Disk {disk} of Backup {backup} any more: make a Disk from it"
        );
    }
    let is_boot = |of_vm: &Value| of_vm.get("boot").and_then(Value::as_bool).unwrap_or_default();
    let missing = |of_vm: &&Value| !by_disk.contains_key(disk_of(of_vm));
    for of_vm in of_vm.iter().filter(missing) {
        let disk = disk_of(of_vm);
        ensure!(!is_boot(of_vm), "no Backup of Disk {disk} is named, from which VM {vm} boots: name one");
        let is_left_out = without.iter().any(|without| without == disk);
        ensure!(
            is_left_out,
            "no Backup of Disk {disk} of VM {vm} is named: name one, or leave the disk out with --without {disk}"
        );
    }
    Ok(())
}

/// Returns the name of a disk of a VM that has another name.
fn renamed(disk: &str, former: &str, name: &str) -> anyhow::Result<String> {
    let renamed = match disk.strip_prefix(former).filter(|rest| rest.starts_with('-')) {
        _ if former == name => disk.to_owned(),
        Some(rest) => format!("{name}{rest}"),
        None => format!("{name}-{disk}"),
    };
    ensure!(
        renamed.len() <= MOST_NAME,
        "the disk would be named {renamed}, which is too long: use a shorter --as"
    );
    Ok(renamed)
}

fn disk_spec(declared: &Value, backup: &str) -> Value {
    let mut spec = declared.clone();
    remove(&mut spec, &OTHER_SOURCES);
    spec["source"] = json!({"backup": backup});
    spec
}

fn remove(spec: &mut Value, fields: &[&str]) {
    if let Some(spec) = spec.as_object_mut() {
        fields.iter().for_each(|field| drop(spec.remove(*field)));
    }
}

fn vm_spec(spec: &mut Value, declared: &VMDeclaration, keeps_identity: bool) {
    remove(spec, &FORMER);
    if let Some(placement) = spec.get_mut("placement") {
        remove(placement, &["host"]);
    }
    // The memory of a suspended guest is in no backup.
    if spec.get("power").is_some_and(|power| power == "Suspended") {
        spec["power"] = "Running".into();
    }
    if !keeps_identity {
        remove(spec, &IDENTITY);
    }
    for interface in spec.get_mut("networkInterfaces").and_then(Value::as_array_mut).into_iter().flatten() {
        match keeps_identity {
            true => keep_addresses(interface, &declared.identity.interfaces),
            false => remove(interface, &INTERFACE_IDENTITY),
        }
    }
    if keeps_identity {
        if let Some(uuid) = &declared.identity.uuid {
            spec["uuid"] = json!(uuid);
        }
        if let Some(instance) = &declared.identity.instance_id {
            keep_instance(spec, instance);
        }
    }
}

fn keep_addresses(interface: &mut Value, known: &[InterfaceIdentity]) {
    let Some(known) = known.iter().find(|known| interface["name"] == known.name.as_str()) else { return };
    let values = [
        ("macAddress", &known.mac_address),
        ("address", &known.address),
        ("ipv6Address", &known.ipv6_address),
    ];
    for (field, value) in values.into_iter().filter(|(_, value)| !value.is_empty()) {
        interface[field] = json!(value);
    }
}

/// Has cloud-init know the guest, so that it does not run again. Ignition, which reads no meta-data, runs at the first boot of a disk only.
fn keep_instance(spec: &mut Value, instance: &str) {
    if text(spec, "/bootstrap/userData").is_some_and(|data| is_ignition(&data)) {
        return;
    }
    if !spec.get("bootstrap").is_some_and(Value::is_object) {
        spec["bootstrap"] = Value::Object(Map::new());
    }
    let before = spec["bootstrap"].get("metaData").and_then(Value::as_str).unwrap_or_default();
    if !before.contains("instance-id:") {
        let line_end = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        spec["bootstrap"]["metaData"] = json!(format!("{before}{line_end}instance-id: {instance}\n"));
    }
}

fn notes(sources: &[Source], declared: &VMDeclaration, spec: &Value, wanted: WantedVm<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let moments: BTreeMap<&Option<String>, &str> =
        sources.iter().map(|source| (&source.taken_at, source.backup.as_str())).collect();
    if moments.len() > 1 {
        let each =
            sources.iter().map(|s| format!("{} of {}", s.backup, s.taken_at.as_deref().unwrap_or("?")));
        notes.push(format!("the backups are not of one moment: {}", each.collect::<Vec<_>>().join(", ")));
    }
    let needed = needed(spec, sources);
    if !needed.is_empty() {
        notes.push(format!(
            "it needs, in namespace {} or in berth-shared: {}",
            wanted.namespace,
            needed.join(", ")
        ));
    }
    if !declared.left_out.is_empty() {
        let texts = declared.left_out.join(", ");
        notes.push(format!("too long for the backup, and not declared again: {texts} of bootstrap"));
    }
    if !wanted.without.is_empty() {
        notes.push(format!("without its disks {}", wanted.without.join(", ")));
    }
    if !wanted.keeps_identity && spec.pointer("/bootstrap/networkConfig").is_some() {
        notes.push("bootstrap.networkConfig is that of the former VM: it may have its addresses".to_owned());
    }
    let offers = offers(spec);
    if !offers.is_empty() {
        notes.push(format!("it has the guest use, on its host: {}", offers.join(", ")));
    }
    if declared.spec.pointer("/placement/host").is_some() {
        notes.push("placement.host is left out: set it to a host that is there".to_owned());
    }
    notes
}

fn text(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the objects that a VM and its disks name, except for the disks.
fn needed(spec: &Value, sources: &[Source]) -> Vec<String> {
    let other = |name: &String| name != berth_api::DEFAULT_NAME;
    let mut found: Vec<(&str, String)> = Vec::new();
    found.extend(text(spec, "/class").map(|name| ("VMClass", name)));
    found.extend(text(spec, "/placement/group").map(|name| ("PlacementGroup", name)));
    found.extend(text(spec, "/vmGroup").map(|name| ("VMGroup", name)));
    for interface in list(spec, "networkInterfaces") {
        found.extend(text(interface, "/network").filter(other).map(|name| ("Network", name)));
        for pointer in ["/publicIP", "/publicIPv6"] {
            found.extend(text(interface, pointer).map(|name| ("PublicIP", name)));
        }
        let groups = list(interface, "securityGroups").filter_map(Value::as_str);
        found.extend(groups.map(|name| ("SecurityGroup", name.to_owned())));
    }
    for cdrom in list(spec, "cdroms") {
        found.extend(text(cdrom, "/image").map(|name| ("Image", name)));
    }
    for pointer in
        ["/bootstrap/secretName", "/bootstrap/sshAuthorizedKeysSecret", "/secureBootKeys/secretName"]
    {
        found.extend(text(spec, pointer).map(|name| ("Secret", name)));
    }
    for user in list(spec, "guestUsers") {
        for pointer in ["/sshAuthorizedKeysSecret", "/passwordSecret"] {
            found.extend(text(user, pointer).map(|name| ("Secret", name)));
        }
    }
    for disk in sources.iter().map(|source| &source.declaration.disk_spec) {
        found.extend(text(disk, "/encryption/keyClass").map(|name| ("KeyClass", name)));
        found.extend(text(disk, "/pool").filter(other).map(|name| ("StoragePool", name)));
        // One of them is enough.
        let pools: Vec<&str> = list(disk, "pools").filter_map(Value::as_str).collect();
        found.extend((!pools.is_empty()).then(|| ("StoragePool", pools.join(" or "))));
    }
    found.sort();
    found.dedup();
    found.into_iter().map(|(kind, name)| format!("{kind} {name}")).collect()
}

/// Returns the devices and folders of hosts that a VM declares.
fn offers(spec: &Value) -> Vec<String> {
    let kinds = [
        ("pciDevices", "PCI devices"),
        ("usbDevices", "USB devices"),
        ("vgpus", "vGPUs"),
        ("shares", "the folder"),
    ];
    let of_kind = |(field, kind): (&'static str, &'static str)| {
        list(spec, field).filter_map(|device| text(device, "/name")).map(move |name| format!("{kind} {name}"))
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

#[cfg(test)]
mod tests;
