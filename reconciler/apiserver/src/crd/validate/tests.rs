use serde_json::json;

use super::*;

/// Validates a good definition with these fields of its only version.
fn reported(version: &Value) -> Vec<String> {
    let mut whole = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
        {"type": "object", "properties": {"spec": {"type": "object", "properties":
            {"a": {"type": "string"}, "o": {"type": "object"}}}}}}});
    whole.as_object_mut().unwrap().extend(version.as_object().unwrap().clone());
    let crd = json!({"metadata": {"name": "carts.toys.example"}, "spec": {"group": "toys.example", "scope": "Cluster",
        "names": {"plural": "carts", "singular": "cart", "kind": "Cart", "listKind": "CartList"},
        "conversion": {"strategy": "None"}, "versions": [whole]}, "status": {"storedVersions": ["v1"]}});
    validate(&crd, None).iter().map(ToString::to_string).collect()
}

#[test]
fn errors_of_a_version_name_the_version() {
    let none: [&str; 0] = [];
    for (version, wanted) in [
        (json!({}), &none as &[&str]),
        (json!({"selectableFields": [{"jsonPath": ".spec.a"}]}), &none),
        (json!({"subresources": {"scale": {"specReplicasPath": ".spec.a"}}}), &none),
        (
            json!({"selectableFields": [{"jsonPath": ".spec.b"}, {"jsonPath": ".spec.o"}]}),
            &[
                "spec.versions[0].selectableFields[0].jsonPath: Invalid value: \".spec.b\": must point to a field of \
                 type string, boolean or integer, outside of metadata",
                "spec.versions[0].selectableFields[1].jsonPath: Invalid value: \".spec.o\": must point to a field of \
                 type string, boolean or integer, outside of metadata",
            ],
        ),
        (
            json!({"additionalPrinterColumns": [{"name": "A", "type": "thing", "jsonPath": "spec.a"}]}),
            &[
                "spec.versions[0].additionalPrinterColumns[0].type: Unsupported value: \"thing\": supported values: \
                 \"boolean\", \"date\", \"integer\", \"number\", \"string\"",
                "spec.versions[0].additionalPrinterColumns[0].jsonPath: Invalid value: \"spec.a\": must be a simple \
                 json path starting with .",
            ],
        ),
        (json!({"schema": null}), &["spec.versions[0].schema.openAPIV3Schema: Required value"]),
    ] {
        assert_eq!(reported(&version), wanted, "{version}");
    }
}

#[test]
fn an_empty_definition_lacks_everything() {
    let crd = json!({"metadata": {"name": "x"}, "spec": {"conversion": {"strategy": "None"}},
        "status": {"storedVersions": []}});
    let errors = validate(&crd, None);
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.group",
            "spec.scope",
            "spec.versions",
            "spec.names.plural",
            "spec.names.singular",
            "spec.names.kind",
            "spec.names.listKind",
            "status.storedVersions"
        ]
    );
}
