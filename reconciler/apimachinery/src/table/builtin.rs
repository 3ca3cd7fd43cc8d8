//! The columns of built-in kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cell, Column, Source, age};

fn column(name: &str, ty: &str, priority: i64, cell: Cell) -> Column {
    Column {
        name: name.to_owned(),
        ty: ty.to_owned(),
        format: if name == "Name" { "name".to_owned() } else { String::new() },
        description: String::new(),
        priority,
        source: Source::Function(cell),
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn count(object: &Value, pointer: &str) -> usize {
    match object.pointer(pointer) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 0,
    }
}

fn or_none(text: &str) -> Value {
    json!(if text.is_empty() { "<none>" } else { text })
}

/// Returns an age, or `<unknown>` for a time that was never set.
fn age_of(text: &str, now: Timestamp) -> Value {
    if text.is_empty() { json!("<unknown>") } else { json!(age::since(text, now)) }
}

pub(super) fn name() -> Column {
    column("Name", "string", 0, |o, _| json!(text(o, "/metadata/name")))
}

/// Returns the age column of a custom resource; that of a built-in kind has the type string.
pub(super) fn age_as_date() -> Column {
    Column { ty: "date".to_owned(), ..age() }
}

pub(super) fn age() -> Column {
    column("Age", "string", 0, |o, now| age_of(text(o, "/metadata/creationTimestamp"), now))
}

fn created_at() -> Column {
    column("Created At", "date", 0, |o, _| json!(text(o, "/metadata/creationTimestamp")))
}

pub(super) fn columns(group: &str, kind: &str) -> Option<Vec<Column>> {
    Some(match (group, kind) {
        ("", "Secret") => vec![
            name(),
            column("Type", "string", 0, |o, _| json!(text(o, "/type"))),
            column("Data", "string", 0, |o, _| json!(count(o, "/data"))),
            age(),
        ],
        ("", "ConfigMap") => vec![
            name(),
            column("Data", "string", 0, |o, _| json!(count(o, "/data") + count(o, "/binaryData"))),
            age(),
        ],
        ("", "Namespace") => {
            vec![name(), column("Status", "string", 0, |o, _| json!(text(o, "/status/phase"))), age()]
        }
        ("", "ServiceAccount") => {
            vec![name(), column("Secrets", "string", 0, |o, _| json!(count(o, "/secrets"))), age()]
        }
        ("", "Event") => event(true),
        ("events.k8s.io", "Event") => event(false),
        ("coordination.k8s.io", "Lease") => {
            vec![name(), column("Holder", "string", 0, |o, _| json!(text(o, "/spec/holderIdentity"))), age()]
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition")
        | ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => vec![name(), created_at()],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => vec![
            name(),
            column("Role", "string", 0, |o, _| {
                json!(format!("{}/{}", text(o, "/roleRef/kind"), text(o, "/roleRef/name")))
            }),
            age(),
            column("Subjects", "string", 1, |o, _| json!(subjects(o))),
        ],
        _ => return None,
    })
}

fn subjects(object: &Value) -> String {
    let list = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
    list.map(|subject| text(subject, "/name")).collect::<Vec<_>>().join(", ")
}

/// Returns the columns of Events: the same for both kinds, over differently named fields.
fn event(core: bool) -> Vec<Column> {
    let about_cell: Cell =
        if core { |o, _| about(o, "/involvedObject") } else { |o, _| about(o, "/regarding") };
    vec![
        column("Last Seen", "string", 0, last_seen),
        column("Type", "string", 0, |o, _| json!(text(o, "/type"))),
        column("Reason", "string", 0, |o, _| json!(text(o, "/reason"))),
        column("Object", "string", 0, about_cell),
        column("Source", "string", 1, |o, _| json!(source(o))),
        column("Message", "string", 0, |o, _| json!(first_of(o, &["/message", "/note"]).trim())),
        column("First Seen", "string", 1, |o, now| {
            age_of(first_of(o, &["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"]), now)
        }),
        column("Count", "string", 1, |o, _| json!(times(o))),
        column("Name", "string", 1, |o, _| json!(text(o, "/metadata/name"))),
    ]
}

fn first_of<'a>(object: &'a Value, pointers: &[&str]) -> &'a str {
    pointers.iter().map(|p| text(object, p)).find(|t| !t.is_empty()).unwrap_or_default()
}

fn last_seen(object: &Value, now: Timestamp) -> Value {
    let newest = ["/series/lastObservedTime", "/lastTimestamp", "/deprecatedLastTimestamp", "/eventTime"];
    age_of(first_of(object, &newest), now)
}

fn about(object: &Value, pointer: &str) -> Value {
    let of = object.pointer(pointer).unwrap_or(&Value::Null);
    let kind = text(of, "/kind").to_lowercase();
    match text(of, "/name") {
        "" => or_none(&kind),
        name => json!(format!("{kind}/{name}")),
    }
}

fn source(object: &Value) -> String {
    let component = first_of(
        object,
        &["/source/component", "/deprecatedSource/component", "/reportingComponent", "/reportingController"],
    );
    match first_of(object, &["/source/host", "/deprecatedSource/host"]) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}

fn times(object: &Value) -> i64 {
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).filter(|n| *n > 0);
    number("/series/count").or_else(|| number("/count")).or_else(|| number("/deprecatedCount")).unwrap_or(1)
}
