//! A provider of resources that exist only in Terraform's state: the provider that the tests drive, and a small complete
//! example.

use std::{process::ExitCode, sync::Arc, time::Duration};

use async_trait::async_trait;
use tfplugin6::{
    Action, AttributePath, DataSource, Diagnostic, EphemeralResource, Function, FunctionError,
    IdentitySchema, ListResource, Provider, Resource, Schema, ServeOptions, Type, Value,
    action::{ActionRequest, PlanActionResponse, Progress},
    data_source::{ReadDataRequest, ReadDataResponse},
    ephemeral::{OpenRequest, OpenResponse},
    function::{Parameter, Signature},
    identity::IdentityAttribute,
    list_resource::{ListRequest, ListResponse, ListResult},
    plan::mark_computed_unknown,
    provider::ConfigureRequest,
    resource::{
        ApplyRequest, ApplyResponse, GenerateConfigRequest, GenerateConfigResponse, ImportRequest,
        ImportResponse, ImportSource, MoveRequest, MoveResponse, PlanRequest, PlanResponse, ReadRequest,
        ReadResponse, UpgradeRequest, UpgradeResponse,
    },
    schema::{Attribute, NestedBlock, Nesting},
};

fn main() -> ExitCode {
    let debug = std::env::args().any(|argument| argument == "--debug");
    tfplugin6::serve(toy, ServeOptions::new("example/toy").debug(debug))
}

/// Creates the provider. With `TOY_CREATE_AFTER` it waits until a file of that path exists, for at most 30 seconds.
fn toy() -> Toy {
    if let Ok(path) = std::env::var("TOY_CREATE_AFTER") {
        for _ in 0..3000 {
            if std::path::Path::new(&path).exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Toy
}

struct Toy;

#[async_trait]
impl Provider for Toy {
    fn schema(&self) -> Schema {
        Schema::new(vec![Attribute::string("greeting").optional().description("Logged once.")])
    }

    async fn configure(&self, request: ConfigureRequest) -> Vec<Diagnostic> {
        let greeting = request.config.get("greeting").as_str().unwrap_or("none");
        tracing::info!(terraform = request.terraform_version, greeting, "configured");
        Vec::new()
    }

    fn resources(&self) -> Vec<Arc<dyn Resource>> {
        vec![Arc::new(Thing)]
    }

    fn data_sources(&self) -> Vec<Arc<dyn DataSource>> {
        vec![Arc::new(Echo)]
    }

    fn ephemeral_resources(&self) -> Vec<Arc<dyn EphemeralResource>> {
        vec![Arc::new(Token)]
    }

    fn list_resources(&self) -> Vec<Arc<dyn ListResource>> {
        vec![Arc::new(Things)]
    }

    fn actions(&self) -> Vec<Arc<dyn Action>> {
        vec![Arc::new(Announce)]
    }

    fn functions(&self) -> Vec<Arc<dyn Function>> {
        vec![Arc::new(Join)]
    }
}

/// `toy_thing`
struct Thing;

fn disk() -> Vec<Attribute> {
    vec![
        Attribute::string("name").required(),
        Attribute::number("gib").default(10),
        Attribute::string("serial").computed().keeps_state(),
    ]
}

fn rule() -> Vec<Attribute> {
    vec![Attribute::number("port").required(), Attribute::string("handle").computed()]
}

fn thing_schema() -> Schema {
    Schema::new(vec![
        Attribute::string("id").computed().keeps_state(),
        Attribute::number("revision").computed().description("Counts the applies."),
        Attribute::string("name").required().description("Cannot be changed."),
        Attribute::number("size").default(1),
        Attribute::new("labels", Type::map(Type::String)).optional(),
        Attribute::new("tags", Type::set(Type::String)).optional(),
        Attribute::new("anything", Type::Dynamic).optional(),
        Attribute::nested("disks", Nesting::List, disk()).optional().keyed_by("name"),
        Attribute::nested("rules", Nesting::Set, rule()).optional(),
        Attribute::nested("nics", Nesting::Map, disk()).optional(),
        Attribute::string("password").optional().write_only(),
        Attribute::number("password_length").computed(),
        Attribute::number("delay_ms").optional().description("How long a create takes."),
        Attribute::string("started_file")
            .optional()
            .description("A file that a create writes before its delay."),
        Attribute::string("fault").optional().description("`create` or `panic`."),
    ])
    .blocks(vec![NestedBlock::single("timeouts", vec![Attribute::string("create").optional()])])
    .version(1)
}

#[async_trait]
impl Resource for Thing {
    fn type_name(&self) -> &str {
        "toy_thing"
    }

    fn schema(&self) -> Schema {
        thing_schema()
    }

    fn identity_schema(&self) -> Option<IdentitySchema> {
        Some(IdentitySchema::new(vec![IdentityAttribute::required("name", "Its name.")]))
    }

    async fn plan(&self, request: PlanRequest) -> PlanResponse {
        assert_ne!(request.config.get("fault").as_str(), Some("panic"), "requested");
        let schema = thing_schema();
        let planned = mark_computed_unknown(&schema, &request.prior, request.proposed, &request.config);
        let mut response = PlanResponse::new(planned);
        if !request.prior.is_null() && request.prior.get("name") != response.planned.get("name") {
            response.requires_replace.push(AttributePath::root("name"));
        }
        response
    }

    async fn apply(&self, request: ApplyRequest) -> ApplyResponse {
        if request.is_destroy() {
            return ApplyResponse::new(Value::Null);
        }
        let delay =
            Duration::from_millis(request.config.get("delay_ms").as_i64().unwrap_or(0).unsigned_abs());
        let mut failed = Vec::new();
        if request.is_create() {
            if let Some(path) = request.config.get("started_file").as_str()
                && let Err(error) = std::fs::write(path, "")
            {
                failed.push(Diagnostic::error("Unable to write started_file", error.to_string()));
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = request.cancel.cancelled() => {
                    failed.push(Diagnostic::error("Stopped", "The thing is half made."));
                }
            }
            if request.config.get("fault").as_str() == Some("create") {
                failed.push(Diagnostic::error("Failed on request", "The thing is half made.").at("fault"));
            }
        }
        let name = request.planned.get("name").clone();
        let mut response = ApplyResponse::new(applied(&request));
        if !failed.is_empty() {
            // Unknown values stay unknown: the server turns them into null.
            let mut partial = request.planned.clone();
            partial.set("id", format!("thing-{}", name.as_str().unwrap_or_default()));
            response.state = Some(partial);
        }
        response.identity = Some(Value::object([("name", name)]));
        response.warn(failed)
    }

    async fn read(&self, request: ReadRequest) -> ReadResponse {
        let mut response = ReadResponse::default();
        // After an import only the name is known.
        if request.state.get("id").is_null() {
            let config = request.state.clone();
            let planned = mark_computed_unknown(&thing_schema(), &Value::Null, request.state, &config);
            response.state = Some(filled(planned, 0, 0));
        }
        response.identity = Some(Value::object([("name", config_name(&response, &request.identity))]));
        response
    }

    async fn import(&self, request: ImportRequest) -> ImportResponse {
        let name = match request.source {
            ImportSource::Id(id) => Value::from(id),
            ImportSource::Identity(identity) => identity.get("name").clone(),
        };
        ImportResponse::new(Value::object([("name", name)]))
    }

    /// Version 0 called the name `title`.
    async fn upgrade(&self, request: UpgradeRequest) -> UpgradeResponse {
        let mut old = Schema::new(thing_schema().block.attributes);
        old.block.attributes.push(Attribute::string("title").optional());
        match request.decode(&old) {
            Ok(mut state) => {
                if let Value::Map(entries) = &mut state
                    && let Some(title) = entries.remove("title")
                {
                    entries.insert("name".to_owned(), title);
                }
                UpgradeResponse::new(state)
            }
            Err(error) => Diagnostic::error("Unable to upgrade", error.to_string()).into(),
        }
    }

    fn generates_config(&self) -> bool {
        true
    }

    /// Only the name: everything else has defaults.
    async fn generate_config(&self, request: GenerateConfigRequest) -> GenerateConfigResponse {
        let config = Value::object([("name", request.state.get("name").clone())]);
        let note = Diagnostic::warning("Only the name", "Everything else has defaults.");
        GenerateConfigResponse { config, diagnostics: vec![note] }
    }

    async fn move_state(&self, request: MoveRequest) -> MoveResponse {
        let ty = Type::object([("id", Type::String)]);
        match Value::from_json(&request.source_json, &ty) {
            Ok(state) => MoveResponse::new(Value::object([("name", state.get("id").clone())])),
            Err(error) => Diagnostic::error("Unable to move", error.to_string()).into(),
        }
    }
}

fn config_name(response: &ReadResponse, identity: &Option<Value>) -> Value {
    let read = response.state.as_ref().map(|state| state.get("name").clone());
    read.or_else(|| identity.as_ref().map(|identity| identity.get("name").clone())).unwrap_or_default()
}

/// The planned state with its unknown values filled in.
fn applied(request: &ApplyRequest) -> Value {
    let revision = request.prior.get("revision").as_i64().unwrap_or(0) + 1;
    let password = request.config.get("password").as_str().map_or(0, str::len);
    filled(request.planned.clone(), revision, i64::try_from(password).unwrap_or(0))
}

fn filled(mut planned: Value, revision: i64, password_length: i64) -> Value {
    let name = planned.get("name").as_str().unwrap_or_default().to_owned();
    fill(&mut planned, "id", format!("thing-{name}"));
    fill(&mut planned, "revision", revision);
    fill(&mut planned, "password_length", password_length);
    for (list, key, computed) in [("disks", "name", "serial"), ("rules", "port", "handle")] {
        if let Some(Value::List(elements)) = planned.get_mut(list) {
            for element in elements {
                let known = element.get(key).as_number().map(ToString::to_string);
                let known = known.or_else(|| element.get(key).as_str().map(str::to_owned));
                fill(element, computed, format!("{name}/{}/{revision}", known.unwrap_or_default()));
            }
        }
    }
    if let Some(Value::Map(nics)) = planned.get_mut("nics") {
        for (key, nic) in nics {
            fill(nic, "serial", format!("{name}/{key}/{revision}"));
        }
    }
    planned
}

fn fill(object: &mut Value, name: &str, value: impl Into<Value>) {
    if object.get(name).is_unknown() {
        object.set(name, value);
    }
}

/// `data.toy_echo`
struct Echo;

#[async_trait]
impl DataSource for Echo {
    fn type_name(&self) -> &str {
        "toy_echo"
    }

    fn schema(&self) -> Schema {
        Schema::new(vec![Attribute::string("text").required(), Attribute::string("heard").computed()])
    }

    async fn read(&self, request: ReadDataRequest) -> ReadDataResponse {
        let mut state = request.config;
        let text = state.get("text").clone();
        state.set("heard", text);
        ReadDataResponse::new(state)
    }
}

/// `ephemeral.toy_token`
struct Token;

#[async_trait]
impl EphemeralResource for Token {
    fn type_name(&self) -> &str {
        "toy_token"
    }

    fn schema(&self) -> Schema {
        Schema::new(vec![
            Attribute::number("length").required(),
            Attribute::string("token").computed().sensitive(),
        ])
    }

    async fn open(&self, request: OpenRequest) -> OpenResponse {
        let mut result = request.config;
        let length = result.get("length").as_i64().and_then(|length| usize::try_from(length).ok());
        result.set("token", "t".repeat(length.unwrap_or(0)));
        OpenResponse { private: Some(b"open".to_vec()), ..OpenResponse::new(result) }
    }
}

/// `provider::toy::join("-", "a", "b")`
struct Join;

#[async_trait]
impl Function for Join {
    fn name(&self) -> &str {
        "join"
    }

    fn signature(&self) -> Signature {
        let separator = Parameter::new("separator", Type::String, "The separator.");
        Signature {
            variadic: Some(Parameter::new("parts", Type::String, "The parts to join.")),
            ..Signature::new(vec![separator], Type::String, "Joins strings.")
        }
    }

    async fn call(&self, arguments: Vec<Value>) -> Result<Value, FunctionError> {
        let strings: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
        match strings.split_first() {
            Some((&"", [])) => Err(FunctionError { text: "nothing to join".to_owned(), argument: Some(0) }),
            Some((separator, parts)) => Ok(Value::from(parts.join(separator))),
            None => Ok(Value::Null),
        }
    }
}

/// `list "toy_thing"`: as many things as `count` says, of which the names begin with `prefix`.
struct Things;

#[async_trait]
impl ListResource for Things {
    fn type_name(&self) -> &str {
        "toy_thing"
    }

    fn schema(&self) -> Schema {
        Schema::new(vec![Attribute::number("count").required(), Attribute::string("prefix").optional()])
    }

    async fn list(&self, request: ListRequest) -> ListResponse {
        let Some(count) = request.config.get("count").as_i64().filter(|count| *count >= 0) else {
            return Diagnostic::error("No such count", "A count is a whole number.").at("count").into();
        };
        let prefix = request.config.get("prefix").as_str().unwrap_or("thing-");
        let result = |i: i64| {
            let name = format!("{prefix}{i}");
            let identity = Value::object([("name", Value::from(name.as_str()))]);
            let resource = request.include_resource.then(|| {
                Value::object([("name", Value::from(name.as_str())), ("password", Value::from("write-only"))])
            });
            ListResult { identity, display_name: name, resource }
        };
        let mut response = ListResponse::new((0..count).map(result).collect());
        if prefix.is_empty() {
            response.diagnostics.push(Diagnostic::warning("No prefix", "The names are numbers."));
        }
        response
    }
}

/// `action "toy_announce"`: repeats its text, or waits until it is cancelled.
struct Announce;

#[async_trait]
impl Action for Announce {
    fn type_name(&self) -> &str {
        "toy_announce"
    }

    fn schema(&self) -> Schema {
        Schema::new(vec![
            Attribute::string("text").required(),
            Attribute::number("times").optional(),
            Attribute::string("cancelled_file")
                .optional()
                .description("Waits, and writes this file when cancelled."),
        ])
    }

    async fn plan(&self, request: ActionRequest) -> PlanActionResponse {
        let mut response = PlanActionResponse::default();
        if request.config.get("text").as_str() == Some("") {
            response
                .diagnostics
                .push(Diagnostic::error("Nothing to announce", "The text is empty.").at("text"));
        }
        response
    }

    async fn invoke(&self, request: ActionRequest, progress: Progress) -> Vec<Diagnostic> {
        let text = request.config.get("text").as_str().unwrap_or_default();
        assert_ne!(text, "panic", "requested");
        for i in 0..request.config.get("times").as_i64().unwrap_or(1) {
            progress.report(format!("{text} {i}"));
        }
        if let Some(path) = request.config.get("cancelled_file").as_str() {
            request.cancel.cancelled().await;
            if let Err(error) = std::fs::write(path, "") {
                return vec![Diagnostic::error("Unable to write cancelled_file", error.to_string())];
            }
        }
        if text == "fail" {
            vec![Diagnostic::error("Failed on request", "As announced.")]
        } else {
            Vec::new()
        }
    }
}
