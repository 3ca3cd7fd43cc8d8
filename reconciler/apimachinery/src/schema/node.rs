//! The tree a structural schema is parsed into. One node type serves the structure and, with most fields
//! unset, the value validations under `allOf`, `anyOf`, `oneOf` and `not`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pattern::Pattern;
use super::rule::Rules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// `additionalProperties`: absent, `true`/`false`, or a schema.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Absent,
    Any,
    Schema(Box<Node>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

#[derive(Debug, Default)]
pub struct Node {
    pub ty: Option<Type>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Node>,
    pub(crate) additional: Additional,
    pub items: Option<Box<Node>>,
    pub(crate) preserve_unknown: bool,
    pub embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_type: ListType,
    pub(crate) list_map_keys: Vec<String>,
    pub(crate) atomic_map: bool,
    /// On the heap: most objects have few members, and their maps have space for eleven, unused nodes included.
    pub checks: Box<Checks>,
    pub rules: Rules,
    /// Whether this node or one below it has CEL rules; subtrees without rules are skipped.
    pub(crate) has_rules: bool,
    /// Whether this node or one below it is a set or a list-map.
    pub(crate) has_keyed_lists: bool,
    /// Whether this node or one below it has a default.
    pub(crate) has_defaults: bool,
}

impl Node {
    pub fn additional_schema(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// Returns the schema of a map entry, declared or not.
    pub fn member(&self, key: &str) -> Option<&Node> {
        self.properties.get(key).or_else(|| self.additional_schema())
    }
}

/// The value validations of a node.
#[derive(Debug, Default)]
pub struct Checks {
    pub format: Option<String>,
    pub allowed: Option<Vec<Value>>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_length: Option<u64>,
    pub pattern: Option<Pattern>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) max_properties: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub required: Vec<String>,
    pub all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
}
