//! A function: `provider::berth::name(…)`. Pure: no configuration, no state.

use async_trait::async_trait;

use crate::{ty::Type, value::Value};

/// One function (Terraform 1.8 and later).
#[async_trait]
pub trait Function: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &str;

    /// What it takes and gives.
    fn signature(&self) -> Signature;

    /// Computes. One argument a parameter; what is given for [`Signature::variadic`] follows.
    async fn call(&self, arguments: Vec<Value>) -> Result<Value, FunctionError>;
}

/// What a [`Function`] takes and gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What it takes, in order.
    pub parameters: Vec<Parameter>,
    /// What it takes any number of, after the others.
    pub variadic: Option<Parameter>,
    /// What it gives.
    pub returns: Type,
    /// One line.
    pub summary: String,
    /// For the documentation, in Markdown.
    pub description: String,
    /// Why it should not be used any more.
    pub deprecated: Option<String>,
}

impl Signature {
    /// A function of these parameters.
    #[must_use]
    pub fn new(parameters: Vec<Parameter>, returns: Type, summary: impl Into<String>) -> Self {
        Self {
            parameters,
            variadic: None,
            returns,
            summary: summary.into(),
            description: String::new(),
            deprecated: None,
        }
    }
}

/// One parameter of a [`Function`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, for the documentation.
    pub name: String,
    /// What values it takes.
    pub ty: Type,
    /// Whether null gets to the function; if not, Terraform refuses it.
    pub allow_null: bool,
    /// Whether unknown gets to the function; if not, the result is unknown.
    pub allow_unknown: bool,
    /// For the documentation, in Markdown.
    pub description: String,
}

impl Parameter {
    /// A parameter that is neither null nor unknown.
    #[must_use]
    pub fn new(name: impl Into<String>, ty: Type, description: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ty,
            allow_null: false,
            allow_unknown: false,
            description: description.into(),
        }
    }
}

/// Why a function has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FunctionError {
    /// What to tell.
    pub text: String,
    /// The argument it is about, from 0.
    pub argument: Option<usize>,
}
