//! The kinds to copy, in order: a named object comes before the objects that name it.

use berth_api::MOVED_FROM_ANNOTATION;
use serde_json::Value;

/// Secrets, by namespace and name.
pub(super) type SecretNames = std::collections::BTreeSet<(String, String)>;

/// A kind that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MovedKind {
    pub(super) name: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
    /// One of berth's own, with a status.
    pub(super) ours: bool,
}

const fn ours(name: &'static str, plural: &'static str, namespaced: bool) -> MovedKind {
    MovedKind { name, plural, namespaced, ours: true }
}

pub(super) const NAMESPACE: MovedKind =
    MovedKind { name: "Namespace", plural: "namespaces", namespaced: false, ours: false };
pub(super) const SECRET: MovedKind =
    MovedKind { name: "Secret", plural: "secrets", namespaced: true, ours: false };
pub(super) const HOST: MovedKind = ours("Host", "hosts", false);
pub(super) const VM: MovedKind = ours("VM", "vms", true);
pub(super) const QUOTA: MovedKind = ours("Quota", "quotas", true);

/// berth's kinds. Hosts come before all kinds that can run: one that has not reported yet holds back placement.
pub(super) const OURS: [MovedKind; 20] = [
    ours("StoragePool", "storagepools", false),
    ours("IPPool", "ippools", false),
    ours("Network", "networks", true),
    ours("VMClass", "vmclasses", true),
    ours("Image", "images", true),
    ours("PlacementGroup", "placementgroups", true),
    ours("VMGroup", "vmgroups", true),
    ours("SecurityGroup", "securitygroups", true),
    ours("KeyClass", "keyclasses", true),
    HOST,
    ours("Disk", "disks", true),
    ours("DiskSnapshot", "disksnapshots", true),
    ours("BackupRepository", "backuprepositories", true),
    ours("Backup", "backups", true),
    ours("PublicIP", "publicips", true),
    VM,
    ours("VMSnapshot", "vmsnapshots", true),
    ours("SnapshotSchedule", "snapshotschedules", true),
    ours("HotswapDiskAttachment", "hotswapdiskattachments", true),
    // Last: it refuses nothing that exists already.
    QUOTA,
];

impl MovedKind {
    pub(super) fn api_version(&self) -> String {
        if self.ours { format!("{}/{}", berth_api::GROUP, berth_api::VERSION) } else { "v1".to_owned() }
    }

    /// The path of all its objects, or of those in a namespace.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.ours { format!("/apis/{}", self.api_version()) } else { "/api/v1".to_owned() };
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }
}

/// An object and its kind.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: MovedKind,
    pub(super) value: Value,
}

impl Object {
    /// From an item of a list or the response to a GET: an item of a list may lack its kind.
    pub(super) fn new(kind: MovedKind, mut value: Value) -> Self {
        value["apiVersion"] = kind.api_version().into();
        value["kind"] = kind.name.into();
        Self { kind, value }
    }

    fn meta(&self, field: &str) -> &str {
        self.value["metadata"][field].as_str().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.meta("name")
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        Some(self.meta("namespace")).filter(|namespace| !namespace.is_empty())
    }

    pub(super) fn uid(&self) -> &str {
        self.meta("uid")
    }

    pub(super) fn version(&self) -> &str {
        self.meta("resourceVersion")
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][name].as_str()
    }

    /// Returns the uids of the objects it is a copy of, directly or through other copies. Its own uid is among them
    /// if it existed before the copy and was found to be the same.
    pub(super) fn before(&self) -> impl Iterator<Item = &str> {
        let before = self.annotation(MOVED_FROM_ANNOTATION).unwrap_or_default();
        before.split(',').filter(|uid| !uid.is_empty())
    }

    /// Whether it is a copy of the object with this uid.
    pub(super) fn was(&self, uid: &str) -> bool {
        self.before().any(|before| before == uid)
    }

    pub(super) fn is_terminating(&self) -> bool {
        self.value["metadata"]["deletionTimestamp"].is_string()
    }

    pub(super) fn collection(&self) -> String {
        self.kind.collection(self.namespace())
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name())
    }

    /// The object's key, the same on each control plane.
    pub(super) fn key(&self) -> (&'static str, String, String) {
        (self.kind.name, self.meta("namespace").to_owned(), self.name().to_owned())
    }

    /// Message form: `Disk ns/name`.
    pub(super) fn title(&self) -> String {
        match self.namespace() {
            Some(namespace) => format!("{} {namespace}/{}", self.kind.name, self.name()),
            None => format!("{} {}", self.kind.name, self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_ours_is_copied() {
        let mut copied: Vec<_> = OURS.iter().map(|kind| (kind.name, kind.plural, kind.namespaced)).collect();
        copied.sort_unstable();
        let crds = berth_api::manifests::crds();
        let mut defined: Vec<_> = crds
            .iter()
            .map(|crd| {
                let name = |of: &str| crd["spec"]["names"][of].as_str().expect("it has names");
                (name("kind"), name("plural"), crd["spec"]["scope"] == "Namespaced")
            })
            .collect();
        defined.sort_unstable();
        assert_eq!(copied, defined);
    }
}
