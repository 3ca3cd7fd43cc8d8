//! The kube-rs features that controllers use: derived kinds, subresources, discovery, entries, events,
//! tokens, metadata.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::events::v1::Event as StoredEvent;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::entry::{CommitError, Entry};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::{ApiResource, GroupVersion, GroupVersionKind, PartialObjectMeta};
use kube::discovery::{self, ApiGroup, Discovery, verbs};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::wait::{await_condition, conditions, delete::delete_and_finalize};
use kube::runtime::watcher;
use kube::{Client, CustomResource, CustomResourceExt as _, Resource as _, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::toy::{self, reason};

/// What a mast is to be.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "toys.example",
    version = "v1",
    kind = "Mast",
    namespaced,
    status = "MastStatus",
    shortname = "mt",
    category = "toys",
    selectable = ".spec.wood",
    printcolumn(name = "Wood", type_ = "string", json_path = ".spec.wood")
)]
#[serde(rename_all = "camelCase")]
struct MastSpec {
    wood: String,
    /// How many sails it carries.
    sails: i32,
    top_light: Option<String>,
    #[serde(default)]
    height: Height,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum Height {
    #[default]
    Low,
    VeryHigh,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct MastStatus {
    sails: i32,
}

const MASTS: &str = "masts.toys.example";

fn oak(name: &str) -> Mast {
    let wood = "oak".to_owned();
    Mast::new(name, MastSpec { wood, sails: 1, top_light: Some("red".into()), height: Height::VeryHigh })
}

/// Returns a server that serves masts, after their definition is established.
async fn masts() -> (berth_apiserver::Server, Client, Api<Mast>) {
    let server = toy::server().await;
    let client = Client::new(server.service(), "default");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let apply = PatchParams::apply("test").force();
    crds.patch(MASTS, &apply, &Patch::Apply(Mast::crd())).await.expect("a derived definition is accepted");
    let served = await_condition(crds, MASTS, conditions::is_crd_established()).await.expect("it is watched");
    assert!(served.is_some());
    let api = Api::default_namespaced(client.clone());
    (server, client, api)
}

#[tokio::test(start_paused = true)]
async fn a_derived_kind_is_applied_read_changed_and_deleted() {
    let (_server, client, api) = masts().await;
    let apply = PatchParams::apply("test");
    let made = api.patch("fore", &apply, &Patch::Apply(oak("fore"))).await.unwrap();
    assert_eq!((&made.spec, &made.status), (&oak("fore").spec, &None));
    assert_eq!(made.object_ref(&()).uid, made.uid());
    let part = json!({"apiVersion": "toys.example/v1", "kind": "Mast", "spec": {"wood": "elm", "sails": 2}});
    let part = api.patch("fore", &apply, &Patch::Apply(part)).await.unwrap();
    assert_eq!(
        (part.spec.sails, part.spec.top_light, part.spec.height),
        (2, None, Height::Low),
        "given up, defaulted"
    );
    let status = Patch::Merge(json!({"status": MastStatus { sails: 1 }}));
    let reported = api.patch_status("fore", &PatchParams::default(), &status).await.unwrap();
    assert_eq!(reported.status, Some(MastStatus { sails: 1 }));
    let three = Patch::Merge(json!({"spec": {"sails": 3}}));
    let changed = api.patch("fore", &PatchParams::default(), &three).await.unwrap();
    assert_eq!((changed.spec.sails, changed.status), (3, Some(MastStatus { sails: 1 })));
    let mut replaced = api.get_status("fore").await.unwrap();
    assert_eq!((replaced.spec.sails, replaced.metadata.generation), (3, Some(3)));
    replaced.status = Some(MastStatus { sails: 3 });
    let replaced = api.replace_status("fore", &PostParams::default(), &replaced).await.unwrap();
    assert_eq!((replaced.status, replaced.metadata.generation), (Some(MastStatus { sails: 3 }), Some(3)));
    let wrong = Patch::Merge(json!({"spec": {"height": "Enormous"}}));
    let refused = api.patch("fore", &PatchParams::default(), &wrong).await;
    assert_eq!(reason(refused), (422, "Invalid".into()));
    let elms = ListParams::default().fields("spec.wood=elm");
    assert_eq!(api.list(&elms).await.unwrap().items.len(), 1);
    let dynamic = Api::<DynamicObject>::default_namespaced_with(client, &ApiResource::erase::<Mast>(&()));
    let one: Mast = dynamic.get("fore").await.unwrap().try_parse().unwrap();
    assert_eq!(one.spec.wood, "elm");
    let gone = api.delete_collection(&DeleteParams::default(), &elms).await.unwrap();
    let one = gone.left().expect("they are listed").items.remove(0);
    await_condition(api.clone(), "fore", conditions::is_deleted(&one.uid().unwrap())).await.unwrap();
    assert!(api.get_opt("fore").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn discovery_finds_every_kind_and_each_can_be_listed() {
    let (_server, client, _) = masts().await;
    let gvk = GroupVersionKind::gvk("toys.example", "v1", "Mast");
    let group = discovery::pinned_group(&client, &GroupVersion::gv("toys.example", "v1")).await.unwrap();
    let (recommended, can) = group.recommended_kind("Mast").unwrap();
    let (pinned, can_too) = discovery::pinned_kind(&client, &gvk).await.unwrap();
    assert_eq!((&recommended, can.operations.len()), (&pinned, can_too.operations.len()));
    assert_eq!(recommended.plural, "masts");
    assert!(
        can.subresources.iter().any(|(of, _)| of.plural == "masts/status" || of.plural == "status"),
        "{can:?}"
    );
    let discoveries = [
        Discovery::new(client.clone()).run().await.unwrap(),
        Discovery::new(client.clone()).run_aggregated().await.unwrap(),
    ];
    for discovery in discoveries {
        assert_eq!(discovery.resolve_gvk(&gvk).unwrap().0, pinned);
        let groups: Vec<_> = discovery.groups_alphabetical().into_iter().collect();
        assert_eq!(groups[0].name(), ApiGroup::CORE_GROUP);
        let mut listed = 0;
        for (kind, can) in groups.iter().flat_map(|group| group.recommended_resources()) {
            if can.supports_operation(verbs::LIST) {
                let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
                all.list(&ListParams::default()).await.unwrap();
                listed += 1;
            }
        }
        assert!(listed > 10, "{listed} kinds");
    }
    let core = client.list_core_api_versions_aggregated().await.unwrap();
    let maps =
        core.items[0].versions[0].resources.iter().find(|of| of.resource.as_deref() == Some("configmaps"));
    assert_eq!(maps.unwrap().scope.as_deref(), Some("Namespaced"));
    let version = client.apiserver_version().await.unwrap();
    assert!(!version.git_version.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_made_changed_and_notices_that_somebody_was_quicker() {
    let (_server, client, _) = masts().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("k").cloned());
    let fresh =
        || ConfigMap { data: Some([("k".to_owned(), "1".to_owned())].into()), ..ConfigMap::default() };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let mut tried = api.entry("e").await.unwrap().or_insert(fresh);
    tried.commit(&dry).await.unwrap();
    assert!(api.get_opt("e").await.unwrap().is_none(), "it was only tried");
    let (first, second) = (api.entry("e").await.unwrap(), api.entry("e").await.unwrap());
    assert!(matches!(first, Entry::Vacant(_)));
    let mut first = first.or_insert(fresh);
    first.commit(&PostParams::default()).await.unwrap();
    let late = second.or_insert(fresh).commit(&PostParams::default()).await;
    assert!(
        matches!(late, Err(CommitError::Save(kube::Error::Api(status))) if status.reason == "AlreadyExists")
    );
    let mut other = api.entry("e").await.unwrap().and_modify(|map| {
        map.data.get_or_insert_default().insert("k".into(), "2".into());
    });
    let Entry::Occupied(ref mut other) = other else { panic!("it is there") };
    other.commit(&PostParams::default()).await.unwrap();
    first.get_mut().data.get_or_insert_default().insert("k".into(), "3".into());
    let late = first.commit(&PostParams::default()).await;
    assert!(matches!(late, Err(CommitError::Save(kube::Error::Api(status))) if status.reason == "Conflict"));
    assert_eq!(value(&api.get("e").await.unwrap()), Some("2".into()));
    delete_and_finalize(api.clone(), "e", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("e").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_recorder_tells_an_event_once_and_then_counts() {
    let (_server, client, api) = masts().await;
    let mast = api.create(&PostParams::default(), &oak("main")).await.unwrap();
    let recorder = Recorder::new(client.clone(), "test".into());
    let event = |note: &str| Event {
        type_: EventType::Warning,
        reason: "Creaks".into(),
        note: Some(note.into()),
        action: "Sailing".into(),
        secondary: None,
    };
    recorder.publish(&event("a little"), &mast.object_ref(&())).await.unwrap();
    recorder.publish(&event("a lot"), &mast.object_ref(&())).await.unwrap();
    let events: Api<StoredEvent> = Api::default_namespaced(client);
    let about = ListParams::default().fields("involvedObject.name=main,reason=Creaks");
    let reported = events.list(&about).await.unwrap().items;
    let [one] = reported.as_slice() else { panic!("{reported:?}") };
    assert_eq!(one.series.as_ref().map(|series| series.count), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_asked_for_by_its_account_subresource() {
    let (server, client, _) = masts().await;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client);
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "pilot"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
    let asked = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let given = accounts.create_token_request("pilot", &PostParams::default(), &asked).await.unwrap();
    let token = given.status.and_then(|status| status.token).expect("it is given");
    assert!(server.service_with_token(&token).is_some(), "it opens the door");
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_is_read_changed_listed_and_watched() {
    let (_server, _client, api) = masts().await;
    api.create(&PostParams::default(), &oak("mizzen")).await.unwrap();
    let labels = Patch::Merge(json!({"metadata": {"labels": {"side": "aft"}}}));
    let patched = api.patch_metadata("mizzen", &PatchParams::default(), &labels).await.unwrap();
    assert_eq!(patched.labels()["side"], "aft");
    assert_eq!(api.get_metadata("mizzen").await.unwrap().types.unwrap().kind, "PartialObjectMetadata");
    assert!(api.get_metadata_opt("none").await.unwrap().is_none());
    let aft = ListParams::default().labels("side=aft");
    assert_eq!(api.list_metadata(&aft).await.unwrap().items[0].name_any(), "mizzen");
    let watch = WatchParams::default().labels("side=aft").timeout(5);
    let seen: Vec<_> = api.watch_metadata(&watch, "0").await.unwrap().try_collect().await.unwrap();
    assert!(
        matches!(seen.as_slice(), [WatchEvent::Added(one), ..] if one.labels()["side"] == "aft"),
        "{seen:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watcher_pages_or_streams_what_there_is_and_follows_one_object() {
    let (_server, client, api) = masts().await;
    let metadata: Api<PartialObjectMeta<Mast>> = Api::default_namespaced(client);
    for at in 0..7 {
        api.create(&PostParams::default(), &oak(&format!("m{at}"))).await.unwrap();
    }
    for config in [watcher::Config::default().page_size(3), watcher::Config::default().streaming_lists()] {
        let mut events = Box::pin(watcher(metadata.clone(), config));
        let mut names = Vec::new();
        loop {
            match events.next().await.unwrap().unwrap() {
                watcher::Event::InitApply(one) => names.push(one.name_any()),
                watcher::Event::InitDone => break,
                _ => {}
            }
        }
        assert_eq!(names, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    }
    let mut one = Box::pin(watcher::watch_object(api.clone(), "m3"));
    assert_eq!(one.next().await.unwrap().unwrap().unwrap().name_any(), "m3");
    api.delete("m4", &DeleteParams::default()).await.unwrap();
    api.delete("m3", &DeleteParams::default()).await.unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(5), one.next()).await.expect("it is told");
    assert!(gone.unwrap().unwrap().is_none());
}
