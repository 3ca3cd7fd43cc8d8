//! SSH keys and passwords of users of a running guest.

use std::time::Duration;

use berth_api::vm::GuestUserStatus;
use berth_api::{VM, condition};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, INSTANCE, reason_of};

const A: &str = "ssh-ed25519 AAAA a";
const B: &str = "ssh-ed25519 BBBB b";
/// As an administrator of the guest has added it.
const OTHER: &str = "ssh-ed25519 OOOO someone";

fn marked(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| format!("{key} managed-by=berth")).collect()
}

fn users(list: Value) -> Value {
    json!({ "guestUsers": list })
}

fn debian(keys: &[&str]) -> Value {
    users(json!([{"name": "debian", "sshAuthorizedKeys": keys}]))
}

async fn started(spec: Value) -> Fixture {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(spec).await;
    fixture
}

fn reason(vm: &VM) -> String {
    vm.status.as_ref().map(|status| reason_of(&status.conditions, "GuestUsersSynced")).unwrap_or_default()
}

fn statuses(vm: &VM) -> Vec<GuestUserStatus> {
    vm.status.as_ref().map(|status| status.guest_users.clone()).unwrap_or_default()
}

fn synced_since(vm: &VM) -> Option<String> {
    let conditions = &vm.status.as_ref()?.conditions;
    Some(format!("{:?}", condition::find(conditions, "GuestUsersSynced")?.last_transition_time))
}

async fn until_reason(fixture: &Fixture, wanted: &str) -> VM {
    fixture.until::<VM>("web", |vm| reason(vm) == wanted && has_seen(vm)).await
}

fn has_seen(vm: &VM) -> bool {
    vm.status.as_ref().map(|status| status.observed_generation) == vm.metadata.generation
}

async fn until_keys(fixture: &Fixture, user: &str, wanted: &[String]) {
    for _ in 0..600 {
        if fixture.system.hypervisor().authorized_keys(INSTANCE, user) == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{user} has {:?}, not {wanted:?}", fixture.system.hypervisor().authorized_keys(INSTANCE, user));
}

async fn set_secret(fixture: &Fixture, keys: &str) {
    set_secret_value(fixture, "team", "keys", keys).await;
}

async fn set_secret_value(fixture: &Fixture, name: &str, key: &str, text: &str) {
    let object =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: text}});
    let params = PatchParams::apply("test").force();
    fixture.api::<Secret>().patch(name, &params, &Patch::Apply(&object)).await.expect("applied");
}

fn with_password(secret: &str) -> Value {
    users(json!([{"name": "debian", "sshAuthorizedKeys": [A], "passwordSecret": secret}]))
}

async fn until_passwords(fixture: &Fixture, number: usize) -> Vec<String> {
    for _ in 0..600 {
        let found = fixture.system.hypervisor().guest_passwords(INSTANCE, "debian");
        if found.len() >= number {
            assert_eq!(found.len(), number, "each is set once");
            return found;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{:?}", fixture.system.hypervisor().guest_passwords(INSTANCE, "debian"));
}

fn password_version(vm: &VM) -> Option<String> {
    statuses(vm).first().and_then(|user| user.password_version.clone())
}

#[tokio::test(start_paused = true)]
async fn keys_are_exchanged_in_the_running_guest_and_no_other_key_is_touched() {
    let fixture = started(debian(&[A])).await;
    let vm = until_reason(&fixture, "Synced").await;
    let expected =
        GuestUserStatus { name: "debian".into(), synced: true, keys: Some(1), ..GuestUserStatus::default() };
    assert_eq!(statuses(&vm), [expected]);
    let hypervisor = fixture.system.hypervisor();
    let boot = hypervisor.view(INSTANCE).and_then(|view| view.boot);
    assert_eq!(hypervisor.authorized_keys(INSTANCE, "debian"), marked(&[A]));
    fixture.assert_quiet().await;
    // Also one that berth has set: it is not berth's without the mark.
    let present = [OTHER, B, "ssh-ed25519 AAAA a managed-by=berth"];
    hypervisor.set_authorized_keys(INSTANCE, "debian", &present);
    fixture.change::<VM>("web", debian(&[B])).await;
    let kept: Vec<String> = [OTHER, B].map(str::to_owned).into_iter().chain(marked(&[B])).collect();
    until_keys(&fixture, "debian", &kept).await;
    until_reason(&fixture, "Synced").await;
    fixture.change::<VM>("web", debian(&[])).await;
    until_keys(&fixture, "debian", &kept[..2]).await;
    assert_eq!(hypervisor.view(INSTANCE).and_then(|view| view.boot), boot, "it did not boot again");
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_user_that_is_taken_off_the_list_loses_the_keys_of_berth_also_if_the_agent_crashes_meanwhile() {
    let fixture = started(users(json!([
        {"name": "debian", "sshAuthorizedKeys": [A]}, {"name": "root", "sshAuthorizedKeys": [A, B]},
    ])))
    .await;
    until_reason(&fixture, "Synced").await;
    let hypervisor = fixture.system.hypervisor();
    let root: Vec<String> = marked(&[A, B]).into_iter().chain([OTHER.to_owned()]).collect();
    hypervisor.set_authorized_keys(INSTANCE, "root", &root.iter().map(String::as_str).collect::<Vec<_>>());
    fixture.crash_agent().await;
    fixture.change::<VM>("web", debian(&[A])).await;
    fixture.start_agent();
    until_keys(&fixture, "root", &[OTHER.to_owned()]).await;
    fixture.until::<VM>("web", |vm| statuses(vm).len() == 1 && reason(vm) == "Synced").await;
    assert_eq!(hypervisor.authorized_keys(INSTANCE, "debian"), marked(&[A]));
    fixture.change::<VM>("web", users(json!([]))).await;
    until_keys(&fixture, "debian", &[]).await;
    fixture.until::<VM>("web", |vm| statuses(vm).is_empty() && reason(vm).is_empty()).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn keys_are_set_again_when_the_guest_or_its_agent_starts_and_after_a_while() {
    let fixture = started(debian(&[A])).await;
    until_reason(&fixture, "Synced").await;
    let hypervisor = fixture.system.hypervisor();
    for disturb in [
        |fixture: &Fixture| fixture.system.hypervisor().guest_reboots(INSTANCE),
        |fixture: &Fixture| fixture.system.hypervisor().guest_agent_restarts(INSTANCE),
    ] {
        hypervisor.set_authorized_keys(INSTANCE, "debian", &[]);
        let before = tokio::time::Instant::now();
        disturb(&fixture);
        until_keys(&fixture, "debian", &marked(&[A])).await;
        assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    }
    hypervisor.set_authorized_keys(INSTANCE, "debian", &[OTHER]);
    let both: Vec<String> = [OTHER.to_owned()].into_iter().chain(marked(&[A])).collect();
    until_keys(&fixture, "debian", &both).await;
    // Another process of the machine, with another file.
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    fixture.running_vm().await;
    until_keys(&fixture, "debian", &marked(&[A])).await;
    // Another agent does not know the keys yet.
    until_reason(&fixture, "Synced").await;
    fixture.assert_quiet().await;
    let before = synced_since(&fixture.running_vm().await);
    fixture.crash_agent().await;
    fixture.start_agent();
    fixture.assert_quiet().await;
    assert_eq!(synced_since(&fixture.running_vm().await), before);
}

#[tokio::test(start_paused = true)]
async fn a_secret_with_keys_is_waited_for_and_its_rotation_reaches_the_guest() {
    let spec = |keys: &[&str]| {
        users(json!([{"name": "debian", "sshAuthorizedKeys": keys, "sshAuthorizedKeysSecret": "team"}]))
    };
    let fixture = started(spec(&[A])).await;
    let vm = until_reason(&fixture, "WaitingForSecret").await;
    assert_eq!(statuses(&vm)[0].message.as_deref(), Some("Secret team does not exist"));
    set_secret(&fixture, &format!("# the team\n{B}\n")).await;
    until_keys(&fixture, "debian", &marked(&[A, B])).await;
    until_reason(&fixture, "Synced").await;
    set_secret(&fixture, OTHER).await;
    until_keys(&fixture, "debian", &marked(&[A, OTHER])).await;
    fixture.assert_quiet().await;
    set_secret(&fixture, "canary").await;
    let vm = until_reason(&fixture, "InvalidSpec").await;
    assert!(!format!("{vm:?}").contains("canary"), "{vm:?}");
    fixture.api::<Secret>().delete("team", &Default::default()).await.expect("deleted");
    until_reason(&fixture, "WaitingForSecret").await;
    let hypervisor = fixture.system.hypervisor();
    assert_eq!(hypervisor.authorized_keys(INSTANCE, "debian"), marked(&[A, OTHER]), "they stay as they are");
    fixture.change::<VM>("web", debian(&[A])).await;
    until_keys(&fixture, "debian", &marked(&[A])).await;
}

#[tokio::test(start_paused = true)]
async fn the_status_says_why_keys_are_not_set_and_nothing_waits_for_them() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    let hypervisor = fixture.system.hypervisor();
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.guest_agent = false);
    fixture.make_vm(debian(&[A])).await;
    fixture.running_vm().await;
    let vm = until_reason(&fixture, "NoGuestAgent").await;
    assert!(format!("{vm:?}").contains("the keys of user debian are not the declared ones"), "{vm:?}");
    fixture.assert_quiet().await;
    for command in ["guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys"] {
        hypervisor.set_behaviour(INSTANCE, |behaviour| {
            behaviour.guest_agent = true;
            behaviour.disabled_commands = vec![command.to_owned()];
        });
        let vm = fixture.until::<VM>("web", |vm| format!("{:?}", statuses(vm)).contains(command)).await;
        assert_eq!(reason(&vm), "GuestAgentRefused");
    }
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.disabled_commands.clear());
    until_reason(&fixture, "Synced").await;
    hypervisor.remove_guest_user(INSTANCE, "debian");
    let vm = until_reason(&fixture, "NoSuchGuestUser").await;
    assert!(!statuses(&vm)[0].synced);
    fixture.assert_quiet().await;
    // Nothing is left to do for a user that does not exist.
    fixture.change::<VM>("web", users(json!([]))).await;
    fixture.until::<VM>("web", |vm| statuses(vm).is_empty()).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_stopped_vm_are_set_at_its_next_start() {
    let fixture = started(debian(&[A])).await;
    until_reason(&fixture, "Synced").await;
    fixture.change::<VM>("web", json!({"power": "Stopped"})).await;
    let vm = fixture.until::<VM>("web", |vm| crate::fixture::is_ready(vm, "Stopped")).await;
    assert_eq!((reason(&vm).as_str(), statuses(&vm).len()), ("", 1), "the record of the user stays");
    fixture.change::<VM>("web", debian(&[B])).await;
    fixture.assert_quiet().await;
    fixture.change::<VM>("web", json!({"power": "Running"})).await;
    until_keys(&fixture, "debian", &marked(&[B])).await;
    until_reason(&fixture, "Synced").await;
    fixture.assert_quiet().await;
}

/// A hash as a person made it with `mkpasswd`.
const HASH: &str =
    "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1";

#[tokio::test(start_paused = true)]
async fn a_password_that_changes_in_its_secret_is_set_once_in_the_running_guest() {
    let fixture = started(with_password("login")).await;
    let vm = until_reason(&fixture, "WaitingForSecret").await;
    assert_eq!(statuses(&vm)[0].message.as_deref(), Some("Secret login does not exist"));
    set_secret_value(&fixture, "login", "password", "canary one\n").await;
    let set = until_passwords(&fixture, 1).await;
    assert!(set[0].starts_with("$6$rounds="), "the guest gets a hash: {}", set[0]);
    let vm = fixture.until::<VM>("web", |vm| reason(vm) == "Synced" && password_version(vm).is_some()).await;
    let first = password_version(&vm);
    assert!(!format!("{vm:?}").contains("canary") && !format!("{vm:?}").contains(&set[0]), "{vm:?}");
    fixture.assert_quiet().await;
    for disturb in [
        |fixture: &Fixture| fixture.system.hypervisor().guest_reboots(INSTANCE),
        |fixture: &Fixture| fixture.system.hypervisor().guest_agent_restarts(INSTANCE),
    ] {
        disturb(&fixture);
        tokio::time::sleep(Duration::from_secs(600)).await;
        until_passwords(&fixture, 1).await;
    }
    fixture.crash_agent().await;
    fixture.start_agent();
    tokio::time::sleep(Duration::from_secs(600)).await;
    until_passwords(&fixture, 1).await;
    set_secret_value(&fixture, "login", "password", HASH).await;
    assert_eq!(until_passwords(&fixture, 2).await[1], HASH);
    fixture
        .until::<VM>("web", |vm| {
            password_version(vm).is_some_and(|version| Some(version) != first) && reason(vm) == "Synced"
        })
        .await;
    fixture.change::<VM>("web", debian(&[A])).await;
    fixture.until::<VM>("web", |vm| has_seen(vm) && password_version(vm).is_none()).await;
    fixture.assert_quiet().await;
    until_passwords(&fixture, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_password_that_cannot_be_used_or_set_is_named_and_never_quoted() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(with_password("login")).await;
    for (key, text, problem) in [
        ("other", "canary", "Secret login: it has no key password"),
        ("password", "canary\ncanary", "Secret login: a password has 1 to 256 bytes"),
        ("password", "$y$canary", "Secret login: this reads as a hash"),
    ] {
        set_secret_value(&fixture, "login", key, text).await;
        let wanted = |vm: &VM| {
            let message = statuses(vm).first().and_then(|user| user.message.clone());
            message.is_some_and(|message| message.starts_with(problem))
        };
        let vm = fixture.until::<VM>("web", wanted).await;
        assert_eq!(reason(&vm), "InvalidSpec");
        assert!(!format!("{vm:?}").contains("canary"), "{vm:?}");
    }
    let hypervisor = fixture.system.hypervisor();
    let command = "guest-set-user-password";
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.disabled_commands = vec![command.to_owned()]);
    set_secret_value(&fixture, "login", "password", "canary").await;
    let vm = until_reason(&fixture, "GuestAgentRefused").await;
    assert!(statuses(&vm)[0].message.as_ref().is_some_and(|text| text.contains(command)), "{vm:?}");
    assert_eq!(hypervisor.authorized_keys(INSTANCE, "debian"), marked(&[A]), "keys do not wait for it");
    hypervisor.set_behaviour(INSTANCE, |behaviour| behaviour.disabled_commands.clear());
    until_reason(&fixture, "Synced").await;
    until_passwords(&fixture, 1).await;
}
