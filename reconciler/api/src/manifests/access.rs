//! Access of a host: its account and its roles. The same objects on both control planes.
//!
//! A host is the ServiceAccount `host-<name>` in `berth-system`. It reads every kind of ours, and writes only what
//! [`host_policies`] leave it: the status of what is bound to it, and its own Host, Lease and token. It reads a Secret
//! only where [`secrets`] names it: the controllers keep these roles as VMs come and go.

use serde_json::{Value, json};

use crate::{GROUP, SYSTEM_NAMESPACE, host_addresses::HOST_ADDRESSES, site::SITE};

/// On everything that belongs to one host's access: the host's name.
pub const HOST_LABEL: &str = "berth.dev/host";
/// The ClusterRole of every host.
pub const CLUSTER_ROLE: &str = "berth-host";
const RBAC: &str = "rbac.authorization.k8s.io";

/// The ServiceAccount of a host.
pub fn account_name(host: &str) -> String {
    format!("host-{host}")
}

/// The user a host is.
pub fn user_name(host: &str) -> String {
    format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{}", account_name(host))
}

/// The name of every role and binding of a host.
pub fn role_name(host: &str) -> String {
    format!("berth-host-{host}")
}

/// A host's account and what it may do without any VM: in the order in which they are applied.
pub fn host(host: &str) -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": account_name(host), "namespace": SYSTEM_NAMESPACE, "labels": labels(host)},
    });
    let cluster = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": role_name(host), "labels": labels(host)},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": CLUSTER_ROLE},
        "subjects": [subject(host)],
    });
    let rules = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [host],
            "verbs": ["get", "update", "patch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [account_name(host)],
            "verbs": ["create"]},
    ]);
    let [role, binding] = role(host, &role_name(host), SYSTEM_NAMESPACE, &rules);
    vec![account, cluster, role, binding]
}

/// The name of the role, and its binding, by which a host reads Secrets in a namespace.
pub fn secrets_role_name(host: &str) -> String {
    format!("berth-secrets-{host}")
}

/// Lets a host read these Secrets of a namespace and no other.
pub fn secrets(host: &str, namespace: &str, names: &[&str]) -> [Value; 2] {
    let rules =
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"]}]);
    role(host, &secrets_role_name(host), namespace, &rules)
}

/// The Secret in `berth-system` by which a host goes on to another control plane, and the role that lets it read that.
pub fn ticket_name(host: &str) -> String {
    format!("berth-move-{host}")
}

/// The ticket by which a host moves to another control plane: a join string, for its eyes only. The Secret comes last: where it is,
/// all is.
pub fn ticket(host: &str, join: &str, term: u64) -> Vec<Value> {
    let name = ticket_name(host);
    let rules =
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]}]);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": labels(host)},
        "stringData": {"join": join, "term": term.to_string()},
    });
    let [role, binding] = role(host, &name, SYSTEM_NAMESPACE, &rules);
    vec![role, binding, secret]
}

fn labels(host: &str) -> Value {
    json!({HOST_LABEL: host})
}

fn subject(host: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": account_name(host), "namespace": SYSTEM_NAMESPACE})
}

/// A role of a host in a namespace, and its binding.
fn role(host: &str, name: &str, namespace: &str, rules: &Value) -> [Value; 2] {
    let metadata = json!({"name": name, "namespace": namespace, "labels": labels(host)});
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
        "subjects": [subject(host)],
    });
    [role, binding]
}

/// The rights of every host, whatever is bound to it. [`host_policies`] restrict which objects it may write.
pub(super) fn cluster_role() -> Value {
    let read = ["get", "list", "watch"];
    let write = ["patch", "update"];
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "metadata": {"name": CLUSTER_ROLE},
        "rules": [
            {"apiGroups": [GROUP], "resources": ["*"], "verbs": read},
            {"apiGroups": [GROUP], "resources": ["hosts"], "verbs": ["create"]},
            {"apiGroups": [GROUP], "resources": ["vms", "disks", "disksnapshots", "backups", "hotswapdiskattachments"], "verbs": write},
            {"apiGroups": [GROUP], "resources": ["vms/status", "disks/status", "disksnapshots/status", "backups/status", "images/status",
                "hotswapdiskattachments/status", "hosts/status"], "verbs": write},
            // To see whether the definitions are of its own version.
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
                "resourceNames": [format!("hosts.{GROUP}")], "verbs": ["get"]},
            // To see whether this control plane is the one in charge.
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [SITE], "verbs": ["get"]},
            // To keep guests from all hosts of the site.
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [HOST_ADDRESSES], "verbs": read},
            // A repeated event is counted in the one before.
            {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            // To verify the tickets for consoles, guests, images, backups and snapshots.
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        ],
    })
}
