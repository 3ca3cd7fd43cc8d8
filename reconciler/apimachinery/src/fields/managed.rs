//! `metadata.managedFields`: decoded, sorted, capped and encoded as in Kubernetes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::element::PathElement;
use super::set::FieldSet;

/// The maximum number of separate update managers; the oldest beyond it share one entry.
pub(super) const MAX_UPDATE_MANAGERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// Fields that are never owned.
pub(super) static STRIPPED: LazyLock<FieldSet> = LazyLock::new(|| {
    let mut set = FieldSet::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert(&[PathElement::field(name)]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[PathElement::field("metadata"), PathElement::field(name)]);
    }
    set
});

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Apply, Self::Update].into_iter().find(|operation| operation.name() == name)
    }
}

/// The identity of a manager: for appliers the version is not part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ManagerId {
    pub(super) manager: String,
    pub(super) operation: Operation,
    pub(super) api_version: String,
    pub(super) subresource: String,
}

impl ManagerId {
    pub(super) fn new(
        manager: &str,
        operation: Operation,
        api_version: &str,
        subresource: Option<&str>,
    ) -> Self {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.unwrap_or_default().to_owned(),
        }
    }

    /// Returns the manager as conflicts name it.
    pub(super) fn shown(&self) -> String {
        let mut out = crate::schema::quote(&self.manager);
        if !self.subresource.is_empty() {
            out.push_str(&format!(" with subresource {}", crate::schema::quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            out.push_str(&format!(" using {}", self.api_version));
        }
        out
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Owned {
    pub(super) set: FieldSet,
    pub(super) api_version: String,
    pub(super) time: Option<String>,
}

pub(super) type Managers = BTreeMap<ManagerId, Owned>;

/// Decodes the managers; `None` for a value that is not a list of entries.
pub(super) fn decode(managed_fields: Option<&Value>) -> Option<Managers> {
    let Some(value) = managed_fields else { return Some(Managers::new()) };
    if value.is_null() {
        return Some(Managers::new());
    }
    let mut out = Managers::new();
    for entry in value.as_array()? {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let id = id_of(entry)?;
        let set = match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::from_v1(fields).ok()?,
        };
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        out.insert(id, Owned { set, api_version: text("apiVersion").to_owned(), time });
    }
    Some(out)
}

/// Returns the manager of an entry; `None` if it is not an entry.
pub(super) fn id_of(entry: &Value) -> Option<ManagerId> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    let operation = Operation::parse(text("operation"))?;
    let is_known = matches!(text("fieldsType"), "" | "FieldsV1");
    is_known
        .then(|| ManagerId::new(text("manager"), operation, text("apiVersion"), Some(text("subresource"))))
}

/// Whether the value is a single empty entry, which resets all ownership.
pub(super) fn is_reset(managed_fields: Option<&Value>) -> bool {
    let Some([only]) = managed_fields.and_then(Value::as_array).map(Vec::as_slice) else { return false };
    only.as_object().is_some_and(|entry| entry.values().all(|v| v.is_null() || v.as_str() == Some("")))
}

/// Encodes the managers: appliers first, then by time, manager, version and subresource.
pub(super) fn encode(managers: &Managers) -> Value {
    let mut entries: Vec<(&ManagerId, &Owned)> =
        managers.iter().filter(|(_, owned)| !owned.set.is_empty()).collect();
    entries.sort_by(|(a, x), (b, y)| {
        let key = |id: &ManagerId, owned: &Owned| {
            (
                id.operation,
                owned.time.clone(),
                id.manager.clone(),
                owned.api_version.clone(),
                id.subresource.clone(),
            )
        };
        key(a, x).cmp(&key(b, y))
    });
    Value::Array(entries.into_iter().map(|(id, owned)| entry(id, owned)).collect())
}

pub(super) fn entry(id: &ManagerId, owned: &Owned) -> Value {
    let mut out = Map::new();
    out.insert("manager".to_owned(), json!(id.manager));
    out.insert("operation".to_owned(), json!(id.operation.name()));
    out.insert("apiVersion".to_owned(), json!(owned.api_version));
    if let Some(time) = &owned.time {
        out.insert("time".to_owned(), json!(time));
    }
    out.insert("fieldsType".to_owned(), json!("FieldsV1"));
    out.insert("fieldsV1".to_owned(), owned.set.to_v1());
    if !id.subresource.is_empty() {
        out.insert("subresource".to_owned(), json!(id.subresource));
    }
    Value::Object(out)
}

/// Merges the oldest update managers, per version, until the cap is met.
pub(super) fn cap(managers: &mut Managers) {
    let mut updaters: Vec<(Option<String>, ManagerId)> = managers
        .iter()
        .filter(|(id, _)| id.operation == Operation::Update)
        .map(|(id, owned)| (owned.time.clone(), id.clone()))
        .collect();
    updaters.sort();
    let mut left = updaters.len();
    let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
    for (_, id) in updaters {
        if left <= MAX_UPDATE_MANAGERS {
            return;
        }
        let Some(version) = managers.get(&id).map(|owned| owned.api_version.clone()) else { continue };
        let Some(first) = first_of_version.get(&version).cloned() else {
            first_of_version.insert(version, id);
            continue;
        };
        let bucket = ManagerId::new(ANCIENT, Operation::Update, &version, None);
        if !managers.contains_key(&bucket)
            && let Some(owned) = managers.remove(&first)
        {
            managers.insert(bucket.clone(), owned);
        }
        let Some(owned) = managers.remove(&id) else { continue };
        managers
            .entry(bucket)
            .and_modify(|kept| {
                kept.set.add(owned.set.clone());
                kept.time.clone_from(&owned.time);
            })
            .or_insert(owned);
        left -= 1;
    }
}

pub(super) fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    take_managed_fields(&mut object);
    object
}

pub(super) fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}
