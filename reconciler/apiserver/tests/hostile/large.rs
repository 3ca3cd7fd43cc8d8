//! Inputs that are harmful by their size or depth, too large to keep as files.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Ask, BOATS, CRDS, Fixture};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The maximum size of a body.
const BODY: usize = 3 << 20;
/// The number of fields of one object and of items of its lists: with several times as many it would be too
/// large to be stored.
const MANY: usize = 5_000;

fn code(fixture: &mut Fixture, method: Method, path: &str, kind: &str, body: impl Into<Vec<u8>>) -> u16 {
    fixture.begin();
    let reply = fixture.ask(Ask::new(method, path).body(kind, body)).expect("a request");
    fixture.end();
    reply.code
}

#[test]
fn what_nests_without_end_is_refused() {
    let fixture = &mut Fixture::new();
    for (open, close) in
        [("[", "]"), ("{\"a\":", "}"), ("{\"a\":[", "]}"), ("- ", ""), ("? ", ""), ("[", ""), ("{a: ", "")]
    {
        for deep in [100, 130, 1_000, 100_000] {
            let nested = format!("{}1{}", open.repeat(deep), close.repeat(deep));
            let inside = format!(
                r#"{{"apiVersion":"toys.example/v1","kind":"Boat","metadata":{{"name":"x"}},"spec":{{"harbour":"a","tags":{nested}}}}}"#
            );
            for kind in [JSON, YAML] {
                code(fixture, Method::POST, BOATS, kind, nested.as_bytes());
                code(fixture, Method::POST, BOATS, kind, inside.as_bytes());
            }
            let ada = format!("{BOATS}/ada");
            code(
                fixture,
                Method::PATCH,
                &ada,
                "application/merge-patch+json",
                format!(r#"{{"spec":{nested}}}"#),
            );
            code(fixture, Method::PATCH, &ada, "application/json-patch+json", nested.as_bytes());
            code(
                fixture,
                Method::PATCH,
                &format!("{ada}?fieldManager=a"),
                "application/apply-patch+yaml",
                inside,
            );
            let schema = format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{nested}}}"#
            );
            code(fixture, Method::POST, CRDS, JSON, schema);
        }
    }
    assert!(code(fixture, Method::GET, &format!("{BOATS}/ada"), "", "") == 200, "it still answers");
}

/// An object that nests deeper than the parser reads would be stored for good: no request could read it, nor the next start.
#[test]
fn the_deepest_object_that_is_stored_can_be_read() {
    let fixture = &mut Fixture::new();
    for deep in 100..130 {
        let fields = format!("{}{{}}{}", "{\"f:a\":".repeat(deep), "}".repeat(deep));
        let map = format!(
            r#"{{"metadata":{{"name":"deep-{deep}","managedFields":[{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}]}}}}"#
        );
        let made = code(fixture, Method::POST, MAPS, YAML, map);
        let (path, patch) = (format!("{MAPS}/deep-{deep}"), r#"{"data":{"a":"b"}}"#);
        let patched = code(fixture, Method::PATCH, &path, "application/merge-patch+json", patch);
        assert!(matches!((made, patched), (201, 200) | (400 | 422, 404)), "{deep}: {made}, {patched}");
    }
}

#[test]
fn a_patch_that_copies_over_and_over_is_refused_before_it_has_grown() {
    let fixture = &mut Fixture::new();
    let mut patch = vec![json!({"op": "add", "path": "/spec/tags", "value": {"x": "x".repeat(1000)}})];
    patch.extend((0..60).map(|at| json!({"op": "copy", "from": "/spec", "path": format!("/spec/y{at}")})));
    let kind = "application/json-patch+json";
    let sent = Value::from(patch).to_string();
    assert_eq!(code(fixture, Method::PATCH, &format!("{BOATS}/ada"), kind, sent), 422);
    // The maximum number of operations, each of a small value.
    let many: Value =
        (0..10_000).map(|_| json!({"op": "copy", "from": "/spec/oars", "path": "/spec/oars"})).collect();
    assert_eq!(code(fixture, Method::PATCH, &format!("{BOATS}/ada"), kind, many.to_string()), 200);
}

#[test]
fn yaml_that_refers_to_itself_over_and_over_is_refused() {
    let fixture = &mut Fixture::new();
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for at in 1..40 {
        let refers = format!("*a{},", at - 1).repeat(10);
        text.push_str(&format!("a{at}: &a{at} [{}]\n", refers.trim_end_matches(',')));
    }
    assert_eq!(code(fixture, Method::POST, MAPS, YAML, text), 400);
    let wide = format!("a: &a {{{}}}\nb: [{}]\n", "k: v, ", "*a,".repeat(300_000));
    let refused = code(fixture, Method::POST, MAPS, YAML, wide);
    assert!((400..500).contains(&refused), "{refused}");
}

/// The path of each duplicate field repeats the names that lead to it.
#[test]
fn fields_that_repeat_below_a_long_name_are_refused_in_bounded_room() {
    let fixture = &mut Fixture::new();
    let long = "x".repeat(BODY / 2);
    let repeated = format!("{{{}\"a\":1}}", "\"a\":1,".repeat(200));
    let strict = format!("{MAPS}?fieldValidation=Strict");
    for path in [MAPS, strict.as_str()] {
        let refused = code(fixture, Method::POST, path, JSON, format!("{{\"{long}\":{repeated}}}"));
        assert!((400..500).contains(&refused), "{refused}");
        let refused = code(fixture, Method::POST, path, YAML, format!("? {long}\n: {repeated}\n"));
        assert_eq!(refused, 400);
    }
}

#[test]
fn the_largest_bodies_that_are_taken_are_answered() {
    let fixture = &mut Fixture::new();
    let fill = |unit: &str| unit.repeat(BODY / unit.len());
    let boat = |tags: &str| {
        format!(
            r#"{{"apiVersion":"toys.example/v1","kind":"Boat","metadata":{{"name":"big"}},"spec":{{"harbour":"a",{tags}}}}}"#
        )
    };
    for body in [
        fill("["),
        fill("{\"a\":"),
        fill("a: &a\n"),
        fill("- "),
        fill("\u{feff}"),
        fill("\\ud800"),
        fill("%"),
        fill(" "),
        fill("\n"),
        format!("[{}0]", "0,".repeat(BODY / 2 - 2)),
        format!("[{}{{}}]", "{},".repeat(BODY / 3 - 2)),
        boat(&format!("\"crew\":[{}{{\"name\":\"z\"}}]", "{\"name\":\"a\"},".repeat(200_000))),
        boat(&format!("\"unknown\":[{}0]", "0,".repeat(1_500_000))),
    ] {
        for kind in [JSON, YAML] {
            let answered = code(fixture, Method::POST, BOATS, kind, &body.as_bytes()[..body.len().min(BODY)]);
            assert!((400..500).contains(&answered), "{answered}: {}", &body[..40]);
        }
    }
    let over = vec![b' '; BODY + 1];
    assert_eq!(code(fixture, Method::POST, BOATS, JSON, over), 413);
}

#[test]
fn many_members_and_items_are_merged_and_applied_in_bounded_time() {
    let fixture = &mut Fixture::new();
    let crew: Vec<Value> = (0..MANY).map(|at| json!({"name": format!("n{at}"), "role": "r"})).collect();
    let tags: serde_json::Map<String, Value> = (0..MANY).map(|at| (format!("t{at}"), "v".into())).collect();
    let boat = json!({"apiVersion": "toys.example/v1", "kind": "Boat", "metadata": {"name": "many"},
        "spec": {"harbour": "kiel", "crew": crew, "tags": tags}})
    .to_string();
    let many = format!("{BOATS}/many");
    for (manager, expected) in [("a", 201), ("b", 200)] {
        let path = format!("{many}?fieldManager={manager}");
        let applied = code(fixture, Method::PATCH, &path, "application/apply-patch+yaml", boat.as_bytes());
        assert_eq!(applied, expected);
    }
}

#[test]
fn many_finalizers_are_patched_in_bounded_time_also_of_what_is_being_deleted() {
    let fixture = &mut Fixture::new();
    let map = json!({"metadata": {"name": "held", "finalizers": ["a.b/c"]}});
    assert_eq!(code(fixture, Method::POST, MAPS, JSON, map.to_string()), 201);
    let held = format!("{MAPS}/held");
    let more = |letter: &str| {
        let list: Vec<String> = (0..4 * MANY).map(|at| format!("a.b/{letter}{at}")).collect();
        json!({"metadata": {"finalizers": list}}).to_string()
    };
    let kind = "application/strategic-merge-patch+json";
    assert_eq!(code(fixture, Method::PATCH, &held, kind, more("x")), 200);
    assert_eq!(code(fixture, Method::PATCH, &held, kind, more("y")), 200);
    assert_eq!(code(fixture, Method::DELETE, &held, JSON, ""), 200);
    assert_eq!(code(fixture, Method::PATCH, &held, kind, more("z")), 422, "it is being deleted");
}

#[test]
fn many_owners_that_all_control_are_refused_in_bounded_room() {
    let fixture = &mut Fixture::new();
    let owner = |at: usize| json!({"apiVersion": "v1", "kind": "X", "name": "a", "uid": at.to_string(), "controller": true});
    let owners: Value = (0..2 * MANY).map(owner).collect();
    let map = json!({"metadata": {"name": "owned", "ownerReferences": owners}});
    assert_eq!(code(fixture, Method::POST, MAPS, JSON, map.to_string()), 422);
}

#[test]
fn values_that_double_in_rules_are_refused_before_they_have_grown() {
    let fixture = &mut Fixture::new();
    let seeds = ["'xxxxxxxxxxxxxxxx'", "b'xxxxxxxxxxxxxxxx'", "[1, 2, 3, 4, 5, 6, 7, 8]"];
    for seed in seeds {
        let mut variables = vec![json!({"name": "v0", "expression": seed})];
        for at in 1..60 {
            let before = at - 1;
            let expression = format!("variables.v{before} + variables.v{before}");
            variables.push(json!({"name": format!("v{at}"), "expression": expression}));
        }
        let policy = json!({"spec": {"variables": variables, "matchConditions": null,
            "validations": [{"expression": "variables.v59.size() > 0"}]}});
        let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/calm";
        fixture.begin_anew();
        code(fixture, Method::PATCH, path, "application/merge-patch+json", policy.to_string());
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        assert_eq!(code(fixture, Method::POST, MAPS, JSON, map.to_string()), 422, "{seed}");
    }
}
