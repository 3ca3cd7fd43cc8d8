//! The form Terraform requires of every plan and state that a provider returns: write-only values are null, and repeated
//! blocks are empty rather than null.

use std::collections::BTreeMap;

use super::{Attribute, AttributeKind, Block, BlockNesting};
use crate::value::Value;

/// Brings a plan or state of a block into the required form.
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

/// Changes every element of a collection.
fn each(value: Value, change: &mut dyn FnMut(Value) -> Value) -> Value {
    match value {
        Value::List(elements) => Value::List(elements.into_iter().map(change).collect()),
        Value::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (key, change(value))).collect())
        }
        // A list block with an `any` in its body travels as `any` itself.
        Value::Dynamic(inner) => {
            let (ty, value) = *inner;
            Value::Dynamic(Box::new((ty, each(value, change))))
        }
        other => other,
    }
}

/// The dotted name of the first write-only attribute that is set in a configuration.
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

/// Searches a value and its elements: one object and many are handled alike.
fn inside(value: &Value, find: &dyn Fn(&Value) -> Option<String>) -> Option<String> {
    match value {
        Value::List(elements) => elements.iter().find_map(find),
        Value::Map(entries) => find(value).or_else(|| entries.values().find_map(find)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{NestedBlock, Nesting, Schema};

    fn block() -> Block {
        let secret = || Attribute::string("secret").optional().write_only();
        let one = |name, nesting| NestedBlock::new(name, nesting, Block::new(vec![secret()]));
        Schema::new(vec![secret(), Attribute::nested("users", Nesting::Map, vec![secret()]).optional()])
            .blocks(vec![
                one("single", BlockNesting::Single),
                one("list", BlockNesting::List),
                one("map", BlockNesting::Map),
                one("group", BlockNesting::Group),
            ])
            .block
    }

    fn everything() -> Value {
        let secret = || Value::object([("secret", "s3cret".into())]);
        Value::object([
            ("secret", "s3cret".into()),
            ("users", Value::object([("root", secret())])),
            ("single", secret()),
            ("list", Value::List(vec![secret()])),
        ])
    }

    #[test]
    fn write_only_values_are_null_wherever_they_are() {
        let conforming = conform(&block(), everything());
        let secrets = ["users", "root"].iter().fold(&conforming, |value, name| value.get(name)).get("secret");
        assert!(secrets.is_null());
        assert!(!format!("{conforming:?}").contains("s3cret"));
    }

    #[test]
    fn absent_blocks_are_empty_except_a_single_one() {
        let conforming = conform(&block(), Value::Map(BTreeMap::new()));
        assert_eq!(*conforming.get("list"), Value::List(Vec::new()));
        assert_eq!(*conforming.get("map"), Value::Map(BTreeMap::new()));
        assert_eq!(*conforming.get("group"), Value::Map(BTreeMap::new()));
        assert!(conforming.get("single").is_null());
    }

    #[test]
    fn what_is_to_be_destroyed_or_unknown_stays_so() {
        assert_eq!(conform(&block(), Value::Null), Value::Null);
        assert_eq!(conform(&block(), Value::UNKNOWN), Value::UNKNOWN);
    }

    #[test]
    fn the_first_write_only_value_that_is_set_is_named() {
        assert_eq!(write_only_set(&block(), &everything()).as_deref(), Some("secret"));
        let Value::Map(mut entries) = everything() else { unreachable!() };
        entries.remove("secret");
        assert_eq!(write_only_set(&block(), &Value::Map(entries.clone())).as_deref(), Some("users.secret"));
        entries.remove("users");
        assert_eq!(write_only_set(&block(), &Value::Map(entries.clone())).as_deref(), Some("single.secret"));
        entries.clear();
        assert_eq!(write_only_set(&block(), &Value::Map(entries)), None);
    }
}
