//! A change of each attribute of a VM and of its class, and what it does to the machine: the tests of the reconciler make each of them on a
//! fake QEMU, the suite `changes` on a real one, and the tests of the provider compare them with the pages.
//!
//! The module that includes this file has the type `Power`: the suite depends on no crate of berth.

use serde_json::{Value, json};

use super::Power;

/// Attributes, below `spec`.
type Names = &'static [&'static str];

/// The consequence of a change for the machine of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing waits for a start, and the machine goes on.
    Same,
    /// The machine goes on, and the change waits for its next start.
    Waits,
    /// The machine is started anew.
    Restarts,
    /// The control plane refuses it.
    Refused,
}

/// A change of a VM with the disks `web-root` and `web-data`, a drive with the image `iso-c`, a network card and a public address, or of its
/// class, which has 2 CPUs, 512Mi of memory and BIOS firmware.
#[derive(Debug)]
pub(crate) struct Change {
    /// The kind of the object.
    pub(crate) kind: &'static str,
    /// The attributes that it covers, below `spec`; those that end with `.*` stand for all parts.
    pub(crate) attributes: Names,
    /// Its consequence for the machine of a VM that runs.
    seen: Seen,
    is_refused_while_suspended: bool,
    /// The members of `spec` that replace those of the object.
    pub(crate) spec: Value,
    /// The file with the test of an attribute that needs more than a change of the object.
    pub(crate) elsewhere: Option<&'static str>,
}

impl Change {
    fn of(kind: &'static str, attributes: Names, seen: Seen, spec: Value) -> Self {
        Self { kind, attributes, seen, is_refused_while_suspended: false, spec, elsewhere: None }
    }

    fn elsewhere(attributes: Names, seen: Seen, file: &'static str) -> Self {
        Self { elsewhere: Some(file), ..Self::of("VM", attributes, seen, Value::Null) }
    }

    fn refused_while_suspended(self) -> Self {
        Self { is_refused_while_suspended: true, ..self }
    }

    /// Its consequence for the machine of a VM with this power.
    pub(crate) fn with_power(&self, power: Power) -> Seen {
        match (self.seen, power) {
            (_, Power::Suspended) if self.is_refused_while_suspended => Seen::Refused,
            (Seen::Waits, Power::Stopped) => Seen::Same,
            (Seen::Restarts, Power::Stopped | Power::Paused | Power::Suspended) => Seen::Refused,
            (seen, _) => seen,
        }
    }
}

/// All changes; the one that restarts the VM is the last.
pub(crate) fn all() -> Vec<Change> {
    let mut all: Vec<Change> = ["VM", "VMClass"].into_iter().flat_map(of_both).collect();
    all.extend(of_a_class());
    all.extend(of_devices());
    all.extend(of_disks_and_cards());
    all.extend(of_the_rest());
    all.push(Change::of("VM", &["restartToken"], Seen::Restarts, json!({"restartToken": "1"})));
    all
}

/// Attributes that a VM and a class have.
fn of_both(kind: &'static str) -> Vec<Change> {
    let waits = |attributes: Names, spec: Value| Change::of(kind, attributes, Seen::Waits, spec);
    let same = |attributes: Names, spec: Value| Change::of(kind, attributes, Seen::Same, spec);
    let is_vm = kind == "VM";
    let of_host = |attributes: Names, list: &str, device: Value| {
        let change = waits(attributes, json!({list: [device]}));
        if is_vm { change.refused_while_suspended() } else { change }
    };
    vec![
        waits(&["cpus"], json!({"cpus": 4})),
        waits(&["maxCpus"], json!({"maxCpus": 4})),
        waits(&["memory"], json!({"memory": "1Gi"})),
        waits(&["maxMemory"], json!({"maxMemory": "2Gi"})),
        same(&["memoryReservation"], json!({"memoryReservation": "256Mi"})),
        waits(&["hugePages"], json!({"hugePages": "2Mi"})),
        waits(&["firmware"], json!({"firmware": "UEFI"})),
        waits(&["tpm"], json!({"tpm": true})),
        waits(
            &["cpuTopology.sockets", "cpuTopology.cores", "cpuTopology.threads"],
            json!({"cpuTopology": {"sockets": 2, "cores": 1, "threads": 1}}),
        ),
        waits(&["numaNodes"], json!({"numaNodes": 2})),
        same(&["cpuLimit"], json!({"cpuLimit": "1.5"})),
        same(&["cpuWeight"], json!({"cpuWeight": 200})),
        same(&["cpuReservation"], json!({"cpuReservation": "0.5"})),
        waits(&["dedicatedCpuPlacement"], json!({"dedicatedCpuPlacement": true})),
        waits(
            &["isolateEmulatorThread"],
            json!({"dedicatedCpuPlacement": true, "isolateEmulatorThread": true}),
        ),
        waits(&["ioThreadsPolicy"], json!({"ioThreadsPolicy": "PerDisk"})),
        Change::of(kind, &["architecture"], Seen::Refused, json!({"architecture": "aarch64"})),
        waits(&["cpuModel"], json!({"cpuModel": "x86-64-v2"})),
        waits(&["guestOS"], json!({"guestOS": "Windows"})),
        of_host(&["pciDevices", "pciDevices.count"], "pciDevices", json!({"name": "gpu", "count": 1})),
        of_host(&["usbDevices", "usbDevices.count"], "usbDevices", json!({"name": "key", "count": 1})),
        of_host(&["vgpus", "vgpus.count"], "vgpus", json!({"name": "a40-8q", "count": 1})),
        waits(
            &["scratchDisk.size", "scratchDisk.filesystem.type", "scratchDisk.filesystem.label"],
            json!({"scratchDisk": {"size": "1Gi", "filesystem": {"type": "ext4", "label": "a"}}}),
        ),
    ]
}

fn of_a_class() -> Vec<Change> {
    let options = json!({"qemuOptions": [{"name": "machine.hpet", "value": "off"}]});
    let model = json!({"networkInterfaceModel": "e1000e"});
    vec![
        Change::of("VMClass", &["qemuOptions", "qemuOptions.value"], Seen::Waits, options),
        Change::of("VMClass", &["diskLimits.*"], Seen::Same, json!({"diskLimits": {"iops": 100}})),
        Change::of("VMClass", &["networkInterfaceModel"], Seen::Waits, model),
    ]
}

/// The further hardware of a VM.
fn of_devices() -> Vec<Change> {
    let waits = |attributes: Names, spec: Value| Change::of("VM", attributes, Seen::Waits, spec);
    vec![
        waits(&["class"], json!({"class": "other"})),
        Change::of("VM", &["classPolicy"], Seen::Same, json!({"classPolicy": "Pin"})),
        waits(&["machineType"], json!({"machineType": "pc-q35-7.1"})),
        waits(&["graphics"], json!({"graphics": "VGA"})),
        waits(&["resolution"], json!({"graphics": "VGA", "resolution": "1920x1080"})),
        waits(&["keyboardLayout"], json!({"graphics": "VGA", "keyboardLayout": "de"})),
        waits(&["sound"], json!({"sound": true})),
        waits(&["serialPorts"], json!({"serialPorts": 2})),
        waits(&["vsock"], json!({"vsock": true})),
        waits(&["bootOrder"], json!({"bootOrder": ["Network", "Disk"]})),
        waits(&["uuid"], json!({"uuid": "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c"})),
        waits(&["watchdog"], json!({"watchdog": "Reset"})),
        waits(&["serialNumber"], json!({"serialNumber": "A-1"})),
        waits(
            &["shares", "shares.tag", "shares.readOnly"],
            json!({"shares": [{"name": "data", "tag": "films", "readOnly": true}]}),
        )
        .refused_while_suspended(),
        Change::elsewhere(
            &["secureBootKeys.*"],
            Seen::Waits,
            "reconciler/agent/tests/agent/secure_boot_keys.rs",
        ),
        Change::elsewhere(&["restore.*"], Seen::Waits, "reconciler/agent/tests/agent/memory_snapshots.rs"),
    ]
}

fn of_disks_and_cards() -> Vec<Change> {
    let change = |attributes: Names, seen: Seen, spec: Value| Change::of("VM", attributes, seen, spec);
    let drive =
        |attributes: Names, seen: Seen, drive: Value| change(attributes, seen, json!({"cdroms": [drive]}));
    let card = |attributes: Names, seen: Seen, part: Value| {
        let mut card = json!({"name": "nic0", "publicIP": "web"});
        for (key, value) in part.as_object().into_iter().flatten() {
            card[key] = value.clone();
        }
        change(attributes, seen, json!({"networkInterfaces": [card]}))
    };
    let root = json!({"name": "web-root", "boot": true});
    vec![
        change(
            &["disks.boot"],
            Seen::Waits,
            json!({"disks": [{"name": "web-root"}, {"name": "web-data", "boot": true}]}),
        ),
        change(
            &["disks.bus"],
            Seen::Waits,
            json!({"disks": [root, {"name": "web-data", "bus": "virtio-blk"}]}),
        ),
        change(
            &["disks.readOnly"],
            Seen::Waits,
            json!({"disks": [root, {"name": "web-data", "readOnly": true}]}),
        ),
        change(&["disks"], Seen::Same, json!({"disks": [root]})),
        change(&["cdroms"], Seen::Waits, json!({"cdroms": [{"name": "a", "image": "iso-c"}, {"name": "b"}]})),
        drive(&["cdroms.image"], Seen::Same, json!({"name": "a", "image": "iso-d"})),
        drive(&["cdroms.connected"], Seen::Same, json!({"name": "a", "image": "iso-c", "connected": false})),
        drive(&["cdroms.bootFirst"], Seen::Waits, json!({"name": "a", "image": "iso-c", "bootFirst": true})),
        drive(
            &["cdroms.guestCanEject"],
            Seen::Same,
            json!({"name": "a", "image": "iso-c", "guestCanEject": false}),
        ),
        change(
            &["networkInterfaces"],
            Seen::Same,
            json!({"networkInterfaces": [{"name": "nic0", "publicIP": "web"}, {"name": "nic1"}]}),
        )
        .refused_while_suspended(),
        change(&["networkInterfaces.publicIP"], Seen::Same, json!({"networkInterfaces": [{"name": "nic0"}]})),
        card(&["networkInterfaces.publicIPv6"], Seen::Same, json!({"publicIPv6": "six"})),
        card(&["networkInterfaces.securityGroups"], Seen::Same, json!({"securityGroups": ["web"]})),
        card(
            &["networkInterfaces.allowedAddresses"],
            Seen::Same,
            json!({"allowedAddresses": ["10.77.0.100/32"]}),
        ),
        card(
            &["networkInterfaces.allowedMacAddresses"],
            Seen::Same,
            json!({"allowedMacAddresses": ["00:00:5e:00:01:0a"]}),
        ),
        card(
            &["networkInterfaces.limits.*"],
            Seen::Same,
            json!({"limits": {"ingressBandwidth": "1M", "egressBandwidth": "1M"}}),
        ),
        card(&["networkInterfaces.dscp"], Seen::Same, json!({"dscp": "EF"})),
        card(&["networkInterfaces.dns"], Seen::Same, json!({"dns": ["10.77.0.53"]})),
        card(&["networkInterfaces.searchDomains"], Seen::Same, json!({"searchDomains": ["example.org"]})),
        card(&["networkInterfaces.defaultRoute"], Seen::Same, json!({"defaultRoute": false})),
        card(&["networkInterfaces.gateway"], Seen::Same, json!({"gateway": "10.77.0.8"})),
        card(
            &["networkInterfaces.routes", "networkInterfaces.routes.to", "networkInterfaces.routes.via"],
            Seen::Same,
            json!({"routes": [{"name": "office", "to": "192.168.0.0/16", "via": "10.77.0.8"}]}),
        ),
        Change::elsewhere(
            &["networkInterfaces.ipv6Gateway"],
            Seen::Same,
            "reconciler/agent/src/kinds/vm/guest_network.rs",
        ),
        card(&["networkInterfaces.mtu"], Seen::Waits, json!({"mtu": 1400})),
        card(&["networkInterfaces.link"], Seen::Same, json!({"link": "Down"})),
        card(&["networkInterfaces.model"], Seen::Waits, json!({"model": "e1000e"})),
        // More than its CPUs: one for each is the default where the kernel of the host moves the packets.
        card(&["networkInterfaces.queues"], Seen::Waits, json!({"queues": 4})),
        card(&["networkInterfaces.acceleration"], Seen::Waits, json!({"acceleration": "Off"})),
        card(&["networkInterfaces.network"], Seen::Refused, json!({"network": "lan"})),
        card(&["networkInterfaces.dhcp4"], Seen::Refused, json!({"dhcp4": false})),
        card(&["networkInterfaces.dhcp6"], Seen::Refused, json!({"dhcp6": false})),
        card(&["networkInterfaces.guestName"], Seen::Refused, json!({"guestName": "lan0"})),
        card(&["networkInterfaces.macAddress"], Seen::Refused, json!({"macAddress": "52:54:00:aa:00:01"})),
        card(&["networkInterfaces.address"], Seen::Refused, json!({"address": "10.77.9.9"})),
        Change::elsewhere(
            &["networkInterfaces.ipv6Address"],
            Seen::Refused,
            "reconciler/tests/networks/addresses.rs",
        ),
        // They are attributes of Disks, which the controllers write.
        Change::elsewhere(&["disks.template.*"], Seen::Same, "reconciler/tests/disk_templates.rs"),
    ]
}

fn of_the_rest() -> Vec<Change> {
    let same = |attributes: Names, spec: Value| Change::of("VM", attributes, Seen::Same, spec);
    let probe = json!({"tcpSocket": {"port": 80}, "initialDelaySeconds": 3600});
    vec![
        Change::of("VM", &["placement.group"], Seen::Refused, json!({"placement": {"group": "g"}})),
        same(&["placement.host"], json!({"placement": {"host": "other"}})),
        same(&["placement.hostSelector"], json!({"placement": {"hostSelector": {"rack": "9"}}})),
        same(
            &["placement.preferredHostSelector"],
            json!({"placement": {"preferredHostSelector": {"rack": "9"}}}),
        ),
        same(&["placement.movePolicy"], json!({"placement": {"movePolicy": "WhenStopped"}})),
        same(
            &[
                "placement.affinity",
                "placement.affinity.vmSelector",
                "placement.affinity.strategy",
                "placement.affinity.enforcement",
                "placement.affinity.topologyKey",
            ],
            json!({"placement": {"affinity": [{"name": "db", "vmSelector": {"app": "db"}, "strategy": "spread",
                "enforcement": "preferred", "topologyKey": "kubernetes.io/hostname"}]}}),
        ),
        same(
            &["bootstrap.*"],
            json!({"bootstrap": {"hostname": "other", "domain": "example.net",
                "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"], "user": "admin"}}),
        ),
        same(
            &[
                "guestUsers",
                "guestUsers.sshAuthorizedKeys",
                "guestUsers.sshAuthorizedKeysSecret",
                "guestUsers.passwordSecret",
            ],
            json!({"guestUsers": [{"name": "debian", "sshAuthorizedKeys": ["ssh-ed25519 AAAA a"],
                "sshAuthorizedKeysSecret": "team", "passwordSecret": "login"}]}),
        ),
        same(&["guestAgent.policy"], json!({"guestAgent": {"policy": "Upgrade"}})),
        same(&["restartPolicy"], json!({"restartPolicy": "Never"})),
        same(&["suspendMode"], json!({"suspendMode": "Memory"})),
        same(
            &["stop.mode", "stop.gracePeriodSeconds"],
            json!({"stop": {"mode": "Hard", "gracePeriodSeconds": 1}}),
        ),
        same(&["restartMode"], json!({"restartMode": "Hard"})),
        same(&["readinessProbe.*"], json!({"readinessProbe": probe})),
        same(&["livenessProbe.*"], json!({"livenessProbe": probe})),
        same(&["hooks.*"], json!({"hooks": {"preStop": {"exec": {"command": ["true"]}}}})),
        same(&["startOrder"], json!({"startOrder": 2})),
        same(&["startDelaySeconds"], json!({"startOrder": 2, "startDelaySeconds": 30})),
        same(&["deletionProtection"], json!({"deletionProtection": true})),
        Change::elsewhere(&["power"], Seen::Same, "reconciler/tests/converges/power.rs"),
        Change::elsewhere(&["vmGroup"], Seen::Same, "reconciler/tests/converges/vm_groups.rs"),
    ]
}
