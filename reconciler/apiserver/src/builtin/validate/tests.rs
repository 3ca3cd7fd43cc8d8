use serde_json::json;

use super::*;

fn reported(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

#[test]
fn a_rule_names_resources_or_paths_and_a_namespaced_one_no_paths() {
    let of = |namespaced: bool, rule: Value| {
        let mut errors = Vec::new();
        validate_rules(namespaced, &json!({"rules": [rule]}), &mut errors);
        reported(&errors)
    };
    assert!(of(true, json!({"verbs": ["get"], "apiGroups": [""], "resources": ["x"]})).is_empty());
    assert!(of(false, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})).is_empty());
    assert_eq!(
        of(true, json!({"verbs": ["get"], "apiGroups": [""]})),
        ["rules[0].resources: Required value: resource rules must supply at least one resource"]
    );
    assert_eq!(of(true, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})).len(), 1);
}

#[test]
fn a_binding_names_roles_and_subjects_there_are() {
    let binding =
        json!({"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "a"}, "subjects": [{"kind": "Dog"}]});
    let mut errors = Vec::new();
    validate_binding(false, &binding, None, &mut errors);
    assert_eq!(
        reported(&errors),
        [
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
            "subjects[0].name: Required value",
            "subjects[0].kind: Unsupported value: \"Dog\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ]
    );
}

#[test]
fn a_subject_is_of_the_group_its_kind_is_of() {
    let of = |namespaced: bool, subject: Value| {
        let mut errors = Vec::new();
        validate_subject("s", namespaced, &subject, &mut errors);
        reported(&errors)
    };
    assert!(of(false, json!({"kind": "User", "name": "u", "apiGroup": RBAC})).is_empty());
    assert!(of(true, json!({"kind": "ServiceAccount", "name": "a"})).is_empty());
    assert_eq!(of(false, json!({"kind": "ServiceAccount", "name": "a"})), ["s.namespace: Required value"]);
    assert_eq!(of(true, json!({"kind": "ServiceAccount", "name": "a", "apiGroup": "x"})).len(), 1);
    assert_eq!(of(true, json!({"kind": "Group", "name": "g", "apiGroup": ""})).len(), 1);
}

#[test]
fn a_definition_of_a_built_in_resource_is_refused() {
    let definitions = crate::builtin::resources(&tokio_util::sync::CancellationToken::new());
    let definitions =
        definitions.iter().find(|of| of.is(APIEXTENSIONS, "customresourcedefinitions")).unwrap();
    let of = |group: &str, plural: &str| {
        let version = json!({"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        let crd = json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": {"group": group,
            "scope": "Cluster", "conversion": {"strategy": "None"}, "versions": [version],
            "names": {"plural": plural, "singular": "one", "kind": "One", "listKind": "OneList"}},
            "status": {"storedVersions": ["v1"]}});
        reported(&validate(definitions, &crd, None))
    };
    for (group, plural) in [
        (RBAC, "clusterroles"),
        ("coordination.k8s.io", "leases"),
        (APIEXTENSIONS, "customresourcedefinitions"),
        ("networking.k8s.io", "ingresses"),
    ] {
        assert_eq!(
            of(group, plural),
            [format!(
                "spec.group: Invalid value: \"{group}\": {plural}.{group} is a built-in resource of this server: choose another group"
            )]
        );
    }
    assert!(of("toys.example", "leases").is_empty());
}

#[test]
fn a_map_full_of_errors_is_refused_with_the_first_ones() {
    let data: serde_json::Map<String, Value> = (0..10_000).map(|at| (format!("/{at}"), "x".into())).collect();
    let mut errors = Vec::new();
    validate_config_map(&json!({"data": data, "binaryData": data}), None, &mut errors);
    assert!((MAX_ERRORS..MAX_ERRORS + 8).contains(&errors.len()), "{}", errors.len());
}
