mod cel;

use serde_json::{Value, json};

use super::{ErrorKind, FieldError, MAX_DEPTH, StructuralSchema, too_deep};

fn schema(properties: Value) -> StructuralSchema {
    StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": properties,
    }}}))
    .expect("structural")
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "x.dev/v1", "kind": "X", "metadata": {"name": "x"}, "spec": spec})
}

fn shown(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

impl StructuralSchema {
    fn validate_all(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = self.validate(object, old);
        let of_rules = self.check_rules(&errors, object, old);
        errors.extend(of_rules);
        errors
    }
}

fn refusals(schema: &Value) -> Vec<String> {
    shown(&StructuralSchema::parse(schema).expect_err("not structural"))
}

#[test]
fn what_is_not_structural_is_refused() {
    assert_eq!(
        refusals(&json!({"properties": {}})),
        ["openAPIV3Schema.type: Required value: must not be empty"]
    );
    assert_eq!(
        refusals(&json!({"type": "object", "properties": {"spec": {"properties": {}}}})),
        ["openAPIV3Schema.properties[spec].type: Required value: must not be empty"]
    );
    assert_eq!(
        refusals(&json!({"type": "object", "properties": {"l": {"type": "array"}}})),
        ["openAPIV3Schema.properties[l].items: Required value: must be specified"]
    );
    assert_eq!(
        refusals(
            &json!({"type": "object", "properties": {"x": {"type": "string", "anyOf": [{"type": "string"}]}}})
        ),
        [
            "openAPIV3Schema.properties[x].anyOf[0].type: Forbidden: must not be set below allOf, anyOf, oneOf or not"
        ]
    );
    assert_eq!(
        refusals(&json!({"type": "object", "additionalProperties": {"type": "string"}})),
        ["openAPIV3Schema.additionalProperties: Forbidden: must not be used at the root"]
    );
    assert_eq!(
        refusals(
            &json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
            "items": {"type": "object"}}}})
        ),
        ["openAPIV3Schema.properties[l].x-kubernetes-list-map-keys: Required value: must not be empty if \
          x-kubernetes-list-type is map"]
    );
    assert_eq!(refusals(&json!([])), ["openAPIV3Schema: Invalid value: []: must be an object"]);
}

#[test]
fn a_default_that_its_schema_refuses_is_refused_with_it() {
    let errors =
        refusals(&json!({"type": "object", "properties": {"n": {"type": "integer", "default": "three"}}}));
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("openAPIV3Schema.properties[n].default: Invalid value: \"string\""),
        "{errors:?}"
    );
}

#[test]
fn an_int_or_string_may_spell_out_its_types() {
    let spelled =
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    let schema = schema(json!({"port": spelled}));
    assert!(schema.validate(&object(json!({"port": 80})), None).is_empty());
    assert!(schema.validate(&object(json!({"port": "http"})), None).is_empty());
    let errors = schema.validate(&object(json!({"port": true})), None);
    assert_eq!(errors[0].kind, ErrorKind::TypeInvalid);
    assert!(errors[0].message.ends_with("must be of type integer,string: \"boolean\""), "{}", errors[0]);
}

#[test]
fn pruning_removes_what_the_schema_does_not_name() {
    let schema = schema(json!({
        "size": {"type": "string"},
        "disks": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true,
            "properties": {"spec": {"type": "object"}}},
    }));
    let mut value = object(json!({
        "size": "1Gi", "typo": 1,
        "disks": [{"name": "a"}, {"name": "b", "typo": 2}],
        "labels": {"any": "thing"},
        "free": {"x": {"y": 1}, "known": {"a": "1", "b": "2"}},
        "template": {"apiVersion": "v1", "kind": "K", "metadata": {"whatever": 1}, "spec": {"gone": 1}, "gone": 1},
    }));
    value["metadata"] = json!({"name": "x", "creationTimestamp": null, "nonsense": 1});
    let removed = schema.prune(&mut value);
    assert_eq!(
        removed,
        [
            "metadata.nonsense",
            "spec.disks[1].typo",
            "spec.free.known.b",
            "spec.template.gone",
            "spec.template.spec.gone",
            "spec.typo",
        ]
    );
    assert_eq!(value["metadata"], json!({"name": "x"}));
    assert_eq!(value["spec"]["free"], json!({"x": {"y": 1}, "known": {"a": "1"}}));
    assert_eq!(schema.prune(&mut value), Vec::<String>::new());
}

#[test]
fn defaults_fill_in_and_nulls_go() {
    let schema = schema(json!({
        "replicas": {"type": "integer", "default": 1},
        "paused": {"type": "boolean", "nullable": true, "default": false},
        "note": {"type": "string"},
        "net": {"type": "object", "default": {}, "properties": {"mtu": {"type": "integer", "default": 1500}}},
        "disks": {"type": "array", "items": {"type": "object", "properties": {"bus": {"type": "string", "default": "scsi"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "object", "properties": {
            "v": {"type": "string", "default": "x"}}}},
    }));
    let mut value = object(json!({
        "replicas": null, "paused": null, "note": null, "disks": [{}, {"bus": "ide"}], "tags": {"a": {}},
    }));
    schema.default(&mut value);
    assert_eq!(
        value["spec"],
        json!({
            "replicas": 1, "paused": null, "disks": [{"bus": "scsi"}, {"bus": "ide"}], "tags": {"a": {"v": "x"}},
            "net": {"mtu": 1500},
        })
    );
    let mut bare = json!({"metadata": {}});
    schema.default(&mut bare);
    assert_eq!(bare, json!({"metadata": {}}), "a parent without a default is not made up");
}

#[test]
fn status_defaults_too() {
    let schema =
        StructuralSchema::parse(&json!({"type": "object", "properties": {"status": {"type": "object",
        "default": {"observedGeneration": -1}, "properties": {"observedGeneration": {"type": "integer"}}}}}))
        .expect("structural");
    let mut value = json!({});
    schema.default(&mut value);
    assert_eq!(value, json!({"status": {"observedGeneration": -1}}));
}

#[test]
fn messages_are_worded_as_kubernetes_words_them() {
    let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "memory": {"type": "string", "pattern": "^[0-9]+Gi$"},
            "power": {"type": "string", "enum": ["On", "Off"]},
            "cpus": {"type": "integer", "minimum": 1, "maximum": 8},
            "share": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 0.5},
            "short": {"type": "string", "maxLength": 2},
            "long": {"type": "string", "minLength": 3},
            "list": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
            "some": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "ip": {"type": "string", "format": "ipv4"},
            "map": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}},
        },
    }}}))
    .expect("structural");
    let errors = schema.validate(
        &object(json!({
            "memory": "lots", "power": "x", "cpus": 9, "share": 0, "short": "äöü", "long": "ab", "list": ["a", "b"],
            "some": [], "ip": "x", "map": {"a": "1", "b": 2},
        })),
        None,
    );
    insta::assert_snapshot!(shown(&errors).join("\n"), @r#"
    spec.cpus: Invalid value: 9: spec.cpus in body should be less than or equal to 8
    spec.ip: Invalid value: "x": spec.ip in body must be of type ipv4: "x"
    spec.list: Too many: 2: must have at most 1 item
    spec.long: Invalid value: "ab": spec.long in body should be at least 3 chars long
    spec.map: Too many: 2: must have at most 1 item
    spec.map.b: Invalid value: "integer": spec.map.b in body must be of type string: "integer"
    spec.memory: Invalid value: "lots": spec.memory in body should match '^[0-9]+Gi$'
    spec.power: Unsupported value: "x": supported values: "On", "Off"
    spec.share: Invalid value: 0: spec.share in body should be greater than 0
    spec.short: Too long: may not be more than 2 bytes
    spec.some: Invalid value: 0: spec.some in body should have at least 1 items
    spec.name: Required value
    "#);
}

#[test]
fn lengths_count_characters_not_bytes() {
    let schema = schema(json!({"s": {"type": "string", "maxLength": 3}}));
    assert!(schema.validate(&object(json!({"s": "äöü"})), None).is_empty());
}

#[test]
fn a_whole_float_is_an_integer_and_null_is_nothing() {
    let schema = schema(json!({"n": {"type": "integer"}, "m": {"type": "string", "nullable": true}}));
    assert!(schema.validate(&object(json!({"n": 1.0, "m": null})), None).is_empty());
    let errors = schema.validate(&object(json!({"n": null})), None);
    assert_eq!(
        shown(&errors),
        ["spec.n: Invalid value: \"null\": spec.n in body must be of type integer: \"null\""]
    );
    assert_eq!(schema.validate(&object(json!({"n": 1.5})), None).len(), 1);
}

#[test]
fn combinators_hold() {
    let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "not": {"properties": {"a": {"enum": ["never"]}}, "required": ["a"]},
    }}}))
    .expect("structural");
    assert!(schema.validate(&object(json!({"a": "x"})), None).is_empty());
    assert_eq!(
        shown(&schema.validate(&object(json!({"a": "x", "b": "y"})), None)),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    let none = shown(&schema.validate(&object(json!({})), None));
    assert_eq!(
        none[0],
        "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid"
    );
    assert_eq!(none[1], "spec.a: Required value");
    assert_eq!(
        shown(&schema.validate(&object(json!({"a": "never"})), None)),
        ["<nil>: Invalid value: \"\": \"spec\" must not validate the schema (not)"]
    );
}

#[test]
fn list_maps_and_sets_are_unique() {
    let schema = schema(json!({
        "disks": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }));
    let errors = schema.validate(
        &object(json!({"disks": [{"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "a"}], "tags": ["x", "x"]})),
        None,
    );
    assert_eq!(
        shown(&errors),
        ["spec.disks[2]: Duplicate value: {\"name\":\"a\"}", "spec.tags[1]: Duplicate value: \"x\"",]
    );
}

#[test]
fn what_did_not_change_is_let_through() {
    let schema = schema(json!({"cpus": {"type": "integer", "maximum": 4}, "note": {"type": "string"}}));
    let old = object(json!({"cpus": 8}));
    assert!(schema.validate(&object(json!({"cpus": 8, "note": "n"})), Some(&old)).is_empty());
    assert_eq!(schema.validate(&object(json!({"cpus": 9})), Some(&old)).len(), 1);
}

#[test]
fn clients_can_read_the_deepest_object_in_each_answer() {
    let deep = |levels: usize| (1..levels).fold(json!([]), |of, _| json!([of]));
    assert!(!too_deep(&deep(MAX_DEPTH)) && too_deep(&deep(MAX_DEPTH + 1)));
    let table = json!({"rows": [{"object": deep(MAX_DEPTH)}]});
    assert!(serde_json::from_str::<Value>(&table.to_string()).is_ok());
    let unread = deep(MAX_DEPTH + 8).to_string();
    assert!(serde_json::from_str::<Value>(&unread).is_err(), "this is why there is a limit");
}

/// Each path repeats the names on the way to it: of a body of 3 MB they would be hundreds of gigabytes.
#[test]
fn the_report_of_removed_fields_is_bounded_and_all_of_them_are_removed() {
    let schema = schema(json!({"tags": {"type": "object", "additionalProperties": {"type": "string"}}}));
    let unknown: serde_json::Map<String, Value> =
        (0..5_000).map(|at| (format!("u{at}"), Value::Null)).collect();
    let tag = "é".repeat(20_000);
    let mut value = object(json!({"tags": {tag.as_str(): unknown}}));
    let removed = schema.prune(&mut value);
    assert!(removed.len() <= 1_000 && removed.iter().all(|path| path.len() <= 1024), "{}", removed.len());
    assert!(removed[0].starts_with("spec.tags.é"), "{}", removed[0]);
    assert_eq!(value["spec"]["tags"][&tag], json!({}));
}

#[test]
fn hostile_depth_is_an_error_and_no_overflow() {
    let schema = StructuralSchema::untyped();
    let mut value = json!({});
    for _ in 0..1_000 {
        value = json!([value]);
    }
    let mut object = json!({"spec": value});
    schema.prune(&mut object);
    schema.default(&mut object);
    assert_eq!(schema.validate(&object, None).len(), 1);
    assert!(schema.validate_cel(&object, None).is_empty());
    let mut deep = json!({"type": "object"});
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"x": deep}});
    }
    assert!(StructuralSchema::parse(&deep).is_err());
}
