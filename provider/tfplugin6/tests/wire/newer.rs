//! What only Terraform 1.14 and later calls: list resources, generated configuration, actions.

use std::time::Duration;

use serde_json::json as js;
use tfplugin6::{
    Type,
    proto::tfplugin6::{
        generate_resource_config, get_provider_schema, invoke_action, list_resource, plan_action,
        validate_action_config, validate_list_resource_config,
    },
};

use crate::client::{Session, implied_type, json, value};

const THING: &str = "toy_thing";
const ANNOUNCE: &str = "toy_announce";

fn identity() -> Type {
    Type::object([("name", Type::String)])
}

async fn listed(session: &mut Session, config: serde_json::Value, limit: i64) -> Vec<list_resource::Event> {
    let request = list_resource::Request {
        type_name: THING.to_owned(),
        config: json(config),
        include_resource_object: true,
        limit,
    };
    let mut events = session.provider.list_resource(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(event) = events.message().await.unwrap() {
        all.push(event);
    }
    all
}

#[tokio::test]
async fn a_list_has_at_most_the_requested_count_of_identities_and_states() {
    let mut session = Session::new().await;
    let schemas =
        session.provider.get_provider_schema(get_provider_schema::Request {}).await.unwrap().into_inner();
    let thing = implied_type(schemas.resource_schemas[THING].block.as_ref().unwrap());
    assert!(schemas.list_resource_schemas.contains_key(THING));
    let events = listed(&mut session, js!({ "count": 5 }), 3).await;
    assert_eq!(events.len(), 3);
    for (i, event) in events.into_iter().enumerate() {
        assert_eq!(event.display_name, format!("thing-{i}"));
        let found = value(event.identity.unwrap().identity_data, &identity());
        assert_eq!(found.get("name").as_str(), Some(event.display_name.as_str()));
        let state = value(event.resource_object, &thing);
        assert_eq!(state.get("name").as_str(), Some(event.display_name.as_str()));
        assert!(state.get("password").is_null(), "a write-only value is in no state");
        assert!(event.diagnostic.is_empty());
    }
    assert!(listed(&mut session, js!({ "count": 5 }), 0).await.is_empty());
}

#[tokio::test]
async fn a_warning_of_a_list_has_no_identity_and_an_error_is_all_of_it() {
    let mut session = Session::new().await;
    let events = listed(&mut session, js!({ "count": 1, "prefix": "" }), 10).await;
    assert_eq!(events[0].diagnostic[0].summary, "No prefix");
    assert!(events[0].identity.is_none());
    assert_eq!(events[1].display_name, "0");
    let events = listed(&mut session, js!({ "count": -1 }), 10).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].diagnostic[0].summary, "No such count");
    let request = validate_list_resource_config::Request {
        type_name: "toy_other".to_owned(),
        ..validate_list_resource_config::Request::default()
    };
    let validated = session.provider.validate_list_resource_config(request).await.unwrap().into_inner();
    assert_eq!(validated.diagnostics[0].summary, "No such list resource");
}

#[tokio::test]
async fn configuration_is_generated_from_a_state() {
    let mut session = Session::new().await;
    let schemas =
        session.provider.get_provider_schema(get_provider_schema::Request {}).await.unwrap().into_inner();
    let thing = implied_type(schemas.resource_schemas[THING].block.as_ref().unwrap());
    let request = |state: serde_json::Value| generate_resource_config::Request {
        type_name: THING.to_owned(),
        state: json(state),
    };
    let state = js!({ "name": "web", "size": 7, "id": "thing-web" });
    let generated = session.provider.generate_resource_config(request(state)).await.unwrap().into_inner();
    assert_eq!(generated.diagnostics[0].summary, "Only the name");
    let config = value(generated.config, &thing);
    assert_eq!(config.get("name").as_str(), Some("web"));
    assert!(config.get("id").is_null() && config.get("size").is_null());
    // A list that was not asked for states has none.
    let generated = session.provider.generate_resource_config(request(js!(null))).await.unwrap().into_inner();
    assert!(value(generated.config, &thing).is_null() && generated.diagnostics.is_empty());
}

fn invocation(config: serde_json::Value) -> invoke_action::Request {
    invoke_action::Request {
        action_type: ANNOUNCE.to_owned(),
        config: json(config),
        ..invoke_action::Request::default()
    }
}

/// The progress and the diagnostics of an action.
async fn invoked(session: &mut Session, config: serde_json::Value) -> (Vec<String>, Vec<String>) {
    use invoke_action::event::Type;
    let mut events = session.provider.invoke_action(invocation(config)).await.unwrap().into_inner();
    let (mut messages, mut diagnostics, mut ends) = (Vec::new(), Vec::new(), 0);
    while let Some(event) = events.message().await.unwrap() {
        match event.r#type.unwrap() {
            Type::Progress(progress) => {
                assert_eq!(ends, 0, "progress after the end");
                messages.push(progress.message);
            }
            Type::Completed(completed) => {
                ends += 1;
                diagnostics.extend(completed.diagnostics.into_iter().map(|diagnostic| diagnostic.summary));
            }
        }
    }
    assert_eq!(ends, 1);
    (messages, diagnostics)
}

#[tokio::test]
async fn an_action_shows_its_progress_and_then_its_end() {
    let mut session = Session::new().await;
    let (messages, diagnostics) = invoked(&mut session, js!({ "text": "hello", "times": 3 })).await;
    assert_eq!(messages, ["hello 0", "hello 1", "hello 2"]);
    assert!(diagnostics.is_empty());
    let (messages, diagnostics) = invoked(&mut session, js!({ "text": "fail" })).await;
    assert_eq!((messages.len(), diagnostics), (1, vec!["Failed on request".to_owned()]));
    let (_, diagnostics) = invoked(&mut session, js!({ "text": "panic" })).await;
    assert_eq!(diagnostics, ["Provider bug"]);
    let (_, diagnostics) = invoked(&mut session, js!({ "times": "many", "text": "x" })).await;
    assert_eq!(diagnostics, ["Unable to read a value from Terraform"]);
}

#[tokio::test]
async fn an_action_is_validated_and_planned_by_its_schema() {
    let mut session = Session::new().await;
    let plan = |text: &str| plan_action::Request {
        action_type: ANNOUNCE.to_owned(),
        config: json(js!({ "text": text })),
        ..plan_action::Request::default()
    };
    let planned = session.provider.plan_action(plan("hello")).await.unwrap().into_inner();
    assert!(planned.diagnostics.is_empty() && planned.deferred.is_none());
    let planned = session.provider.plan_action(plan("")).await.unwrap().into_inner();
    assert_eq!(planned.diagnostics[0].summary, "Nothing to announce");
    let request = validate_action_config::Request {
        type_name: "toy_other".to_owned(),
        ..validate_action_config::Request::default()
    };
    let validated = session.provider.validate_action_config(request).await.unwrap().into_inner();
    assert_eq!(validated.diagnostics[0].summary, "No such action");
}

#[tokio::test]
async fn an_action_is_cancelled_by_a_stop_and_by_a_client_that_reads_no_more() {
    let directory = tempfile::tempdir().unwrap();
    for (name, is_stopped) in [("stopped", true), ("dropped", false)] {
        let mut session = Session::new().await;
        let file = directory.path().join(name);
        let config = js!({ "text": "wait", "cancelled_file": file.to_str().unwrap() });
        let mut events = session.provider.invoke_action(invocation(config)).await.unwrap().into_inner();
        assert!(events.message().await.unwrap().is_some(), "the first progress");
        if is_stopped {
            session
                .provider
                .stop_provider(tfplugin6::proto::tfplugin6::stop_provider::Request {})
                .await
                .unwrap();
        } else {
            drop(events);
        }
        let limit = tokio::time::Instant::now() + Duration::from_secs(20);
        while !file.exists() && tokio::time::Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(file.exists(), "{name}: not cancelled");
    }
}
