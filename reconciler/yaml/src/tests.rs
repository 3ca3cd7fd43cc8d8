use serde_json::json;

use super::*;

const DEPTH: usize = 8;
const NO_TEXT: &str = "a key is neither a text nor a number";

fn value(text: &str) -> Value {
    read(text.as_bytes(), DEPTH).expect("a document").value
}

fn refused(text: &str) -> String {
    read(text.as_bytes(), DEPTH).expect_err("it is refused").to_string()
}

#[test]
fn plain_scalars_are_null_booleans_numbers_or_texts() {
    let wanted = json!([
        null,
        null,
        null,
        true,
        false,
        true,
        1,
        -1,
        644,
        420,
        255,
        5,
        1000,
        1.5,
        1e3,
        1e20,
        "-",
        ".nan",
        "inf",
        "1e999",
        "2001-01-01",
        "0x",
        "_",
        "_1",
        "-_1",
        "+_0x1",
        0.5,
        -0.5,
        "-9223372036854775809.5x"
    ]);
    let text = "[~, null, Null, yes, Off, y, 1, -1, 0644, 0o644, 0xff, 0b101, 1_000, 1.5, 1e3, 100000000000000000000, \"-\", \
                .nan, inf, 1e999, 2001-01-01, 0x, _, _1, -_1, +_0x1, .5, -.5, \
                -9223372036854775809.5x]";
    assert_eq!(value(text), wanted);
    assert_eq!(value("[18446744073709551615, -9223372036854775808]"), json!([u64::MAX, i64::MIN]));
    assert_eq!(
        value("a: 'yes'\nb: |\n  1\nc: >-\n  x\n  y\nd:\n"),
        json!({"a": "yes", "b": "1\n", "c": "x y", "d": null})
    );
}

#[test]
fn tags_say_what_a_scalar_is() {
    let text = "[!!str 5, !!int \"5\", !!null x, !!binary aGk=, !own 7, !own \"7\"]";
    assert_eq!(value(text), json!(["5", 5, null, "hi", 7, "7"]));
    assert!(refused("!!binary '?'").contains("no base64"));
    assert!(refused("!!binary /w==").contains("no UTF-8 text"));
}

#[test]
fn keys_stay_as_they_are_spelled() {
    assert_eq!(
        value("{1: a, yes: b, 0x1: c, \"null\": d}"),
        json!({"1": "a", "yes": "b", "0x1": "c", "null": "d"})
    );
    for text in ["~: a", "{[a]: b}", "{{a: b}: c}", "- &a [x]\n- *a : b\n"] {
        assert_eq!(refused(text), format!("{NO_TEXT} at line {}", text.lines().count()), "{text}");
    }
    assert_eq!(value("- &a x\n- *a : b\n"), json!(["x", {"x": "b"}]));
    assert_eq!(value("- &a 7\n- *a : b\n"), json!([7, {"7": "b"}]));
    assert_eq!(refused("- &a yes\n- *a : b\n"), format!("{NO_TEXT} at line 2"));
}

#[test]
fn the_last_of_a_key_counts_and_is_reported() {
    let read = read(b"a: 1\nb:\n- c: 1\n- c: 1\n  c: {d: 1}\na: x\n", DEPTH).expect("a document");
    assert_eq!(read.value, json!({"a": "x", "b": [{"c": 1}, {"c": {"d": 1}}]}));
    assert_eq!(read.twice, ["b[1].c", "a"]);
}

#[test]
fn own_members_count_before_merged_ones_and_those_of_the_first_mapping_before_others() {
    let text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {x: 0, <<: [*a, *b]}\nd: {<<: *b, z: 0}\n";
    let wanted = json!({"a": {"x": 1, "y": 1}, "b": {"y": 2, "z": 2}, "c": {"x": 0, "y": 1, "z": 2}, "d": {"y": 2, "z": 0}});
    assert_eq!(value(text), wanted);
    assert_eq!(value("{'<<': 1}"), json!({"<<": 1}));
    assert!(refused("<<: 1").contains("merge key"));
    assert!(refused("<<: [1]").contains("merge key"));
}

#[test]
fn a_text_without_a_document_is_null_and_one_with_two_is_refused() {
    for text in ["", "---\n", "# nothing\n", "\u{feff}"] {
        assert_eq!(value(text), Value::Null, "{text}");
    }
    assert_eq!(value("---\na: 1\n...\n"), json!({"a": 1}));
    assert_eq!(refused("a: 1\n---\nb: 2\n"), "a second document begins at line 2");
    assert!(refused("a: [b").contains("line"));
    assert!(matches!(read(b"\xff", DEPTH), Err(Error::Encoding)));
}

#[test]
fn depth_number_and_size_of_values_have_limits() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read(nested(DEPTH).as_bytes(), DEPTH).is_ok());
    assert!(refused(&nested(DEPTH + 1)).contains("nested too deep"));
    assert!(refused("a: &a [[[[x]]]]\nb: [[[[*a]]]]\n").contains("nested too deep"));
    assert!(read(b"&a [*a]", DEPTH).is_err());
    let many = format!("[{}]", "x,".repeat(MAX_NODES));
    assert!(refused(&many).contains("too large"));
    let large = format!("a: &a {}\nb: [{}]\n", "x".repeat(MAX_BYTES / 8), "*a, ".repeat(8));
    assert!(refused(&large).contains("too large"));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..6 {
        let row = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{row}]\n");
    }
    assert!(refused(&bomb).contains("too large"));
    // Only a key after a question mark may be that long.
    let twice = format!("? {}\n: {{{}}}\n", "k".repeat(MAX_BYTES / 64), "a: 1, ".repeat(MAX_TWICE));
    assert!(refused(&twice).contains("too large"));
}

#[test]
fn an_ordered_document_is_printed_in_the_order_of_its_text() {
    let text = "b: 1\na: {d: [x, {z: ~, y: 1e3}], \"c\\n\": 'no'}\nb: 2\n<<: [{e: 1, a: 2}, {0: 1, e: 3}]\n";
    let read = read_ordered(text.as_bytes(), DEPTH).expect("a document");
    let wanted = r#"{"b":2,"a":{"d":["x",{"z":null,"y":1000.0}],"c\n":"no"},"e":1,"0":1}"#;
    assert_eq!(read.to_string(), wanted);
    assert_eq!(Value::from(read), value(text));
    assert_eq!(read_ordered(b"", DEPTH).expect("empty"), Ordered::Scalar(Value::Null));
}
