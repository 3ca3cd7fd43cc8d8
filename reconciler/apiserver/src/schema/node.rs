//! The tree a structural schema is parsed into. One node type serves the structure and, with most fields
//! unset, the value validations under `allOf`, `anyOf`, `oneOf` and `not`.

use indexmap::IndexMap;
use regex::Regex;
use serde_json::Value;

use super::rules::Rule;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    pub(crate) fn parse(name: &str) -> Option<Self> {
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

    pub(crate) fn name(self) -> &'static str {
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
pub(crate) struct Node {
    pub(crate) ty: Option<Type>,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) properties: IndexMap<String, Node>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list_type: ListType,
    pub(crate) list_map_keys: Vec<String>,
    pub(crate) atomic_map: bool,
    pub(crate) checks: Checks,
    pub(crate) rules: Vec<Rule>,
    /// Whether this node or one below it has CEL rules: nothing else is walked for them.
    pub(crate) has_rules: bool,
    /// Whether this node or one below it has a default.
    pub(crate) has_defaults: bool,
}

impl Node {
    pub(crate) fn additional_schema(&self) -> Option<&Node> {
        match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        }
    }

    /// The schema of a member of a map, named or not.
    pub(crate) fn member(&self, key: &str) -> Option<&Node> {
        self.properties.get(key).or_else(|| self.additional_schema())
    }
}

/// The value validations of a node.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) format: Option<String>,
    pub(crate) allowed: Option<Vec<Value>>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) max_properties: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
}
