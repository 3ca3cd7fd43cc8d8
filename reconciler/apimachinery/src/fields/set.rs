//! Sets of field paths. A path may be a member without the paths below it, and vice versa.

use std::collections::{BTreeMap, BTreeSet};

use super::element::PathElement;

/// A set of paths as a tree. Children are never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    pub(super) members: BTreeSet<PathElement>,
    pub(super) children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// Adds one path, without its parents. The empty path, the whole object, cannot be owned.
    pub(crate) fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.members.extend(other.members.iter().cloned());
        for (element, theirs) in &other.children {
            out.children
                .entry(element.clone())
                .and_modify(|ours| *ours = ours.union(theirs))
                .or_insert_with(|| theirs.clone());
        }
        out
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: self.children_map(|element, ours| {
                other.children.get(element).map(|theirs| ours.intersection(theirs))
            }),
        }
    }

    /// Returns the paths in `self` that are not in `other`. Removing a parent keeps its children.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        Self {
            members: self.members.difference(&other.members).cloned().collect(),
            children: self.children_map(|element, ours| {
                Some(
                    other
                        .children
                        .get(element)
                        .map_or_else(|| ours.clone(), |theirs| ours.difference(theirs)),
                )
            }),
        }
    }

    /// Like [`Self::difference`], but removing a parent removes its children too.
    pub(crate) fn recursive_difference(&self, other: &Self) -> Self {
        Self {
            members: self.members.difference(&other.members).cloned().collect(),
            children: self.children_map(|element, ours| {
                if other.members.contains(element) {
                    return None;
                }
                Some(
                    other
                        .children
                        .get(element)
                        .map_or_else(|| ours.clone(), |theirs| ours.recursive_difference(theirs)),
                )
            }),
        }
    }

    fn children_map(&self, f: impl Fn(&PathElement, &Self) -> Option<Self>) -> BTreeMap<PathElement, Self> {
        self.children
            .iter()
            .filter_map(|(element, ours)| {
                f(element, ours).filter(|set| !set.is_empty()).map(|set| (element.clone(), set))
            })
            .collect()
    }

    /// Returns all paths, parents before their children.
    pub(crate) fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut out = Vec::new();
        self.collect(&mut Vec::new(), &mut out);
        out
    }

    fn collect(&self, prefix: &mut Vec<PathElement>, out: &mut Vec<Vec<PathElement>>) {
        for member in &self.members {
            prefix.push(member.clone());
            out.push(prefix.clone());
            prefix.pop();
        }
        for (element, below) in &self.children {
            prefix.push(element.clone());
            below.collect(prefix, out);
            prefix.pop();
        }
    }
}

/// Formats a path: `.spec.disks[name="root"].size`.
pub(super) fn show(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}
