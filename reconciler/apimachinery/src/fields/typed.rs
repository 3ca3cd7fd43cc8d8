//! Values viewed through a schema: which are leaves, which are granular, and how list items are named.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::element::{PathElement, Scalar};
use super::set::{FieldSet, show};
use crate::schema::object_meta::object_meta;
use crate::schema::{ListType, Node, NodeType, StructuralSchema};

/// The type of a value, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ty<'a> {
    /// The whole object.
    Root(&'a Node),
    Node(&'a Node),
    /// `apiVersion` and `kind`.
    Text,
    /// Unknown type: maps are granular, lists atomic.
    Untyped,
}

/// How a value of some type is owned.
#[derive(Clone, Copy, Debug)]
pub(super) enum NodeKind<'a> {
    /// Owned as a whole: scalars, atomic lists, atomic maps, and values that do not fit their type.
    Leaf,
    Map,
    Set,
    /// Owned by the keys; the node is that of the items.
    ListMap(&'a [String], Option<&'a Node>),
}

impl NodeKind<'_> {
    pub(super) fn same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl<'a> Ty<'a> {
    pub(super) fn root(schema: &'a StructuralSchema) -> Self {
        Self::Root(&schema.root)
    }

    fn is_resource(self) -> bool {
        match self {
            Self::Root(_) => true,
            Self::Node(node) => node.embedded,
            Self::Text | Self::Untyped => false,
        }
    }

    fn node(self) -> Option<&'a Node> {
        match self {
            Self::Root(node) | Self::Node(node) => Some(node),
            Self::Text | Self::Untyped => None,
        }
    }

    pub(super) fn member(self, name: &str) -> Ty<'a> {
        if self.is_resource() {
            match name {
                "metadata" => return Ty::Node(&object_meta().root),
                "apiVersion" | "kind" => return Ty::Text,
                _ => {}
            }
        }
        self.node().and_then(|n| n.member(name)).map_or(Ty::Untyped, Ty::Node)
    }

    /// Whether the type declares a field of that name, other than as a key of a map.
    pub(super) fn declares(self, name: &str) -> bool {
        (self.is_resource() && matches!(name, "metadata" | "apiVersion" | "kind"))
            || self.node().is_some_and(|n| n.properties.contains_key(name))
    }

    pub(super) fn item(self) -> Ty<'a> {
        self.node().and_then(|n| n.items.as_deref()).map_or(Ty::Untyped, Ty::Node)
    }

    pub(super) fn is_declared_atomic(self) -> bool {
        match self {
            Self::Node(node) => match node.ty {
                Some(NodeType::Object) => node.atomic_map,
                Some(NodeType::Array) => node.list_type == ListType::Atomic,
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns how a value of this type is owned. Null takes the form of its type.
    pub(super) fn kind(self, value: &Value) -> NodeKind<'a> {
        match (self, value) {
            (Self::Text, _) => NodeKind::Leaf,
            (Self::Root(_), Value::Object(_) | Value::Null) => NodeKind::Map,
            (Self::Root(_), _) => NodeKind::Leaf,
            (Self::Untyped, _) => untyped(value),
            (Self::Node(node), _) => Self::of_node(node, value),
        }
    }

    /// Returns the expected type if the value is of another type.
    fn misfit(self, value: &Value) -> Option<&'static str> {
        let Self::Node(node) = self else { return None };
        if value.is_null() || node.int_or_string {
            return None;
        }
        let (fits, expected) = match node.ty? {
            NodeType::Object => (value.is_object(), "map"),
            NodeType::Array => (value.is_array(), "list"),
            NodeType::String => (value.is_string(), "string"),
            NodeType::Boolean => (value.is_boolean(), "boolean"),
            NodeType::Integer | NodeType::Number => (value.is_number(), "numeric (int or float)"),
        };
        (!fits).then_some(expected)
    }

    fn of_node(node: &'a Node, value: &Value) -> NodeKind<'a> {
        let fits = |right: bool| right || value.is_null();
        match node.ty {
            _ if node.int_or_string => NodeKind::Leaf,
            None => untyped(value),
            Some(NodeType::Object) if fits(value.is_object()) && !node.atomic_map => NodeKind::Map,
            Some(NodeType::Array) if fits(value.is_array()) => match node.list_type {
                ListType::Atomic => NodeKind::Leaf,
                ListType::Set => NodeKind::Set,
                ListType::Map => NodeKind::ListMap(&node.list_map_keys, node.items.as_deref()),
            },
            Some(_) => NodeKind::Leaf,
        }
    }
}

fn untyped<'a>(value: &Value) -> NodeKind<'a> {
    match value {
        Value::Object(_) | Value::Null => NodeKind::Map,
        _ => NodeKind::Leaf,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

pub(super) fn map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object).filter(|m| !m.is_empty())
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the name of a list item within a set or list-map.
pub(super) fn element(kind: NodeKind<'_>, item: &Value) -> Result<PathElement, String> {
    match (kind, item) {
        (NodeKind::ListMap(..), Value::Null) => {
            Err("associative list with keys may not have a null element".to_owned())
        }
        (NodeKind::ListMap(keys, node), Value::Object(map)) => {
            let default =
                |key: &str| node.and_then(|n| n.properties.get(key)).and_then(|p| p.default.as_ref());
            let mut pairs: Vec<(String, Scalar)> = keys
                .iter()
                .filter_map(|k| map.get(k).or_else(|| default(k)).map(|v| (k.clone(), Scalar(v.clone()))))
                .collect();
            if pairs.is_empty() {
                return Err(format!(
                    "associative list with keys has an element that omits all key fields {keys:?} (and doesn't have \
                     default values for any key fields)"
                ));
            }
            pairs.sort();
            Ok(PathElement::Key(pairs))
        }
        (NodeKind::ListMap(..), _) => {
            Err("associative list with keys may not have non-map elements".to_owned())
        }
        (_, Value::Object(_)) => {
            Err("associative list without keys has an element that's a map type".to_owned())
        }
        (_, Value::Array(_)) => Err("not supported: associative list with lists as elements".to_owned()),
        (_, Value::Null) => {
            Err("associative list without keys has an element that's an explicit null".to_owned())
        }
        (_, scalar) => Ok(PathElement::Value(Scalar(scalar.clone()))),
    }
}

/// Returns the names of all items, or `None` if one has no name: such a list is owned as a whole.
pub(super) fn elements(kind: NodeKind<'_>, items: &[Value]) -> Option<Vec<PathElement>> {
    items.iter().map(|item| element(kind, item).ok()).collect()
}

/// Checks an applied object before the merge: types fit, every item has a name, and the names are unique.
pub(super) fn check(value: &Value, ty: Ty<'_>) -> Result<(), String> {
    check_at(value, ty, &mut Vec::new())
}

fn check_at(value: &Value, ty: Ty<'_>, path: &mut Vec<PathElement>) -> Result<(), String> {
    if let Some(expected) = ty.misfit(value) {
        return Err(format!("{}: expected {expected}, got {}", show(path), type_of(value)));
    }
    let kind = ty.kind(value);
    match (kind, value) {
        (NodeKind::Map, Value::Object(members)) => {
            for (name, value) in members {
                path.push(PathElement::field(name));
                check_at(value, ty.member(name), path)?;
                path.pop();
            }
        }
        (NodeKind::Set | NodeKind::ListMap(..), Value::Array(items)) => {
            let mut seen = BTreeSet::new();
            for (at, item) in items.iter().enumerate() {
                let element =
                    element(kind, item).map_err(|e| format!("{}: element {at}: {e}", show(path)))?;
                if !seen.insert(element.clone()) {
                    return Err(format!("{}: duplicate entries for key {element}", show(path)));
                }
                path.push(element);
                check_at(item, ty.item(), path)?;
                path.pop();
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn field_set(value: &Value, ty: Ty<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    collect(value, ty, &mut Vec::new(), &mut set);
    set
}

fn collect(value: &Value, ty: Ty<'_>, path: &mut Vec<PathElement>, set: &mut FieldSet) {
    let kind = ty.kind(value);
    match (kind, value) {
        (NodeKind::Leaf, _) => set.insert(path),
        (NodeKind::Map, Value::Object(members)) => {
            for (name, value) in members {
                path.push(PathElement::field(name));
                collect(value, ty.member(name), path, set);
                // A value without leaves below it must be a member itself.
                let nothing_below = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                if nothing_below || !ty.declares(name) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (NodeKind::Set | NodeKind::ListMap(..), Value::Array(items)) => {
            let Some(elements) = elements(kind, items) else { return set.insert(path) };
            let mut times: BTreeMap<&PathElement, usize> = BTreeMap::new();
            for element in &elements {
                *times.entry(element).or_default() += 1;
            }
            for (item, element) in items.iter().zip(&elements) {
                path.push(element.clone());
                // For duplicates only the name can be owned, not the fields below it.
                if times[element] == 1 {
                    collect(item, ty.item(), path, set);
                }
                set.insert(path);
                path.pop();
            }
        }
        _ => {}
    }
}
