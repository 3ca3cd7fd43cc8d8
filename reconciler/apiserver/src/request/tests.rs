use super::*;

fn query(text: &str) -> Query {
    Query::of(&format!("/x?{text}").parse().unwrap()).unwrap()
}

#[test]
fn unknown_query_parameters_are_ignored_and_bad_values_refused() {
    let parse = |text: &str| Options::parse(&Method::POST, &query(text));
    assert!(parse("pretty=true&labelSelector=a%3Db").is_ok_and(|o| o.label_selector == "a=b"));
    for bad in
        ["limit=many", "timeoutSeconds=", "dryRun=Some", "fieldValidation=Loose", "propagationPolicy=x"]
    {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn options_that_are_wrong_are_told_by_kind_and_field() {
    let reported = |method: Method, text: &str| {
        let error = Options::parse(&method, &query(text)).unwrap_err();
        (error.code.as_u16(), error.message)
    };
    for (method, text, message) in [
        (
            Method::POST,
            "dryRun=x",
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"",
        ),
        (
            Method::PATCH,
            "fieldValidation=x",
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"x\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
        ),
        (
            Method::DELETE,
            "propagationPolicy=x",
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"x\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
    ] {
        assert_eq!(reported(method, text), (422, message.to_owned()));
    }
    let long = format!("fieldManager={}", "a".repeat(129));
    assert!(
        reported(Method::PUT, &long).1.ends_with("fieldManager: Too long: may not be more than 128 bytes")
    );
    let both = serde_json::json!({"propagationPolicy": "Orphan", "orphanDependents": true});
    assert!(Options::default().take_delete_options(&both).is_err());
    assert!(Options::default().take_delete_options(&serde_json::json!({"kind": "Boat"})).is_err());
}

#[test]
fn options_of_a_deletion_that_cannot_be_read_are_refused_and_not_left_out() {
    let taken = |body: Value| {
        let mut options = Options::default();
        options.take_delete_options(&body).map(|()| options)
    };
    for body in [
        serde_json::json!({"dryRun": "All"}),
        serde_json::json!({"dryRun": [true]}),
        serde_json::json!({"preconditions": {"uid": 7}}),
        serde_json::json!({"preconditions": "u"}),
        serde_json::json!({"propagationPolicy": ["Orphan"]}),
        serde_json::json!({"orphanDependents": "true"}),
        serde_json::json!([{"dryRun": ["All"]}]),
        serde_json::json!("All"),
    ] {
        let error = taken(body.clone()).expect_err(&body.to_string());
        assert_eq!(error.code.as_u16(), 400, "{body}: {}", error.message);
    }
    let body = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
        "dryRun": ["All", ""], "preconditions": {"uid": "u", "resourceVersion": null}, "unknown": 1});
    let options = taken(body).expect("it is read");
    assert!(options.dry_run);
    assert_eq!((options.precondition_uid.as_deref(), options.precondition_revision), (Some("u"), None));
}
