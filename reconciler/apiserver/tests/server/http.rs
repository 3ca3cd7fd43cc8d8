use axum::body::Body;
use berth_apiserver::Identity;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::client::{APPLY, BOATS, CRDS, Client, JSON, MERGE, boat, harbour};
use crate::toy;

#[tokio::test(start_paused = true)]
async fn patches_are_known_by_their_content_type() {
    let (_server, client) = harbour().await;
    let path = format!("{BOATS}/ada");
    assert_eq!(client.post(BOATS, &boat("ada")).await.code, 201);
    let strategic = "application/strategic-merge-patch+json";
    assert_eq!(client.patch(&path, strategic, &json!({})).await.code, 415, "on a custom resource");
    assert_eq!(client.patch(&path, JSON, &json!({})).await.code, 415);
    let test = |value: i32| json!([{"op": "test", "path": "/spec/oars", "value": value}, {"op": "remove", "path": "/spec/oars"}]);
    assert_eq!(
        client.patch(&path, "application/json-patch+json", &test(9)).await.reason(),
        (422, "Invalid".into())
    );
    let passed = client.patch(&path, "application/json-patch+json", &test(2)).await;
    assert_eq!(passed.json()["spec"]["oars"], 2, "removed, then defaulted again");
    assert_eq!(
        client.patch(&path, APPLY, &boat("ada")).await.reason(),
        (422, "Invalid".into()),
        "no manager"
    );
    let absent = format!("{BOATS}/new");
    assert_eq!(client.patch(&absent, MERGE, &json!({})).await.reason(), (404, "NotFound".into()));
    let apply = |path: &str| format!("{path}?fieldManager=me");
    assert_eq!(client.patch(&apply(&absent), APPLY, &boat("new")).await.code, 201);
    assert_eq!(client.patch(&apply(&absent), APPLY, &boat("new")).await.code, 200);
    assert_eq!(client.patch(&apply(&absent), APPLY, &boat("other")).await.code, 400);
    let in_the_way = json!({"metadata": {"resourceVersion": "1"}, "spec": {"oars": 1}});
    assert_eq!(client.patch(&path, MERGE, &in_the_way).await.reason(), (409, "Conflict".into()));
    assert_eq!(
        client.patch(&path, MERGE, &json!({"metadata": {"uid": "x"}})).await.reason(),
        (422, "Invalid".into()),
        "a patch cannot make it another object"
    );
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_custom_resource_names_the_revision_that_it_replaces() {
    let (_server, client) = harbour().await;
    let path = format!("{BOATS}/ada");
    client.post(BOATS, &boat("ada")).await;
    for none in ["", "0"] {
        let mut blind = boat("ada");
        blind["metadata"]["resourceVersion"] = none.into();
        let refused = client.send(Method::PUT, &path, JSON, "", blind.to_string()).await;
        assert_eq!(refused.reason(), (422, "Invalid".into()), "{none:?}");
    }
    let seen = client.get(&path).await.json();
    assert_eq!(client.send(Method::PUT, &path, JSON, "", seen.to_string()).await.code, 200);
    let map = json!({"metadata": {"name": "m", "resourceVersion": "0"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    client.post(maps, &json!({"metadata": {"name": "m"}})).await;
    let replaced = client.send(Method::PUT, &format!("{maps}/m"), JSON, "", map.to_string()).await;
    assert_eq!(replaced.code, 200, "a built-in kind needs none");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_as_if_and_writes_nothing() {
    let (_server, client) = harbour().await;
    let dry = |path: &str| format!("{path}?dryRun=All&fieldManager=me");
    let made = client.post(&dry(BOATS), &boat("ada")).await;
    assert_eq!((made.code, &made.json()["spec"]["oars"]), (201, &json!(2)));
    let path = format!("{BOATS}/ada");
    assert_eq!(client.get(&path).await.code, 404);
    assert_eq!(client.patch(&dry(&path), APPLY, &boat("ada")).await.code, 201);
    let mut bad = boat("ada");
    bad["spec"]["oars"] = json!(99);
    assert_eq!(client.patch(&dry(&path), APPLY, &bad).await.reason(), (422, "Invalid".into()));
    client.post(BOATS, &boat("ada")).await;
    let before = client.get(&path).await.text;
    let patched = client.patch(&dry(&path), MERGE, &json!({"spec": {"oars": 3}})).await;
    assert_eq!(patched.json()["spec"]["oars"], 3);
    assert_eq!(client.send(Method::DELETE, &dry(&path), "", "", "").await.code, 200);
    assert_eq!(client.get(&path).await.text, before);
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_refused_warned_of_or_dropped_as_asked() {
    let (_server, client) = harbour().await;
    let mut odd = boat("ada");
    odd["spec"]["nope"] = json!(1);
    let strict = client.post(&format!("{BOATS}?fieldValidation=Strict"), &odd).await;
    assert_eq!(strict.reason(), (400, "BadRequest".into()));
    assert!(strict.json()["message"].as_str().unwrap().contains("unknown field \"spec.nope\""));
    let quiet = client.post(&format!("{BOATS}?fieldValidation=Ignore&dryRun=All"), &odd).await;
    assert_eq!((quiet.code, quiet.warnings.len()), (201, 0));
    let warned = client.post(BOATS, &odd).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec.nope\\\"\""]);
    assert!(warned.json()["spec"].get("nope").is_none());
    let mut wrong = boat("ada");
    wrong["kind"] = json!("Ship");
    let other = client.post(BOATS, &wrong).await;
    assert_eq!(other.reason(), (422, "Invalid".into()));
    assert_eq!(other.json()["details"]["causes"][0]["message"], "Invalid value: \"Ship\": must be Boat");
    for missing in ["kind", "apiVersion"] {
        let mut unsaid = boat("ada");
        unsaid.as_object_mut().unwrap().remove(missing);
        assert_eq!(client.post(BOATS, &unsaid).await.reason(), (400, "BadRequest".into()), "{missing}");
    }
    let mut elsewhere = boat("ada");
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    assert_eq!(client.post(BOATS, &elsewhere).await.reason(), (400, "BadRequest".into()));
}

#[tokio::test(start_paused = true)]
async fn lists_name_the_kind_of_each_item_and_a_wrong_type_is_refused_with_its_field() {
    let (_server, client) = harbour().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b"] {
        client.post(maps, &json!({"metadata": {"name": name}, "data": {"x": null}})).await;
    }
    let list = client.get(maps).await.json();
    let names: Vec<&Value> =
        list["items"].as_array().unwrap().iter().map(|map| &map["metadata"]["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(list["items"][1]["data"], json!({"x": ""}));
    assert_eq!([&list["items"][0]["kind"], &list["items"][0]["apiVersion"]], ["ConfigMap", "v1"]);
    assert_eq!(client.get(BOATS).await.json()["items"], json!([]));
    client.post(BOATS, &boat("ada")).await;
    assert_eq!(client.get(BOATS).await.json()["items"][0]["kind"], "Boat");

    let wrong = client.post(maps, &json!({"metadata": {"name": "c"}, "data": {"x": 1}})).await;
    assert_eq!(wrong.reason(), (400, "BadRequest".into()));
    let why = "data.x must be a string";
    assert!(wrong.json()["message"].as_str().unwrap().ends_with(why), "{:?}", wrong.text);
    let patched = client.patch(&format!("{maps}/a"), MERGE, &json!({"data": {"x": 1}})).await;
    assert_eq!(patched.reason(), (422, "Invalid".into()));
    assert!(patched.json()["message"].as_str().unwrap().ends_with(why), "{:?}", patched.text);
}

#[tokio::test(start_paused = true)]
async fn discovery_is_there_in_both_forms_and_follows_definitions() {
    let (_server, client) = harbour().await;
    let list = client.get("/apis/toys.example/v1").await.json();
    let names: Vec<_> =
        list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["boats", "boats/status"]);
    let wanted = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let all = client.send(Method::GET, "/apis", "", wanted, "").await;
    assert_eq!(all.content_type, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let groups = all.json()["items"].as_array().unwrap().clone();
    let toys = groups.iter().find(|group| group["metadata"]["name"] == "toys.example").expect("a group");
    assert_eq!(toys["versions"][0]["resources"][0]["responseKind"]["kind"], "Boat");
    assert_eq!(client.get("/version").await.json()["major"], "1");
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(client.get(path).await.text, "ok");
    }
    client.send(Method::DELETE, &format!("{CRDS}/boats.toys.example"), "", "", "").await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(client.get("/apis/toys.example/v1").await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn tables_and_metadata_are_given_to_who_asks() {
    let (_server, client) = harbour().await;
    client.post(BOATS, &boat("ada")).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let reply = client.send(Method::GET, BOATS, "", table, "").await.json();
    assert_eq!(reply["kind"], "Table");
    assert_eq!(reply["rows"][0]["cells"], json!(["ada", "kiel", "0s"]));
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let reply = client.send(Method::GET, BOATS, "", metadata, "").await.json();
    assert_eq!(reply["items"][0]["metadata"]["name"], "ada");
    assert!(reply["items"][0].get("spec").is_none());
}

#[tokio::test(start_paused = true)]
async fn what_everything_needs_and_what_was_not_meant_is_not_deleted() {
    let (_server, client) = harbour().await;
    client.post(BOATS, &boat("ada")).await;
    for name in ["default", "kube-system", "kube-public"] {
        let refused = client.send(Method::DELETE, &format!("/api/v1/namespaces/{name}"), "", "", "").await;
        assert_eq!(refused.reason(), (403, "Forbidden".into()), "{name}");
    }
    let path = format!("{BOATS}/ada");
    let other = client.send(Method::DELETE, &path, JSON, "", boat("ada").to_string()).await;
    assert_eq!(other.reason(), (400, "BadRequest".into()), "a body that is no DeleteOptions");
    assert_eq!(client.get(&path).await.code, 200);
    let mut taken = boat("ada");
    taken["spec"]["oars"] = json!(9);
    assert_eq!(
        client.post(BOATS, &taken).await.reason(),
        (422, "Invalid".into()),
        "told before that the name is taken"
    );
}

#[tokio::test(start_paused = true)]
async fn generated_names_are_new_names() {
    let (_server, client) = harbour().await;
    let mut new = boat("");
    new["metadata"] = json!({"generateName": "ada-"});
    let first = client.post(BOATS, &new).await.json()["metadata"]["name"].clone();
    let second = client.post(BOATS, &new).await.json()["metadata"]["name"].clone();
    assert!(first.as_str().unwrap().starts_with("ada-") && first != second);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_as_far_as_the_selector_reaches() {
    let (_server, client) = harbour().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let mut new = boat(name);
        new["metadata"]["labels"] = json!({"l": label});
        client.post(BOATS, &new).await;
    }
    let gone = client.send(Method::DELETE, &format!("{BOATS}?labelSelector=l%3Dx"), "", "", "").await.json();
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    let left = client.get(BOATS).await.json();
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
    let everywhere = client.send(Method::DELETE, "/apis/toys.example/v1/boats", "", "", "").await;
    assert_eq!(everywhere.reason(), (404, "NotFound".into()));
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_is_wrong_is_refused_with_the_field() {
    let (_server, client) = harbour().await;
    let with = |path: &str, value: Value| {
        let mut crd = toy::crd_json();
        crd["metadata"]["name"] = json!("ships.toys.example");
        crd["spec"]["names"] = json!({"plural": "ships", "kind": "Ship"});
        *crd.pointer_mut(path).expect(path) = value;
        crd
    };
    for (path, value, field) in [
        ("/metadata/name", json!("boat.toys.example"), "metadata.name"),
        ("/spec/scope", json!("World"), "spec.scope"),
        ("/spec/versions/0/storage", json!(false), "spec.versions"),
        ("/spec/versions/0/schema", json!({}), "spec.versions[0].schema.openAPIV3Schema"),
        ("/spec/versions", json!([]), "spec.versions"),
    ] {
        let reply = client.post(CRDS, &with(path, value)).await;
        assert_eq!(reply.reason(), (422, "Invalid".into()), "{path}");
        let causes = reply.json()["details"]["causes"].to_string();
        assert!(causes.contains(field), "{path}: {causes}");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_follow_a_definition_that_gains_a_default_and_a_version() {
    let (_server, client) = harbour().await;
    client.post(BOATS, &boat("ada")).await;
    let path = format!("{CRDS}/boats.toys.example");
    let mut crd = client.get(&path).await.json();
    let properties = "/schema/openAPIV3Schema/properties/spec/properties";
    let stored = crd.pointer_mut("/spec/versions/0").unwrap();
    stored.pointer_mut(properties).unwrap()["flag"] = json!({"type": "string", "default": "de"});
    let mut second = stored.clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    second.pointer_mut(properties).unwrap()["rank"] = json!({"type": "string", "default": "new"});
    crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    assert_eq!(client.send(Method::PUT, &path, JSON, "", crd.to_string()).await.code, 200);
    let seen = client.get("/apis/toys.example/v2/namespaces/default/boats/ada").await.json();
    assert_eq!((&seen["apiVersion"], &seen["spec"]["flag"]), (&json!("toys.example/v2"), &json!("de")));
    let list = client.get("/apis/toys.example/v2/boats").await.json();
    assert_eq!(list["items"][0]["apiVersion"], "toys.example/v2");
    assert!(seen["spec"].get("rank").is_none(), "defaults are those of the version that is stored");
    assert_eq!(client.get(&format!("{BOATS}/ada")).await.json()["spec"]["flag"], "de");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_allowed_is_told_so_and_rules_open_exactly_what_they_name() {
    let (server, admin) = harbour().await;
    admin.post(BOATS, &boat("ada")).await;
    let bob = Client(server.service_as(Identity::new("bob", [])));
    assert_eq!(bob.get(&format!("{BOATS}/ada")).await.reason(), (403, "Forbidden".into()));
    let as_bob = Request::builder().uri(BOATS).header("impersonate-user", "bob");
    let as_bob = admin.0.clone().oneshot(as_bob.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(as_bob.status(), StatusCode::FORBIDDEN, "who acts as somebody may do what that one may");
    let as_root = Request::builder().uri(BOATS).header("impersonate-user", "root");
    let as_root = bob.0.clone().oneshot(as_root.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(
        as_root.status(),
        StatusCode::FORBIDDEN,
        "nobody becomes somebody else without being allowed to"
    );
    assert_eq!(bob.get("/apis").await.code, 200, "discovery is open to everybody who logged in");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "reader"}, "rules": [{"verbs": ["get", "list", "patch"], "apiGroups": ["toys.example"],
        "resources": ["boats", "boats/status"], "resourceNames": ["ada"]}]});
    assert_eq!(admin.post(&format!("{rbac}/roles"), &role).await.code, 201);
    let binding = json!({"metadata": {"name": "bob"}, "roleRef": {"kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "name": "bob"}]});
    assert_eq!(admin.post(&format!("{rbac}/rolebindings"), &binding).await.code, 201);
    assert_eq!(bob.get(&format!("{BOATS}/ada")).await.code, 200);
    assert_eq!(
        bob.patch(&format!("{BOATS}/ada/status"), MERGE, &json!({"status": {"oars": 1}})).await.code,
        200
    );
    assert_eq!(bob.get(BOATS).await.code, 403, "the others are none of his business");
    assert_eq!(bob.get(&format!("{BOATS}?fieldSelector=metadata.name%3Dada")).await.code, 200);
    assert_eq!(bob.get(&format!("{BOATS}?fieldSelector=metadata.name%3Deve")).await.code, 403);
    assert_eq!(bob.send(Method::DELETE, &format!("{BOATS}/ada"), "", "", "").await.code, 403);
    let may = |verb: &str| {
        json!({"spec": {"resourceAttributes": {"verb": verb, "group": "toys.example",
        "resource": "boats", "namespace": "default", "name": "ada"}}})
    };
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(bob.post(path, &may("get")).await.json()["status"]["allowed"], true);
    assert_eq!(bob.post(path, &may("delete")).await.json()["status"]["allowed"], false);
    let who = bob.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await.json();
    assert_eq!(who["status"]["userInfo"]["username"], "bob");
}

#[tokio::test(start_paused = true)]
async fn an_admission_policy_decides_on_creation_change_and_deletion() {
    let (_server, client) = harbour().await;
    client.post(BOATS, &boat("free")).await;
    let path = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "moored"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["toys.example"], "apiVersions": ["*"],
            "resources": ["boats"], "operations": ["DELETE"]}]},
        "validations": [{"expression": "!has(oldObject.status.oars)", "message": "it is in use"}]}});
    assert_eq!(client.post(&format!("{path}/validatingadmissionpolicies"), &policy).await.code, 201);
    let binding = json!({"metadata": {"name": "moored"}, "spec": {"policyName": "moored", "validationActions": ["Deny"]}});
    assert_eq!(client.post(&format!("{path}/validatingadmissionpolicybindings"), &binding).await.code, 201);
    client.post(BOATS, &boat("used")).await;
    client.patch(&format!("{BOATS}/used/status"), MERGE, &json!({"status": {"oars": 1}})).await;
    let refused = client.send(Method::DELETE, &format!("{BOATS}/used"), "", "", "").await;
    assert_eq!(refused.code, 422);
    assert!(refused.json()["message"].as_str().unwrap().contains("it is in use"), "{}", refused.json());
    assert_eq!(client.send(Method::DELETE, &format!("{BOATS}/free"), "", "", "").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn an_event_has_two_faces_and_is_found_by_what_it_is_about() {
    let (_server, client) = harbour().await;
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Moor",
        "reason": "Moored", "type": "Normal", "note": "it is moored", "reportingController": "c",
        "reportingInstance": "i", "regarding": {"kind": "Boat", "name": "ada", "namespace": "default", "uid": "u"}});
    let made = client.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await;
    assert_eq!((made.code, &made.json()["note"]), (201, &json!("it is moored")), "{}", made.json());
    let core =
        client.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dada").await.json();
    assert_eq!(core["items"][0]["message"], "it is moored");
    assert_eq!(core["items"][0]["involvedObject"]["name"], "ada");
    tokio::time::sleep(std::time::Duration::from_secs(3700)).await;
    let core = client.get("/api/v1/namespaces/default/events").await.json();
    assert_eq!(core["items"], json!([]), "events are kept for an hour");
}

#[tokio::test(start_paused = true)]
async fn odd_requests_get_an_answer_and_never_a_server_error() {
    let (_server, client) = harbour().await;
    client.post(BOATS, &boat("ada")).await;
    let paths = [
        "/",
        "//",
        "/api",
        "/api/v1/",
        "/apis/",
        "/apis/toys.example",
        "/apis/toys.example/v9/boats",
        "/api/v1/nodes",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces//secrets",
        "/api/v1/namespaces/%2e%2e/secrets/a",
        "/apis/toys.example/v1/namespaces/default/boats/ada/exec",
        "/apis/toys.example/v1/boats/ada",
        BOATS,
        "/apis/toys.example/v1/namespaces/default/boats/%ff",
        "/apis/toys.example/v1/namespaces/default/boats/ada/status",
    ];
    let bodies = [
        "",
        "null",
        "[]",
        "\"x\"",
        "{}",
        "{\"metadata\":null}",
        "{\"metadata\":[]}",
        "{\"metadata\":{\"name\":7}}",
        "{\"metadata\":{\"name\":\"a\",\"labels\":{\"x\":1}}}",
        "{\"metadata\":{\"finalizers\":{}}}",
        "{\"kind\":1}",
        "[{\"op\":\"move\"}]",
        "[{\"op\":\"replace\",\"path\":\"\",\"value\":3}]",
        "{\"metadata\":{\"managedFields\":[{\"time\":3}]},\"spec\":null}",
        "{\"spec\":{\"harbour\":{\"a\":[1]}}}",
        "a: [b",
    ];
    let types = [
        "",
        JSON,
        MERGE,
        APPLY,
        "application/json-patch+json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ];
    for path in paths {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        {
            for kind in types {
                for body in bodies {
                    let path = format!("{path}?fieldManager=x&dryRun=All");
                    let reply = client.send(method.clone(), &path, kind, "", body).await;
                    assert!(reply.code < 500, "{method} {path} {kind} {body}: {}", reply.json());
                    if !StatusCode::from_u16(reply.code).unwrap().is_success() && reply.code != 304 {
                        assert_eq!(reply.json()["kind"], "Status", "{method} {path}");
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_list_is_sent_in_pieces_of_the_length_it_said() {
    let (_server, client) = harbour().await;
    for at in 0..40 {
        let mut large = boat(&format!("large-{at}"));
        large["spec"]["tags"] = json!({"x": "x".repeat(10 << 10)});
        assert_eq!(client.post(BOATS, &large).await.code, 201);
    }
    let request = Request::builder().uri(BOATS).body(Body::empty()).expect("a request");
    let mut body = client.0.clone().oneshot(request).await.expect("the server answers").into_body();
    let said = http_body::Body::size_hint(&body).exact().expect("it is known");
    let (mut text, mut pieces) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame.expect("it is whole").into_data().expect("data"));
        pieces += 1;
    }
    assert_eq!(text.len() as u64, said);
    assert!(pieces > 4, "{pieces} pieces");
    let list: Value = serde_json::from_slice(&text).expect("it is JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(40));
}
