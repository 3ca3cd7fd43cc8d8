//! Explains in sentences what an object waits for. Pure: from objects to text.
//!
//! ```text
//!   references ─▶ (the command reads them) ─▶ Node: an object and what it depends on
//!                                               │
//!                         sentences ◀───────────┘   what is wrong, of the object and below it; what to do
//! ```
//!
//! It reads objects as JSON, so that it explains those of an older or newer control plane too.

mod references;
mod sentences;
mod slow;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub(crate) use references::{Reference, references};
pub(crate) use sentences::{explain, is_emulated};
pub(crate) use slow::slowness;

/// An object that others depend on, as far as the user may read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    Object(Value),
    Missing,
    /// The user has no right to read it.
    Forbidden,
}

/// An object with what it depends on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// Its role for the object that depends on it, for example `disk`. Empty for the object in question.
    pub(crate) role: &'static str,
    /// `disk/root`
    pub(crate) name: String,
    pub(crate) found: Found,
    pub(crate) dependencies: Vec<Self>,
}
