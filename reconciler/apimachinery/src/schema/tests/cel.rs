//! Rules in CEL.

use super::*;

fn with_rules(spec: Value) -> StructuralSchema {
    StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("structural")
}

#[test]
fn a_rule_that_fails_is_a_field_error() {
    let schema = with_rules(json!({
        "type": "object",
        "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "message": "min may not exceed max", "fieldPath": ".min"},
            {"rule": "self.max < 100", "messageExpression": "'max is ' + string(self.max)"},
            {"rule": "self.max != 200", "reason": "FieldValueForbidden"},
        ],
    }));
    assert!(schema.validate_cel(&object(json!({"min": 1, "max": 2})), None).is_empty());
    assert_eq!(
        shown(&schema.validate_cel(&object(json!({"min": 300, "max": 200})), None)),
        [
            "spec.min: Invalid value: \"object\": min may not exceed max",
            "spec: Invalid value: \"object\": max is 200",
            "spec: Forbidden: failed rule: self.max != 200",
        ]
    );
    assert_eq!(
        shown(&schema.validate_cel(&object(json!({"max": 1})), None)),
        ["spec: Invalid value: \"object\": no such key: min evaluating rule: min may not exceed max"]
    );
}

#[test]
fn transition_rules_need_an_old_value_they_can_be_told_from() {
    let schema = with_rules(json!({
        "type": "object",
        "properties": {
            "id": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "id is immutable"}]},
            "disks": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"],
                    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
                    "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "no shrinking"}]}},
            "once": {"type": "string", "x-kubernetes-validations": [
                {"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true, "message": "starts as new"}]},
        },
    }));
    let old = object(
        json!({"id": "a", "disks": [{"name": "x", "size": 5}, {"name": "y", "size": 5}], "once": "new"}),
    );
    let new = object(
        json!({"id": "b", "disks": [{"name": "y", "size": 4}, {"name": "z", "size": 1}], "once": "other"}),
    );
    assert_eq!(
        shown(&schema.validate_cel(&new, Some(&old))),
        [
            "spec.disks[0]: Invalid value: \"object\": no shrinking",
            "spec.id: Invalid value: \"string\": id is immutable",
        ]
    );
    assert_eq!(
        shown(&schema.validate_cel(&new, None)),
        ["spec.once: Invalid value: \"string\": starts as new"]
    );
}

#[test]
fn rules_that_cannot_work_are_refused_with_the_schema() {
    let of = |rule: Value| {
        refusals(&json!({"type": "object", "properties": {"l": {"type": "array", "items": {
            "type": "string", "x-kubernetes-validations": [rule]}}}}))
    };
    let here = "openAPIV3Schema.properties[l].items.x-kubernetes-validations[0]";
    assert!(of(json!({"rule": "self +"}))[0].starts_with(&format!(
        "{here}.rule: Invalid value: \"self +\": compilation failed: ERROR: <input>:1:"
    )));
    assert!(of(json!({"rule": "self + 'x'"}))[0].ends_with(": must evaluate to a bool"));
    assert!(of(json!({"rule": "self.a == 2"}))[0].contains("a value without fields has no 'a'"));
    let message = of(json!({"rule": "true", "messageExpression": "size(self)"}));
    assert!(message[0].ends_with(": must evaluate to a string"));
    assert!(of(json!({"rule": "nothing == 1"}))[0].contains("undeclared reference to 'nothing'"));
    assert!(of(json!({"rule": "self.frobnicate()"}))[0].contains("undeclared reference to 'frobnicate'"));
    assert!(of(json!({"rule": "self == oldSelf"}))[0].contains("uncorrelatable"));
    assert!(of(json!({"rule": "true", "reason": "Because"}))[0].contains("Unsupported value"));
    assert!(of(json!({"rule": "true", "fieldPath": ".x"}))[0].contains("fieldPath"));
    assert!(of(json!({"rule": "Type{a: 1} == 1"}))[0].contains("undeclared reference"));
    assert_eq!(of(json!({"rule": " "})), [format!("{here}.rule: Required value: rule is not specified")]);
}

#[test]
fn a_whole_number_with_a_fraction_of_zero_is_one_in_rules_too() {
    let schema = with_rules(json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n + 1 == 3"}]}));
    assert_eq!(shown(&schema.validate_all(&object(json!({"n": 2.0})), None)), [""; 0]);
    assert_eq!(schema.validate_all(&object(json!({"n": 3.0})), None).len(), 1);
}

#[test]
fn quantities_and_optional_fields_are_understood() {
    let schema = with_rules(json!({
        "type": "object",
        "properties": {"mem": {"x-kubernetes-int-or-string": true}, "my-field": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "at": {"type": "string", "format": "date-time"}, "for": {"type": "string", "format": "duration"}},
        "x-kubernetes-validations": [
            {"rule": "quantity(self.mem).compareTo(quantity('1Gi')) >= 0", "message": "too little"},
            {"rule": "!has(self.my__dash__field) || self.my__dash__field == 'x'", "message": "not x"},
            {"rule": "!has(self.labels) || !('a.b/c' in self.labels) || self.labels['a.b/c'] == 'y'", "message": "not y"},
            {"rule": "!has(self.at) || self.at > timestamp('2020-01-01T00:00:00Z')", "message": "too old"},
            {"rule": "!has(self.__for__) || self.__for__ < duration('1h')", "message": "too long"},
            {"rule": "self.?my__dash__field.orValue('x') == 'x'", "message": "optional"},
            {"rule": "cel.bind(m, quantity(self.mem), m.isGreaterThan(quantity('1Mi')))", "message": "bound"},
        ],
    }));
    assert!(
        schema
            .validate_cel(
                &object(json!({"mem": "2Gi", "my-field": "x", "labels": {"a.b/c": "y"},
        "at": "2026-01-01T00:00:00Z", "for": "30m"})),
                None
            )
            .is_empty()
    );
    assert_eq!(
        shown(&schema.validate_cel(
            &object(json!({"mem": "512Ki", "my-field": "z", "labels": {"a.b/c": "z"},
        "at": "2019-01-01T00:00:00Z", "for": "90m"})),
            None
        )),
        [
            "spec: Invalid value: \"object\": too little",
            "spec: Invalid value: \"object\": not x",
            "spec: Invalid value: \"object\": not y",
            "spec: Invalid value: \"object\": too old",
            "spec: Invalid value: \"object\": too long",
            "spec: Invalid value: \"object\": optional",
            "spec: Invalid value: \"object\": bound",
        ]
    );
}

#[test]
fn a_rule_that_costs_too_much_stops() {
    let spec = json!({
        "type": "object",
        "properties": {"l": {"type": "array", "items": {"type": "integer"}}},
        "x-kubernetes-validations": [{"rule": "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))"}],
    });
    let schema = with_rules(spec);
    let short = object(json!({"l": (0..20).collect::<Vec<_>>()}));
    assert!(schema.validate_cel(&short, None).is_empty());
    let long = object(json!({"l": (0..300).collect::<Vec<_>>()}));
    let errors = schema.validate_cel(&long, None);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.contains("running out of cost budget"), "{}", errors[0]);
}

#[test]
fn rules_without_loops_on_very_many_values_stop() {
    let rules = vec![json!({"rule": "self >= 0"}); 1_000];
    let items = json!({"type": "integer", "x-kubernetes-validations": rules});
    let schema =
        with_rules(json!({"type": "object", "properties": {"l": {"type": "array", "items": items}}}));
    let of = |length: usize| schema.validate_cel(&object(json!({"l": vec![1; length]})), None);
    assert!(of(100).is_empty());
    let errors = of(200_000);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.contains("running out of cost budget"), "{}", errors[0]);
}

#[test]
fn a_value_that_some_rules_held_for_is_not_exempt_from_others() {
    let schema = with_rules(json!({
        "type": "object",
        "properties": {"n": {"type": "integer"}, "other": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n < 5"}, {"rule": "self.n >= oldSelf.n"}],
    }));
    let errors =
        |new: Value, old: Option<Value>| schema.validate_cel(&object(new), old.map(object).as_ref()).len();
    for _ in 0..2 {
        assert_eq!(errors(json!({"n": 9}), Some(json!({"n": 9}))), 0, "unchanged since before the rule");
        assert_eq!(errors(json!({"n": 9, "other": 1}), Some(json!({"n": 9}))), 1, "changed elsewhere");
        assert_eq!(errors(json!({"n": 9}), None), 1, "new");
        assert_eq!(errors(json!({"n": 4}), None), 0);
        assert_eq!(errors(json!({"n": 4}), Some(json!({"n": 3}))), 0);
        assert_eq!(errors(json!({"n": 4}), Some(json!({"n": 5}))), 1, "from another value");
    }
}

#[test]
fn rules_on_every_level_of_a_large_object_stop() {
    let leaf = json!({"type": "array", "items": {"type": "integer"}});
    let schema = (0..40).fold(leaf, |of, _| {
        json!({"type": "object", "properties": {"x": of},
            "x-kubernetes-validations": [{"rule": "size(self) == 1"}]})
    });
    let schema = with_rules(schema);
    let of = |length: usize| {
        let deep = (0..40).fold(json!(vec![1; length]), |of, _| json!({"x": of}));
        schema.validate_cel(&object(deep), None)
    };
    assert!(of(100).is_empty());
    let errors = of(200_000);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.contains("running out of cost budget"), "{}", errors[0]);
}

#[test]
fn rules_are_not_checked_where_the_schema_already_refuses() {
    let schema = with_rules(json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n > 1"}]}));
    let errors = schema.validate_all(&object(json!({"n": "x"})), None);
    assert_eq!(errors.len(), 2);
    assert!(errors[1].message.contains("some validation rules were not checked"));
    assert_eq!(schema.validate_all(&object(json!({"n": 1})), None).len(), 1);
    assert!(schema.validate_all(&object(json!({"n": 1})), Some(&object(json!({"n": 1})))).is_empty());
}

/// A schema with one property, and one rule on it.
fn ruled(name: &str, rule: &str) -> Result<StructuralSchema, Vec<String>> {
    StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {
        "type": "object", "properties": {name: {"type": "string", "maxLength": 9}},
        "x-kubernetes-validations": [{"rule": rule}],
    }}}))
    .map_err(|errors| shown(&errors))
}

#[test]
fn rules_name_fields_that_are_reserved_words_and_fields_that_are_no_identifiers() {
    let reserved = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    // Those that are not tokens of the language may also be unescaped since Kubernetes 1.32.
    let bare: Vec<_> = reserved[4..].iter().map(|word| ((*word).to_owned(), (*word).to_owned())).collect();
    let reserved = reserved.map(|word| (word.to_owned(), format!("__{word}__")));
    // Words of CEL, or of its libraries, that are not reserved.
    let free = [
        "default",
        "type",
        "map",
        "list",
        "all",
        "exists",
        "filter",
        "has",
        "size",
        "string",
        "int",
        "optional",
        "matches",
        "self",
        "oldSelf",
        "duration",
        "bool",
        "bytes",
        "double",
        "dyn",
        "uint",
        "google",
        "cel",
        "math",
        "url",
        "ip",
        "cidr",
        "quantity",
        "semver",
        "sets",
        "format",
        "lists",
        "transformMap",
        "none",
        "of",
        "value",
        "bind",
        "block",
        "e",
        "x",
        "__result__",
    ];
    let free = free.map(|word| (word.to_owned(), word.replace("__", "__underscores__")));
    let odd =
        [("a-b", "a__dash__b"), ("a.b", "a__dot__b"), ("a/b", "a__slash__b"), ("a__b", "a__underscores__b")];
    let odd = odd.map(|(name, escaped)| (name.to_owned(), escaped.to_owned()));
    for (name, escaped) in reserved.into_iter().chain(bare).chain(free).chain(odd) {
        for rule in [
            format!("!has(self.{escaped}) || self.{escaped} == 'x'"),
            format!("self.?{escaped}.orValue('x') == 'x'"),
            format!("[self].all(p, !has(p.{escaped}) || p.{escaped}.matches('x'))"),
        ] {
            let schema = ruled(&name, &rule).unwrap_or_else(|errors| panic!("{rule}: {errors:?}"));
            let errors = |value: &str| schema.check_rules(&[], &object(json!({name.clone(): value})), None);
            assert_eq!(shown(&errors("x")), Vec::<String>::new(), "{rule}");
            assert_eq!(errors("other").len(), 1, "{rule}");
        }
    }
    for (name, rule) in [("in", "self.in == 'x'"), ("a", "self.b == 'x'"), ("a-b", "self.a-b == 'x'")] {
        assert!(ruled(name, rule).is_err(), "{rule}");
    }
}

#[test]
fn keys_of_maps_and_fields_of_rules_paths_may_be_reserved_words() {
    let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {
            "labels": {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string", "maxLength": 9}},
            "tls": {"type": "object", "properties": {"default": {"type": "object", "properties": {
                "namespace": {"type": "string", "maxLength": 9}}}}},
        },
        "x-kubernetes-validations": [
            {"rule": "!has(self.labels.namespace) || self.labels.namespace == 'x'", "fieldPath": ".labels"},
            {"rule": "!has(self.labels) || !('in' in self.labels)"},
            {"rule": "self.tls.default.__namespace__ == 'x'", "fieldPath": ".tls.default.namespace"},
            {"rule": "self.tls.default.__namespace__ == 'x'", "fieldPath": "['tls']['default']['namespace']"},
        ],
    }}}))
    .unwrap_or_else(|errors| panic!("{:?}", shown(&errors)));
    let spec = |label: &str| json!({"labels": {"namespace": label}, "tls": {"default": {"namespace": "x"}}});
    assert_eq!(shown(&schema.check_rules(&[], &object(spec("x")), None)), Vec::<String>::new());
    assert_eq!(schema.check_rules(&[], &object(spec("y")), None).len(), 1);
}

#[test]
fn a_stored_rule_that_does_not_compile_refuses_the_values_that_it_is_about_and_no_others() {
    let of = |rule: &str| {
        let spec = json!({"type": "object", "properties": {
            "a": {"type": "integer", "x-kubernetes-validations": [{"rule": rule}]}, "b": {"type": "integer"},
        }});
        json!({"type": "object", "properties": {"spec": spec}})
    };
    assert!(StructuralSchema::parse(&of("self.(")).is_err(), "a new one is refused");
    let schema = StructuralSchema::stored(&of("self.(")).expect("it was accepted once");
    let errors = shown(&schema.check_rules(&[], &object(json!({"a": 1, "b": 1})), None));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("evaluating rule: self.("), "{errors:?}");
    assert_eq!(shown(&schema.check_rules(&[], &object(json!({"b": 1})), None)), Vec::<String>::new());
    let sound = StructuralSchema::stored(&of("self < 2")).expect("structural");
    assert_eq!(shown(&sound.check_rules(&[], &object(json!({"a": 1})), None)), Vec::<String>::new());
    assert_eq!(sound.check_rules(&[], &object(json!({"a": 2})), None).len(), 1, "compiled at its first use");
}
