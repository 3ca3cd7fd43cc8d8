//! The default roles of every cluster, access reviews, and the server's health endpoints.

use std::time::Duration;

use axum::body::Body;
use berth_apiserver::{Identity, Server};
use http::Method;
use serde_json::{Value, json};

use crate::client::{BOATS, Client, MERGE, boat, harbour};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";

fn as_user(server: &Server, user: &str) -> Client {
    Client(server.service_as(Identity::new(user, [])))
}

/// Waits until a path returns a code; housekeeping runs asynchronously.
async fn until(client: &Client, path: &str, code: u16) {
    for _ in 0..500 {
        if client.get(path).await.code == code {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} does not answer {code}");
}

async fn bind(admin: &Client, place: &str, user: &str, role: &str) {
    let kind = if place.is_empty() { "clusterrolebindings" } else { "rolebindings" };
    let binding = json!({"metadata": {"name": format!("{user}-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    assert_eq!(admin.post(&format!("{RBAC}{place}/{kind}"), &binding).await.code, 201);
}

#[tokio::test(start_paused = true)]
async fn admin_edit_and_view_gather_what_roles_are_labelled_for_them() {
    let (server, admin) = harbour().await;
    let there = "/namespaces/default";
    for (user, role) in [("ann", "admin"), ("eve", "edit"), ("vic", "view")] {
        bind(&admin, there, user, role).await;
    }
    let [ann, eve, vic] = ["ann", "eve", "vic"].map(|user| as_user(&server, user));
    let (secrets, maps) = ("/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/configmaps");
    assert_eq!(
        [ann.get(secrets).await.code, eve.get(secrets).await.code, vic.get(secrets).await.code],
        [200, 200, 403]
    );
    assert_eq!([eve.get(maps).await.code, vic.get(maps).await.code], [200, 200]);
    assert_eq!(eve.get("/api/v1/namespaces/kube-system/configmaps").await.code, 403, "only there");
    let map = json!({"metadata": {"name": "m"}});
    assert_eq!([vic.post(maps, &map).await.code, eve.post(maps, &map).await.code], [403, 201]);
    let roles = format!("{RBAC}{there}/roles");
    assert_eq!([eve.get(&roles).await.code, ann.get(&roles).await.code], [403, 200]);
    assert_eq!(eve.get(BOATS).await.code, 403, "nobody has said so");
    let sailors = json!({"metadata": {"name": "sailors",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["toys.example"], "resources": ["boats"], "verbs": ["get", "list"]}]});
    assert_eq!(admin.post(&format!("{RBAC}/clusterroles"), &sailors).await.code, 201);
    for who in [&vic, &eve, &ann] {
        until(who, BOATS, 200).await;
    }
    assert_eq!(ann.post(BOATS, &boat("ada")).await.code, 403);
    let unlabelled = json!({"metadata": {"labels": null}});
    assert_eq!(admin.patch(&format!("{RBAC}/clusterroles/sailors"), MERGE, &unlabelled).await.code, 200);
    for who in [&vic, &eve, &ann] {
        until(who, BOATS, 403).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_who_has_everything_writes_a_role_that_gathers() {
    let (server, admin) = harbour().await;
    let clerk = json!({"metadata": {"name": "clerk"}, "rules": [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create", "patch"]}]});
    assert_eq!(admin.post(&format!("{RBAC}/clusterroles"), &clerk).await.code, 201);
    bind(&admin, "", "bob", "clerk").await;
    let bob = as_user(&server, "bob");
    let gathers = json!({"metadata": {"name": "all"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
    let refused = bob.post(&format!("{RBAC}/clusterroles"), &gathers).await;
    assert_eq!(refused.reason(), (403, "Forbidden".into()));
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(bob.patch(&format!("{RBAC}/clusterroles/view"), MERGE, &labels).await.code, 403);
    bind(&admin, "", "bob", "cluster-admin").await;
    assert_eq!(bob.post(&format!("{RBAC}/clusterroles"), &gathers).await.code, 201);
}

async fn rules_of(client: &Client) -> Value {
    let review = json!({"spec": {"namespace": "default"}});
    let answer = client.post(&format!("{AUTHORIZATION}/selfsubjectrulesreviews"), &review).await;
    assert_eq!(answer.code, 201);
    answer.json()["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_list_of_what_somebody_may_do_is_all_of_it() {
    let (server, admin) = harbour().await;
    let bob = as_user(&server, "bob");
    let listed = |rules: &Value, text: &str| rules.to_string().contains(text);
    let rules = rules_of(&bob).await;
    assert!(
        listed(&rules["nonResourceRules"], "/openapi/*")
            && listed(&rules["resourceRules"], "selfsubjectreviews")
    );
    assert!(!listed(&rules, "configmaps"));
    bind(&admin, "/namespaces/default", "bob", "view").await;
    assert!(listed(&rules_of(&bob).await["resourceRules"], "configmaps"));
    let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
    let of_admin = rules_of(&admin).await;
    assert!(of_admin["resourceRules"].as_array().expect("rules").iter().any(|rule| {
        ["apiGroups", "resources", "verbs"].iter().all(|member| rule[member] == all[member])
    }));
    // A permission that the list lacks is not granted.
    assert_eq!(bob.get("/apis").await.code, 200);
    let binding = format!("{RBAC}/clusterrolebindings/system:discovery");
    assert_eq!(admin.send(Method::DELETE, &binding, "", "", Body::empty()).await.code, 200);
    assert!(!listed(&rules_of(&bob).await, "/openapi/*"));
    assert_eq!(bob.get("/apis").await.code, 403);
}

#[tokio::test(start_paused = true)]
async fn reviews_tell_what_another_may_do_to_those_who_may_ask() {
    let (server, admin) = harbour().await;
    bind(&admin, "/namespaces/default", "eve", "edit").await;
    bind(&admin, "/namespaces/default", "ann", "admin").await;
    bind(&admin, "", "proxy", "system:auth-delegator").await;
    let asks = |user: &str, groups: &[&str], namespace: &str| {
        json!({"spec": {"user": user, "groups": groups,
            "resourceAttributes": {"verb": "create", "resource": "secrets", "namespace": namespace}}})
    };
    let anywhere = format!("{AUTHORIZATION}/subjectaccessreviews");
    let there = format!("{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews");
    let [ann, eve, proxy] = ["ann", "eve", "proxy"].map(|user| as_user(&server, user));
    let allowed = |reply: crate::client::Reply| {
        assert_eq!(reply.code, 201, "{}", reply.json());
        reply.json()["status"]["allowed"].clone()
    };
    assert_eq!(allowed(proxy.post(&anywhere, &asks("eve", &[], "default")).await), true);
    assert_eq!(allowed(proxy.post(&anywhere, &asks("eve", &[], "kube-system")).await), false);
    assert_eq!(allowed(proxy.post(&anywhere, &asks("", &["system:masters"], "x")).await), true);
    assert_eq!(allowed(ann.post(&there, &asks("eve", &[], "default")).await), true);
    assert_eq!(allowed(ann.post(&there, &asks("vic", &[], "default")).await), false);
    // The account under review is only in the groups that the review names.
    let discovery = json!({"spec": {"user": "x", "nonResourceAttributes": {"verb": "get", "path": "/apis"}}});
    assert_eq!(allowed(proxy.post(&anywhere, &discovery).await), false);
    for (who, path) in [(&eve, &anywhere), (&eve, &there), (&ann, &anywhere), (&proxy, &there)] {
        assert_eq!(who.post(path, &asks("eve", &[], "default")).await.code, 403, "{path}");
    }
    for wrong in [asks("", &[], "default"), json!({"spec": {"user": "eve"}})] {
        assert_eq!(proxy.post(&anywhere, &wrong).await.reason(), (422, "Invalid".into()), "{wrong}");
        assert_eq!(ann.post(&there, &wrong).await.reason(), (422, "Invalid".into()), "{wrong}");
    }
    // An administrator of one namespace learns nothing about others.
    for elsewhere in [asks("eve", &[], "kube-system"), asks("eve", &[], ""), discovery] {
        assert_eq!(ann.post(&there, &elsewhere).await.reason(), (422, "Invalid".into()), "{elsewhere}");
    }
    let mut other = asks("eve", &[], "default");
    other["metadata"] = json!({"namespace": "kube-system"});
    assert_eq!(ann.post(&there, &other).await.code, 400);
}

#[tokio::test(start_paused = true)]
async fn each_namespace_has_a_default_account() {
    let (_server, admin) = harbour().await;
    assert_eq!(admin.get("/api/v1/namespaces/default/serviceaccounts/default").await.code, 200);
    assert_eq!(admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "sea"}})).await.code, 201);
    let account = "/api/v1/namespaces/sea/serviceaccounts/default";
    until(&admin, account, 200).await;
    let uid = admin.get(account).await.json()["metadata"]["uid"].clone();
    assert_eq!(admin.send(Method::DELETE, account, "", "", Body::empty()).await.code, 200);
    until(&admin, account, 200).await;
    assert_ne!(admin.get(account).await.json()["metadata"]["uid"], uid);
    assert_eq!(admin.send(Method::DELETE, "/api/v1/namespaces/sea", "", "", Body::empty()).await.code, 200);
    until(&admin, "/api/v1/namespaces/sea", 404).await;
    assert_eq!(admin.get(account).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn health_is_told_check_by_check() {
    let (server, admin) = harbour().await;
    let bob = as_user(&server, "bob");
    let text = |reply: crate::client::Reply| (reply.code, String::from_utf8_lossy(&reply.text).into_owned());
    let reported = |code: u16, text: &str| (code, text.to_owned());
    assert_eq!(text(bob.get("/readyz").await), reported(200, "ok"));
    assert_eq!(
        text(bob.get("/livez?verbose").await),
        reported(200, "[+]ping ok\n[+]database ok\nlivez check passed\n")
    );
    let expected = "[+]ping ok\n[+]database ok\n[+]shutdown ok\nreadyz check passed\n";
    assert_eq!(text(bob.get("/readyz?verbose").await), reported(200, expected));
    assert_eq!(text(admin.get("/livez/ping").await), reported(200, "ok"));
    assert_eq!(text(admin.get("/readyz/database").await), reported(200, "ok"));
    assert_eq!([admin.get("/livez/none").await.code, admin.get("/livez/ping/x").await.code], [404, 404]);
    assert_eq!(bob.get("/livez/ping").await.code, 403, "as in Kubernetes");
    let monitor = Client(server.service_as(Identity::new("m", ["system:monitoring".to_owned()])));
    assert_eq!([monitor.get("/metrics").await.code, bob.get("/metrics").await.code], [200, 403]);
    assert_eq!(monitor.get("/livez/ping").await.code, 200);
    server.shutdown().await;
    let failed = "[+]ping ok\n[-]database failed\n[-]shutdown failed\nreadyz check failed\n";
    assert_eq!(text(bob.get("/readyz").await), reported(500, failed));
    assert_eq!(text(admin.get("/readyz/shutdown").await), reported(500, "shutdown failed\n"));
    assert_eq!(text(admin.get("/livez/ping").await), reported(200, "ok"));
}

#[tokio::test(start_paused = true)]
async fn kinds_that_run_containers_are_listed_empty_and_cannot_be_made() {
    let (_server, admin) = harbour().await;
    for path in [
        "/api/v1/pods",
        "/api/v1/namespaces/default/services",
        "/apis/apps/v1/deployments",
        "/apis/batch/v1/jobs",
    ] {
        let list = admin.get(path).await;
        assert_eq!((list.code, &list.json()["items"]), (200, &json!([])), "{path}");
    }
    let pod = json!({"metadata": {"name": "p"}});
    assert_eq!(admin.post("/api/v1/namespaces/default/pods", &pod).await.code, 405);
    let apply =
        admin.patch("/api/v1/namespaces/default/pods/p?fieldManager=x", crate::client::APPLY, &pod).await;
    assert_eq!(apply.code, 405);
}
