//! The declaration of a VM, as the backups of its disks keep it: enough to make the VM again without its control plane.
//!
//! The names of Secrets are in it, and no values of Secrets. Its text is stored in the sealed part of each backup, beside the facts.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Disk, ResourceName, VM};

/// The longest text of a declaration.
pub const MAX_DECLARATION: usize = 56 << 10;
/// The texts of `bootstrap` that are left out of one that is too long: a guest has read them at its first boot.
const LARGE: [&str; 3] = ["userData", "networkConfig", "metaData"];

/// A VM and one of its disks, as they were declared when the disk was backed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VMDeclaration {
    /// The name of the VM.
    pub vm: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its spec. Not a type: a reader may be older or newer than the writer.
    pub spec: Value,
    /// The identity of the VM, which its spec need not declare.
    #[serde(default)]
    pub identity: VMIdentity,
    /// The name of the Disk.
    pub disk: String,
    /// Its spec.
    pub disk_spec: Value,
    /// The texts of `bootstrap` that were too long.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// The identity of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VMIdentity {
    /// The identity by which cloud-init knows the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
    /// The UUID that the guest sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its network interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceIdentity>,
}

/// The addresses of an interface. Empty: it had none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InterfaceIdentity {
    /// The name in the spec.
    pub name: String,
    /// The MAC address.
    pub mac_address: String,
    /// The private IPv4 address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// The IPv6 address.
    #[serde(skip_serializing_if = "String::is_empty", rename = "ipv6Address")]
    pub ipv6_address: String,
}

impl VMDeclaration {
    /// Returns the declaration of a VM and one of its disks.
    pub fn of(vm: &VM, disk: &Disk) -> Self {
        let status = vm.status.clone().unwrap_or_default();
        let interfaces = status.interfaces.iter().map(|interface| InterfaceIdentity {
            name: interface.name.clone(),
            mac_address: interface.mac_address.clone(),
            address: interface.address.clone(),
            ipv6_address: interface.ipv6_address.clone(),
        });
        let value = |spec: Result<Value, serde_json::Error>| spec.expect("our own types are plain JSON");
        Self {
            vm: vm.name_any(),
            labels: vm.labels().clone(),
            spec: value(serde_json::to_value(&vm.spec)),
            identity: VMIdentity {
                uuid: status.hardware.map(|hardware| hardware.uuid).filter(|uuid| !uuid.is_empty()),
                instance_id: status.instance_id,
                interfaces: interfaces.collect(),
            },
            disk: disk.name_any(),
            disk_spec: value(serde_json::to_value(&disk.spec)),
            left_out: Vec::new(),
        }
    }

    /// Returns its text, of at most [`MAX_DECLARATION`] bytes. None: it is longer than that, also without the large texts.
    pub fn encode(mut self) -> Option<String> {
        let text = |declaration: &Self| {
            let text = serde_json::to_string(declaration).expect("our own types are plain JSON");
            Some(text).filter(|text| text.len() <= MAX_DECLARATION)
        };
        if let Some(whole) = text(&self) {
            return Some(whole);
        }
        if let Some(bootstrap) = self.spec.get_mut("bootstrap").and_then(Value::as_object_mut) {
            let removed = LARGE.into_iter().filter(|name| bootstrap.remove(*name).is_some());
            self.left_out = removed.map(str::to_owned).collect();
        }
        text(&self)
    }

    /// Reads a text, which any writer of the repository may have chosen. The error explains why it is none.
    pub fn decode(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_DECLARATION {
            return Err(format!("it has {} bytes, and at most {MAX_DECLARATION} are possible", text.len()));
        }
        let declaration: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if !declaration.spec.is_object() || !declaration.disk_spec.is_object() {
            return Err("it has no spec of a VM and of a Disk".to_owned());
        }
        if ResourceName::is_dns_label(&declaration.vm) && ResourceName::is_dns_label(&declaration.disk) {
            Ok(declaration)
        } else {
            Err("its VM or Disk has a name that no object has".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declaration(user_data: &str) -> VMDeclaration {
        let vm: VM = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "labels": {"app": "shop"}},
            "spec": {"cpus": 1, "disks": [{"name": "web-root", "boot": true}],
                "bootstrap": {"secretName": "login", "userData": user_data}},
            "status": {"instanceID": "i-1", "interfaces": [{"name": "nic0", "network": "ns/default",
                "macAddress": "02:00:00:00:00:01", "address": "10.0.0.2"}]},
        }))
        .expect("a VM");
        let disk = json!({"metadata": {"name": "web-root"}, "spec": {"size": "4Gi", "image": "debian"}});
        VMDeclaration::of(&vm, &serde_json::from_value(disk).expect("a Disk"))
    }

    #[test]
    fn a_declaration_has_the_spec_and_the_identity_of_the_vm_and_the_spec_of_its_disk() {
        let text = declaration("#cloud-config\n").encode().expect("it is short");
        let read = VMDeclaration::decode(text.as_bytes()).expect("it is one");
        assert_eq!((read.vm.as_str(), read.disk.as_str()), ("web", "web-root"));
        assert_eq!(read.labels.get("app").map(String::as_str), Some("shop"));
        assert_eq!((&read.spec["cpus"], &read.disk_spec["size"]), (&json!(1), &json!("4Gi")));
        assert_eq!(read.identity.instance_id.as_deref(), Some("i-1"));
        assert_eq!(read.identity.interfaces[0].mac_address, "02:00:00:00:00:01");
        assert_eq!(read.spec["bootstrap"]["userData"], "#cloud-config\n");
    }

    #[test]
    fn large_texts_are_left_out_and_what_is_too_long_or_no_declaration_is_refused() {
        let text = declaration(&"#".repeat(65_000)).encode().expect("the rest is short");
        let read = VMDeclaration::decode(text.as_bytes()).expect("it is one");
        assert_eq!(
            (read.left_out.as_slice(), &read.spec["bootstrap"]),
            (&["userData".to_owned()][..], &json!({"secretName": "login"}))
        );
        let mut long = declaration("");
        long.labels.insert("a".into(), "x".repeat(MAX_DECLARATION));
        assert_eq!(long.encode(), None);
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"vm": "a", "spec": 1, "disk": "d", "diskSpec": {}}"#,
            r#"{"vm": "a\u001b[31m", "spec": {}, "disk": "d", "diskSpec": {}}"#,
            r#"{"vm": "a", "spec": {}, "disk": "../d", "diskSpec": {}}"#,
            &" ".repeat(MAX_DECLARATION + 1),
        ] {
            assert!(VMDeclaration::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
