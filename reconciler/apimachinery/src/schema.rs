//! Structural schemas of custom resources: prune, default, validate, CEL rules.
//!
//! Pure functions over JSON values. Messages have the wording and order of kube-apiserver's, because clients
//! show them to users and tools compare them. Knows no HTTP, no storage and no clock.

mod checks;
mod defaults;
mod equality;
pub mod expression;
mod formats;
pub mod message;
mod node;
mod numbers;
pub mod object_meta;
mod old_items;
mod parse;
mod pattern;
mod prune;
mod rule;
mod rules;
mod types;
mod validate;

use std::fmt;

use serde_json::Value;

pub use equality::{equal, equal_but};
pub use message::quote;
pub(crate) use node::{Additional, ListType};
pub use node::{Checks, Node, Type as NodeType};
pub use numbers::{whole, whole_numbers};

/// The maximum nesting depth of a value or a schema. serde_json reads at most 127 levels: a deeper object could be stored, but not read
/// again. Clients read objects within watch events, lists and tables, which are up to three levels more.
pub const MAX_DEPTH: usize = 120;

/// The kind of a field error; maps onto the `reason` of a Kubernetes `StatusCause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
}

impl ErrorKind {
    /// The `reason` of a `StatusCause`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }

    /// Rules rely on types, required fields and bounds; without them they could fail in ways that are hard to
    /// understand.
    fn blocks_rules(self) -> bool {
        matches!(
            self,
            Self::Required | Self::TypeInvalid | Self::NotSupported | Self::TooLong | Self::TooMany
        )
    }
}

/// An error of one field. `message` is the error without the field (the `message` of a cause); `Display` is
/// the whole sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub field: String,
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A parsed structural schema. Cheap to share behind an `Arc`; CEL programs are compiled once, at their first use.
#[derive(Debug)]
pub struct StructuralSchema {
    pub root: Node,
}

impl StructuralSchema {
    /// Parses `openAPIV3Schema` and refuses a schema that is not structural.
    ///
    /// # Errors
    /// Field paths are relative to the schema (`openAPIV3Schema.properties[spec].type`).
    pub fn parse(schema: &Value) -> Result<Self, Vec<FieldError>> {
        Self::parse_at("openAPIV3Schema", schema)
    }

    /// Like [`Self::parse`], with the path under which errors are reported
    /// (`spec.versions[0].schema.openAPIV3Schema`).
    ///
    /// # Errors
    /// Everything that makes the schema non-structural, sorted as Kubernetes sorts it.
    pub fn parse_at(path: &str, schema: &Value) -> Result<Self, Vec<FieldError>> {
        parse::parse(path, schema)
    }

    /// Parses the schema of a stored definition: a schema that was accepted once stays served.
    ///
    /// # Errors
    /// The parts of the schema that cannot be served.
    pub fn stored(schema: &Value) -> Result<Self, Vec<FieldError>> {
        parse::parse_stored(schema)
    }

    /// Returns the type of the field at a dotted path from the root, such as `.spec.size`; `None` if there is no
    /// such field, or it has no type.
    pub fn at_path(&self, path: &str) -> Option<NodeType> {
        path.strip_prefix('.')?.split('.').try_fold(&self.root, |node, name| node.member(name))?.ty
    }

    /// Returns a schema without any constraints: everything is kept, nothing is validated, lists are atomic
    /// and maps granular.
    pub fn untyped() -> Self {
        Self { root: Node { preserve_unknown: true, ..Node::default() } }
    }

    /// Removes the fields that the schema does not declare and returns their paths, sorted (`spec.foo`,
    /// `spec.disks[0].bar`). `apiVersion`, `kind` and `metadata` of the root are declared for every object;
    /// unknown fields of `metadata` are removed too.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(&self.root, object)
    }

    /// Drops nulls in fields that are not nullable and sets defaults in the whole object, including `status`.
    pub fn default(&self, object: &mut Value) {
        defaults::default_object(&self.root, object);
    }

    /// Sets defaults as [`Self::default`] does, but keeps nulls so that they are refused: an applied null is
    /// deliberate.
    pub fn default_applied(&self, object: &mut Value) {
        defaults::fill_object(&self.root, object);
    }

    /// Validates the value; invalid values that are unchanged since `old` are tolerated (validation
    /// ratcheting).
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        validate::validate_object(&self.root, object, old)
    }

    /// Like [`Self::validate`] for writes that change only `status`.
    pub fn validate_status(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        if too_deep(object) || old.is_some_and(too_deep) {
            return self.validate(object, old);
        }
        validate::validate_status(&self.root, object, old)
    }

    /// Evaluates `x-kubernetes-validations`; transition rules only where `old` has the same field.
    pub(crate) fn validate_cel(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        rules::validate_object(&self.root, object, old)
    }

    /// Runs [`Self::validate_cel`] unless an earlier error could make rules fail; then returns the single
    /// error that rules were not checked, as in Kubernetes.
    pub fn check_rules(&self, found: &[FieldError], object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        if !found.iter().any(|error| error.kind.blocks_rules()) {
            return self.validate_cel(object, old);
        }
        let error = FieldError {
            kind: ErrorKind::Invalid,
            field: "<nil>".to_owned(),
            message: "Invalid value: null: some validation rules were not checked because the object was invalid; correct \
                      the existing errors to complete validation"
                .to_owned(),
        };
        if self.root.has_rules { vec![error] } else { Vec::new() }
    }
}

/// Whether a value nests deeper than [`MAX_DEPTH`]. Never recurses further than that itself.
pub fn too_deep(value: &Value) -> bool {
    fn deeper_than(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left == 0 || items.iter().any(|v| deeper_than(v, left - 1)),
            Value::Object(map) => left == 0 || map.values().any(|v| deeper_than(v, left - 1)),
            _ => false,
        }
    }
    deeper_than(value, MAX_DEPTH)
}

#[cfg(test)]
mod tests;
