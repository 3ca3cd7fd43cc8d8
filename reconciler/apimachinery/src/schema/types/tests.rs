use serde_json::json;

use crate::builtin::builtin_schema;

#[test]
fn the_first_field_of_another_type_is_named() {
    for (group, kind, object, why) in [
        ("", "ConfigMap", json!({"data": {"a": 1}}), "data.a must be a string"),
        ("", "ConfigMap", json!({"data": []}), "data must be an object"),
        ("", "ConfigMap", json!({"immutable": "yes"}), "immutable must be true or false"),
        ("", "Secret", json!({"data": {"a": "!"}}), "data.a must be text in base64"),
        (
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"leaseDurationSeconds": 1.5}}),
            "spec.leaseDurationSeconds must be a whole number of 32 bits",
        ),
        (
            "coordination.k8s.io",
            "Lease",
            json!({"spec": {"renewTime": "2026-01-01T00:00:00Z"}}),
            "spec.renewTime must be a time such as 2006-01-02T15:04:05.000000Z",
        ),
        (
            "rbac.authorization.k8s.io",
            "Role",
            json!({"rules": [{"verbs": ["get"]}, {"verbs": "get"}]}),
            "rules[1].verbs must be a list",
        ),
    ] {
        let schema = builtin_schema(group, kind).expect("it is built in");
        assert_eq!(schema.check_types("", &object), Err(why.to_owned()));
    }
}

#[test]
fn null_counts_as_absent() {
    let lease = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "holderIdentity": null}});
    let schema = builtin_schema("coordination.k8s.io", "Lease").expect("it is built in");
    assert_eq!(schema.check_types("", &lease), Ok(()));
}

#[test]
fn base64_may_have_line_breaks_and_needs_its_padding() {
    assert!(["", "ZA==", "ZGE=", "ZG\nFt\n"].into_iter().all(super::is_base64));
    assert!(["!", "ZA", "Z===", "ZA=a", "ZA==Z"].into_iter().all(|text| !super::is_base64(text)));
}
