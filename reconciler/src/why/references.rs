//! The objects that an object of each kind depends on.

use serde_json::Value;

use berth_api::SHARED_NAMESPACE;

/// The maximum number of references that are followed from one object.
const MOST: usize = 32;
/// The greatest number of members of a VMGroup that are looked into.
const MOST_MEMBERS: usize = 4;

/// A reference to another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Its role for the object that depends on it.
    pub(crate) role: &'static str,
    /// The kind's singular.
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    /// The namespaces in which it is looked up, in order. None: it has no namespace.
    pub(crate) namespaces: Vec<Option<String>>,
    pub(crate) name: String,
}

impl Reference {
    /// Whether nothing waits for the object if it is missing: the pool of this name is the own folder of each host, and the controllers create
    /// the network when a VM needs it.
    pub(crate) fn may_be_missing(&self) -> bool {
        self.name == berth_api::DEFAULT_NAME && ["storagepool", "network"].contains(&self.kind)
    }
}

/// Returns the objects that an object of this kind depends on.
pub(crate) fn references(kind: &str, object: &Value) -> Vec<Reference> {
    let namespace = text(object, "/metadata/namespace");
    let from = From { namespace: &namespace };
    let mut found = match kind {
        "vm" => of_vm(&from, object),
        "disk" => vec![
            from.shared("image", "image", "images", text(object, "/spec/image")),
            from.site("pool", "storagepool", "storagepools", pool_of(object)),
            from.shared("class", "keyclass", "keyclasses", text(object, "/spec/encryption/keyClass")),
            source(&from, object, "disk"),
            source(&from, object, "snapshot"),
            from.own("source", "backup", "backups", text(object, "/spec/source/backup")),
            from.own("restore", "disksnapshot", "disksnapshots", due_restore(object)),
            from.site("host", "host", "hosts", text(object, "/status/binding/host")),
        ],
        "disksnapshot" => vec![
            from.own("disk", "disk", "disks", text(object, "/spec/disk")),
            from.site("host", "host", "hosts", text(object, "/status/binding/host")),
        ],
        "backup" => vec![
            from.own(
                "repository",
                "backuprepository",
                "backuprepositories",
                text(object, "/spec/repository"),
            ),
            from.own("snapshot", "disksnapshot", "disksnapshots", text(object, "/spec/snapshot")),
            from.site("host", "host", "hosts", text(object, "/status/binding/host")),
        ],
        "vmsnapshot" => of_vm_snapshot(&from, object),
        "snapshotschedule" => {
            let names = items(object, "/spec/vms").filter_map(Value::as_str);
            let vms = names.map(|name| from.own("VM", "vm", "vms", name.to_owned()));
            let repository = text(object, "/spec/backup/repository");
            vms.chain([from.own("repository", "backuprepository", "backuprepositories", repository)])
                .collect()
        }
        "hotswapdiskattachment" => vec![
            from.own("VM", "vm", "vms", text(object, "/spec/vm")),
            from.own("disk", "disk", "disks", text(object, "/spec/disk")),
        ],
        "vmgroup" => of_vm_group(&from, object),
        "publicip" => of_public_ip(&from, object),
        "keyclass" => vec![
            from.own("key", "secret", "secrets", text(object, "/spec/secret/name")),
            from.own("token", "secret", "secrets", text(object, "/spec/vault/tokenSecret/name")),
            from.own("secret ID", "secret", "secrets", text(object, "/spec/vault/appRole/secret/name")),
            from.own("certificates", "secret", "secrets", text(object, "/spec/vault/caSecret/name")),
        ],
        "image" => vec![
            source(&from, object, "disk"),
            source(&from, object, "snapshot"),
            source(&from, object, "image"),
            from.site("host", "host", "hosts", text(object, "/status/binding/host")),
        ],
        _ => Vec::new(),
    };
    found.retain(|reference| !reference.name.is_empty());
    found.truncate(MOST);
    found
}

/// The pool where the file of a disk belongs. Empty: it is still to be chosen.
fn pool_of(disk: &Value) -> String {
    let has_choice =
        ["/spec/pools", "/spec/poolSelector"].iter().any(|choice| disk.pointer(choice).is_some());
    if has_choice {
        return text(disk, "/status/pool");
    }
    let (declared, default) = (text(disk, "/spec/pool"), text(disk, "/status/defaultPool"));
    // The name `default` stands for the default pool of the namespace, once the disk has that.
    if declared == berth_api::DEFAULT_NAME && !default.is_empty() { default } else { declared }
}

/// The disk, the snapshot or the image that a disk or an image is made from, which may be in another namespace.
fn source(from: &From<'_>, object: &Value, field: &str) -> Reference {
    let (kind, plural) = match field {
        "disk" => ("disk", "disks"),
        "snapshot" => ("disksnapshot", "disksnapshots"),
        _ => ("image", "images"),
    };
    let own = from.own("source", kind, plural, text(object, &format!("/spec/source/{field}")));
    match text(object, &format!("/spec/source/{field}Namespace")) {
        other if other.is_empty() => own,
        other => Reference { namespaces: vec![Some(other)], ..own },
    }
}

fn of_vm_snapshot(from: &From<'_>, snapshot: &Value) -> Vec<Reference> {
    let parts = items(snapshot, "/status/disks").map(|disk| text(disk, "/snapshot"));
    let parts = parts.map(|name| from.own("snapshot", "disksnapshot", "disksnapshots", name));
    std::iter::once(from.own("VM", "vm", "vms", text(snapshot, "/spec/vm"))).chain(parts).collect()
}

/// The group above it, and the first members that others wait for: those are looked into in turn, so that all would be many requests.
fn of_vm_group(from: &From<'_>, group: &Value) -> Vec<Reference> {
    let parent = from.own("parent", "vmgroup", "vmgroups", text(group, "/spec/parent"));
    let members = items(group, "/status/members");
    let wanted = &group["status"]["power"];
    let members = members.filter(|member| {
        member["synced"] != true && member["power"] != "Waiting" && member["power"] == *wanted
    });
    let members = members.take(MOST_MEMBERS).map(|member| match text(member, "/kind").as_str() {
        "VM" => from.own("member", "vm", "vms", text(member, "/name")),
        _ => from.own("member", "vmgroup", "vmgroups", text(member, "/name")),
    });
    std::iter::once(parent).chain(members).collect()
}

fn of_public_ip(from: &From<'_>, ip: &Value) -> Vec<Reference> {
    let mut found = vec![from.site("pool", "ippool", "ippools", text(ip, "/spec/pool"))];
    let targets = items(ip, "/spec/ports").flat_map(|port| items(port, "/targets")).filter_map(Value::as_str);
    for name in targets {
        let reference = from.own("target", "vm", "vms", name.to_owned());
        if !found.contains(&reference) {
            found.push(reference);
        }
    }
    found
}

fn of_vm(from: &From<'_>, vm: &Value) -> Vec<Reference> {
    let mut found = vec![
        from.site("host", "host", "hosts", text(vm, "/status/binding/host")),
        from.shared("class", "vmclass", "vmclasses", text(vm, "/spec/class")),
        from.own("placement group", "placementgroup", "placementgroups", text(vm, "/spec/placement/group")),
        from.own("VM group", "vmgroup", "vmgroups", text(vm, "/spec/vmGroup")),
    ];
    for disk in items(vm, "/spec/disks") {
        let role = if disk["boot"] == true { "boot disk" } else { "disk" };
        found.push(from.own(role, "disk", "disks", text(disk, "/name")));
    }
    for interface in items(vm, "/spec/networkInterfaces") {
        let network = from.shared("network", "network", "networks", text(interface, "/network"));
        let public = from.own("public address", "publicip", "publicips", text(interface, "/publicIP"));
        let ipv6 = from.own("public address", "publicip", "publicips", text(interface, "/publicIPv6"));
        let groups = items(interface, "/securityGroups").filter_map(Value::as_str);
        let groups =
            groups.map(|name| from.own("security group", "securitygroup", "securitygroups", name.to_owned()));
        for reference in [network, public, ipv6].into_iter().chain(groups) {
            if !found.contains(&reference) {
                found.push(reference);
            }
        }
    }
    found
}

/// Makes the references of an object in a namespace.
struct From<'a> {
    namespace: &'a str,
}

impl From<'_> {
    /// An object in the same namespace.
    fn own(&self, role: &'static str, kind: &'static str, plural: &'static str, name: String) -> Reference {
        Reference { role, kind, plural, namespaces: vec![Some(self.namespace.to_owned())], name }
    }

    /// An object in the same namespace, or else in the shared one.
    fn shared(
        &self,
        role: &'static str,
        kind: &'static str,
        plural: &'static str,
        name: String,
    ) -> Reference {
        let namespaces = vec![Some(self.namespace.to_owned()), Some(SHARED_NAMESPACE.to_owned())];
        Reference { namespaces, ..self.own(role, kind, plural, name) }
    }

    /// An object without a namespace.
    fn site(&self, role: &'static str, kind: &'static str, plural: &'static str, name: String) -> Reference {
        Reference { namespaces: vec![None], ..self.own(role, kind, plural, name) }
    }
}

/// Returns the snapshot that a disk is to be restored from: once it is restored, it does not depend on it.
fn due_restore(disk: &Value) -> String {
    let of = |part: &str| {
        let path = |at: &str| text(disk, &format!("{at}/{part}"));
        (path("/spec/restore"), path("/status/restoredFrom"))
    };
    let ((name, done), (token, done_token)) = (of("snapshot"), of("token"));
    if (&name, &token) == (&done, &done_token) { String::new() } else { name }
}

pub(super) fn text(object: &Value, path: &str) -> String {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub(super) fn items<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(path).and_then(Value::as_array).into_iter().flatten()
}
