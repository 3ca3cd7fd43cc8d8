//! A change during planning: the result of the field table, and the additions of a kind.

use std::sync::Arc;

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Effect, Field, declared_power},
    planning::{self, Change},
    private::Private,
    run::Run,
};

/// A planned create or update.
#[derive(Debug)]
pub struct PlannedChange<'a> {
    /// The field table.
    pub fields: &'a [Field],
    /// The prior state; null for a create.
    pub prior: &'a Value,
    /// The configuration, with its write-only values.
    pub config: &'a Value,
    /// The planned state.
    pub planned: Value,
    /// The differences from the prior state.
    pub changes: Vec<Change>,
    /// The attributes that require replacement.
    pub replace: Vec<AttributePath>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
    /// The reasons why the change must not be applied. A plan shows them as warnings: before `terraform destroy` Terraform
    /// plans the configuration as for an apply, and an error there would block the destroy. An apply fails with them.
    pub refusals: Vec<Diagnostic>,
    /// Objects that the change needs and that do not exist. The same apply may create them first: a plan shows a warning, and
    /// an apply fails.
    pub missing: Vec<Diagnostic>,
    /// The private data beside the state.
    pub private: Private,
    /// The facts about this run of Terraform.
    pub run: Arc<Run>,
    /// Whether the change is about to be applied. Warnings belong to its plan.
    pub is_applied: bool,
    /// Whether the object keeps its name with another `name_prefix`, which it begins with.
    pub keeps_name: bool,
}

impl<'a> PlannedChange<'a> {
    /// A change as the field table plans it.
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
            refusals: Vec::new(),
            missing: Vec::new(),
            private,
            run: Arc::default(),
            is_applied: false,
            keeps_name: false,
        };
        change.recompute_changes();
        change
    }

    /// Computes the changes again. Must be called after `planned` changes, and before effects are refined.
    pub fn recompute_changes(&mut self) {
        if self.is_create() {
            return;
        }
        self.changes = planning::changes(self.fields, self.prior, &self.planned);
        let power = declared_power(self.prior);
        let name_prefix = AttributePath::root("name_prefix");
        for change in &mut self.changes {
            let is_kept = self.keeps_name && change.path == name_prefix;
            change.effect = if is_kept { Effect::Live } else { change.effect.with_power(power) };
        }
        let replacing = self.changes.iter().filter(|change| change.effect == Effect::Replace);
        self.replace = replacing.map(|change| change.path.clone()).collect();
    }

    /// Refuses the change.
    pub fn refuse(&mut self, summary: impl Into<String>, detail: impl Into<String>, at: AttributePath) {
        self.refusals.push(Diagnostic::error(summary, detail).at(at));
    }

    /// Refuses the change for as long as an object that it needs does not exist.
    pub fn refuse_missing(
        &mut self,
        summary: impl Into<String>,
        detail: impl Into<String>,
        at: AttributePath,
    ) {
        self.missing.push(Diagnostic::error(summary, detail).at(at));
    }

    /// Whether the resource does not exist yet.
    #[must_use]
    pub fn is_create(&self) -> bool {
        self.prior.is_null()
    }

    /// Whether the change is an update: not a create, not a replacement, and not empty.
    #[must_use]
    pub fn is_update(&self) -> bool {
        !self.is_create() && self.replace.is_empty() && !self.changes.is_empty()
    }

    /// The changes with an effect.
    pub fn with_effect(&self, effect: Effect) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.effect == effect)
    }
}
