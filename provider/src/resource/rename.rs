//! Objects that one run destroys at one address of the configuration and creates at another one: their resource was renamed
//! without a `moved` block. Such an object stays as it is, and the create adopts it.
//!
//! Terraform plans and applies the two in any order:
//!
//! ```text
//! plan   the create, then the destroy ──▶ the destroy remembers to leave the object
//!        the destroy, then the create ──▶ error: the destroy is planned, and would delete it
//! apply  the create adopts it first   ──▶ the destroy leaves it
//!        the delete is requested first ─▶ the create waits until it is gone
//! ```
//!
//! The last line concerns creates whose names are unknown in the plan, and objects that differ.

use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyResponse, PlanRequest, PlanResponse},
};

use super::KindResource;
use crate::{api::Address, field::Effect, planning, private::Private, run::Run};

impl KindResource {
    /// Plans a destroy.
    pub(super) async fn plan_destroy(&self, request: PlanRequest) -> PlanResponse {
        let run = self.session.settings().run;
        let at = self.address(&request.prior);
        let private = Private::from_bytes(&request.private);
        let mut response = PlanResponse::new(Value::Null);
        response.diagnostics.extend(self.refuse_after_move(&request.prior, &private, true));
        let created = run.destroy(&at, &request.prior).await;
        let leaves_object = created.is_some_and(|created| self.is_same(&request.prior, &created));
        // Also if it does not: Terraform stores the data of a planned destroy whose apply has failed.
        response.private = Some(Private { leaves_object, ..private }.to_bytes());
        if leaves_object {
            response.diagnostics.push(self.stays(&at));
        } else {
            response.diagnostics.extend(self.protected(&request.prior, "destroyed"));
        }
        response
    }

    /// The result of a destroy that leaves the object to its other address.
    pub(super) fn left(&self, at: &Address) -> ApplyResponse {
        ApplyResponse::new(Value::Null).warn([self.stays(at)])
    }

    fn stays(&self, at: &Address) -> Diagnostic {
        let detail = format!(
            "The configuration declares the same object at another address. It is not destroyed: that address adopts it as it \
             is, although Terraform counts one to add and one to destroy. {}",
            self.moved_block()
        );
        Diagnostic::warning(format!("{} stays", self.title(at)), detail)
    }

    /// The refusal of a create whose object the plan already destroys.
    pub(super) fn destroyed_before(&self, run: &Run, planned: &Value) -> Option<Diagnostic> {
        let at = self.address(planned);
        run.destroyed(&at).filter(|prior| self.is_same(prior, planned))?;
        let detail = format!(
            "The state has the same object at another address, which this plan destroys: it would be deleted, and created again \
             without its data. {} To delete its data on purpose, remove the resource in an apply of its own first.",
            self.moved_block()
        );
        let summary = format!("{} would be destroyed and created", self.title(&at));
        Some(Diagnostic::error(summary, detail).at("name"))
    }

    fn moved_block(&self) -> String {
        let name = self.info.type_name;
        format!("If the resource was renamed, declare that: moved {{ from = {name}.OLD, to = {name}.NEW }}.")
    }

    /// Whether a create declares what the prior state of another address declares, as far as values are known.
    fn is_same(&self, prior: &Value, planned: &Value) -> bool {
        let changes = planning::changes(&self.fields, prior, planned);
        let matters = |change: &planning::Change| {
            change.effect != Effect::Local && planned.at(&change.path).is_wholly_known()
        };
        !changes.iter().any(matters)
    }
}
