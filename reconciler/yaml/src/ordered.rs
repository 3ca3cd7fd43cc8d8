//! Documents whose mappings keep the order of the text.

use std::fmt::{self, Write as _};

use serde_json::Value;

/// A value whose mappings are in the order of their text; [`Value`] sorts them.
///
/// It is printed as compact JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// Null, a boolean, a number or a text.
    Scalar(Value),
    /// A list.
    List(Vec<Self>),
    /// A mapping. Each key is there once.
    Map(Vec<(String, Self)>),
}

impl From<Ordered> for Value {
    fn from(ordered: Ordered) -> Self {
        match ordered {
            Ordered::Scalar(value) => value,
            Ordered::List(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Ordered::Map(members) => {
                Self::Object(members.into_iter().map(|(name, value)| (name, value.into())).collect())
            }
        }
    }
}

impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(value) => write!(f, "{value}"),
            Self::List(items) => {
                f.write_char('[')?;
                for (place, item) in items.iter().enumerate() {
                    let comma = if place > 0 { "," } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                f.write_char(']')
            }
            Self::Map(members) => {
                f.write_char('{')?;
                for (place, (name, value)) in members.iter().enumerate() {
                    let comma = if place > 0 { "," } else { "" };
                    write!(f, "{comma}{}:{value}", Value::from(name.as_str()))?;
                }
                f.write_char('}')
            }
        }
    }
}
