//! A path element: a field, a list item by key or by value, an index. Ordered as in Kubernetes.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

/// A JSON value with the order of structured-merge-diff: numbers, strings, booleans, lists, maps, null.
#[derive(Clone, Debug)]
pub(crate) struct Scalar(pub Value);

impl Scalar {
    fn rank(&self) -> u8 {
        match &self.0 {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
            },
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {
                self.0.to_string().cmp(&other.0.to_string())
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

/// A path element. The order of the variants is the order of the elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathElement {
    /// A field of a map.
    Field(String),
    /// An item of a list-map, by its key fields sorted by name.
    Key(Vec<(String, Scalar)>),
    /// An item of a set.
    Value(Scalar),
    /// An item by position.
    Index(i64),
}

impl PathElement {
    pub(crate) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// Parses a key of FieldsV1: `f:name`, `k:{"name":"x"}`, `v:"x"`, `i:0`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        Some(match kind {
            "f" => Self::Field(rest.to_owned()),
            "v" => Self::Value(Scalar(serde_json::from_str(rest).ok()?)),
            "i" => Self::Index(rest.parse().ok()?),
            "k" => {
                let Value::Object(map) = serde_json::from_str(rest).ok()? else { return None };
                let mut pairs: Vec<_> = map.into_iter().map(|(k, v)| (k, Scalar(v))).collect();
                pairs.sort();
                Self::Key(pairs)
            }
            _ => return None,
        })
    }

    /// Returns the element as a key of FieldsV1.
    pub(crate) fn serialize(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Value(value) => format!("v:{}", go_json(&value.0)),
            Self::Index(at) => format!("i:{at}"),
            Self::Key(pairs) => {
                let pairs: Vec<_> = pairs
                    .iter()
                    .map(|(k, v)| format!("{}:{}", go_json(&Value::from(k.as_str())), go_json(&v.0)))
                    .collect();
                format!("k:{{{}}}", pairs.join(","))
            }
        }
    }
}

/// Returns JSON as Go's encoder writes it: `<`, `>` and `&` escaped, so that entries compare equal as text.
fn go_json(value: &Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Value(value) => write!(f, "[={}]", value.0),
            Self::Index(at) => write!(f, "[{at}]"),
            Self::Key(pairs) => {
                let pairs: Vec<_> = pairs.iter().map(|(k, v)| format!("{k}={}", v.0)).collect();
                write!(f, "[{}]", pairs.join(","))
            }
        }
    }
}
