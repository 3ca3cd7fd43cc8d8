//! The provider service.

use std::time::Duration;

use serde_json::json as js;
use tfplugin6::{
    Type, Value,
    proto::tfplugin6::{
        self as wire, ClientCapabilities, RawState, ResourceIdentityData, apply_resource_change,
        call_function, get_metadata, get_provider_schema, get_resource_identity_schemas,
        import_resource_state, move_resource_state, plan_resource_change, read_resource, stop_provider,
        upgrade_resource_identity, upgrade_resource_state, validate_resource_config,
    },
};
use tonic::Code;

use crate::client::{Session, implied_type, json, value};

const THING: &str = "toy_thing";

async fn thing(session: &mut Session) -> Type {
    let schemas =
        session.provider.get_provider_schema(get_provider_schema::Request {}).await.unwrap().into_inner();
    implied_type(schemas.resource_schemas[THING].block.as_ref().unwrap())
}

fn create(configuration: serde_json::Value) -> plan_resource_change::Request {
    plan_resource_change::Request {
        type_name: THING.to_owned(),
        prior_state: json(js!(null)),
        proposed_new_state: json(configuration.clone()),
        config: json(configuration),
        ..plan_resource_change::Request::default()
    }
}

#[tokio::test]
async fn names_are_told_without_schemas() {
    let mut session = Session::new().await;
    let metadata = session.provider.get_metadata(get_metadata::Request {}).await.unwrap().into_inner();
    assert_eq!(metadata.resources[0].type_name, THING);
    assert_eq!(metadata.data_sources[0].type_name, "toy_echo");
    assert_eq!(metadata.ephemeral_resources[0].type_name, "toy_token");
    assert_eq!(metadata.functions[0].name, "join");
    assert_eq!(metadata.list_resources[0].type_name, THING);
    assert_eq!(metadata.actions[0].type_name, "toy_announce");
    let capabilities = metadata.server_capabilities.unwrap();
    assert!(capabilities.get_provider_schema_optional && capabilities.move_resource_state);
    assert!(capabilities.generate_resource_config);
    assert!(!capabilities.plan_destroy, "no resource of it wants to plan a destroy");
}

#[tokio::test]
async fn a_nested_attribute_never_has_a_type_of_its_own() {
    let mut session = Session::new().await;
    let schemas =
        session.provider.get_provider_schema(get_provider_schema::Request {}).await.unwrap().into_inner();
    let block = schemas.resource_schemas[THING].block.clone().unwrap();
    for attribute in &block.attributes {
        assert!(attribute.r#type.is_empty() == attribute.nested_type.is_some(), "{}", attribute.name);
    }
    assert_eq!(schemas.resource_schemas[THING].version, 1);
    assert_eq!(block.block_types[0].type_name, "timeouts");
}

#[tokio::test]
async fn a_message_of_many_megabytes_goes_both_ways() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let big = "x".repeat(24 << 20);
    let request = create(js!({ "name": "big", "labels": { "big": big } }));
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert!(planned.diagnostics.is_empty());
    let planned = value(planned.planned_state, &ty);
    assert_eq!(planned.get("labels").get("big").as_str().map(str::len), Some(24 << 20));
}

#[tokio::test]
async fn unknown_elements_of_a_set_keep_their_count_and_what_is_known_of_them() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let unknown =
        Value::Unknown(Some(Box::new(tfplugin6::Refinement { not_null: true, ..Default::default() })));
    let config = Value::object([
        ("name", Value::from("a")),
        ("tags", Value::List(vec![unknown.clone(), Value::UNKNOWN, unknown.clone()])),
    ]);
    let sent =
        Some(wire::DynamicValue { msgpack: config.to_msgpack(&ty).unwrap().into(), ..Default::default() });
    let request =
        plan_resource_change::Request { config: sent.clone(), proposed_new_state: sent, ..create(js!(null)) };
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert_eq!(
        *value(planned.planned_state, &ty).get("tags"),
        Value::List(vec![unknown.clone(), Value::UNKNOWN, unknown])
    );
}

#[tokio::test]
async fn stop_cancels_what_is_in_progress_and_the_next_run_starts_fresh() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let directory = tempfile::tempdir().unwrap();
    let started_file = directory.path().join("started");
    let configuration = js!({ "name": "slow", "delay_ms": 60_000, "started_file": started_file });
    let planned =
        session.provider.plan_resource_change(create(configuration.clone())).await.unwrap().into_inner();
    let apply = apply_resource_change::Request {
        type_name: THING.to_owned(),
        prior_state: json(js!(null)),
        planned_state: planned.planned_state,
        config: json(configuration),
        ..apply_resource_change::Request::default()
    };
    let mut applying = session.provider.clone();
    let applied =
        tokio::spawn(async move { applying.apply_resource_change(apply).await.unwrap().into_inner() });
    while !started_file.exists() {
        assert!(!applied.is_finished(), "the apply ended before it began its delay");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    session.provider.stop_provider(stop_provider::Request {}).await.unwrap();
    let applied = applied.await.unwrap();
    assert_eq!(applied.diagnostics[0].summary, "Stopped");
    let partial = value(applied.new_state, &ty);
    assert_eq!(partial.get("id").as_str(), Some("thing-slow"));
    assert!(partial.is_wholly_known() && partial.get("revision").is_null(), "what is not known yet is null");

    // A debugger's process serves another run after this one.
    session.provider.configure_provider(wire::configure_provider::Request::default()).await.unwrap();
    let configuration = js!({ "name": "next", "delay_ms": 1 });
    let planned =
        session.provider.plan_resource_change(create(configuration.clone())).await.unwrap().into_inner();
    let apply = apply_resource_change::Request {
        type_name: THING.to_owned(),
        planned_state: planned.planned_state,
        config: json(configuration),
        ..apply_resource_change::Request::default()
    };
    let applied = session.provider.apply_resource_change(apply).await.unwrap().into_inner();
    assert!(applied.diagnostics.is_empty(), "{:?}", applied.diagnostics);
}

#[tokio::test]
async fn a_panic_is_a_diagnostic_and_the_process_goes_on() {
    let mut session = Session::new().await;
    let request = create(js!({ "name": "a", "fault": "panic" }));
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert!(planned.diagnostics[0].detail.contains("panicked in plan"));
    assert!(planned.planned_state.is_none());
    let planned =
        session.provider.plan_resource_change(create(js!({ "name": "a" }))).await.unwrap().into_inner();
    assert!(planned.diagnostics.is_empty());
}

#[tokio::test]
async fn what_does_not_fit_the_schema_is_named() {
    let mut session = Session::new().await;
    let request = create(js!({ "name": "a", "disks": [{ "name": "x", "gib": "many" }] }));
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert!(planned.diagnostics[0].detail.contains("disks[0].gib"), "{:?}", planned.diagnostics);
    assert_eq!(planned.diagnostics[0].attribute.as_ref().unwrap().steps.len(), 3);
    let request = plan_resource_change::Request { type_name: "toy_other".to_owned(), ..create(js!({})) };
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert_eq!(planned.diagnostics[0].summary, "No such resource");
}

#[tokio::test]
async fn write_only_values_need_a_client_that_knows_them_and_never_come_back() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let configuration = js!({ "name": "a", "password": "secret" });
    let validate = |write_only_attributes_allowed| validate_resource_config::Request {
        type_name: THING.to_owned(),
        config: json(configuration.clone()),
        client_capabilities: Some(ClientCapabilities { write_only_attributes_allowed, ..Default::default() }),
    };
    let refused = session.provider.validate_resource_config(validate(false)).await.unwrap().into_inner();
    assert!(refused.diagnostics[0].detail.contains("password"));
    let accepted = session.provider.validate_resource_config(validate(true)).await.unwrap().into_inner();
    assert!(accepted.diagnostics.is_empty());
    let planned = session.provider.plan_resource_change(create(configuration)).await.unwrap().into_inner();
    let planned = planned.planned_state.unwrap();
    assert!(!planned.msgpack.windows(6).any(|window| window == b"secret"));
    let planned = Value::from_msgpack(&planned.msgpack, &ty).unwrap();
    assert!(planned.get("password").is_null());
}

#[tokio::test]
async fn a_destroy_is_planned_without_the_provider() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let request = plan_resource_change::Request {
        type_name: THING.to_owned(),
        // Planning this would panic.
        config: json(js!({ "name": "a", "fault": "panic" })),
        prior_state: json(js!({ "name": "a" })),
        proposed_new_state: json(js!(null)),
        prior_private: "kept".into(),
        ..plan_resource_change::Request::default()
    };
    let planned = session.provider.plan_resource_change(request).await.unwrap().into_inner();
    assert!(planned.diagnostics.is_empty());
    assert!(value(planned.planned_state, &ty).is_null());
    assert_eq!(planned.planned_private, "kept");
}

#[tokio::test]
async fn a_thing_is_imported_by_identity() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let schemas =
        session.provider.get_resource_identity_schemas(get_resource_identity_schemas::Request {}).await;
    let schema = schemas.unwrap().into_inner().identity_schemas[THING].clone();
    assert_eq!(schema.identity_attributes[0].name, "name");
    assert!(schema.identity_attributes[0].required_for_import);

    let identity = ResourceIdentityData { identity_data: json(js!({ "name": "web" })) };
    let request = import_resource_state::Request {
        type_name: THING.to_owned(),
        identity: Some(identity),
        ..import_resource_state::Request::default()
    };
    let imported = session.provider.import_resource_state(request).await.unwrap().into_inner();
    let imported = imported.imported_resources[0].clone();
    assert_eq!(value(imported.state.clone(), &ty).get("name").as_str(), Some("web"));
    assert!(imported.identity.is_some(), "what was asked for identifies it");

    let request = read_resource::Request {
        type_name: THING.to_owned(),
        current_state: imported.state,
        current_identity: imported.identity,
        ..read_resource::Request::default()
    };
    let read = session.provider.read_resource(request).await.unwrap().into_inner();
    assert_eq!(value(read.new_state, &ty).get("id").as_str(), Some("thing-web"));
    let identity_type = Type::object([("name", Type::String)]);
    let identity = value(read.new_identity.unwrap().identity_data, &identity_type);
    assert_eq!(identity.get("name").as_str(), Some("web"));
}

#[tokio::test]
async fn a_stored_identity_is_read() {
    let mut session = Session::new().await;
    let upgrade = |version| upgrade_resource_identity::Request {
        type_name: THING.to_owned(),
        version,
        raw_identity: Some(RawState { json: r#"{"name":"web"}"#.into(), ..RawState::default() }),
    };
    let same = session.provider.upgrade_resource_identity(upgrade(0)).await.unwrap().into_inner();
    let identity =
        value(same.upgraded_identity.unwrap().identity_data, &Type::object([("name", Type::String)]));
    assert_eq!(identity.get("name").as_str(), Some("web"));
    let newer = session.provider.upgrade_resource_identity(upgrade(9)).await.unwrap().into_inner();
    assert!(newer.diagnostics[0].detail.contains("version 9"));
}

#[tokio::test]
async fn a_stored_state_is_read_whatever_its_version() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let upgrade = |version, json: &str| upgrade_resource_state::Request {
        type_name: THING.to_owned(),
        version,
        raw_state: Some(RawState { json: json.to_owned().into(), ..RawState::default() }),
    };
    let same = upgrade(1, r#"{"name":"web","gone":[{}],"size":123456789012345678901234567890.25}"#);
    let same = session.provider.upgrade_resource_state(same).await.unwrap().into_inner();
    let same = value(same.upgraded_state, &ty);
    assert_eq!(same.get("name").as_str(), Some("web"));
    assert_eq!(same.get("size").as_number().unwrap().to_string(), "123456789012345678901234567890.25");

    let older = upgrade(0, r#"{"title":"web"}"#);
    let older = session.provider.upgrade_resource_state(older).await.unwrap().into_inner();
    assert_eq!(value(older.upgraded_state, &ty).get("name").as_str(), Some("web"));

    let flat = upgrade_resource_state::Request {
        raw_state: Some(RawState {
            flatmap: [("a".to_owned(), "b".to_owned())].into(),
            ..RawState::default()
        }),
        ..upgrade(1, "")
    };
    let flat = session.provider.upgrade_resource_state(flat).await.unwrap().into_inner();
    assert!(flat.diagnostics[0].detail.contains("0.11"));
}

#[tokio::test]
async fn a_resource_of_another_type_is_taken_over() {
    let mut session = Session::new().await;
    let ty = thing(&mut session).await;
    let request = move_resource_state::Request {
        source_provider_address: "example.com/hashicorp/null".to_owned(),
        source_type_name: "null_resource".to_owned(),
        source_state: Some(RawState { json: r#"{"id":"moved"}"#.into(), ..RawState::default() }),
        target_type_name: THING.to_owned(),
        ..move_resource_state::Request::default()
    };
    let moved = session.provider.move_resource_state(request).await.unwrap().into_inner();
    assert_eq!(value(moved.target_state, &ty).get("name").as_str(), Some("moved"));
}

#[tokio::test]
async fn a_function_says_which_argument_is_wrong() {
    let mut session = Session::new().await;
    let call = |arguments: &[&str]| call_function::Request {
        name: "join".to_owned(),
        arguments: arguments.iter().filter_map(|argument| json(js!(argument))).collect(),
    };
    let joined = session.provider.call_function(call(&["-", "a", "b"])).await.unwrap().into_inner();
    assert_eq!(value(joined.result, &Type::String).as_str(), Some("a-b"));
    let refused = session.provider.call_function(call(&[""])).await.unwrap().into_inner().error.unwrap();
    assert_eq!((refused.text.as_str(), refused.function_argument), ("nothing to join", Some(0)));
}

#[tokio::test]
async fn what_is_not_offered_is_unimplemented() {
    let mut session = Session::new().await;
    let request = wire::get_states::Request::default();
    assert_eq!(session.provider.get_states(request).await.unwrap_err().code(), Code::Unimplemented);
    let request = wire::lock_state::Request::default();
    assert_eq!(session.provider.lock_state(request).await.unwrap_err().code(), Code::Unimplemented);
}
