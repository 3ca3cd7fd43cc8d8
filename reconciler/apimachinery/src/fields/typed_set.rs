//! Sets of field paths viewed through a schema.

use super::element::PathElement;
use super::set::FieldSet;
use super::typed::Ty;

impl FieldSet {
    /// Adds the declared fields on the way to every path: the owner of `.spec.size` then owns `.spec` as
    /// well, but a map's key is not owned through the fields below it.
    pub(super) fn with_named_fields(&self, ty: Ty<'_>) -> Self {
        // Not a clone of the whole: at each level that would be one more of everything below.
        let mut out = Self { members: self.members.clone(), ..Self::default() };
        for (element, below) in &self.children {
            let mut of = Ty::Untyped;
            match element {
                PathElement::Field(name) => {
                    if ty.declares(name) {
                        out.members.insert(element.clone());
                    }
                    of = ty.member(name);
                }
                PathElement::Key(_) => of = ty.item(),
                PathElement::Value(_) | PathElement::Index(_) => {}
            }
            out.children.insert(element.clone(), below.with_named_fields(of));
        }
        out
    }

    /// Adapts the set to fields that changed from granular to atomic since it was written: ownership of a part
    /// becomes ownership of the whole.
    pub(super) fn reconcile(&mut self, ty: Ty<'_>) {
        let members = &mut self.members;
        self.children.retain(|element, below| {
            let of = match element {
                PathElement::Field(name) => ty.member(name),
                PathElement::Key(_) => ty.item(),
                PathElement::Value(_) | PathElement::Index(_) => Ty::Untyped,
            };
            if of.is_declared_atomic() {
                members.insert(element.clone());
                return false;
            }
            below.reconcile(of);
            true
        });
    }
}
