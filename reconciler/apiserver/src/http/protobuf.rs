//! Decoder of Kubernetes' protobuf bodies: Go clients send built-in kinds this way and do not fall back to
//! JSON.
//!
//! A body is `k8s\0`, then a `runtime.Unknown` with apiVersion, kind and the object's own message. The tables
//! hold the field numbers of Kubernetes' generated.proto files; other fields are skipped, as protobuf
//! requires. Responses are always JSON, which those clients accept.

use base64::Engine as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde_json::{Map, Value};

/// The maximum nesting of messages in the kinds below.
const MAX_DEPTH: usize = 16;
const MAGIC: &[u8] = b"k8s\0";

/// A field: its number, its JSON name, its type.
type Field = (u64, &'static str, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    /// Base64 in JSON.
    Bytes,
    Number,
    Flag,
    /// `metav1.Time` and `MicroTime`.
    Time {
        micros: bool,
    },
    Message(&'static [Field]),
    Texts,
    Messages(&'static [Field]),
    TextMap,
    BytesMap,
}
use Type::{Bytes, BytesMap, Flag, Message, Messages, Number, Text, TextMap, Texts, Time};

const TIME: Type = Time { micros: false };
const MICROS: Type = Time { micros: true };

const OWNER: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Flag),
    (7, "blockOwnerDeletion", Flag),
];
const META: &[Field] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", TIME),
    (9, "deletionTimestamp", TIME),
    (10, "deletionGracePeriodSeconds", Number),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
const METADATA: Field = (1, "metadata", Message(META));
const REFERENCE: &[Field] = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];
const SECRET: &[Field] =
    &[METADATA, (2, "data", BytesMap), (3, "type", Text), (4, "stringData", TextMap), (5, "immutable", Flag)];
const CONFIG_MAP: &[Field] =
    &[METADATA, (2, "data", TextMap), (3, "binaryData", BytesMap), (4, "immutable", Flag)];
const NAMESPACE: &[Field] = &[
    METADATA,
    (2, "spec", Message(&[(1, "finalizers", Texts)])),
    (3, "status", Message(&[(1, "phase", Text)])),
];
const SERVICE_ACCOUNT: &[Field] = &[
    METADATA,
    (2, "secrets", Messages(REFERENCE)),
    (3, "imagePullSecrets", Messages(&[(1, "name", Text)])),
    (4, "automountServiceAccountToken", Flag),
];
const EVENT: &[Field] = &[
    METADATA,
    (2, "involvedObject", Message(REFERENCE)),
    (3, "reason", Text),
    (4, "message", Text),
    (5, "source", Message(&[(1, "component", Text), (2, "host", Text)])),
    (6, "firstTimestamp", TIME),
    (7, "lastTimestamp", TIME),
    (8, "count", Number),
    (9, "type", Text),
    (10, "eventTime", MICROS),
    (11, "series", Message(SERIES)),
    (12, "action", Text),
    (13, "related", Message(REFERENCE)),
    (14, "reportingComponent", Text),
    (15, "reportingInstance", Text),
];
const SERIES: &[Field] = &[(1, "count", Number), (2, "lastObservedTime", MICROS)];
const NEW_EVENT: &[Field] = &[
    METADATA,
    (2, "eventTime", MICROS),
    (3, "series", Message(SERIES)),
    (4, "reportingController", Text),
    (5, "reportingInstance", Text),
    (6, "action", Text),
    (7, "reason", Text),
    (8, "regarding", Message(REFERENCE)),
    (9, "related", Message(REFERENCE)),
    (10, "note", Text),
    (11, "type", Text),
    (12, "deprecatedSource", Message(&[(1, "component", Text), (2, "host", Text)])),
    (13, "deprecatedFirstTimestamp", TIME),
    (14, "deprecatedLastTimestamp", TIME),
    (15, "deprecatedCount", Number),
];
const LEASE: &[Field] = &[
    METADATA,
    (
        2,
        "spec",
        Message(&[
            (1, "holderIdentity", Text),
            (2, "leaseDurationSeconds", Number),
            (3, "acquireTime", MICROS),
            (4, "renewTime", MICROS),
            (5, "leaseTransitions", Number),
        ]),
    ),
];
const ROLE: &[Field] = &[
    METADATA,
    (
        2,
        "rules",
        Messages(&[
            (1, "verbs", Texts),
            (2, "apiGroups", Texts),
            (3, "resources", Texts),
            (4, "resourceNames", Texts),
            (5, "nonResourceURLs", Texts),
        ]),
    ),
    (3, "aggregationRule", Message(&[(1, "clusterRoleSelectors", Messages(SELECTOR))])),
];
const SELECTOR: &[Field] = &[
    (1, "matchLabels", TextMap),
    (2, "matchExpressions", Messages(&[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)])),
];
const BINDING: &[Field] = &[
    METADATA,
    (
        2,
        "subjects",
        Messages(&[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)]),
    ),
    (3, "roleRef", Message(&[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)])),
];
const WHO: &[Field] = &[METADATA];
const RESOURCE: Field = (
    1,
    "resourceAttributes",
    Message(&[
        (1, "namespace", Text),
        (2, "verb", Text),
        (3, "group", Text),
        (4, "version", Text),
        (5, "resource", Text),
        (6, "subresource", Text),
        (7, "name", Text),
    ]),
);
const PATH: Field = (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)]));
const MAY: &[Field] = &[METADATA, (2, "spec", Message(&[RESOURCE, PATH]))];
const MAY_ANOTHER: &[Field] = &[
    METADATA,
    (2, "spec", Message(&[RESOURCE, PATH, (3, "user", Text), (4, "groups", Texts), (6, "uid", Text)])),
];
const WHOSE: &[Field] = &[METADATA, (2, "spec", Message(&[(1, "token", Text), (2, "audiences", Texts)]))];
const RULES: &[Field] = &[METADATA, (2, "spec", Message(&[(1, "namespace", Text)]))];
const TOKEN: &[Field] = &[
    METADATA,
    (
        2,
        "spec",
        Message(&[
            (1, "audiences", Texts),
            (
                3,
                "boundObjectRef",
                Message(&[(1, "kind", Text), (2, "apiVersion", Text), (3, "name", Text), (4, "uid", Text)]),
            ),
            (4, "expirationSeconds", Number),
        ]),
    ),
];
const DELETE: &[Field] = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Flag),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
const UNKNOWN: &[Field] =
    &[(1, "type", Message(&[(1, "apiVersion", Text), (2, "kind", Text)])), (2, "raw", Bytes)];

fn message(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    Some(match (group, kind) {
        ("", "Secret") => SECRET,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Namespace") => NAMESPACE,
        ("", "ServiceAccount") => SERVICE_ACCOUNT,
        ("", "Event") => EVENT,
        ("events.k8s.io", "Event") => NEW_EVENT,
        ("coordination.k8s.io", "Lease") => LEASE,
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => ROLE,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => BINDING,
        ("authentication.k8s.io", "SelfSubjectReview") => WHO,
        ("authentication.k8s.io", "TokenRequest") => TOKEN,
        ("authentication.k8s.io", "TokenReview") => WHOSE,
        ("authorization.k8s.io", "SelfSubjectAccessReview") => MAY,
        ("authorization.k8s.io", "SubjectAccessReview" | "LocalSubjectAccessReview") => MAY_ANOTHER,
        ("authorization.k8s.io", "SelfSubjectRulesReview") => RULES,
        (_, "DeleteOptions") => DELETE,
        _ => return None,
    })
}

/// Decodes the object in a protobuf body; `None` if it is not one, or of a kind that is not decoded from
/// protobuf.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let unknown = read_message(body.strip_prefix(MAGIC)?, UNKNOWN, 0)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (api_version, kind) = (text(&unknown["type"]["apiVersion"])?, text(&unknown["type"]["kind"])?);
    // An empty message omits `raw`.
    let raw = text(&unknown["raw"]).unwrap_or_default();
    let raw = base64::engine::general_purpose::STANDARD.decode(raw).ok()?;
    let mut object = read_message(&raw, message(&api_version, &kind)?, 0)?;
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    Some(object)
}

enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed-width numbers and groups, which none of the kinds has.
    Skipped,
}

fn next<'a>(at: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let (number, wire) = decode_key(at).ok()?;
    let wire = match wire {
        WireType::Varint => Wire::Varint(decode_varint(at).ok()?),
        WireType::LengthDelimited => {
            let length = decode_varint(at).ok()?;
            let (taken, rest) = at.split_at_checked(usize::try_from(length).ok()?)?;
            *at = rest;
            Wire::Bytes(taken)
        }
        other => {
            skip_field(other, number, at, DecodeContext::default()).ok()?;
            Wire::Skipped
        }
    };
    Some((number.into(), wire))
}

fn read_message(mut at: &[u8], fields: &[Field], depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut object = Map::new();
    while !at.is_empty() {
        let (number, wire) = next(&mut at)?;
        let Some((_, name, kind)) = fields.iter().find(|(n, _, _)| *n == number) else { continue };
        match (kind, wire) {
            (Texts | Messages(_), Wire::Bytes(bytes)) => {
                let item = match kind {
                    Messages(fields) => read_message(bytes, fields, depth + 1)?,
                    _ => read_text(bytes)?,
                };
                let list = object.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(item);
            }
            (TextMap | BytesMap, Wire::Bytes(bytes)) => {
                let (key, value) = read_entry(bytes, matches!(kind, BytesMap))?;
                let map = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()?.insert(key, value);
            }
            (_, wire) => {
                if let Some(value) = read_single(*kind, wire, depth)? {
                    object.insert((*name).to_owned(), value);
                }
            }
        }
    }
    Some(Value::Object(object))
}

/// Returns `Some(None)` for a value that JSON omits.
fn read_single(kind: Type, wire: Wire<'_>, depth: usize) -> Option<Option<Value>> {
    Some(match (kind, wire) {
        (Text, Wire::Bytes(bytes)) => Some(read_text(bytes)?).filter(|text| text != ""),
        (Bytes, Wire::Bytes(bytes)) => Some(encode(bytes)),
        (Number, Wire::Varint(value)) => Some(value.cast_signed().into()),
        (Flag, Wire::Varint(value)) => Some((value != 0).into()),
        (Message(fields), Wire::Bytes(bytes)) => Some(read_message(bytes, fields, depth + 1)?),
        (Time { micros }, Wire::Bytes(bytes)) => read_time(bytes, micros, depth)?,
        (_, Wire::Skipped) => None,
        _ => return None,
    })
}

fn read_text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn encode(bytes: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(bytes).into()
}

fn read_entry(mut at: &[u8], binary: bool) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), Value::from(""));
    while !at.is_empty() {
        match next(&mut at)? {
            (1, Wire::Bytes(bytes)) => key = std::str::from_utf8(bytes).ok()?.to_owned(),
            (2, Wire::Bytes(bytes)) if binary => value = encode(bytes),
            (2, Wire::Bytes(bytes)) => value = read_text(bytes)?,
            _ => {}
        }
    }
    Some((key, value))
}

/// Reads a time. An empty message is Go's zero time, which is null in JSON.
fn read_time(bytes: &[u8], micros: bool, depth: usize) -> Option<Option<Value>> {
    let time = read_message(bytes, &[(1, "seconds", Number), (2, "nanos", Number)], depth + 1)?;
    let Some(seconds) = time["seconds"].as_i64() else { return Some(None) };
    let nanos = i32::try_from(time["nanos"].as_i64().unwrap_or(0)).ok()?;
    let at = jiff::Timestamp::new(seconds, nanos).ok()?;
    let text = if micros {
        at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    } else {
        berth_apimachinery::time::seconds(at)
    };
    Some(Some(text.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            decode(&body("ConfigMap", &raw)),
            Some(json!({"metadata": {"name": "x"}, "data": {"a": "b"}, "immutable": true,
                "apiVersion": "v1", "kind": "ConfigMap"}))
        );
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_refused() {
        let whole = body("ConfigMap", &field(1, &field(1, b"x")));
        for length in 5..whole.len() {
            assert!(decode(&whole[..length]).is_none_or(|object| object["metadata"]["name"] != "x"));
        }
        assert_eq!(decode(&body("Pod", b"")), None);
        assert_eq!(decode(b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }
}
