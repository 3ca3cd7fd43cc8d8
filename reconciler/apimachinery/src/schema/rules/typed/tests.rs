use serde_json::json;

use super::*;
use crate::schema::StructuralSchema;
use crate::schema::expression::{Expression, on_big_stack};

/// Returns whether the result may be a condition, or the error.
fn reported(rule: &str) -> Result<bool, String> {
    let schema = StructuralSchema::parse(&json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "s": {"type": "string"}, "a-b": {"type": "string"}, "for": {"type": "string"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
    let schema = schema.expect("a schema");
    let expression = on_big_stack(|| Expression::compile(rule, &["self"])).expect("it parses");
    expression.type_of(&[("self", type_of(&schema.root))]).map(|ty| ty.may_be_bool())
}

#[test]
fn a_misspelt_field_is_refused_and_a_result_has_a_type() {
    for (rule, wanted) in [
        ("self.n <= 8", Ok(true)),
        ("self.n + 1", Ok(false)),
        ("has(self.s) ? self.s : 'x'", Ok(false)),
        ("self.l.all(x, x.a.startsWith('a'))", Ok(true)),
        ("self.l.map(x, x.a + 'b')", Ok(true)),
        ("self.m['a'] == 1 && self.m.a == 2", Ok(true)),
        ("self.any.whatever.there == 1", Ok(true)),
        ("self.a__dash__b == 'x'", Ok(true)),
        ("self.for == self.__for__", Ok(true)),
        ("self.metadata.name == 'a'", Ok(true)),
        ("self.l[0].a", Ok(false)),
        ("self.none == 1", Err("compilation failed: undefined field 'none'")),
        ("self.l.exists(x, x.none == 1)", Err("compilation failed: undefined field 'none'")),
        ("self.n.a == 1", Err("compilation failed: a value without fields has no 'a'")),
    ] {
        assert_eq!(reported(rule), wanted.map_err(str::to_owned), "{rule}");
    }
}

#[test]
fn rules_find_a_property_by_each_of_its_names() {
    let rules = [
        "self.for.a == 1",
        "self.__for__.b == 2",
        "self.x__dash__y.a == 3",
        "self.x__underscores__dash__underscores__y.a == 4",
        "has(self.__for__) && !has(self.none)",
    ];
    let part =
        || json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    let schema = StructuralSchema::parse(&json!({"type": "object",
        "x-kubernetes-validations": rules.map(|rule| json!({"rule": rule})),
        "properties": {"for": part(), "x-y": part(), "x__dash__y": part(), "none": part()}}));
    let object = json!({"for": {"a": 1, "b": 2}, "x-y": {"a": 3}, "x__dash__y": {"a": 4}});
    let errors = schema.expect("a schema").validate_cel(&object, None);
    assert!(errors.is_empty(), "{errors:?}");
}
