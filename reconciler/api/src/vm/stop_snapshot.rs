//! The snapshot that a hook takes before a VM is stopped. The VM's host asks for it in the status of the VM, and the controllers create it.

use jiff::Timestamp;
use kube::{KubeSchema, ResourceExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{ResourceName, VMSnapshot, vm_snapshot::LONGEST_VM_SNAPSHOT_NAME};

/// On a VMSnapshot that a hook took before a stop: the name of the VM. Without it, the snapshot is kept.
pub const STOPPED_VM_LABEL: &str = "berth.dev/stopped-vm";
/// On a VMSnapshot that a hook took before a stop: when the stop began, RFC 3339.
pub const STOPPED_AT_ANNOTATION: &str = "berth.dev/stopped-at";

/// A snapshot that is to be taken before a VM is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopSnapshot {
    /// Name of the VMSnapshot.
    pub name: ResourceName,
    /// When the stop began, RFC 3339.
    #[schemars(length(max = 40))]
    pub requested_at: String,
    /// The cause, if it cannot be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

impl StopSnapshot {
    /// Whether it has the name that follows from the VM and its time: a host can ask for no other.
    pub fn is_of(&self, vm: &str) -> bool {
        let since = self.requested_at.parse::<Timestamp>();
        since.is_ok_and(|since| stop_snapshot_name(vm, since) == self.name.as_str())
    }
}

/// Returns the name of the VMSnapshot for a stop that began at this time: the name of the VM and the second in UTC. It is the same for each
/// attempt to take it. Of a VM with a name of more than 40 characters it has the beginning, and a part of the hash.
pub fn stop_snapshot_name(vm: &str, since: Timestamp) -> String {
    let end = format!("-stop-{}", since.strftime("%Y%m%d%H%M%S"));
    let room = LONGEST_VM_SNAPSHOT_NAME - end.len();
    if vm.len() <= room {
        return format!("{vm}{end}");
    }
    let hash = Sha256::digest(vm);
    let end = format!("-{:02x}{:02x}{:02x}{end}", hash[0], hash[1], hash[2]);
    let begin = &vm[..LONGEST_VM_SNAPSHOT_NAME - end.len()];
    format!("{}{end}", begin.trim_end_matches('-'))
}

impl VMSnapshot {
    /// Whether a hook took it before a stop of its VM. One that has the label and another name was not made by a hook.
    pub fn is_of_stop(&self) -> bool {
        let vm = self.spec.vm.as_str();
        let since = self.annotations().get(STOPPED_AT_ANNOTATION).and_then(|at| at.parse::<Timestamp>().ok());
        let name = since.map(|since| stop_snapshot_name(vm, since));
        self.labels().get(STOPPED_VM_LABEL).is_some_and(|of| of == vm) && name == self.metadata.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VMSnapshotSpec;

    fn since() -> Timestamp {
        "2026-01-02T03:04:05.678Z".parse().expect("a time")
    }

    #[test]
    fn a_name_has_the_vm_and_the_second_and_room_for_the_names_of_the_parts() {
        assert_eq!(stop_snapshot_name("web", since()), "web-stop-20260102030405");
        let longest = "a".repeat(40);
        assert_eq!(stop_snapshot_name(&longest, since()), format!("{longest}-stop-20260102030405"));
        let long = |last: &str| stop_snapshot_name(&format!("{}-{last}", "a".repeat(61)), since());
        let cut = long("b");
        assert!(cut.len() <= LONGEST_VM_SNAPSHOT_NAME && ResourceName::is_dns_label(&cut), "{cut}");
        assert!(cut.ends_with("-stop-20260102030405"), "{cut}");
        assert_ne!(cut, long("c"), "VMs whose names begin alike");
        let dashes = stop_snapshot_name(&format!("a{}b", "-".repeat(61)), since());
        assert!(dashes.starts_with("a-") && !dashes.starts_with("a--"), "{dashes}");
    }

    #[test]
    fn a_host_asks_for_no_name_but_that_of_its_vm_and_time() {
        let mut request = StopSnapshot {
            name: ResourceName(stop_snapshot_name("web", since())),
            requested_at: since().to_string(),
            message: None,
        };
        assert!(request.is_of("web") && !request.is_of("db"));
        request.requested_at = "2026-01-02T03:04:06Z".to_owned();
        assert!(!request.is_of("web"));
        request.requested_at = "yesterday".to_owned();
        assert!(!request.is_of("web"));
    }

    #[test]
    fn a_snapshot_is_of_a_stop_by_its_label_its_time_and_its_name() {
        let made = |name: &str, vm: &str, label: Option<&str>| {
            let mut snapshot = VMSnapshot::new(name, VMSnapshotSpec { vm: vm.into(), memory: false });
            snapshot.metadata.labels = label.map(|vm| [(STOPPED_VM_LABEL.to_owned(), vm.to_owned())].into());
            snapshot.metadata.annotations =
                Some([(STOPPED_AT_ANNOTATION.to_owned(), since().to_string())].into());
            snapshot.is_of_stop()
        };
        assert!(made("web-stop-20260102030405", "web", Some("web")));
        assert!(!made("web-stop-20260102030405", "web", None), "its label was taken off");
        assert!(!made("web-stop-20260102030405", "db", Some("db")));
        assert!(!made("before", "web", Some("web")));
    }
}
