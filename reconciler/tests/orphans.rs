//! `berth host adopt|release|recover`: an administrator's operations on guests and files that no object owns.

use std::{sync::Arc, time::Duration};

use berth::{cli::HostAction, commands::hosts};
use berth_agent::AgentConfig;
use berth_api::{ConditionType, Disk, FORMER_UID_ANNOTATION, Host, VM, VMState, condition};
use berth_controllers as controllers;
use berth_engine::Identities;
use berth_host::fake::FakeSystem;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    image,
    installed::{self, Copy},
};

const LIMIT: Duration = Duration::from_secs(600);

async fn adopt(admin: &Client, names: &[&str]) -> Result<(), String> {
    let orphans = names.iter().map(|name| (*name).to_owned()).collect();
    act(admin, HostAction::Adopt { host: "h1".into(), orphans }).await
}

async fn release(admin: &Client, names: &[&str]) -> Result<(), String> {
    let orphans = names.iter().map(|name| (*name).to_owned()).collect();
    act(admin, HostAction::Release { host: "h1".into(), orphans }).await
}

async fn recover(admin: &Client, hosts: &[&str], all: bool, end: bool) -> Result<(), String> {
    let hosts = hosts.iter().map(|name| (*name).to_owned()).collect();
    act(admin, HostAction::Recover { hosts, all, end }).await
}

async fn act(admin: &Client, action: HostAction) -> Result<(), String> {
    hosts::act(admin, &action).await.map_err(|error| format!("{error:#}"))
}

async fn apply(admin: &Client, kind: &str, name: &str, former: Option<&str>, spec: Value) {
    let annotations = former.map(|uid| json!({FORMER_UID_ANNOTATION: uid})).unwrap_or_default();
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"name": name, "namespace": "default", "annotations": annotations}});
    berth::install::apply(admin, &[object]).await.expect("it applies");
}

async fn vm(admin: &Client) -> VM {
    Api::default_namespaced(admin.clone()).get("web").await.expect("it is there")
}

async fn disk(admin: &Client, name: &str) -> Option<Disk> {
    Api::default_namespaced(admin.clone()).get_opt(name).await.expect("it answers")
}

async fn host(admin: &Client) -> Host {
    Api::all(admin.clone()).get("h1").await.expect("it is there")
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn web() -> Value {
    json!({"class": "small", "disks": [{"name": "web-root", "boot": true}, {"name": "web-data"}],
        "networkInterfaces": [], "stop": {"gracePeriodSeconds": 5}})
}

/// A control plane and a host `h1` that runs VM `web`, with two disks.
struct Site {
    admin: Client,
    clock: Arc<berth_engine::RuntimeClock>,
    system: Arc<FakeSystem>,
    processes: JoinHandle<()>,
    /// The control plane's database.
    _folder: TempDir,
}

impl Site {
    async fn new() -> Self {
        let Copy { server: _server, admin, clock, folder } = installed::copy().await;
        let system = image::host(&clock);
        let processes = start(&admin, &clock, &system, 1);
        let site = Self { admin, clock, system, processes, _folder: folder };
        apply(
            &site.admin,
            "VMClass",
            "small",
            None,
            json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"}),
        )
        .await;
        apply(&site.admin, "Image", "debian", None, image::spec()).await;
        site.declare_disks().await;
        apply(&site.admin, "VM", "web", None, web()).await;
        until("web runs", async || site.runs().await).await;
        site
    }

    async fn declare_disks(&self) {
        apply(&self.admin, "Disk", "web-root", None, json!({"image": "debian", "size": "2Gi"})).await;
        apply(&self.admin, "Disk", "web-data", None, json!({"size": "1Gi"})).await;
    }

    async fn runs(&self) -> bool {
        let status = vm(&self.admin).await.status.unwrap_or_default();
        status.state == Some(VMState::Running) && condition::is_true(&status.conditions, ConditionType::Ready)
    }

    /// Returns the VM's uid, its QEMU's pid and the existing files.
    async fn now(&self) -> (String, Option<i64>, Vec<String>) {
        let vm = vm(&self.admin).await;
        let pid = vm.status.as_ref().and_then(|s| s.process.as_ref()).map(|p| p.pid);
        (vm.uid().unwrap_or_default(), pid, self.system.volumes_now().into_keys().collect())
    }

    /// Removes the VM and its disks while controllers and agent are stopped; returns the names of the guest and of
    /// its disks' files.
    async fn lose_the_objects(&mut self) -> (String, Vec<String>) {
        self.processes.abort();
        tokio::time::sleep(Duration::from_secs(1)).await;
        for (kind, name) in [("VM", "web"), ("Disk", "web-root"), ("Disk", "web-data")] {
            let resource = kube::api::ApiResource::from_gvk_with_plural(
                &kube::api::GroupVersionKind::gvk("berth.dev", "v1alpha1", kind),
                &format!("{}s", kind.to_lowercase()),
            );
            let api: Api<kube::api::DynamicObject> =
                Api::default_namespaced_with(self.admin.clone(), &resource);
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            api.patch(name, &PatchParams::default(), &free).await.expect("freed");
            api.delete(name, &DeleteParams::default()).await.expect("deleted");
        }
        self.processes = start(&self.admin, &self.clock, &self.system, 2);
        until("the host reports it", async || orphans(&host(&self.admin).await).len() == 3).await;
        let names = orphans(&host(&self.admin).await);
        let (guests, files): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with("i-"));
        (guests[0].clone(), files)
    }
}

fn start(
    admin: &Client,
    clock: &Arc<berth_engine::RuntimeClock>,
    system: &Arc<FakeSystem>,
    seed: u64,
) -> JoinHandle<()> {
    let (admin, clock, system) = (admin.clone(), clock.clone(), system.clone());
    tokio::spawn(async move {
        let identities = Identities::seeded(seed);
        let config = controllers::Config { clock: clock.clone(), identities, ..controllers::Config::new() };
        let agent = AgentConfig { clock, seed: Some(seed), ..AgentConfig::new("h1") };
        let cancel = CancellationToken::new();
        let agent = berth_agent::run(agent, admin.clone(), system, cancel.clone());
        let (_, ()) = tokio::join!(agent, controllers::run(admin, config, cancel));
    })
}

fn orphans(host: &Host) -> Vec<String> {
    host.status.iter().flat_map(|s| &s.orphans).map(|orphan| orphan.name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_adopted_takes_its_disks_along() {
    let mut site = Site::new().await;
    let before = site.now().await;
    let (guest, _) = site.lose_the_objects().await;
    let refused = adopt(&site.admin, &[&guest]).await.expect_err("nothing to give it to");
    assert!(refused.contains("there is no VM default/web") && refused.contains(&before.0), "{refused}");
    site.declare_disks().await;
    apply(&site.admin, "VM", "web", Some(&before.0), web()).await;
    adopt(&site.admin, &[&guest]).await.expect("it is adopted");
    until("it runs again", async || site.runs().await).await;
    until("the recovery is over", async || host(&site.admin).await.spec.recovery.is_none()).await;
    let after = site.now().await;
    assert_eq!((after.1, after.2), (before.1, before.2), "the same QEMU on the same files, and no other");
    assert_eq!(orphans(&host(&site.admin).await), Vec::<String>::new());
    let refused = adopt(&site.admin, &[&guest]).await.expect_err("it is no orphan any more");
    assert!(refused.contains("has no orphan"), "{refused}");
    assert!(site.system.violations().is_empty(), "{:?}", site.system.violations());
}

#[tokio::test(start_paused = true)]
async fn no_empty_disk_is_made_for_an_adopted_vm_while_its_host_has_a_file_for_it() {
    let mut site = Site::new().await;
    let before = site.now().await;
    let (_, files) = site.lose_the_objects().await;
    site.declare_disks().await;
    // As an administrator does to adopt the VM by hand.
    apply(&site.admin, "VM", "web", Some(&before.0), web()).await;
    recover(&site.admin, &["h1"], false, false).await.expect("it is opened");
    let is_bound = async || vm(&site.admin).await.status.is_some_and(|s| s.binding.is_some());
    until("the VM is bound", is_bound).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(site.system.volumes_now().into_keys().collect::<Vec<_>>(), before.2, "no file is made");
    for name in ["web-root", "web-data"] {
        let status = disk(&site.admin, name).await.expect("it is there").status.unwrap_or_default();
        assert_eq!(status.binding, None);
        let message =
            condition::find(&status.conditions, "Stalled").map(|c| c.message.clone()).unwrap_or_default();
        assert!(message.contains("berth host adopt h1 v-"), "{message}");
    }
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    adopt(&site.admin, &files).await.expect("they are adopted");
    until("it runs", async || site.runs().await && orphans(&host(&site.admin).await).is_empty()).await;
    let after = site.now().await;
    assert_eq!((after.1, after.2), (before.1, before.2), "the same QEMU on the same files");
}

#[tokio::test(start_paused = true)]
async fn what_is_released_is_ended_and_its_name_does_not_stay() {
    let mut site = Site::new().await;
    let (guest, files) = site.lose_the_objects().await;
    let names: Vec<&str> = files.iter().chain([&guest]).map(String::as_str).collect();
    release(&site.admin, &names).await.expect("it is released");
    assert!(site.system.hypervisor().instances().is_empty(), "the guest has ended");
    assert!(site.system.volumes_now().is_empty(), "its files are in the trash");
    assert_eq!(site.system.trash_now().len(), 2);
    assert_eq!(host(&site.admin).await.spec.released_orphans, Vec::<String>::new());
    let refused = release(&site.admin, &[&guest]).await.expect_err("it is gone");
    assert!(refused.contains("has no orphan"), "{refused}");
}

/// A control plane with a host that has the given status, without controllers or agents.
async fn reported(orphans: Value, released: &[&str]) -> (Client, TempDir) {
    let Copy { admin, folder, .. } = installed::copy().await;
    let hosts: Api<Host> = Api::all(admin.clone());
    let mut declared = Host::new("h1", Default::default());
    declared.spec.released_orphans = released.iter().map(|name| (*name).to_owned()).collect();
    hosts.create(&PostParams::default(), &declared).await.expect("it joins");
    report(&admin, orphans).await;
    (admin, folder)
}

async fn report(admin: &Client, orphans: Value) {
    let hosts: Api<Host> = Api::all(admin.clone());
    let status = Patch::Merge(json!({"status": {"observedGeneration": 1, "orphans": orphans}}));
    hosts.patch_status("h1", &PatchParams::default(), &status).await.expect("it reports");
}

fn orphan(name: &str, of: &str, uid: Option<&str>) -> Value {
    let (kind, owner) = if name.starts_with("i-") { ("Instance", "VM") } else { ("Volume", "Disk") };
    json!({"kind": kind, "name": name, "detail": "", "size": "1Gi",
        "owner": {"kind": owner, "namespace": "default", "name": of, "uid": uid}})
}

async fn former(admin: &Client, name: &str) -> Option<String> {
    berth_api::former_uid(&disk(admin, name).await?).map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_disks_are_not_all_on_the_host_is_not_adopted_and_nothing_is_changed() {
    let whole = [orphan("i-1", "web", Some("u1")), orphan("v-1", "web-root", Some("u2"))];
    let (admin, _folder) = reported(json!(whole), &[]).await;
    apply(&admin, "VM", "web", None, web()).await;
    let refused = adopt(&admin, &["i-1"]).await.expect_err("a disk is missing");
    assert!(refused.contains("no volume that was made for Disk default/web-data"), "{refused}");
    let several = [orphan("v-2", "web-data", Some("u3")), orphan("v-3", "web-data", Some("u4"))];
    report(&admin, json!([whole.to_vec(), several.to_vec()].concat())).await;
    let refused = adopt(&admin, &["i-1"]).await.expect_err("which file it had is not known");
    assert!(refused.contains("v-2 and v-3") && refused.contains("berth host adopt h1 i-1 v-2"), "{refused}");
    let refused = adopt(&admin, &["i-1", "v-2", "v-3"]).await.expect_err("a disk has one file");
    assert!(refused.contains("v-2 and v-3 were both made for a Disk default/web-data"), "{refused}");
    assert_eq!(vm(&admin).await.annotations().get(FORMER_UID_ANNOTATION), None);
    assert!(disk(&admin, "web-root").await.is_none() && host(&admin).await.spec.recovery.is_none());
    adopt(&admin, &["i-1", "v-3"]).await.expect("the command prints it");
    assert_eq!(former(&admin, "web-root").await.as_deref(), Some("u2"), "it is made, and goes along");
    assert_eq!(former(&admin, "web-data").await.as_deref(), Some("u4"));
    assert_eq!(vm(&admin).await.annotations()[FORMER_UID_ANNOTATION], "u1");
    assert!(host(&admin).await.spec.recovery.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_adopted_is_refused_with_a_reason() {
    let stranger = json!({"kind": "Process", "name": "7 qemu", "detail": ""});
    let nameless = orphan("v-1", "web-root", None);
    let orphans = json!([stranger, nameless, orphan("v-2", "web-data", Some("u2"))]);
    let (admin, _folder) = reported(orphans, &["v-2"]).await;
    for (name, why) in [
        ("i-0", "host h1 has no orphan i-0; it has: 7 qemu, v-1, v-2"),
        ("7 qemu", "was not made by berth"),
        ("v-1", "has no record of the object that it was made for"),
    ] {
        let refused = adopt(&admin, &[name]).await.expect_err("it is refused");
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(host(&admin).await.spec.released_orphans, ["v-2"], "it is still given up");
    apply(&admin, "Disk", "web-data", None, json!({"size": "1Gi"})).await;
    let disks: Api<Disk> = Api::default_namespaced(admin.clone());
    let bound = Patch::Merge(json!({"status": {"binding": {"host": "h1", "epoch": 1}}}));
    disks.patch_status("web-data", &PatchParams::default(), &bound).await.expect("it is bound");
    let refused = adopt(&admin, &["v-2"]).await.expect_err("it has a file");
    assert!(refused.contains("is bound to a host"), "{refused}");
    let unbound = Patch::Merge(json!({"status": {"binding": null}}));
    disks.patch_status("web-data", &PatchParams::default(), &unbound).await.expect("it is not bound");
    adopt(&admin, &["v-2"]).await.expect("it is adopted");
    assert_eq!(host(&admin).await.spec.released_orphans, Vec::<String>::new(), "it is not given up any more");
}

#[tokio::test(start_paused = true)]
async fn names_that_a_host_is_done_with_leave_the_list_with_the_next_release() {
    let both = json!([orphan("v-1", "a", Some("u1")), orphan("v-2", "b", Some("u2"))]);
    let (admin, _folder) = reported(both, &["v-1", "v-gone", "i-gone"]).await;
    let refused = release(&admin, &["v-2"]).await.expect_err("the host does nothing");
    assert!(refused.contains("has not ended v-2 yet"), "{refused}");
    assert_eq!(host(&admin).await.spec.released_orphans, ["v-1", "v-2"]);
    // The host removes one while the command waits for the other.
    report(&admin, json!([orphan("v-2", "b", Some("u2"))])).await;
    release(&admin, &["v-2"]).await.expect_err("the host does nothing");
    assert_eq!(host(&admin).await.spec.released_orphans, ["v-2"]);
    let many: Vec<String> = (0..300).map(|n| format!("v-{n}")).collect();
    report(&admin, many.iter().map(|name| orphan(name, name, Some(name))).collect()).await;
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let refused = release(&admin, &many).await.expect_err("too many");
    assert!(refused.contains("at most 256"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_is_opened_and_ended_for_the_hosts_that_are_named_or_for_all() {
    let (admin, _folder) = reported(json!([]), &[]).await;
    let open = async || host(&admin).await.spec.recovery.is_some();
    recover(&admin, &["h1"], false, false).await.expect("it is opened");
    assert!(open().await);
    recover(&admin, &["h1"], false, true).await.expect("it is ended");
    assert!(!open().await);
    recover(&admin, &[], true, false).await.expect("it is opened for all");
    assert!(open().await);
    recover(&admin, &[], true, true).await.expect("it is ended for all");
    assert!(!open().await);
    let refused = recover(&admin, &["h9"], false, false).await.expect_err("there is none");
    assert!(refused.contains("there is no host h9"), "{refused}");
}
