//! The chapter of `docs/control-plane.md` on the parts of the API, compared with the definitions, the roles and the names in the code.

use serde_json::Value;

use crate::{
    ADDRESS_FINALIZER, FORMER_UID_ANNOTATION, HOST_FINALIZER, INHERITED_ANNOTATIONS_ANNOTATION,
    INHERITED_LABELS_ANNOTATION, MOVED_FROM_ANNOTATION, RESTORE_ANNOTATION, USED_FINALIZER, VERSION_LABEL,
    backup::VERIFY_ANNOTATION,
    console::{ACCOUNTS, COPY_ACCOUNT},
    disk_read::READ_UNTIL_ANNOTATION,
    gates::{DELETE_GATE, POWER_ON_GATE},
    host_addresses::HOST_ADDRESSES,
    image_download::DOWNLOAD_LABEL,
    site::SITE,
    snapshot_schedule::{DISK_LABEL, SCHEDULED_AT_ANNOTATION, SNAPSHOT_SCHEDULE_LABEL},
    vm::{ACCEPT_FIRMWARE_LOSS_ANNOTATION, MOVE_ANNOTATION, STOPPED_AT_ANNOTATION, STOPPED_VM_LABEL},
    vm_snapshot::{VM_SNAPSHOT_LABEL, VM_SNAPSHOT_MEMORY_ANNOTATION, VM_SNAPSHOT_PARTS_ANNOTATION},
};

use super::access::{self, HOST_LABEL};

const PAGE: &str = include_str!("../../../../docs/control-plane.md");

/// The rows of the table under a heading.
fn rows(heading: &str) -> Vec<&'static str> {
    let (_, chapter) = PAGE.split_once(&format!("\n### {heading}\n")).expect("the heading");
    let chapter = chapter.split("\n#").next().unwrap_or_default();
    chapter.lines().filter(|line| line.starts_with("| `")).collect()
}

/// Compares the rows of a table with those that it needs.
fn compare(heading: &str, wanted: &[String]) {
    let rows = rows(heading);
    let missing: Vec<&String> = wanted.iter().filter(|row| !rows.contains(&row.as_str())).collect();
    assert!(missing.is_empty(), "docs/control-plane.md needs under {heading:?}:\n{missing:#?}");
    assert_eq!(rows.len(), wanted.len(), "a row under {heading:?} has nothing in the code: {rows:#?}");
}

/// Compares the first column of a table with the names that it needs.
fn compare_names(heading: &str, wanted: &[&str]) {
    let rows = rows(heading);
    for name in wanted {
        let count = rows.iter().filter(|row| row.starts_with(&format!("| `{name}` |"))).count();
        assert_eq!(count, 1, "docs/control-plane.md: {name} under {heading:?}");
    }
    assert_eq!(rows.len(), wanted.len(), "a row under {heading:?} has nothing in the code: {rows:#?}");
}

fn texts(values: &Value) -> Vec<&str> {
    values.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn quoted(values: &Value) -> String {
    let quoted = |text: &str| if text.is_empty() { "core".to_owned() } else { format!("`{text}`") };
    texts(values).into_iter().map(quoted).collect::<Vec<_>>().join(", ")
}

fn cluster_roles() -> Vec<Value> {
    super::all().into_iter().filter(|object| object["kind"] == "ClusterRole").collect()
}

/// Whether a role allows this verb on a resource of berth, by its name.
fn allows(role: &str, verb: &str, resource: &str) -> bool {
    let roles = cluster_roles();
    let rules = roles.iter().filter(|found| found["metadata"]["name"] == role);
    rules
        .flat_map(|role| role["rules"].as_array().into_iter().flatten())
        .any(|rule| texts(&rule["verbs"]).contains(&verb) && texts(&rule["resources"]).contains(&resource))
}

#[test]
fn the_page_has_each_kind_with_its_writers() {
    let row = |definition: &Value| {
        let names = &definition["spec"]["names"];
        let (kind, plural) = (&names["kind"], names["plural"].as_str().unwrap_or_default());
        let of_spec = if allows("berth-editor", "create", plural) { "users" } else { "administrators" };
        let by_hosts = allows(access::CLUSTER_ROLE, "patch", &format!("{plural}/status"));
        let of_status = if by_hosts { "controllers, hosts" } else { "controllers" };
        let scope = &definition["spec"]["scope"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("| `{}` | `{plural}` | {} | {of_spec} | {of_status} |", text(kind), text(scope))
    };
    for definition in super::crds() {
        let subresources = &definition["spec"]["versions"][0]["subresources"];
        assert_eq!(subresources, &serde_json::json!({"status": {}}), "there is no other on the page");
    }
    compare("Kinds", &super::crds().iter().map(row).collect::<Vec<_>>());
}

#[test]
fn the_page_has_each_rule_of_each_role() {
    let mut wanted = Vec::new();
    for role in cluster_roles() {
        let name = role["metadata"]["name"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().into_iter().flatten() {
            let named = if rule["resourceNames"].is_array() {
                format!(" named {}", quoted(&rule["resourceNames"]))
            } else {
                String::new()
            };
            wanted.push(format!(
                "| `{name}` | {} | {}{named} | {} |",
                quoted(&rule["apiGroups"]),
                quoted(&rule["resources"]),
                texts(&rule["verbs"]).join(", ")
            ));
        }
    }
    compare("Roles", &wanted);
}

#[test]
fn the_page_has_each_annotation_label_and_finalizer() {
    compare_names(
        "Annotations, labels and finalizers",
        &[
            POWER_ON_GATE,
            DELETE_GATE,
            FORMER_UID_ANNOTATION,
            RESTORE_ANNOTATION,
            MOVE_ANNOTATION,
            ACCEPT_FIRMWARE_LOSS_ANNOTATION,
            VERIFY_ANNOTATION,
            READ_UNTIL_ANNOTATION,
            SNAPSHOT_SCHEDULE_LABEL,
            SCHEDULED_AT_ANNOTATION,
            DISK_LABEL,
            STOPPED_VM_LABEL,
            STOPPED_AT_ANNOTATION,
            VM_SNAPSHOT_LABEL,
            VM_SNAPSHOT_PARTS_ANNOTATION,
            VM_SNAPSHOT_MEMORY_ANNOTATION,
            INHERITED_LABELS_ANNOTATION,
            INHERITED_ANNOTATIONS_ANNOTATION,
            DOWNLOAD_LABEL,
            HOST_LABEL,
            VERSION_LABEL,
            MOVED_FROM_ANNOTATION,
            HOST_FINALIZER,
            ADDRESS_FINALIZER,
            USED_FINALIZER,
        ]
        .into_iter()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>(),
    );
}

#[test]
fn the_page_has_the_other_objects_of_berth() {
    let of_host = [
        access::account_name("HOST"),
        access::role_name("HOST"),
        access::secrets_role_name("HOST"),
        access::ticket_name("HOST"),
    ];
    let mut wanted = vec![SITE, HOST_ADDRESSES, COPY_ACCOUNT];
    wanted.extend(ACCOUNTS);
    wanted.extend(of_host.iter().map(String::as_str));
    compare_names("Other objects", &wanted);
}
