//! Diagnostics: errors and warnings for the user, with the cause, the place and the remedy.

use crate::path::AttributePath;

/// The severity of a [`Diagnostic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The operation failed. On create, Terraform taints the state that the provider returned.
    Error,
    /// Shown, without other effect.
    Warning,
}

/// One message to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// One line: the failure.
    pub summary: String,
    /// The cause and the remedy.
    pub detail: String,
    /// The attribute concerned; Terraform shows that line of the configuration.
    pub attribute: Option<AttributePath>,
}

impl Diagnostic {
    /// An error.
    #[must_use]
    pub fn error(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Error, summary: summary.into(), detail: detail.into(), attribute: None }
    }

    /// A warning.
    #[must_use]
    pub fn warning(summary: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(summary, detail) }
    }

    /// Sets the attribute that the diagnostic points at.
    #[must_use]
    pub fn at(mut self, attribute: impl Into<AttributePath>) -> Self {
        self.attribute = Some(attribute.into());
        self
    }

    /// Whether this is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Whether any of `diagnostics` is an error.
#[must_use]
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(Diagnostic::is_error)
}
