//! Why a VM cannot use a Disk that it names.

use kube::ResourceExt;

use super::template_obstacle;
use crate::{Disk, VM};

/// Returns why the VM cannot use this Disk, which it names: it was created for another one, the VM would write to a disk that several
/// VMs read, or boot from one that several VMs write to.
#[must_use]
pub fn disk_obstacle(disk: &Disk, vm: &VM) -> Option<String> {
    template_obstacle(disk, vm).or_else(|| access_obstacle(disk, vm))
}

fn access_obstacle(disk: &Disk, vm: &VM) -> Option<String> {
    let name = disk.name_any();
    let declared = vm.spec.disks.iter().find(|declared| declared.name.as_str() == name)?;
    if disk.is_read_only_many() && !declared.read_only {
        return Some(format!(
            "Disk {name} is ReadOnlyMany: declare the disk of the VM with readOnly (read_only in Terraform)"
        ));
    }
    (disk.is_read_write_many() && declared.boot).then(|| {
        format!(
            "Disk {name} is ReadWriteMany, which several VMs write to: boot the VM from a disk of its own"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vm_only_reads_a_disk_that_several_vms_read() {
        let disk = |access: &str| -> Disk {
            serde_json::from_value(json!({
                "metadata": {"name": "data", "namespace": "ns"}, "spec": {"image": "data", "access": access},
            }))
            .expect("a Disk")
        };
        let vm = |read_only: bool| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "ns"},
                "spec": {"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data", "readOnly": read_only}]},
            }))
            .expect("a VM")
        };
        let found = disk_obstacle(&disk("ReadOnlyMany"), &vm(false)).expect("it would write");
        assert!(found.contains("Disk data is ReadOnlyMany") && found.contains("readOnly"), "{found}");
        assert_eq!(disk_obstacle(&disk("ReadOnlyMany"), &vm(true)), None);
        assert_eq!(disk_obstacle(&disk("ReadWriteOnce"), &vm(false)), None);
    }

    #[test]
    fn a_vm_does_not_boot_from_a_disk_that_several_vms_write_to() {
        let disk: Disk = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "ns"}, "spec": {"size": "1Gi", "access": "ReadWriteMany"},
        }))
        .expect("a Disk");
        let vm = |boot: bool| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "ns"},
                "spec": {"class": "small", "disks": [{"name": "root", "boot": !boot}, {"name": "data", "boot": boot}]},
            }))
            .expect("a VM")
        };
        let found = disk_obstacle(&disk, &vm(true)).expect("it would boot from it");
        assert!(found.contains("Disk data is ReadWriteMany"), "{found}");
        assert_eq!(disk_obstacle(&disk, &vm(false)), None);
    }
}
