//! Everything a control plane needs to serve berth's kinds, as objects to apply: `berth crds` prints them, `berth up`
//! applies them to its own control plane. The same on both.

pub mod access;
mod bridges;
mod classes;
mod definitions;
mod deletion_protection;
pub mod derived;
mod former_uid;
mod gates;
mod guarded_fields;
mod host_policies;
#[cfg(test)]
mod page;
mod privileged_fields;
mod quotas;

pub use definitions::definition;

use serde_json::{Value, json};

use crate::{DEFAULT_NAME, GROUP, SHARED_NAMESPACE, SYSTEM_NAMESPACE, VERSION_LABEL};

/// The definitions of all kinds, in the order of their names, with the label of this version.
pub fn crds() -> Vec<Value> {
    let labels = json!({VERSION_LABEL: env!("CARGO_PKG_VERSION")});
    let mut crds: Vec<Value> = definitions::all().collect();
    for crd in &mut crds {
        crd["metadata"]["labels"] = labels.clone();
    }
    crds
}

/// All objects in the order in which they are applied: definitions, namespaces, roles, admission policies.
pub fn all() -> Vec<Value> {
    let crds = crds();
    let roles = roles(&crds);
    crds.into_iter().chain(namespaces()).chain(roles).chain(admission_policies()).collect()
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
/// the former uid of an object, enforce gates, quotas and the restrictions of namespaces, and keep bridges of hosts in the
/// administrator's namespace.
pub fn admission_policies() -> Vec<Value> {
    let policies =
        deletion_protection::all().into_iter().chain(host_policies::all()).chain(former_uid::all());
    let policies = policies.chain(gates::all()).chain(bridges::all()).chain(quotas::all());
    policies.chain(classes::all()).chain(privileged_fields::all()).collect()
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
fn roles(crds: &[Value]) -> Vec<Value> {
    // Quotas are namespaced, and written by administrators: they limit the users of the namespace.
    let is_of_users =
        |crd: &&Value| crd["spec"]["scope"] == "Namespaced" && crd["spec"]["names"]["kind"] != "Quota";
    let users: Vec<&Value> =
        crds.iter().filter(is_of_users).map(|crd| &crd["spec"]["names"]["plural"]).collect();
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
                {"apiGroups": [GROUP], "resources": ["quotas"], "verbs": read},
                // Tickets for consoles, guests, uploads and downloads of images, and reads of backups and snapshots. Kubernetes' own `edit`
                // allows the tokens of all accounts.
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
                // To create the accounts whose tokens are tickets, in namespaces with VMs, snapshots, backups, or images that were made or
                // uploaded.
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_is_found_under_the_category_berth_and_starts_unobserved() {
        let crds = crds();
        assert_eq!(crds.len(), 20);
        for crd in crds {
            let names = &crd["spec"]["names"];
            assert_eq!(names["categories"], json!(["berth"]), "{}", names["kind"]);
            let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            assert_eq!(schema["properties"]["status"]["default"], json!({"observedGeneration": -1}));
            assert_eq!(crd["spec"]["versions"][0]["subresources"]["status"], json!({}));
            assert_eq!(crd["metadata"]["labels"][VERSION_LABEL], env!("CARGO_PKG_VERSION"));
        }
    }

    #[test]
    fn lists_that_people_edit_are_keyed_by_name() {
        let vm = definition("vms").expect("it is a kind");
        let spec =
            &vm["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        for list in ["disks", "networkInterfaces"] {
            assert_eq!(spec[list]["x-kubernetes-list-type"], "map", "{list}");
            assert_eq!(spec[list]["x-kubernetes-list-map-keys"], json!(["name"]), "{list}");
        }
    }

    #[test]
    fn every_field_of_every_spec_is_described() {
        for crd in crds() {
            let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let mut undescribed = Vec::new();
            collect_undescribed(spec, "spec", &mut undescribed);
            assert!(undescribed.is_empty(), "{}: {undescribed:?}", crd["spec"]["names"]["kind"]);
        }
    }

    #[test]
    fn every_map_is_bounded() {
        for crd in crds() {
            let mut unbounded = Vec::new();
            collect_unbounded(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut unbounded);
            assert!(unbounded.is_empty(), "{}: {unbounded:?}", crd["spec"]["names"]["kind"]);
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
        let host = definition("hosts").expect("it is a kind");
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
            let role = roles(&crds())
                .into_iter()
                .find(|role| role["metadata"]["name"] == name)
                .expect("it is shipped");
            role["metadata"]["labels"].clone()
        };
        let gathered = |to: &str| json!({format!("rbac.authorization.k8s.io/aggregate-to-{to}"): "true"});
        assert_eq!(label("berth-viewer"), gathered("view"));
        assert_eq!(label("berth-editor"), gathered("edit"));
        for other in ["berth-operator", "berth-host"] {
            assert_eq!(label(other), Value::Null, "{other} is for programs of berth alone");
        }
    }

    #[test]
    fn a_host_writes_the_status_of_its_host_and_of_every_kind_that_is_bound_to_hosts() {
        let mut bound = BTreeSet::from(["hosts".to_owned()]);
        for crd in crds() {
            let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
            let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
            // The status of a PublicIP is written by the controllers alone.
            if status["properties"]["binding"].is_object() && plural != "publicips" {
                bound.insert(plural.to_owned());
            }
        }
        let statuses = |resources: &Value| -> BTreeSet<String> {
            let names = resources.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.filter_map(|name| name.strip_suffix("/status")).map(str::to_owned).collect()
        };
        let role = access::cluster_role();
        let rules = role["rules"].as_array().into_iter().flatten();
        let allowed: BTreeSet<String> = rules.flat_map(|rule| statuses(&rule["resources"])).collect();
        assert_eq!(allowed, bound);
        let policies = host_policies::all();
        let rules = policies.iter().map(|policy| &policy["spec"]["matchConstraints"]["resourceRules"][0]);
        let limited: BTreeSet<String> = rules.flat_map(|rule| statuses(&rule["resources"])).collect();
        assert_eq!(limited, bound, "the policies leave a host its own objects");
    }

    #[test]
    fn users_read_quotas_and_only_administrators_write_them() {
        let role = |name: &str| {
            let role = roles(&crds()).into_iter().find(|role| role["metadata"]["name"] == name);
            role.expect("it is shipped")["rules"][0].clone()
        };
        let writes = role("berth-editor")["resources"].as_array().cloned().unwrap_or_default();
        assert!(writes.contains(&json!("vms")) && !writes.contains(&json!("quotas")), "{writes:?}");
        let rules = roles(&crds()).into_iter().find(|role| role["metadata"]["name"] == "berth-editor");
        let rules = rules.expect("it is shipped")["rules"].clone();
        let read = json!({"apiGroups": [GROUP], "resources": ["quotas"], "verbs": ["get", "list", "watch"]});
        assert!(rules.as_array().is_some_and(|rules| rules.contains(&read)), "{rules:#}");
        assert_eq!(role("berth-viewer")["resources"], json!(["*"]));
    }

    #[test]
    fn each_policy_of_quotas_has_the_quotas_of_the_namespace_as_parameters() {
        let objects = quotas::all();
        assert_eq!(objects.len(), 14, "seven policies and their bindings");
        for pair in objects.chunks(2) {
            assert_eq!(
                pair[0]["spec"]["paramKind"],
                json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Quota"})
            );
            assert_eq!(pair[1]["spec"]["policyName"], pair[0]["metadata"]["name"]);
            assert_eq!(
                pair[1]["spec"]["paramRef"],
                json!({"selector": {}, "parameterNotFoundAction": "Allow"})
            );
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
