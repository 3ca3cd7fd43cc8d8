//! Whether a Disk can leave its host, as far as the Disk itself decides it.

use crate::{Disk, RESTORE_ANNOTATION, ResourceName};

/// Facts about other objects by which a disk can, or cannot, leave its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaveFacts {
    /// Whether several hosts have its pool.
    pub is_in_shared_pool: bool,
    /// Whether its pool is of type RBD.
    pub is_in_ceph: bool,
    /// Whether the Image below its file is on one host, and other hosts cannot copy it from there.
    pub has_image_of_one_host: bool,
    /// Whether there are DiskSnapshots of it.
    pub has_snapshots: bool,
}

impl Disk {
    /// Returns the image whose file is below that of the disk on its host, and has to be on the next one too. None: there is none. A full clone
    /// and a disk that is made from a source depend on no image, and a pool in Ceph has the content of the image itself.
    pub fn image_below(&self, is_in_ceph: bool) -> Option<&ResourceName> {
        self.spec.image.as_ref().filter(|_| !self.is_full_clone() && !is_in_ceph)
    }

    /// Returns why the disk goes to no other host, if it does not, as the predicate of a sentence about it. It has to be in a pool that
    /// hosts share too, or to be copied from a host that lives.
    pub fn stays(&self, facts: &LeaveFacts) -> Option<&'static str> {
        let status = self.status.as_ref();
        let is_brought_back =
            self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(RESTORE_ANNOTATION));
        let is_restored = status.is_some_and(|status| status.restored_from.is_some());
        let refusals = [
            (self.target_pool() != self.pool(), "was to be moved to another pool"),
            (status.is_none_or(|status| status.size.is_none()), "has no file yet"),
            (
                self.spec.encryption.is_some() && !facts.is_in_ceph,
                "is encrypted, and its pool is not of type RBD",
            ),
            (self.is_for_many(), "is one for several VMs (ReadOnlyMany or ReadWriteMany)"),
            (self.block_device().is_some(), "is a block device of its host"),
            (self.is_copy(), "is a copy of a Disk or a DiskSnapshot"),
            (facts.has_image_of_one_host, "is made from an image that other hosts cannot copy"),
            (is_brought_back, "was brought back after it was deleted"),
            (self.spec.restore.is_some() || is_restored, "was restored from a snapshot"),
            (facts.has_snapshots, "has snapshots"),
            (
                status.is_some_and(|status| status.continues_snapshots == Some(true)),
                "had snapshots, or was copied or backed up, and its file goes on from such a one",
            ),
        ];
        refusals.into_iter().find_map(|(refuses, why)| refuses.then_some(why))
    }

    /// Whether its file may be based on a snapshot, which stays on its host. A backup and a file of the host are below no file.
    fn is_copy(&self) -> bool {
        self.spec.source.as_ref().is_some_and(|source| source.disk.is_some() || source.snapshot.is_some())
    }

    /// Returns why the disk is lost together with its host, if it is.
    pub fn lost_because(&self, facts: &LeaveFacts) -> Option<&'static str> {
        match facts.is_in_shared_pool {
            true => self.stays(facts),
            false => Some("is in no pool of type Shared or RBD"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_linked_clone_outside_of_ceph_has_its_image_below_it() {
        let below = |spec: Value, is_in_ceph| {
            let disk: Disk =
                serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).expect("a Disk");
            disk.image_below(is_in_ceph).map(ToString::to_string)
        };
        assert_eq!(below(json!({"image": "debian"}), false).as_deref(), Some("debian"));
        assert_eq!(below(json!({"image": "debian"}), true), None, "the pool has its content");
        assert_eq!(below(json!({"image": "debian", "cloneMode": "Full"}), false), None);
        assert_eq!(below(json!({"source": {"backup": "b"}}), false), None);
    }

    #[test]
    fn a_plain_disk_in_a_pool_of_several_hosts_outlives_its_host() {
        let shared = LeaveFacts { is_in_shared_pool: true, ..LeaveFacts::default() };
        let why = |changes: Value, facts: LeaveFacts| {
            let mut disk = json!({
                "metadata": {"name": "d"},
                "spec": {"size": "1Gi", "pool": "site"},
                "status": {"size": "1Gi", "pool": "site"},
            });
            for (pointer, value) in changes.as_object().cloned().unwrap_or_default() {
                let (part, name) = pointer.split_once('.').expect("part.name");
                disk[part][name] = value;
            }
            let disk: Disk = serde_json::from_value(disk).expect("a Disk");
            disk.lost_because(&facts).unwrap_or_default()
        };
        assert_eq!(why(json!({}), shared), "");
        assert!(why(json!({}), LeaveFacts::default()).contains("no pool of type Shared or RBD"));
        assert!(why(json!({}), LeaveFacts { has_snapshots: true, ..shared }).contains("has snapshots"));
        let in_ceph = LeaveFacts { is_in_ceph: true, ..shared };
        assert_eq!(why(json!({"spec.encryption": {"keyClass": "k"}}), in_ceph), "", "its image has its key");
        let of_one = LeaveFacts { has_image_of_one_host: true, ..shared };
        assert!(why(json!({"spec.image": "made"}), of_one).contains("image"));
        for source in
            [json!({"backup": "b"}), json!({"file": "/srv/a"}), json!({"file": "/srv/a", "format": "raw"})]
        {
            assert_eq!(why(json!({"spec.source": source}), shared), "", "its file is based on nothing");
        }
        for (changes, text) in [
            (json!({"spec.encryption": {"keyClass": "k"}}), "encrypted"),
            (json!({"spec.access": "ReadOnlyMany"}), "several VMs"),
            (json!({"spec.source": {"disk": "other"}}), "copy of a Disk"),
            (json!({"spec.source": {"snapshot": "s", "snapshotNamespace": "other"}}), "copy of a Disk"),
            (json!({"spec.source": {"device": "nvme"}}), "block device"),
            (json!({"spec.pool": "other"}), "another pool"),
            (json!({"status.size": null}), "no file yet"),
            (json!({"status.continuesSnapshots": true}), "had snapshots"),
            (json!({"metadata.annotations": {"berth.dev/restore-volume": "v-1"}}), "brought back"),
        ] {
            let found = why(changes, shared);
            assert!(found.contains(text), "{found:?} does not say {text:?}");
        }
    }
}
