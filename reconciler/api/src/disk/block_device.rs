//! A Disk that is a block device of its host, and what it does not have.

use crate::{Disk, ResourceName};

impl Disk {
    /// Returns the name of the block device of its host that it is. None: it has a file of berth's.
    pub fn block_device(&self) -> Option<&ResourceName> {
        self.spec.source.as_ref()?.device.as_ref()
    }

    /// Why nothing is made of its data besides the disk itself, neither a snapshot nor a copy, as the predicate of a sentence about it.
    pub fn without_snapshots(&self) -> Option<&'static str> {
        let refusals = [
            (self.is_read_write_many(), "is written to by several VMs (ReadWriteMany)"),
            (self.block_device().is_some(), "is a block device of its host (source.device)"),
        ];
        refusals.into_iter().find_map(|(refuses, why)| refuses.then_some(why))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_block_device_and_a_disk_that_several_vms_write_to_have_no_snapshots() {
        let why = |spec: Value| {
            let disk: Disk =
                serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).expect("a Disk");
            (disk.block_device().map(ToString::to_string), disk.without_snapshots().unwrap_or_default())
        };
        assert_eq!(why(json!({"size": "1Gi"})), (None, ""));
        let (device, text) = why(json!({"source": {"device": "nvme"}}));
        assert!(device.as_deref() == Some("nvme") && text.contains("block device"), "{text}");
        let (_, text) = why(json!({"size": "1Gi", "access": "ReadWriteMany"}));
        assert!(text.contains("ReadWriteMany"), "{text}");
    }
}
