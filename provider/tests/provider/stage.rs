//! Terraform's side, in process: plan, then apply the plan, with the checks core makes in between.

use std::sync::Arc;

use serde_json::Value as Json;
use terraform_provider_berth::{
    BerthProvider,
    api::Api,
    field::{Field, Shape},
    references::{IP_POOL, Reference, STORAGE_POOL},
    resource::KindResource,
    session::{Session, Settings},
};
use tfplugin6::{
    CancellationToken, Diagnostic, Number, Resource, Value, diagnostic,
    provider::ClientCapabilities,
    resource::{
        ApplyRequest, ImportRequest, ImportSource, MoveRequest, PlanRequest, PlanResponse, ReadRequest,
        ValidateRequest,
    },
};

/// One resource of a configuration, with its state.
pub(crate) struct Stage {
    resource: Arc<KindResource>,
    pub(crate) state: Value,
    pub(crate) private: Vec<u8>,
    pub(crate) cancel: CancellationToken,
}

/// The result of an apply.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Whether Terraform would replace the resource in the next apply.
    pub(crate) tainted: bool,
}

impl Applied {
    pub(crate) fn is_clean(&self) -> bool {
        self.diagnostics.is_empty()
    }

    pub(crate) fn text(&self) -> String {
        text_of(&self.diagnostics)
    }
}

/// A provider for an owner.
pub(crate) fn provider(client: &kube::Client, owner: &str) -> BerthProvider {
    let session = Arc::new(Session::default());
    let api = Ok(Api::new(client.clone()));
    session.configure(Settings::new(api, owner.into(), Some("default".into())));
    BerthProvider::new(session)
}

/// A resource of a provider of its own, without the other resources: these take longer than most operations.
pub(crate) fn stage_alone(client: &kube::Client, type_name: &str) -> Stage {
    let session = Arc::new(Session::default());
    session.configure(Settings::new(Ok(Api::new(client.clone())), "default".into(), Some("default".into())));
    let resource = match type_name {
        "berth_disk" => KindResource::new(terraform_provider_berth::disk::Disk, session),
        "berth_vm" => KindResource::new(terraform_provider_berth::vm::Vm, session),
        "berth_hotswap_disk_attachment" => {
            let kind = terraform_provider_berth::hotswap_disk_attachment::HotswapDiskAttachment;
            KindResource::new(kind, session)
        }
        _ => return Stage::new(&BerthProvider::new(session), type_name),
    };
    Stage::of(Arc::new(resource))
}

/// Converts HCL-like JSON to a value.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Number(number.to_string().parse::<Number>().expect("a number")),
        Json::String(text) if text == "<unknown>" => Value::UNKNOWN,
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(elements) => Value::List(elements.iter().map(value).collect()),
        Json::Object(entries) => {
            Value::object(entries.iter().map(|(name, json)| (name.clone(), value(json))))
        }
    }
}

pub(crate) fn text_of(diagnostics: &[Diagnostic]) -> String {
    let one = |d: &Diagnostic| {
        let at = d.attribute.as_ref().map(|path| format!(" [{path}]")).unwrap_or_default();
        format!("{:?}: {}: {}{at}", d.severity, d.summary, d.detail)
    };
    diagnostics.iter().map(one).collect::<Vec<_>>().join("\n")
}

impl Stage {
    pub(crate) fn new(provider: &BerthProvider, type_name: &str) -> Self {
        let resource = provider.kinds().iter().find(|resource| resource.type_name() == type_name);
        Self::of(resource.expect("the provider has it").clone())
    }

    pub(crate) fn of(resource: Arc<KindResource>) -> Self {
        Self { resource, state: Value::Null, private: Vec::new(), cancel: CancellationToken::new() }
    }

    /// The same resource with the state of another address.
    pub(crate) fn with_state_of(self, other: &Self) -> Self {
        Self { state: other.state.clone(), private: other.private.clone(), ..self }
    }

    pub(crate) async fn validate(&self, config: &Json) -> Vec<Diagnostic> {
        let client = ClientCapabilities::default();
        self.resource
            .validate(ValidateRequest { config: value(config), client, cancel: self.cancel.clone() })
            .await
    }

    pub(crate) async fn plan(&self, config: &Json) -> PlanResponse {
        self.plan_from(self.state.clone(), config).await
    }

    pub(crate) async fn plan_from(&self, prior: Value, config: &Json) -> PlanResponse {
        let config = value(config);
        let request = PlanRequest {
            proposed: config.clone(),
            config,
            private: if prior.is_null() { Vec::new() } else { self.private.clone() },
            prior,
            identity: None,
            provider_meta: Value::Null,
            client: ClientCapabilities::default(),
            cancel: self.cancel.clone(),
        };
        self.resource.plan(request).await
    }

    /// Plans to destroy the resource.
    pub(crate) async fn plan_destroy(&self) -> PlanResponse {
        let request = PlanRequest {
            proposed: Value::Null,
            config: Value::Null,
            private: self.private.clone(),
            prior: self.state.clone(),
            identity: None,
            provider_meta: Value::Null,
            client: ClientCapabilities::default(),
            cancel: self.cancel.clone(),
        };
        self.resource.plan(request).await
    }

    /// Whether a plan has no changes.
    pub(crate) async fn plan_is_empty(&self, config: &Json) -> bool {
        let response = self.plan(config).await;
        let same = response.planned == self.state && response.diagnostics.is_empty();
        if !same {
            for (name, planned) in response.planned.as_map().into_iter().flatten() {
                if planned != self.state.get(name) {
                    eprintln!("{name}: state {:?} planned {planned:?}", self.state.get(name));
                }
            }
            eprintln!("{}", text_of(&response.diagnostics));
        }
        same
    }

    /// Plans and applies; replaces when the plan requires it, as core does.
    pub(crate) async fn apply(&mut self, config: &Json) -> Applied {
        let mut plan = self.plan(config).await;
        if diagnostic::has_errors(&plan.diagnostics) {
            return Applied { diagnostics: plan.diagnostics, tainted: false };
        }
        if !self.state.is_null() && !plan.requires_replace.is_empty() {
            let destroyed = self.destroy().await;
            assert!(destroyed.is_clean(), "{}", destroyed.text());
            plan = self.plan(config).await;
        }
        // Most stories make no object but those that they are about, and the pools.
        self.announce_named(&plan.planned);
        let mut warnings = plan.diagnostics.clone();
        warnings.retain(|warning| !warning.summary.ends_with(" does not exist"));
        let mut applied = self.apply_plan(plan, config).await;
        applied.diagnostics.splice(0..0, warnings);
        applied
    }

    /// Notes that the same run creates the objects that the planned values name.
    pub(crate) fn announce_named(&self, planned: &Value) {
        let run = self.resource.session().settings().run;
        let namespace = planned.get("namespace").as_str().unwrap_or("default");
        let mut named = Vec::new();
        find_named(self.resource.fields(), planned, &mut named);
        for (reference, name) in named {
            let place = reference.places(namespace, &name).into_iter().next().expect("it has a place");
            run.announce(&place, &Value::Null);
        }
    }

    pub(crate) async fn apply_plan(&mut self, plan: PlanResponse, config: &Json) -> Applied {
        let creating = self.state.is_null();
        let request = ApplyRequest {
            prior: self.state.clone(),
            planned: plan.planned.clone(),
            config: value(config),
            private: plan.private.unwrap_or_else(|| self.private.clone()),
            identity: plan.identity,
            provider_meta: Value::Null,
            cancel: self.cancel.clone(),
        };
        let response = self.resource.apply(request).await;
        let failed = diagnostic::has_errors(&response.diagnostics);
        if let Some(state) = response.state {
            if !failed {
                assert_consistent(&plan.planned, &state, "");
            }
            self.state = state;
        }
        if let Some(private) = response.private {
            self.private = private;
        }
        let tainted = creating && failed && !self.state.is_null();
        Applied { diagnostics: response.diagnostics, tainted }
    }

    pub(crate) async fn read(&mut self) -> Vec<Diagnostic> {
        let request = ReadRequest {
            state: self.state.clone(),
            private: self.private.clone(),
            identity: None,
            provider_meta: Value::Null,
            client: ClientCapabilities::default(),
            cancel: self.cancel.clone(),
        };
        let response = self.resource.read(request).await;
        if let Some(state) = response.state {
            self.state = state;
        }
        if let Some(private) = response.private {
            self.private = private;
        }
        response.diagnostics
    }

    pub(crate) async fn import(&mut self, id: &str) -> Vec<Diagnostic> {
        let source = ImportSource::Id(id.into());
        let client = ClientCapabilities::default();
        let response =
            self.resource.import(ImportRequest { source, client, cancel: self.cancel.clone() }).await;
        if diagnostic::has_errors(&response.diagnostics) {
            return response.diagnostics;
        }
        self.state = response.state.expect("an import has a state");
        self.private = response.private;
        self.read().await
    }

    /// Moves a resource of another type and provider to this one, and reads it, as core does before a plan.
    pub(crate) async fn move_from(
        &mut self,
        address: &str,
        type_name: &str,
        state: &Json,
    ) -> Vec<Diagnostic> {
        let request = MoveRequest {
            source_provider_address: address.into(),
            source_type_name: type_name.into(),
            source_schema_version: 0,
            source_json: state.to_string(),
            source_private: Vec::new(),
            source_identity_json: None,
            source_identity_schema_version: 0,
            cancel: self.cancel.clone(),
        };
        let response = self.resource.move_state(request).await;
        if diagnostic::has_errors(&response.diagnostics) {
            return response.diagnostics;
        }
        self.state = response.state.expect("a move has a state");
        self.private = response.private;
        let mut diagnostics = response.diagnostics;
        diagnostics.extend(self.read().await);
        diagnostics
    }

    pub(crate) async fn destroy(&mut self) -> Applied {
        let request = ApplyRequest {
            prior: self.state.clone(),
            planned: Value::Null,
            config: Value::Null,
            private: self.private.clone(),
            identity: None,
            provider_meta: Value::Null,
            cancel: self.cancel.clone(),
        };
        let response = self.resource.apply(request).await;
        if let Some(state) = response.state {
            self.state = state;
        }
        Applied { diagnostics: response.diagnostics, tainted: false }
    }
}

fn find_named(fields: &[Field], planned: &Value, named: &mut Vec<(Reference, String)>) {
    for field in fields {
        let value = planned.get(field.name);
        match (&field.shape, field.refers) {
            (Shape::Object(fields), _) => find_named(fields, value, named),
            (Shape::Keyed(fields), _) => {
                value.elements().iter().for_each(|element| find_named(fields, element, named));
            }
            (_, Some(reference)) if ![IP_POOL, STORAGE_POOL].contains(&reference) => {
                named.extend(value.as_str().map(|name| (reference, name.to_owned())));
            }
            _ => {}
        }
    }
}

/// Core's check after every apply: values that were planned as known are in the state.
fn assert_consistent(planned: &Value, state: &Value, at: &str) {
    match planned {
        Value::Unknown(_) => assert!(state.is_wholly_known(), "{at} is unknown after apply"),
        Value::Map(entries) => {
            for (name, planned) in entries {
                assert_consistent(planned, state.get(name), &format!("{at}.{name}"));
            }
        }
        Value::List(elements) => {
            assert_eq!(elements.len(), state.elements().len(), "{at}");
            for (i, planned) in elements.iter().enumerate() {
                assert_consistent(planned, state.index(i), &format!("{at}[{i}]"));
            }
        }
        known => assert_eq!(known, state, "{at}"),
    }
}
