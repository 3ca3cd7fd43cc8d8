//! Tests of each rule in isolation. The tests that drive Terraform check the rules against its core.

use super::*;
use crate::{path::AttributePath, ty::Type};

fn schema() -> Schema {
    let disk = vec![
        Attribute::string("name").optional().computed(),
        Attribute::number("gib").default(10),
        Attribute::string("serial").computed().keeps_state(),
        Attribute::string("state").computed(),
    ];
    Schema::new(vec![
        Attribute::string("id").computed().keeps_state(),
        Attribute::string("status").computed(),
        Attribute::string("name").required(),
        Attribute::string("region").optional().computed(),
        Attribute::string("power").default("On"),
        Attribute::string("token").optional().write_only(),
        Attribute::nested("disks", Nesting::List, disk.clone()).optional().keyed_by("name"),
        Attribute::nested("slots", Nesting::List, disk.clone()).optional(),
        Attribute::nested("nics", Nesting::Map, disk.clone()).optional(),
        Attribute::nested("rules", Nesting::Set, disk.clone()).optional(),
        Attribute::nested("boot", Nesting::Single, disk).optional(),
    ])
    .blocks(vec![NestedBlock::single("timeouts", vec![Attribute::string("create").optional()])])
}

fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::object(entries)
}

fn named(name: &str) -> Value {
    object([("name", name.into())])
}

fn disk(name: &str, serial: &str) -> Value {
    object([
        ("name", name.into()),
        ("gib", 10.into()),
        ("serial", serial.into()),
        ("state", "attached".into()),
    ])
}

/// The state after the create of `config`, with additional attributes.
fn state<const N: usize>(more: [(&str, Value); N]) -> Value {
    let mut state = object([
        ("id", "uid-1".into()),
        ("status", "running".into()),
        ("name", "web".into()),
        ("region", "eu".into()),
        ("power", "On".into()),
    ]);
    for (name, value) in more {
        state.set(name, value);
    }
    state
}

/// Terraform's proposal: the configuration, with attributes that are computed and not configured taken from the state.
fn proposed(state: &Value, config: &Value) -> Value {
    let mut proposed = config.clone();
    for name in ["id", "status", "region", "power"] {
        if config.get(name).is_null() {
            proposed.set(name, state.get(name).clone());
        }
    }
    proposed
}

fn plan(state: &Value, config: &Value) -> Value {
    mark_computed_unknown(&schema(), state, proposed(state, config), config)
}

#[test]
fn a_create_knows_what_is_configured_and_the_defaults() {
    let planned = plan(&Value::Null, &named("web"));
    assert_eq!(planned.get("name").as_str(), Some("web"));
    assert_eq!(planned.get("power").as_str(), Some("On"));
    for computed in ["id", "status", "region"] {
        assert!(planned.get(computed).is_unknown(), "{computed}");
    }
    for absent in ["disks", "boot", "timeouts"] {
        assert!(planned.get(absent).is_null(), "{absent}");
    }
}

#[test]
fn what_does_not_change_is_planned_as_it_is() {
    let state = state([]);
    let planned = plan(&state, &named("web"));
    assert!(same(&schema().ty(), &planned, &state), "{planned:?}");
}

#[test]
fn a_change_makes_computed_values_unknown_except_those_that_keep() {
    let planned = plan(&state([]), &named("www"));
    assert_eq!(planned.get("id").as_str(), Some("uid-1"));
    assert_eq!(planned.get("power").as_str(), Some("On"));
    assert!(planned.get("status").is_unknown() && planned.get("region").is_unknown());
}

#[test]
fn a_default_that_comes_back_is_a_change() {
    let planned = plan(&state([("power", "Off".into())]), &named("web"));
    assert_eq!(planned.get("power").as_str(), Some("On"));
    assert!(planned.get("status").is_unknown());
}

#[test]
fn a_write_only_value_is_null_and_no_change() {
    let mut config = named("web");
    config.set("token", "secret");
    let state = state([]);
    let planned = plan(&state, &config);
    assert!(planned.get("token").is_null());
    assert!(same(&schema().ty(), &planned, &state));
}

#[test]
fn a_configured_value_that_means_the_same_stays_when_the_provider_says_so() {
    let state = state([("region", "eu-1".into())]);
    let mut config = named("web");
    config.set("region", "EU-1");
    let mut proposed = proposed(&state, &config);
    proposed.set("region", "eu-1");
    let planned = mark_computed_unknown(&schema(), &state, proposed, &config);
    assert!(same(&schema().ty(), &planned, &state));
}

#[test]
fn a_keyed_element_keeps_its_values_wherever_it_moves() {
    let state = state([("disks", Value::List(vec![disk("root", "s1"), disk("data", "s2")]))]);
    let mut config = named("web");
    config.set("disks", Value::List(vec![named("data"), named("new"), named("root")]));
    let mut proposed = proposed(&state, &config);
    // Matched by index, as in Terraform.
    let moved = |name: &str, from: &Value| {
        let mut element = from.clone();
        element.set("name", name);
        element
    };
    let before = state.get("disks");
    proposed.set(
        "disks",
        Value::List(vec![moved("data", before.index(0)), moved("new", before.index(1)), named("root")]),
    );
    let planned = mark_computed_unknown(&schema(), &state, proposed, &config);
    let disks = planned.get("disks");
    assert_eq!(disks.index(0).get("serial").as_str(), Some("s2"));
    assert!(disks.index(1).get("serial").is_unknown());
    assert_eq!(disks.index(2).get("serial").as_str(), Some("s1"));
    assert_eq!(disks.index(1).get("gib").as_i64(), Some(10));
    assert!(disks.index(0).get("state").is_unknown());
}

#[test]
fn keyed_elements_that_only_change_places_are_known_but_for_what_does_not_keep() {
    let state = state([("disks", Value::List(vec![disk("a", "s1"), disk("b", "s2")]))]);
    let mut config = named("web");
    config.set("disks", Value::List(vec![named("b"), named("a")]));
    let planned = plan(&state, &config);
    let serials: Vec<_> =
        planned.get("disks").elements().iter().map(|disk| disk.get("serial").as_str()).collect();
    assert_eq!(serials, [Some("s2"), Some("s1")]);
}

#[test]
fn an_element_without_a_configured_key_is_known_by_its_place() {
    let state = state([("disks", Value::List(vec![disk("disk0", "s1")]))]);
    let mut config = named("www");
    config.set("disks", Value::List(vec![object([("gib", 10.into())])]));
    let planned = plan(&state, &config);
    assert_eq!(planned.get("disks").index(0).get("serial").as_str(), Some("s1"));
}

#[test]
fn lists_maps_and_single_objects_are_followed_by_place_key_and_name() {
    let state = state([
        ("slots", Value::List(vec![disk("a", "s1")])),
        ("nics", object([("eth0", disk("b", "s2"))])),
        ("boot", disk("c", "s3")),
    ]);
    let mut config = named("www");
    config.set("slots", Value::List(vec![named("other")]));
    config.set("nics", object([("eth0", named("b")), ("eth1", named("b"))]));
    config.set("boot", named("c"));
    let planned = plan(&state, &config);
    assert_eq!(planned.get("slots").index(0).get("serial").as_str(), Some("s1"));
    assert_eq!(planned.get("nics").get("eth0").get("serial").as_str(), Some("s2"));
    assert!(planned.get("nics").get("eth1").get("serial").is_unknown());
    assert_eq!(planned.get("boot").get("serial").as_str(), Some("s3"));
}

#[test]
fn elements_of_a_set_are_known_by_what_is_configured_in_them() {
    let state = state([("rules", Value::List(vec![disk("a", "s1"), disk("b", "s2")]))]);
    let mut config = named("www");
    config.set("rules", Value::List(vec![named("b"), named("c")]));
    let mut proposed = proposed(&state, &config);
    proposed.set("rules", Value::List(vec![named("c"), disk("b", "s2")]));
    let planned = mark_computed_unknown(&schema(), &state, proposed, &config);
    let rules = planned.get("rules");
    assert_eq!(rules.elements().len(), 2);
    assert!(rules.index(0).get("serial").is_unknown());
    assert_eq!(rules.index(1).get("serial").as_str(), Some("s2"));
}

#[test]
fn unknown_elements_of_a_set_stay_as_many_as_they_are() {
    let unknown = || object([("name", Value::UNKNOWN)]);
    let mut config = named("web");
    config.set("rules", Value::List(vec![unknown(), unknown()]));
    let planned = plan(&Value::Null, &config);
    assert_eq!(planned.get("rules").elements().len(), 2);
    assert!(planned.at(&AttributePath::root("rules").index(1).attribute("name")).is_unknown());
}

#[test]
fn what_is_unknown_as_a_whole_stays_unknown() {
    let mut config = named("web");
    config.set("disks", Value::UNKNOWN);
    config.set("region", Value::UNKNOWN);
    let planned = plan(&state([]), &config);
    assert_eq!(*planned.get("disks"), Value::UNKNOWN);
    assert_eq!(*planned.get("region"), Value::UNKNOWN);
    assert!(planned.get("status").is_unknown(), "something may change");
}

#[test]
fn a_block_is_planned_as_configured() {
    let mut config = named("web");
    config.set("timeouts", object([("create", "5m".into())]));
    let planned = plan(&state([]), &config);
    assert_eq!(planned.get("timeouts").get("create").as_str(), Some("5m"));
}

#[test]
fn a_destroy_plans_nothing() {
    assert_eq!(mark_computed_unknown(&schema(), &state([]), Value::Null, &Value::Null), Value::Null);
}

#[test]
fn sets_are_equal_in_any_order_and_lists_are_not() {
    let list = |elements: &[&str]| Value::from(elements.to_vec());
    let (ab, ba, aab) = (list(&["a", "b"]), list(&["b", "a"]), list(&["a", "a", "b"]));
    assert!(same(&Type::set(Type::String), &ab, &ba));
    assert!(!same(&Type::list(Type::String), &ab, &ba));
    assert!(!same(&Type::set(Type::String), &ab, &aab));
    let object = Type::object([("a", Type::Bool), ("b", Type::Bool)]);
    assert!(same(
        &object,
        &Value::object([("a", Value::Bool(true))]),
        &Value::object([("a", Value::Bool(true)), ("b", Value::Null)])
    ));
}
