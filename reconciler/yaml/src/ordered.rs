//! Documents whose mappings keep the order of the text.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

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
    /// Recurses as deep as the document nests. With loops, each level takes one frame of the stack.
    fn from(ordered: Ordered) -> Self {
        match ordered {
            Ordered::Scalar(value) => value,
            Ordered::List(items) => {
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    list.push(Self::from(item));
                }
                Self::Array(list)
            }
            Ordered::Map(members) => {
                let mut map = Map::new();
                for (name, value) in members {
                    map.insert(name, Self::from(value));
                }
                Self::Object(map)
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
