//! Errors of fake machines, in QEMU's classes and texts.

use serde_json::Value;

use super::machine::Later;

/// The reply to a command, and the delayed transitions that it causes.
pub(super) type Answer = Result<(Value, Vec<Later>), CommandError>;

/// An error as QEMU sends it.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) class: &'static str,
    pub(super) desc: String,
}

impl CommandError {
    pub(super) fn generic(desc: impl Into<String>) -> Self {
        Self { class: "GenericError", desc: desc.into() }
    }
    pub(super) fn not_found(desc: String) -> Self {
        Self { class: "DeviceNotFound", desc }
    }
    pub(super) fn missing(name: &str) -> Self {
        Self::generic(format!("Parameter '{name}' is missing"))
    }
    pub(super) fn unexpected(name: &str) -> Self {
        Self::generic(format!("Parameter '{name}' is unexpected"))
    }
    pub(super) fn kind(name: &str, expected: &str) -> Self {
        Self::generic(format!("Invalid parameter type for '{name}', expected: {expected}"))
    }
}
