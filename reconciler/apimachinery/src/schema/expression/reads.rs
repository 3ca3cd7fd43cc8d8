//! The parts of its variables that an expression reads: only these are handed to the interpreter, which copies what it is given.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{Expr, IdedExpr};

use super::ast::children;

/// The part of a value that is read: all of it, or these members. Without members only its presence matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    whole: bool,
    members: BTreeMap<String, Reads>,
}

/// Everything, as a part.
pub(crate) static WHOLE: Reads = Reads { whole: true, members: BTreeMap::new() };

impl Reads {
    /// Whether it is only asked if the value is there.
    pub(crate) fn presence(&self) -> bool {
        !self.whole && self.members.is_empty()
    }

    /// The part of a member that is read; none if it is not read at all.
    pub(crate) fn member(&self, name: &str) -> Option<&Self> {
        if self.whole { Some(&WHOLE) } else { self.members.get(name) }
    }

    /// Adds what another expression reads.
    pub fn extend(&mut self, other: &Self) {
        self.whole |= other.whole;
        for (name, of) in &other.members {
            self.members.entry(name.clone()).or_default().extend(of);
        }
    }

    fn at(&mut self, path: &[&str]) -> &mut Self {
        path.iter().fold(self, |reads, name| reads.members.entry((*name).to_owned()).or_default())
    }
}

/// Returns what a tree reads of each variable, those that it binds itself included.
pub(super) fn of(tree: &IdedExpr) -> BTreeMap<String, Reads> {
    let mut all = BTreeMap::new();
    visit(tree, &mut all);
    all
}

fn visit(tree: &IdedExpr, all: &mut BTreeMap<String, Reads>) {
    let is_test = matches!(&tree.expr, Expr::Select(select) if select.test);
    let (mut path, mut start) = (Vec::new(), tree);
    while let Expr::Select(select) = &start.expr {
        path.push(select.field.as_str());
        start = &select.operand;
    }
    if let Expr::Ident(name) = &start.expr {
        path.reverse();
        let name = name.strip_prefix('.').unwrap_or(name).to_owned();
        all.entry(name).or_default().at(&path).whole |= !is_test;
    } else {
        children(&start.expr).into_iter().for_each(|of| visit(of, all));
    }
}
