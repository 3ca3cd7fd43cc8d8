//! The default roles and bindings of Kubernetes that manifests and users rely on, with their permissions on
//! the kinds served here.
//!
//! `admin`, `edit` and `view` have no rules of their own: they aggregate those of the ClusterRoles labelled
//! for them, whatever their origin ([`crate::housekeeping`] performs the aggregation).

use serde_json::{Value, json};

use crate::builtin::RBAC;

/// The annotation of objects that the server keeps up to date.
pub(super) const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// Returns the ClusterRoles, then the ClusterRoleBindings: plural and object.
pub(super) fn all() -> Vec<(&'static str, Value)> {
    let roles = gathering().into_iter().chain(parts()).chain(of_everybody());
    roles.map(|role| ("clusterroles", role)).chain(bindings()).collect()
}

fn metadata(name: &str, labels: &[&str]) -> Value {
    let mut all = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    for to in labels {
        all[format!("{RBAC}/aggregate-to-{to}")] = "true".into();
    }
    json!({"name": name, "labels": all, "annotations": {AUTOUPDATE: "true"}})
}

fn role(name: &str, labels: &[&str], rules: Value) -> Value {
    json!({"metadata": metadata(name, labels), "rules": rules})
}

fn gathering() -> Vec<Value> {
    [("admin", &[][..]), ("edit", &["admin"]), ("view", &["edit"])]
        .map(|(name, labels)| {
            let label = format!("{RBAC}/aggregate-to-{name}");
            let selectors = json!([{"matchLabels": {label: "true"}}]);
            let rule = json!({"clusterRoleSelectors": selectors});
            json!({"metadata": metadata(name, labels), "aggregationRule": rule, "rules": null})
        })
        .into()
}

/// Returns the permissions of `admin`, `edit` and `view` on the built-in kinds.
fn parts() -> [Value; 3] {
    let all: Vec<&str> = READ.into_iter().chain(WRITE).collect();
    [
        role(
            "system:aggregate-to-admin",
            &["admin"],
            json!([
                {"apiGroups": ["authorization.k8s.io"], "resources": ["localsubjectaccessreviews"], "verbs": ["create"]},
                {"apiGroups": [RBAC], "resources": ["rolebindings", "roles"], "verbs": all},
            ]),
        ),
        role(
            "system:aggregate-to-edit",
            &["edit"],
            json!([
                {"apiGroups": [""], "resources": ["secrets"], "verbs": READ},
                {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]},
                {"apiGroups": [""], "resources": ["configmaps", "events", "secrets", "serviceaccounts"], "verbs": WRITE},
                {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": all},
            ]),
        ),
        role(
            "system:aggregate-to-view",
            &["view"],
            json!([{"apiGroups": [""], "resources": ["configmaps", "events", "namespaces", "serviceaccounts"], "verbs": READ}]),
        ),
    ]
}

fn of_everybody() -> Vec<Value> {
    let authorization = "authorization.k8s.io";
    let authentication = "authentication.k8s.io";
    let probes = ["/healthz", "/livez", "/readyz"];
    let get = |urls: &[&str]| json!([{"nonResourceURLs": urls, "verbs": ["get"]}]);
    vec![
        role(
            "cluster-admin",
            &[],
            json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
        ),
        role(
            "system:basic-user",
            &[],
            json!([
                {"apiGroups": [authorization], "verbs": ["create"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
                {"apiGroups": [authentication], "resources": ["selfsubjectreviews"], "verbs": ["create"]},
            ]),
        ),
        role(
            "system:auth-delegator",
            &[],
            json!([
                {"apiGroups": [authentication], "resources": ["tokenreviews"], "verbs": ["create"]},
                {"apiGroups": [authorization], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            ]),
        ),
        role(
            "system:discovery",
            &[],
            get(&[
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ]),
        ),
        role("system:public-info-viewer", &[], get(&[&probes[..], &["/version", "/version/"]].concat())),
        role(
            "system:monitoring",
            &[],
            get(&[&probes[..], &["/healthz/*", "/livez/*", "/metrics", "/readyz/*"]].concat()),
        ),
    ]
}

fn bindings() -> impl Iterator<Item = (&'static str, Value)> {
    let authenticated = "system:authenticated";
    let bindings = [
        ("cluster-admin", crate::identity::MASTERS),
        ("system:basic-user", authenticated),
        ("system:discovery", authenticated),
        ("system:monitoring", "system:monitoring"),
        ("system:public-info-viewer", authenticated),
    ];
    bindings.into_iter().map(|(name, group)| {
        let binding = json!({
            "metadata": metadata(name, &[]),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        });
        ("clusterrolebindings", binding)
    })
}
