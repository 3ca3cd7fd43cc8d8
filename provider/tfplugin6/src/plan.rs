//! Terraform's rules for a planned state.
//!
//! Terraform proposes the configuration, completed with prior values where an attribute is computed and not configured.
//! What is left to a provider is the same everywhere and easy to get wrong: which of those prior values will not
//! survive the change. [`mark_computed_unknown`] is that.

mod same;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use same::same;

use crate::{
    schema::{Attribute, AttributeKind, Block, BlockNesting, NestedAttribute, NestedBlock, Nesting, Schema},
    value::Value,
};

/// The planned state, as far as the schema alone says.
///
/// For each attribute, nested ones and those of blocks included:
/// - configured: as proposed. A provider that finds a configured value to mean the same as the prior one puts the prior
///   one into `proposed` first: Terraform accepts either.
/// - write-only: null.
/// - not configured, with a [`default`](Attribute::default): the default.
/// - not configured, computed: if nothing at all changes, the prior value. Else the prior value when it
///   [keeps its state](Attribute::keeps_state) and has one, else unknown.
///
/// Elements of nested lists are matched with their prior selves by their place or by their
/// [key](Attribute::keyed_by), of maps by key, of sets by what is configured in them.
///
/// What a provider knows better (a computed value it can predict) it sets in the result.
#[must_use]
pub fn mark_computed_unknown(schema: &Schema, prior: &Value, proposed: Value, config: &Value) -> Value {
    // Nothing to compute for what is to be destroyed.
    if proposed.is_null() {
        return Value::Null;
    }
    let settled = Pass::Settle.block(&schema.block, prior, proposed, config, false);
    if !prior.is_null() && same(&schema.ty(), prior, &settled) {
        return settled;
    }
    Pass::Fill.block(&schema.block, prior, settled, config, false)
}

/// Whether something changes is only known once defaults are in: hence two passes over the same tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Defaults, write-only values, prior values of keyed elements.
    Settle,
    /// Something changes: computed values become unknown.
    Fill,
}

impl Pass {
    /// `moved`: the element may stand in another place than its prior self did, so that what Terraform proposed for it,
    /// by place, is another element's.
    fn block(self, block: &Block, prior: &Value, proposed: Value, config: &Value, moved: bool) -> Value {
        let Value::Map(entries) = proposed else { return proposed };
        let mut entries = self.attributes(&block.attributes, prior, entries, config, moved);
        for nested in &block.blocks {
            let proposed = entries.remove(&nested.name).unwrap_or_default();
            let (prior, config) = (prior.get(&nested.name), config.get(&nested.name));
            entries.insert(nested.name.clone(), self.nested_block(nested, prior, proposed, config, moved));
        }
        Value::Map(entries)
    }

    fn attributes(
        self,
        attributes: &[Attribute],
        prior: &Value,
        mut entries: BTreeMap<String, Value>,
        config: &Value,
        moved: bool,
    ) -> BTreeMap<String, Value> {
        for attribute in attributes {
            let proposed = entries.remove(&attribute.name).unwrap_or_default();
            let (prior, config) = (prior.get(&attribute.name), config.get(&attribute.name));
            entries.insert(attribute.name.clone(), self.attribute(attribute, prior, proposed, config, moved));
        }
        entries
    }

    fn attribute(
        self,
        attribute: &Attribute,
        prior: &Value,
        proposed: Value,
        config: &Value,
        moved: bool,
    ) -> Value {
        if attribute.write_only {
            return Value::Null;
        }
        if config.is_null() && attribute.computed {
            return match (self, &attribute.default) {
                (Self::Settle, Some(default)) => default.clone(),
                (Self::Settle, None) if moved => prior.clone(),
                (Self::Settle, None) | (Self::Fill, Some(_)) => proposed,
                (Self::Fill, None) if attribute.keeps_state && !prior.is_null() => prior.clone(),
                (Self::Fill, None) => Value::UNKNOWN,
            };
        }
        match &attribute.kind {
            AttributeKind::Type(_) => proposed,
            AttributeKind::Nested(nested) => self.nested_attribute(nested, prior, proposed, config, moved),
        }
    }

    fn nested_attribute(
        self,
        nested: &NestedAttribute,
        prior: &Value,
        proposed: Value,
        config: &Value,
        moved: bool,
    ) -> Value {
        let object = |prior: &Value, proposed: Value, config: &Value, moved: bool| match proposed {
            Value::Map(entries) => {
                Value::Map(self.attributes(&nested.attributes, prior, entries, config, moved))
            }
            other => other,
        };
        match nested.nesting {
            Nesting::Single => object(prior, proposed, config, moved),
            Nesting::List => list(nested.key.as_deref(), prior, proposed, config, moved, object),
            Nesting::Map => map(prior, proposed, config, moved, object),
            Nesting::Set => set(&nested.attributes, prior, proposed, config, object),
        }
    }

    fn nested_block(
        self,
        nested: &NestedBlock,
        prior: &Value,
        proposed: Value,
        config: &Value,
        moved: bool,
    ) -> Value {
        let body = |prior: &Value, proposed: Value, config: &Value, moved: bool| {
            self.block(&nested.block, prior, proposed, config, moved)
        };
        match nested.nesting {
            BlockNesting::Single | BlockNesting::Group => body(prior, proposed, config, moved),
            BlockNesting::List => list(None, prior, proposed, config, moved, body),
            BlockNesting::Map => map(prior, proposed, config, moved, body),
            BlockNesting::Set => set(&nested.block.attributes, prior, proposed, config, body),
        }
    }
}

fn list(
    key: Option<&str>,
    prior: &Value,
    proposed: Value,
    config: &Value,
    moved: bool,
    element: impl Fn(&Value, Value, &Value, bool) -> Value,
) -> Value {
    let Value::List(elements) = proposed else { return proposed };
    let planned = elements.into_iter().enumerate().map(|(i, proposed)| {
        let config = config.index(i);
        // An element whose key is not configured can only be told by its place.
        match key.filter(|key| config.get(key).as_str().is_some()) {
            None => element(prior.index(i), proposed, config, moved),
            Some(key) => {
                let same_key = |prior: &&Value| prior.get(key) == config.get(key);
                element(
                    prior.elements().iter().find(same_key).unwrap_or(&Value::Null),
                    proposed,
                    config,
                    true,
                )
            }
        }
    });
    Value::List(planned.collect())
}

fn map(
    prior: &Value,
    proposed: Value,
    config: &Value,
    moved: bool,
    element: impl Fn(&Value, Value, &Value, bool) -> Value,
) -> Value {
    let Value::Map(entries) = proposed else { return proposed };
    let planned = entries.into_iter().map(|(key, proposed)| {
        let planned = element(prior.get(&key), proposed, config.get(&key), moved);
        (key, planned)
    });
    Value::Map(planned.collect())
}

/// An element of a set has neither place nor key: its configured attributes are all there is to know it by.
fn set(
    attributes: &[Attribute],
    prior: &Value,
    proposed: Value,
    config: &Value,
    element: impl Fn(&Value, Value, &Value, bool) -> Value,
) -> Value {
    let Value::List(elements) = proposed else { return proposed };
    let mut configured: Vec<&Value> = config.elements().iter().collect();
    let mut before: Vec<&Value> = prior.elements().iter().collect();
    let planned = elements.into_iter().map(|proposed| {
        let config = take(&mut configured, |config| could_be(attributes, &proposed, config));
        let config = config.unwrap_or(&proposed).clone();
        let prior = take(&mut before, |prior| could_be(attributes, prior, &config)).unwrap_or(&Value::Null);
        element(prior, proposed, &config, true)
    });
    Value::List(planned.collect())
}

fn take<'a>(from: &mut Vec<&'a Value>, found: impl Fn(&Value) -> bool) -> Option<&'a Value> {
    let place = from.iter().position(|value| found(value))?;
    Some(from.remove(place))
}

/// Whether a planned or prior element can be what this configured one became.
fn could_be(attributes: &[Attribute], element: &Value, config: &Value) -> bool {
    attributes.iter().all(|attribute| {
        let (value, config) = (element.get(&attribute.name), config.get(&attribute.name));
        match &attribute.kind {
            _ if attribute.write_only => true,
            _ if config.is_null() => attribute.computed || value.is_null(),
            AttributeKind::Nested(nested) if nested.nesting == Nesting::Single => {
                could_be(&nested.attributes, value, config)
            }
            _ => same(&attribute.ty(), value, config),
        }
    })
}
