//! CD-ROM drives: media downloaded, inserted, exchanged, ejected and taken out.

use berth_api::vm::CdromStatus;
use berth_api::{Image, VM};
use berth_host::fake::FakeSource;
use berth_qemu::machine::Format;
use serde_json::json;

use crate::fixture::{Fixture, INSTANCE, is_ready, vm_reason};

/// Makes an Image of a format available. Another host verifies it, so that this one downloads it only when a VM needs it.
async fn image(fixture: &Fixture, name: &str, digit: &str, format: &str) {
    let (digest, url) = (digit.repeat(64), format!("http://images.example/{name}"));
    let source = FakeSource {
        sha256: digest.clone(),
        format: Format::Iso,
        virtual_size: 700 << 20,
        bytes: 700 << 20,
        refused: None,
    };
    fixture.system.add_source(&url, source);
    let spec = json!({"source": {"url": url, "sha256": digest}, "format": format});
    let status = json!({"observedGeneration": 0, "binding": {"host": "another", "epoch": 1}});
    fixture.make::<Image>(name, spec, Some(status)).await;
}

fn has(name: &'static str, inserted: bool, tray_open: bool) -> impl Fn(&VM) -> bool {
    move |vm: &VM| {
        let wanted = CdromStatus { name: name.to_owned(), inserted, tray_open };
        is_ready(vm, "Running") && vm.status.as_ref().is_some_and(|status| status.cdroms.contains(&wanted))
    }
}

/// The block nodes of media in the machine.
fn media(fixture: &Fixture) -> Vec<String> {
    let nodes = fixture.system.hypervisor().view(INSTANCE).expect("it runs").nodes;
    nodes.into_iter().filter(|node| node.starts_with("cdrom")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_vm_waits_for_its_medium_which_is_exchanged_and_taken_out_while_it_runs() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    image(&fixture, "installer", "c", "iso").await;
    image(&fixture, "drivers", "d", "iso").await;
    fixture.make_vm(json!({"cdroms": [{"name": "a", "image": "installer"}, {"name": "b"}]})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "Pulling").await;
    let started = fixture.until::<VM>("web", has("a", true, false)).await;
    assert!(has("b", false, false)(&started), "{started:?}");
    assert_eq!(media(&fixture), ["cdrom0-cccccccccccccccccccc"]);

    let change = async |cdroms| fixture.change::<VM>("web", json!({"cdroms": cdroms})).await;
    change(json!([{"name": "a", "image": "drivers"}, {"name": "b", "image": "installer"}])).await;
    let changed = fixture.until::<VM>("web", has("b", true, false)).await;
    let pid = |vm: &VM| vm.status.as_ref().and_then(|s| s.process.as_ref()).map(|process| process.pid);
    assert_eq!(pid(&changed), pid(&started), "it was not restarted");
    assert_eq!(media(&fixture), ["cdrom0-dddddddddddddddddddd", "cdrom1-cccccccccccccccccccc"]);
    assert!(changed.status.expect("it runs").pending_power_cycle.is_empty());

    fixture.system.hypervisor().guest_ejects(INSTANCE, 0);
    fixture.until::<VM>("web", has("a", true, true)).await;
    fixture.assert_quiet().await;
    change(json!([{"name": "a", "image": "drivers", "connected": false}, {"name": "b"}])).await;
    fixture.until::<VM>("web", has("a", false, false)).await;
    fixture.until::<VM>("web", has("b", false, false)).await;
    assert!(media(&fixture).is_empty(), "{:?}", media(&fixture));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn another_drive_waits_for_a_power_cycle_and_one_that_goes_is_empty_at_once() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    image(&fixture, "installer", "c", "iso").await;
    fixture.make_vm(json!({"cdroms": [{"name": "a", "image": "installer"}]})).await;
    fixture.until::<VM>("web", has("a", true, false)).await;
    fixture.change::<VM>("web", json!({"cdroms": [{"name": "b", "image": "installer"}]})).await;
    let vm = fixture.until::<VM>("web", has("a", false, false)).await;
    assert_eq!(vm.status.expect("it runs").pending_power_cycle, ["cdroms[a]", "cdroms[b]"]);
    fixture.change::<VM>("web", json!({"restartToken": "1"})).await;
    let vm = fixture.until::<VM>("web", has("b", true, false)).await;
    let status = vm.status.expect("it runs");
    assert_eq!((status.cdroms.len(), status.pending_power_cycle.len()), (1, 0));
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_uses_a_medium_is_asked_until_it_lets_go() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    image(&fixture, "installer", "c", "iso").await;
    let lock = |locks: bool| fixture.system.hypervisor().set_behaviour(INSTANCE, |b| b.locks_trays = locks);
    lock(true);
    fixture.make_vm(json!({"cdroms": [{"name": "a", "image": "installer"}]})).await;
    fixture.until::<VM>("web", has("a", true, false)).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    fixture.change::<VM>("web", json!({"cdroms": [{"name": "a"}]})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "GuestBusy").await;
    lock(false);
    fixture.until::<VM>("web", has("a", false, false)).await;
    fixture.assert_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_cannot_eject_has_its_tray_closed_again_with_the_medium() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    image(&fixture, "installer", "c", "iso").await;
    let drive = |can_eject: bool| json!([{"name": "a", "image": "installer", "guestCanEject": can_eject}]);
    fixture.make_vm(json!({"cdroms": drive(true)})).await;
    fixture.until::<VM>("web", has("a", true, false)).await;
    fixture.system.hypervisor().guest_ejects(INSTANCE, 0);
    fixture.until::<VM>("web", has("a", true, true)).await;
    fixture.change::<VM>("web", json!({"cdroms": drive(false)})).await;
    let closed = fixture.until::<VM>("web", has("a", true, false)).await;
    assert!(closed.status.expect("it runs").pending_power_cycle.is_empty());
    for _ in 0..3 {
        fixture.system.hypervisor().guest_ejects(INSTANCE, 0);
        fixture.assert_quiet().await;
        assert!(has("a", true, false)(&fixture.until::<VM>("web", |_| true).await));
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_of_another_format_is_no_medium() {
    let fixture = Fixture::start().await;
    fixture.furnish().await;
    fixture.make_vm(json!({"cdroms": [{"name": "a", "image": "debian"}]})).await;
    fixture.until::<VM>("web", |vm| vm_reason(vm) == "InvalidSpec").await;
    fixture.change::<VM>("web", json!({"cdroms": [{"name": "a"}]})).await;
    fixture.until::<VM>("web", has("a", false, false)).await;
}
