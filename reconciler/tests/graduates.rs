//! A site moves to another control plane, and back, while its guests run, with `berth graduate` interrupted at any
//! point.

mod site;

use std::{collections::BTreeMap, time::Duration};

use berth::graduate::Graduation;
use berth_api::{Disk, FORMER_UID_ANNOTATION, MOVED_FROM_ANNOTATION, manifests::access};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use site::{Plane, Site, declared, joined, runs};

const KINDS: [(&str, &str); 20] = [
    ("StoragePool", "storagepools"),
    ("IPPool", "ippools"),
    ("Network", "networks"),
    ("VMClass", "vmclasses"),
    ("KeyClass", "keyclasses"),
    ("Image", "images"),
    ("PlacementGroup", "placementgroups"),
    ("VMGroup", "vmgroups"),
    ("SecurityGroup", "securitygroups"),
    ("DiskSnapshot", "disksnapshots"),
    ("BackupRepository", "backuprepositories"),
    ("Backup", "backups"),
    ("Host", "hosts"),
    ("Disk", "disks"),
    ("PublicIP", "publicips"),
    ("VM", "vms"),
    ("VMSnapshot", "vmsnapshots"),
    ("SnapshotSchedule", "snapshotschedules"),
    ("HotswapDiskAttachment", "hotswapdiskattachments"),
    ("Quota", "quotas"),
];

type Contents = BTreeMap<String, Value>;

/// The users' view of the site on a control plane: everything but uids, revisions and times.
async fn contents(plane: &Plane) -> Contents {
    let mut all = Contents::new();
    let mut uids = BTreeMap::new();
    for (kind, plural) in KINDS {
        for (name, object) in plane.objects(kind, plural).await {
            let uid = object["metadata"]["uid"].as_str().expect("a uid").to_owned();
            uids.insert(uid, format!("uid of {kind} {name}"));
            all.insert(format!("{kind} {name}"), object);
        }
    }
    for object in all.values_mut() {
        let mut text = object.to_string();
        for (uid, name) in &uids {
            // Not within berth's own identities, which keep the uid of the first object.
            text = text.replace(&format!("{uid:?}"), &format!("{name:?}"));
        }
        *object = serde_json::from_str(&text).expect("it is what it was");
        strip(object);
    }
    all
}

/// Removes fields that may differ.
fn strip(object: &mut Value) {
    let annotations = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    let empty = annotations.is_some_and(|annotations| {
        annotations.remove(MOVED_FROM_ANNOTATION);
        annotations.remove(FORMER_UID_ANNOTATION);
        annotations.is_empty()
    });
    let metadata = object["metadata"].as_object_mut().expect("it has one");
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        metadata.remove(field);
    }
    if empty {
        metadata.remove("annotations");
    }
    forget_times(object);
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        // Measured values, which are never the same twice.
        for field in ["orphans", "inventory", "resumedAt"] {
            status.remove(field);
        }
    }
}

fn forget_times(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        Value::Object(fields) => {
            fields.remove("observedGeneration");
            fields.remove("lastTransitionTime");
            fields.values_mut().for_each(forget_times);
        }
        _ => {}
    }
}

/// The field managers of a VM and their fields, without times.
async fn owners(plane: &Plane, name: &str) -> Vec<(String, Value)> {
    let vm = plane.vm(name).await.expect("it is there");
    let mut owners: Vec<(String, Value)> = vm
        .managed_fields()
        .iter()
        .map(|entry| {
            let what = format!("{:?} {:?} {:?}", entry.manager, entry.operation, entry.subresource);
            (what, serde_json::to_value(&entry.fields_v1).expect("plain data"))
        })
        .collect();
    owners.sort_by(|a, b| a.0.cmp(&b.0));
    owners
}

async fn both_run(plane: &Plane) {
    for name in ["one", "two"] {
        plane.until_vm(name, "runs", runs).await;
    }
}

fn same(before: &Contents, after: &Contents) {
    let names = |contents: &Contents| contents.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(after));
    for (name, object) in before {
        assert_eq!(object, &after[name], "{name}");
    }
}

/// Moves the site, killing the move after every `writes` writes, until it is complete. Returns the number of kills.
async fn moves_and_is_killed(site: &Site, writes: i64, from: &Plane, to: &Plane) -> usize {
    let real = site.real();
    let mut kills = 0;
    let outcome = loop {
        match site.killed_after(writes, from, to).await {
            Some(done) => break done.expect("it ends well"),
            None => kills += 1,
        }
        site.one_commands_at_most().await;
        assert!(kills < 300, "it does not come further");
        if kills % 8 == 0 {
            // Hosts and controllers keep working in between.
            tokio::time::sleep(Duration::from_secs(15)).await;
            assert_eq!(site.real(), real, "after {kills} kills");
        }
    };
    assert!(outcome.missing.is_empty() && outcome.silent.is_empty(), "{outcome:?}");
    both_run(to).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(site.real(), real, "no guest and no file has noticed");
    kills
}

#[tokio::test(start_paused = true)]
async fn a_site_moves_and_is_killed_after_every_single_write() {
    let site = Site::new().await;
    // Interruptions between single definitions are covered by the abort test.
    berth::install::manifests(&site.new.admin).await.expect("the manifests apply");
    let before = contents(&site.old).await;
    let owned = owners(&site.old, "one").await;
    let kills = moves_and_is_killed(&site, 1, &site.old, &site.new).await;
    assert!(kills > 60, "it writes, and was killed after each write: {kills}");
    site.one_commands_at_most().await;
    same(&before, &contents(&site.new).await);
    assert_eq!(owners(&site.new, "one").await, owned, "Terraform owns what it did");
    let secret =
        Api::<Secret>::default_namespaced(site.new.admin.clone()).get("one").await.expect("it is there");
    assert!(secret.data.as_ref().is_some_and(|data| data.contains_key("userData")), "{:?}", secret.data);
    assert!(secrets(&site.new).get("backups").await.is_ok(), "what opens the repository of the backups");
    assert!(secrets(&site.new).get("disk-key").await.is_ok(), "what opens the keys of encrypted disks");
    assert!(
        before["Backup default/one"]["status"]["completedAt"].is_string(),
        "{:#}",
        before["Backup default/one"]
    );
    let owner = secret.owner_references().first().map(|owner| owner.uid.clone());
    assert_eq!(owner, site.new.vm("one").await.and_then(|vm| vm.metadata.uid), "in the new one's words");

    // The new control plane is in charge; the old one rejects writes.
    let disk = declared("Disk", "late", json!({"size": "1Gi"}));
    let refused = site.old.apply("user", &disk).await.expect_err("it is refused").to_string();
    assert!(refused.contains("https://new:6443"), "{refused}");
    site.new.declare("Disk", "late", json!({"size": "1Gi"})).await;
    site.new.declare("HotswapDiskAttachment", "late", json!({"vm": "two", "disk": "late"})).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let late = site.new.of::<Disk>().get("late").await.expect("it is there");
    assert_eq!(late.status.and_then(|status| status.size).as_deref(), Some("1Gi"), "it is made");
}

#[tokio::test(start_paused = true)]
async fn a_move_that_is_given_up_leaves_everything_as_it_was() {
    let site = Site::new().await;
    let (before, real) = (contents(&site.old).await, site.real());
    let (mut given_up, mut kills) = (0, 0);
    for writes in (1..).step_by(11) {
        if let Some(done) = site.killed_after(writes, &site.old, &site.new).await {
            done.expect("it ends well");
            break;
        }
        let done = loop {
            if let Some(done) = site.abort_killed_after(3, &site.old, &site.new).await {
                break done;
            }
            kills += 1;
            assert!(kills < 1000, "it does not come further");
        };
        match done {
            Ok(()) => given_up += 1,
            Err(error) => {
                assert!(
                    format!("{error:#}").contains("has been handed over"),
                    "after {writes} writes: {error:#}"
                );
                continue;
            }
        }
        same(&before, &contents(&site.old).await);
        let left: Vec<String> = match berth::site::read(&site.new.admin).await.expect("it answers") {
            None => contents(&site.new).await.into_keys().collect(),
            Some(known) => panic!("the target still knows of it: {known:?}"),
        };
        assert!(left.is_empty(), "after {writes} writes the target has {left:?}");
        let secrets = secrets(&site.new).list(&ListParams::default()).await.expect("it answers").items;
        assert_eq!(secrets, [], "after {writes} writes");
        if given_up == 5 {
            must_hold_objects_of_its_own(&site).await;
        }
    }
    assert!(given_up > 6 && kills > given_up, "{given_up} {kills}");
    both_run(&site.new).await;
    assert_eq!(site.real(), real);
}

/// A move to a control plane that has objects of its own is refused before anything is done.
async fn must_hold_objects_of_its_own(site: &Site) {
    site.new.declare("VMClass", "small", json!({"cpus": 2, "memory": "1Gi"})).await;
    let refused = site.moves(&site.old, &site.new).await.expect_err("it is refused").to_string();
    assert!(refused.contains("VMClass default/small"), "{refused}");
    Api::<berth_api::VMClass>::default_namespaced(site.new.admin.clone())
        .delete("small", &DeleteParams::default())
        .await
        .expect("it is deleted");
    site.old.declare("Disk", "late", json!({"size": "1Gi"})).await;
    let late: Api<Disk> = site.old.of();
    late.delete("late", &DeleteParams::default()).await.expect("it is deleted");
}

/// Makes the control plane look as if restored from an older backup.
async fn forgets_the_move(plane: &Plane) {
    let maps: Api<ConfigMap> = Api::namespaced(plane.admin.clone(), "berth-system");
    maps.delete(berth_api::site::SITE, &DeleteParams::default()).await.expect("it is there");
    use k8s_openapi::api::admissionregistration::v1::{
        ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    };
    let params = DeleteParams::default();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(plane.admin.clone());
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(plane.admin.clone());
    for name in ["berth-moving", "berth-moving-secrets"] {
        bindings.delete(name, &params).await.expect("it is there");
        policies.delete(name, &params).await.expect("it is there");
    }
}

fn secret(name: &str, note: &str) -> Value {
    let note = ByteString(note.as_bytes().to_vec());
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"note": note}})
}

fn secrets(plane: &Plane) -> Api<Secret> {
    Api::default_namespaced(plane.admin.clone())
}

/// Moves the site in steps and changes the Secrets of its VMs before each: every accepted change arrives.
async fn secrets_are_held(site: &Site, from: &Plane, to: &Plane) {
    let (mut accepted, mut refused) = (None, 0);
    let (named, params) = (secrets(from), DeleteParams::default());
    let one = ListParams::default().fields("metadata.name=one");
    for step in 0.. {
        assert!(step < 100, "it does not come further");
        let note = format!("step {step} on {}", from.url);
        match from.apply("user", &secret("one", &note)).await.map(drop) {
            Ok(()) => {
                assert_eq!(refused, 0, "step {step}: it was refused before");
                accepted = Some(note);
            }
            changed => {
                refused += 1;
                let made = from.apply("user", &secret("missing", "x")).await.map(drop);
                let deleted = named.delete("one", &params).await.map(drop);
                let together = named.delete_collection(&params, &one).await.map(drop);
                for done in [changed, made, deleted, together] {
                    let error = done.expect_err("it is refused").to_string();
                    assert!(error.contains(&format!("moves to {}", to.url)), "step {step}: {error}");
                }
            }
        }
        from.apply("user", &secret("nobodys", &step.to_string())).await.expect("no VM names it");
        if let Some(done) = site.killed_after(5, from, to).await {
            done.expect("it ends well");
            break;
        }
    }
    assert!(accepted.is_some() && refused > 5, "{accepted:?} {refused}");
    let moved = secrets(to).get("one").await.expect("it is there").data.unwrap_or_default();
    assert_eq!(moved["note"].0, accepted.unwrap_or_default().into_bytes());
    let refused = from.apply("user", &secret("one", "late")).await.expect_err("it stays held").to_string();
    assert!(refused.contains(to.url), "{refused}");
    to.apply("user", &secret("one", "new")).await.expect("here it may be changed");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_a_vm_names_is_held_while_the_site_moves_and_no_other() {
    let site = Site::new().await;
    let spec = json!({"class": "huge", "disks": [{"name": "huge", "boot": true}], "bootstrap": {"secretName": "missing"}});
    site.old.declare("VM", "waits", spec).await;
    for writes in [30, 70] {
        assert!(site.killed_after(writes, &site.old, &site.new).await.is_none());
    }
    site.old.apply("user", &secret("one", "x")).await.expect_err("it is held");
    assert!(secrets(&site.new).get_opt("one").await.expect("it answers").is_some(), "it was copied");
    site.graduation(&site.old, &site.new).abort().await.expect("it is given up");
    assert_eq!(secrets(&site.new).list(&ListParams::default()).await.expect("it answers").items, []);
    Box::pin(secrets_are_held(&site, &site.old, &site.new)).await;
    Box::pin(secrets_are_held(&site, &site.new, &site.old)).await;
}

#[tokio::test(start_paused = true)]
async fn a_backup_of_before_commands_nobody_until_the_site_comes_back_and_then_all_is_there() {
    let site = Site::new().await;
    let uid = site.old.vm("one").await.and_then(|vm| vm.metadata.uid);
    // All that there is, with its count: the backup has it too.
    site.old.declare("Quota", "team", json!({"hard": {"disks": 4}})).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    site.moves(&site.old, &site.new).await.expect("it ends well");
    both_run(&site.new).await;
    // Changes the backup does not contain: an object created, one changed, one removed.
    site.new.declare("Quota", "team", json!({"hard": {"disks": 5}})).await;
    site.new.declare("Disk", "late", json!({"size": "1Gi"})).await;
    site.new.declare("HotswapDiskAttachment", "late", json!({"vm": "two", "disk": "late"})).await;
    let gone: Api<berth_api::VM> = site.new.of();
    gone.delete("huge", &DeleteParams::default()).await.expect("it is deleted");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "front"}}}));
    gone.patch("one", &PatchParams::default(), &patch).await.expect("it is changed");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = contents(&site.new).await;
    assert_eq!(before["Quota default/team"]["status"]["used"]["disks"], 5);
    let made = site.real();

    forgets_the_move(&site.old).await;
    // An agent of this machine that finds the backup.
    let config = berth_agent::AgentConfig {
        identity: "h1_x".into(),
        clock: site.clock.clone(),
        ..berth_agent::AgentConfig::new("h1")
    };
    let stop = tokio_util::sync::CancellationToken::new();
    let agent = berth_agent::run(config, site.old.admin.clone(), site.systems[0].clone(), stop.clone());
    let waited = tokio::time::timeout(Duration::from_secs(120), agent).await;
    assert!(waited.is_err(), "it waits: {waited:?}");
    assert_eq!(site.real(), made, "nothing was touched");
    same(&before, &contents(&site.new).await);

    // The first test kills it after every single write.
    let kills = moves_and_is_killed(&site, 3, &site.new, &site.old).await;
    assert!(kills > 5, "it was killed: {kills}");
    same(&before, &contents(&site.old).await);
    assert_eq!(site.old.vm("one").await.and_then(|vm| vm.metadata.uid), uid, "it is the object it was");
    let refused = site.new.apply("user", &declared("Disk", "x", json!({"size": "1Gi"}))).await;
    assert!(refused.expect_err("it is refused").to_string().contains("https://old:7443"));

    // And to the new one again.
    let outcome = site.moves(&site.old, &site.new).await.expect("it ends well");
    assert!(outcome.missing.is_empty(), "{outcome:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(site.real(), made);
    same(&before, &contents(&site.new).await);
}

#[tokio::test(start_paused = true)]
async fn what_refuses_or_does_not_answer_is_found_out_before_the_site_begins_to_leave() {
    let site = Site::new().await;
    berth::install::manifests(&site.new.admin).await.expect("the manifests apply");
    let viewer = joined(&site.new, "h1").await;
    let subject =
        json!({"kind": "ServiceAccount", "name": access::account_name("h1"), "namespace": "berth-system"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sees-all"});
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    let api_version = "rbac.authorization.k8s.io/v1";
    let all = [
        json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": "sees-all"}, "rules": rules}),
        json!({"apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": {"name": "sees-all"},
            "roleRef": role, "subjects": [subject]}),
    ];
    berth::install::apply(&site.new.admin, &all).await.expect("it may see everything");
    let address: http::Uri = "http://127.0.0.1:9".parse().expect("an address");
    let nobody = berth::one_connection::client_of(kube::Config::new(address)).expect("a client");
    for (target, why) in [
        (viewer, "is not an administrator's"),
        (nobody, "asking the target"),
        (site.old.admin.clone(), "is the control plane that the site uses now"),
    ] {
        let graduation =
            Graduation { target: target.clone(), masters: target, ..site.graduation(&site.old, &site.new) };
        for done in [graduation.plan().await.map(drop), graduation.run(&mut |_| {}).await.map(drop)] {
            let error = format!("{:#}", done.expect_err(why));
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(berth::site::read(&site.old.admin).await.expect("it answers"), None, "{why}");
        site.old.declare("Disk", "late", json!({"size": "1Gi"})).await;
        site.old.of::<Disk>().delete("late", &DeleteParams::default()).await.expect("it takes writes");
    }
    // A site on its way to one control plane moves to no other.
    assert!(site.killed_after(20, &site.old, &site.new).await.is_none());
    let error = site.moves(&site.old, &site.third).await.expect_err("it is refused").to_string();
    assert!(error.contains("on its way to https://new:6443"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn from_one_cluster_a_site_moves_on_to_another() {
    let site = Site::new().await;
    let (before, real) = (contents(&site.old).await, site.real());
    site.moves(&site.old, &site.new).await.expect("it ends well");
    both_run(&site.new).await;
    site.third.decides(3, &site.clock);
    site.moves(&site.new, &site.third).await.expect("it ends well");
    both_run(&site.third).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    site.one_commands_at_most().await;
    assert_eq!(site.real(), real, "no guest and no file has noticed");
    same(&before, &contents(&site.third).await);
    for (from, to) in [(&site.old, &site.third), (&site.new, &site.old)] {
        assert!(site.moves(from, to).await.is_err(), "{} is not in charge", from.url);
    }
}
