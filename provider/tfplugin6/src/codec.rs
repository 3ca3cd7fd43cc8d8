//! Values to and from bytes, driven by their type: plans and states travel as [`msgpack`], states are stored as [`json`].
//!
//! All input is untrusted: a length alone never causes an allocation, and the type bounds the depth.

pub(crate) mod json;
pub(crate) mod msgpack;
#[cfg(test)]
mod tests;

use crate::{
    path::{AttributePath, Step},
    ty::Type,
    value::Value,
};

impl Value {
    /// Reads cty's MessagePack, the encoding of plans and states on the wire.
    ///
    /// # Errors
    /// When the bytes do not hold a value of this type; the error names the attribute.
    pub fn from_msgpack(bytes: &[u8], ty: &Type) -> Result<Self, ValueError> {
        msgpack::decode(bytes, ty)
    }

    /// Writes cty's MessagePack.
    ///
    /// # Errors
    /// When the value is not of this type; the error names the attribute.
    pub fn to_msgpack(&self, ty: &Type) -> Result<Vec<u8>, ValueError> {
        msgpack::encode(self, ty)
    }

    /// Reads cty's JSON, the encoding of stored states. Attributes the type does not have are refused.
    ///
    /// # Errors
    /// When the text does not hold a value of this type; the error names the attribute.
    pub fn from_json(text: &str, ty: &Type) -> Result<Self, ValueError> {
        json::decode(text.as_bytes(), ty)
    }

    /// Writes cty's JSON.
    ///
    /// # Errors
    /// When the value is not of this type or holds something unknown; the error names the attribute.
    pub fn to_json(&self, ty: &Type) -> Result<String, ValueError> {
        json::encode(self, ty)
    }
}

/// An error for a value that does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct ValueError {
    /// The path of the value.
    pub path: AttributePath,
    /// The problem at that path.
    pub problem: ValueProblem,
}

/// A problem with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueProblem {
    /// The value is of another type.
    #[error("expected {expected}, found {found}")]
    Mismatch {
        /// The expected type.
        expected: String,
        /// The kind of value found.
        found: String,
    },
    /// The type has no such attribute.
    #[error("no such attribute in the schema")]
    UnknownAttribute,
    /// The number is malformed.
    #[error("{0}")]
    Number(String),
    /// The bytes are malformed.
    #[error("malformed: {0}")]
    Malformed(String),
    /// Unknown values cannot be stored.
    #[error("is unknown, which JSON cannot hold")]
    Unknown,
}

impl ValueProblem {
    pub(crate) fn mismatch(expected: impl ToString, found: impl ToString) -> ValueError {
        Self::Mismatch { expected: expected.to_string(), found: found.to_string() }.here()
    }

    pub(crate) fn malformed(what: impl ToString) -> ValueError {
        Self::Malformed(what.to_string()).here()
    }

    pub(crate) fn here(self) -> ValueError {
        ValueError { path: AttributePath::empty(), problem: self }
    }
}

impl ValueError {
    /// Prepends a step to the path.
    fn under(self, step: Step) -> Self {
        Self { path: self.path.under(step), problem: self.problem }
    }
}

/// The step to an index of a list.
fn nth(index: usize) -> Step {
    Step::Index(i64::try_from(index).unwrap_or(i64::MAX))
}
