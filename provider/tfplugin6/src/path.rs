//! Paths to a place within a value, as diagnostics use them.

use std::fmt;

/// One step into a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// An attribute of an object, or a nested block by its type name.
    Attribute(String),
    /// An element of a map.
    Key(String),
    /// An element of a list or tuple. For an element of a set, its index in the order received: Terraform has no name for it,
    /// so a path in `requires_replace` is cut at the set.
    Index(i64),
}

/// The path from the root of a configuration or state to one value.
///
/// ```
/// # use tfplugin6::AttributePath;
/// let path = AttributePath::root("disks").index(0).attribute("labels").key("tier");
/// assert_eq!(path.to_string(), r#"disks[0].labels["tier"]"#);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributePath {
    steps: Vec<Step>,
}

impl AttributePath {
    /// The whole value.
    #[must_use]
    pub const fn empty() -> Self {
        Self { steps: Vec::new() }
    }

    /// A top-level attribute or block.
    #[must_use]
    pub fn root(attribute: impl Into<String>) -> Self {
        Self::empty().attribute(attribute)
    }

    /// Appends an attribute.
    #[must_use]
    pub fn attribute(self, name: impl Into<String>) -> Self {
        self.step(Step::Attribute(name.into()))
    }

    /// Appends a key of a map.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        self.step(Step::Key(key.into()))
    }

    /// Appends an index of a list.
    #[must_use]
    pub fn index(self, index: usize) -> Self {
        self.step(Step::Index(i64::try_from(index).unwrap_or(i64::MAX)))
    }

    /// Appends a step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The steps, outermost first.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether this is the whole value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Prepends a step.
    pub(crate) fn under(mut self, outer: Step) -> Self {
        self.steps.insert(0, outer);
        self
    }
}

impl From<&str> for AttributePath {
    fn from(attribute: &str) -> Self {
        Self::root(attribute)
    }
}

impl From<Vec<Step>> for AttributePath {
    fn from(steps: Vec<Step>) -> Self {
        Self { steps }
    }
}

impl fmt::Display for AttributePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            match step {
                Step::Attribute(name) if i == 0 => write!(f, "{name}")?,
                Step::Attribute(name) => write!(f, ".{name}")?,
                Step::Key(key) => write!(f, "[{key:?}]")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
