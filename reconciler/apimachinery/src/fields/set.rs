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

    /// Adds the paths of another set.
    pub(crate) fn add(&mut self, other: Self) {
        self.members.extend(other.members);
        for (element, theirs) in other.children {
            self.children.entry(element).or_default().add(theirs);
        }
    }

    /// Removes the paths of another set. Removing a parent keeps its children.
    pub(crate) fn remove(&mut self, other: &Self) {
        // The smaller one is walked: thousands of managers may have one field each, and a write many.
        if self.members.len() < other.members.len() {
            self.members.retain(|member| !other.members.contains(member));
        } else {
            for member in &other.members {
                self.members.remove(member);
            }
        }
        if self.children.len() < other.children.len() {
            self.children.retain(|element, ours| {
                let Some(theirs) = other.children.get(element) else { return true };
                ours.remove(theirs);
                !ours.is_empty()
            });
            return;
        }
        for (element, theirs) in &other.children {
            if let Some(ours) = self.children.get_mut(element) {
                ours.remove(theirs);
                if ours.is_empty() {
                    self.children.remove(element);
                }
            }
        }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.add(other.clone());
        out
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.difference(&self.difference(other))
    }

    /// Returns the paths in `self` that are not in `other`, as by [`Self::remove`].
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.remove(other);
        out
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
