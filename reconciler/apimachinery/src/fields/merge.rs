//! Merging of an applied configuration into the live object. Nothing is removed here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::element::PathElement;
use super::typed::{NodeKind, Ty, elements, list, map};

/// Returns `live` with everything that `applied` sets.
pub(super) fn merge(live: &Value, applied: &Value, ty: Ty<'_>) -> Value {
    merged(Some(live), Some(applied), ty).unwrap_or_else(|| Value::Object(Map::new()))
}

fn merged(live: Option<&Value>, applied: Option<&Value>, ty: Ty<'_>) -> Option<Value> {
    let Some(applied) = applied else { return live.cloned() };
    match ty.kind(applied) {
        NodeKind::Leaf => Some(applied.clone()),
        NodeKind::Map => match (map(live), map(Some(applied))) {
            (None, None) => Some(applied.clone()),
            (live, applied) => merge_maps(live, applied, ty),
        },
        kind @ (NodeKind::Set | NodeKind::ListMap(..)) => {
            let (l, a) = (list(live), list(Some(applied)));
            if l.is_empty() && a.is_empty() {
                return Some(applied.clone());
            }
            match (elements(kind, l), elements(kind, a)) {
                (Some(l_names), Some(a_names)) => {
                    merge_lists(&Side::new(l, l_names), &Side::new(a, a_names), ty)
                }
                _ => Some(applied.clone()),
            }
        }
    }
}

fn merge_maps(
    live: Option<&Map<String, Value>>,
    applied: Option<&Map<String, Value>>,
    ty: Ty<'_>,
) -> Option<Value> {
    let mut out = Map::new();
    let names = live.into_iter().flat_map(Map::keys).chain(applied.into_iter().flat_map(Map::keys));
    for name in names {
        if out.contains_key(name) {
            continue;
        }
        let value =
            merged(live.and_then(|m| m.get(name)), applied.and_then(|m| m.get(name)), ty.member(name));
        if let Some(value) = value {
            out.insert(name.clone(), value);
        }
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

struct Side<'a> {
    items: &'a [Value],
    names: Vec<PathElement>,
    /// `None`: the name occurs several times.
    by_name: BTreeMap<PathElement, Option<&'a Value>>,
}

impl<'a> Side<'a> {
    fn new(items: &'a [Value], names: Vec<PathElement>) -> Self {
        let mut by_name = BTreeMap::new();
        for (item, name) in items.iter().zip(&names) {
            by_name.entry(name.clone()).and_modify(|v| *v = None).or_insert(Some(item));
        }
        Self { items, names, by_name }
    }

    fn get(&self, name: &PathElement) -> Option<&'a Value> {
        self.by_name.get(name).copied().flatten()
    }
}

/// Merges two lists. Order: as in `live` where `applied` does not change it, otherwise as in `applied`; items
/// of only one side stay near their neighbours.
fn merge_lists(live: &Side<'_>, applied: &Side<'_>, ty: Ty<'_>) -> Option<Value> {
    let mut shared: VecDeque<&PathElement> =
        applied.names.iter().filter(|n| live.by_name.contains_key(n)).collect();
    let mut next_shared = shared.pop_front();
    let mut done: BTreeSet<&PathElement> = BTreeSet::new();
    let mut out = Vec::with_capacity(live.items.len().max(applied.items.len()));
    let (mut l, mut a) = (0, 0);
    while l < live.names.len() || a < applied.names.len() {
        if let (Some(l_name), Some(a_name)) = (live.names.get(l), applied.names.get(a)) {
            if l_name == a_name {
                done.insert(l_name);
                out.extend(merged(live.get(l_name), applied.get(a_name), ty.item()));
                l += 1;
                a += 1;
                next_shared = shared.pop_front();
                continue;
            }
            if applied.by_name.contains_key(l_name) && next_shared.is_some_and(|next| next != l_name) {
                // Both sides have the item, but it is not the next shared one.
                l += 1;
                continue;
            }
        }
        if let Some(l_name) = live.names.get(l) {
            if !applied.by_name.contains_key(l_name) {
                out.push(live.items[l].clone());
                l += 1;
                continue;
            }
            if done.contains(l_name) {
                l += 1;
            }
        }
        if let Some(a_name) = applied.names.get(a) {
            done.insert(a_name);
            out.extend(merged(live.get(a_name), applied.get(a_name), ty.item()));
            a += 1;
            if next_shared == Some(a_name) {
                next_shared = shared.pop_front();
            }
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}
