//! Tests of both codecs, against cty's bytes and against each other.

use proptest::prelude::*;

use super::{json, msgpack};
use crate::{
    number::Number,
    ty::Type,
    value::{Refinement, Value},
};

fn number(text: &str) -> Value {
    Value::Number(text.parse().unwrap())
}

/// The bytes that cty writes.
#[test]
fn the_bytes_are_cty_s() {
    let dynamic = Value::Dynamic(Box::new((Type::String, "a".into())));
    for (value, ty, bytes) in [
        (Value::Null, Type::String, &b"\xc0"[..]),
        (Value::UNKNOWN, Type::String, b"\xd4\x00\x00"),
        (Value::Bool(true), Type::Bool, b"\xc3"),
        (number("1"), Type::Number, b"\x01"),
        (number("-1"), Type::Number, b"\xff"),
        (number("0.5"), Type::Number, b"\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00"),
        (number("0.1"), Type::Number, b"\xa30.1"),
        ("a".into(), Type::String, b"\xa1a"),
        (Value::List(vec!["a".into()]), Type::set(Type::String), b"\x91\xa1a"),
        (Value::object([("k", Value::Bool(false))]), Type::map(Type::Bool), b"\x81\xa1k\xc2"),
        (dynamic, Type::Dynamic, b"\x92\xc4\x08\"string\"\xa1a"),
    ] {
        assert_eq!(msgpack::encode(&value, &ty).unwrap(), bytes, "{value:?}");
        assert_eq!(msgpack::decode(bytes, &ty).unwrap(), value);
    }
}

#[test]
fn a_refined_unknown_says_what_is_known() {
    let refined = |known| Value::Unknown(Some(Box::new(known)));
    let not_null = refined(Refinement { not_null: true, ..Refinement::default() });
    // Extension type 12, three bytes: {1: false}.
    let bytes = b"\xc7\x03\x0c\x81\x01\xc2";
    assert_eq!(msgpack::encode(&not_null, &Type::String).unwrap(), bytes);
    assert_eq!(msgpack::decode(bytes, &Type::String).unwrap(), not_null);

    let prefix = Refinement { not_null: true, prefix: Some("http://".to_owned()), ..Refinement::default() };
    let bounds = Refinement {
        number_min: Some(("0.1".parse().unwrap(), true)),
        number_max: Some((Number::from(7), false)),
        length_min: Some(1),
        length_max: Some(u64::MAX),
        ..Refinement::default()
    };
    for known in [prefix, bounds] {
        let value = refined(known);
        let bytes = msgpack::encode(&value, &Type::Dynamic).unwrap();
        assert_eq!(msgpack::decode(&bytes, &Type::String).unwrap(), value);
    }
    let long = refined(Refinement { prefix: Some("x".repeat(2000)), ..Refinement::default() });
    let bytes = msgpack::encode(&long, &Type::String).unwrap();
    assert_eq!(msgpack::decode(&bytes, &Type::String).unwrap(), Value::UNKNOWN, "too long: less is known");
}

#[test]
fn an_extension_of_a_later_terraform_is_unknown() {
    assert_eq!(msgpack::decode(b"\xd5\x2a\x01\x02", &Type::Bool).unwrap(), Value::UNKNOWN);
    // For a refinement with an unknown key, the constraints before that key are kept.
    let known = msgpack::decode(b"\xc7\x05\x0c\x82\x01\xc2\x63\xc0", &Type::Bool).unwrap();
    assert_eq!(known, Value::Unknown(Some(Box::new(Refinement { not_null: true, ..Refinement::default() }))));
}

#[test]
fn errors_name_the_attribute() {
    let disk = Type::object([("size", Type::Number)]);
    let ty = Type::object([("disks", Type::map(Type::list(disk)))]);
    let wrong = |size: Value| {
        let disk = Value::object([("size", size)]);
        Value::object([("disks", Value::object([("a b", Value::List(vec![Value::Null, disk]))]))])
    };
    let error = msgpack::encode(&wrong("big".into()), &ty).unwrap_err();
    assert_eq!(error.to_string(), r#"disks["a b"][1].size: expected number, found a string"#);
    let loose = Type::object([("disks", Type::map(Type::list(Type::object([("size", Type::String)]))))]);
    let bytes = msgpack::encode(&wrong("big".into()), &loose).unwrap();
    let error = msgpack::decode(&bytes, &ty).unwrap_err();
    assert!(error.to_string().starts_with(r#"disks["a b"][1].size: not a decimal number"#), "{error}");
    let bytes = msgpack::encode(&Value::from("true"), &Type::String).unwrap();
    let error = msgpack::decode(&bytes, &Type::Bool).unwrap_err();
    assert_eq!(error.to_string(), "expected bool, found a string");
    let error = json::decode(br#"{"disks":{"a b":[null,{"size":"big"}]}}"#, &ty).unwrap_err();
    assert_eq!(error.to_string(), r#"disks["a b"][1].size: expected number, found a string"#);
    let error = msgpack::encode(&Value::object([("disk", Value::Null)]), &ty).unwrap_err();
    assert_eq!(error.to_string(), "disk: no such attribute in the schema");
}

#[test]
fn a_stored_state_may_have_other_attributes_than_the_schema() {
    let ty = Type::object([("name", Type::String), ("new", Type::Bool)]);
    let stored = br#"{"name": "a", "gone": {"deep": [1e999]}}"#;
    let expected = Value::object([("name", "a".into()), ("new", Value::Null)]);
    assert_eq!(json::decode_state(stored, &ty).unwrap(), expected);
    assert!(json::decode(stored, &ty).is_err());
}

#[test]
fn big_numbers_are_exact_in_both_forms() {
    for digits in ["123456789012345678901234567890.123456789", "18446744073709551615", "0.1", "-1e-40"] {
        let value = number(digits);
        let bytes = msgpack::encode(&value, &Type::Number).unwrap();
        assert_eq!(msgpack::decode(&bytes, &Type::Number).unwrap(), value);
        let text = json::encode(&value, &Type::Number).unwrap();
        assert_eq!(json::decode(text.as_bytes(), &Type::Number).unwrap(), value);
        assert_eq!(json::decode(format!("\"{digits}\"").as_bytes(), &Type::Number).unwrap(), value);
    }
    assert!(msgpack::decode(b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", &Type::Number).is_err(), "infinity");
}

#[test]
fn what_claims_to_be_long_or_nests_without_end_is_refused() {
    // Four billion elements, in five bytes.
    assert!(msgpack::decode(b"\xdd\xff\xff\xff\xff", &Type::list(Type::Bool)).is_err());
    assert!(msgpack::decode(b"\xdb\xff\xff\xff\xff", &Type::String).is_err());
    assert!(msgpack::decode(b"\xc9\xff\xff\xff\xff\x0c", &Type::String).is_err());
    let level = b"\x92\xc4\x09\"dynamic\"";
    let nested: Vec<u8> = level.iter().copied().cycle().take(level.len() * 1_000_000).collect();
    assert!(msgpack::decode(&nested, &Type::Dynamic).is_err());
    let nested = format!("{}{}", r#"{"type":"dynamic","value":"#.repeat(100_000), "}".repeat(100_000));
    assert!(json::decode(nested.as_bytes(), &Type::Dynamic).is_err());
    assert!("[\"list\",".repeat(100_000).parse::<Type>().is_err());
    assert!(msgpack::decode(b"\xc3\xc3", &Type::Bool).is_err(), "bytes after the value");
}

#[test]
fn a_value_for_any_type_brings_one() {
    let value = Value::object([("a", Value::List(vec![1.into(), "x".into(), Value::Null]))]);
    let bytes = msgpack::encode(&value, &Type::Dynamic).unwrap();
    let Value::Dynamic(read) = msgpack::decode(&bytes, &Type::Dynamic).unwrap() else { panic!("no type") };
    assert_eq!(read.0.to_json().to_string(), r#"["object",{"a":["tuple",["number","string","dynamic"]]}]"#);
    assert_eq!(read.1, value);
    assert_eq!(Value::Dynamic(read).get("a").index(1).as_str(), Some("x"));
}

#[test]
fn types_have_cty_s_json() {
    let ty = Type::object([
        ("t", Type::Tuple(vec![Type::Bool, Type::Dynamic])),
        ("m", Type::map(Type::set(Type::Number))),
        ("l", Type::list(Type::String)),
    ]);
    let json =
        r#"["object",{"l":["list","string"],"m":["map",["set","number"]],"t":["tuple",["bool","dynamic"]]}]"#;
    assert_eq!(ty.to_json().to_string(), json);
    assert_eq!(json.parse::<Type>().unwrap(), ty);
    assert_eq!(
        r#"["object",{"a":"bool"},["a"]]"#.parse::<Type>().unwrap(),
        Type::object([("a", Type::Bool)])
    );
    for wrong in ["\"text\"", "[\"list\"]", "[\"map\",\"bool\",1]", "{}", "1", ""] {
        assert!(wrong.parse::<Type>().is_err(), "{wrong}");
    }
}

fn types() -> impl Strategy<Value = Type> {
    let leaf = prop_oneof![Just(Type::Bool), Just(Type::Number), Just(Type::String)];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(Type::list),
            inner.clone().prop_map(Type::set),
            inner.clone().prop_map(Type::map),
            prop::collection::btree_map("[a-z]{1,3}", inner.clone(), 0..4).prop_map(Type::Object),
            prop::collection::vec(inner, 0..4).prop_map(Type::Tuple),
        ]
    })
}

/// Values of a type; with `unknowns`, unknown values may be anywhere inside.
fn values(ty: &Type, unknowns: bool) -> BoxedStrategy<Value> {
    let known = match ty {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Number => prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "-?[1-9][0-9]{0,40}\\.[0-9]{1,40}".prop_map(|text| number(&text)),
        ]
        .boxed(),
        Type::String | Type::Dynamic => ".{0,8}".prop_map(Value::from).boxed(),
        Type::List(element) | Type::Set(element) => {
            prop::collection::vec(values(element, unknowns), 0..4).prop_map(Value::List).boxed()
        }
        Type::Map(element) => prop::collection::btree_map(".{0,4}", values(element, unknowns), 0..4)
            .prop_map(Value::Map)
            .boxed(),
        Type::Tuple(elements) => {
            let elements: Vec<_> = elements.iter().map(|element| values(element, unknowns)).collect();
            elements.prop_map(Value::List).boxed()
        }
        Type::Object(attributes) => {
            let attributes: Vec<_> =
                attributes.iter().map(|(name, ty)| (Just(name.clone()), values(ty, unknowns))).collect();
            attributes.prop_map(|entries| Value::Map(entries.into_iter().collect())).boxed()
        }
    };
    if unknowns {
        let refined = any::<(Option<String>, Option<u64>)>().prop_map(|(prefix, length_min)| {
            Value::Unknown(Some(Box::new(Refinement {
                not_null: true,
                prefix,
                length_min,
                ..Refinement::default()
            })))
        });
        prop_oneof![8 => known, 1 => Just(Value::Null), 1 => Just(Value::UNKNOWN), 1 => refined].boxed()
    } else {
        prop_oneof![8 => known, 1 => Just(Value::Null)].boxed()
    }
}

fn typed(unknowns: bool) -> impl Strategy<Value = (Type, Value)> {
    types().prop_flat_map(move |ty| {
        let values = values(&ty, unknowns);
        (Just(ty), values)
    })
}

proptest! {
    #[test]
    fn msgpack_gives_back_what_it_was_given((ty, value) in typed(true)) {
        let bytes = msgpack::encode(&value, &ty).unwrap();
        prop_assert_eq!(msgpack::decode(&bytes, &ty).unwrap(), value);
    }

    #[test]
    fn json_gives_back_what_it_was_given((ty, value) in typed(false)) {
        let text = json::encode(&value, &ty).unwrap();
        prop_assert_eq!(json::decode(text.as_bytes(), &ty).unwrap(), value);
    }

    #[test]
    fn any_type_gives_back_what_it_was_given((ty, value) in typed(true)) {
        let dynamic = Value::Dynamic(Box::new((ty, value)));
        let bytes = msgpack::encode(&dynamic, &Type::Dynamic).unwrap();
        let read = msgpack::decode(&bytes, &Type::Dynamic).unwrap();
        prop_assert_eq!(msgpack::encode(&read, &Type::Dynamic).unwrap(), bytes);
    }

    #[test]
    fn a_type_survives_its_json(ty in types()) {
        prop_assert_eq!(ty.to_json().to_string().parse::<Type>().unwrap(), ty);
    }

    #[test]
    fn no_bytes_make_it_panic(ty in types(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = msgpack::decode(&bytes, &ty);
        let _ = msgpack::decode(&bytes, &Type::Dynamic);
        let _ = json::decode(&bytes, &ty);
    }
}
