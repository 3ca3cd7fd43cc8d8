//! Everything a control plane needs to serve berth's kinds, as objects to apply: `berth crds` prints them, `berth up`
//! applies them to its own control plane. The same on both.

pub mod access;
mod former_uid;
mod host_policies;
mod in_use;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{
    DEFAULT_NAME, Disk, GROUP, Host, HotswapDiskAttachment, IPPool, Image, Network, PlacementGroup, PublicIP,
    SHARED_NAMESPACE, SYSTEM_NAMESPACE, StoragePool, VERSION_LABEL, VM, VMClass,
};

/// The definitions of all kinds, in the order of their names.
///
/// *Guarantees:* each gives a new object `status: {observedGeneration: -1}`, so that no tool takes an object nobody
/// has looked at for a finished one.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        Disk::crd(),
        Host::crd(),
        HotswapDiskAttachment::crd(),
        Image::crd(),
        IPPool::crd(),
        Network::crd(),
        PlacementGroup::crd(),
        PublicIP::crd(),
        StoragePool::crd(),
        VM::crd(),
        VMClass::crd(),
    ];
    for crd in &mut crds {
        let labels = crd.metadata.labels.get_or_insert_default();
        labels.insert(VERSION_LABEL.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        for version in &mut crd.spec.versions {
            let schema = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
            let status = schema.and_then(|s| s.properties.as_mut()).and_then(|p| p.get_mut("status"));
            if let Some(status) = status {
                status.nullable = None;
                status.default = Some(json_value(json!({"observedGeneration": -1})));
            }
        }
    }
    crds
}

fn json_value(value: Value) -> k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON {
    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSON(value)
}

/// All objects in the order in which they are applied: definitions, namespaces, admission policies, roles.
pub fn all() -> Vec<Value> {
    let crds = crds().into_iter().map(|crd| serde_json::to_value(crd).expect("a definition is plain data"));
    crds.chain(namespaces()).chain(admission_policies()).chain(roles()).collect()
}

/// The namespaces berth uses itself.
pub fn namespaces() -> Vec<Value> {
    [SYSTEM_NAMESPACE, SHARED_NAMESPACE]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .into()
}

/// The Network, IPPool and StoragePool named `default`, with the ranges given.
pub fn defaults(private_cidr: &str, public_cidr: &str) -> Vec<Value> {
    let api_version = format!("{GROUP}/{}", crate::VERSION);
    vec![
        json!({"apiVersion": api_version, "kind": "Network", "metadata": {"name": DEFAULT_NAME, "namespace": SHARED_NAMESPACE},
            "spec": {"cidr": private_cidr}}),
        json!({"apiVersion": api_version, "kind": "IPPool", "metadata": {"name": DEFAULT_NAME}, "spec": {"cidrs": [public_cidr]}}),
        json!({"apiVersion": api_version, "kind": "StoragePool", "metadata": {"name": DEFAULT_NAME}, "spec": {"type": "Local"}}),
    ]
}

/// Deleting what is in use is refused at admission (of a Disk and a PublicIP a finalizer is the backstop), a host may write
/// only what is its own, and only an administrator says whose guests and files are whose.
pub fn admission_policies() -> Vec<Value> {
    in_use::all().into_iter().chain(host_policies::all()).chain(former_uid::all()).collect()
}

/// A policy that denies, and its binding.
fn policy(name: &str, spec: Value) -> [Value; 2] {
    let api_version = "admissionregistration.k8s.io/v1";
    [
        json!({"apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}),
        json!({
            "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }),
    ]
}

/// Roles to bind people and programs to. `berth-editor` and `berth-viewer` add to Kubernetes' own `edit` and `view`.
pub fn roles() -> Vec<Value> {
    let users = [
        "disks",
        "hotswapdiskattachments",
        "images",
        "networks",
        "placementgroups",
        "publicips",
        "vmclasses",
        "vms",
    ];
    let all = ["*"];
    let role = |name: &str, label: Option<&str>, rules: Value| {
        let mut metadata = json!({"name": name});
        if let Some(label) = label {
            metadata["labels"] = json!({label: "true"});
        }
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata, "rules": rules})
    };
    let read = ["get", "list", "watch"];
    let write = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    vec![
        role(
            "berth-viewer",
            Some("rbac.authorization.k8s.io/aggregate-to-view"),
            json!([{"apiGroups": [GROUP], "resources": all, "verbs": read}]),
        ),
        role(
            "berth-editor",
            Some("rbac.authorization.k8s.io/aggregate-to-edit"),
            json!([{"apiGroups": [GROUP], "resources": users, "verbs": write}]),
        ),
        role(
            "berth-operator",
            None,
            json!([
                {"apiGroups": [GROUP], "resources": all, "verbs": write},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": write},
                // To let each host read the Secrets its VMs need, and no other: nobody grants what he does not have.
                {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": write},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": read},
                // To see whether this control plane is the one in charge.
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::site::SITE], "verbs": ["get"]},
            ]),
        ),
        access::cluster_role(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_under_the_category_berth_and_starts_unobserved() {
        let crds = crds();
        assert_eq!(crds.len(), 11);
        for crd in crds {
            assert_eq!(
                crd.spec.names.categories.as_deref(),
                Some(&["berth".to_owned()][..]),
                "{:?}",
                crd.spec.names.kind
            );
            let value = serde_json::to_value(&crd).expect("plain data");
            let schema = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            assert_eq!(schema["properties"]["status"]["default"], json!({"observedGeneration": -1}));
            assert_eq!(value["spec"]["versions"][0]["subresources"]["status"], json!({}));
        }
    }

    #[test]
    fn lists_that_people_edit_are_keyed_by_name() {
        let value = serde_json::to_value(VM::crd()).expect("plain data");
        let spec =
            &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        for list in ["disks", "networkInterfaces"] {
            assert_eq!(spec[list]["x-kubernetes-list-type"], "map", "{list}");
            assert_eq!(spec[list]["x-kubernetes-list-map-keys"], json!(["name"]), "{list}");
        }
    }

    #[test]
    fn every_field_of_every_spec_is_described() {
        for crd in crds() {
            let value = serde_json::to_value(&crd).expect("plain data");
            let spec = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let mut undescribed = Vec::new();
            collect_undescribed(spec, "spec", &mut undescribed);
            assert!(undescribed.is_empty(), "{}: {undescribed:?}", crd.spec.names.kind);
        }
    }

    fn collect_undescribed(schema: &Value, path: &str, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if field["description"].as_str().is_none_or(str::is_empty) {
                found.push(path.clone());
            }
            collect_undescribed(field, &path, found);
            collect_undescribed(&field["items"], &path, found);
        }
    }
}
