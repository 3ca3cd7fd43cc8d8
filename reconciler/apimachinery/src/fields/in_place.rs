//! Field ownership after an update, changed in place: entries of `managedFields` whose paths the update does not change are
//! not decoded. Of the managers of an object a status update changes one, and usually only its time.
//!
//! *Guarantees:* the result is that of decoding all entries. Entries that are kept are not adapted to a schema that has changed
//! since; that happens once they are decoded, at the latest by the next apply.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::WriteOptions;
use super::compare::Comparison;
use super::element::PathElement;
use super::managed::{MAX_UPDATE_MANAGERS, ManagerId, Operation, Owned, STRIPPED, entry, id_of};
use super::set::FieldSet;
use super::typed::Ty;

/// An update and what it changes.
struct Update<'a> {
    id: &'a ManagerId,
    options: &'a WriteOptions,
    ty: Ty<'a>,
    removed: FieldSet,
    /// The paths that other managers lose.
    taken: FieldSet,
    /// The paths that the manager gets.
    owned: FieldSet,
}

/// Returns the entries after an update, from those of the object before it; `None` if all of them must be decoded.
pub(super) fn track(
    (before, after): (&Value, &Value),
    stored: Vec<Value>,
    id: &ManagerId,
    options: &WriteOptions,
    ty: Ty<'_>,
) -> Option<Value> {
    // More updaters would be merged. Objects without owners stay so.
    if stored.is_empty() || stored.len() >= MAX_UPDATE_MANAGERS {
        return None;
    }
    let comparison = Comparison::of(before, after, ty).without(|set| options.reset.filter(set));
    let mut taken = comparison.modified;
    taken.add(comparison.added);
    if taken.is_empty() && comparison.removed.is_empty() {
        return None;
    }
    let mut owned = taken.clone();
    owned.remove(&STRIPPED);
    let update = Update { id, options, ty, removed: comparison.removed, taken, owned };
    let mut has_entry = false;
    let mut entries = Vec::with_capacity(stored.len() + 1);
    for stored in stored {
        let owner = id_of(&stored)?;
        has_entry |= owner == *id;
        entries.extend(update.entry(&owner, stored)?);
    }
    if !has_entry && !update.owned.is_empty() {
        entries.push(entry(id, &update.given(FieldSet::default())));
    }
    entries.sort_by(|a, b| order(a).cmp(&order(b)));
    Some(Value::Array(entries))
}

impl Update<'_> {
    /// Returns the entry after the update; none if it owns nothing any more. The outer `None`: the entry is not as this server
    /// writes it.
    fn entry(&self, owner: &ManagerId, mut stored: Value) -> Option<Option<Value>> {
        let is_own = owner == self.id;
        let fields = stored.get("fieldsV1")?.as_object()?;
        let gets = is_own && !self.owned.is_empty();
        let loses = touches(fields, &self.removed) || (!is_own && touches(fields, &self.taken));
        if !loses && !gets {
            return Some(Some(stored));
        }
        if !loses && contains(fields, &self.owned) {
            *stored.get_mut("time")? = self.options.now.as_str().into();
            return Some(Some(stored));
        }
        let mut set = FieldSet::from_v1(stored.get("fieldsV1")?).ok()?;
        set.reconcile(self.ty);
        set.remove(&self.removed);
        let owned = if gets {
            self.given(set)
        } else {
            if !is_own {
                set.remove(&self.taken);
            }
            let text = |name: &str| stored.get(name).and_then(Value::as_str).map(str::to_owned);
            Owned { set, api_version: text("apiVersion").unwrap_or_default(), time: text("time") }
        };
        Some((!owned.set.is_empty()).then(|| entry(owner, &owned)))
    }

    /// Returns what the manager owns after the update, if it owned these fields before.
    fn given(&self, mut set: FieldSet) -> Owned {
        set.add(self.owned.clone());
        Owned { set, api_version: self.options.api_version.clone(), time: Some(self.options.now.clone()) }
    }
}

/// The order of the entries, see [`encode`](super::managed::encode).
fn order(entry: &Value) -> (Option<Operation>, [&str; 4]) {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
    (Operation::parse(text("operation")), ["time", "manager", "apiVersion", "subresource"].map(text))
}

/// Whether fields in the form of FieldsV1 may lose a path to this set.
fn touches(fields: &Map<String, Value>, set: &FieldSet) -> bool {
    let mut key = String::new();
    set.members.iter().any(|element| fields.contains_key(named(element, &mut key)))
        || set.children.iter().any(|(element, below)| {
            let found = fields.get(named(element, &mut key));
            found.is_some_and(|found| found.as_object().is_none_or(|found| touches(found, below)))
        })
}

/// Whether fields in the form of FieldsV1 contain all paths of this set.
fn contains(fields: &Map<String, Value>, set: &FieldSet) -> bool {
    let mut key = String::new();
    let is_member = |found: &Map<String, Value>| found.is_empty() || found.contains_key(".");
    set.members
        .iter()
        .all(|element| fields.get(named(element, &mut key)).and_then(Value::as_object).is_some_and(is_member))
        && set.children.iter().all(|(element, below)| {
            let found = fields.get(named(element, &mut key)).and_then(Value::as_object);
            found.is_some_and(|found| contains(found, below))
        })
}

/// Returns the element as a key of FieldsV1, in this buffer.
fn named<'a>(element: &PathElement, key: &'a mut String) -> &'a str {
    key.clear();
    match element {
        // Writing into a String cannot fail.
        PathElement::Field(name) => drop(write!(key, "f:{name}")),
        other => *key = other.serialize(),
    }
    key
}
