//! Terraform's rules for a planned state.
//!
//! Terraform proposes the configuration, with prior values for attributes that are computed and not configured. Every provider
//! then has to find the prior values that do not survive the change, which is easy to get wrong. [`mark_computed_unknown`]
//! does that.

mod same;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use same::same;

use crate::{
    schema::{Attribute, AttributeKind, Block, BlockNesting, NestedAttribute, NestedBlock, Nesting, Schema},
    value::Value,
};

/// Returns the planned state, as far as the schema alone determines it.
///
/// For each attribute, nested ones and those of blocks included:
/// - configured: as proposed. A provider that finds that a configured value means the same as the prior one puts the prior one
///   into `proposed` first: Terraform accepts either.
/// - write-only: null.
/// - not configured, with a [`default`](Attribute::default): the default.
/// - not configured, computed: the prior value if nothing at all changes. Otherwise the prior value when the attribute [keeps
///   its state](Attribute::keeps_state) and has one, else unknown.
///
/// Elements of nested lists are matched with their prior elements by index or by their [key](Attribute::keyed_by), of maps by
/// key, of sets by their configured attributes.
///
/// A provider that can predict a computed value sets it in the result.
#[must_use]
pub fn mark_computed_unknown(schema: &Schema, prior: &Value, proposed: Value, config: &Value) -> Value {
    // A destroy has nothing to compute.
    if proposed.is_null() {
        return Value::Null;
    }
    let counterparts = Counterparts { prior, config, moved: false };
    let settled = Pass::Settle.block(&schema.block, proposed, counterparts);
    if !prior.is_null() && same(&schema.ty(), prior, &settled) {
        return settled;
    }
    Pass::Fill.block(&schema.block, settled, counterparts)
}

/// The values at the place of a proposed value.
#[derive(Debug, Clone, Copy)]
struct Counterparts<'a> {
    /// The prior value.
    prior: &'a Value,
    /// The configured value.
    config: &'a Value,
    /// The element may have another index than its prior element, so that Terraform's proposal, which matches by index, may
    /// belong to another element.
    moved: bool,
}

impl<'a> Counterparts<'a> {
    /// Those of an attribute, a nested block, or an element of a map.
    fn get(self, name: &str) -> Self {
        Self { prior: self.prior.get(name), config: self.config.get(name), moved: self.moved }
    }

    /// Those of an element of a list. `key` is the attribute that identifies its elements.
    fn element(self, index: usize, key: Option<&str>) -> Self {
        let config = self.config.index(index);
        // An element without a configured key can only be identified by its index.
        let Some(key) = key.filter(|key| config.get(key).as_str().is_some()) else {
            return Self { prior: self.prior.index(index), config, ..self };
        };
        let same_key = |prior: &&Value| prior.get(key) == config.get(key);
        let prior: Option<&'a Value> = self.prior.elements().iter().find(same_key);
        Self { prior: prior.unwrap_or(&Value::Null), config, moved: true }
    }
}

/// A pass over the tree. Defaults must be set before it is known whether anything changes: hence two passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Sets defaults, write-only values and prior values of keyed elements.
    Settle,
    /// Marks computed values as unknown, because something changes.
    Fill,
}

impl Pass {
    fn block(self, block: &Block, proposed: Value, counterparts: Counterparts<'_>) -> Value {
        let Value::Map(entries) = proposed else { return proposed };
        let mut entries = self.attributes(&block.attributes, entries, counterparts);
        for nested in &block.blocks {
            let proposed = entries.remove(&nested.name).unwrap_or_default();
            let planned = self.nested_block(nested, proposed, counterparts.get(&nested.name));
            entries.insert(nested.name.clone(), planned);
        }
        Value::Map(entries)
    }

    fn attributes(
        self,
        attributes: &[Attribute],
        mut entries: BTreeMap<String, Value>,
        counterparts: Counterparts<'_>,
    ) -> BTreeMap<String, Value> {
        for attribute in attributes {
            let proposed = entries.remove(&attribute.name).unwrap_or_default();
            let planned = self.attribute(attribute, proposed, counterparts.get(&attribute.name));
            entries.insert(attribute.name.clone(), planned);
        }
        entries
    }

    fn attribute(self, attribute: &Attribute, proposed: Value, counterparts: Counterparts<'_>) -> Value {
        let Counterparts { prior, config, moved } = counterparts;
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
            AttributeKind::Nested(nested) => self.nested_attribute(nested, proposed, counterparts),
        }
    }

    fn nested_attribute(
        self,
        nested: &NestedAttribute,
        proposed: Value,
        counterparts: Counterparts<'_>,
    ) -> Value {
        let object = |proposed: Value, counterparts: Counterparts<'_>| match proposed {
            Value::Map(entries) => Value::Map(self.attributes(&nested.attributes, entries, counterparts)),
            other => other,
        };
        match nested.nesting {
            Nesting::Single => object(proposed, counterparts),
            Nesting::List => list(nested.key.as_deref(), proposed, counterparts, object),
            Nesting::Map => map(proposed, counterparts, object),
            Nesting::Set => set(&nested.attributes, proposed, counterparts, object),
        }
    }

    fn nested_block(self, nested: &NestedBlock, proposed: Value, counterparts: Counterparts<'_>) -> Value {
        let body = |proposed: Value, counterparts: Counterparts<'_>| {
            self.block(&nested.block, proposed, counterparts)
        };
        match nested.nesting {
            BlockNesting::Single | BlockNesting::Group => body(proposed, counterparts),
            BlockNesting::List => list(None, proposed, counterparts, body),
            BlockNesting::Map => map(proposed, counterparts, body),
            BlockNesting::Set => set(&nested.block.attributes, proposed, counterparts, body),
        }
    }
}

fn list(
    key: Option<&str>,
    proposed: Value,
    counterparts: Counterparts<'_>,
    element: impl Fn(Value, Counterparts<'_>) -> Value,
) -> Value {
    let Value::List(elements) = proposed else { return proposed };
    let elements = elements.into_iter().enumerate();
    Value::List(elements.map(|(i, proposed)| element(proposed, counterparts.element(i, key))).collect())
}

fn map(
    proposed: Value,
    counterparts: Counterparts<'_>,
    element: impl Fn(Value, Counterparts<'_>) -> Value,
) -> Value {
    let Value::Map(entries) = proposed else { return proposed };
    let planned = entries.into_iter().map(|(key, proposed)| {
        let planned = element(proposed, counterparts.get(&key));
        (key, planned)
    });
    Value::Map(planned.collect())
}

/// An element of a set has neither index nor key: only its configured attributes identify it.
fn set(
    attributes: &[Attribute],
    proposed: Value,
    counterparts: Counterparts<'_>,
    element: impl Fn(Value, Counterparts<'_>) -> Value,
) -> Value {
    let Value::List(elements) = proposed else { return proposed };
    let mut configured: Vec<&Value> = counterparts.config.elements().iter().collect();
    let mut before: Vec<&Value> = counterparts.prior.elements().iter().collect();
    let planned = elements.into_iter().map(|proposed| {
        let config = take(&mut configured, |config| could_be(attributes, &proposed, config));
        let config = config.unwrap_or(&proposed).clone();
        let prior = take(&mut before, |prior| could_be(attributes, prior, &config)).unwrap_or(&Value::Null);
        element(proposed, Counterparts { prior, config: &config, moved: true })
    });
    Value::List(planned.collect())
}

fn take<'a>(from: &mut Vec<&'a Value>, found: impl Fn(&Value) -> bool) -> Option<&'a Value> {
    let place = from.iter().position(|value| found(value))?;
    Some(from.remove(place))
}

/// Whether a planned or prior element can be the result of this configured one.
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
