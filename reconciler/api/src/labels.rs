//! Labels that select objects.

/// As many labels, and such values, as a selector can make use of. A schema does not describe the keys.
pub(crate) fn bounded_labels(schema: &mut schemars::Schema) {
    let value = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
    schema.insert("maxProperties".into(), 64.into());
    let values = serde_json::json!({"type": "string", "maxLength": 63, "pattern": value});
    schema.insert("additionalProperties".into(), values);
}

/// The same, with one label at least.
pub(crate) fn some_labels(schema: &mut schemars::Schema) {
    bounded_labels(schema);
    schema.insert("minProperties".into(), 1.into());
}
