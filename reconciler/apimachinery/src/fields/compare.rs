//! The difference of two values as sets of fields.

use std::collections::BTreeMap;

use serde_json::Value;

use super::element::PathElement;
use super::set::FieldSet;
use super::typed::{NodeKind, Ty, elements, list, map};
use crate::schema::equal;

/// The differences of two values except for `metadata.managedFields`; the sets are disjoint.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) removed: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) added: FieldSet,
}

impl Comparison {
    pub(super) fn of(before: &Value, after: &Value, ty: Ty<'_>) -> Self {
        let mut walk = Walk { out: Self::default(), path: Vec::new() };
        walk.compare(Some(before), Some(after), ty);
        walk.out
    }

    /// Returns the comparison without the fields that the request cannot change.
    pub(super) fn without(mut self, remove: impl Fn(&mut FieldSet)) -> Self {
        [&mut self.removed, &mut self.modified, &mut self.added].into_iter().for_each(remove);
        self
    }
}

struct Walk {
    out: Comparison,
    path: Vec<PathElement>,
}

impl Walk {
    fn compare(&mut self, before: Option<&Value>, after: Option<&Value>, ty: Ty<'_>) {
        let leaf = match (before, after) {
            (None, None) => return,
            (Some(only), None) | (None, Some(only)) => self.visit(ty.kind(only), before, after, ty),
            (Some(b), Some(a)) => {
                let (was, is) = (ty.kind(b), ty.kind(a));
                if !was.same(&is) {
                    self.visit(was, before, after, ty);
                }
                self.visit(is, before, after, ty)
            }
        };
        if !leaf {
            match (before, after) {
                (None, _) => self.out.added.insert(&self.path),
                (_, None) => self.out.removed.insert(&self.path),
                _ => {}
            }
        }
    }

    /// Compares two values; returns whether they were compared as a whole.
    fn visit(
        &mut self,
        kind: NodeKind<'_>,
        before: Option<&Value>,
        after: Option<&Value>,
        ty: Ty<'_>,
    ) -> bool {
        match kind {
            NodeKind::Map => match (map(before), map(after)) {
                // An empty map and an absent one can only be distinguished as a whole.
                (None, None) => self.leaf(before, after),
                (b, a) => {
                    for name in b.into_iter().flat_map(|m| m.keys()) {
                        self.member(name, b.and_then(|m| m.get(name)), a.and_then(|m| m.get(name)), ty);
                    }
                    for name in a.into_iter().flat_map(|m| m.keys()) {
                        if b.is_none_or(|m| !m.contains_key(name)) {
                            self.member(name, None, a.and_then(|m| m.get(name)), ty);
                        }
                    }
                    false
                }
            },
            NodeKind::Set | NodeKind::ListMap(..) => {
                let (b, a) = (list(before), list(after));
                match (elements(kind, b), elements(kind, a)) {
                    (Some(_), Some(_)) if b.is_empty() && a.is_empty() => self.leaf(before, after),
                    (Some(was), Some(is)) => {
                        self.items(b, &was, a, &is, ty);
                        false
                    }
                    _ => self.leaf(before, after),
                }
            }
            NodeKind::Leaf => self.leaf(before, after),
        }
    }

    fn member(&mut self, name: &str, before: Option<&Value>, after: Option<&Value>, ty: Ty<'_>) {
        let is_same = matches!((before, after), (Some(b), Some(a)) if equal(b, a));
        if is_same || (name == "managedFields" && self.path == [PathElement::field("metadata")]) {
            return;
        }
        self.path.push(PathElement::field(name));
        self.compare(before, after, ty.member(name));
        self.path.pop();
    }

    fn items(&mut self, b: &[Value], was: &[PathElement], a: &[Value], is: &[PathElement], ty: Ty<'_>) {
        let mut by_name: BTreeMap<&PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (item, element) in b.iter().zip(was) {
            by_name.entry(element).or_default().0.push(item);
        }
        for (item, element) in a.iter().zip(is) {
            by_name.entry(element).or_default().1.push(item);
        }
        for (element, (b, a)) in by_name {
            self.path.push(element.clone());
            match (b.len(), a.len()) {
                (0 | 1, 0 | 1) => self.compare(b.first().copied(), a.first().copied(), ty.item()),
                // Duplicates are compared as a whole.
                (2.., 2..) => {
                    let same = b.len() == a.len() && b.iter().zip(&a).all(|(b, a)| equal(b, a));
                    if !same {
                        self.out.modified.insert(&self.path);
                    }
                }
                (2.., _) => {
                    if let Some(a) = a.first() {
                        self.compare(None, Some(a), ty.item());
                    }
                    self.out.removed.insert(&self.path);
                }
                _ => {
                    if let Some(b) = b.first() {
                        self.compare(Some(b), None, ty.item());
                    }
                    self.out.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }

    fn leaf(&mut self, before: Option<&Value>, after: Option<&Value>) -> bool {
        match (before, after) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            (Some(b), Some(a)) if !equal(b, a) => self.out.modified.insert(&self.path),
            _ => {}
        }
        true
    }
}
