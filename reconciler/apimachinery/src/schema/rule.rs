//! A rule of `x-kubernetes-validations`.

use super::ErrorKind;
use super::expression::Expression;

/// A rule as declared; compiled once the surrounding schema is known.
#[derive(Debug)]
pub struct Rule {
    pub(super) path: String,
    pub(super) source: String,
    pub(super) message: Option<String>,
    pub(super) message_source: Option<String>,
    pub(super) reason: Option<ErrorKind>,
    pub(super) field_path: Option<String>,
    pub(super) optional_old_self: bool,
    pub(super) program: Option<Expression>,
    pub(super) message_program: Option<Expression>,
}
