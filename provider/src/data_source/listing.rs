//! The selection of objects of a kind by namespace, selectors and readiness, for data sources and list resources.

use serde_json::Value as Json;
use tfplugin6::{Attribute, CancellationToken, Diagnostic, Value};

use super::{RETRIES, is_ready, name_problem, namespace, read_diagnostics};
use crate::{
    api::{Address, Api, RetryLimit, Selection},
    form::Form,
    resource::KindResource,
    selector,
};

/// The fields that a field selector can name.
fn selectable(resource: &KindResource) -> Vec<String> {
    let fields = resource.definition().pointer("/spec/versions/0/selectableFields");
    let fields = fields.and_then(Json::as_array).into_iter().flatten();
    let paths = fields.filter_map(|field| field.get("jsonPath").and_then(Json::as_str));
    let mut names = vec!["metadata.name".to_owned()];
    names.extend(paths.map(|path| path.trim_start_matches('.').to_owned()));
    names.extend(resource.kind().compared_fields().iter().map(|field| (*field).to_owned()));
    names
}

/// The fields that a field selector can name, for people.
pub(super) fn selectable_fields(resource: &KindResource) -> String {
    let fields: Vec<String> = selectable(resource).iter().map(|field| format!("`{field}`")).collect();
    fields.join(", ")
}

/// The arguments that select objects.
pub(crate) fn arguments(resource: &KindResource) -> Vec<Attribute> {
    let mut arguments = Vec::new();
    if resource.is_namespaced() {
        arguments.push(
            Attribute::string("namespace")
                .optional()
                .description("Namespace of the objects. Default: the provider's `namespace`."),
        );
        arguments.push(
            Attribute::bool("all_namespaces")
                .optional()
                .description("Whether to list the objects of all namespaces. Default false."),
        );
    }
    arguments.push(Attribute::string("label_selector").optional().description(
        "Labels of the objects, in the syntax of Kubernetes: `tier=web,env in (test, prod),!legacy`.",
    ));
    arguments.push(Attribute::string("field_selector").optional().description(format!(
        "Fields of the objects, in the syntax of Kubernetes: `metadata.name!=web`. These can be selected: {}.",
        selectable_fields(resource)
    )));
    arguments.push(
        Attribute::bool("ready")
            .optional()
            .description("Lists only the objects whose attribute `ready` has this value. Default: all."),
    );
    arguments
}

/// The problems with the arguments.
pub(crate) fn problems(resource: &KindResource, config: &Value) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = name_problem(config, "namespace", Form::Name).into_iter().collect();
    if config.get("namespace").as_str().is_some() && config.get("all_namespaces").as_bool() == Some(true) {
        let detail = "Set either namespace or all_namespaces.";
        found.push(Diagnostic::error("Both namespace and all_namespaces", detail).at("all_namespaces"));
    }
    found.extend(selector_problems(resource, config));
    found
}

/// The first problem with the selectors.
pub(super) fn selector_problem(resource: &KindResource, config: &Value) -> Option<Diagnostic> {
    selector_problems(resource, config).into_iter().next()
}

fn selector_problems(resource: &KindResource, config: &Value) -> Vec<Diagnostic> {
    let text = |name: &str| config.get(name).as_str();
    let problems = [
        ("label_selector", text("label_selector").and_then(selector::label_problem)),
        (
            "field_selector",
            text("field_selector").and_then(|text| selector::field_problem(text, &selectable(resource))),
        ),
    ];
    let problem = |(name, problem): (&str, Option<String>)| {
        problem.map(|problem| Diagnostic::error(format!("Invalid {name}"), problem).at(name))
    };
    problems.into_iter().filter_map(problem).collect()
}

/// The first objects that the arguments select, at most `limit`, sorted by namespace and name.
pub(crate) async fn objects(
    resource: &KindResource,
    api: &Api,
    config: &Value,
    limit: usize,
    cancel: &CancellationToken,
) -> Result<Vec<Json>, Vec<Diagnostic>> {
    let settings = resource.session().settings();
    let namespace = match namespace(resource, config, &settings) {
        _ if config.get("all_namespaces").as_bool() == Some(true) => String::new(),
        Ok(namespace) => namespace,
        Err(diagnostic) => return Err(vec![diagnostic]),
    };
    let text = |name: &str| config.get(name).as_str().unwrap_or_default().trim().to_owned();
    let compared = resource.kind().compared_fields();
    let (fields, requirements) = selector::divide_fields(&text("field_selector"), compared);
    let selection = Selection { labels: text("label_selector"), fields };
    let ready = config.get("ready").as_bool();
    let is_wanted = |object: &Json| {
        ready.is_none_or(|ready| is_ready(object) == ready)
            && requirements.iter().all(|requirement| requirement.is_met_by(object))
    };
    let at = Address::berth(resource.info().plural, &namespace, "");
    let retry_limit = RetryLimit::seconds(RETRIES, cancel);
    let listed = api.list_up_to(limit, &at, &selection, &is_wanted, &retry_limit).await;
    let mut objects = listed.map_err(|error| read_diagnostics(resource, &error, &at))?;
    objects.sort_by_cached_key(sort_key);
    Ok(objects)
}

fn sort_key(object: &Json) -> (String, String) {
    let text = |pointer| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}
