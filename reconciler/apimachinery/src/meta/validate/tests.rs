use serde_json::json;

use super::*;

fn reported(metadata: &Value) -> Vec<String> {
    let errors = validate(metadata, NameRule::Subdomain, None);
    errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

#[test]
fn finalizers_cannot_be_added_to_what_is_being_deleted() {
    let old = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/a", "x/b"]});
    let fewer = json!({"name": "a", "finalizers": ["x/b"]});
    let more = json!({"name": "a", "finalizers": ["x/d", "x/b", "x/c"]});
    assert!(validate(&fewer, NameRule::Subdomain, Some(&old)).is_empty());
    let errors = validate(&more, NameRule::Subdomain, Some(&old));
    assert_eq!(errors[0].field, "metadata.finalizers");
    assert!(errors[0].message.ends_with("being deleted, found x/d, x/c"));
}

#[test]
fn an_object_needs_a_name_or_the_beginning_of_one() {
    assert_eq!(reported(&json!({})), ["metadata.name: Required value: name or generateName is required"]);
    assert!(reported(&json!({"name": "a-x1", "generateName": "a-"})).is_empty());
    let both = reported(&json!({"name": "A_x1", "generateName": "A_"}));
    assert!(both[0].starts_with("metadata.generateName: Invalid value: \"A_\": a lowercase RFC 1123"));
    assert!(both[1].starts_with("metadata.name: Invalid value: \"A_x1\": a lowercase RFC 1123"));
}

#[test]
fn owners_say_who_they_are_and_one_of_them_controls() {
    let owned = |owners: Value| reported(&json!({"name": "a", "ownerReferences": owners}));
    let empty = owned(json!([{"apiVersion": "", "kind": "", "name": "", "uid": ""}]));
    assert_eq!(
        empty,
        [
            "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
            "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
            "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ]
    );
    let one =
        |uid: &str| json!({"uid": uid, "controller": true, "kind": "X", "apiVersion": "v1", "name": uid});
    assert!(owned(json!([one("a")])).is_empty());
    let two = owned(json!([one("a"), one("b")]));
    assert_eq!(two.len(), 1);
    assert!(two[0].contains(r#"Invalid value: "a, b": only one reference"#), "{}", two[0]);
    let deep = owned(json!([{"apiVersion": "a/b/c", "kind": "X", "name": "n", "uid": "u"}]));
    assert!(deep[0].contains("Invalid value: \"a/b/c\": version must not be empty"));
}

#[test]
fn an_object_full_of_errors_is_refused_with_the_first_ones() {
    let labels: serde_json::Map<String, Value> =
        (0..10_000).map(|at| (format!("-{at}"), "-".into())).collect();
    let owners = vec![json!({}); 10_000];
    let finalizers: Vec<String> = (0..10_000).map(|at| format!("-{at}")).collect();
    for metadata in [
        json!({"name": "a", "labels": labels}),
        json!({"name": "a", "annotations": labels}),
        json!({"name": "a", "ownerReferences": owners}),
        json!({"name": "a", "finalizers": finalizers}),
    ] {
        let found = reported(&metadata).len();
        assert!((MAX_ERRORS..MAX_ERRORS + 8).contains(&found), "{found}");
    }
}
