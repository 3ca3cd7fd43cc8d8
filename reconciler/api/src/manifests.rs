//! Everything a control plane needs to serve berth's kinds, as objects to apply: `berth crds` prints them, `berth up`
//! applies them to its own control plane. The same on both.

pub mod access;
mod bridges;
mod deletion_protection;
mod former_uid;
mod gates;
mod host_policies;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{
    Backup, BackupRepository, DEFAULT_NAME, Disk, DiskSnapshot, GROUP, Host, HotswapDiskAttachment, IPPool,
    Image, KeyClass, Network, PlacementGroup, PublicIP, SHARED_NAMESPACE, SYSTEM_NAMESPACE, SecurityGroup,
    SnapshotSchedule, StoragePool, VERSION_LABEL, VM, VMClass, VMSnapshot, power,
};

/// The definitions of all kinds, in the order of their names.
///
/// *Guarantees:* each gives a new object `status: {observedGeneration: -1}`, so that no tool mistakes an object that
/// was not observed yet for a finished one.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        Backup::crd(),
        BackupRepository::crd(),
        Disk::crd(),
        DiskSnapshot::crd(),
        Host::crd(),
        HotswapDiskAttachment::crd(),
        Image::crd(),
        IPPool::crd(),
        KeyClass::crd(),
        Network::crd(),
        PlacementGroup::crd(),
        PublicIP::crd(),
        SecurityGroup::crd(),
        SnapshotSchedule::crd(),
        StoragePool::crd(),
        VM::crd(),
        VMClass::crd(),
        VMSnapshot::crd(),
    ];
    for crd in &mut crds {
        let labels = crd.metadata.labels.get_or_insert_default();
        labels.insert(VERSION_LABEL.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let is_vm = crd.spec.names.kind == "VM";
        for version in &mut crd.spec.versions {
            let mut schema = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
            if let Some(schema) = schema.as_mut().filter(|_| is_vm) {
                schema.x_kubernetes_validations.get_or_insert_default().extend(power::rules());
            }
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

/// The IPPool named `default`, with the range given, and the StoragePool named `default`.
pub fn defaults(public_cidr: &str) -> Vec<Value> {
    let api_version = format!("{GROUP}/{}", crate::VERSION);
    vec![
        json!({"apiVersion": api_version, "kind": "IPPool", "metadata": {"name": DEFAULT_NAME}, "spec": {"cidrs": [public_cidr]}}),
        json!({"apiVersion": api_version, "kind": "StoragePool", "metadata": {"name": DEFAULT_NAME}, "spec": {"type": "Local"}}),
    ]
}

/// They refuse the deletion of protected objects, limit a host to its own objects, allow only an administrator to set
/// the former uid of an object, enforce gates, and keep bridges of hosts in the administrator's namespace.
pub fn admission_policies() -> Vec<Value> {
    let policies =
        deletion_protection::all().into_iter().chain(host_policies::all()).chain(former_uid::all());
    policies.chain(gates::all()).chain(bridges::all()).collect()
}

/// Names of policies, and of their bindings, that earlier versions installed and this one does not.
pub fn retired_admission_policies() -> &'static [&'static str] {
    &deletion_protection::RETIRED
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
    let namespaced = crds().into_iter().map(|crd| crd.spec).filter(|spec| spec.scope == "Namespaced");
    let users: Vec<String> = namespaced.map(|spec| spec.names.plural).collect();
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
            json!([
                {"apiGroups": [GROUP], "resources": users, "verbs": write},
                // Tickets for consoles, guests and uploads of images. Kubernetes' own `edit` allows the tokens of all accounts.
                {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": crate::console::ACCOUNTS,
                    "verbs": ["create"]},
            ]),
        ),
        role(
            "berth-operator",
            None,
            json!([
                {"apiGroups": [GROUP], "resources": all, "verbs": write},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": write},
                // To let each host read the Secrets its VMs need, and no other: RBAC lets no user grant more than it has.
                {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": write},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
                // To create the accounts whose tokens are tickets, in namespaces with VMs or uploaded images.
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get", "list", "watch", "create", "patch"]},
                // To see whether this control plane is the one in charge.
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::site::SITE], "verbs": ["get"]},
                // To list the addresses of all hosts for the hosts. A server-side apply creates it, and names it.
                {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [crate::host_addresses::HOST_ADDRESSES],
                    "verbs": ["get", "list", "watch", "create", "patch"]},
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
        assert_eq!(crds.len(), 18);
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

    #[test]
    fn every_map_is_bounded() {
        for crd in crds() {
            let value = serde_json::to_value(&crd).expect("plain data");
            let mut unbounded = Vec::new();
            collect_unbounded(&value["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut unbounded);
            assert!(unbounded.is_empty(), "{}: {unbounded:?}", crd.spec.names.kind);
        }
    }

    fn collect_unbounded(schema: &Value, path: &str, found: &mut Vec<String>) {
        if schema["additionalProperties"].is_object() {
            let value = &schema["additionalProperties"];
            let is_bounded = schema["maxProperties"].is_u64()
                && (value["type"] != "string" || value["maxLength"].is_u64());
            if !is_bounded {
                found.push(path.to_owned());
            }
            collect_unbounded(value, path, found);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            collect_unbounded(field, &format!("{path}.{name}"), found);
        }
        if schema["items"].is_object() {
            collect_unbounded(&schema["items"], path, found);
        }
    }

    #[test]
    fn every_value_that_a_host_reports_of_itself_is_bounded() {
        let host = serde_json::to_value(Host::crd()).expect("plain data");
        let status = &host["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let mut endless = Vec::new();
        collect_endless(status, "", &mut endless);
        assert!(endless.is_empty(), "{endless:?}");
    }

    fn collect_endless(schema: &Value, path: &str, found: &mut Vec<String>) {
        let limit = match schema["type"].as_str().unwrap_or_default() {
            "string" if schema["format"] == "date-time" || schema["enum"].is_array() => None,
            "string" => Some("maxLength"),
            "array" => Some("maxItems"),
            // The API server sets a generation, and no value of it has an effect.
            "integer" if path.ends_with("observedGeneration") => None,
            "integer" | "number" => Some("maximum"),
            "object" if schema["properties"].is_object() => None,
            "object" => Some("maxProperties"),
            _ => None,
        };
        if limit.is_some_and(|limit| !schema[limit].is_number()) {
            found.push(path.to_owned());
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            collect_endless(field, &format!("{path}.{name}"), found);
        }
        if schema["items"].is_object() {
            collect_endless(&schema["items"], &format!("{path}[]"), found);
        }
    }

    #[test]
    fn the_roles_of_users_are_gathered_by_those_of_kubernetes() {
        let label = |name: &str| {
            let role =
                roles().into_iter().find(|role| role["metadata"]["name"] == name).expect("it is shipped");
            role["metadata"]["labels"].clone()
        };
        let gathered = |to: &str| json!({format!("rbac.authorization.k8s.io/aggregate-to-{to}"): "true"});
        assert_eq!(label("berth-viewer"), gathered("view"));
        assert_eq!(label("berth-editor"), gathered("edit"));
        for other in ["berth-operator", "berth-host"] {
            assert_eq!(label(other), Value::Null, "{other} is for programs of berth alone");
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
