//! What Terraform insists on in every plan and state, whatever a provider returned: write-only values are null, and
//! blocks that repeat are empty rather than null.

use std::collections::BTreeMap;

use super::{Attribute, AttributeKind, Block, BlockNesting};
use crate::value::Value;

/// Makes a plan or state of a block conform.
pub(crate) fn conform(block: &Block, value: Value) -> Value {
    let Value::Map(mut entries) = value else { return value };
    attributes(&block.attributes, &mut entries);
    for nested in &block.blocks {
        let value = entries.remove(&nested.name).unwrap_or_default();
        let value = match (nested.nesting, value) {
            (BlockNesting::List | BlockNesting::Set, Value::Null) => Value::List(Vec::new()),
            (BlockNesting::Map, Value::Null) => Value::Map(BTreeMap::new()),
            (BlockNesting::Group, Value::Null) => conform(&nested.block, Value::Map(BTreeMap::new())),
            (BlockNesting::Single | BlockNesting::Group, value) => conform(&nested.block, value),
            (_, value) => each(value, &mut |element| conform(&nested.block, element)),
        };
        entries.insert(nested.name.clone(), value);
    }
    Value::Map(entries)
}

fn attributes(attributes: &[Attribute], entries: &mut BTreeMap<String, Value>) {
    for attribute in attributes {
        let Some(value) = entries.get_mut(&attribute.name) else { continue };
        if attribute.write_only {
            *value = Value::Null;
        } else if let AttributeKind::Nested(nested) = &attribute.kind {
            let mut object = |element: Value| match element {
                Value::Map(mut entries) => {
                    self::attributes(&nested.attributes, &mut entries);
                    Value::Map(entries)
                }
                other => other,
            };
            let taken = std::mem::take(value);
            *value = if nested.nesting == super::Nesting::Single {
                object(taken)
            } else {
                each(taken, &mut object)
            };
        }
    }
}

/// The same collection with every element changed.
fn each(value: Value, change: &mut dyn FnMut(Value) -> Value) -> Value {
    match value {
        Value::List(elements) => Value::List(elements.into_iter().map(change).collect()),
        Value::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (key, change(value))).collect())
        }
        // A list block whose body holds an `any` travels as `any` itself.
        Value::Dynamic(inner) => {
            let (ty, value) = *inner;
            Value::Dynamic(Box::new((ty, each(value, change))))
        }
        other => other,
    }
}

/// The first write-only attribute of a configuration that is set, by its dotted name.
pub(crate) fn write_only_set(block: &Block, config: &Value) -> Option<String> {
    let own = write_only_attribute(&block.attributes, config);
    own.or_else(|| {
        block.blocks.iter().find_map(|nested| {
            let within = |value: &Value| write_only_set(&nested.block, value);
            inside(config.get(&nested.name), &within).map(|name| format!("{}.{name}", nested.name))
        })
    })
}

fn write_only_attribute(attributes: &[Attribute], config: &Value) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let value = config.get(&attribute.name);
        match &attribute.kind {
            _ if value.is_null() => None,
            _ if attribute.write_only => Some(attribute.name.clone()),
            AttributeKind::Type(_) => None,
            AttributeKind::Nested(nested) => {
                let within = |value: &Value| write_only_attribute(&nested.attributes, value);
                inside(value, &within).map(|name| format!("{}.{name}", attribute.name))
            }
        }
    })
}

/// Looks in a value, and in what it holds: whether it is one object or many is all the same here.
fn inside(value: &Value, find: &dyn Fn(&Value) -> Option<String>) -> Option<String> {
    match value {
        Value::List(elements) => elements.iter().find_map(find),
        Value::Map(entries) => find(value).or_else(|| entries.values().find_map(find)),
        _ => None,
    }
}
