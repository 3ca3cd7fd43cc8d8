//! Built-in objects as Go's types take them: the first member that does not fit is told in the words of its JSON library,
//! or, of what a strategic patch made, in those of the converter that puts that together.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::builtin::object_meta;
use crate::fields::builtin_schema;
use crate::meta::time::Layout;
use crate::schema::message::{go_type, json_type};
use crate::schema::{Node, NodeType};

/// Members that are `MicroTime`.
const MICRO_TIMES: [&str; 4] = ["eventTime", "lastObservedTime", "acquireTime", "renewTime"];

/// Who reads an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Json,
    /// Of values that are decoded already.
    Converter,
}

/// Reads an object that is answered and never stored; the paths of what it does not have are removed and returned.
///
/// # Errors
/// As [`well_typed`]. Assumptions: the kind is built in.
pub(crate) fn accept(group: &str, kind: &str, object: &mut Value) -> Result<Vec<String>, String> {
    let schema = builtin_schema(group, kind).ok_or("there is no such kind")?;
    crate::meta::well_formed(object, Some(kind))?;
    well_typed(kind, &schema.root, object, Reader::Json)?;
    Ok(schema.prune(object))
}

/// The refusal of a body of version `v1` that is not what it should be.
pub(crate) fn unreadable(kind: &str, why: &str) -> ApiError {
    ApiError::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"))
}

/// Whether the members of an object of a built-in kind have the types they are read with; [`crate::meta::well_formed`] tells of
/// metadata that is JSON. What is not in the schema is not looked at, nor is null, which is nothing.
///
/// # Errors
/// `json: cannot unmarshal string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32`.
pub(crate) fn well_typed(kind: &str, root: &Node, object: &Value, reader: Reader) -> Result<(), String> {
    let place = |path: &str| Place { kind, holder: kind.to_owned(), path: path.to_owned() };
    if reader == Reader::Converter {
        place("metadata").value("metadata", &object_meta().root, &object["metadata"], reader)?;
    }
    place("").members(root, object, reader)
}

fn layout(name: &str) -> Layout {
    if MICRO_TIMES.contains(&name) { Layout::Micros } else { Layout::Seconds }
}

/// Writes the times of an object as Go does, in UTC and as exactly as their kind has them.
pub(crate) fn rewrite_times(name: &str, node: &Node, value: &mut Value) {
    match value {
        Value::String(text) if node.checks.format.as_deref() == Some("date-time") => {
            if let Ok(at) = layout(name).read(&text.as_str().into()) {
                *text = layout(name).write(at);
            }
        }
        Value::Array(items) => {
            let Some(node) = node.items.as_deref() else { return };
            items.iter_mut().for_each(|item| rewrite_times(name, node, item));
        }
        Value::Object(members) => {
            for (name, value) in members {
                if let Some(node) = node.properties.get(name) {
                    rewrite_times(name, node, value);
                }
            }
        }
        _ => {}
    }
}

struct Place<'a> {
    kind: &'a str,
    /// The Go type that has the member.
    holder: String,
    /// From the root; items and keys of maps are not in it.
    path: String,
}

impl Place<'_> {
    fn members(&self, node: &Node, object: &Value, reader: Reader) -> Result<(), String> {
        let members = object.as_object().into_iter().flatten();
        members
            .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"))
            .filter_map(|(name, value)| Some((name, node.properties.get(name)?, value)))
            .try_for_each(|(name, node, value)| {
                let path = crate::schema::message::child(&self.path, name);
                Place { kind: self.kind, holder: self.holder.clone(), path }.value(name, node, value, reader)
            })
    }

    fn value(&self, name: &str, node: &Node, value: &Value, reader: Reader) -> Result<(), String> {
        let format = node.checks.format.as_deref();
        match (node.ty, value) {
            (_, Value::Null) | (None, _) => Ok(()),
            (Some(NodeType::String), value)
                if format == Some("date-time") && (value.is_string() || reader == Reader::Converter) =>
            {
                layout(name).read(value).map(|_| ())
            }
            (Some(NodeType::String), Value::String(text)) if format == Some("byte") => {
                base64(text).map_err(|why| match reader {
                    Reader::Json => why,
                    Reader::Converter => format!("error decoding from json: {why}"),
                })
            }
            (Some(NodeType::String), Value::String(_)) | (Some(NodeType::Boolean), Value::Bool(_)) => Ok(()),
            (Some(NodeType::Integer), Value::Number(number)) => match number.as_i64() {
                Some(number) if format != Some("int32") || i32::try_from(number).is_ok() => Ok(()),
                _ => Err(self.misfit(name, node, value, reader)),
            },
            (Some(NodeType::Array), Value::Array(items)) => {
                let item = node.items.as_deref();
                item.map_or(Ok(()), |node| {
                    items.iter().try_for_each(|value| self.value(name, node, value, reader))
                })
            }
            (Some(NodeType::Object), Value::Object(members)) => match node.additional_schema() {
                Some(node) => members.values().try_for_each(|value| self.value(name, node, value, reader)),
                None => {
                    let place = Place {
                        kind: self.kind,
                        holder: type_name(self.kind, name),
                        path: self.path.clone(),
                    };
                    place.members(node, value, reader)
                }
            },
            _ => Err(self.misfit(name, node, value, reader)),
        }
    }

    fn misfit(&self, name: &str, node: &Node, value: &Value, reader: Reader) -> String {
        let wanted = self.go(name, node);
        let kind = match value {
            Value::Array(_) => "slice",
            Value::Object(_) => "map",
            other => go_type(other),
        };
        match (reader, node.ty) {
            (Reader::Converter, Some(NodeType::Object)) if node.additional_schema().is_some() => {
                format!("cannot restore map from {kind}")
            }
            (Reader::Converter, Some(NodeType::Object)) => format!("cannot restore struct from: {kind}"),
            (Reader::Converter, Some(NodeType::Array)) => format!("cannot restore slice from {kind}"),
            // Go takes a whole number for a letter and a broken one for a whole, but this does not.
            (Reader::Converter, Some(NodeType::String)) if value.is_i64() => {
                format!("cannot convert int64 to {wanted}")
            }
            (Reader::Converter, Some(NodeType::Integer)) if value.is_number() => {
                format!("cannot convert {kind} to {wanted}")
            }
            (Reader::Converter, Some(NodeType::String)) => "unrecognized type: string".to_owned(),
            (Reader::Converter, _) => format!("unrecognized type: {wanted}"),
            (Reader::Json, _) => {
                let found = match value {
                    Value::Number(number) if node.ty == Some(NodeType::Integer) => format!("number {number}"),
                    other => json_type(other).to_owned(),
                };
                let (holder, path) = (&self.holder, &self.path);
                format!(
                    "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {wanted}"
                )
            }
        }
    }

    fn go(&self, name: &str, node: &Node) -> String {
        let format = node.checks.format.as_deref();
        match node.ty {
            Some(NodeType::Object) => match node.additional_schema() {
                Some(value) => format!("map[string]{}", self.go(name, value)),
                None => format!("v1.{}", type_name(self.kind, name)),
            },
            Some(NodeType::Array) => {
                format!(
                    "[]{}",
                    node.items.as_ref().map_or_else(|| "interface {}".to_owned(), |item| self.go(name, item))
                )
            }
            Some(NodeType::Integer) => format.unwrap_or("int64").to_owned(),
            Some(NodeType::Boolean) => "bool".to_owned(),
            Some(NodeType::Number) => "float64".to_owned(),
            Some(NodeType::String) if format == Some("byte") => "[]uint8".to_owned(),
            Some(NodeType::String) | None => text_type(self.kind, &self.path).to_owned(),
        }
    }
}

/// The Go type of the objects of a member.
fn type_name(kind: &str, member: &str) -> String {
    let of_kind = |rest: &str| format!("{kind}{rest}");
    match (kind, member) {
        ("Namespace" | "CustomResourceDefinition", "conditions") => of_kind("Condition"),
        ("SelfSubjectRulesReview" | "SelfSubjectAccessReview", "status") => {
            kind.replace("SelfSubject", "Subject") + "Status"
        }
        (_, "spec") => of_kind("Spec"),
        (_, "status") => of_kind("Status"),
        (_, "names" | "acceptedNames") => of_kind("Names"),
        (_, "versions") => of_kind("Version"),
        _ => match member {
            "conditions" => "Condition",
            "involvedObject" | "related" | "regarding" | "secrets" => "ObjectReference",
            "imagePullSecrets" => "LocalObjectReference",
            "source" | "deprecatedSource" => "EventSource",
            "series" => "EventSeries",
            "rules" => "PolicyRule",
            "roleRef" => "RoleRef",
            "subjects" => "Subject",
            "aggregationRule" => "AggregationRule",
            "clusterRoleSelectors" | "namespaceSelector" | "objectSelector" => "LabelSelector",
            "matchExpressions" => "LabelSelectorRequirement",
            "conversion" => "CustomResourceConversion",
            "schema" => "CustomResourceValidation",
            "openAPIV3Schema" => "JSONSchemaProps",
            "subresources" => "CustomResourceSubresources",
            "scale" => "CustomResourceSubresourceScale",
            "additionalPrinterColumns" => "CustomResourceColumnDefinition",
            "selectableFields" => "SelectableField",
            "paramKind" => "ParamKind",
            "paramRef" => "ParamRef",
            "matchConstraints" | "matchResources" => "MatchResources",
            "resourceRules" | "excludeResourceRules" => "NamedRuleWithOperations",
            "validations" => "Validation",
            "matchConditions" => "MatchCondition",
            "auditAnnotations" => "AuditAnnotation",
            "variables" => "Variable",
            "typeChecking" => "TypeChecking",
            "boundObjectRef" => "BoundObjectReference",
            "resourceAttributes" => "ResourceAttributes",
            "nonResourceAttributes" => "NonResourceAttributes",
            "fieldSelector" => "FieldSelectorAttributes",
            "labelSelector" => "LabelSelectorAttributes",
            "user" | "userInfo" => "UserInfo",
            other => other,
        }
        .to_owned(),
    }
}

/// The Go type of a text: some have one of their own.
fn text_type(kind: &str, path: &str) -> &'static str {
    let member = path.rsplit('.').next().unwrap_or_default();
    match (kind, member) {
        (_, "uid") => "types.UID",
        ("Secret", "type") => "v1.SecretType",
        ("Namespace", "phase") => "v1.NamespacePhase",
        ("Namespace", "finalizers") => "v1.FinalizerName",
        ("Lease", "strategy") => "v1.CoordinatedLeaseStrategy",
        ("CustomResourceDefinition", "scope") => "v1.ResourceScope",
        (_, "failurePolicy") => "v1.FailurePolicyType",
        (_, "matchPolicy") => "v1.MatchPolicyType",
        (_, "validationActions") => "v1.ValidationAction",
        (_, "operations") => "v1.OperationType",
        (_, "operator") => "v1.LabelSelectorOperator",
        _ => "string",
    }
}

/// Whether a text is Base64 as Go reads it: new lines are passed over.
fn base64(text: &str) -> Result<(), String> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let bytes: Vec<(usize, u8)> =
        text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n')).collect();
    let wrong = |at: usize| Err(format!("illegal base64 data at input byte {at}"));
    for (number, four) in bytes.chunks(4).enumerate() {
        let Some(other) = four.iter().position(|(_, byte)| !letter(*byte)) else {
            if four.len() < 4 {
                return wrong(text.len() - four.len());
            }
            continue;
        };
        let ends = matches!(four[other..], [(_, b'=')] | [(_, b'='), (_, b'=')]) && other >= 2;
        let after = bytes.get((number + 1) * 4);
        match (ends && four.len() == 4, after) {
            (true, None) => return Ok(()),
            (true, Some((at, _))) => return wrong(*at),
            (false, _) if other >= 2 && four[other].1 == b'=' => {
                // The second of two padding letters is not there.
                return wrong(four.get(other + 1).map_or(text.len(), |(at, _)| *at - 1));
            }
            (false, _) => return wrong(four[other].0),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(group: &str, kind: &str, object: &Value, reader: Reader) -> String {
        let schema = builtin_schema(group, kind).expect("it is built in");
        well_typed(kind, &schema.root, object, reader).expect_err("it does not fit")
    }

    #[test]
    fn the_first_member_that_does_not_fit_is_told_with_its_go_type() {
        let unmarshal = "json: cannot unmarshal";
        let into = "into Go struct field";
        for (group, kind, object, why) in [
            ("", "ConfigMap", json!({"data": {"a": 1}}), format!("{unmarshal} number {into} ConfigMap.data of type string")),
            ("", "ConfigMap", json!({"data": []}), format!("{unmarshal} array {into} ConfigMap.data of type map[string]string")),
            ("", "Secret", json!({"data": {"a": "!"}}), "illegal base64 data at input byte 0".to_owned()),
            ("", "Secret", json!({"data": {"a": 1}}), format!("{unmarshal} number {into} Secret.data of type []uint8")),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"spec": {"leaseDurationSeconds": "long"}}),
                format!("{unmarshal} string {into} LeaseSpec.spec.leaseDurationSeconds of type int32"),
            ),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"spec": {"leaseDurationSeconds": 1.5}}),
                format!("{unmarshal} number 1.5 {into} LeaseSpec.spec.leaseDurationSeconds of type int32"),
            ),
            (
                "rbac.authorization.k8s.io",
                "Role",
                json!({"rules": [{"verbs": ["get"]}, {"verbs": "get"}]}),
                format!("{unmarshal} string {into} PolicyRule.rules.verbs of type []string"),
            ),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"spec": {"renewTime": 5}}),
                format!("{unmarshal} number {into} LeaseSpec.spec.renewTime of type string"),
            ),
            (
                "rbac.authorization.k8s.io",
                "RoleBinding",
                json!({"subjects": {}}),
                format!("{unmarshal} object {into} RoleBinding.subjects of type []v1.Subject"),
            ),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"spec": {"renewTime": "2026-01-01T00:00:00Z"}}),
                "parsing time \"2026-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \
                 \".000000\""
                    .to_owned(),
            ),
        ] {
            assert_eq!(told(group, kind, &object, Reader::Json), why);
        }
    }

    #[test]
    fn what_a_strategic_patch_made_is_told_by_the_converter() {
        let told = |object: Value| told("", "ConfigMap", &object, Reader::Converter);
        assert_eq!(told(json!({"data": [1]})), "cannot restore map from slice");
        assert_eq!(told(json!({"data": {"a": 1}})), "cannot convert int64 to string");
        assert_eq!(told(json!({"data": {"a": [1]}})), "unrecognized type: string");
        assert_eq!(told(json!({"immutable": "yes"})), "unrecognized type: bool");
        assert_eq!(told(json!({"metadata": []})), "cannot restore struct from: slice");
        assert_eq!(told(json!({"metadata": {"labels": {"a": 1}}})), "cannot convert int64 to string");
        assert_eq!(
            told(json!({"binaryData": {"a": "!"}})),
            "error decoding from json: illegal base64 data at input byte 0"
        );
    }

    #[test]
    fn what_fits_is_taken_and_nothing_is_nothing() {
        let lease = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 4,
            "holderIdentity": null}});
        let schema = builtin_schema("coordination.k8s.io", "Lease").expect("it is built in");
        assert_eq!(well_typed("Lease", &schema.root, &lease, Reader::Json), Ok(()));
    }

    #[test]
    fn base64_is_refused_where_go_stumbles() {
        for good in ["", "ZA==", "ZGE=", "ZGFt", "ZG\nFt\n"] {
            assert_eq!(base64(good), Ok(()), "{good:?}");
        }
        for (bad, at) in
            [("!", 0), ("ZA", 0), ("AAAAZA", 4), ("Z===", 1), ("ZA=", 3), ("ZA=a", 2), ("ZA==Z", 4)]
        {
            assert_eq!(base64(bad), Err(format!("illegal base64 data at input byte {at}")), "{bad:?}");
        }
    }
}
