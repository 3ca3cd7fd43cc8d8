//! Types of values: cty, Terraform's type system, and its JSON form.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde_json::Value as Json;

/// The type of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// `bool`
    Bool,
    /// `number`: arbitrary precision
    Number,
    /// `string`
    String,
    /// `any`: the value carries its own type
    Dynamic,
    /// `list(…)`
    List(Box<Type>),
    /// `set(…)`
    Set(Box<Type>),
    /// `map(…)`
    Map(Box<Type>),
    /// `object({…})`
    Object(BTreeMap<String, Type>),
    /// `tuple([…])`
    Tuple(Vec<Type>),
}

impl Type {
    /// `list(element)`
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Box::new(element))
    }

    /// `set(element)`
    #[must_use]
    pub fn set(element: Self) -> Self {
        Self::Set(Box::new(element))
    }

    /// `map(element)`
    #[must_use]
    pub fn map(element: Self) -> Self {
        Self::Map(Box::new(element))
    }

    /// `object({name = type, …})`
    #[must_use]
    pub fn object<N: Into<String>>(attributes: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Object(attributes.into_iter().map(|(name, ty)| (name.into(), ty)).collect())
    }

    /// Whether the type contains `Dynamic` anywhere.
    #[must_use]
    pub fn has_dynamic(&self) -> bool {
        match self {
            Self::Dynamic => true,
            Self::Bool | Self::Number | Self::String => false,
            Self::List(element) | Self::Set(element) | Self::Map(element) => element.has_dynamic(),
            Self::Object(attributes) => attributes.values().any(Self::has_dynamic),
            Self::Tuple(elements) => elements.iter().any(Self::has_dynamic),
        }
    }

    /// The type's JSON form, as on the wire: `["list","string"]`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool => Json::from("bool"),
            Self::Number => Json::from("number"),
            Self::String => Json::from("string"),
            Self::Dynamic => Json::from("dynamic"),
            Self::List(element) => Json::from(vec![Json::from("list"), element.to_json()]),
            Self::Set(element) => Json::from(vec![Json::from("set"), element.to_json()]),
            Self::Map(element) => Json::from(vec![Json::from("map"), element.to_json()]),
            Self::Object(attributes) => {
                let attributes = attributes.iter().map(|(name, ty)| (name.clone(), ty.to_json())).collect();
                Json::from(vec![Json::from("object"), Json::Object(attributes)])
            }
            Self::Tuple(elements) => {
                let elements = elements.iter().map(Self::to_json).collect();
                Json::from(vec![Json::from("tuple"), Json::Array(elements)])
            }
        }
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// When the JSON is not a type.
    pub fn from_json(json: &Json) -> Result<Self, TypeError> {
        let wrong = || TypeError(json.to_string());
        match json {
            Json::String(name) => match name.as_str() {
                "bool" => Ok(Self::Bool),
                "number" => Ok(Self::Number),
                "string" => Ok(Self::String),
                "dynamic" => Ok(Self::Dynamic),
                _ => Err(wrong()),
            },
            Json::Array(parts) => match parts.as_slice() {
                [Json::String(kind), element] if kind == "list" => Ok(Self::list(Self::from_json(element)?)),
                [Json::String(kind), element] if kind == "set" => Ok(Self::set(Self::from_json(element)?)),
                [Json::String(kind), element] if kind == "map" => Ok(Self::map(Self::from_json(element)?)),
                // A third part names the optional attributes of a type constraint; a value's type has none.
                [Json::String(kind), Json::Object(attributes), ..]
                    if kind == "object" && parts.len() <= 3 =>
                {
                    let attributes =
                        attributes.iter().map(|(name, ty)| Ok((name.clone(), Self::from_json(ty)?)));
                    Ok(Self::Object(attributes.collect::<Result<_, TypeError>>()?))
                }
                [Json::String(kind), Json::Array(elements)] if kind == "tuple" => {
                    Ok(Self::Tuple(elements.iter().map(Self::from_json).collect::<Result<_, _>>()?))
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

/// The error for JSON that is not a type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a type: {0}")]
pub struct TypeError(String);

impl FromStr for Type {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        // serde_json refuses more than 128 levels, which bounds the recursion of `from_json`.
        let json = serde_json::from_str(text).map_err(|_| TypeError(text.to_owned()))?;
        Self::from_json(&json)
    }
}

/// Written as in the Terraform language: `list(string)`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => write!(f, "bool"),
            Self::Number => write!(f, "number"),
            Self::String => write!(f, "string"),
            Self::Dynamic => write!(f, "any"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Set(element) => write!(f, "set({element})"),
            Self::Map(element) => write!(f, "map({element})"),
            Self::Object(_) => write!(f, "object"),
            Self::Tuple(_) => write!(f, "tuple"),
        }
    }
}
