//! Field ownership after a write.

use serde_json::{Map, Value};

use super::compare::Comparison;
use super::element::PathElement;
use super::managed::{
    ManagerId, Managers, Operation, Owned, STRIPPED, cap, decode, encode, is_reset, take_managed_fields,
    without_managed_fields,
};
use super::set::{FieldSet, show};
use super::typed::{Ty, check, field_set};
use super::{ApplyError, Conflict, Reset, WriteOptions, in_place, last_applied, merge, remove};
use crate::schema::{StructuralSchema, equal, equal_but};

/// The owner of existing fields at the first apply to an object without recorded ownership.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

impl Reset {
    /// Whether the request may change the field of that name of the object.
    fn may_change(self, name: &str) -> bool {
        match self {
            Self::Nothing => true,
            Self::Status => name != "status",
            Self::Spec => name != "spec",
            Self::AllButStatus => name == "status",
        }
    }

    /// Removes the fields that the request may not change.
    pub(super) fn filter(self, set: &mut FieldSet) {
        let is_kept =
            |element: &PathElement| matches!(element, PathElement::Field(name) if self.may_change(name));
        set.members.retain(is_kept);
        set.children.retain(|element, _| is_kept(element));
    }

    /// Restores the fields that the request may not change.
    fn restore(self, before: &Value, object: &mut Value) {
        let Some(object) = object.as_object_mut() else { return };
        object.retain(|name, _| self.may_change(name) || before.get(name).is_some());
        for (name, value) in before.as_object().into_iter().flatten() {
            if !self.may_change(name) {
                object.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Performs one apply; [`take_over`](super::take_over) calls it again, forced.
pub(super) fn apply_once(
    live: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
    schema: &StructuralSchema,
) -> Result<Value, ApplyError> {
    check_request(applied, options)?;
    let ty = Ty::root(schema);
    check(applied, ty).map_err(|e| {
        ApplyError::Unmergeable(format!("failed to create typed patch object ({}): {e}", described(applied)))
    })?;
    let Some(mut managers) = decode(live.and_then(managed_fields)) else {
        return Err(ApplyError::BadRequest(
            "failed to decode managed fields of the stored object".to_owned(),
        ));
    };
    let before = live.map_or_else(empty, without_managed_fields);
    reconcile(&mut managers, ty);
    if managers.is_empty() && live.is_some() {
        let id = ManagerId::new(
            BEFORE_FIRST_APPLY,
            Operation::Update,
            &options.api_version,
            options.subresource.as_deref(),
        );

        let comparison = Comparison::of(&empty(), &before, ty);
        take_changes(comparison, &mut managers, &id, options);
    }

    let id = ManagerId::new(
        &options.manager,
        Operation::Apply,
        &options.api_version,
        options.subresource.as_deref(),
    );
    let merged = merge::merge(&before, applied, ty);
    let last = managers.get(&id).map(|owned| owned.set.clone());
    let mut set = field_set(applied, ty);
    options.reset.filter(&mut set);
    let time = managers.get(&id).and_then(|owned| owned.time.clone());
    managers.insert(id.clone(), Owned { set, api_version: options.api_version.clone(), time });
    let mut after = prune(&merged, &managers, last.as_ref(), ty);
    options.reset.restore(&before, &mut after);

    let comparison = Comparison::of(&before, &after, ty).without(|set| options.reset.filter(set));
    take_from_others(&comparison, &mut managers, &id, options.force)?;
    strip(&mut managers, &id);
    if (live.is_none() || !equal(&before, &after))
        && let Some(owned) = managers.get_mut(&id)
    {
        owned.time = Some(options.now.clone());
    }
    last_applied::refresh(live, applied, &mut after, &options.manager);
    Ok(finish(live, after, managers, Some((&id, &options.now))))
}

/// Returns `namespace/name; group/version, Kind=Kind`.
fn described(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    format!("{namespace}/{name}; {}, Kind={}", text("/apiVersion"), text("/kind"))
}

fn check_request(applied: &Value, options: &WriteOptions) -> Result<(), ApplyError> {
    if !applied.is_object() {
        return Err(ApplyError::BadRequest("the applied configuration must be an object".to_owned()));
    }
    if applied.pointer("/metadata/managedFields").is_some_and(|v| !v.is_null()) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    let version = applied.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if version != options.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            options.api_version
        )));
    }
    Ok(())
}

pub(super) fn track(
    before: Option<&Value>,
    after: &mut Value,
    options: &WriteOptions,
    schema: &StructuralSchema,
) {
    let ty = Ty::root(schema);
    // Ownership cannot be edited through a subresource.
    let sent = take_managed_fields(after).filter(|_| options.subresource.is_none());
    let id = ManagerId::new(
        &options.manager,
        Operation::Update,
        &options.api_version,
        options.subresource.as_deref(),
    );
    let stored =
        before.and_then(managed_fields).filter(|stored| sent.as_ref().is_none_or(|sent| sent == *stored));
    if let (Some(before), Some(stored)) = (before, stored.and_then(Value::as_array))
        && let Some(entries) = in_place::track((before, after), stored.clone(), &id, options, ty)
    {
        return set_entries(after, entries);
    }
    track_all((before, sent), after, &id, options, ty);
}

/// Like [`track`], with every entry decoded. `sent`: the entries that the client sent.
pub(super) fn track_all(
    (before, sent): (Option<&Value>, Option<Value>),
    after: &mut Value,
    id: &ManagerId,
    options: &WriteOptions,
    ty: Ty<'_>,
) {
    let reset = is_reset(sent.as_ref());
    let mut managers = match decode(sent.as_ref()) {
        _ if reset => Managers::new(),
        Some(managers) if !managers.is_empty() => managers,
        _ => decode(before.and_then(managed_fields)).unwrap_or_default(),
    };
    // An object without recorded ownership stays so until the first apply.
    if before.is_none() || !managers.is_empty() {
        let nothing = empty();
        let comparison = Comparison::of(before.unwrap_or(&nothing), after, ty);
        reconcile(&mut managers, ty);
        take_changes(comparison, &mut managers, id, options);
        cap(&mut managers);
    }
    *after = finish(before, after.take(), managers, None);
}

/// The manager becomes the only owner of the fields that it changed; removed fields lose all owners.
fn take_changes(comparison: Comparison, managers: &mut Managers, id: &ManagerId, options: &WriteOptions) {
    let comparison = comparison.without(|set| options.reset.filter(set));
    let mut taken = comparison.modified;
    taken.add(comparison.added);
    for (owner, owned) in managers.iter_mut() {
        owned.set.remove(&comparison.removed);
        if owner != id {
            owned.set.remove(&taken);
        }
    }
    taken.remove(&STRIPPED);
    if !taken.is_empty() {
        let owned = managers.entry(id.clone()).or_insert_with(|| Owned {
            set: FieldSet::default(),
            api_version: options.api_version.clone(),
            time: None,
        });
        owned.set.add(taken);
        owned.time = Some(options.now.clone());
    }
    managers.retain(|_, owned| !owned.set.is_empty());
}

fn take_from_others(
    comparison: &Comparison,
    managers: &mut Managers,
    id: &ManagerId,
    force: bool,
) -> Result<(), ApplyError> {
    let changed = comparison.modified.union(&comparison.added);
    let mut conflicts = Vec::new();
    for (other, owned) in managers.iter_mut().filter(|(other, _)| *other != id) {
        let contested = owned.set.intersection(&changed);
        conflicts.extend(
            contested.paths().iter().map(|path| Conflict { manager: other.shown(), field: show(path) }),
        );
        owned.set.remove(&contested);
        owned.set.remove(&comparison.removed);
    }
    if !force && !conflicts.is_empty() {
        conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
        return Err(ApplyError::Conflicts(conflicts));
    }
    managers.retain(|_, owned| !owned.set.is_empty());
    Ok(())
}

fn strip(managers: &mut Managers, id: &ManagerId) {
    if let Some(owned) = managers.get_mut(id) {
        owned.set.remove(&STRIPPED);
        if owned.set.is_empty() {
            managers.remove(id);
        }
    }
}

/// Removes the fields that the manager applied last time and does not apply now, unless another manager owns
/// them.
fn prune(merged: &Value, managers: &Managers, last: Option<&FieldSet>, ty: Ty<'_>) -> Value {
    let Some(last) = last.filter(|set| !set.is_empty()) else { return merged.clone() };
    let last = last.with_named_fields(ty);
    let pruned = remove::without(merged, &last, ty);
    let merged_set = field_set(merged, ty).with_named_fields(ty);

    // Fields with any owner are added back, including those of the new configuration.
    let mut owned = FieldSet::default();
    managers.values().for_each(|manager| owned.add(manager.set.clone()));
    let owned = owned.with_named_fields(ty);
    let pruned_set = field_set(&pruned, ty).with_named_fields(ty);
    let pruned = remove::without(merged, &merged_set.difference(&pruned_set.union(&owned)), ty);

    // Fields that were removed only together with their parent are added back as well.
    let pruned_set = field_set(&pruned, ty).with_named_fields(ty);
    remove::without(merged, &merged_set.difference(&pruned_set).intersection(&last), ty)
}

fn reconcile(managers: &mut Managers, ty: Ty<'_>) {
    for owned in managers.values_mut() {
        owned.set.reconcile(ty);
    }
}

/// Writes the managers into the object. If they and the object are unchanged except for times, the times stay
/// too. A manager that only became a co-owner of fields gets a new time as well.
fn finish(
    live: Option<&Value>,
    mut object: Value,
    mut managers: Managers,
    applier: Option<(&ManagerId, &str)>,
) -> Value {
    let object_same = live.is_some_and(|live| same_but_managers(live, &object));
    // Decoded only if the result depends on it.
    let before = live.filter(|_| object_same || applier.is_some());
    let before = before.and_then(|live| decode(managed_fields(live))).unwrap_or_default();
    let owners_same = before.len() == managers.len()
        && before.iter().all(|(id, was)| {
            managers.get(id).is_some_and(|is| is.set == was.set && is.api_version == was.api_version)
        });
    if let Some(live) = live.filter(|_| object_same && owners_same) {
        return live.clone();
    }
    if let Some((id, now)) = applier
        && let Some(owned) = managers.get_mut(id)
        && (owned.time.is_none() || before.get(id).is_none_or(|was| was.set != owned.set))
    {
        owned.time = Some(now.to_owned());
    }
    let entries = encode(&managers);
    set_entries(&mut object, entries);
    object
}

fn set_entries(object: &mut Value, entries: Value) {
    let Some(map) = object.as_object_mut() else { return };
    if entries.as_array().is_some_and(Vec::is_empty) {
        return;
    }
    if let Some(metadata) = map.entry("metadata").or_insert_with(empty).as_object_mut() {
        metadata.insert("managedFields".to_owned(), entries);
    }
}

fn same_but_managers(a: &Value, b: &Value) -> bool {
    equal_but(a, b, &["metadata"], equal)
        && equal_but(&a["metadata"], &b["metadata"], &["managedFields"], equal)
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/managedFields")
}

fn empty() -> Value {
    Value::Object(Map::new())
}
