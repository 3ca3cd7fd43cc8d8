use super::*;
use crate::fields::element::PathElement;

fn paths(value: &Value) -> Vec<String> {
    let mut paths: Vec<String> = field_set(value, &schema()).paths().iter().map(|p| set::show(p)).collect();
    paths.sort();
    paths
}

#[test]
fn a_field_set_names_leaves_items_and_keys() {
    let spec = |spec: Value| json!({"spec": spec});
    let cases: Vec<(Value, &[&str])> = vec![
        (spec(json!({"size": "1", "count": 2})), &[".spec.count", ".spec.size"]),
        (spec(json!({"port": "http"})), &[".spec.port"]),
        (spec(json!({"args": ["a", "b"]})), &[".spec.args"]),
        (spec(json!({"tags": ["a", "b"]})), &[".spec.tags[=\"a\"]", ".spec.tags[=\"b\"]"]),
        (spec(json!({"labels": {"a": "1"}})), &[".spec.labels.a"]),
        (spec(json!({"labels": {}})), &[".spec.labels"]),
        (spec(json!({"whole": {"a": "1"}})), &[".spec.whole"]),
        (
            spec(json!({"disks": [{"name": "x", "size": "1"}]})),
            &[".spec.disks[name=\"x\"]", ".spec.disks[name=\"x\"].name", ".spec.disks[name=\"x\"].size"],
        ),
        (
            spec(json!({"ports": [{"port": 80}]})),
            &[".spec.ports[port=80,protocol=\"TCP\"]", ".spec.ports[port=80,protocol=\"TCP\"].port"],
        ),
        (
            spec(json!({"free": {"a": {"b": [1], "c": null}}})),
            &[".spec.free.a", ".spec.free.a.b", ".spec.free.a.c"],
        ),
        (spec(json!({"size": null})), &[".spec.size"]),
        (spec(json!({})), &[".spec"]),
        (
            json!({"metadata": {"finalizers": ["a"], "ownerReferences": [{"uid": "u", "name": "n"}]}}),
            &[".metadata.finalizers[=\"a\"]", ".metadata.ownerReferences[uid=\"u\"]"],
        ),
    ];
    for (value, expected) in cases {
        assert_eq!(paths(&value), expected, "{value}");
    }
}

#[test]
fn fields_v1_goes_there_and_back() {
    let value = json!({
        "f:metadata": {"f:finalizers": {".": {}, "v:\"a\"": {}}, "f:labels": {"f:a.b/c": {}}},
        "f:spec": {"f:disks": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}}}, "f:size": {}, "f:\u{fc}": {"i:3": {}}},
    });
    let set = FieldSet::from_v1(&value).expect("fieldsV1");
    assert_eq!(set.to_v1(), value);
    assert_eq!(FieldSet::from_v1(&json!({})).expect("empty"), FieldSet::default());
    let escaped = json!({"f:x": {"v:\"\\u003ca\\u0026b\\u003e\"": {}}});
    assert_eq!(FieldSet::from_v1(&escaped).expect("fieldsV1").to_v1(), escaped);
}

#[test]
fn nonsense_is_no_fields_v1() {
    for bad in [
        json!(1),
        json!({"x": {}}),
        json!({"z:a": {}}),
        json!({"f:a": 1}),
        json!({"k:[]": {}}),
        json!({"i:x": {}}),
        json!({"v:": {}}),
    ] {
        assert!(FieldSet::from_v1(&bad).is_err(), "{bad}");
    }
}

#[test]
fn set_operations_treat_parents_and_children_apart() {
    let set = |v: Value| FieldSet::from_v1(&v).expect("fieldsV1");
    let both = set(json!({"f:a": {".": {}, "f:b": {}}}));
    let parent = set(json!({"f:a": {}}));
    let child = set(json!({"f:a": {"f:b": {}}}));
    assert_eq!(parent.union(&child), both);
    assert_eq!(both.difference(&parent), child);
    assert_eq!(both.difference(&child), parent);
    assert_eq!(both.intersection(&child), child);
    assert!(parent.intersection(&child).is_empty());
}

/// With a walk over the fields of the write for each manager, this would take minutes.
#[test]
fn many_managers_with_a_field_each_do_not_slow_down_a_write_of_many_fields() {
    let of = |numbers: std::ops::Range<u32>| -> FieldSet {
        let mut set = FieldSet::default();
        for number in numbers {
            let name = PathElement::field(&format!("n{number}"));
            set.insert(&[PathElement::field("spec"), name.clone()]);
            set.insert(&[name, PathElement::field("below")]);
        }
        set
    };
    let write = of(0..50_000);
    for manager in 0..20_000 {
        let left = of(manager + 40_000..manager + 40_001).difference(&write);
        assert_eq!(left.is_empty(), manager < 10_000, "{manager}");
    }
    assert_eq!(write.difference(&of(1..2)).paths().len(), 2 * 49_999);
}
