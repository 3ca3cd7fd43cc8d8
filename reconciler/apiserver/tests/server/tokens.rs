//! Tokens of ServiceAccounts: their permissions, and when they expire.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_apiserver::{Identity, Server, ServerConfig};
use berth_engine::Clock;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview, TokenReviewStatus};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::toy::{reason, server};

fn parse<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

async fn make<K>(api: Api<K>, object: Value)
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &parse::<K>(object)).await.expect("it is created");
}

pub(crate) async fn robot(server: &Server) -> (Client, Api<ServiceAccount>) {
    let admin = Client::new(server.service(), "default");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    make(accounts.clone(), json!({"metadata": {"name": "robot"}})).await;
    (admin, accounts)
}

pub(crate) async fn token(accounts: &Api<ServiceAccount>, spec: Value) -> kube::Result<String> {
    let request: TokenRequest = parse(json!({"spec": spec}));
    let made = accounts.create_token_request("robot", &PostParams::default(), &request).await?;
    Ok(made.status.and_then(|status| status.token).expect("a token"))
}

#[tokio::test(start_paused = true)]
async fn a_token_is_its_account_until_it_runs_out() {
    let server = server().await;
    let (_admin, accounts) = robot(&server).await;
    let secret = token(&accounts, json!({"expirationSeconds": 600})).await.expect("a token");
    let service = server.service_with_token(&secret).expect("it opens");
    let reviews: Api<SelfSubjectReview> = Api::all(Client::new(service, "default"));
    let reported =
        reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.expect("an answer");
    let user = reported.status.and_then(|status| status.user_info).expect("somebody");
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:robot"));
    let account = accounts.get("robot").await.expect("it is there");
    assert_eq!(user.uid, account.metadata.uid);
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(user.groups.as_deref(), Some(&groups.map(str::to_owned)[..]));
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(server.service_with_token(&secret).is_some());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(server.service_with_token(&secret).is_none(), "it has run out");
}

/// A machine's clock, which is corrected now and then.
#[derive(Debug)]
struct Wall(Mutex<Timestamp>);

impl Clock for Wall {
    fn now(&self) -> Timestamp {
        *self.0.lock().expect("nobody panics")
    }
}

#[tokio::test]
async fn a_token_outlives_a_clock_that_is_put_back() {
    let noon: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
    let wall = Arc::new(Wall(Mutex::new(noon)));
    let config = ServerConfig { clock: Arc::clone(&wall) as Arc<dyn Clock>, ..ServerConfig::in_memory() };
    let server = Server::open(config).await.expect("an in-memory server opens");
    let (_admin, accounts) = robot(&server).await;
    let secret = token(&accounts, json!({"expirationSeconds": 600})).await.expect("a token");
    *wall.0.lock().expect("nobody panics") = noon - SignedDuration::from_hours(1);
    assert!(server.service_with_token(&secret).is_some(), "it was made an hour from now");
    *wall.0.lock().expect("nobody panics") = noon + SignedDuration::from_hours(1);
    assert!(server.service_with_token(&secret).is_none(), "it has run out");
}

#[tokio::test(start_paused = true)]
async fn deleting_an_account_ends_its_tokens_and_another_of_the_same_name_does_not_bring_them_back() {
    let server = server().await;
    let (_admin, accounts) = robot(&server).await;
    let secret = token(&accounts, json!({})).await.expect("a token");
    assert!(server.service_with_token(&secret).is_some());
    accounts.delete("robot", &DeleteParams::default()).await.expect("deleted");
    assert!(server.service_with_token(&secret).is_none());
    make(accounts, json!({"metadata": {"name": "robot"}})).await;
    assert!(server.service_with_token(&secret).is_none(), "it is another account");
}

#[tokio::test(start_paused = true)]
async fn a_token_bound_to_a_secret_ends_with_it_and_one_for_others_opens_nothing_here() {
    let server = server().await;
    let (admin, accounts) = robot(&server).await;
    let secrets: Api<Secret> = Api::default_namespaced(admin);
    let bound = json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}});
    assert_eq!(reason(token(&accounts, bound.clone()).await).0, 404, "it must be there");
    make(secrets.clone(), json!({"metadata": {"name": "s"}})).await;
    let secret = token(&accounts, bound).await.expect("a token");
    assert!(server.service_with_token(&secret).is_some());
    secrets.delete("s", &DeleteParams::default()).await.expect("deleted");
    assert!(server.service_with_token(&secret).is_none());
    let others = token(&accounts, json!({"audiences": ["vault"]})).await.expect("a token");
    assert!(server.service_with_token(&others).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_token_lives_ten_minutes_at_least_and_its_account_must_exist() {
    let server = server().await;
    let (_admin, accounts) = robot(&server).await;
    assert_eq!(reason(token(&accounts, json!({"expirationSeconds": 599})).await), (422, "Invalid".into()));
    accounts.delete("robot", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(reason(token(&accounts, json!({})).await), (404, "NotFound".into()));
}

#[tokio::test(start_paused = true)]
async fn a_token_too_long_to_be_accepted_is_not_issued() {
    let server = server().await;
    let (_admin, accounts) = robot(&server).await;
    let long = token(&accounts, json!({"audiences": ["us", "x".repeat(8 << 10)]})).await;
    assert_eq!(reason(long), (422, "Invalid".into()));
}

#[tokio::test(start_paused = true)]
async fn an_admission_policy_decides_which_tokens_are_issued() {
    let server = server().await;
    let (_admin, accounts) = robot(&server).await;
    let client = crate::client::Client(server.service());
    let path = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "vault"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["serviceaccounts/token"], "operations": ["CREATE"]}]},
        "validations": [{"expression": "request.kind.group == 'authentication.k8s.io' && \
            has(object.spec.audiences) && object.spec.audiences == ['vault']", "message": "for the vault only"}]}});
    assert_eq!(client.post(&format!("{path}/validatingadmissionpolicies"), &policy).await.code, 201);
    let binding = json!({"metadata": {"name": "vault"}, "spec": {"policyName": "vault", "validationActions": ["Deny"]}});
    assert_eq!(client.post(&format!("{path}/validatingadmissionpolicybindings"), &binding).await.code, 201);
    assert!(token(&accounts, json!({"audiences": ["vault"]})).await.is_ok());
    assert_eq!(reason(token(&accounts, json!({})).await), (422, "Invalid".into()));
}

async fn whose(client: &Client, spec: Value) -> kube::Result<TokenReviewStatus> {
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let review = reviews.create(&PostParams::default(), &parse(json!({"spec": spec}))).await?;
    Ok(review.status.expect("it is answered"))
}

#[tokio::test(start_paused = true)]
async fn a_review_tells_whose_a_token_is_and_for_whom() {
    let server = server().await;
    let (admin, accounts) = robot(&server).await;
    let account = accounts.get("robot").await.expect("it is there");
    let here = token(&accounts, json!({})).await.expect("a token");
    let reported = whose(&admin, json!({"token": here})).await.expect("an answer");
    assert_eq!((reported.authenticated, reported.error), (Some(true), None));
    assert_eq!(
        reported.audiences,
        Some(vec!["https://kubernetes.default.svc.cluster.local".to_owned()]),
        "asked for nobody it is asked for the server"
    );
    let user = reported.user.expect("somebody");
    assert_eq!(user.username.as_deref(), Some("system:serviceaccount:default:robot"));
    assert_eq!(user.uid, account.metadata.uid);
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"];
    assert_eq!(user.groups.as_deref(), Some(&groups.map(str::to_owned)[..]));
    let them = token(&accounts, json!({"audiences": ["them", "those"]})).await.expect("a token");
    let reported =
        whose(&admin, json!({"token": them, "audiences": ["us", "those"]})).await.expect("an answer");
    assert_eq!((reported.authenticated, reported.audiences), (Some(true), Some(vec!["those".to_owned()])));
    for spec in [
        json!({"token": them}),
        json!({"token": here, "audiences": ["them"]}),
        json!({"token": format!("{here}x")}),
        json!({"token": "x"}),
    ] {
        let reported = whose(&admin, spec.clone()).await.expect("an answer");
        assert_ne!(reported.authenticated, Some(true), "{spec}");
        assert!(
            reported.error.is_some() && reported.user.is_none_or(|user| user.username.is_none()),
            "{spec}"
        );
    }
    assert_eq!(reason(whose(&admin, json!({"token": ""})).await), (400, "BadRequest".into()));
}

#[tokio::test(start_paused = true)]
async fn a_review_and_a_request_take_a_token_for_the_same_time() {
    let server = server().await;
    let (admin, accounts) = robot(&server).await;
    let secrets: Api<Secret> = Api::default_namespaced(admin.clone());
    make(secrets.clone(), json!({"metadata": {"name": "s"}})).await;
    let bound = json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}});
    let bound = token(&accounts, bound).await.expect("a token");
    let free = token(&accounts, json!({"expirationSeconds": 600})).await.expect("a token");
    let both = async |token: &str, taken: bool, when: &str| {
        assert_eq!(server.service_with_token(token).is_some(), taken, "{when}");
        let reported = whose(&admin, json!({"token": token})).await.expect("an answer");
        assert_eq!(reported.authenticated == Some(true), taken, "{when}");
    };
    both(&bound, true, "its secret is there").await;
    secrets.delete("s", &DeleteParams::default()).await.expect("deleted");
    both(&bound, false, "its secret is gone").await;
    both(&free, true, "it is fresh").await;
    tokio::time::advance(Duration::from_secs(600)).await;
    both(&free, false, "it has run out").await;
    let again = token(&accounts, json!({})).await.expect("a token");
    accounts.delete("robot", &DeleteParams::default()).await.expect("deleted");
    both(&again, false, "its account is gone").await;
}

#[tokio::test]
async fn the_administrators_token_is_reviewed_too_and_is_for_the_server_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::open(ServerConfig::in_directory(folder.path())).await.expect("it opens");
    let issued = std::fs::read_to_string(folder.path().join("admin.token")).expect("it is there");
    let issued = issued.trim();
    let admin = Client::new(server.service(), "default");
    let reported = whose(&admin, json!({"token": issued})).await.expect("an answer");
    let user = reported.user.expect("somebody");
    assert_eq!((reported.authenticated, user.username.as_deref()), (Some(true), Some("admin")));
    let reported = whose(&admin, json!({"token": issued, "audiences": ["them"]})).await.expect("an answer");
    assert_ne!(reported.authenticated, Some(true));
    let eve = Client::new(server.service_as(Identity::new("eve", [])), "default");
    let refused = reason(whose(&eve, json!({"token": issued})).await);
    assert_eq!(refused, (403, "Forbidden".into()), "not everybody learns whose a token is");
    let rule =
        json!([{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]);
    make(Api::<ClusterRole>::all(admin.clone()), json!({"metadata": {"name": "asks"}, "rules": rule})).await;
    let binding = json!({"metadata": {"name": "asks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "asks"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    make(Api::<ClusterRoleBinding>::all(admin), binding).await;
    assert_eq!(whose(&eve, json!({"token": issued})).await.expect("an answer").authenticated, Some(true));
}

/// Returns a client that may write roles and read ConfigMaps, and nothing else.
async fn clerk(server: &Server, extra: Value) -> Client {
    let (admin, accounts) = robot(server).await;
    let mut rules = vec![
        json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["create", "update", "patch"]}),
        json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}),
    ];
    rules.extend(extra.as_array().cloned().unwrap_or_default());
    make(Api::<ClusterRole>::all(admin.clone()), json!({"metadata": {"name": "clerk"}, "rules": rules}))
        .await;
    let secrets = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]);
    make(Api::<ClusterRole>::all(admin.clone()), json!({"metadata": {"name": "secrets"}, "rules": secrets}))
        .await;
    let binding = json!({"metadata": {"name": "clerk"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "clerk"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}]});
    make(Api::<ClusterRoleBinding>::all(admin), binding).await;
    let secret = token(&accounts, json!({})).await.expect("a token");
    Client::new(server.service_with_token(&secret).expect("it opens"), "default")
}

fn role(name: &str, resource: &str, verbs: &[&str]) -> Role {
    parse(json!({"metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": [resource], "verbs": verbs}]}))
}

fn binding(name: &str, to: &str) -> RoleBinding {
    parse(json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": to},
        "subjects": [{"kind": "User", "name": "anybody", "apiGroup": "rbac.authorization.k8s.io"}]}))
}

#[tokio::test(start_paused = true)]
async fn nobody_grants_what_he_does_not_have() {
    let server = server().await;
    let client = clerk(&server, json!([])).await;
    let roles: Api<Role> = Api::default_namespaced(client.clone());
    let bindings: Api<RoleBinding> = Api::default_namespaced(client.clone());
    let params = PostParams::default();
    roles.create(&params, &role("fine", "configmaps", &["get"])).await.expect("he has that");
    for more in [role("a", "secrets", &["get"]), role("b", "configmaps", &["*"]), role("c", "*", &["get"])] {
        assert_eq!(reason(roles.create(&params, &more).await), (403, "Forbidden".into()));
    }
    let wider = role("fine", "configmaps", &["get", "delete"]);
    let replaced = roles.patch("fine", &Default::default(), &kube::api::Patch::Merge(&wider)).await;
    assert_eq!(reason(replaced).0, 403);
    bindings.create(&params, &binding("fine", "clerk")).await.expect("he has all of that");
    assert_eq!(reason(bindings.create(&params, &binding("more", "secrets")).await).0, 403);
    assert_eq!(reason(bindings.create(&params, &binding("none", "nothing")).await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn who_may_escalate_or_bind_may_grant_more() {
    let server = server().await;
    let may = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["secrets"], "verbs": ["bind"]}]);
    let client = clerk(&server, may).await;
    let (roles, bindings) = (
        Api::<Role>::default_namespaced(client.clone()),
        Api::<RoleBinding>::default_namespaced(client.clone()),
    );
    let params = PostParams::default();
    roles.create(&params, &role("more", "secrets", &["get"])).await.expect("he may escalate");
    bindings.create(&params, &binding("more", "secrets")).await.expect("he may bind that one");
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.list(&ListParams::default()).await.expect("his own rights are as they were");
}

/// Whether a watch opened with `token` ends within a minute of `revoke`.
async fn watch_ends(server: &Server, token: &str, revoke: impl AsyncFnOnce()) -> bool {
    let service = server.service_with_token(token).expect("it is valid");
    let path =
        "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=3000&allowWatchBookmarks=true";
    let request = http::Request::get(path).body(axum::body::Body::empty()).expect("a request");
    let answer = tower::ServiceExt::oneshot(service, request).await.expect("the server answers");
    assert_eq!(answer.status(), 200);
    let mut frames = answer.into_body().into_data_stream();
    let still = tokio::time::timeout(Duration::from_secs(170), async {
        while futures::StreamExt::next(&mut frames).await.is_some() {}
    });
    assert!(still.await.is_err(), "it goes on while the token is valid");
    revoke().await;
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while futures::StreamExt::next(&mut frames).await.is_some() {}
    });
    ended.await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_within_a_minute_of_the_deletion_of_its_account_or_of_the_secret_of_its_token() {
    let server = server().await;
    let _reader =
        clerk(&server, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}])).await;
    let admin = Client::new(server.service(), "default");
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    let secrets: Api<Secret> = Api::default_namespaced(admin);
    make(secrets.clone(), json!({"metadata": {"name": "s"}})).await;
    let bound = json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}});
    let bound = token(&accounts, bound).await.expect("a token");
    let free = token(&accounts, json!({})).await.expect("a token");
    let parameters = DeleteParams::default();
    assert!(watch_ends(&server, &bound, async || drop(secrets.delete("s", &parameters).await)).await);
    assert!(watch_ends(&server, &free, async || drop(accounts.delete("robot", &parameters).await)).await);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_within_a_minute_of_the_expiry_of_its_token() {
    let server = server().await;
    let _reader =
        clerk(&server, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"]}])).await;
    let accounts = Api::default_namespaced(Client::new(server.service(), "default"));
    let short = token(&accounts, json!({"expirationSeconds": 600})).await.expect("a token");
    assert!(watch_ends(&server, &short, async || tokio::time::sleep(Duration::from_secs(431)).await).await);
}

#[tokio::test(start_paused = true)]
async fn an_apply_that_creates_needs_the_right_to_create() {
    let server = server().await;
    let patch = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}]);
    let client = clerk(&server, patch).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map: ConfigMap = parse(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}));
    let (parameters, patch) = (kube::api::PatchParams::apply("test"), kube::api::Patch::Apply(&map));
    assert_eq!(reason(maps.patch("m", &parameters, &patch).await), (403, "Forbidden".into()));
    let admin: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));
    admin.create(&PostParams::default(), &map).await.expect("it is created");
    maps.patch("m", &parameters, &patch).await.expect("what exists may be applied to");
}
