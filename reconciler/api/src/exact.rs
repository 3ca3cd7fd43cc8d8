//! Lists that are read into memory of their own size.
//!
//! A list that grows item by item has room for at least four, and for up to twice its items later. Objects are kept for as long as
//! they exist, by every program that watches them, and most of their lists have one item.

use serde::{Deserialize, Deserializer};

/// Reads a list, for `#[serde(deserialize_with)]`.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Vec::<T>::deserialize(deserializer).map(fitted)
}

/// The list in memory of its own size.
pub(crate) fn fitted<T>(grown: Vec<T>) -> Vec<T> {
    // A copy: an allocator may answer a request to shrink with the same memory.
    let mut exact = Vec::with_capacity(grown.len());
    exact.extend(grown);
    exact
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Disk, Unparsed, VM};

    #[test]
    fn an_object_that_is_read_has_no_spare_room_in_its_lists() {
        let condition = json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let vm: VM = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "web"},
            "spec": {"disks": [{"name": "root", "boot": true}], "networkInterfaces": [{"name": "nic0"}]},
            "status": {
                "conditions": [condition, condition, condition],
                "interfaces": [{"name": "nic0", "network": "a/b", "macAddress": "m"}],
                "networkConfig": [{"name": "nic0", "addresses": ["a"], "gateways": ["g"], "dns": ["d"], "mtu": 1500}],
                "observedAddresses": [{"name": "nic0", "addresses": ["a"]}],
                "disks": [{"name": "root", "attached": true}],
                "guest": {"agent": true, "addresses": ["a"], "interfaces": [{"name": "eth0", "addresses": []}]},
            },
        }))
        .expect("a VM");
        let status = vm.status.expect("a status");
        let guest = status.guest.expect("a guest");
        let rooms = [
            vm.spec.disks.capacity(),
            vm.spec.network_interfaces.capacity(),
            status.conditions.capacity(),
            status.interfaces.capacity(),
            status.network_config.capacity(),
            status.network_config[0].addresses.capacity(),
            status.network_config[0].gateways.capacity(),
            status.network_config[0].dns.capacity(),
            status.observed_addresses.capacity(),
            status.disks.capacity(),
            guest.addresses.capacity(),
            guest.interfaces.capacity(),
        ];
        assert_eq!(rooms, [1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        let disk: Disk = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk", "metadata": {"name": "root"}, "spec": {"size": "1Gi"},
            "status": {"conditions": [condition, condition], "usedBy": [{"use": "Fixed", "vm": "web", "vmUid": "u"}]},
        }))
        .expect("a disk");
        let status = disk.status.expect("a status");
        assert_eq!((status.conditions.capacity(), status.used_by.capacity()), (2, 1));
    }

    #[test]
    fn an_object_of_a_watch_has_no_spare_room_for_finalizers() {
        let text =
            r#"{"metadata": {"name": "root", "finalizers": ["berth.dev/host"]}, "spec": {"size": "1Gi"}}"#;
        let disk: Unparsed = serde_json::from_str(text).expect("an object");
        let disk: Disk = disk.parse().expect("a disk");
        let finalizers = disk.metadata.finalizers.expect("finalizers");
        assert_eq!((finalizers.capacity(), finalizers[0].as_str()), (1, "berth.dev/host"));
    }
}
