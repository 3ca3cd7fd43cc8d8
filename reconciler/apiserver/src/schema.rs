//! Structural schemas of custom resources: prune, default, validate, CEL rules.
//!
//! Pure functions over JSON values, worded and ordered as a kube-apiserver does it, because clients show
//! these messages to people and tools compare them. Knows no HTTP, no storage and no clock.

mod defaults;
pub(crate) mod expression;
mod formats;
pub(crate) mod message;
mod node;
mod numbers;
mod parse;
mod pattern;
mod prune;
mod rules;
mod validate;
mod validate_nested;

use std::fmt;

use serde_json::Value;

pub(crate) use message::quote;
pub(crate) use node::{Additional, ListType, Node, Type as NodeType};
pub(crate) use numbers::{whole, whole_numbers};
pub(crate) use validate::equal;

/// How deep a value or a schema may nest: serde_json's own parser stops here as well.
pub(crate) const MAX_DEPTH: usize = 128;

/// The kind of a field error; maps onto the `reason` of a Kubernetes `StatusCause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ErrorKind {
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
    pub(crate) fn as_str(self) -> &'static str {
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

    /// Rules rely on types, required fields and bounds; without them they could fail in ways nobody
    /// understands.
    fn blocks_rules(self) -> bool {
        matches!(
            self,
            Self::Required | Self::TypeInvalid | Self::NotSupported | Self::TooLong | Self::TooMany
        )
    }
}

/// One thing wrong with one field. `message` is the error's body without the field (a cause's `message`);
/// `Display` is the whole sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) kind: ErrorKind,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A parsed structural schema. Cheap to share behind an `Arc`; CEL programs are compiled once, here.
#[derive(Debug)]
pub(crate) struct StructuralSchema {
    pub(crate) root: Node,
}

impl StructuralSchema {
    /// Parses `openAPIV3Schema` and refuses what is not structural.
    ///
    /// # Errors
    /// Field paths are relative to the schema (`openAPIV3Schema.properties[spec].type`).
    pub(crate) fn parse(schema: &Value) -> Result<Self, Vec<FieldError>> {
        Self::parse_at("openAPIV3Schema", schema)
    }

    /// Like [`Self::parse`], with the path under which errors are reported
    /// (`spec.versions[0].schema.openAPIV3Schema`).
    ///
    /// # Errors
    /// Everything that makes the schema non-structural, sorted as Kubernetes sorts it.
    pub(crate) fn parse_at(path: &str, schema: &Value) -> Result<Self, Vec<FieldError>> {
        parse::parse(path, schema)
    }

    /// Reads the schema of a definition that is stored: what was accepted once is served.
    ///
    /// # Errors
    /// What cannot be served.
    pub(crate) fn stored(schema: &Value) -> Result<Self, Vec<FieldError>> {
        parse::parse_stored(schema)
    }

    /// The type of the field at a dotted path from the root: `.spec.size`. `None`: the field has none.
    ///
    /// # Errors
    /// What is wrong with the path, as kube-apiserver says it.
    pub(crate) fn at_path(&self, path: &str) -> Result<Option<NodeType>, String> {
        let Some(names) = path.strip_prefix('.') else {
            return Err(format!(
                "expected [ or . but got: {}",
                path.split(['.', '[']).next().unwrap_or_default()
            ));
        };
        let mut node = &self.root;
        for name in names.split('.') {
            if name.contains('[') {
                return Err("array notation is not allowed".to_owned());
            }
            if name.is_empty() {
                return Err("unexpected end of JSON path".to_owned());
            }
            let next = match node.properties.is_empty() {
                true => node.additional_schema(),
                false => node.properties.get(name),
            };
            node = next.ok_or("does not refer to a valid field")?;
        }
        Ok(node.ty)
    }

    /// A schema that says nothing: everything is kept, nothing is validated, lists are atomic and maps
    /// granular.
    pub(crate) fn untyped() -> Self {
        Self { root: Node { preserve_unknown: true, ..Node::default() } }
    }

    /// Removes what the schema does not name and returns the paths removed, sorted (`spec.foo`,
    /// `spec.disks[0].bar`). `apiVersion`, `kind` and `metadata` of the root are known to every object;
    /// unknown fields of `metadata` go too.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(&self.root, object)
    }

    /// Drops nulls that may not be null and fills in defaults, in all of the object, `status` too.
    pub(crate) fn default(&self, object: &mut Value) {
        defaults::default_object(&self.root, object);
    }

    /// Fills in defaults as [`Self::default`] does, and leaves nulls to be refused: nobody applies them by accident.
    pub(crate) fn default_applied(&self, object: &mut Value) {
        defaults::fill_object(&self.root, object);
    }

    /// Checks the value; what did not change since `old` is not held against the request (validation
    /// ratcheting).
    pub(crate) fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        validate::validate_object(&self.root, object, old)
    }

    /// Like [`Self::validate`] for writes that change nothing but `status`.
    pub(crate) fn validate_status(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        if too_deep(object) || old.is_some_and(too_deep) {
            return self.validate(object, old);
        }
        validate::validate_status(&self.root, object, old)
    }

    /// Evaluates `x-kubernetes-validations`; transition rules only where `old` has the same field.
    pub(crate) fn validate_cel(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        rules::validate_object(&self.root, object, old)
    }

    /// [`Self::validate`], then [`Self::check_rules`].
    #[cfg(test)]
    pub(crate) fn validate_all(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = self.validate(object, old);
        let of_rules = self.check_rules(&errors, object, old);
        errors.extend(of_rules);
        errors
    }

    /// [`Self::validate_cel`] unless something was found before that rules could trip over, in which case the one error says
    /// that rules were not checked, as in Kubernetes.
    pub(crate) fn check_rules(
        &self,
        found: &[FieldError],
        object: &Value,
        old: Option<&Value>,
    ) -> Vec<FieldError> {
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
pub(crate) fn too_deep(value: &Value) -> bool {
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
