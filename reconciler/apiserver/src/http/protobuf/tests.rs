use serde_json::json;

use super::*;

/// The number of values that the bodies here may have.
const MOST: usize = 100;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    out.extend_from_slice(content);
    out
}

fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
    let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &types), field(2, raw)].concat()
}

#[test]
fn a_config_map_reads_as_its_json() {
    let metadata = [field(1, b"x"), field(8, b"")].concat();
    let entry = [field(1, b"a"), field(2, b"b")].concat();
    let mut raw = [field(1, &metadata), field(2, &entry)].concat();
    raw.extend_from_slice(&[4 << 3, 1]);
    assert_eq!(
        decode(&body("ConfigMap", &raw), MOST),
        Ok(json!({"metadata": {"name": "x"}, "data": {"a": "b"}, "immutable": true,
            "apiVersion": "v1", "kind": "ConfigMap"}))
    );
}

fn check(reader: &Reader<'_>, field: &str, node: &Node) {
    let names = reader.names(field).unwrap_or_else(|| panic!("{}: no message {field}", reader.kind));
    for name in names.into_iter().filter(|name| *name != "-") {
        let of = if name == "metadata" { Some(&object_meta().root) } else { node.member(name) };
        let of = of.unwrap_or_else(|| panic!("{}: no type of {field}.{name}", reader.kind));
        let inner = of.items.as_deref().unwrap_or(of);
        if inner.ty == Some(NodeType::Object) && inner.additional_schema().is_none() {
            check(reader, name, inner);
        }
    }
}

#[test]
fn every_field_with_a_number_has_a_type_and_every_message_has_fields() {
    for (kind, _, _) in MESSAGES.iter().filter(|(_, field, _)| field.is_empty()) {
        let (group, plain) = kind.split_once('/').unwrap_or(("", kind));
        let groups = [group, "coordination.k8s.io", "rbac.authorization.k8s.io"];
        let reviews = ["authentication.k8s.io", "authorization.k8s.io"];
        let schema = groups.into_iter().chain(reviews).find_map(|group| builtin_schema(group, plain));
        check(
            &Reader { kind, left: &Cell::new(0) },
            "",
            &schema.unwrap_or_else(|| panic!("{kind}: no schema")).root,
        );
    }
}

#[test]
fn what_is_cut_short_or_unknown_is_refused() {
    let whole = body("ConfigMap", &field(1, &field(1, b"x")));
    for length in 5..whole.len() {
        assert!(decode(&whole[..length], MOST).ok().is_none_or(|object| object["metadata"]["name"] != "x"));
    }
    assert_eq!(decode(&body("Pod", b""), MOST), Err(Undecoded::Unknown));
    let endless = b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    assert_eq!(decode(endless, MOST), Err(Undecoded::Unknown));
}

#[test]
fn a_body_of_more_values_than_allowed_is_refused_before_they_are_built() {
    let raw = field(2, &field(1, b"a")).repeat(20);
    assert!(decode(&body("ConfigMap", &raw), 20).is_ok());
    assert_eq!(decode(&body("ConfigMap", &raw), 19), Err(Undecoded::TooManyValues));
}
