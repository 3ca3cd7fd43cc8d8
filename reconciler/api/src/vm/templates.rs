//! The Disks that a VM declares by a template.

use kube::ResourceExt;

use crate::{Disk, VM};

/// Whether the Disk was created for this VM.
#[must_use]
pub fn is_disk_of(disk: &Disk, vm: &VM) -> bool {
    let uid = vm.uid();
    disk.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
}

/// Returns why the VM cannot use a Disk that exists under the name of one of its templates.
#[must_use]
pub fn template_obstacle(disk: &Disk, vm: &VM) -> Option<String> {
    let name = disk.name_any();
    let template =
        vm.spec.disks.iter().find(|d| d.name.as_str() == name).and_then(|d| d.template.as_deref())?;
    if !is_disk_of(disk, vm) {
        return Some(format!(
            "Disk {name} exists and was not created for this VM: give the disk of the VM another name, or remove its template to use \
             that Disk"
        ));
    }
    let differs = if disk.spec.image != template.image {
        "image"
    } else if disk.spec.source != template.source {
        "source"
    } else if disk.spec.filesystem != template.filesystem {
        "filesystem"
    } else if disk.spec.clone_mode != template.clone_mode {
        "cloneMode"
    } else if disk.spec.encryption.is_some() != template.encryption.is_some() {
        "encryption"
    } else {
        return None;
    };
    Some(format!(
        "Disk {name} was created for this VM by a template with another {differs}, and has that data: give the disk of the VM another \
         name, declare the {differs} that it had, or delete Disk {name}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn disk(name: &str, owner: &str, spec: &Value) -> Disk {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Disk",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [
                {"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "name": "web", "uid": owner, "controller": true},
            ]},
            "spec": spec,
        }))
        .expect("a Disk")
    }

    #[test]
    fn a_disk_of_another_owner_or_with_other_data_is_named() {
        let vm: VM = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
            "spec": {"cpus": 1, "disks": [{"name": "root", "template": {"image": "debian"}}, {"name": "data"}]},
        }))
        .expect("a VM");
        let debian = json!({"image": "debian", "size": "4Gi"});
        let why = |name, owner, spec: &Value| template_obstacle(&disk(name, owner, spec), &vm);
        assert_eq!(why("root", "u1", &debian), None);
        assert_eq!(why("data", "another", &debian), None, "declared on its own");
        assert!(
            why("root", "another", &debian).is_some_and(|text| text.contains("was not created for this VM"))
        );
        let copy = json!({"image": "debian", "source": {"disk": "golden"}});
        let encrypted = json!({"image": "debian", "encryption": {"keyClass": "default"}});
        for (spec, differs) in [
            (json!({"image": "alpine"}), "another image"),
            (copy, "another source"),
            (encrypted, "another encryption"),
        ] {
            assert!(why("root", "u1", &spec).is_some_and(|text| text.contains(differs)), "{differs}");
        }
    }
}
