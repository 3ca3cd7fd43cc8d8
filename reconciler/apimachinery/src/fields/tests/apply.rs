use super::*;

#[test]
fn the_first_apply_creates_and_owns() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "disks": [{"name": "x", "size": "1"}]}));
    assert_eq!(
        fixture.owners(),
        [
            "a/Apply: .spec.size .spec.disks[name=\"x\"] .spec.disks[name=\"x\"].name .spec.disks[name=\"x\"].size"
        ]
    );
    insta::assert_json_snapshot!(fixture.live.as_ref().expect("created")["metadata"]["managedFields"], @r#"
    [
      {
        "apiVersion": "x.dev/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
          "f:spec": {
            "f:disks": {
              "k:{\"name\":\"x\"}": {
                ".": {},
                "f:name": {},
                "f:size": {}
              }
            },
            "f:size": {}
          }
        },
        "manager": "a",
        "operation": "Apply",
        "time": "2026-01-01T00:00:01Z"
      }
    ]
    "#);
}

#[test]
fn an_apply_that_changes_nothing_changes_nothing_at_all() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "args": ["x"]}));
    let before = fixture.live.clone();
    fixture.apply("a", json!({"args": ["x"], "size": "1"}));
    assert_eq!(fixture.live, before);
}

#[test]
fn what_is_no_longer_applied_goes() {
    let mut fixture = Fixture::new();
    fixture.apply(
        "a",
        json!({"size": "1", "count": 1, "tags": ["p", "q"], "labels": {"k": "1", "l": "2"},
        "disks": [{"name": "x", "size": "1"}, {"name": "y"}]}),
    );
    fixture.apply("a", json!({"size": "1", "tags": ["q"], "labels": {"l": "2"}, "disks": [{"name": "x"}]}));
    assert_eq!(
        fixture.spec(),
        &json!({"size": "1", "tags": ["q"], "labels": {"l": "2"}, "disks": [{"name": "x"}]})
    );
}

#[test]
fn what_somebody_else_owns_too_stays() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "disks": [{"name": "x", "size": "1"}]}));
    fixture.apply("b", json!({"size": "1", "disks": [{"name": "x", "bus": "scsi"}]}));
    fixture.apply("a", json!({"count": 3}));
    assert_eq!(fixture.spec(), &json!({"size": "1", "disks": [{"name": "x", "bus": "scsi"}], "count": 3}));
    assert_eq!(
        fixture.owners(),
        [
            "b/Apply: .spec.size .spec.disks[name=\"x\"] .spec.disks[name=\"x\"].bus .spec.disks[name=\"x\"].name",
            "a/Apply: .spec.count",
        ]
    );
}

#[test]
fn a_conflict_names_manager_and_field_as_kubernetes_does() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "count": 1}));
    assert_eq!(fixture.conflicts("b", json!({"size": "2"})), ["conflict with \"a\": .spec.size"]);
    let error = fixture.try_apply("b", &object(json!({"size": "2"})), false).expect_err("a conflict");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"a\": .spec.size");
    assert_eq!(
        error.causes(),
        [("FieldManagerConflict", "conflict with \"a\"".to_owned(), ".spec.size".to_owned())]
    );

    let error =
        fixture.try_apply("b", &object(json!({"size": "2", "count": 2})), false).expect_err("conflicts");
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.count\n- .spec.size"
    );

    let mut fixture = Fixture::new();
    fixture.update("kubectl-client-side-apply", json!({"size": "1"}));
    assert_eq!(
        fixture.conflicts("b", json!({"size": "2"})),
        ["conflict with \"kubectl-client-side-apply\" using x.dev/v1: .spec.size"]
    );
}

#[test]
fn force_takes_the_field_away() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1", "count": 1}));
    fixture.force("b", json!({"size": "2"}));
    assert_eq!(fixture.spec(), &json!({"size": "2", "count": 1}));
    assert_eq!(fixture.owners(), ["a/Apply: .spec.count", "b/Apply: .spec.size"]);
    fixture.apply("a", json!({"count": 1}));
    assert_eq!(fixture.spec(), &json!({"size": "2", "count": 1}));
}

#[test]
fn equal_values_are_shared_and_a_shared_owner_conflicts_when_changing() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"size": "1"}));
    fixture.apply("b", json!({"size": "1"}));
    assert_eq!(fixture.owners(), ["a/Apply: .spec.size", "b/Apply: .spec.size"]);
    assert_eq!(fixture.times(), [at(1), at(2)]);
    assert_eq!(fixture.conflicts("b", json!({"size": "2"})), ["conflict with \"a\": .spec.size"]);
    fixture.apply("a", json!({}));
    assert_eq!(fixture.spec()["size"], "1");
}

#[test]
fn atomic_lists_and_maps_are_owned_whole() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"args": ["x"], "whole": {"a": "1"}}));
    assert_eq!(fixture.conflicts("b", json!({"args": ["x", "y"]})), ["conflict with \"a\": .spec.args"]);
    assert_eq!(fixture.conflicts("b", json!({"whole": {"b": "2"}})), ["conflict with \"a\": .spec.whole"]);
    fixture.force("b", json!({"whole": {"b": "2"}}));
    assert_eq!(fixture.spec(), &json!({"args": ["x"], "whole": {"b": "2"}}));
}

#[test]
fn two_managers_share_a_list_map_item_by_item() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"disks": [{"name": "x", "size": "1"}]}));
    fixture.apply("b", json!({"disks": [{"name": "y", "size": "2"}]}));
    assert_eq!(fixture.spec()["disks"], json!([{"name": "x", "size": "1"}, {"name": "y", "size": "2"}]));
    assert_eq!(
        fixture.conflicts("b", json!({"disks": [{"name": "x", "size": "3"}]})),
        ["conflict with \"a\": .spec.disks[name=\"x\"].size"]
    );
    fixture.apply("a", json!({}));
    assert_eq!(fixture.spec()["disks"], json!([{"name": "y", "size": "2"}]));
}

#[test]
fn keys_with_defaults_name_the_same_item() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}));
    fixture.apply("b", json!({"ports": [{"port": 53, "protocol": "TCP", "name": "dns"}]}));
    assert_eq!(
        fixture.spec()["ports"],
        json!([
            {"port": 53, "protocol": "TCP", "name": "dns"}, {"port": 53, "protocol": "UDP"},
        ])
    );
}

#[test]
fn items_are_ordered_as_applied_with_others_in_between() {
    let order = |live: &[&str], applied: &[&str]| {
        let disks =
            |names: &[&str]| json!({"disks": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
        let mut fixture = Fixture::new();
        fixture.update("u", disks(live));
        fixture.apply("a", disks(applied));
        let names = fixture.spec()["disks"]
            .as_array()
            .expect("disks")
            .iter()
            .map(|d| d["name"].as_str().unwrap_or("?"));
        names.collect::<Vec<_>>().join("")
    };
    assert_eq!(order(&["a", "b", "c"], &["a", "b", "c"]), "abc");
    assert_eq!(order(&["a", "b", "c"], &["c", "b", "a"]), "cba");
    assert_eq!(order(&["a", "b"], &["c"]), "abc");
    assert_eq!(order(&["a", "b", "c"], &["b"]), "abc");
    assert_eq!(order(&["a", "b", "c"], &["x", "b"]), "axbc");
    assert_eq!(order(&["1", "2", "3", "4"], &["4", "2"]), "1342");
}

#[test]
fn duplicates_and_nameless_items_cannot_be_applied() {
    let mut fixture = Fixture::new();
    let error = |fixture: &mut Fixture, spec: Value| {
        fixture.try_apply("a", &object(spec), false).expect_err("unmergeable").to_string()
    };
    assert_eq!(
        error(&mut fixture, json!({"disks": [{"name": "x"}, {"name": "x"}]})),
        "failed to create typed patch object (/x; x.dev/v1, Kind=X): .spec.disks: duplicate entries for key [name=\"x\"]"
    );
    assert!(error(&mut fixture, json!({"tags": ["x", "x"]})).contains("duplicate entries for key [=\"x\"]"));
    assert!(
        error(&mut fixture, json!({"disks": [{"size": "1"}]})).contains("omits all key fields [\"name\"]")
    );
    assert!(error(&mut fixture, json!({"disks": [null]})).contains("may not have a null element"));
    assert!(error(&mut fixture, json!({"disks": [1]})).contains("non-map elements"));
    assert!(
        error(&mut fixture, json!({"count": "x"}))
            .ends_with(".spec.count: expected numeric (int or float), got string")
    );
    assert!(error(&mut fixture, json!({"disks": {}})).ends_with(".spec.disks: expected list, got map"));
    assert!(error(&mut fixture, json!({"tags": [{}]})).contains("map type"));
}

#[test]
fn requests_that_cannot_be_applied_are_bad() {
    let mut fixture = Fixture::new();
    let mut applied = object(json!({}));
    applied["metadata"]["managedFields"] = json!([]);
    assert_eq!(
        fixture.try_apply("a", &applied, false),
        Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()))
    );
    let other = json!({"apiVersion": "x.dev/v2", "kind": "X"});
    assert!(
        matches!(fixture.try_apply("a", &other, false), Err(ApplyError::BadRequest(m)) if m.contains("x.dev/v2"))
    );
    assert!(matches!(fixture.try_apply("a", &json!([]), false), Err(ApplyError::BadRequest(_))));
    let mut deep = json!({});
    for _ in 0..500 {
        deep = json!({"x": deep});
    }
    assert!(matches!(fixture.try_apply("a", &object(deep), false), Err(ApplyError::BadRequest(_))));
}

#[test]
fn who_owns_a_part_need_not_own_the_map_around_it() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"labels": {"k": "1"}}));
    fixture.apply("b", json!({"labels": {"l": "2"}}));
    fixture.apply("a", json!({}));
    assert_eq!(fixture.spec(), &json!({"labels": {"l": "2"}}));
    fixture.apply("b", json!({}));
    assert_eq!(fixture.spec(), &json!({}));
}

#[test]
fn unknown_fields_are_owned_key_by_key() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"free": {"x": {"y": 1}, "l": [1]}}));
    fixture.apply("b", json!({"free": {"x": {"z": 2}}}));
    assert_eq!(fixture.spec(), &json!({"free": {"x": {"y": 1, "z": 2}, "l": [1]}}));
    assert_eq!(fixture.conflicts("b", json!({"free": {"l": [2]}})), ["conflict with \"a\": .spec.free.l"]);
    fixture.apply("a", json!({}));
    assert_eq!(fixture.spec(), &json!({"free": {"x": {"z": 2}}}));
}

#[test]
fn what_changed_its_kind_takes_the_new_form() {
    let mut fixture = Fixture::new();
    fixture.apply("a", json!({"free": {"x": {"y": 1}}, "port": 80}));
    fixture.apply("a", json!({"free": {"x": [1]}, "port": "http"}));
    assert_eq!(fixture.spec(), &json!({"free": {"x": [1]}, "port": "http"}));
    fixture.apply("a", json!({"free": {"x": "s"}, "port": 80}));
    assert_eq!(fixture.spec(), &json!({"free": {"x": "s"}, "port": 80}));
}

#[test]
fn an_apply_before_which_nothing_was_tracked_finds_an_owner_for_all_that_is_there() {
    let mut fixture = Fixture::new();
    fixture.live = Some(object(json!({"size": "1"})));
    assert_eq!(
        fixture.conflicts("a", json!({"size": "2"})),
        ["conflict with \"before-first-apply\" using x.dev/v1: .spec.size"]
    );
    fixture.apply("a", json!({"size": "1", "count": 2}));
    assert_eq!(
        fixture.owners(),
        ["a/Apply: .spec.count .spec.size", "before-first-apply/Update: .spec .spec.size",]
    );
}

#[test]
fn the_main_resource_leaves_status_alone_and_status_leaves_the_rest() {
    let mut fixture = Fixture::new();
    fixture.reset = Reset::Status;
    let mut applied = object(json!({"size": "1"}));
    applied["status"] = json!({"phase": "Made up"});
    fixture.try_apply("a", &applied, false).expect("applied");
    assert!(fixture.live.as_ref().expect("created").get("status").is_none());
    assert_eq!(fixture.owners(), ["a/Apply: .spec.size"]);

    fixture.reset = Reset::AllButStatus;
    fixture.subresource = Some("status".to_owned());
    let mut applied = object(json!({"size": "9"}));
    applied["metadata"]["labels"] = json!({"x": "y"});
    applied["status"] = json!({"phase": "Up", "conditions": [{"type": "Ready", "status": "True"}]});
    fixture.try_apply("s", &applied, false).expect("applied");
    let live = fixture.live.clone().expect("live");
    assert_eq!(live["spec"], json!({"size": "1"}));
    assert!(live["metadata"].get("labels").is_none());
    assert_eq!(live["status"]["phase"], "Up");
    assert_eq!(live["metadata"]["managedFields"][1]["subresource"], "status");
    assert_eq!(
        fixture.owners()[1],
        "s/Apply: .status.phase .status.conditions[type=\"Ready\"] \
        .status.conditions[type=\"Ready\"].status .status.conditions[type=\"Ready\"].type"
    );

    let error = fixture
        .try_apply("t", &json!({"apiVersion": V, "status": {"phase": "Down"}}), false)
        .expect_err("conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"s\" with subresource \"status\": .status.phase"
    );
}

#[test]
fn owner_references_are_told_apart_by_uid() {
    let mut fixture = Fixture::new();
    let with = |uid: &str| {
        let mut o = object(json!({}));
        o["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid}]);
        o["metadata"]["finalizers"] = json!([format!("x.dev/{uid}")]);
        o
    };
    fixture.try_apply("a", &with("1"), false).expect("applied");
    fixture.try_apply("b", &with("2"), false).expect("applied");
    let live = fixture.live.clone().expect("live");
    assert_eq!(live["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(2));
    assert_eq!(live["metadata"]["finalizers"], json!(["x.dev/1", "x.dev/2"]));
}

#[test]
fn kubectl_may_take_over_what_its_annotation_says_it_applied() {
    let mut fixture = Fixture::new();
    let mut made = object(json!({"size": "1", "count": 1}));
    made["metadata"]["annotations"] = json!({
        "kubectl.kubernetes.io/last-applied-configuration":
            json!({"apiVersion": V, "kind": "X", "metadata": {"name": "x"}, "spec": {"size": "1"}}).to_string(),
    });
    fixture.write("kubectl-client-side-apply", made);
    assert_eq!(
        fixture.conflicts("kubectl", json!({"count": 2, "size": "2"})),
        ["conflict with \"kubectl-client-side-apply\" using x.dev/v1: .spec.count"]
    );
    fixture.apply("kubectl", json!({"size": "2"}));
    assert_eq!(fixture.spec(), &json!({"size": "2", "count": 1}));
    let last = fixture.live.as_ref().expect("live")["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].clone();
    assert!(last.as_str().expect("text").contains("\"size\":\"2\""));
}
