use super::*;

#[test]
fn a_create_owns_everything_but_what_the_server_sets() {
    let mut fixture = Fixture::new();
    let mut made = object(json!({"size": "1", "disks": [{"name": "x"}]}));
    made["metadata"] = json!({"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}});
    fixture.write("u", made);
    assert_eq!(
        fixture.owners(),
        [
            "u/Update: .spec .metadata.labels .metadata.labels.a .spec.disks .spec.size .spec.disks[name=\"x\"] \
         .spec.disks[name=\"x\"].name"
        ]
    );
}

#[test]
fn an_update_owns_what_it_changes_and_takes_it_from_others() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "count": 1}));
    fixture.update("u", json!({"size": "2", "count": 1}));
    assert_eq!(fixture.owners(), ["a/Apply: .spec.count", "u/Update: .spec.size"]);
    assert_eq!(fixture.times(), [at(1), at(2)]);
    assert_eq!(
        fixture.conflicts("a", json!({"size": "1", "count": 1})),
        ["conflict with \"u\" using x.dev/v1: .spec.size"]
    );
}

#[test]
fn what_is_removed_is_nobodys_and_empty_managers_go() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1"}));
    fixture.apply("b", json!({"count": 1, "disks": [{"name": "x", "size": "1"}]}));
    fixture.update("u", json!({"disks": [{"name": "x"}]}));
    assert_eq!(fixture.owners(), ["b/Apply: .spec.disks[name=\"x\"] .spec.disks[name=\"x\"].name"]);
}

#[test]
fn an_update_that_changes_nothing_leaves_times_alone() {
    let mut fixture = Fixture::new();
    fixture.update("u", json!({"size": "1"}));
    let before = fixture.live.clone();
    fixture.update("u", json!({"size": "1"}));
    fixture.update("v", json!({"size": "1"}));
    assert_eq!(fixture.live, before);
}

#[test]
fn an_update_and_an_apply_of_one_name_are_two_managers() {
    let mut fixture = Fixture::new();
    fixture.update("m", json!({"size": "1"}));
    fixture.apply("m", json!({"count": 1}));
    assert_eq!(fixture.owners(), ["m/Apply: .spec.count", "m/Update: .spec .spec.size"]);
}

#[test]
fn an_update_through_status_touches_status_only() {
    let mut fixture = Fixture::new();
    fixture.reset = Reset::Status;
    fixture.update("u", json!({"size": "1"}));
    fixture.reset = Reset::AllButStatus;
    fixture.subresource = Some("status".to_owned());
    let mut after = fixture.live.clone().expect("live");
    after["status"] = json!({"phase": "Up"});
    fixture.write("c", after);
    assert_eq!(fixture.owners(), ["u/Update: .spec .spec.size", "c/Update: .status .status.phase"]);
    assert_eq!(fixture.entries()[1]["subresource"], "status");
}

#[test]
fn ownership_can_be_edited_and_reset_by_the_client() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1"}));
    fixture.apply("b", json!({"count": 1}));

    let mut after = fixture.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!([]);
    fixture.write("u", after);
    assert_eq!(fixture.owners().len(), 2, "an empty list is as if none had been sent");

    let mut after = fixture.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!("nonsense");
    fixture.write("u", after);
    assert_eq!(fixture.owners().len(), 2, "nonsense is ignored");

    let mut after = fixture.live.clone().expect("live");
    after["metadata"]["managedFields"].as_array_mut().expect("entries").remove(0);
    fixture.write("u", after);
    assert_eq!(fixture.owners(), ["b/Apply: .spec.count"]);

    let mut after = fixture.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!([{}]);
    fixture.write("u", after);
    assert_eq!(fixture.owners(), Vec::<String>::new());
    fixture.update("u", json!({"size": "2", "count": 1}));
    assert_eq!(fixture.owners(), Vec::<String>::new(), "nothing is tracked again before somebody applies");
}

#[test]
fn the_oldest_updates_are_merged_beyond_ten() {
    let mut fixture = Fixture::new();
    let mut labels = json!({});
    for n in 0..14 {
        labels[format!("k{n}")] = json!("v");
        fixture.update(&format!("m{n:02}"), json!({"labels": labels}));
    }
    let owners = fixture.owners();
    assert_eq!(owners.len(), 10);
    assert!(owners[0].starts_with("ancient-changes/Update: "), "{owners:?}");
    assert!(owners[0].contains(".spec.labels.k0") && owners[0].contains(".spec.labels.k4"));
    assert!(owners[1].starts_with("m05/Update"));
}

#[test]
fn a_field_that_became_atomic_is_owned_whole() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"labels": {"k": "1"}, "size": "1"}));
    fixture.schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "string"},
        "labels": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
    }}}}))
    .expect("structural");
    assert_eq!(fixture.conflicts("b", json!({"labels": {"l": "1"}})), ["conflict with \"a\": .spec.labels"]);
}

#[test]
fn duplicates_that_an_update_stored_do_not_stop_the_next_apply() {
    let mut fixture = Fixture::new();
    fixture.update(
        "u",
        json!({"disks": [{"name": "x", "size": "1"}, {"name": "x", "size": "2"}, {"name": "y"}]}),
    );
    fixture.apply("a", json!({"disks": [{"name": "z"}]}));
    assert_eq!(fixture.spec()["disks"].as_array().map(Vec::len), Some(4));
    fixture.update("u", json!({"disks": [{"name": "x", "size": "1"}]}));
    assert_eq!(fixture.spec()["disks"], json!([{"name": "x", "size": "1"}]));
}
