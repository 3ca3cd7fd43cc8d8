use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use serde_json::json;

use crate::toy::{boat, boats, harbour, reason, revision};

#[tokio::test(start_paused = true)]
async fn objects_are_created_read_replaced_and_deleted() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let made = api.create(&PostParams::default(), &boat("ada", json!({"harbour": "kiel"}))).await.unwrap();
    assert_eq!(made.data["spec"], json!({"harbour": "kiel", "oars": 2}), "defaults are filled in");
    assert_eq!(made.data["status"], json!({"observedGeneration": -1}));
    assert_eq!((made.metadata.generation, made.metadata.uid.is_some()), (Some(1), true));
    assert_eq!(api.get("ada").await.unwrap(), made);
    let mut new = made.clone();
    new.data["spec"]["oars"] = json!(4);
    let replaced = api.replace("ada", &PostParams::default(), &new).await.unwrap();
    assert_eq!(replaced.metadata.generation, Some(2));
    assert_eq!(reason(api.replace("ada", &PostParams::default(), &new).await), (409, "Conflict".into()));
    assert!(api.delete("ada", &DeleteParams::default()).await.unwrap().is_right());
    assert_eq!(reason(api.get("ada").await), (404, "NotFound".into()));
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_rules_is_refused_with_the_field() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let create = |name: &str, spec| {
        let (api, object) = (api.clone(), boat(name, spec));
        async move { api.create(&PostParams::default(), &object).await }
    };
    for (name, spec, field) in [
        ("a", json!({}), "spec.harbour"),
        ("a", json!({"harbour": ""}), "spec.harbour"),
        ("a", json!({"harbour": "x", "oars": "many"}), "spec.oars"),
        ("a", json!({"harbour": "x", "oars": 9}), "spec"),
        ("Not_A_Name", json!({"harbour": "x"}), "metadata.name"),
    ] {
        let Err(kube::Error::Api(status)) = create(name, spec.clone()).await else {
            panic!("{spec} was accepted")
        };
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{spec}");
        let fields: Vec<_> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
        assert!(fields.iter().any(|f| f == field), "{spec}: {fields:?}");
    }
    create("a", json!({"harbour": "x"})).await.unwrap();
    assert_eq!(reason(create("a", json!({"harbour": "x"})).await), (409, "AlreadyExists".into()));
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_apart() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let mut sent = boat("ada", json!({"harbour": "kiel"}));
    sent.data["status"] = json!({"oars": 7});
    let made = api.create(&PostParams::default(), &sent).await.unwrap();
    assert!(made.data["status"].get("oars").is_none(), "a new object has no status but the default");
    let patch = Patch::Merge(json!({"spec": {"oars": 5}, "status": {"oars": 3}}));
    let status = api.patch_status("ada", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((&status.data["spec"]["oars"], &status.data["status"]["oars"]), (&json!(2), &json!(3)));
    assert_eq!(status.metadata.generation, Some(1), "the generation counts changes of the spec only");
    let main = api.patch("ada", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((&main.data["spec"]["oars"], &main.data["status"]["oars"]), (&json!(5), &json!(3)));
    assert_eq!(main.metadata.generation, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_is_not_a_write() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let made = api.create(&PostParams::default(), &boat("ada", json!({"harbour": "kiel"}))).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"harbour": "kiel"}}));
    let same = api.patch("ada", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(revision(&same), revision(&made));
    let apply = Patch::Apply(boat("ada", json!({"harbour": "kiel"})));
    let params = PatchParams::apply("me").force();
    let applied = api.patch("ada", &params, &apply).await.unwrap();
    let again = api.patch("ada", &params, &apply).await.unwrap();
    assert_eq!(revision(&applied), revision(&again));
}

#[tokio::test(start_paused = true)]
async fn apply_creates_owns_conflicts_and_removes() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let apply = |manager: &str, force: bool, spec| {
        let params = PatchParams { force, ..PatchParams::apply(manager) };
        let (api, patch) = (api.clone(), Patch::Apply(boat("ada", spec)));
        async move { api.patch("ada", &params, &patch).await }
    };
    apply("one", false, json!({"harbour": "kiel", "tags": {"a": "1"}})).await.unwrap();
    let Err(kube::Error::Api(status)) = apply("two", false, json!({"harbour": "bremen"})).await else {
        panic!("no conflict")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let cause = &status.details.unwrap().causes[0];
    assert!(cause.message.contains("\"one\"") && cause.field == ".spec.harbour", "{cause:?}");
    let shared = apply("two", true, json!({"harbour": "bremen", "tags": {"b": "2"}})).await.unwrap();
    assert_eq!(shared.data["spec"]["tags"], json!({"a": "1", "b": "2"}));
    let fewer = apply("one", false, json!({})).await.unwrap();
    assert_eq!(fewer.data["spec"], json!({"harbour": "bremen", "oars": 2, "tags": {"b": "2"}}));
}

#[tokio::test(start_paused = true)]
async fn lists_select_and_page_at_one_revision() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    for at in 0..5 {
        let mut new = boat(&format!("b{at}"), json!({"harbour": if at % 2 == 0 { "even" } else { "odd" }}));
        new.metadata.labels = Some([("n".to_owned(), at.to_string())].into());
        api.create(&PostParams::default(), &new).await.unwrap();
    }
    let names = |list: kube::api::ObjectList<_>| -> Vec<String> {
        list.items.iter().map(|b: &kube::api::DynamicObject| b.name_any()).collect()
    };
    let even = api.list(&ListParams::default().fields("spec.harbour=even")).await.unwrap();
    assert_eq!(names(even), ["b0", "b2", "b4"]);
    let some = api.list(&ListParams::default().labels("n in (1,3),n!=3")).await.unwrap();
    assert_eq!(names(some), ["b1"]);
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    let (revision, token) =
        (first.metadata.resource_version.clone(), first.metadata.continue_.clone().unwrap());
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let second = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(second.metadata.remaining_item_count, Some(1));
    let everywhere: kube::Api<kube::api::DynamicObject> =
        kube::Api::all_with(client.clone(), &crate::toy::kind());
    let all = everywhere.list(&ListParams::default().limit(4)).await.unwrap();
    assert_eq!(all.metadata.remaining_item_count, Some(1));
    api.delete("b3", &DeleteParams::default()).await.unwrap();
    api.create(&PostParams::default(), &boat("b9", json!({"harbour": "x"}))).await.unwrap();
    let rest = api.list(&ListParams::default().continue_token(&token)).await.unwrap();
    assert_eq!(rest.metadata.resource_version, revision);
    assert_eq!(names(rest), ["b2", "b3", "b4"], "later pages show what the first one saw");
    let one = api.list(&ListParams::default().limit(1).continue_token(&token)).await.unwrap();
    assert_eq!(one.metadata.remaining_item_count, Some(2));
    let now = api.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!(now.metadata.remaining_item_count, Some(4), "one was deleted, one created");
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_after_any_revision_and_a_deletion_has_its_own() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let made = api.create(&PostParams::default(), &boat("ada", json!({"harbour": "kiel"}))).await.unwrap();
    api.patch("ada", &PatchParams::default(), &Patch::Merge(json!({"spec": {"harbour": "bremen"}})))
        .await
        .unwrap();
    api.delete("ada", &DeleteParams::default()).await.unwrap();
    let params = WatchParams::default().timeout(5);
    let events: Vec<_> =
        api.watch(&params, &made.resource_version().unwrap()).await.unwrap().try_collect().await.unwrap();
    let [WatchEvent::Modified(changed), WatchEvent::Deleted(gone)] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert!(revision(&made) < revision(changed) && revision(changed) < revision(gone));
    let selected = params.fields("spec.harbour=kiel");
    let mut events = api.watch(&selected, &made.resource_version().unwrap()).await.unwrap().boxed();
    let Some(Ok(WatchEvent::Deleted(left))) = events.next().await else { panic!("it left the selection") };
    assert_eq!(revision(&left), revision(changed));
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_a_deleted_object_and_preconditions_protect_another() {
    let (_server, client) = harbour().await;
    let api = boats(&client);
    let mut sent = boat("ada", json!({"harbour": "kiel"}));
    sent.metadata.finalizers = Some(vec!["toys.example/moor".into()]);
    let made = api.create(&PostParams::default(), &sent).await.unwrap();
    let other = Preconditions { uid: Some("another".into()), resource_version: None };
    let params = DeleteParams { preconditions: Some(other), ..DeleteParams::default() };
    assert_eq!(reason(api.delete("ada", &params).await), (409, "Conflict".into()));
    let marked =
        api.delete("ada", &DeleteParams::default()).await.unwrap().left().expect("held by its finalizer");
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.metadata.generation, Some(2));
    let again = api.delete("ada", &DeleteParams::default()).await.unwrap().left().expect("still held");
    assert_eq!(revision(&again), revision(&marked));
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("ada", &PatchParams::default(), &free).await.unwrap();
    assert_eq!(reason(api.get("ada").await), (404, "NotFound".into()));
    assert_eq!(made.name_any(), "ada");
}
