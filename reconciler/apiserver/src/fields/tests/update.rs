use super::*;

#[test]
fn a_create_owns_everything_but_what_the_server_sets() {
    let mut world = World::new();
    let mut made = object(json!({"size": "1", "disks": [{"name": "x"}]}));
    made["metadata"] = json!({"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}});
    world.write("u", made);
    assert_eq!(
        world.owners(),
        [
            "u/Update: .spec .metadata.labels .metadata.labels.a .spec.disks .spec.size .spec.disks[name=\"x\"] \
         .spec.disks[name=\"x\"].name"
        ]
    );
}

#[test]
fn an_update_owns_what_it_changes_and_takes_it_from_others() {
    let mut world = World::new();
    world.apply("a", json!({"size": "1", "count": 1}));
    world.update("u", json!({"size": "2", "count": 1}));
    assert_eq!(world.owners(), ["a/Apply: .spec.count", "u/Update: .spec.size"]);
    assert_eq!(world.times(), [at(1), at(2)]);
    assert_eq!(
        world.conflicts("a", json!({"size": "1", "count": 1})),
        ["conflict with \"u\" using x.dev/v1: .spec.size"]
    );
}

#[test]
fn what_is_removed_is_nobodys_and_empty_managers_go() {
    let mut world = World::new();
    world.apply("a", json!({"size": "1"}));
    world.apply("b", json!({"count": 1, "disks": [{"name": "x", "size": "1"}]}));
    world.update("u", json!({"disks": [{"name": "x"}]}));
    assert_eq!(world.owners(), ["b/Apply: .spec.disks[name=\"x\"] .spec.disks[name=\"x\"].name"]);
}

#[test]
fn an_update_that_changes_nothing_leaves_times_alone() {
    let mut world = World::new();
    world.update("u", json!({"size": "1"}));
    let before = world.live.clone();
    world.update("u", json!({"size": "1"}));
    world.update("v", json!({"size": "1"}));
    assert_eq!(world.live, before);
}

#[test]
fn an_update_and_an_apply_of_one_name_are_two_managers() {
    let mut world = World::new();
    world.update("m", json!({"size": "1"}));
    world.apply("m", json!({"count": 1}));
    assert_eq!(world.owners(), ["m/Apply: .spec.count", "m/Update: .spec .spec.size"]);
}

#[test]
fn an_update_through_status_touches_status_only() {
    let mut world = World::new();
    world.reset = Reset::Status;
    world.update("u", json!({"size": "1"}));
    world.reset = Reset::AllButStatus;
    world.subresource = Some("status".to_owned());
    let mut after = world.live.clone().expect("live");
    after["status"] = json!({"phase": "Up"});
    world.write("c", after);
    assert_eq!(world.owners(), ["u/Update: .spec .spec.size", "c/Update: .status .status.phase"]);
    assert_eq!(world.entries()[1]["subresource"], "status");
}

#[test]
fn ownership_can_be_edited_and_reset_by_the_client() {
    let mut world = World::new();
    world.apply("a", json!({"size": "1"}));
    world.apply("b", json!({"count": 1}));

    let mut after = world.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!([]);
    world.write("u", after);
    assert_eq!(world.owners().len(), 2, "an empty list is as if none had been sent");

    let mut after = world.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!("nonsense");
    world.write("u", after);
    assert_eq!(world.owners().len(), 2, "nonsense is ignored");

    let mut after = world.live.clone().expect("live");
    after["metadata"]["managedFields"].as_array_mut().expect("entries").remove(0);
    world.write("u", after);
    assert_eq!(world.owners(), ["b/Apply: .spec.count"]);

    let mut after = world.live.clone().expect("live");
    after["metadata"]["managedFields"] = json!([{}]);
    world.write("u", after);
    assert_eq!(world.owners(), Vec::<String>::new());
    world.update("u", json!({"size": "2", "count": 1}));
    assert_eq!(world.owners(), Vec::<String>::new(), "nothing is tracked again before somebody applies");
}

#[test]
fn the_oldest_updates_are_merged_beyond_ten() {
    let mut world = World::new();
    let mut labels = json!({});
    for n in 0..14 {
        labels[format!("k{n}")] = json!("v");
        world.update(&format!("m{n:02}"), json!({"labels": labels}));
    }
    let owners = world.owners();
    assert_eq!(owners.len(), 10);
    assert!(owners[0].starts_with("ancient-changes/Update: "), "{owners:?}");
    assert!(owners[0].contains(".spec.labels.k0") && owners[0].contains(".spec.labels.k4"));
    assert!(owners[1].starts_with("m05/Update"));
}

#[test]
fn a_field_that_became_atomic_is_owned_whole() {
    let mut world = World::new();
    world.apply("a", json!({"labels": {"k": "1"}, "size": "1"}));
    world.schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "string"},
        "labels": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
    }}}}))
    .expect("structural");
    assert_eq!(world.conflicts("b", json!({"labels": {"l": "1"}})), ["conflict with \"a\": .spec.labels"]);
}

#[test]
fn duplicates_that_an_update_stored_do_not_stop_the_next_apply() {
    let mut world = World::new();
    world.update(
        "u",
        json!({"disks": [{"name": "x", "size": "1"}, {"name": "x", "size": "2"}, {"name": "y"}]}),
    );
    world.apply("a", json!({"disks": [{"name": "z"}]}));
    assert_eq!(world.spec()["disks"].as_array().map(Vec::len), Some(4));
    world.update("u", json!({"disks": [{"name": "x", "size": "1"}]}));
    assert_eq!(world.spec()["disks"], json!([{"name": "x", "size": "1"}]));
}
