//! Decoder of Kubernetes' protobuf bodies: Go clients send built-in kinds this way and do not fall back to
//! JSON.
//!
//! A body is `k8s\0`, then a `runtime.Unknown` with apiVersion, kind and the object's own message. The types of its
//! fields are those of the kind's schema; only their numbers are listed here. Other fields are skipped, as protobuf
//! requires. Responses are always JSON, which those clients accept.

use std::cell::Cell;

use base64::Engine as _;
use berth_apimachinery::builtin::builtin_schema;
use berth_apimachinery::schema::object_meta::object_meta;
use berth_apimachinery::schema::{Node, NodeType};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde_json::{Map, Value};

const MAGIC: &[u8] = b"k8s\0";

/// The messages of Kubernetes' generated.proto files: the kind (empty: any), the field that holds the message (empty:
/// the object), and the names of the message's fields in the order of their numbers, which begin at 1. A dash is a
/// number that is not decoded.
const MESSAGES: &[(&str, &str, &str)] = &[
    ("Secret", "", "metadata data type stringData immutable"),
    ("ConfigMap", "", "metadata data binaryData immutable"),
    ("Namespace", "", "metadata spec status"),
    ("Namespace", "spec", "finalizers"),
    ("Namespace", "status", "phase"),
    ("ServiceAccount", "", "metadata secrets imagePullSecrets automountServiceAccountToken"),
    (
        "Event",
        "",
        "metadata involvedObject reason message source firstTimestamp lastTimestamp count type eventTime series action \
         related reportingComponent reportingInstance",
    ),
    (
        "events.k8s.io/Event",
        "",
        "metadata eventTime series reportingController reportingInstance action reason regarding related note type \
         deprecatedSource deprecatedFirstTimestamp deprecatedLastTimestamp deprecatedCount",
    ),
    ("Lease", "", "metadata spec"),
    (
        "Lease",
        "spec",
        "holderIdentity leaseDurationSeconds acquireTime renewTime leaseTransitions strategy preferredHolder",
    ),
    ("Role", "", "metadata rules"),
    ("ClusterRole", "", "metadata rules aggregationRule"),
    ("RoleBinding", "", "metadata subjects roleRef"),
    ("ClusterRoleBinding", "", "metadata subjects roleRef"),
    ("SelfSubjectReview", "", "metadata"),
    ("TokenRequest", "", "metadata spec"),
    ("TokenRequest", "spec", "audiences - boundObjectRef expirationSeconds"),
    ("TokenReview", "", "metadata spec"),
    ("TokenReview", "spec", "token audiences"),
    ("SelfSubjectAccessReview", "", "metadata spec"),
    ("SelfSubjectAccessReview", "spec", "resourceAttributes nonResourceAttributes"),
    ("SubjectAccessReview", "", "metadata spec"),
    ("SubjectAccessReview", "spec", "resourceAttributes nonResourceAttributes user groups - uid"),
    ("LocalSubjectAccessReview", "", "metadata spec"),
    ("LocalSubjectAccessReview", "spec", "resourceAttributes nonResourceAttributes user groups - uid"),
    ("SelfSubjectRulesReview", "", "metadata spec"),
    ("SelfSubjectRulesReview", "spec", "namespace"),
    ("DeleteOptions", "", "gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun"),
    ("DeleteOptions", "preconditions", "uid resourceVersion"),
    (
        "",
        "metadata",
        "name generateName namespace - uid resourceVersion generation creationTimestamp deletionTimestamp \
         deletionGracePeriodSeconds labels annotations ownerReferences finalizers",
    ),
    ("", "ownerReferences", "kind - name uid apiVersion controller blockOwnerDeletion"),
    ("", "involvedObject", REFERENCE),
    ("", "regarding", REFERENCE),
    ("", "related", REFERENCE),
    ("", "secrets", REFERENCE),
    ("", "imagePullSecrets", "name"),
    ("", "source", "component host"),
    ("", "deprecatedSource", "component host"),
    ("", "series", "count lastObservedTime"),
    ("", "rules", "verbs apiGroups resources resourceNames nonResourceURLs"),
    ("", "aggregationRule", "clusterRoleSelectors"),
    ("", "clusterRoleSelectors", "matchLabels matchExpressions"),
    ("", "matchExpressions", "key operator values"),
    ("", "subjects", "kind apiGroup name namespace"),
    ("", "roleRef", "apiGroup kind name"),
    ("", "resourceAttributes", "namespace verb group version resource subresource name"),
    ("", "nonResourceAttributes", "path verb"),
    ("", "boundObjectRef", "kind apiVersion name uid"),
];
const REFERENCE: &str = "kind namespace name uid apiVersion resourceVersion fieldPath";

/// Why a body is not decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Undecoded {
    /// It is no object, or of a kind that is not decoded from protobuf.
    Unknown,
    TooManyValues,
}

/// Decodes the object in a protobuf body with at most so many fields and items: each takes two bytes at least, and much more in memory.
pub(super) fn decode(body: &[u8], most: usize) -> Result<Value, Undecoded> {
    let left = Cell::new(most);
    object(body, &left).ok_or(if left.get() == 0 { Undecoded::TooManyValues } else { Undecoded::Unknown })
}

fn object(body: &[u8], left: &Cell<usize>) -> Option<Value> {
    let (mut named, mut raw) = (None, &[][..]);
    let mut at = body.strip_prefix(MAGIC)?;
    while !at.is_empty() {
        match next(&mut at)? {
            (1, Wire::Bytes(bytes)) => named = Some(read_entry(bytes, false)?),
            // An empty message omits it.
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (api_version, kind) = named?;
    let kind = kind.as_str()?;
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let reader = Reader { kind: if group == "events.k8s.io" { "events.k8s.io/Event" } else { kind }, left };
    let schema = builtin_schema(if kind == "DeleteOptions" { "" } else { group }, kind)?;
    let mut object = reader.message(raw, "", &schema.root)?;
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

fn next<'a>(at: &mut &'a [u8]) -> Option<(usize, Wire<'a>)> {
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
    Some((usize::try_from(number).ok()?, wire))
}

/// Reads the messages of one kind.
struct Reader<'a> {
    kind: &'a str,
    /// How many more values may be decoded.
    left: &'a Cell<usize>,
}

impl Reader<'_> {
    /// Returns the names of the fields of the message in a field.
    fn names(&self, field: &str) -> Option<Vec<&'static str>> {
        let is_it = |(kind, name, _): &&(&str, &str, &str)| {
            *name == field && (*kind == self.kind || kind.is_empty() && !field.is_empty())
        };
        Some(MESSAGES.iter().find(is_it)?.2.split(' ').collect())
    }

    /// Reads the message in a field. The depth of its schema limits the recursion.
    fn message(&self, mut at: &[u8], field: &str, node: &Node) -> Option<Value> {
        let names = self.names(field)?;
        let mut object = Map::new();
        while !at.is_empty() {
            let (number, wire) = next(&mut at)?;
            self.left.set(self.left.get().checked_sub(1)?);
            let Some(name) = number.checked_sub(1).and_then(|at| names.get(at)) else { continue };
            let of = if *name == "metadata" { Some(&object_meta().root) } else { node.member(name) };
            if let Some(of) = of {
                self.field(&mut object, name, of, wire)?;
            }
        }
        Some(Value::Object(object))
    }

    fn field(&self, object: &mut Map<String, Value>, name: &str, node: &Node, wire: Wire<'_>) -> Option<()> {
        let value = match (node.ty, wire) {
            (_, Wire::Skipped) => return Some(()),
            (Some(NodeType::Integer), Wire::Varint(value)) => value.cast_signed().into(),
            (Some(NodeType::Boolean), Wire::Varint(value)) => (value != 0).into(),
            (Some(NodeType::String), Wire::Bytes(bytes)) => match node.checks.format.as_deref() {
                Some("byte") => encode(bytes),
                Some("date-time") => read_time(bytes)?,
                _ => read_text(bytes)?,
            },
            (Some(NodeType::Array), Wire::Bytes(bytes)) => {
                let of = node.items.as_deref()?;
                let is_message = of.ty == Some(NodeType::Object);
                let item = if is_message { self.message(bytes, name, of)? } else { read_text(bytes)? };
                let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(item);
                return Some(());
            }
            (Some(NodeType::Object), Wire::Bytes(bytes)) => match node.additional_schema() {
                None => self.message(bytes, name, node)?,
                Some(of) => {
                    let (key, value) = read_entry(bytes, of.checks.format.as_deref() == Some("byte"))?;
                    let map = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
                    map.as_object_mut()?.insert(key, value);
                    return Some(());
                }
            },
            _ => return None,
        };
        // JSON omits what is empty.
        if value != "" && !value.is_null() {
            object.insert(name.to_owned(), value);
        }
        Some(())
    }
}

fn read_text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn encode(bytes: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(bytes).into()
}

/// Reads a pair of texts, or of a text and bytes.
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

/// Reads a time, with the precision that every field accepts. An empty message is Go's zero time, which is null in
/// JSON.
fn read_time(mut at: &[u8]) -> Option<Value> {
    let (mut seconds, mut nanos) = (None, 0);
    while !at.is_empty() {
        match next(&mut at)? {
            (1, Wire::Varint(value)) => seconds = Some(value.cast_signed()),
            (2, Wire::Varint(value)) => nanos = i32::try_from(value.cast_signed()).ok()?,
            _ => {}
        }
    }
    let Some(seconds) = seconds else { return Some(Value::Null) };
    let time = jiff::Timestamp::new(seconds, nanos).ok()?;
    Some(time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string().into())
}

#[cfg(test)]
mod tests;
