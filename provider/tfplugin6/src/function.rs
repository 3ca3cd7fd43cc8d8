//! Functions: `provider::berth::name(…)`. Pure: no configuration, no state.

use async_trait::async_trait;

use crate::{ty::Type, value::Value};

/// One function (Terraform 1.8 and later).
#[async_trait]
pub trait Function: Send + Sync + 'static {
    /// The name.
    fn name(&self) -> &str;

    /// The signature.
    fn signature(&self) -> Signature;

    /// Calls the function. `arguments` has one argument per parameter, then those of [`Signature::variadic`].
    async fn call(&self, arguments: Vec<Value>) -> Result<Value, FunctionError>;
}

/// The parameters and result of a [`Function`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The parameter that accepts any number of further arguments.
    pub variadic: Option<Parameter>,
    /// The type of the result.
    pub returns: Type,
    /// The summary: one line.
    pub summary: String,
    /// The description for the documentation, in Markdown.
    pub description: String,
    /// The deprecation message, if it is deprecated.
    pub deprecated: Option<String>,
}

impl Signature {
    /// A function with these parameters.
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
    /// The name, for the documentation.
    pub name: String,
    /// The type of its values.
    pub ty: Type,
    /// Whether the function accepts null; if not, Terraform refuses it.
    pub allow_null: bool,
    /// Whether the function accepts unknown values; if not, the result is unknown.
    pub allow_unknown: bool,
    /// The description for the documentation, in Markdown.
    pub description: String,
}

impl Parameter {
    /// A parameter that accepts neither null nor unknown.
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

/// The error of a function call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FunctionError {
    /// The error text.
    pub text: String,
    /// The index of the argument concerned, from 0.
    pub argument: Option<usize>,
}

impl FunctionError {
    /// An error of the argument with this index, from 0.
    #[must_use]
    pub fn argument(index: usize, text: impl Into<String>) -> Self {
        Self { text: text.into(), argument: Some(index) }
    }
}
