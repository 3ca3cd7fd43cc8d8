//! A change while it is being planned: what the field table says of it, and what a kind adds.

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field},
    planning::{self, Change},
    private::Private,
};

/// A planned create or update.
#[derive(Debug)]
pub struct PlannedChange<'a> {
    /// The field table.
    pub fields: &'a [Field],
    /// The state before; null for a create.
    pub prior: &'a Value,
    /// The configuration, write-only values included.
    pub config: &'a Value,
    /// The planned state.
    pub planned: Value,
    /// What differs.
    pub changes: Vec<Change>,
    /// What needs another resource.
    pub replace: Vec<AttributePath>,
    /// What to tell.
    pub diagnostics: Vec<Diagnostic>,
    /// What is kept beside the state.
    pub private: Private,
}

impl<'a> PlannedChange<'a> {
    /// What the field table says.
    #[must_use]
    pub fn new(
        fields: &'a [Field],
        prior: &'a Value,
        config: &'a Value,
        planned: Value,
        private: Private,
    ) -> Self {
        let mut change = Self {
            fields,
            prior,
            config,
            planned,
            changes: Vec::new(),
            replace: Vec::new(),
            diagnostics: Vec::new(),
            private,
        };
        change.look_again();
        change
    }

    /// To be called when `planned` was changed.
    pub fn look_again(&mut self) {
        if self.is_create() {
            return;
        }
        self.changes = planning::changes(self.fields, self.prior, &self.planned);
        let replacing = self.changes.iter().filter(|change| change.effect == Effect::Replace);
        self.replace = replacing.map(|change| change.path.clone()).collect();
    }

    /// Whether there is none yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// Whether nothing is replaced but something is updated.
    #[must_use]
    pub fn is_update(&self) -> bool {
        !self.is_create() && self.replace.is_empty() && !self.changes.is_empty()
    }

    /// The changes with an effect.
    pub fn with_effect(&self, effect: Effect) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.effect == effect)
    }
}
