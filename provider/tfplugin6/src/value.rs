//! Values of configurations, states and plans.

use std::collections::BTreeMap;

use crate::{
    number::Number,
    path::{AttributePath, Step},
    ty::Type,
};

/// A value. It does not carry its [`Type`], which the schema defines.
///
/// `==` compares the representation: two sets with the same elements in another order differ. [`crate::plan::same`] takes a
/// type and compares sets as sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// Not set.
    #[default]
    Null,
    /// Not known before apply. A refinement may constrain the future value.
    Unknown(Option<Box<Refinement>>),
    /// `bool`
    Bool(bool),
    /// `number`
    Number(Number),
    /// `string`
    String(String),
    /// A list, set or tuple.
    List(Vec<Value>),
    /// A map or object. An object may omit attributes: they are null.
    Map(BTreeMap<String, Value>),
    /// A value for [`Type::Dynamic`], with its type.
    Dynamic(Box<(Type, Value)>),
}

/// The known constraints of an unknown value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refinement {
    /// It will not be null.
    pub not_null: bool,
    /// The string will start with this.
    pub prefix: Option<String>,
    /// The number will be at least this (inclusive if true).
    pub number_min: Option<(Number, bool)>,
    /// The number will be at most this (inclusive if true).
    pub number_max: Option<(Number, bool)>,
    /// The collection will have at least this many elements.
    pub length_min: Option<u64>,
    /// The collection will have at most this many elements.
    pub length_max: Option<u64>,
}

static NULL: Value = Value::Null;
static UNKNOWN: Value = Value::Unknown(None);

impl Value {
    /// Not known before apply.
    pub const UNKNOWN: Self = Self::Unknown(None);

    /// An object or a map.
    ///
    /// ```
    /// # use tfplugin6::Value;
    /// let value = Value::object([("name", Value::from("web")), ("cpus", Value::from(2))]);
    /// assert_eq!(value.get("name").as_str(), Some("web"));
    /// assert!(value.get("absent").is_null());
    /// ```
    #[must_use]
    pub fn object<N: Into<String>>(entries: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Map(entries.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// Whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Dynamic(inner) => inner.1.is_null(),
            _ => false,
        }
    }

    /// Whether the value itself is unknown; values inside it may be unknown too, see [`Self::is_wholly_known`].
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Unknown(_) => true,
            Self::Dynamic(inner) => inner.1.is_unknown(),
            _ => false,
        }
    }

    /// Whether the value is known and not null. One that is not known yet may turn out to be null.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.is_null() && !self.is_unknown()
    }

    /// Whether the value contains nothing unknown.
    #[must_use]
    pub fn is_wholly_known(&self) -> bool {
        match self {
            Self::Unknown(_) => false,
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => true,
            Self::List(elements) => elements.iter().all(Self::is_wholly_known),
            Self::Map(entries) => entries.values().all(Self::is_wholly_known),
            Self::Dynamic(inner) => inner.1.is_wholly_known(),
        }
    }

    /// An attribute or map element. Null if the value is null or has no such element, unknown if the value is unknown: so
    /// `v.get("a").get("b")` needs no checks between.
    #[must_use]
    pub fn get(&self, name: &str) -> &Self {
        match self {
            Self::Map(entries) => entries.get(name).unwrap_or(&NULL),
            Self::Unknown(_) => &UNKNOWN,
            Self::Dynamic(inner) => inner.1.get(name),
            _ => &NULL,
        }
    }

    /// An element of a list, as [`Self::get`].
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "the operator could not promise that it never panics")]
    pub fn index(&self, index: usize) -> &Self {
        match self {
            Self::List(elements) => elements.get(index).unwrap_or(&NULL),
            Self::Unknown(_) => &UNKNOWN,
            Self::Dynamic(inner) => inner.1.index(index),
            _ => &NULL,
        }
    }

    /// The value at a path, as [`Self::get`].
    #[must_use]
    pub fn at(&self, path: &AttributePath) -> &Self {
        path.steps().iter().fold(self, |value, step| match step {
            Step::Attribute(name) | Step::Key(name) => value.get(name),
            Step::Index(index) => usize::try_from(*index).map_or(&NULL, |index| value.index(index)),
        })
    }

    /// An attribute or map element to change. None when the value is not a map or object or has no such element.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        match self {
            Self::Map(entries) => entries.get_mut(name),
            _ => None,
        }
    }

    /// Sets an attribute or map element; a null value becomes an object first. Returns false and changes nothing when the
    /// value is none of these.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Self>) -> bool {
        if *self == Self::Null {
            *self = Self::Map(BTreeMap::new());
        }
        match self {
            Self::Map(entries) => {
                entries.insert(name.into(), value.into());
                true
            }
            _ => false,
        }
    }

    /// The boolean, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The string, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(value) => Some(value),
            _ => None,
        }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Self::Number(value) => Some(value),
            _ => None,
        }
    }

    /// The number as an integer, if it is one and fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    /// The elements, if it is a list, set or tuple.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(elements) => Some(elements),
            _ => None,
        }
    }

    /// The entries, if it is a map or object.
    #[must_use]
    pub fn as_map(&self) -> Option<&BTreeMap<String, Self>> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The elements of a list, to iterate: empty when it is null or unknown.
    #[must_use]
    pub fn elements(&self) -> &[Self] {
        self.as_list().unwrap_or(&[])
    }

    /// Replaces every unknown by null: a state may hold the result after a failed apply.
    #[must_use]
    pub fn unknown_as_null(self) -> Self {
        match self {
            Self::Unknown(_) => Self::Null,
            Self::List(elements) => Self::List(elements.into_iter().map(Self::unknown_as_null).collect()),
            Self::Map(entries) => {
                Self::Map(entries.into_iter().map(|(name, value)| (name, value.unknown_as_null())).collect())
            }
            Self::Dynamic(inner) => Self::Dynamic(Box::new((inner.0, inner.1.unknown_as_null()))),
            known => known,
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

impl From<Number> for Value {
    fn from(value: Number) -> Self {
        Self::Number(value)
    }
}

macro_rules! from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Value {
            fn from(value: $integer) -> Self {
                Self::Number(Number::from(value))
            }
        }
    )*};
}
from_integer!(i32, i64, u16, u32, u64);

impl<V: Into<Self>> From<Option<V>> for Value {
    fn from(value: Option<V>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<V: Into<Self>> From<Vec<V>> for Value {
    fn from(elements: Vec<V>) -> Self {
        Self::List(elements.into_iter().map(Into::into).collect())
    }
}

impl<V: Into<Self>> From<BTreeMap<String, V>> for Value {
    fn from(entries: BTreeMap<String, V>) -> Self {
        Self::Map(entries.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}
