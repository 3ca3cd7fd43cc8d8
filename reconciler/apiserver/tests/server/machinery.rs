use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, WatchStreamExt as _, reflector, watcher};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::toy::{boat, boats, crd, harbour, kind, reason};

#[tokio::test(start_paused = true)]
async fn a_reflector_follows_creation_change_and_deletion() {
    for streaming in [false, true] {
        let (_server, client) = harbour().await;
        let api = boats(&client);
        api.create(&PostParams::default(), &boat("first", json!({"harbour": "kiel"}))).await.unwrap();
        let config =
            if streaming { watcher::Config::default().streaming_lists() } else { watcher::Config::default() };
        let writer = reflector::store::Writer::new(kind());
        let reader = writer.as_reader();
        let stream = reflector(writer, watcher(api.clone(), config)).applied_objects();
        let following = tokio::spawn(stream.try_for_each(|_| std::future::ready(Ok(()))));
        reader.wait_until_ready().await.unwrap();
        assert_eq!(reader.len(), 1);
        api.create(&PostParams::default(), &boat("second", json!({"harbour": "kiel"}))).await.unwrap();
        api.patch("first", &PatchParams::default(), &Patch::Merge(json!({"spec": {"oars": 3}})))
            .await
            .unwrap();
        api.delete("second", &DeleteParams::default()).await.unwrap();
        let settled = async {
            loop {
                let state = reader.state();
                if let [one] = state.as_slice()
                    && one.data["spec"]["oars"] == 3
                    && one.name_any() == "first"
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), settled).await.expect("the reflector catches up");
        following.abort();
    }
}

type Context = (Api<DynamicObject>, Arc<Mutex<Vec<String>>>);

#[tokio::test(start_paused = true)]
async fn a_controller_reconciles_until_the_status_says_so_and_cleans_up_behind_its_finalizer() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let cleaned = Arc::new(Mutex::new(Vec::new()));
    let context = (api.clone(), Arc::clone(&cleaned));
    let running = Controller::new_with(api.clone(), watcher::Config::default(), kind()).run(
        |boat, context: Arc<Context>| async move {
            let (api, cleaned) = (context.0.clone(), Arc::clone(&context.1));
            finalizer(&api, "toys.example/moor", boat, |event| async {
                match event {
                    Event::Apply(boat) => {
                        let status = json!({"status": {"observedGeneration": boat.metadata.generation}});
                        let patch = Patch::Merge(status);
                        api.patch_status(&boat.name_any(), &PatchParams::default(), &patch).await?;
                    }
                    Event::Cleanup(boat) => cleaned.lock().unwrap().push(boat.name_any()),
                }
                Ok::<_, kube::Error>(Action::await_change())
            })
            .await
        },
        |_, _, _| Action::requeue(Duration::from_secs(1)),
        Arc::new(context),
    );
    let controller = tokio::spawn(running.for_each(|_| std::future::ready(())));
    api.create(&PostParams::default(), &boat("ada", json!({"harbour": "kiel"}))).await.unwrap();
    let observed = |boat: Option<&DynamicObject>| {
        boat.is_some_and(|b| b.data["status"]["observedGeneration"] == json!(b.metadata.generation))
    };
    let limit = Duration::from_secs(10);
    let settled =
        tokio::time::timeout(limit, await_condition(api.clone(), "ada", observed)).await.unwrap().unwrap();
    let uid = settled.unwrap().uid().unwrap();
    api.delete("ada", &DeleteParams::default()).await.unwrap();
    let gone = await_condition(api.clone(), "ada", conditions::is_deleted(&uid));
    tokio::time::timeout(limit, gone).await.unwrap().unwrap();
    assert_eq!(*cleaned.lock().unwrap(), ["ada"]);
    controller.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_ends_by_itself_and_bookmarks_keep_it_fresh() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let from = api.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    maps.create(&PostParams::default(), &ConfigMap { metadata: named("other"), ..ConfigMap::default() })
        .await
        .unwrap();
    let params = kube::api::WatchParams::default().timeout(90);
    let events: Vec<_> = api.watch(&params, &from).await.unwrap().try_collect().await.unwrap();
    let [kube::api::WatchEvent::Bookmark(mark)] = events.as_slice() else { panic!("{events:?}") };
    assert!(mark.metadata.resource_version.parse::<u64>().unwrap() > from.parse().unwrap());
    let mut quiet = params.clone();
    quiet.bookmarks = false;
    let events: Vec<_> = api.watch(&quiet, &from).await.unwrap().try_collect().await.unwrap();
    assert!(events.is_empty(), "nobody asked for a bookmark: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_waits_for_the_end_of_the_watch_unless_the_resource_is_written() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let params = kube::api::WatchParams::default().timeout(90).fields("metadata.name=ada");
    let mut seconds = Vec::new();
    for writes_boat in [false, true] {
        let from = api.list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
        if writes_boat {
            let other = boat("grace", json!({"harbour": "kiel"}));
            api.create(&PostParams::default(), &other).await.unwrap();
        } else {
            let other = ConfigMap { metadata: named("other"), ..ConfigMap::default() };
            maps.create(&PostParams::default(), &other).await.unwrap();
        }
        let begun = tokio::time::Instant::now();
        let mut events = std::pin::pin!(api.watch(&params, &from).await.unwrap());
        let first = events.try_next().await.unwrap();
        assert!(matches!(first, Some(kube::api::WatchEvent::Bookmark(_))), "{first:?}");
        seconds.push(begun.elapsed().as_secs());
    }
    assert_eq!(seconds, [90, 55]);
}

fn named(name: &str) -> kube::api::ObjectMeta {
    kube::api::ObjectMeta { name: Some(name.into()), ..Default::default() }
}

async fn eventually_gone<K>(api: &Api<K>, name: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    for _ in 0..200 {
        if api.get_opt(name).await.expect("the server answers").is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} is still there");
}

#[tokio::test(start_paused = true)]
async fn what_an_object_owns_goes_with_it_unless_orphaned() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for (name, policy, stays) in [
        ("background", PropagationPolicy::Background, false),
        ("foreground", PropagationPolicy::Foreground, false),
        ("orphaned", PropagationPolicy::Orphan, true),
    ] {
        let owner =
            api.create(&PostParams::default(), &boat(name, json!({"harbour": "kiel"}))).await.unwrap();
        let mut owned = ConfigMap { metadata: named(name), ..ConfigMap::default() };
        let reference = owner.controller_owner_ref(&kind()).unwrap();
        owned.metadata.owner_references =
            Some(vec![OwnerReference { block_owner_deletion: Some(true), ..reference }]);
        maps.create(&PostParams::default(), &owned).await.unwrap();
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        api.delete(name, &params).await.unwrap();
        eventually_gone(&api, name).await;
        if stays {
            let left = maps.get(name).await.unwrap();
            assert!(left.metadata.owner_references.is_none_or(|owners| owners.is_empty()));
        } else {
            eventually_gone(&maps, name).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_with_two_owners_stays_as_long_as_one_of_them() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut references = Vec::new();
    for name in ["ada", "grace"] {
        let owner =
            api.create(&PostParams::default(), &boat(name, json!({"harbour": "kiel"}))).await.unwrap();
        let reference = owner.owner_ref(&kind()).unwrap();
        references.push(OwnerReference { block_owner_deletion: Some(true), ..reference });
    }
    let mut owned = ConfigMap { metadata: named("shared"), ..ConfigMap::default() };
    owned.metadata.owner_references = Some(references);
    maps.create(&PostParams::default(), &owned).await.unwrap();
    api.delete("ada", &DeleteParams::foreground()).await.unwrap();
    eventually_gone(&api, "ada").await;
    let left = maps.get("shared").await.unwrap().metadata;
    let owners: Vec<String> =
        left.owner_references.unwrap_or_default().into_iter().map(|owner| owner.name).collect();
    assert_eq!((owners, left.deletion_timestamp), (vec!["grace".to_owned()], None));
    api.delete("grace", &DeleteParams::foreground()).await.unwrap();
    eventually_gone(&api, "grace").await;
    eventually_gone(&maps, "shared").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_takes_its_content_along_and_refuses_more() {
    let (_server, client) = harbour().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &Namespace { metadata: named("sea"), ..Default::default() })
        .await
        .unwrap();
    let there: Api<DynamicObject> = Api::namespaced_with(client.clone(), "sea", &kind());
    let mut held = boat("held", json!({"harbour": "x"}));
    held.metadata.finalizers = Some(vec!["toys.example/hold".into()]);
    there.create(&PostParams::default(), &held).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "sea");
    let data = Some(BTreeMap::from([("k".to_owned(), "v".to_owned())]));
    let secret = Secret { metadata: named("s"), string_data: data, ..Default::default() };
    let made = secrets.create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!(made.data.unwrap()["k"].0, b"v");
    namespaces.delete("sea", &DeleteParams::default()).await.unwrap();
    eventually_gone(&secrets, "s").await;
    let refused = there.create(&PostParams::default(), &boat("late", json!({"harbour": "x"}))).await;
    assert_eq!(reason(refused), (403, "Forbidden".into()));
    assert_eq!(namespaces.get("sea").await.unwrap().status.unwrap().phase.as_deref(), Some("Terminating"));
    there
        .patch("held", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await
        .unwrap();
    eventually_gone(&namespaces, "sea").await;
    let nowhere = there.create(&PostParams::default(), &boat("late", json!({"harbour": "x"}))).await;
    assert_eq!(reason(nowhere), (404, "NotFound".into()));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_stays_for_who_else_is_to_finalize_it() {
    let (_server, client) = harbour().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let sent = json!({"metadata": {"name": "sea"}, "spec": {"finalizers": ["toys.example/drain"]}});
    let sent: Namespace = serde_json::from_value(sent).unwrap();
    let finalizers = |namespace: &Namespace| namespace.spec.clone().and_then(|spec| spec.finalizers);
    let made = namespaces.create(&PostParams::default(), &sent).await.unwrap();
    assert_eq!(finalizers(&made).unwrap(), ["toys.example/drain", "kubernetes"]);
    namespaces.delete("sea", &DeleteParams::default()).await.unwrap();
    let emptied = |namespace: &Namespace| finalizers(namespace).unwrap() == ["toys.example/drain"];
    let mut left = namespaces.get("sea").await.unwrap();
    for _ in 0..100 {
        if emptied(&left) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        left = namespaces.get("sea").await.unwrap();
    }
    assert!(emptied(&left), "{left:?}");
    left.spec = None;
    let body = serde_json::to_vec(&left).unwrap();
    let request = http::Request::put("/api/v1/namespaces/sea/finalize");
    let request = request.header("content-type", "application/json").body(body).unwrap();
    let finalized: Namespace = client.request(request).await.unwrap();
    assert_eq!(finalizers(&finalized), None);
    eventually_gone(&namespaces, "sea").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_definition_takes_its_objects_along() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    api.create(&PostParams::default(), &boat("ada", json!({"harbour": "kiel"}))).await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete("boats.toys.example", &DeleteParams::default()).await.unwrap();
    eventually_gone(&crds, "boats.toys.example").await;
    assert_eq!(reason(api.get("ada").await).0, 404);
    crds.create(&PostParams::default(), &crd()).await.unwrap();
    assert!(api.list(&Default::default()).await.unwrap().items.is_empty());
}
