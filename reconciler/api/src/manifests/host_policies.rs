//! Admission policies that limit the writes of a host. Roles grant kinds; these policies grant objects and their fields.

use serde_json::{Value, json};

use super::policy;
use crate::{GROUP, HOST_FINALIZER, SHARED_NAMESPACE, SYSTEM_NAMESPACE};

/// The prefix of the user name of every host; the host's name follows.
fn prefix() -> String {
    format!("system:serviceaccount:{SYSTEM_NAMESPACE}:host-")
}

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    [bound(), own_host(), lease(), event()].into_iter().flatten().collect()
}

/// A policy about requests of hosts only.
fn of_hosts(name: &str, rule: Value, variables: Value, validations: Value) -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "is-a-host", "expression": format!("request.userInfo.username.startsWith('{}')", prefix())}],
        "variables": variables,
        "validations": validations,
    });
    policy(name, spec)
}

fn rule(group: &str, operations: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": resources})
}

fn validation(expression: &str, message: &str) -> Value {
    json!({"expression": expression, "message": message, "reason": "Forbidden"})
}

/// Objects that are bound to hosts: their status, and the host's finalizer once the host has released the object.
fn bound() -> [Value; 2] {
    let resources = ["vms", "disks", "disksnapshots", "backups", "images", "hotswapdiskattachments"];
    let with_status: Vec<String> = resources.iter().map(|r| format!("{r}/status")).collect();
    let resources: Vec<&str> = resources.into_iter().chain(with_status.iter().map(String::as_str)).collect();
    let or_empty = |path: &str, empty: &str| format!("has({path}) ? {path} : {empty}");
    let same = |field: &str, empty: &str| {
        let (new, old) = (format!("object.metadata.{field}"), format!("oldObject.metadata.{field}"));
        format!("({}) == ({})", or_empty(&new, empty), or_empty(&old, empty))
    };
    let identity = |field: &str| {
        let (new, old) = (format!("object.status.{field}"), format!("oldObject.status.{field}"));
        format!("({}) == ({})", or_empty(&new, "''"), or_empty(&old, "''"))
    };
    let finalizers = format!(
        "variables.after.all(f, f in variables.before) && variables.before.all(f, f in variables.after || \
         (f == '{HOST_FINALIZER}' && has(oldObject.metadata.deletionTimestamp)))"
    );
    of_hosts(
        "berth-host-bound",
        rule(GROUP, &["CREATE", "UPDATE", "DELETE"], &resources),
        json!([
            {"name": "bound", "expression": "request.operation == 'UPDATE' && has(oldObject.status) && has(oldObject.status.binding)"},
            {"name": "before", "expression": "request.operation == 'UPDATE' && has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : []"},
            {"name": "after", "expression": "request.operation == 'UPDATE' && has(object.metadata.finalizers) ? object.metadata.finalizers : []"},
        ]),
        json!([
            validation(
                &format!(
                    "variables.bound && '{}' + oldObject.status.binding.host == request.userInfo.username",
                    prefix()
                ),
                "a host writes only what is bound to it",
            ),
            validation(
                "!variables.bound || (has(object.status) && has(object.status.binding) && object.status.binding == oldObject.status.binding)",
                "a host does not change what is bound where",
            ),
            validation(
                &format!(
                    "!variables.bound || !has(object.status) || (({}) && ({}) && ({}) && ({}))",
                    identity("instanceID"),
                    identity("volumeID"),
                    identity("snapshotID"),
                    identity("backupID")
                ),
                "a host does not change identities",
            ),
            // One that drops it, such as an agent of a version without it, would have the content made again and again.
            validation(
                &format!("!variables.bound || !has(object.status) || ({})", identity("token")),
                "a host does not change the token that the content of an Image is made for",
            ),
            validation(
                "!variables.bound || !has(object.status) || !has(object.status.migration) || (has(oldObject.status.migration) && \
                 object.status.migration.id == oldObject.status.migration.id && object.status.migration.to == oldObject.status.migration.to && \
                 object.status.migration.epoch == oldObject.status.migration.epoch)",
                "a host does not decide where a running VM moves",
            ),
            // It may take the file of a disk from there, which ends it.
            validation(
                "!variables.bound || !has(object.status) || !has(object.status.formerHost) || \
                 (has(oldObject.status.formerHost) && object.status.formerHost == oldObject.status.formerHost)",
                "a host does not say that the file of a disk, or the firmware state of a VM, is on another host",
            ),
            validation(
                "!variables.bound || !has(object.status) || !has(object.status.interfaces) || object.status.interfaces.all(n, \
                 has(oldObject.status.interfaces) && oldObject.status.interfaces.exists(o, o.name == n.name && \
                 o.network == n.network && o.macAddress == n.macAddress && (has(o.address) ? o.address : '') == (has(n.address) ? n.address : '') && \
                 (has(o.ipv6Address) ? o.ipv6Address : '') == (has(n.ipv6Address) ? n.ipv6Address : '') && \
                 (has(n.securityGroups) ? n.securityGroups : []) == (has(o.securityGroups) ? o.securityGroups : [])))",
                "a host gives out no addresses and no security groups",
            ),
            validation(
                "!variables.bound || !has(object.status) || !has(object.status.verification) || !has(object.status.verification.requested) || \
                 (has(oldObject.status.verification) && has(oldObject.status.verification.requested) && \
                 object.status.verification.requested == oldObject.status.verification.requested)",
                "a host does not request a verification, which lets it read the Secrets of a repository",
            ),
            validation(
                &key_class(),
                "a host reports only the key class that a disk declares or has, and of a snapshot one of its namespace",
            ),
            validation(
                "!variables.bound || object.spec == oldObject.spec",
                "a host does not change what is declared"
            ),
            validation(
                &format!(
                    "!variables.bound || (({}) && ({}) && ({}))",
                    same("labels", "{}"),
                    same("annotations", "{}"),
                    same("ownerReferences", "[]")
                ),
                "a host does not change labels, annotations or owners",
            ),
            validation(
                &finalizers,
                "a host removes its own finalizer from what is being deleted, and no other"
            ),
        ]),
    )
}

/// The classes that protect a key: the controllers let the host read the Secrets of those that it reports. The one that is reported as the
/// next may protect the key before a crash, and the disk declare yet another one after it.
fn key_class() -> String {
    let (class, next) = ("object.status.encryption.keyClass", "object.status.encryption.next");
    format!(
        "!variables.bound || !has(object.status) || !has(object.status.encryption) || \
         (({}) && (!has({next}) || {}))",
        may_report(class),
        may_report(next)
    )
}

fn may_report(reported: &str) -> String {
    let before = "oldObject.status.encryption";
    // Kubernetes refuses a list of values of different types, and the fields of an object have none.
    let namespaces = format!("[string(object.metadata.namespace), '{SHARED_NAMESPACE}']");
    format!(
        "(has({before}) && ({before}.keyClass == {reported} || (has({before}.next) && {before}.next == {reported}))) || \
         (has(object.spec.encryption) && {namespaces}.exists(n, {reported} == n + '/' + object.spec.encryption.keyClass)) || \
         (request.resource.resource == 'disksnapshots' && {namespaces}.exists(n, {reported}.startsWith(n + '/')))"
    )
}

/// Its own Host: made once, then only its status.
fn own_host() -> [Value; 2] {
    of_hosts(
        "berth-host-self",
        rule(GROUP, &["CREATE", "UPDATE", "DELETE"], &["hosts", "hosts/status"]),
        json!([]),
        json!([
            validation(
                &format!(
                    "request.operation != 'DELETE' && '{}' + object.metadata.name == request.userInfo.username",
                    prefix()
                ),
                "a host writes only its own Host",
            ),
            validation(
                "request.operation != 'UPDATE' || object.spec == oldObject.spec",
                "a host does not change what is declared of it",
            ),
            validation(
                "request.operation != 'CREATE' || !has(object.spec) || !has(object.spec.recovery)",
                "only an administrator opens a recovery",
            ),
        ]),
    )
}

/// Its own Lease.
fn lease() -> [Value; 2] {
    of_hosts(
        "berth-host-lease",
        rule("coordination.k8s.io", &["CREATE", "UPDATE", "DELETE"], &["leases"]),
        json!([]),
        json!([validation(
            &format!(
                "request.operation != 'DELETE' && request.namespace == '{SYSTEM_NAMESPACE}' && \
                 '{}' + object.metadata.name == request.userInfo.username",
                prefix()
            ),
            "a host writes only its own Lease",
        )]),
    )
}

/// Events in its own name.
fn event() -> [Value; 2] {
    of_hosts(
        "berth-host-event",
        rule("events.k8s.io", &["CREATE", "UPDATE"], &["events"]),
        json!([]),
        json!([validation(
            &format!(
                "has(object.reportingInstance) && '{}' + object.reportingInstance == request.userInfo.username && \
                 (request.operation == 'CREATE' || (has(oldObject.reportingInstance) && \
                 oldObject.reportingInstance == object.reportingInstance))",
                prefix()
            ),
            "a host reports in its own name",
        )]),
    )
}
