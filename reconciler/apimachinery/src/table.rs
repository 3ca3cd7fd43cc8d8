//! `meta.k8s.io/v1` Tables: the output of `kubectl get`.
//!
//! Columns come from a CRD's printer columns or are built in. Pure: the current time, for ages, is an
//! argument.

mod age;
mod builtin;
mod json_path;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub(crate) use json_path::JsonPath;

/// How much of each object a row includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`.
    pub fn parse(text: &str) -> Self {
        match text {
            "None" => Self::None,
            "Object" => Self::Object,
            _ => Self::Metadata,
        }
    }
}

type Cell = fn(&Value, Timestamp) -> Value;

#[derive(Debug)]
enum Source {
    Path(Option<JsonPath>),
    Function(Cell),
}

#[derive(Debug)]
struct Column {
    name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    ty: String,
    format: String,
    description: String,
    priority: i64,
    source: Source,
}

/// The columns of one kind.
#[derive(Debug)]
pub struct Columns(Vec<Column>);

impl Columns {
    /// Returns the columns of a version of a CRD (an item of `spec.versions`): the name, then its
    /// `additionalPrinterColumns`, or the age.
    pub fn of_crd_version(version: &Value) -> Self {
        let declared =
            version.get("additionalPrinterColumns").and_then(Value::as_array).filter(|c| !c.is_empty());
        let Some(declared) = declared else { return Self::name_and_age() };
        let mut columns = vec![builtin::name()];
        columns.extend(declared.iter().map(|column| {
            let text = |name: &str| column.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            Column {
                name: text("name"),
                ty: text("type"),
                format: text("format"),
                description: text("description"),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
                source: Source::Path(JsonPath::parse(&text("jsonPath")).ok()),
            }
        }));
        Self(columns)
    }

    /// Returns the columns of a built-in kind; name and age for kinds without columns of their own.
    pub fn of_builtin(group: &str, kind: &str) -> Self {
        builtin::columns(group, kind).map_or_else(Self::name_and_age, Self)
    }

    pub(crate) fn name_and_age() -> Self {
        Self(vec![builtin::name(), builtin::age_as_date()])
    }

    /// Builds a Table without its `rows`. `metadata` is that of the list.
    pub fn head(&self, metadata: &Value) -> Value {
        head(list_metadata(metadata), self.definitions())
    }

    /// Builds the Table of a watch event: one row; only the first event of a watch includes the columns.
    pub fn event(&self, object: &Value, include: IncludeObject, now: Timestamp, first: bool) -> Value {
        let version = object.pointer("/metadata/resourceVersion").cloned().unwrap_or_else(|| json!(""));
        let definitions = if first { self.definitions() } else { Value::Null };
        let mut table = head(json!({"resourceVersion": version}), definitions);
        table["rows"] = Value::Array(vec![self.row(object, include, now)]);
        table
    }

    fn definitions(&self) -> Value {
        self.0
            .iter()
            .map(|c| {
                json!({
                    "name": c.name, "type": c.ty, "format": c.format, "description": c.description,
                    "priority": c.priority,
                })
            })
            .collect()
    }

    /// Builds the row of an object.
    pub fn row(&self, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
        let cells: Vec<Value> = self.0.iter().map(|column| column.cell(object, now)).collect();
        let mut row = Map::new();
        row.insert("cells".to_owned(), Value::Array(cells));
        match include {
            IncludeObject::None => {
                row.insert("object".to_owned(), Value::Null);
            }
            IncludeObject::Object => {
                row.insert("object".to_owned(), object.clone());
            }
            IncludeObject::Metadata => {
                row.insert("object".to_owned(), partial_object_metadata(object));
            }
        }
        Value::Object(row)
    }
}

/// Builds the `PartialObjectMetadata` of an object, which clients may also request instead of the whole
/// object.
pub fn partial_object_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

fn list_metadata(metadata: &Value) -> Value {
    let mut out = Map::new();
    for name in ["resourceVersion", "continue", "remainingItemCount"] {
        if let Some(value) = metadata.get(name) {
            out.insert(name.to_owned(), value.clone());
        }
    }
    Value::Object(out)
}

fn head(metadata: Value, definitions: Value) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
    })
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match &self.source {
            Source::Function(cell) => cell(object, now),
            Source::Path(None) => Value::Null,
            Source::Path(Some(path)) => match path.first(object) {
                Some(value) => typed_cell(&self.ty, value, now),
                None => Value::Null,
            },
        }
    }
}

/// Returns a cell; a value of another type than the column's is omitted.
fn typed_cell(ty: &str, value: &Value, now: Timestamp) -> Value {
    match (ty, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => {
            value.clone()
        }
        ("string", Value::Number(n)) => json!(n.to_string()),
        ("string", other) => json!(other.to_string()),
        ("integer", Value::Number(n)) => {
            n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
        }
        ("date", Value::String(text)) => json!(age::since(text, now)),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests;
