//! `metadata`: the fields that clients may set, and those that the server sets.

pub mod names;
mod validate;
mod well_formed;

use serde_json::{Map, Value};

pub use names::NameRule;
pub use validate::validate;
pub use well_formed::well_formed;

use crate::schema::equal_but;
pub use crate::schema::message::{field_error, forbidden, invalid, required};

/// Returns the object's `metadata`, created if missing. Assumptions: `object` passed [`well_formed`].
pub fn of(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object just above")
}

/// Copies the fields that clients cannot change from the stored object.
pub fn keep_system_fields(object: &mut Value, live: &Value) {
    let metadata = of(object);
    let kept = [
        "name",
        "namespace",
        "generateName",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ];
    for name in kept {
        match live["metadata"].get(name) {
            Some(value) => metadata.insert(name.into(), value.clone()),
            None => metadata.remove(name),
        };
    }
    metadata.remove("resourceVersion");
}

/// Drops empty and null fields, as Kubernetes' types do when they are encoded.
pub fn tidy(object: &mut Value) {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    of(object).retain(|_, value| !empty(value));
}

/// Whether any field but `metadata` and, if it is a subresource, `status` differs.
pub fn spec_changed(old: &Value, new: &Value, status_apart: bool) -> bool {
    let apart: &[&str] = if status_apart { &["metadata", "status"] } else { &["metadata"] };
    !equal_but(old, new, apart, Value::eq)
}

/// Whether two objects are equal except for the revision and the times of the managers.
pub fn same(a: &Value, b: &Value) -> bool {
    fn managers(metadata: &Value) -> &[Value] {
        metadata["managedFields"].as_array().map_or(&[], Vec::as_slice)
    }
    let (of_a, of_b) = (&a["metadata"], &b["metadata"]);
    let mut both = managers(of_a).iter().zip(managers(of_b));
    equal_but(a, b, &["metadata"], Value::eq)
        && equal_but(of_a, of_b, &["resourceVersion", "managedFields"], Value::eq)
        && managers(of_a).len() == managers(of_b).len()
        && both.all(|(a, b)| equal_but(a, b, &["time"], Value::eq))
}

/// Whether two Leases differ in nothing but `spec.renewTime`, the revision and the managers.
pub fn is_renewal(old: &Value, new: &Value) -> bool {
    equal_but(old, new, &["metadata", "spec"], Value::eq)
        && equal_but(&old["metadata"], &new["metadata"], &["resourceVersion", "managedFields"], Value::eq)
        && equal_but(&old["spec"], &new["spec"], &["renewTime"], Value::eq)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn managers_writing_again_at_another_time_change_nothing() {
        let at = |time: &str| json!({"metadata": {"managedFields": [{"manager": "m", "time": time}]}});
        assert!(same(&at("2026-01-01T00:00:00Z"), &at("2026-01-02T00:00:00Z")));
    }

    #[test]
    fn a_renewal_changes_the_time_of_a_lease_and_nothing_else() {
        let lease = |holder: &str, seconds: u32, renewed: &str, labels: Value| {
            json!({"kind": "Lease", "metadata": {"name": "h", "labels": labels, "resourceVersion": renewed,
                "managedFields": [{"time": renewed}]},
                "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed}})
        };
        let old = lease("a", 40, "1", json!({}));
        assert!(is_renewal(&old, &lease("a", 40, "2", json!({}))));
        for other in [
            lease("b", 40, "2", json!({})),
            lease("a", 41, "2", json!({})),
            lease("a", 40, "2", json!({"x": "y"})),
            json!({"kind": "Lease", "metadata": old["metadata"], "spec": {"renewTime": "2"}}),
        ] {
            assert!(!is_renewal(&old, &other), "{other}");
        }
    }
}
