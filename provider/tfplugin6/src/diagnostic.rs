//! What a provider tells its user: what failed, where, and what to do.

use crate::path::AttributePath;

/// How bad a [`Diagnostic`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The operation did not succeed. On create, Terraform taints what the provider returned as state.
    Error,
    /// Shown, and nothing else.
    Warning,
}

/// One message to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// One line: what failed.
    pub summary: String,
    /// Why, and what to do.
    pub detail: String,
    /// The attribute it is about; Terraform shows that line of the configuration.
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

    /// The same, pointing at an attribute.
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
