//! Values to and from bytes, driven by their type: [`msgpack`] is what plans and states travel as, [`json`] what
//! states are stored as.
//!
//! Everything read here is untrusted: nothing is allocated on the word of a length, and depth is bounded by the type.

pub(crate) mod json;
pub(crate) mod msgpack;
#[cfg(test)]
mod tests;

use crate::path::{AttributePath, Step};

/// A value does not fit its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct ValueError {
    /// Where.
    pub path: AttributePath,
    /// What is wrong there.
    pub problem: ValueProblem,
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueProblem {
    /// Of another type.
    #[error("expected {expected}, found {found}")]
    Mismatch {
        /// The type it should have.
        expected: String,
        /// What it is.
        found: String,
    },
    /// No such attribute.
    #[error("no such attribute in the schema")]
    UnknownAttribute,
    /// A number that is none.
    #[error("{0}")]
    Number(String),
    /// The bytes are not what they claim to be.
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
    /// The same error, seen from one step further out.
    fn under(self, step: Step) -> Self {
        Self { path: self.path.under(step), problem: self.problem }
    }
}

/// A step into a list, from a position.
fn nth(index: usize) -> Step {
    Step::Index(i64::try_from(index).unwrap_or(i64::MAX))
}
