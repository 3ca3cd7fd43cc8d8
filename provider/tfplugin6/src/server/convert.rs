//! Conversions between the crate's types and the wire's.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::{
    client::{ClientCapabilities, Deferred},
    codec::{ValueError, json, msgpack},
    diagnostic::{Diagnostic, Severity},
    function,
    identity::IdentitySchema,
    path::{AttributePath, Step},
    proto::tfplugin6 as wire,
    schema::{Attribute, AttributeKind, Block, BlockNesting, NestedAttribute, NestedBlock, Nesting, Schema},
    ty::Type,
    value::Value,
};

/// Decodes a value from Terraform; absent is null.
pub(super) fn value_from(sent: Option<&wire::DynamicValue>, ty: &Type) -> Result<Value, Vec<Diagnostic>> {
    let decoded = match sent {
        None => Ok(Value::Null),
        Some(sent) if !sent.msgpack.is_empty() => msgpack::decode(&sent.msgpack, ty),
        Some(sent) if !sent.json.is_empty() => json::decode(&sent.json, ty),
        Some(_) => Ok(Value::Null),
    };
    decoded.map_err(|error| vec![not_decodable(&error)])
}

/// The JSON of a stored state.
pub(super) fn state_from(sent: Option<&wire::RawState>) -> Result<String, Vec<Diagnostic>> {
    let json = sent.map(|state| state.json.clone()).unwrap_or_default();
    if json.is_empty() {
        let detail = "It is in the format of Terraform 0.11 and older, or empty.";
        return Err(vec![Diagnostic::error("Unable to read the stored state", detail)]);
    }
    String::from_utf8(json.to_vec())
        .map_err(|error| vec![Diagnostic::error("Unable to read the stored state", error.to_string())])
}

/// The error when Terraform and the provider disagree about the schema.
pub(super) fn not_decodable(error: &ValueError) -> Diagnostic {
    Diagnostic::error(
        "Unable to read a value from Terraform",
        format!("{error}. This is a bug in the provider."),
    )
    .at(error.path.clone())
}

/// Encodes a value for Terraform.
pub(super) fn value_to(value: &Value, ty: &Type) -> Result<Option<wire::DynamicValue>, Vec<Diagnostic>> {
    match msgpack::encode(value, ty) {
        Ok(msgpack) => Ok(Some(wire::DynamicValue { msgpack: msgpack.into(), json: Bytes::new() })),
        Err(error) => {
            let detail = format!(
                "The provider returned a value that does not fit its schema: {error}. \
                                  This is a bug in the provider."
            );
            Err(vec![Diagnostic::error("Unable to write a value for Terraform", detail).at(error.path)])
        }
    }
}

pub(super) fn diagnostics(diagnostics: Vec<Diagnostic>) -> Vec<wire::Diagnostic> {
    diagnostics.into_iter().map(diagnostic).collect()
}

fn diagnostic(diagnostic: Diagnostic) -> wire::Diagnostic {
    let severity = match diagnostic.severity {
        Severity::Error => wire::diagnostic::Severity::Error,
        Severity::Warning => wire::diagnostic::Severity::Warning,
    };
    wire::Diagnostic {
        severity: severity.into(),
        summary: diagnostic.summary,
        detail: diagnostic.detail,
        attribute: diagnostic.attribute.filter(|path| !path.is_empty()).map(|path| attribute_path(&path)),
    }
}

pub(super) fn attribute_path(path: &AttributePath) -> wire::AttributePath {
    use wire::attribute_path::{Step as WireStep, step::Selector};
    let steps = path.steps().iter().map(|step| WireStep {
        selector: Some(match step {
            Step::Attribute(name) => Selector::AttributeName(name.clone()),
            Step::Key(key) => Selector::ElementKeyString(key.clone()),
            Step::Index(index) => Selector::ElementKeyInt(*index),
        }),
    });
    wire::AttributePath { steps: steps.collect() }
}

/// The path as far as Terraform can follow it in a value of this type: Terraform has no name for an element of a set.
pub(super) fn up_to_set(path: &AttributePath, ty: &Type) -> AttributePath {
    let mut ty = Some(ty);
    let mut steps = Vec::new();
    for step in path.steps() {
        ty = match (step, ty) {
            (_, Some(Type::Set(_))) => break,
            (Step::Attribute(name), Some(Type::Object(attributes))) => attributes.get(name),
            (Step::Key(_), Some(Type::Map(element))) | (Step::Index(_), Some(Type::List(element))) => {
                Some(&**element)
            }
            _ => None,
        };
        steps.push(step.clone());
    }
    AttributePath::from(steps)
}

pub(super) fn client(sent: Option<wire::ClientCapabilities>) -> ClientCapabilities {
    let sent = sent.unwrap_or_default();
    ClientCapabilities {
        deferral_allowed: sent.deferral_allowed,
        write_only_attributes_allowed: sent.write_only_attributes_allowed,
        store_planned_private: sent.store_planned_private,
        computed_blocks_allowed: sent.computed_blocks_allowed,
    }
}

pub(super) fn deferred(deferred: Deferred) -> wire::Deferred {
    use wire::deferred::Reason;
    let reason = match deferred {
        Deferred::ResourceConfigUnknown => Reason::ResourceConfigUnknown,
        Deferred::ProviderConfigUnknown => Reason::ProviderConfigUnknown,
        Deferred::AbsentPrerequisite => Reason::AbsentPrereq,
    };
    wire::Deferred { reason: reason.into() }
}

pub(super) fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    // A time before 1970 becomes 1970: it is due either way.
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}

pub(super) fn schema(schema: &Schema) -> wire::Schema {
    wire::Schema { version: schema.version, block: Some(block(&schema.block)) }
}

fn block(block: &Block) -> wire::schema::Block {
    wire::schema::Block {
        version: 0,
        attributes: block.attributes.iter().map(attribute).collect(),
        block_types: block.blocks.iter().map(nested_block).collect(),
        description: block.description.clone(),
        description_kind: wire::StringKind::Markdown.into(),
        deprecated: block.deprecated.is_some(),
        deprecation_message: block.deprecated.clone().unwrap_or_default(),
        computed: false,
    }
}

fn attribute(attribute: &Attribute) -> wire::schema::Attribute {
    let (ty, nested_type) = match &attribute.kind {
        AttributeKind::Type(ty) => (type_json(ty), None),
        // Never both: Terraform refuses a schema that has a type and a nested type.
        AttributeKind::Nested(nested) => (Bytes::new(), Some(nested_attribute(nested))),
    };
    wire::schema::Attribute {
        name: attribute.name.clone(),
        r#type: ty,
        nested_type,
        description: attribute.description.clone(),
        required: attribute.required,
        optional: attribute.optional,
        computed: attribute.computed,
        sensitive: attribute.sensitive,
        description_kind: wire::StringKind::Markdown.into(),
        deprecated: attribute.deprecated.is_some(),
        write_only: attribute.write_only,
        deprecation_message: attribute.deprecated.clone().unwrap_or_default(),
    }
}

fn nested_attribute(nested: &NestedAttribute) -> wire::schema::Object {
    use wire::schema::object::NestingMode;
    let nesting = match nested.nesting {
        Nesting::Single => NestingMode::Single,
        Nesting::List => NestingMode::List,
        Nesting::Set => NestingMode::Set,
        Nesting::Map => NestingMode::Map,
    };
    wire::schema::Object {
        attributes: nested.attributes.iter().map(attribute).collect(),
        nesting: nesting.into(),
        ..wire::schema::Object::default()
    }
}

fn nested_block(nested: &NestedBlock) -> wire::schema::NestedBlock {
    use wire::schema::nested_block::NestingMode;
    let nesting = match nested.nesting {
        BlockNesting::Single => NestingMode::Single,
        BlockNesting::List => NestingMode::List,
        BlockNesting::Set => NestingMode::Set,
        BlockNesting::Map => NestingMode::Map,
        BlockNesting::Group => NestingMode::Group,
    };
    wire::schema::NestedBlock {
        type_name: nested.name.clone(),
        block: Some(block(&nested.block)),
        nesting: nesting.into(),
        min_items: nested.min_items,
        max_items: nested.max_items,
    }
}

pub(super) fn identity_schema(schema: &IdentitySchema) -> wire::ResourceIdentitySchema {
    let attributes =
        schema.attributes.iter().map(|attribute| wire::resource_identity_schema::IdentityAttribute {
            name: attribute.name.clone(),
            r#type: type_json(&attribute.ty),
            required_for_import: attribute.required_for_import,
            optional_for_import: !attribute.required_for_import,
            description: attribute.description.clone(),
        });
    wire::ResourceIdentitySchema { version: schema.version, identity_attributes: attributes.collect() }
}

pub(super) fn function(signature: &function::Signature) -> wire::Function {
    wire::Function {
        parameters: signature.parameters.iter().map(parameter).collect(),
        variadic_parameter: signature.variadic.as_ref().map(parameter),
        r#return: Some(wire::function::Return { r#type: type_json(&signature.returns) }),
        summary: signature.summary.clone(),
        description: signature.description.clone(),
        description_kind: wire::StringKind::Markdown.into(),
        deprecation_message: signature.deprecated.clone().unwrap_or_default(),
    }
}

fn parameter(parameter: &function::Parameter) -> wire::function::Parameter {
    wire::function::Parameter {
        name: parameter.name.clone(),
        r#type: type_json(&parameter.ty),
        allow_null_value: parameter.allow_null,
        allow_unknown_values: parameter.allow_unknown,
        description: parameter.description.clone(),
        description_kind: wire::StringKind::Markdown.into(),
    }
}

fn type_json(ty: &Type) -> Bytes {
    ty.to_json().to_string().into()
}
