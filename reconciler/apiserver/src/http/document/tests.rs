use serde_json::json;

use super::*;

#[test]
fn the_last_of_a_name_counts_and_is_reported() {
    let read = json(br#"{"a": 1, "b": [{"c": 1}, {"c": 1, "c": {"d": 2.0}, "c": null}], "a": "x"}"#);
    let read = read.expect("it is JSON");
    assert_eq!(read.value, json!({"a": "x", "b": [{"c": 1}, {"c": null}]}));
    assert_eq!(read.twice, ["b[1].c", "b[1].c", "a"]);
    let long = "ü".repeat(MAX_PATH);
    let read = json(format!("{{\"a{long}\": {{\"b\": 1, \"b\": 2}}}}").as_bytes()).expect("it is JSON");
    assert_eq!(read.twice, [format!("a{}", "ü".repeat(MAX_PATH / 2 - 1))]);
}

#[test]
fn anything_else_is_as_serde_json_reads_it() {
    for text in ["null", "[1, -1, 18446744073709551615, 1.5, 1e3, true, \"\\u00e4\"]", "{}", " \"x\" "] {
        assert_eq!(json(text.as_bytes()).expect("JSON").value, serde_json::from_str::<Value>(text).unwrap());
    }
    for text in ["", "{", "[1,]", "1 2", "{\"a\"}"] {
        assert!(json(text.as_bytes()).is_err(), "{text}");
    }
}

fn yaml_value(text: &str) -> Value {
    yaml(text.as_bytes()).expect("it is YAML").value
}

#[test]
fn yaml_is_read_as_the_json_it_stands_for() {
    let text = "a: 1\nb: [x, 'y', ~, true, 1.5, 2.0, 2001-01-01, \"5\"]\nc: {1: z}\nd: |\n  e\n  f\n";
    let wanted = json!({"a": 1, "b": ["x", "y", null, true, 1.5, 2, "2001-01-01", "5"], "c": {"1": "z"},
        "d": "e\nf\n"});
    assert_eq!(yaml_value(text), wanted);
    assert_eq!(yaml_value(""), Value::Null);
    assert_eq!(yaml(b"a: 1\nx:\n  b: 1\n  b: 2\n").expect("it is YAML").twice, ["x.b"]);
    assert!(yaml(b"a: [b").unwrap_err().contains("line"));
}

#[test]
fn aliases_are_replaced_and_bounded() {
    let text = "base: &b {a: 1, b: 2}\nown: {<<: *b, b: 3}\nlist: [*b]";
    let base = json!({"a": 1, "b": 2});
    assert_eq!(yaml_value(text), json!({"base": base, "own": {"a": 1, "b": 3}, "list": [base]}));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..8 {
        let row = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{row}]\n");
    }
    assert!(yaml(bomb.as_bytes()).is_err());
    assert!(yaml("[".repeat(100_000).as_bytes()).is_err());
}
