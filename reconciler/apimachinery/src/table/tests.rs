use serde_json::{Value, json};

use super::age::human_duration;
use super::*;

fn now() -> Timestamp {
    "2026-11-20T12:00:00Z".parse().expect("a time")
}

fn cells(columns: &Columns, object: &Value) -> Vec<Value> {
    columns.row(object, IncludeObject::None, now())["cells"].as_array().expect("cells").clone()
}

fn names(columns: &Columns) -> Vec<String> {
    columns.0.iter().map(|c| c.name.clone()).collect()
}

#[test]
fn ages_are_as_kubectl_prints_them() {
    let cases = [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_100, "3h5m"),
        (28_800, "8h"),
        (172_799, "47h"),
        (172_800, "2d"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (252_288_000, "8y"),
        (i64::MAX, ""),
    ];
    for (seconds, expected) in cases {
        let shown = human_duration(seconds);
        assert!(expected.is_empty() || shown == expected, "{seconds}: {shown} is not {expected}");
    }
}

#[test]
fn paths_find_the_first_value() {
    let object = json!({
        "spec": {"size": "4Gi", "list": [1, 2, 3], "a.b": {"c": true}},
        "metadata": {"labels": {"x.dev/tier": "web"}},
        "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True", "n": 3}]},
    });
    let first =
        |path: &str| JsonPath::parse(path).expect(path).first(&object).cloned().unwrap_or(Value::Null);
    assert_eq!(first(".spec.size"), "4Gi");
    assert_eq!(first("{.spec.size}"), "4Gi");
    assert_eq!(first("$.spec.list[0]"), 1);
    assert_eq!(first(".spec.list[-1]"), 3);
    assert_eq!(first(".spec.list[9]"), Value::Null);
    assert_eq!(first(".spec.list[*]"), 1);
    assert_eq!(first(".spec['a.b'].c"), true);
    assert_eq!(first(".spec.a\\.b.c"), true);
    assert_eq!(first(".metadata.labels['x\\.dev/tier']"), "web");
    assert_eq!(first(".metadata.labels.x\\.dev/tier"), "web");
    assert_eq!(first(".status.conditions[?(@.type==\"Ready\")].status"), "True");
    assert_eq!(first(".status.conditions[?( @.type == 'Ready' )].status"), "True");
    assert_eq!(first(".status.conditions[?(@.type!='Ready')].status"), "False");
    assert_eq!(first(".status.conditions[?(@.n==3)].type"), "Ready");
    assert_eq!(first(".status.nothing.at.all"), Value::Null);
    assert_eq!(first(".status.conditions[?(@.type==\"Nope\")].status"), Value::Null);
}

#[test]
fn hostile_paths_are_refused() {
    for bad in [
        "..size",
        ".a[",
        ".a[x]",
        ".a['b",
        ".a[?(@.b==)]",
        ".a[?(@.b=='c'",
        ".a[?(1==1)]",
        ".a]b[",
        ".a[?(@.b[?(@.c)])]",
        ".a[99999999999999999999]",
    ] {
        assert!(JsonPath::parse(bad).is_err(), "{bad}");
    }
    assert!(JsonPath::parse(&".a".repeat(1_000)).is_err());
    assert!(JsonPath::parse(&"x".repeat(10_000)).is_err());
    assert!(JsonPath::parse("").expect("the whole").first(&json!(1)).is_some());
}

#[test]
fn a_custom_resource_shows_its_printer_columns() {
    let column = |name: &str, ty: &str, path: &str| json!({"name": name, "type": ty, "jsonPath": path});
    let version = json!({"additionalPrinterColumns": [
        column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
        column("CPUs", "integer", ".spec.cpus"), column("Load", "number", ".status.load"),
        column("On", "boolean", ".spec.on"), column("Any", "string", ".spec.cpus"), column("Map", "string", ".spec.map"),
        column("Since", "date", ".status.since"), column("Bad", "integer", ".spec.on"), column("Broken", "string", "..x"),
        {"name": "Wide", "type": "string", "jsonPath": ".spec.map.a", "priority": 1, "description": "d"},
    ]});
    let columns = Columns::of_crd_version(&version);
    let object = json!({"metadata": {"name": "x"}, "spec": {"cpus": 4, "on": true, "map": {"a": "b"}},
        "status": {"load": 0.5, "since": "2026-11-20T11:00:00Z", "conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(
        cells(&columns, &object),
        [
            json!("x"),
            json!("True"),
            json!(4),
            json!(0.5),
            json!(true),
            json!("4"),
            json!("{\"a\":\"b\"}"),
            json!("60m"),
            Value::Null,
            Value::Null,
            json!("b"),
        ]
    );
    let definition = columns.definitions()[10].clone();
    assert_eq!(
        definition,
        json!({"name": "Wide", "type": "string", "format": "", "description": "d", "priority": 1})
    );
    assert_eq!(cells(&columns, &json!({})).len(), 11);
}

#[test]
fn without_printer_columns_there_are_name_and_age() {
    let columns = Columns::of_crd_version(&json!({}));
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-11-20T11:58:30Z"}});
    assert_eq!(names(&columns), ["Name", "Age"]);
    assert_eq!(cells(&columns, &object), [json!("x"), json!("90s")]);
    assert_eq!(cells(&columns, &json!({"metadata": {"creationTimestamp": "rubbish"}}))[1], "<invalid>");
    assert_eq!(cells(&columns, &json!({}))[1], "<unknown>");
}

#[test]
fn rows_carry_as_much_of_the_object_as_asked() {
    let columns = Columns::name_and_age();
    let object = json!({"kind": "X", "metadata": {"name": "x"}, "spec": {"a": 1}});
    let with = |include| columns.row(&object, include, now())["object"].clone();
    assert_eq!(with(IncludeObject::Object), object);
    assert_eq!(with(IncludeObject::None), Value::Null);
    assert_eq!(
        with(IncludeObject::Metadata),
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "x"}})
    );
    let head = columns.head(&json!({"resourceVersion": "7", "other": 1}));
    assert_eq!((&head["kind"], &head["metadata"]), (&json!("Table"), &json!({"resourceVersion": "7"})));
    assert_eq!(head["columnDefinitions"].as_array().map(Vec::len), Some(2));
    assert_eq!(IncludeObject::parse(""), IncludeObject::Metadata);
}

#[test]
fn a_watch_says_its_columns_once() {
    let columns = Columns::name_and_age();
    let object = json!({"metadata": {"name": "x", "resourceVersion": "9"}});
    let first = columns.event(&object, IncludeObject::Metadata, now(), true);
    assert_eq!(first["columnDefinitions"].as_array().map(Vec::len), Some(2));
    assert_eq!(first["metadata"]["resourceVersion"], "9");
    let second = columns.event(&object, IncludeObject::Metadata, now(), false);
    assert_eq!(second["columnDefinitions"], Value::Null);
    assert_eq!(second["rows"].as_array().map(Vec::len), Some(1));
}

#[test]
fn built_in_kinds_have_their_own_columns() {
    let secret = json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "", "b": ""}});
    assert_eq!(
        cells(&Columns::of_builtin("", "Secret"), &secret)[..3],
        [json!("s"), json!("Opaque"), json!(2)]
    );
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "VM", "name": "web"}, "type": "Normal",
        "reason": "Started", "message": "up\n", "lastTimestamp": "2026-11-20T11:59:50Z", "count": 3});
    let columns = Columns::of_builtin("", "Event");
    assert_eq!(names(&columns)[..4], ["Last Seen", "Type", "Reason", "Object"]);
    assert_eq!(
        cells(&columns, &event),
        [
            json!("10s"),
            json!("Normal"),
            json!("Started"),
            json!("vm/web"),
            json!(""),
            json!("up"),
            json!("<unknown>"),
            json!(3),
            json!("e")
        ]
    );
    for (group, kind, expected) in [
        ("", "ConfigMap", "Name Data Age"),
        ("", "Namespace", "Name Status Age"),
        ("", "ServiceAccount", "Name Secrets Age"),
        ("coordination.k8s.io", "Lease", "Name Holder Age"),
        ("apiextensions.k8s.io", "CustomResourceDefinition", "Name Created At"),
        ("rbac.authorization.k8s.io", "RoleBinding", "Name Role Age Subjects"),
        ("", "Whatever", "Name Age"),
    ] {
        assert_eq!(names(&Columns::of_builtin(group, kind)).join(" "), expected);
        cells(&Columns::of_builtin(group, kind), &json!({"metadata": 1, "subjects": 2, "data": []}));
    }
}
